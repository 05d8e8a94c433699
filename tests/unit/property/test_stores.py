"""Any payment, credit and event survives the way through SQLite's rows; any history does, through every store."""

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, MetadataJson, Progress, client_id
from incoming_payments.limits import UINT64_MAX
from incoming_payments.stores.sqlite._rows import Batch
from incoming_payments.stores.sqlite._schema import STATEMENTS
from incoming_payments.testing import a_creation
from kits.changed_payments import changed

_visible = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=32)
_times = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(0), "GMT")]))
_assets = st.builds(Asset, _visible, st.integers(0, 255))
_values = st.integers(0, UINT64_MAX)


@st.composite
def payments(draw: st.DrawFn) -> IncomingPayment:
    """Any payment that can exist, whatever led to it."""
    created, updated = sorted([draw(_times), draw(_times)])
    asset = draw(_assets)
    expires_at, announced_at = draw(st.none() | _times), None
    if expires_at is not None and expires_at < datetime.max.replace(tzinfo=UTC) and draw(st.booleans()):
        announced_at = expires_at + timedelta(microseconds=1)
    return changed(
        a_creation().answer,
        client=client_id(draw(_visible)),
        asset=asset,
        received=Amount(draw(_values), asset),
        limit=draw(st.none() | st.builds(Amount, st.integers(1, UINT64_MAX), st.just(asset))),
        created_at=created,
        updated_at=updated,
        expires_at=expires_at,
        closed_at=draw(st.none() | st.just(updated)),
        expiry_announced_at=announced_at,
        metadata=draw(st.none() | st.text().map(MetadataJson)),
        version=draw(st.integers(1, 2**63 - 1)),
    )


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    """A database with our tables."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in STATEMENTS:
        connection.execute(statement)
    yield connection
    connection.close()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(before=payments(), after=payments(), credit_id=_visible, amount=st.integers(1, UINT64_MAX), at=_times)
def test_rows_give_back_what_was_written(
    connection: sqlite3.Connection,
    before: IncomingPayment,
    after: IncomingPayment,
    credit_id: str,
    amount: int,
    at: datetime,
) -> None:
    """A payment that was inserted and updated, its credit and its event are read back equal."""
    received = Amount(max(after.received.value, amount), before.asset)
    updated_at = max(after.updated_at, before.created_at)
    progress = Progress(received, updated_at, after.version, after.closed_at and updated_at, before.expiry_announced_at)
    after = IncomingPayment(before.terms, progress)
    credit = Credit(before.id, CreditId(credit_id), Amount(amount, before.asset), received, completes=True, at=at)
    event = Event(before.id, after.version, EventKind.CREDITED, at, received, credit.id)

    batch = Batch(connection)
    batch.insert(before, Decision(None, before))
    assert before == batch.payment(before.id)
    batch.update(before, after, Decision(None, after, (event,), credit))
    batch.flush()

    rows = Batch(connection)
    assert after == rows.payment(before.id)
    assert credit == rows.credit(after, credit.id)
    assert [event] == list(rows.events(before.id))
    connection.execute("DELETE FROM payments")
    connection.execute("DELETE FROM credits")
    connection.execute("DELETE FROM events")
