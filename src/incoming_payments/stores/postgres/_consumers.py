"""The consumers of the feed: their rows, and the operations on one of them, except for the registration.

All operations of the feed are READ COMMITTED under every setting. They lock the rows that they depend on, and each
statement after a lock must see what was committed before the lock.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from incoming_payments.domain.feed import Consumer, ConsumerName, ConsumerState, Health
from incoming_payments.errors import ConsumerNotFound
from incoming_payments.stores._rows import corrupt, optional_micros, optional_time_of
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, Steps, array, at_once, statement

SETTINGS: Final = "name, kinds, wallet_addresses, joins_credits, credit_delay_s, down_after_s, disable_after_s"
COLUMNS: Final = f"{SETTINGS}, failing_since, disabled_at, is_known AND scanned_to IS NULL"
_SELECT: Final = f"SELECT {COLUMNS} FROM incoming_payments.consumers WHERE name = %s AND NOT is_removed"  # noqa: S608
SELECT_CONSUMER: Final = statement(_SELECT)
# A claim holds this lock, so that a removal begins after the claim. It does not wait for results.
HOLD_CONSUMER: Final = statement(f"{_SELECT} FOR KEY SHARE")
# For a decision about the health.
LOCK_CONSUMER: Final = statement(f"{_SELECT} FOR NO KEY UPDATE")
_DUE: Final = (
    "least((SELECT min(due_at) FROM incoming_payments.deliveries WHERE consumer = name AND due_at IS NOT NULL), "
    "(SELECT min(due_at) FROM incoming_payments.streams WHERE consumer = name AND NOT is_open))"
)
_SELECT_STATES: Final = statement(
    f"SELECT {COLUMNS}, {_DUE} FROM incoming_payments.consumers WHERE NOT is_removed ORDER BY name"  # noqa: S608
)
_SELECT_STATE: Final = statement(
    f"SELECT {COLUMNS}, {_DUE} FROM incoming_payments.consumers WHERE name = %s AND NOT is_removed"  # noqa: S608
)
WRITE_HEALTH: Final = statement(
    "UPDATE incoming_payments.consumers SET failing_since = %s, disabled_at = %s WHERE name = %s AND NOT is_removed"
)


class Found(NamedTuple):
    """A consumer, its health, and whether its registration is complete."""

    consumer: Consumer
    health: Health
    is_ready: bool


class TurnNeeded(Exception):
    """An operation has to wait for a row of its consumer. Repeat it with `in_turn`, in the turn of the consumer.

    Otherwise, the calls of one consumer could occupy all connections while they wait for each other.
    """


def check_turn(*, in_turn: bool) -> None:
    """Raise `TurnNeeded` unless `in_turn` is true."""
    if not in_turn:
        raise TurnNeeded


def find(result: Result) -> Found | None:
    """Return the consumer from the result of a statement that selects it, or `None`. Raises `StoreUnusable`."""
    return _found(result.rows[0]) if result.rows else None


def require(name: ConsumerName, result: Result) -> Found:
    """Return the same as `find`. Raises `ConsumerNotFound` if there is no consumer."""
    found = find(result)
    if found is None:
        raise unknown(name)
    return found


def unknown(name: ConsumerName) -> ConsumerNotFound:
    """Return the error for a consumer that does not exist."""
    return ConsumerNotFound(f"the feed has no consumer {name}: register it first")


def settings_row(consumer: Consumer) -> tuple[object, ...]:
    """Return the columns `SETTINGS`."""
    kinds, wallet_addresses = consumer.kinds, consumer.wallet_addresses
    return (
        consumer.name,
        None if kinds is None else array(sorted(kinds)),
        None if wallet_addresses is None else array(sorted(wallet_addresses)),
        consumer.joins_credits,
        *map(_decimal, (consumer.credit_delay_s, consumer.down_after_s, consumer.disable_after_s)),
    )


def health_query(name: ConsumerName, health: Health) -> Query:
    """Return the query that stores the health of a consumer."""
    return Query(WRITE_HEALTH, (optional_micros(health.failing_since), optional_micros(health.disabled_at), name))


def consumers() -> Operation[list[ConsumerState]]:
    """Read the registered consumers."""
    return lambda: at_once(Ending([Query(_SELECT_STATES)], _states, writes=False))


def _states(results: list[Result]) -> list[ConsumerState]:
    return [
        ConsumerState(
            consumer=found.consumer,
            health=found.health,
            is_ready=found.is_ready,
            oldest_due_at=optional_time_of(due_at),
        )
        for found, due_at in ((_found(row), row[-1]) for row in results[0].rows)
    ]


def next_due(name: ConsumerName) -> Operation[datetime | None]:
    """Find out when the next delivery is due. See `Feed.next_due`."""

    def answer(results: list[Result]) -> datetime | None:
        _, health, is_ready = require(name, results[0])
        due_at = results[0].rows[0][-1]
        return optional_time_of(due_at) if is_ready and health.disabled_at is None else None

    return lambda: at_once(Ending([Query(_SELECT_STATE, (name,))], answer, writes=False))


def set_enabled(name: ConsumerName, now: datetime, *, enabled: bool) -> Operation[None]:
    """Disable or enable the consumer."""
    return lambda: _set_enabled(name, Health(disabled_at=None if enabled else now))


def _set_enabled(name: ConsumerName, health: Health) -> Steps[None]:
    [locked] = yield [Query(LOCK_CONSUMER, (name,))]
    require(name, locked)
    return Ending([health_query(name, health)], lambda _: None, writes=True)


def _found(row: Sequence[Any]) -> Found:
    name, kinds, wallet_addresses, joins, delay, down, disable, failing_since, disabled_at, is_ready, *_ = row
    try:
        consumer = Consumer(
            name=name,
            kinds=kinds,
            wallet_addresses=wallet_addresses,
            joins_credits=joins,
            credit_delay_s=float(delay),
            down_after_s=None if down is None else float(down),
            disable_after_s=None if disable is None else float(disable),
        )
        return Found(consumer, Health(optional_time_of(failing_since), optional_time_of(disabled_at)), is_ready)
    except (ValueError, OverflowError) as error:  # InvalidValue is a ValueError
        raise corrupt(f"the consumer {name}", error) from error


def _decimal(number: float | None) -> str | None:
    """Return the text from which `float` makes the same number."""
    return None if number is None else repr(float(number))
