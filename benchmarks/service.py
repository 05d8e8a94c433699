"""Measure operations a second of the whole service without HTTP: verify, create, get and credit.

The stores are memory and SQLite. The same run measures two upper limits: the raw Ed25519 verification, and a raw
`sqlite3` loop with the same statements in batches of the same size. It also measures the import time, beside that of
the dependencies.

    nox -s bench -- service [--json] [--seconds S]
"""

import argparse
import asyncio
import itertools
import json
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from _durable import Raw
from _report import finish, rate, table
from incoming_payments import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    Amount,
    Asset,
    AsyncPorts,
    DerivedMethods,
    IncomingPayment,
    Ports,
    Request,
    ServicePolicy,
    StaticIntrospector,
    WalletAddress,
    wallet_address_url,
)
from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import (
    PAYMENT_ID_RANDOM_BYTES,
    PaymentId,
    WalletAddressUrl,
    client_id,
    new_payment_id,
)
from incoming_payments.endpoints.open_payments import handle
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.flows.receive import receive
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig import PrivateKey, RequestMessage, ed25519, load_jwk, sign, verify
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore

CALLERS = 64
PAYMENTS = 2_000  # the payments that share the credits of one row
USD = Asset("USD", 2)
BASE_URL = "https://bank.example"
POLICY = ServicePolicy(base_url=BASE_URL, auth_server="https://auth.bank.example")
ALICE = WalletAddress(wallet_address_url(f"{BASE_URL}/alice"), USD, "https://auth.bank.example")
KEY = PrivateKey.generate_ed25519("key-1")
TOKEN = "a-token-of-some-length-as-they-are"  # noqa: S105 - made up
NOW = datetime.now(UTC)


class Bank:
    """A `WalletAddresses` port with one wallet address."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address of Alice, or `None`."""
        return ALICE if url == ALICE.url else None


INTROSPECTOR = StaticIntrospector(
    [(AccessToken(TOKEN), AccessTokenInfo("https://shop.example", KEY.public_jwk(), [AccessRight(["create", "read"])]))]
)
METHODS = DerivedMethods("g.bank", [secrets.token_bytes(32)])


def signed(method: str, path: str, body: bytes = b"") -> RequestMessage:
    """Return a signed request in the form that the usual Node client sends."""
    headers = (("authorization", f"GNAP {TOKEN}"),)
    if body:
        headers += (("content-type", "application/json"), ("content-length", str(len(body))))  # type: ignore[assignment]
    return sign(RequestMessage(method, f"{BASE_URL}{path}", headers, body), KEY, created=NOW)


def received(request: RequestMessage) -> Request:
    """Return `request` as a host passes it to the service."""
    return Request(request.method, request.target_uri.removeprefix(BASE_URL), "", request.headers, request.body)


CREATE_BODY = json.dumps(
    {
        "walletAddress": ALICE.url,
        "incomingAmount": {"value": "2500", "assetCode": "USD", "assetScale": 2},
        "metadata": {"externalRef": "INV-2026-0042"},
    }
).encode()
CREATE = signed("POST", "/incoming-payments", CREATE_BODY)


def endless_payment() -> lifecycle.Decision[IncomingPayment]:
    """Create a payment without a limit, so that it takes any number of credits."""
    return lifecycle.create(
        id=new_payment_id(datetime.now(UTC), secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES)),
        wallet_address=ALICE,
        client=client_id("https://shop.example"),
        limit=None,
        expires_at=None,
        metadata=None,
        now=NOW,
    )


def measure_verify(seconds: float) -> dict[str, float]:
    """Measure the verification of the signed POST with all checks, and the raw verification by the same library."""
    private = Ed25519PrivateKey.generate()
    message = b"x" * 400  # about the length of the signature base of that request
    signature, public = private.sign(message), ed25519.public_key(private.public_key().public_bytes_raw())
    key = load_jwk(KEY.public_jwk())
    raw = rate(lambda: public.verify(signature, message), seconds=seconds)
    full = rate(lambda: verify(CREATE, {key.kid: key}, policy=SignaturePolicy(), now=NOW), seconds=seconds)
    return {"raw_ed25519_verify": raw, "verify": full, "verify_times_raw": raw / full}


def measure_sync(store: MemoryStore | SqliteStore, seconds: float) -> dict[str, float]:
    """Measure each operation with one caller."""
    ports = Ports(store=store, wallet_addresses=Bank(), introspector=INTROSPECTOR, methods=METHODS)
    id = _insert(store)
    get = received(signed("GET", f"/incoming-payments/{id}"))
    public = Request("GET", f"/incoming-payments/{id}")
    names = itertools.count()

    def answer(request: Request, status: int) -> None:
        response = run(handle(request, policy=POLICY, now=NOW), ports)
        assert response.status == status, response

    def credit() -> None:
        run(receive(id, credit_id=f"credit-{next(names):012}", amount=Amount(1, USD), clock=lambda: NOW), ports)

    create = received(CREATE)
    return {
        "create_1": rate(lambda: answer(create, 201), seconds=seconds),
        "get_1": rate(lambda: answer(get, 200), seconds=seconds),
        "public_get_1": rate(lambda: answer(public, 200), seconds=seconds),
        "credit_1": rate(credit, seconds=seconds),
    }


def _insert(store: MemoryStore | SqliteStore) -> PaymentId:
    decision = endless_payment()
    store.insert(decision)
    return decision.answer.id


async def measure_async(store: AsyncSqliteStore | MemoryStore, id: PaymentId, seconds: float) -> dict[str, float]:
    """Measure each operation with 64 callers, as tasks of one event loop."""
    ports = AsyncPorts(store=store, wallet_addresses=Bank(), introspector=INTROSPECTOR, methods=METHODS)
    create, get = received(CREATE), received(signed("GET", f"/incoming-payments/{id}"))
    public = Request("GET", f"/incoming-payments/{id}")
    names = itertools.count()

    async def answer(request: Request, status: int) -> None:
        response = await arun(handle(request, policy=POLICY, now=NOW), ports)
        assert response.status == status, response

    async def credit() -> None:
        name = f"credit-{next(names):012}-async"
        await arun(receive(id, credit_id=name, amount=Amount(1, USD), clock=lambda: NOW), ports)

    return {
        f"create_{CALLERS}": await _rate_of_many(lambda: answer(create, 201), seconds),
        f"get_{CALLERS}": await _rate_of_many(lambda: answer(get, 200), seconds),
        f"public_get_{CALLERS}": await _rate_of_many(lambda: answer(public, 200), seconds),
        f"credit_{CALLERS}": await _rate_of_many(credit, seconds),
    }


async def measure_spread(store: AsyncSqliteStore, ids: list[PaymentId], seconds: float) -> dict[str, float]:
    """Measure credits by 64 callers, each to the next of many payments, so that they share little but the commit."""
    ports = AsyncPorts(store=store)
    names = itertools.count()

    async def credit() -> None:
        number = next(names)
        id, name = ids[number % len(ids)], f"credit-{number:012}-spread"
        await arun(receive(id, credit_id=name, amount=Amount(1, USD), clock=lambda: NOW), ports)

    return {f"credit_spread_{CALLERS}": await _rate_of_many(credit, seconds)}


async def _rate_of_many(action: Callable[[], Awaitable[None]], seconds: float) -> float:
    done = 0

    async def caller(until: float) -> None:
        nonlocal done
        while time.perf_counter() < until:
            await action()
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(caller(start + seconds) for _ in range(CALLERS)))
    return done / (time.perf_counter() - start)


def measure_raw_sqlite(folder: Path, seconds: float) -> dict[str, float]:
    """Measure the raw `sqlite3` loop, with 1 and with 64 credits in a commit."""
    with closing(Raw(folder / "raw.sqlite3")) as raw:
        one = rate(partial(raw.credit, 1), seconds=seconds)
        many = rate(partial(raw.credit, CALLERS), seconds=seconds, count=CALLERS)
    return {"raw_sqlite_credit_1": one, f"raw_sqlite_credit_{CALLERS}": many}


def measure_imports() -> dict[str, float]:
    """Return the milliseconds to import the library, and to import its dependencies alone.

    Each is the best of seven, less the time of a bare start.
    """
    dependencies = (
        "attrs, cattrs, http_sf, dateutil.parser, "
        "cryptography.hazmat.primitives.asymmetric.ed25519, cryptography.hazmat.primitives.asymmetric.rsa, "
        "cryptography.hazmat.primitives.serialization, cryptography.hazmat.primitives.ciphers.aead"
    )
    bare = _start_ms("pass")
    own, theirs = (_start_ms(f"import {names}") - bare for names in ("incoming_payments", dependencies))
    return {"import_ms": own, "import_dependencies_ms": theirs, "import_times_dependencies": own / theirs}


def _start_ms(code: str) -> float:
    def once() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - start) * 1000

    return min(once() for _ in range(7))


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure operations a second of the service.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each measurement takes (2)")
    options = parser.parse_args()
    seconds = options.seconds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures = measure_verify(seconds) | measure_raw_sqlite(folder, seconds)
        memory = MemoryStore()
        figures |= _named("memory", measure_sync(memory, seconds))
        figures |= _named("memory", asyncio.run(measure_async(memory, _insert(memory), seconds)))
        with SqliteStore(folder / "sync.sqlite3") as store:
            figures |= _named("sqlite", measure_sync(store, seconds))
        figures |= _named("sqlite", asyncio.run(_measure_async_sqlite(folder / "async.sqlite3", seconds)))
    figures |= measure_imports()
    for callers in (1, CALLERS):
        figures[f"credit_{callers}_vs_raw_sqlite"] = (
            figures[f"sqlite_credit_{callers}"] / figures[f"raw_sqlite_credit_{callers}"]
        )
    _show(figures)
    finish({name: round(value, 3) for name, value in figures.items()}, as_json=options.json)


async def _measure_async_sqlite(path: Path, seconds: float) -> dict[str, float]:
    async with AsyncSqliteStore(path) as store:
        decisions = [endless_payment() for _ in range(PAYMENTS)]
        await asyncio.gather(*(store.insert(decision) for decision in decisions))
        ids = [decision.answer.id for decision in decisions]
        return await measure_async(store, ids[0], seconds) | await measure_spread(store, ids, seconds)


def _named(store: str, figures: dict[str, float]) -> dict[str, float]:
    return {f"{store}_{name}": value for name, value in figures.items()}


def _show(figures: dict[str, float]) -> None:
    raw_verify = figures["raw_ed25519_verify"]
    rows = [
        [
            operation,
            *(
                f"{figures[f'{store}_{operation}_{callers}']:,.0f}"
                for store in ("memory", "sqlite")
                for callers in (1, CALLERS)
            ),
        ]
        for operation in ("create", "get", "public_get", "credit")
    ]
    rows.append(
        [f"credit, over {PAYMENTS:,} payments", "", "", "", f"{figures[f'sqlite_credit_spread_{CALLERS}']:,.0f}"]
    )
    head = ["operations per second", "memory, 1 caller", f"memory, {CALLERS}", "SQLite, 1", f"SQLite, {CALLERS}"]
    table("The service, without HTTP", head, rows)
    table(
        "Against the upper limits",
        ["", "raw, per second", "ours, per second", "ratio"],
        [
            [
                f"verify a POST : raw Ed25519, {ed25519.BACKEND}",
                f"{raw_verify:,.0f}",
                f"{figures['verify']:,.0f}",
                f"{figures['verify_times_raw']:.2f} x the time",
            ],
            *(
                [
                    f"credit, {callers} in a commit : raw sqlite3",
                    f"{figures[f'raw_sqlite_credit_{callers}']:,.0f}",
                    f"{figures[f'sqlite_credit_{callers}']:,.0f}",
                    f"{figures[f'credit_{callers}_vs_raw_sqlite']:.2f} of the rate",
                ]
                for callers in (1, CALLERS)
            ),
            *(
                [
                    f"create, SQLite, {callers} : raw Ed25519",
                    f"{raw_verify:,.0f}",
                    f"{figures[f'sqlite_create_{callers}']:,.0f}",
                    f"{figures[f'sqlite_create_{callers}'] / raw_verify:.2f} of the rate",
                ]
                for callers in (1, CALLERS)
            ),
        ],
    )
    table(
        "Importing",
        ["", "milliseconds"],
        [
            ["incoming_payments", f"{figures['import_ms']:.0f}"],
            ["its dependencies alone", f"{figures['import_dependencies_ms']:.0f}"],
            ["ratio", f"{figures['import_times_dependencies']:.2f}"],
        ],
    )


if __name__ == "__main__":
    main()
