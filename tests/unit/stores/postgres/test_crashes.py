"""Processes that are killed, and the simulation of the whole service, on PostgreSQL."""

from typing import Any

import pytest

from incoming_payments.ports import PaymentStore
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing.crash import check_crashes
from incoming_payments.testing.simulation import simulate
from kits.postgres import READ_COMMITTED, SERIALIZABLE, async_view, empty_database


def test_acknowledged_credits_survive_crashes(database: str) -> None:
    """Workers are killed at the slowest calls, and at random while they share payments and keys."""
    report = check_crashes("incoming_payments.stores.postgres:PostgresStore", database, moments=2, rounds=1)
    assert report.killed >= 6


def test_acknowledged_credits_of_an_event_loop_survive_crashes(database: str) -> None:
    """The same holds for the store for asyncio. The other tests of its commits are in `test_failures`."""
    assert check_crashes("kits.postgres:async_view", database, moments=1, rounds=0).killed == 3


@pytest.mark.parametrize("isolation", [READ_COMMITTED, SERIALIZABLE])
@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_the_simulation_passes(open_store: Any, isolation: str) -> None:
    """Processes die at any step of the service, and the records of the simulation agree with the store."""
    database = empty_database(isolation)
    opened: list[Any] = []

    def open_one() -> PaymentStore:
        opened.append(open_store(database, connections=1))
        store: PaymentStore = opened[-1]
        return store

    try:
        report = simulate(seed=11, steps=600, store_factory=open_one)
    finally:
        for store in opened:
            store.close()
    assert report.met["packet: pending -> processing"] > 0
