"""Measure the time of one page of a list, at page 1, at page 10,000 and at the last page of ten million payments.

Plain SQL fills one SQLite file, in the schema of the store: one wallet address has all payments, and two clients have
created them in turns. Then three readers request pages of 20 payments, in turns: a client with the right `list`, which
reads its own payments, a client with the right `list-all`, and the host by `service.list`. The requests of the clients
are signed, and their time includes the checks of the token and the signature.

`flatness` is the time of page 10,000 in relation to that of page 1, for the client with the worse ratio. `flatness_of`
has the ratio of `service.list` too. Each page but the first includes a look-up of its cursor, which takes 50
microseconds at every depth. The benchmark writes 5 GB to the folder for temporary files, and removes them.

    nox -s bench -- list [--json] [--payments N] [--turns N]
"""

import argparse
import itertools
import json
import os
import secrets
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from _report import finish, table
from incoming_payments import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    Asset,
    DerivedMethods,
    IncomingPayments,
    Ports,
    Request,
    ServicePolicy,
    StaticIntrospector,
    WalletAddress,
    wallet_address_url,
)
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.stores.sqlite import SqliteStore

PAGE: Final = 20  # payments, the default of a page
DEEP: Final = 10_000  # the page that is compared with page 1
BASE_URL: Final = "https://bank.example"
POLICY: Final = ServicePolicy(base_url=BASE_URL, auth_server="https://auth.bank.example")
ALICE: Final = WalletAddress(wallet_address_url(f"{BASE_URL}/alice"), Asset("USD", 2), "https://auth.bank.example")
CLIENTS: Final = ("https://shop.example/0", "https://shop.example/1")
KEY: Final = PrivateKey.generate_ed25519("key-1")
TOKENS: Final = {"list": "a-token-of-some-length-as-they-are-1", "list-all": "a-token-of-some-length-as-they-are-2"}

# One payment in each millisecond. The ids have the usual form: UUID version 7 with the time of creation.
_FILL: Final = """
    INSERT INTO payments (id, version, received_amount, updated_at, wallet_address, client, asset_code, asset_scale,
        incoming_amount, metadata, created_at)
    WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < :count - 1)
    SELECT printf('%s-%s-7%s-8%s-%s', substr(printf('%012x', :began + i), 1, 8), substr(printf('%012x', :began + i), 9),
            substr(random, 1, 3), substr(random, 4, 3), substr(random, 7, 12)),
        2, '100', (:began + i) * 1000, :wallet_address, :client || (i % 2), 'USD', 2, '2500',
        '{"externalRef":"INV-2026"}',
        (:began + i) * 1000
    FROM (SELECT i, lower(hex(randomblob(9))) AS random FROM n)
"""


class Bank:
    """A `WalletAddresses` port with one wallet address."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address of Alice, or `None`."""
        return ALICE if url == ALICE.url else None


def fill(path: Path, payments: int) -> None:
    """Create the database file with this many payments."""
    SqliteStore(path).close()
    began = datetime.now(UTC) - timedelta(milliseconds=payments, hours=1)
    values = {
        "count": payments,
        "began": int(began.timestamp() * 1000),
        "wallet_address": ALICE.url,
        "client": CLIENTS[0][:-1],
    }
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            connection.execute(f"PRAGMA {setting}")
        connection.execute("BEGIN")
        connection.execute(_FILL, values)
        connection.execute("COMMIT")
    with path.open("rb") as file:
        os.fsync(file.fileno())  # now, so that the disk is idle during the measurement


def cursor_before(path: Path, page: int, client: str | None) -> str | None:
    """Return the cursor of `page` in the list of all payments, or of those of `client`."""
    if page == 1:
        return None
    condition = "" if client is None else "AND client = :client"
    query = (
        f"SELECT id FROM payments WHERE wallet_address = :wallet_address {condition} "  # noqa: S608 - of constants
        "ORDER BY created_at DESC, id DESC LIMIT 1 OFFSET :skipped"
    )
    values = {"wallet_address": ALICE.url, "client": client, "skipped": (page - 1) * PAGE - 1}
    with closing(sqlite3.connect(path)) as connection:
        [(cursor,)] = connection.execute(query, values)
    return str(cursor)


def a_service(store: SqliteStore) -> IncomingPayments:
    """Return the service with the tokens of two clients. Only one of them has created payments."""
    tokens = [
        (AccessToken(token), AccessTokenInfo(CLIENTS[0], KEY.public_jwk(), [AccessRight([action], ALICE.url)]))
        for action, token in TOKENS.items()
    ]
    methods = DerivedMethods("g.bank", [secrets.token_bytes(32)])
    introspector = StaticIntrospector(tokens)
    ports = Ports(store=store, wallet_addresses=Bank(), introspector=introspector, methods=methods)
    return IncomingPayments(policy=POLICY, ports=ports)


def by_client(service: IncomingPayments, action: str, cursor: str | None) -> Callable[[], int]:
    """Return a signed request for a page. It returns the number of payments on the page."""
    query = f"wallet-address={quote(ALICE.url, safe='')}" + (f"&cursor={cursor}" if cursor else "")
    url = f"{BASE_URL}/incoming-payments?{query}"
    unsigned = RequestMessage("GET", url, (("authorization", f"GNAP {TOKENS[action]}"),))

    def request() -> int:
        headers = sign(unsigned, KEY, created=datetime.now(UTC)).headers
        response = service.handle(Request("GET", "/incoming-payments", query, headers))
        assert response.status == 200, response
        return len(json.loads(response.body)["result"])

    return request


def by_host(service: IncomingPayments, cursor: str | None) -> Callable[[], int]:
    """Return a call of the host for a page. It returns the number of payments on the page."""
    return lambda: len(service.list(wallet_address=ALICE.url, cursor=cursor).payments)


def measure(path: Path, payments: int, turns: int) -> dict[str, dict[int, float]]:
    """Return the microseconds of a page, by reader and page."""
    last = payments // PAGE // 2
    pages = (1, min(DEEP, last), last)
    with SqliteStore(path) as store:
        service = a_service(store)
        calls: dict[tuple[str, int], Callable[[], int]] = {}
        for page in pages:
            every, own = cursor_before(path, page, None), cursor_before(path, page, CLIENTS[0])
            calls["list", page] = by_client(service, "list", own)
            calls["list-all", page] = by_client(service, "list-all", every)
            calls["service.list", page] = by_host(service, every)
        assert {call() for call in calls.values()} == {PAGE}
        spent: dict[tuple[str, int], list[float]] = {name: [] for name in calls}
        for _, (name, call) in itertools.product(range(turns), calls.items()):
            start = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - start)
    return {
        reader: {page: statistics.median(spent[reader, page]) * 1e6 for page in pages}
        for reader in ("list", "list-all", "service.list")
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="nox -s bench -- list")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object on the last line")
    parser.add_argument("--payments", type=int, default=10_000_000, help="payments in the file (10000000)")
    parser.add_argument("--turns", type=int, default=2_000, help="pages of each kind (2000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "payments.db"
        began_s = time.perf_counter()
        fill(path, options.payments)
        size_gb = path.stat().st_size / 1e9
        print(f"{options.payments:,} payments, {size_gb:.1f} GB, written in {time.perf_counter() - began_s:.0f} s")
        times = measure(path, options.payments, options.turns)
    pages = list(next(iter(times.values())))
    ratios = {reader: round(time_of[pages[1]] / time_of[1], 3) for reader, time_of in times.items()}
    rows = [
        [reader, *(f"{time_of[page]:.0f}" for page in pages), f"{ratios[reader]:.2f}"]
        for reader, time_of in times.items()
    ]
    head = ["microseconds a page", *(f"page {page:,}" for page in pages), "flatness"]
    table("one page of 20 payments (the median)", head, rows)
    figures = {
        "flatness": max(ratios[action] for action in TOKENS),
        "flatness_of": ratios,
        "payments": options.payments,
        "pages": pages,
        "page_us": {reader: {f"{page:,}": round(us, 1) for page, us in of.items()} for reader, of in times.items()},
    }
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()
