"""The consumers of the feed, and their registration. Each function is one job of the writer, or one read."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Consumer, ConsumerName, ConsumerState, Health, Start
from incoming_payments.errors import ConsumerNotFound, InvalidValue
from incoming_payments.limits import CONSUMERS_MAX, FEED_ROWS_MAX
from incoming_payments.stores._rows import corrupt, micros, optional_micros, optional_time_of
from incoming_payments.stores.sqlite._rows import Batch, Rows
from incoming_payments.stores.sqlite._streams import SETTINGS, consumer_of, settings_row

_HEALTH: Final = "scanned_to, failing_since, disabled_at"
_SELECT_CONSUMER: Final = f"SELECT {_HEALTH}, {SETTINGS} FROM consumers WHERE name = ? AND is_removed = 0"  # noqa: S608
_SELECT_CONSUMERS: Final = f"SELECT {_HEALTH}, {SETTINGS} FROM consumers WHERE is_removed = 0 ORDER BY name"  # noqa: S608
_INSERT_CONSUMER: Final = f"INSERT INTO consumers ({SETTINGS}, scanned_to, is_removed) VALUES (?{', ?' * 7}, 0)"  # noqa: S608
_UPDATE_CONSUMER: Final = f"UPDATE consumers SET ({SETTINGS}) = (?{', ?' * 6}) WHERE name = ?"  # noqa: S608
_UPDATE_HEALTH: Final = "UPDATE consumers SET failing_since = ?, disabled_at = ? WHERE name = ?"
_SELECT_OLD: Final = "SELECT id, version, wallet_address FROM payments WHERE id > ? ORDER BY id LIMIT ?"
_SELECT_HEAD: Final = "SELECT version FROM events AS e {} WHERE payment_id = ? AND {} ORDER BY version DESC LIMIT 1"
# The events that are neither the first one nor `credited`. A payment has at most one of them.
OTHER_KINDS: Final = "INDEXED BY events_of_other_kinds", "e.kind <> 'credited' AND e.version > 1"
_INSERT_STREAM: Final = (
    "INSERT OR IGNORE INTO streams (consumer, payment_id, acknowledged, head, due_at, is_open) "
    "VALUES (?, ?, 0, ?, ?, 0)"
)
_SELECT_NEXT: Final = (
    "SELECT min(due_at) FROM (SELECT min(due_at) AS due_at FROM deliveries INDEXED BY deliveries_due "
    "WHERE consumer = ? AND due_at IS NOT NULL UNION ALL SELECT min(due_at) FROM streams INDEXED BY streams_due "
    "WHERE consumer = ? AND is_open = 0)"
)
_KEY: Final = "(consumer, payment_id, first_version)"
_REMOVE: Final = "UPDATE consumers SET is_removed = 1 WHERE name = ?"
_REMOVE_DELIVERIES: Final = (
    f"DELETE FROM deliveries WHERE {_KEY} IN "  # noqa: S608
    "(SELECT consumer, payment_id, first_version FROM deliveries WHERE consumer = ? LIMIT ?)"
)
_REMOVE_STREAMS: Final = (
    "DELETE FROM streams WHERE (consumer, payment_id) IN "
    "(SELECT consumer, payment_id FROM streams WHERE consumer = ? LIMIT ?)"
)
_REMOVE_CONSUMER: Final = "DELETE FROM consumers WHERE name = ?"


def register(rows: Batch, consumer: Consumer, start: Start, now: datetime) -> bool:
    """Register `consumer`, or a batch of old payments for it. See `Feed.register`."""
    row = rows.connection.execute("SELECT scanned_to, is_removed FROM consumers WHERE name = ?", (consumer.name,))
    found = row.fetchone()
    if found is None:
        (number,) = rows.connection.execute("SELECT count(*) FROM consumers").fetchone()
        if number >= CONSUMERS_MAX:
            raise InvalidValue(f"the feed has {number} consumers already: remove one of them", member="name")
        scanned_to = "" if Start(start) is Start.BEGINNING else None
        rows.connection.execute(_INSERT_CONSUMER, (*settings_row(consumer), scanned_to))
    elif found[1]:
        raise InvalidValue(f"the consumer {consumer.name} is being removed: complete the removal first", member="name")
    else:
        scanned_to = found[0]
        rows.connection.execute(_UPDATE_CONSUMER, (*settings_row(consumer), consumer.name))
    is_ready = scanned_to is None or _scan(rows, consumer, scanned_to, now)
    rows.makes_due |= is_ready
    return is_ready


def _scan(rows: Batch, consumer: Consumer, after: str, now: datetime) -> bool:
    """Note the streams of a batch of old payments, and return whether no old payment is left."""
    page = rows.connection.execute(_SELECT_OLD, (after, FEED_ROWS_MAX)).fetchall()
    streams = []
    for id, version, wallet_address in page:
        if consumer.wallet_addresses is None or wallet_address in consumer.wallet_addresses:
            head = version if consumer.kinds is None else _head(rows, consumer.kinds, id)
            if head is not None:
                streams.append((consumer.name, id, head, micros(now)))
    rows.connection.executemany(_INSERT_STREAM, streams)
    is_done = len(page) < FEED_ROWS_MAX
    rows.connection.execute(
        "UPDATE consumers SET scanned_to = ? WHERE name = ?", (None if is_done else page[-1][0], consumer.name)
    )
    return is_done


def _head(rows: Batch, kinds: frozenset[EventKind], id: str) -> int | None:
    """Return the last version with one of `kinds`, or `None`. Pass over the excluded `credited` events by an index."""
    queries = [("", f"kind IN ({placeholders(kinds)})")]
    if EventKind.CREDITED not in kinds:
        index, others = OTHER_KINDS
        queries = [(index, f"{others} AND {queries[0][1]}"), ("", f"version = 1 AND {queries[0][1]}")]
    for query in queries:
        row = rows.connection.execute(_SELECT_HEAD.format(*query), (id, *kinds)).fetchone()
        if row is not None:
            return int(row[0])
    return None


def remove(rows: Batch, name: ConsumerName) -> bool:
    """Remove the next rows of the consumer. See `Feed.remove`."""
    connection = rows.connection
    if not connection.execute(_REMOVE, (name,)).rowcount:
        raise _unknown(name)
    for statement in (_REMOVE_DELIVERIES, _REMOVE_STREAMS):
        if connection.execute(statement, (name, FEED_ROWS_MAX)).rowcount == FEED_ROWS_MAX:
            return False
    connection.execute(_REMOVE_CONSUMER, (name,))
    return True


def consumers(rows: Rows) -> list[ConsumerState]:
    """Return the registered consumers."""
    return [
        ConsumerState(
            consumer=consumer,
            health=health,
            is_ready=is_ready,
            oldest_due_at=optional_time_of(_next(rows, consumer.name)),
        )
        for consumer, health, is_ready in map(_state, rows.connection.execute(_SELECT_CONSUMERS).fetchall())
    ]


def next_due(rows: Rows, name: ConsumerName) -> datetime | None:
    """Return when the next delivery is due. See `Feed.next_due`."""
    _, health, is_ready = require(rows, name)
    return optional_time_of(_next(rows, name)) if is_ready and health.disabled_at is None else None


def set_enabled(rows: Batch, name: ConsumerName, now: datetime, *, enabled: bool) -> None:
    """Disable or enable the consumer."""
    require(rows, name)
    write_health(rows, name, Health(disabled_at=None if enabled else now))
    rows.makes_due |= enabled


def require(rows: Rows, name: ConsumerName) -> tuple[Consumer, Health, bool]:
    """Return the consumer, its health, and whether its registration is complete. Raises `ConsumerNotFound`."""
    found = find(rows, name)
    if found is None:
        raise _unknown(name)
    return found


def find(rows: Rows, name: ConsumerName) -> tuple[Consumer, Health, bool] | None:
    """Return the same as `require`, or `None` if there is no such consumer."""
    row = rows.connection.execute(_SELECT_CONSUMER, (name,)).fetchone()
    return None if row is None else _state(row)


def write_health(rows: Batch, name: ConsumerName, health: Health) -> None:
    """Store the health of a registered consumer."""
    times = optional_micros(health.failing_since), optional_micros(health.disabled_at)
    rows.connection.execute(_UPDATE_HEALTH, (*times, name))


def _state(row: Sequence[Any]) -> tuple[Consumer, Health, bool]:
    scanned_to, failing_since, disabled_at, *settings = row
    try:
        health = Health(optional_time_of(failing_since), optional_time_of(disabled_at))
        return consumer_of(tuple(settings)), health, scanned_to is None
    except (ValueError, OverflowError) as error:
        raise corrupt(f"the consumer {settings[0]}", error) from error


def _unknown(name: str) -> ConsumerNotFound:
    return ConsumerNotFound(
        f"the feed has no consumer {name}: correct the name, or start its relay, which registers it"
    )


def _next(rows: Rows, name: ConsumerName) -> int | None:
    (due_at,) = rows.connection.execute(_SELECT_NEXT, (name, name)).fetchone()
    return None if due_at is None else int(due_at)


def placeholders(values: frozenset[Any]) -> str:
    """Return a placeholder of SQL for each of `values`."""
    return ", ".join("?" * len(values))
