"""Lists in the SQLite store: each query begins at its place in an index, so that every page costs the same."""

import asyncio
import itertools
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId, WalletAddressUrl
from incoming_payments.domain.transitions import State
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _list
from incoming_payments.stores.sqlite._list import Scan
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from incoming_payments.testing.steps import create, credit

WALLET: dict[str, Any] = {"wallet_address": WalletAddressUrl("https://bank.example/alice")}
CLIENT: dict[str, Any] = {"client": ClientId("https://shop.example/")}
PLACE = Place(NOW, PaymentId("019b76da-a800-7000-8000-000000000000"))
OLDER: dict[str, Any] = {"older_than": PLACE}
NEWER: dict[str, Any] = {"newer_than": PLACE}
TIMES: dict[str, Any] = {"created_from": NOW - timedelta(days=1), "created_before": NOW + timedelta(days=1)}
BELOW, ABOVE = "(created_at,id)<(?,?)", "(created_at,id)>(?,?)"


class Planned(Rows):
    """Keeps the plan of a query, and finds nothing."""

    plan = ""

    def select(self, clauses: str, values: Any) -> list[IncomingPayment]:
        """Keep the plan."""
        values = [5 if not isinstance(value, str) else value for value in values]
        steps = self.connection.execute(f"EXPLAIN QUERY PLAN SELECT id, version {clauses}", values).fetchall()
        self.plan = "; ".join(step[3] for step in steps)
        return []


@pytest.mark.parametrize(
    ("filters", "plan"),
    [
        ({}, "SCAN payments USING INDEX payments_created"),
        (OLDER, f"SEARCH payments USING INDEX payments_created ({BELOW})"),
        (WALLET, "SEARCH payments USING INDEX payments_of_wallet (wallet_address=?)"),
        (WALLET | OLDER, f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND {BELOW})"),
        (WALLET | NEWER, f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND {ABOVE})"),
        (
            WALLET | CLIENT | OLDER,
            f"SEARCH payments USING INDEX payments_of_client (wallet_address=? AND client=? AND {BELOW})",
        ),
        (
            WALLET | CLIENT | NEWER,
            f"SEARCH payments USING INDEX payments_of_client (wallet_address=? AND client=? AND {ABOVE})",
        ),
        (
            WALLET | OLDER | TIMES,
            f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND created_at>? AND {BELOW})",
        ),
        (
            WALLET | NEWER | TIMES,
            f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND {ABOVE} AND created_at<?)",
        ),
        (CLIENT | OLDER | {"state": "expired"}, f"SEARCH payments USING INDEX payments_created ({BELOW})"),
    ],
)
def test_query_begins_at_its_place(tmp_path: Path, filters: dict[str, Any], plan: str) -> None:
    """Nothing is sorted, and no row is read that the page passes over."""
    SqliteStore(tmp_path / "payments.db").close()
    with closing(sqlite3.connect(tmp_path / "payments.db")) as connection:
        rows = Planned(connection)
        Scan(PaymentQuery(now=NOW, limit=20, **filters)).read(rows)
        assert rows.plan == plan


# --- slices ---

SHOPS = [ClientId("https://shop.example/"), ClientId("https://other-shop.example/")]


def stored(store: SqliteStore) -> list[IncomingPayment]:
    """Insert payments of two wallet addresses and two clients in several states, and return all of them."""
    ids = []
    for number in range(40):
        wallet = a_wallet_address(f"https://bank.example/{'alice' if number % 3 else 'bob'}")
        # Some payments have the same time of creation.
        now = NOW + timedelta(seconds=number // 4)
        id = create(store, a_creation(limit=5, wallet_address=wallet, client=SHOPS[number % 2], now=now))
        if number % 5 == 0:
            credit(store, id, "wire-1", 5)
        ids.append(id)
    return [store.load(id) for id in ids]


@pytest.mark.parametrize("slice_max", [1, 2, 7, 40, 41])
def test_list_is_the_same_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_max: int) -> None:
    """A list with a state, or with a client alone, is read in slices. Every page is that of one read."""
    monkeypatch.setattr(_list, "STORE_SLICE_PAYMENTS_MAX", slice_max)
    with SqliteStore(tmp_path / "payments.db") as store:
        payments = stored(store)
        places = [Place.of(payments[number]) for number in (0, 1, 21, 39)]
        filters: list[dict[str, Any]] = [{"state": "completed"}, {"state": "pending"}, {"client": SHOPS[0]}]
        filters += [WALLET | {"state": "completed"}, WALLET | {"client": SHOPS[1], "state": "pending"}]
        filters += [{"state": "completed", "created_from": payments[9].created_at}]
        filters += [{"client": SHOPS[1], "created_before": payments[30].created_at}]
        sides = [{}, *({"older_than": place} for place in places), *({"newer_than": place} for place in places)]
        for given, side, limit in itertools.product(filters, sides, (1, 3, 101)):
            query = PaymentQuery(now=NOW, limit=limit, **given, **side)
            assert query.page_of(payments) == store.find_payments(query)


def test_async_list_is_the_same_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each slice waits in another thread."""
    monkeypatch.setattr(_list, "STORE_SLICE_PAYMENTS_MAX", 3)
    with SqliteStore(tmp_path / "payments.db") as store:
        payments = stored(store)
    query = PaymentQuery(now=NOW, limit=5, state=State.COMPLETED)

    async def find() -> Sequence[IncomingPayment]:
        async with AsyncSqliteStore(tmp_path / "payments.db") as store:
            return await store.find_payments(query)

    assert query.page_of(payments) == asyncio.run(find())
