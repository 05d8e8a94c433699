"""Damaged rows, missing tables and missing rights make a store unusable, with an error that says what to do."""

from collections.abc import Iterator
from functools import partial

import pytest
from psycopg.conninfo import make_conninfo

from incoming_payments.domain.payment import CreditId
from incoming_payments.errors import BrokenDecision, StoreUnusable
from incoming_payments.ports import PaymentStore
from incoming_payments.stores.postgres import PostgresStore, migrate
from incoming_payments.testing import NOW, a_creation, crediting
from incoming_payments.testing.steps import create, created_under, credit, together
from kits.postgres import async_view, empty_database, execute, new_database


@pytest.fixture(params=["threads", "asyncio"])
def opened(request: pytest.FixtureRequest) -> Iterator[tuple[PaymentStore, str]]:
    """Yield a store of each kind, and its database."""
    database = empty_database()
    opened = PostgresStore(database) if request.param == "threads" else async_view(database)
    with opened as store:
        yield store, database


def test_a_damaged_payment_is_unusable(opened: tuple[PaymentStore, str]) -> None:
    """Each caller gets an error of its own, and other payments work."""
    store, database = opened
    id, other = create(store), create(store)
    execute(database, f"UPDATE incoming_payments.payments SET asset_code = '' WHERE id = '{id}'")  # noqa: S608
    for call in (partial(store.load, id), partial(store.events, id), partial(credit, store, id, "wire-1", 1)):
        with pytest.raises(StoreUnusable, match=r"the row of .* holds an invalid value .*: restore the database"):
            call()

    def update(number: int) -> Exception:
        with pytest.raises(StoreUnusable) as caught:
            credit(store, id, f"wire-{number}", 1)
        return caught.value

    errors = together([partial(update, number) for number in range(4)])
    assert len({*map(_identity, errors)}) == 4
    assert credit(store, other, "wire-1", 1).received.value == 1


def test_damaged_credits_events_and_keys_are_unusable(opened: tuple[PaymentStore, str]) -> None:
    """The error names the row."""
    store, database = opened
    created = a_creation(key="order-1")
    store.insert(created)
    id = created.answer.id
    credit(store, id, "wire-1", 1)
    execute(database, f"UPDATE incoming_payments.credits SET at = {2**62}")  # noqa: S608
    with pytest.raises(StoreUnusable, match=f"the row of credit wire-1 of payment {id} holds an invalid value"):
        credit(store, id, "wire-1", 1)
    execute(database, "UPDATE incoming_payments.events SET kind = 'nonsense' WHERE version = 2")
    with pytest.raises(StoreUnusable, match=f"the row of event 2 of payment {id} holds an invalid value"):
        store.events(id)
    execute(database, "UPDATE incoming_payments.idempotency_keys SET fingerprint = 'nonsense'")
    for call in (partial(created_under, store, "order-1"), partial(store.insert, a_creation(key="order-1"))):
        with pytest.raises(StoreUnusable, match="the row of an idempotency key of https"):
            call()


@pytest.mark.parametrize("text", ["wire-\0", "wire-\ud800"])
def test_texts_that_the_database_cannot_hold_are_refused(opened: tuple[PaymentStore, str], text: str) -> None:
    """The error is about the values, and the store works."""
    store, _ = opened
    id = create(store)
    with pytest.raises(BrokenDecision, match="the database refused the values to store"):
        store.update(id, crediting(text, 1, now=NOW), CreditId(text))
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_missing_tables_and_rights_are_unusable() -> None:
    """The error names the table, and what to check."""
    database = new_database("damaged")
    migrate(database)
    with PostgresStore(database) as store, async_view(database) as view:
        id = create(store)
        view.load(id)
        execute(database, "DROP TABLE incoming_payments.events")
        for call in (partial(store.events, id), partial(view.events, id), partial(create, store)):
            with pytest.raises(StoreUnusable, match=r"PostgreSQL refused a statement \(.*events.*check the tables"):
                call()
        assert store.load(id).id == id
    execute(database, "DROP ROLE IF EXISTS without_rights")
    execute(database, "CREATE ROLE without_rights LOGIN")
    with pytest.raises(StoreUnusable, match="permission denied"):
        PostgresStore(make_conninfo(database, user="without_rights"))
    execute(database, "GRANT USAGE ON SCHEMA incoming_payments TO without_rights")
    execute(database, "GRANT SELECT ON incoming_payments.schema_version TO without_rights")
    with pytest.raises(StoreUnusable, match="permission denied for table"):
        PostgresStore(make_conninfo(database, user="without_rights"))


def _identity(error: Exception) -> int:
    return id(error)
