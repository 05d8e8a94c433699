"""The idempotency keys in the SQLite file: one transaction with the payment, and a bounded sweep."""

from datetime import timedelta
from pathlib import Path

import pytest

from incoming_payments.domain.payment import HOST
from incoming_payments.errors import BrokenDecision, PaymentNotFound, StoreUnusable
from incoming_payments.limits import IDEMPOTENCY_KEYS_SWEPT_MAX
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.steps import created_under
from kits.sqlite_jobs import edit, in_one_batch, rows

MICROS = int(NOW.timestamp()) * 1_000_000 + NOW.microsecond


def test_row_of_a_key(store: SqliteStore, path: Path) -> None:
    """The row has the client, the key, the fingerprint, the payment and the end in microseconds, and no secret."""
    created = a_creation(client=HOST, key="order-1", fingerprint="0123456789abcdef" * 4, kept_s=60)
    store.insert(created)
    assert rows(path, "SELECT * FROM idempotency_keys") == [
        ("the host", "order-1", "0123456789abcdef" * 4, created.answer.id, MICROS + 60_000_000)
    ]


def test_key_and_payment_are_one_transaction(store: SqliteStore, tasks: AsyncSqliteStore, path: Path) -> None:
    """When the key cannot be written, the payment is not written either. Other jobs of the batch are committed."""
    edit(path, "CREATE TRIGGER no_keys BEFORE INSERT ON idempotency_keys BEGIN SELECT RAISE(ABORT, 'no'); END")
    keyed, plain = a_creation(key="order-1"), a_creation()
    outcomes = in_one_batch(tasks.insert(keyed), tasks.insert(plain))
    assert [type(outcome) for outcome in outcomes] == [BrokenDecision, type(None)]
    with pytest.raises(PaymentNotFound):
        store.load(keyed.answer.id)
    assert len(store.events(plain.answer.id)) == 1
    edit(path, "DROP TRIGGER no_keys")
    assert store.insert(a_creation(key="order-1")) is None


def test_duplicates_in_one_batch_create_one_payment(tasks: AsyncSqliteStore, path: Path) -> None:
    """The second job sees the key that the first one has written, and both answers are durable."""
    first, second = a_creation(key="order-1"), a_creation(key="order-1")
    outcomes = in_one_batch(tasks.insert(first), tasks.insert(second))
    assert outcomes == [None, first.keyed]
    assert rows(path, "SELECT id FROM payments") == [(first.answer.id,)]


def test_each_insert_removes_a_few_ended_keys(store: SqliteStore, path: Path) -> None:
    """The work of one insert is bounded, and the keys do not pile up. An insert without a key removes none."""
    for number in range(7):
        store.insert(a_creation(key=f"old-{number}", kept_s=number + 1))
    later = NOW + timedelta(seconds=6, microseconds=1)
    counts = []
    for number in range(4):
        store.insert(a_creation(now=later))
        store.insert(a_creation(key=f"new-{number}", now=later))
        counts.append(len(rows(path, "SELECT * FROM idempotency_keys")))
    assert IDEMPOTENCY_KEYS_SWEPT_MAX == 2
    assert counts == [6, 5, 4, 5]
    assert rows(path, "SELECT key FROM idempotency_keys WHERE key LIKE 'old%'") == [("old-6",)]


@pytest.mark.parametrize("change", ["fingerprint = 'x'", "payment_id = 'x'", f"until = {10**18}"])
def test_row_with_an_invalid_value_is_refused(store: SqliteStore, path: Path, change: str) -> None:
    """Look-up and insert raise `StoreUnusable`. The message names the client and not the key."""
    store.insert(a_creation(key="order-1"))
    edit(path, f"UPDATE idempotency_keys SET {change}")  # noqa: S608
    message = "^the row of an idempotency key of https://shop.example/ holds an invalid value .*: restore the database"
    with pytest.raises(StoreUnusable, match=message):
        created_under(store, "order-1")
    with pytest.raises(StoreUnusable, match=message):
        store.insert(a_creation(key="order-1"))
