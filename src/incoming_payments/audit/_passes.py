"""The passes of the audit over the tables. Each pass reads the rows in the order of a primary key.

A pass keeps its place, so it can continue in another transaction. All rows that a rule compares are read in one
transaction, except the events of a payment, which never change.
"""

from collections.abc import Iterator
from typing import Final, Protocol

from incoming_payments.audit._database import Snapshot, next_key, unsound_parts
from incoming_payments.audit._history import Contradiction, CreditRow, EventRow, History
from incoming_payments.audit._metadata import (
    Numbers,
    SettingsRow,
    Texts,
    ToErase,
    check_metadata,
    select_payment,
    select_settings,
)
from incoming_payments.audit._report import FILE, Tally
from incoming_payments.audit._rules import (
    ConsumerRow,
    DeliveryRow,
    KeyRow,
    Stream,
    StreamRow,
    check_consumer,
    check_key,
)

_NEXT_PAYMENT: Final = (
    "SELECT min(id) FROM (SELECT min(id) AS id FROM payments WHERE id > ?1 "
    "UNION ALL SELECT min(payment_id) FROM credits WHERE payment_id > ?1 "
    "UNION ALL SELECT min(payment_id) FROM events WHERE payment_id > ?1)"
)
_SELECT_EVENTS: Final = (
    "SELECT e.version, e.kind, e.at, e.received_amount, e.credit_id, e.peer, "
    "c.credit_id, c.amount, c.received_amount, c.completes, c.at FROM events AS e "
    "LEFT JOIN credits AS c ON c.payment_id = e.payment_id AND c.credit_id = e.credit_id "
    "WHERE e.payment_id = ? AND e.version > ? ORDER BY e.version"
)
_COUNT: Final = (
    "SELECT (SELECT count(*) FROM events WHERE payment_id = ?1), (SELECT count(*) FROM credits WHERE payment_id = ?1)"
)
_EVENT_COLUMNS: Final = len(EventRow._fields)
_WITHOUT_PAYMENT: Final = (
    ("payments", "SELECT count(*) FROM payments WHERE id IS NULL"),
    ("credits", "SELECT count(*) FROM credits WHERE payment_id IS NULL"),
    ("events", "SELECT count(*) FROM events WHERE payment_id IS NULL"),
    ("idempotency_keys", "SELECT count(*) FROM idempotency_keys WHERE client IS NULL OR key IS NULL"),
    ("metadata", "SELECT count(*) FROM metadata WHERE number IS NULL"),
    ("metadata_to_erase", "SELECT count(*) FROM metadata_to_erase WHERE ended_at IS NULL OR payment_id IS NULL"),
    ("streams", "SELECT count(*) FROM streams WHERE consumer IS NULL OR payment_id IS NULL"),
    ("deliveries", "SELECT count(*) FROM deliveries WHERE consumer IS NULL OR payment_id IS NULL"),
)
_SELECT_KEYS: Final = (
    "SELECT k.client, k.key, k.fingerprint, k.payment_id, k.until, p.client, p.created_at FROM idempotency_keys AS k "
    "LEFT JOIN payments AS p ON p.id = k.payment_id WHERE (k.client, k.key) > (?, ?) ORDER BY k.client, k.key"
)
_SELECT_NONCES: Final = "SELECT count(*), count(key), count(until), min(until) FROM nonces"
_SELECT_COUNT: Final = "SELECT count(*), min(held), min(swept_until) FROM nonce_count"
_SELECT_WRONG_REQUESTS: Final = (
    "SELECT client FROM request_counts GROUP BY client "
    "HAVING client IS NULL OR count(*) > 1 OR count(full_at) < count(*)"
)
_SELECT_ID: Final = "SELECT count(*), min(length(id)) FROM database_id"
_ID_BYTES: Final = 16
_SELECT_CONSUMERS: Final = f"SELECT {', '.join(ConsumerRow._fields)} FROM consumers ORDER BY name"  # noqa: S608 - constants
_NEXT_STREAM: Final = (
    "SELECT consumer, payment_id FROM streams WHERE (consumer, payment_id) > (?, ?) AND payment_id <> '' "
    "ORDER BY consumer, payment_id LIMIT 1"
)
_NEXT_DELIVERY: Final = (
    "SELECT consumer, payment_id FROM deliveries WHERE (consumer, payment_id) > (?, ?) AND payment_id <> '' "
    "ORDER BY consumer, payment_id LIMIT 1"
)
_SELECT_STREAM: Final = "SELECT acknowledged, head, due_at, is_open FROM streams WHERE consumer = ? AND payment_id = ?"
_SELECT_DELIVERIES: Final = (
    "SELECT first_version, last_version, typeof(payload), attempts, created_at, due_at, lease, ending, ended_at, "
    "error, (SELECT count(*) FROM events AS e WHERE e.payment_id = d.payment_id "
    "AND e.version BETWEEN d.first_version AND d.last_version), "
    "(SELECT count(*) FROM events AS e WHERE e.payment_id = d.payment_id "
    "AND e.version BETWEEN d.first_version AND d.last_version AND e.kind = 'credited') "
    "FROM deliveries AS d WHERE consumer = ? AND payment_id = ? ORDER BY first_version"
)
_SELECT_VERSION: Final = "SELECT min(version) FROM payments WHERE id = ?"


class Pass(Protocol):
    """A part of the audit."""

    def run(self, snapshot: Snapshot) -> bool:
        """Audit rows until the time of `snapshot` is used up. Return whether the pass is complete."""


class Tables:
    """The definitions of the tables, and the small tables."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        tally = self._tally
        for text in unsound_parts(snapshot):
            tally.add(None, FILE, text)
        for table, statement in _WITHOUT_PAYMENT:
            (number,) = snapshot.one(statement)
            if number:
                tally.add(None, table, f"{number} rows have no key")
        self._check_nonces(snapshot)
        for (client,) in snapshot.rows(_SELECT_WRONG_REQUESTS):
            tally.add(None, "request_counts", f"there must be one row of the client {client}, with a time")
        if snapshot.one(_SELECT_ID) != (1, _ID_BYTES):
            tally.add(None, "database_id", f"there must be one id of {_ID_BYTES} bytes")
        try:
            select_settings(snapshot)
        except Contradiction as found:
            tally.add(None, found.table, found.text)
        self._check_consumers(snapshot)
        return True

    def _check_consumers(self, snapshot: Snapshot) -> None:
        tally, names = self._tally, set()
        for values in snapshot.rows(_SELECT_CONSUMERS):
            row = ConsumerRow(*values)
            if row.name in names:
                tally.add(None, "consumers", f"consumer {row.name} is there twice")
            names.add(row.name)
            try:
                check_consumer(row)
            except Contradiction as found:
                tally.add(None, found.table, found.text)

    def _check_nonces(self, snapshot: Snapshot) -> None:
        tally = self._tally
        counted, *rest = snapshot.one(_SELECT_NONCES)
        rows, held, swept_until = snapshot.one(_SELECT_COUNT)
        tally.counts["nonces"] += counted
        *others, first_until = rest
        if others != [counted] * 2:
            tally.add(None, "nonces", "a nonce lacks its key or its time")
        elif rows != 1 or held != counted:
            tally.add(None, "nonce_count", f"there must be one row with held = {counted}")
        elif swept_until is None or (first_until is not None and first_until < swept_until):
            tally.add(None, "nonce_count", f"swept_until is {swept_until}, and there is a nonce until {first_until}")


class Payments:
    """The payments with their credits and events."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._id = ""  # the last payment whose audit has begun
        self._history: History | None = None  # the history of this payment, if its audit is not complete

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        settings = _valid_settings(snapshot)
        while not snapshot.is_over:
            if self._history is None:
                (id,) = snapshot.one(_NEXT_PAYMENT, (self._id,))
                if id is None:
                    return True
                self._id = next_key(self._id, id)
                self._tally.counts["payments"] += 1
            try:
                self._history = self._continue(snapshot, self._history, settings)
            except Contradiction as found:
                self._tally.add(self._id, found.table, found.text)
                self._history = None
        return False

    def _continue(self, snapshot: Snapshot, history: History | None, settings: SettingsRow | None) -> History | None:
        """Continue the history of the payment. Return it if the snapshot is over before the end of the history."""
        row, metadata = select_payment(snapshot, self._id)
        history = history or History(row)
        counts = self._tally.counts
        for values in snapshot.rows(_SELECT_EVENTS, (self._id, history.version)):
            event, credit = EventRow(*values[:_EVENT_COLUMNS]), CreditRow(*values[_EVENT_COLUMNS:])
            history.follow(event, credit)
            counts["events"] += 1
            counts["credits"] += credit.credit_id is not None
            if snapshot.is_over:
                return history
        events, credits = snapshot.one(_COUNT, (self._id,))
        history.finish(row, events=events, credits=credits)
        check_metadata(snapshot, row, metadata, settings)
        return None


def _valid_settings(snapshot: Snapshot) -> SettingsRow | None:
    try:
        return select_settings(snapshot)
    except Contradiction:  # `Tables` has noted it
        return None


class Keys:
    """The idempotency keys."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._place = ("", "")

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        for values in snapshot.rows(_SELECT_KEYS, self._place):
            row = KeyRow(*values)
            self._tally.counts["idempotency_keys"] += 1
            place = row.client, row.key
            try:
                if place == self._place:
                    raise Contradiction("idempotency_keys", f"key {row.key!r} of {row.client} is there twice")
                next_key(self._place, place)
                check_key(row)
            except Contradiction as found:
                self._tally.add(row.payment_id, found.table, found.text)
            self._place = place
            if snapshot.is_over:
                return False
        return True


class Streams:
    """The streams and deliveries of all consumers."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._place = ("", "")

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        consumers = {row.name: row for row in (ConsumerRow(*values) for values in snapshot.rows(_SELECT_CONSUMERS))}
        while not snapshot.is_over:
            places = [*snapshot.rows(_NEXT_STREAM, self._place), *snapshot.rows(_NEXT_DELIVERY, self._place)]
            if not places:
                return True
            self._place = name, id = next_key(self._place, *places)
            try:
                self._check(snapshot, consumers.get(name), name, id)
            except Contradiction as found:
                self._tally.add(id, found.table, found.text)
        return False

    def _check(self, snapshot: Snapshot, consumer: ConsumerRow | None, name: str, id: str) -> None:
        rows = [StreamRow(*values) for values in snapshot.rows(_SELECT_STREAM, (name, id))]
        if len(rows) > 1:
            raise Contradiction("streams", f"consumer {name} has {len(rows)} rows of the stream")
        row = rows[0] if rows else None
        (version,) = snapshot.one(_SELECT_VERSION, (id,))
        stream = Stream(name, consumer, row, version)
        self._tally.counts["streams"] += row is not None
        for values in snapshot.rows(_SELECT_DELIVERIES, (name, id)):
            self._tally.counts["deliveries"] += 1
            stream.follow(DeliveryRow(*values))
        stream.finish()


def passes(tally: Tally, *, is_live: bool) -> Iterator[Pass]:
    """Yield the passes of an audit in their order."""
    yield Tables(tally)
    yield Payments(tally)
    yield Keys(tally)
    yield Streams(tally)
    yield Texts(tally)
    yield ToErase(tally)
    if not is_live:
        yield Numbers(tally)
