"""The rules for the rows beside the histories: idempotency keys, consumers, streams and deliveries.

A consumer may get another filter at any time, so no rule compares an event with a filter.
"""

from typing import Any, NamedTuple

from incoming_payments.audit._history import INVALID, Contradiction, time_of
from incoming_payments.domain.feed import Consumer, Ending
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.payment import HOST, ClientId, PaymentId, payment_id
from incoming_payments.limits import DELIVERY_EVENTS_MAX


class KeyRow(NamedTuple):
    """The columns of the table `idempotency_keys`, and two columns of the payment that the row names."""

    client: Any
    key: Any
    fingerprint: Any
    payment_id: Any
    until: Any
    client_of_payment: Any
    created_at: Any


class SettingsRow(NamedTuple):
    """The columns of the table `settings`."""

    reference: Any
    reindexed_to: Any
    erasures: Any
    emptied: Any


class ConsumerRow(NamedTuple):
    """The columns of the table `consumers`."""

    name: Any
    kinds: Any
    wallet_addresses: Any
    joins_credits: Any
    credit_delay_s: Any
    down_after_s: Any
    disable_after_s: Any
    scanned_to: Any
    is_removed: Any
    failing_since: Any
    disabled_at: Any


class StreamRow(NamedTuple):
    """The columns of the table `streams`, without its key."""

    acknowledged: Any
    head: Any
    due_at: Any
    is_open: Any


class DeliveryRow(NamedTuple):
    """The columns of the table `deliveries`, without its consumer and payment.

    `payload` is the SQLite type of the value in that column, such as `blob`. `events` is the number of existing events
    from the first to the last version, and `credited` is the number of `credited` events among them.
    """

    first_version: Any
    last_version: Any
    payload: Any
    attempts: Any
    created_at: Any
    due_at: Any
    lease: Any
    ending: Any
    ended_at: Any
    error: Any
    events: Any
    credited: Any


def check_key(row: KeyRow) -> None:
    """Raise `Contradiction` unless the row is the record of a creation of the payment that it names."""
    name = f"key {row.key!r} of {row.client}"
    try:
        keyed = KeyedCreation(
            ClientId(row.client),
            IdempotencyKey(row.key),
            row.fingerprint,
            PaymentId(row.payment_id),
            time_of(row.until),
        )
    except INVALID as error:
        raise Contradiction("idempotency_keys", f"{name} is invalid: {error}") from error
    if row.created_at is None:
        raise Contradiction("idempotency_keys", f"{name} names a payment that does not exist")
    if keyed.client not in (HOST, row.client_of_payment):
        raise Contradiction("idempotency_keys", f"{name} names a payment of the client {row.client_of_payment}")
    if row.until < row.created_at:
        raise Contradiction("idempotency_keys", f"{name} ends before its payment was created")


def check_consumer(row: ConsumerRow) -> None:
    """Raise `Contradiction` unless the row is a valid consumer."""
    try:
        Consumer(
            name=row.name,
            kinds=None if row.kinds is None else row.kinds.split(),
            wallet_addresses=None if row.wallet_addresses is None else row.wallet_addresses.split(),
            joins_credits=row.joins_credits == 1,
            credit_delay_s=row.credit_delay_s,
            down_after_s=row.down_after_s,
            disable_after_s=row.disable_after_s,
        )
        for time in (row.failing_since, row.disabled_at):
            time_of(0 if time is None else time)
        if row.scanned_to:
            payment_id(row.scanned_to)
        is_valid = row.joins_credits in (0, 1) and row.is_removed in (0, 1)
    except (*INVALID, AttributeError) as error:
        raise Contradiction("consumers", f"consumer {row.name} is invalid: {error}") from error
    if not is_valid:
        raise Contradiction("consumers", f"consumer {row.name}: joins_credits and is_removed must be 0 or 1")


class Stream:
    """The check of one stream of one consumer, and of its deliveries in the order of their versions.

    `consumer`, `stream` and `version` are `None` if there is no such consumer, row or payment. `version` is the version
    of the payment. The constructor and the methods raise `Contradiction`.
    """

    def __init__(self, name: str, consumer: ConsumerRow | None, stream: StreamRow | None, version: int | None) -> None:
        self._name = f"consumer {name}"
        table = "deliveries" if stream is None else "streams"
        if consumer is None:
            raise Contradiction(table, f"{self._name} is unknown")
        if version is None:
            raise Contradiction(table, f"{self._name} has a row of the payment, which does not exist")
        self._consumer = consumer
        self._stream = stream
        self._passed = 0  # the last version of the deliveries so far
        self._is_open = False  # whether a delivery of the open stream was found
        if stream is not None:
            self._check_stream(stream, version)

    def follow(self, row: DeliveryRow) -> None:
        """Check the next delivery."""
        try:
            self._check_row(row)
            self._check_place(row)
        except INVALID as error:
            raise Contradiction("deliveries", f"{self._name}: {row.first_version} is invalid: {error}") from error
        self._passed = row.last_version

    def finish(self) -> None:
        """Check that an open stream has an open delivery. The removal of a consumer deletes deliveries first."""
        if self._consumer.is_removed:
            return
        is_open = self._stream is not None and bool(self._stream.is_open)
        self._require(is_open == self._is_open, "streams", "the stream is open, and none of its deliveries is")

    def _check_stream(self, row: StreamRow, version: int) -> None:
        acknowledged, head, _, is_open = row
        try:
            _require_integers(*row, version)
            is_valid = 0 <= acknowledged < head <= version and is_open in (0, 1)
        except TypeError as error:
            raise Contradiction("streams", f"{self._name} is invalid: {error}") from error
        columns = f"acknowledged is {acknowledged}, head is {head} and is_open is {is_open}"
        text = f"{columns}, and the payment has {version} versions"
        self._require(is_valid, "streams", text)

    def _check_row(self, row: DeliveryRow) -> None:
        first, last = row.first_version, row.last_version
        _require_integers(first, last, row.attempts, row.created_at)
        for time in (row.created_at, row.due_at, row.ended_at):
            time_of(0 if time is None else time)
        name = f"delivery {first} to {last}"
        has_ended = row.ending is not None
        checks = {
            "names events that do not exist": row.events == last - first + 1 > 0,
            "has too many events": row.events <= DELIVERY_EVENTS_MAX,
            "joins events that are not credits": row.events in (1, row.credited),
            "must have a payload": row.payload == "blob",
            "has an unknown ending": row.ending in (None, *Ending),
            "must have either an end or a time at which it is due": has_ended
            == (row.ended_at is not None)
            == (row.due_at is None),
            "has ended and has a lease": not has_ended or row.lease is None,
            "has no attempt": row.attempts >= (1 if has_ended or row.lease is not None else 0),
            "is dead for no reason": row.ending != Ending.DEAD or row.error is not None,
            "exists before the registration of its consumer is complete": self._consumer.scanned_to is None,
        }
        for text, holds in checks.items():
            self._require(holds, "deliveries", f"{name} {text}")

    def _check_place(self, row: DeliveryRow) -> None:
        first, last = row.first_version, row.last_version
        name = f"delivery {first} to {last}"
        self._require(first > self._passed, "deliveries", f"{name} has events of another delivery")
        if self._stream is None or last <= self._stream.acknowledged:
            # A dead letter that is sent again has an error.
            was_dead = row.ending is not None or row.error is not None
            self._require(was_dead, "streams", f"{name} is open, and its stream is not")
            return
        in_place = self._stream.acknowledged < first and last <= self._stream.head and row.ending is None
        text = f"{name} does not fit the stream, which is acknowledged up to version {self._stream.acknowledged}"
        self._require(in_place and bool(self._stream.is_open), "deliveries", text)
        self._require(not self._is_open, "deliveries", f"{name} is open beside another one")
        self._is_open = True

    def _require(self, holds: bool, table: str, text: str) -> None:
        if not holds:
            raise Contradiction(table, f"{self._name}: {text}")


def _require_integers(*values: object) -> None:
    for value in values:
        if type(value) is not int:
            raise TypeError(f"{value!r} must be an integer")
