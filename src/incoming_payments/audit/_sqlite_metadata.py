"""The passes over the tables of a SQLite database that hold metadata, or name the metadata to erase."""

from collections.abc import Sequence
from typing import Any, Final

from incoming_payments.audit._history import INVALID, Contradiction
from incoming_payments.audit._metadata import ended_at_of
from incoming_payments.audit._report import Tally
from incoming_payments.audit._snapshot import next_key, only_payment
from incoming_payments.audit._sqlite import SqliteSnapshot

_SELECT_TEXTS: Final = "SELECT number FROM metadata WHERE number > ? ORDER BY number"
_SELECT_TO_ERASE: Final = (
    "SELECT ended_at, payment_id FROM metadata_to_erase WHERE (ended_at, payment_id) > (?, ?) "
    "ORDER BY ended_at, payment_id"
)
_SELECT_SHARED: Final = (
    "SELECT metadata_number, max(id) FROM payments WHERE metadata_number IS NOT NULL "
    "GROUP BY metadata_number HAVING count(*) > 1"
)
_COUNT_TEXTS: Final = (
    "SELECT (SELECT count(*) FROM metadata WHERE text IS NOT NULL), (SELECT count(metadata_number) FROM payments)"
)


class Texts:
    """The rows of the table `metadata`. Their numbers have no gap, because an erasure keeps the row."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._number = 0  # the last number

    def run(self, snapshot: SqliteSnapshot) -> bool:
        """See `Pass`."""
        for (number,) in snapshot.rows(_SELECT_TEXTS, (self._number,)):
            self._tally.counts["metadata"] += 1
            if number == self._number:
                self._tally.add(None, "metadata", f"number {number} is there twice")
            elif next_key(self._number, number) != self._number + 1:
                self._tally.add(None, "metadata", f"number {self._number + 1} is missing, and {number} follows")
            self._number = number
            if snapshot.is_over:
                return False
        return True


class ToErase:
    """The rows of the table `metadata_to_erase`."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._place = (-(2**63), "")

    def run(self, snapshot: SqliteSnapshot) -> bool:
        """See `Pass`."""
        for place in snapshot.rows(_SELECT_TO_ERASE, self._place):
            self._tally.counts["metadata_to_erase"] += 1
            try:
                self._check(snapshot, place)
            except Contradiction as found:
                self._tally.add(place[1], found.table, found.text)
            self._place = place[0], place[1]
            if snapshot.is_over:
                return False
        return True

    def _check(self, snapshot: SqliteSnapshot, place: Sequence[Any]) -> None:
        if place == self._place:
            raise Contradiction("metadata_to_erase", "the row is there twice")
        _, id = next_key(self._place, (place[0], place[1]))
        payment, _ = only_payment(snapshot, id)
        try:
            ended_at = None if payment.metadata is None else ended_at_of(payment)
        except INVALID as error:
            raise Contradiction("payments", f"its amounts are invalid: {error}") from error
        if ended_at != place[0]:
            raise Contradiction("metadata_to_erase", f"ended_at is {place[0]}, and must be {ended_at}")


class Numbers:
    """The numbers of the metadata of all payments. One long read compares them, so run this pass only on a backup."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def run(self, snapshot: SqliteSnapshot) -> bool:
        """See `Pass`."""
        for number, id in snapshot.rows(_SELECT_SHARED):
            self._tally.add(id, "payments", f"metadata_number {number} is also that of another payment")
        texts, named = snapshot.one(_COUNT_TEXTS)
        if texts != named:
            self._tally.add(None, "metadata", f"there are {texts} texts, and {named} payments name one")
        return True
