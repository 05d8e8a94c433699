"""Lists in the SQLite store: each query begins at its place in an index, so that every page costs the same."""

import asyncio
import itertools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import ClientId, IncomingPayment, WalletAddressUrl
from incoming_payments.domain.transitions import State
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _list
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from incoming_payments.testing.steps import create, credit

WALLET: dict[str, Any] = {"wallet_address": WalletAddressUrl("https://bank.example/alice")}
BELOW, ABOVE = "(created_at,id)<(?,?)", "(created_at,id)>(?,?)"


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
