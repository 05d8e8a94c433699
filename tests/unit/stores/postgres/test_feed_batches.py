"""Long histories in batches, and damaged rows of the feed, which the contract suite cannot reach."""

import time
from collections import Counter
from datetime import timedelta
from functools import partial

import pytest

from incoming_payments.domain.feed import Consumer, ConsumerName, Delivered, Delivery, Start
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import DeliveryNotFound, InvalidValue, StoreUnusable
from incoming_payments.limits import CLAIM_EVENTS_MAX, FEED_ROWS_MAX
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from incoming_payments.testing._feed_hooks import (
    LEDGER,
    MINUTE,
    claim,
    failed,
    register_all,
    remove_all,
    settle_all,
)
from incoming_payments.testing.steps import create, credit
from kits.postgres import execute

BOB = a_wallet_address("https://bank.example/bob")
OLD = 2 * FEED_ROWS_MAX + 50  # payments for three batches
_SCHEMA = "incoming_payments"


@pytest.fixture
def many(database: str, store: PostgresStore) -> list[PaymentId]:
    """Create `OLD` payments, half of which are for Bob, and return their ids in order."""
    id = create(store)
    _copy(database, "payments", "id", id)
    _copy(database, "events", "payment_id", id)
    execute(
        database,
        f"UPDATE {_SCHEMA}.payments SET wallet_address = '{BOB.url}' WHERE get_byte(uuid_send(id), 15) % 2 = 0",  # noqa: S608
    )
    return [PaymentId(id) for (id,) in execute(database, f"SELECT id::text FROM {_SCHEMA}.payments ORDER BY id")]  # noqa: S608


def _copy(database: str, table: str, column: str, id: PaymentId) -> None:
    """Copy the row of the payment `id` with other ids in `column`."""
    names = execute(database, f"SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'")  # noqa: S608
    others = ", ".join(name for (name,) in names if name != column)
    new = "('019b0000-0000-7000-8000-' || lpad(to_hex(number), 12, '0'))::uuid"
    execute(
        database,
        f"INSERT INTO {_SCHEMA}.{table} ({column}, {others}) SELECT {new}, {others} "  # noqa: S608
        f"FROM {_SCHEMA}.{table}, generate_series(1, {OLD - 1}) AS number WHERE {column} = '{id}'",
    )


def add_credits(database: str, id: PaymentId, count: int) -> None:
    """Add `count` credits of nothing to the payment, which has one event, without the rows of the feed."""
    execute(
        database,
        f"INSERT INTO {_SCHEMA}.events SELECT payment_id, 1 + number, 'credited', at, 0, 'wire-' || number, NULL "  # noqa: S608
        f"FROM {_SCHEMA}.events, generate_series(1, {count}) AS number WHERE payment_id = '{id}';"
        f"INSERT INTO {_SCHEMA}.credits SELECT payment_id, credit_id, 1, 1, false, at FROM {_SCHEMA}.events "
        f"WHERE payment_id = '{id}' AND version > 1;"
        f"UPDATE {_SCHEMA}.payments SET version = 1 + {count} WHERE id = '{id}'; ANALYZE {_SCHEMA}.events",
    )


def taken(store: PostgresStore, name: str = LEDGER) -> Counter[tuple[PaymentId, str]]:
    """Lease everything that is due, and return how often each payload of each payment arrived."""
    found: Counter[tuple[PaymentId, str]] = Counter()
    while deliveries := claim(store.feed, name, limit=100):
        found.update((delivery.payment_id, delivery.payload.decode()) for delivery in deliveries)
    return found


def left(database: str, table: str) -> int:
    """Return the number of rows of the table."""
    [(number,)] = execute(database, f"SELECT count(*) FROM {_SCHEMA}.{table}")  # noqa: S608
    return int(number)


# --- registration over old events ---


def test_a_registration_passes_over_old_payments_in_batches(store: PostgresStore, many: list[PaymentId]) -> None:
    """The consumer gets nothing before the last batch, and then each old event once."""
    register = partial(store.feed.register, Consumer(name=LEDGER), Start.BEGINNING, NOW)
    assert [register() for _ in range(2)] == [False, False]
    assert not claim(store.feed)
    assert store.feed.next_due(LEDGER) is None
    assert [state.is_ready for state in store.feed.consumers()] == [False]
    assert register()
    assert register()
    assert store.feed.next_due(LEDGER) == NOW
    assert taken(store) == Counter((id, "1") for id in many)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (None, ["1", "2", "3", "4"]),
        (["credited"], ["2", "3"]),
        (["created", "completed"], ["1", "4"]),
    ],
)
def test_changes_between_the_batches_are_not_missed(
    database: str, store: PostgresStore, many: list[PaymentId], kinds: list[str] | None, expected: list[str]
) -> None:
    """This holds for payments that the registration has passed, for the others, and for new payments."""
    execute(database, f"UPDATE {_SCHEMA}.payments SET incoming_amount = 2")  # noqa: S608
    consumer = Consumer(name=LEDGER, kinds=kinds, joins_credits=False)
    new: list[PaymentId] = []
    is_ready, turn = False, 0
    while not is_ready:
        for id in (many[turn], many[FEED_ROWS_MAX - 1], many[-1 - turn], *new):
            if store.load(id).version < 4:
                credit(store, id, f"wire-{turn}", 1)
        new.append(create(store, a_creation(limit=2)))
        is_ready = store.feed.register(consumer, Start.BEGINNING, NOW)
        turn += 1
    changed = [id for id in {*many, *new} if store.load(id).version > 1]
    for id in changed:
        if store.load(id).version < 4:
            credit(store, id, "last", 1)
    found: dict[PaymentId, list[str]] = {}
    while deliveries := claim(store.feed, limit=100):
        for delivery in deliveries:
            found.setdefault(delivery.payment_id, []).append(delivery.payload.decode())
            if delivery.payment_id in changed:
                assert store.feed.settle(delivery, Delivered(), NOW)
    assert {id: found[id] for id in changed} == dict.fromkeys(changed, expected)
    assert len(found) == (len(many) + len(new) if "1" in expected else len(changed))


def test_a_registration_that_a_crash_interrupts_goes_on(
    database: str, store: PostgresStore, many: list[PaymentId]
) -> None:
    """Another process continues with the next batch, with the filter that it gives."""
    assert not store.feed.register(Consumer(name=LEDGER), Start.BEGINNING, NOW)
    with PostgresStore(database) as second:
        register_all(second.feed, Consumer(name=LEDGER, wallet_addresses=[BOB.url]), Start.NOW)
        assert {id for id, _ in taken(second)} == {id for id in many if int(id[-1], 16) % 2 == 0}


def test_excluded_credits_are_passed_over_by_an_index(database: str, store: PostgresStore) -> None:
    """A payment with many credits does not slow down a consumer that excludes them."""
    id = create(store)
    add_credits(database, id, 3000)
    before = rows_read(database)
    with PostgresStore(database) as other:
        for kinds, expected in ((["created"], ["1"]), (["expired"], []), (["created", "expired"], ["1"])):
            name = ConsumerName("-".join(kinds))
            register_all(other.feed, Consumer(name=name, kinds=kinds), Start.BEGINNING)
            assert settle_all(other.feed, name) == expected
    while rows_read(database) == before:  # a connection reports what it has read when it ends
        time.sleep(0.01)
    assert rows_read(database) < before + 100


def rows_read(database: str) -> int:
    """Return the number of events that the connections have read."""
    query = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'events'"
    [(number,)] = execute(database, query)
    return int(number)


# --- removal and clean-up ---


def test_a_removal_works_in_batches(database: str, store: PostgresStore, many: list[PaymentId]) -> None:
    """The consumer gets nothing after the first batch. No row of it is left."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    register_all(store.feed, Consumer(name=ConsumerName("other")), Start.BEGINNING)
    held, *_ = [delivery for _ in range(6) for delivery in claim(store.feed, limit=100)]
    assert not store.feed.remove(LEDGER)
    assert not store.feed.settle(held, Delivered(), NOW)
    assert [state.consumer.name for state in store.feed.consumers()] == ["other"]
    with pytest.raises(InvalidValue, match="complete the removal first"):
        store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    credit(store, many[0], "wire-1", 1)
    remove_all(store.feed, LEDGER)
    assert left(database, "deliveries") == 0
    assert execute(database, f"SELECT DISTINCT consumer FROM {_SCHEMA}.streams") == [("other",)]  # noqa: S608
    assert execute(database, f"SELECT name FROM {_SCHEMA}.consumers") == [("other",)]  # noqa: S608


def test_a_skip_works_in_batches(database: str, store: PostgresStore, many: list[PaymentId]) -> None:
    """Retries and streams are dropped. A lease is not."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    [held] = claim(store.feed, limit=1)
    for _ in range(2):
        for delivery in claim(store.feed, limit=100):
            store.feed.settle(delivery, failed(retry_s=10), NOW)
    assert not store.feed.skip(LEDGER, NOW)
    while not store.feed.skip(LEDGER, NOW):
        pass
    assert (left(database, "deliveries"), left(database, "streams")) == (1, 1)
    assert store.feed.settle(held, Delivered(), NOW)
    assert not claim(store.feed, after_s=100)
    credit(store, many[-1], "wire-1", 1)
    assert settle_all(store.feed) == ["2"]


def test_acknowledged_deliveries_are_forgotten_in_batches(
    database: str, store: PostgresStore, many: list[PaymentId]
) -> None:
    """Each call deletes at most `FEED_ROWS_MAX` rows."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    assert len(taken(store)) == len(many)
    execute(
        database,
        f"UPDATE {_SCHEMA}.deliveries SET lease = NULL, due_at = NULL, ending = 'delivered', ended_at = created_at",  # noqa: S608
    )
    assert [store.feed.forget(NOW + MINUTE) for _ in range(3)] == [False, False, True]
    assert left(database, "deliveries") == 0


def test_a_claim_passes_over_many_streams_that_a_new_filter_excludes(
    store: PostgresStore, many: list[PaymentId]
) -> None:
    """They do not hide a later one, and each claim drops a bounded number."""
    register_all(store.feed, Consumer(name=LEDGER), Start.BEGINNING)
    store.feed.register(Consumer(name=LEDGER, kinds=["credited"]), Start.NOW, NOW)
    credit(store, many[-1], "wire-1", 1, NOW + timedelta(seconds=1))
    found: list[Delivery] = []
    for _ in range(3):
        found += claim(store.feed, after_s=1, limit=1)
    assert [delivery.payload for delivery in found] == [b"2"]


def test_a_claim_takes_a_bounded_number_of_events(database: str, store: PostgresStore) -> None:
    """Large deliveries come in several claims, and so do their next attempts."""
    count = CLAIM_EVENTS_MAX // 2 + 1
    ids = {create(store) for _ in range(5)}
    for id in ids:
        add_credits(database, id, count)
    register_all(store.feed, Consumer(name=LEDGER, kinds=["credited"]), Start.BEGINNING)
    for after_s in (0, 60):
        claims = [claim(store.feed, after_s=after_s) for _ in range(3)]
        assert [[len(delivery.events) for delivery in one] for one in claims] == [
            [count, count],
            [count, count],
            [count],
        ]
        assert {delivery.payment_id for one in claims for delivery in one} == ids


# --- damage ---


@pytest.mark.parametrize(
    "change",
    [
        "kinds = '{created,unheard-of}'",
        "wallet_addresses = '{}'",
        "credit_delay_s = -1",
        "name = 'LEDGER?'",
        "failing_since = 9223372036854775807",
        "disabled_at = 9223372036854775807",
    ],
)
def test_an_invalid_consumer_makes_its_calls_fail(database: str, store: PostgresStore, change: str) -> None:
    """The error names the consumer. Payments work."""
    store.feed.register(Consumer(name=LEDGER), Start.BEGINNING, NOW)
    execute(database, f"UPDATE {_SCHEMA}.consumers SET {change}")  # noqa: S608
    with pytest.raises(StoreUnusable, match=r"the row of the consumer (ledger|LEDGER\?) holds an invalid value"):
        store.feed.consumers()
    assert store.load(create(store)).version == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("UPDATE incoming_payments.events SET kind = 'unheard-of' WHERE version = 1", "event 1 of payment"),
        ("DELETE FROM incoming_payments.events WHERE version = 1", "a delivery of payment"),
    ],
)
def test_an_invalid_event_is_not_delivered(database: str, store: PostgresStore, change: str, name: str) -> None:
    """The error names the payment."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    create(store)
    assert claim(store.feed)
    execute(database, change)
    with pytest.raises(StoreUnusable, match=name):
        claim(store.feed, after_s=60)


@pytest.mark.parametrize("column", ["created_at", "due_at"])
def test_an_invalid_delivery_is_not_listed(database: str, store: PostgresStore, column: str) -> None:
    """The error names the payment."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    id = create(store)
    claim(store.feed)
    execute(database, f"UPDATE {_SCHEMA}.deliveries SET {column} = 9223372036854775807")  # noqa: S608
    with pytest.raises(StoreUnusable, match=f"a delivery of payment {id}"):
        store.feed.deliveries(id)


def test_a_text_that_is_no_id_has_no_deliveries(store: PostgresStore) -> None:
    """PostgreSQL would refuse the text."""
    store.feed.register(Consumer(name=LEDGER), Start.NOW, NOW)
    with pytest.raises(DeliveryNotFound):
        store.feed.redeliver(LEDGER, PaymentId("none"), 1, NOW)
    assert store.feed.deliveries(PaymentId("none")) == []
