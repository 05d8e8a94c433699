"""The passes of the audit over the tables. Each pass reads the rows in the order of a primary key.

A pass keeps its place, so it can continue in another transaction. All rows that a rule compares are read in one
transaction, except the events of a payment, which never change.
"""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from incoming_payments.audit._history import Contradiction, History
from incoming_payments.audit._report import Tally
from incoming_payments.audit._rules import ConsumerRow, SettingsRow, Stream, check_consumer, check_key
from incoming_payments.audit._snapshot import Snapshot, next_key, only_payment, valid_settings

AnySnapshot = TypeVar("AnySnapshot", contravariant=True)


class Pass(Protocol[AnySnapshot]):
    """A part of the audit. `AnySnapshot` is `Snapshot`, or the class of one kind of database."""

    def run(self, snapshot: AnySnapshot) -> bool:
        """Audit rows until the time of `snapshot` is used up. Return whether the pass is complete."""


class Tables:
    """The definitions of the tables, and the small tables."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        tally = self._tally
        for table, text in snapshot.unsound_tables():
            tally.add(None, table, text)
        tally.counts["nonces"] += snapshot.count_nonces()
        try:
            valid_settings(snapshot)
        except Contradiction as found:
            tally.add(None, found.table, found.text)
        self._check_consumers(snapshot)
        return True

    def _check_consumers(self, snapshot: Snapshot) -> None:
        tally, names = self._tally, set()
        for row in snapshot.consumers():
            if row.name in names:
                tally.add(None, "consumers", f"consumer {row.name} is there twice")
            names.add(row.name)
            try:
                check_consumer(row)
            except Contradiction as found:
                tally.add(None, found.table, found.text)


class Payments:
    """The payments with their credits and events."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._id = ""  # the last payment whose audit has begun
        self._history: History | None = None  # the history of this payment, if its audit is not complete

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        settings = _settings(snapshot)
        while not snapshot.is_over:
            if self._history is None:
                id = snapshot.next_payment(self._id)
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
        row, columns = only_payment(snapshot, self._id)
        history = history or History(row)
        counts = self._tally.counts
        for event, credit in snapshot.events(self._id, history.version):
            history.follow(event, credit)
            counts["events"] += 1
            counts["credits"] += credit.credit_id is not None
            if snapshot.is_over:
                return history
        events, credits = snapshot.counts(self._id)
        history.finish(row, events=events, credits=credits)
        snapshot.check_columns(row, columns, settings)
        return None


def _settings(snapshot: Snapshot) -> SettingsRow | None:
    try:
        return valid_settings(snapshot)
    except Contradiction:  # `Tables` has noted it
        return None


class Keys:
    """The idempotency keys."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._place = ("", "")

    def run(self, snapshot: Snapshot) -> bool:
        """See `Pass`."""
        for row in snapshot.keys(self._place):
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
        consumers = {row.name: row for row in snapshot.consumers()}
        while not snapshot.is_over:
            places = snapshot.next_streams(self._place)
            if not places:
                return True
            self._place = name, id = next_key(self._place, *places)
            try:
                self._check(snapshot, consumers.get(name), name, id)
            except Contradiction as found:
                self._tally.add(id, found.table, found.text)
        return False

    def _check(self, snapshot: Snapshot, consumer: ConsumerRow | None, name: str, id: str) -> None:
        rows, version = snapshot.streams(name, id)
        if len(rows) > 1:
            raise Contradiction("streams", f"consumer {name} has {len(rows)} rows of the stream")
        row = rows[0] if rows else None
        stream = Stream(name, consumer, row, version)
        self._tally.counts["streams"] += row is not None
        for delivery in snapshot.deliveries(name, id):
            self._tally.counts["deliveries"] += 1
            stream.follow(delivery)
        stream.finish()


def passes(tally: Tally) -> Iterator[Pass[Snapshot]]:
    """Yield the passes over every database in their order."""
    yield Tables(tally)
    yield Payments(tally)
    yield Keys(tally)
    yield Streams(tally)
