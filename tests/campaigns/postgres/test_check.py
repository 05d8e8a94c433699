"""The check of the campaigns notices each difference between the records and the database."""

# ruff: noqa: S608 - the statements have no values

import threading
import time
from pathlib import Path
from typing import Final

import pytest

from campaigns.postgres.check import check
from campaigns.postgres.records import SUFFIX, ClientRecord
from campaigns.postgres.worker import END, Client
from incoming_payments.stores.postgres import PostgresStore
from kits.payment_model import Credit
from kits.postgres import empty_database, execute

# One stored credit, which is neither the first nor the last of its payment.
_ONE: Final = """
    SELECT payment_id, credit_id, amount FROM incoming_payments.credits AS one WHERE EXISTS
    (SELECT FROM incoming_payments.credits AS other WHERE other.payment_id = one.payment_id
    AND other.received_amount > one.received_amount) ORDER BY payment_id, received_amount LIMIT 1
"""
_LAST: Final = "SELECT payment_id, max(version) AS version FROM incoming_payments.events GROUP BY payment_id LIMIT 1"

CHANGES: Final = {
    "a credit is deleted": (
        f"DELETE FROM incoming_payments.credits WHERE (payment_id, credit_id, amount) IN ({_ONE})",
        {"no acknowledged credit is lost", "the total is the sum of the credits", "each credit has one event"},
    ),
    "a credit is deleted, with its amount in the total": (
        f"""
        WITH one AS ({_ONE}), gone AS (
            DELETE FROM incoming_payments.credits USING one
            WHERE credits.payment_id = one.payment_id AND credits.credit_id = one.credit_id
        )
        UPDATE incoming_payments.payments SET received_amount = received_amount - one.amount FROM one
        WHERE id = one.payment_id
        """,
        {"no acknowledged credit is lost", "the history is linearizable"},
    ),
    "a credit has another amount": (
        f"""
        UPDATE incoming_payments.credits SET amount = amount - 1
        WHERE amount > 1 AND (payment_id, credit_id, amount) IN ({_ONE})
        """,
        {"a credit has one outcome", "the total is the sum of the credits"},
    ),
    "a credit is there twice": (
        f"""
        INSERT INTO incoming_payments.credits (payment_id, credit_id, amount, received_amount, completes, at)
        SELECT payment_id, credit_id || '-again', amount, amount, false, 0 FROM ({_ONE}) AS one
        """,
        {"nothing is invented", "the total is the sum of the credits", "each credit has one event"},
    ),
    "the total has another unit": (
        "UPDATE incoming_payments.payments SET received_amount = received_amount + 1",
        {"the total is the sum of the credits", "the history is linearizable"},
    ),
    "an event is missing": (
        f"DELETE FROM incoming_payments.events WHERE (payment_id, version) IN ({_LAST})",
        {"each version has one event"},
    ),
    "a key is missing": (
        "DELETE FROM incoming_payments.idempotency_keys",
        {"a key has one payment", "a created payment is stored"},
    ),
    "a key is invented": (
        "UPDATE incoming_payments.idempotency_keys SET key = key || '-other'",
        {"nothing is invented", "a created payment is stored"},
    ),
}


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Return a database that two clients have used for a moment. Their records are in `tmp_path`."""
    conninfo = empty_database()
    with PostgresStore(conninfo) as store:
        clients = [Client(store, tmp_path / f"client-{number}{SUFFIX}", tmp_path / END) for number in range(2)]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 20
        while execute(conninfo, "SELECT count(*) FROM incoming_payments.credits") < [(30,)]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (tmp_path / END).touch()
        for thread in threads:
            thread.join()
    return conninfo


def test_equal_records_and_database_pass(database: str, tmp_path: Path) -> None:
    report = check(database, tmp_path)

    assert report.violations == []
    assert report.credits_acknowledged >= 30
    assert report.unknown_outcomes == 0


@pytest.mark.parametrize(("statement", "broken"), CHANGES.values(), ids=CHANGES)
def test_a_changed_database_is_noticed(database: str, tmp_path: Path, statement: str, broken: set[str]) -> None:
    execute(database, statement)

    assert check(database, tmp_path).kinds >= broken


def test_a_credit_that_its_client_did_not_settle_is_noticed(database: str, tmp_path: Path) -> None:
    record = ClientRecord(tmp_path / f"client-0{SUFFIX}")
    last = next(call for call in reversed(record.calls) if isinstance(call.action, Credit))
    record.called(last.key, Credit(last.action.payment, "wire-1", 5))

    assert check(database, tmp_path).kinds == {"every credit is settled"}


def test_an_incomplete_line_of_a_record_is_ignored(database: str, tmp_path: Path) -> None:
    """The client was killed while it wrote the line, so it had not made the call yet."""
    with (tmp_path / f"client-0{SUFFIX}").open("ab") as file:
        file.write(b'[1.0, "call", "order-')

    assert check(database, tmp_path).violations == []
    assert ClientRecord(tmp_path / f"client-0{SUFFIX}").calls
