"""Stores on SQLite with one fault each, so that tests can prove that the contract suite or the crash kit detects it."""

import pickle
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnavailable, StoreUnusable
from incoming_payments.ports import Decide
from incoming_payments.stores.guard import check_insert, check_update
from kits.reference_store import ReferenceStore, micros

T = TypeVar("T")


class LoadsThenSaves(ReferenceStore):
    """Loads and writes in two transactions, with no lock around them."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and save."""
        with self._transaction("BEGIN") as connection:
            before, earlier = self._payment(connection, id), self._credit(connection, id, credit_id)
        decision = decide(before, earlier)
        after = check_update(before, credit_id, earlier, decision)
        if after is not None:
            with self._transaction() as connection:
                self._write(connection, after, decision)
        return decision.answer

    def _write_credit(self, connection: sqlite3.Connection, credit: Credit) -> None:
        row = (credit.payment_id, credit.id, pickle.dumps(credit))
        connection.execute("INSERT OR REPLACE INTO credits VALUES (?, ?, ?)", row)

    def _write_events(self, connection: sqlite3.Connection, events: Sequence[Event]) -> None:
        rows = [(event.payment_id, event.version, pickle.dumps(event)) for event in events]
        connection.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", rows)


class LocksTheObject(LoadsThenSaves):
    """Has a mutex of each object in place of a lock of the database."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._updating = threading.Lock()

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and save with the mutex."""
        with self._updating:
            return super().update(id, decide, credit_id)


class LocksTheProcess(LoadsThenSaves):
    """Has a mutex of the process in place of a lock of the database."""

    updating = threading.Lock()

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Load, decide and save with the mutex."""
        with self.updating:
            return super().update(id, decide, credit_id)


class CachesPayments(ReferenceStore):
    """Answers `load` from a cache in the object."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._cache: dict[PaymentId, IncomingPayment] = {}

    def load(self, id: PaymentId) -> IncomingPayment:
        """Load the payment once."""
        if id not in self._cache:
            self._cache[id] = super().load(id)
        return self._cache[id]

    def _write_payment(self, connection: sqlite3.Connection, payment: IncomingPayment) -> None:
        super()._write_payment(connection, payment)
        self._cache[payment.id] = payment


class CachesPaymentsInTheProcess(CachesPayments):
    """Shares its cache with the other stores of the process."""

    shared: ClassVar[dict[PaymentId, IncomingPayment]] = {}

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._cache = self.shared


class DecidesBeforeTheLock(ReferenceStore):
    """Decides about a payment that it has not locked, and compares the version when it writes."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Decide, lock, and decide again when the payment has changed."""
        while True:
            with self._transaction("BEGIN") as connection:
                before, earlier = self._payment(connection, id), self._credit(connection, id, credit_id)
            decision = decide(before, earlier)
            after = check_update(before, credit_id, earlier, decision)
            with self._transaction() as connection:
                if self._payment(connection, id) == before:
                    if after is not None:
                        self._write(connection, after, decision)
                    return decision.answer


class KeepsAStaleDecision(ReferenceStore):
    """Repeats a transaction that has failed with the decision of the first attempt."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Decide once, and write as often as needed."""
        decisions: list[Decision[T]] = []

        def decide_once(payment: IncomingPayment, earlier: Credit | None) -> Decision[T]:
            if not decisions:
                decisions.append(decide(payment, earlier))
            return decisions[0]

        try:
            return super().update(id, decide_once, credit_id)
        except StoreUnavailable:
            return super().update(id, decide_once, credit_id)


class DecidesAgain(ReferenceStore):
    """Repeats a transaction that has failed, and its decision. This store is not broken."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Update, and try once more."""
        try:
            return super().update(id, decide, credit_id)
        except StoreUnavailable:
            return super().update(id, decide, credit_id)


class CommitsEventsLater(ReferenceStore):
    """Commits the payment and the credit, and then the events."""

    def _write_events(self, connection: sqlite3.Connection, events: Sequence[Event]) -> None:
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        super()._write_events(connection, events)


class CommitsCreatedEventsLater(ReferenceStore):
    """Commits a new payment, and then its events. Its updates are correct."""

    def _write_events(self, connection: sqlite3.Connection, events: Sequence[Event]) -> None:
        if events and events[0].kind is EventKind.CREATED:
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
        super()._write_events(connection, events)


class InsertsLater(ReferenceStore):
    """Acknowledges an insert, and commits it before the next call."""

    _accepted: Decision[IncomingPayment] | None = None

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """Keep the payment in the object."""
        self._commit()
        with suppress(PaymentNotFound):
            self.load(decision.answer.id)
            raise PaymentExists(f"payment {decision.answer.id} exists already")
        self._accepted = decision

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Insert and update."""
        self._commit()
        return super().update(id, decide, credit_id)

    def close(self) -> None:
        """Insert and close."""
        self._commit()
        super().close()

    def _commit(self) -> None:
        accepted, self._accepted = self._accepted, None
        if accepted is not None:
            super().insert(accepted)


class CommitsCreditsFirst(ReferenceStore):
    """Commits the credit before the payment and the events."""

    def _write(self, connection: sqlite3.Connection, payment: IncomingPayment, decision: Decision[Any]) -> None:
        if decision.credit is not None:
            self._write_credit(connection, decision.credit)
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
        super()._write(connection, payment, evolve(decision, credit=None))


class CreditsTwice(ReferenceStore):
    """Has no unique credit ids."""

    def _credit(self, connection: sqlite3.Connection, id: PaymentId, credit_id: CreditId | None) -> Credit | None:
        connection.execute("DELETE FROM credits WHERE payment = ? AND id = ?", (id, credit_id))
        return None


class LeaksErrorsOfTheDriver(ReferenceStore):
    """Lets `sqlite3.Error` reach its callers."""

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        try:
            with super()._transaction(begin) as connection:
                yield connection
        except StoreUnavailable as error:
            raise (error.__cause__ or error) from None


class LeaksErrorsWhenClosed(ReferenceStore):
    """Calls the driver although the store is closed."""

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        if self._is_closed:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        with super()._transaction(begin) as connection:
            yield connection


class AnswersEarly(ReferenceStore):
    """Commits in another thread, some time after its answer."""

    delay_s = 0.02

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._mutex:
            connection = self._connect()
            if begin == "BEGIN IMMEDIATE" and not connection.in_transaction:
                connection.execute(begin)
                threading.Timer(self.delay_s, self._commit).start()
            yield connection

    def close(self) -> None:
        """Commit and close."""
        self._commit()
        super().close()

    def _commit(self) -> None:
        with self._mutex:
            if self.connection is not None:
                self.connection.commit()


class AnswersSlightlyEarly(AnswersEarly):
    """Commits so soon after its answer that no other process notices."""

    delay_s = 0.0001


class FindsTheLastFirst(ReferenceStore):
    """Returns the payments that expired last."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Reverse the order."""
        return super().find_expired(now, 1000)[::-1][:limit]


class FindsTooMany(ReferenceStore):
    """Ignores `limit`."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:  # noqa: ARG002 - the fault
        """Return all."""
        return super().find_expired(now, 1000)


class FindsTooEarly(ReferenceStore):
    """Takes a payment as expired at `expires_at`, and not after it."""

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Compare with `<=`."""
        with self._transaction("BEGIN") as connection:
            rows = connection.execute(
                "SELECT id FROM payments WHERE due <= ? ORDER BY due LIMIT ?", (micros(now), limit)
            ).fetchall()
        return [PaymentId(id) for (id,) in rows]


class FindsCompletedPayments(ReferenceStore):
    """Returns completed payments from `find_expired` too."""

    def _write_payment(self, connection: sqlite3.Connection, payment: IncomingPayment) -> None:
        super()._write_payment(connection, payment)
        if payment.expires_at is not None and payment.expiry_announced_at is None:
            connection.execute("UPDATE payments SET due = ? WHERE id = ?", (micros(payment.expires_at), payment.id))


class IgnoresCase(ReferenceStore):
    """Compares credit ids without their case, as the collations of some databases do."""

    def _credit(self, connection: sqlite3.Connection, id: PaymentId, credit_id: CreditId | None) -> Credit | None:
        row = connection.execute(
            "SELECT value FROM credits WHERE payment = ? AND id = ? COLLATE NOCASE", (id, credit_id)
        ).fetchone()
        return None if row is None else pickle.loads(row[0])  # noqa: S301


class RoundsAmounts(ReferenceStore):
    """Keeps amounts as floats, which are exact up to 2**53."""

    def _payment(self, connection: sqlite3.Connection, id: PaymentId) -> IncomingPayment:
        payment = super()._payment(connection, id)
        received = Amount(int(float(payment.received.value)), payment.asset)
        return IncomingPayment(payment.terms, evolve(payment.progress, received=received))


class KeepsSignedAmounts(ReferenceStore):
    """Keeps amounts in a signed column of 64 bits."""

    def _write_payment(self, connection: sqlite3.Connection, payment: IncomingPayment) -> None:
        connection.execute("SELECT ?", (payment.received.value,))
        super()._write_payment(connection, payment)


class LosesSecondEvents(ReferenceStore):
    """Writes one event of each decision, so that versions have gaps."""

    def _write_events(self, connection: sqlite3.Connection, events: Sequence[Event]) -> None:
        super()._write_events(connection, events[:1])


class SortsEventsAsText(ReferenceStore):
    """Returns event 10 before event 2."""

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Sort by the digits of the version."""
        return sorted(super().events(id), key=lambda event: str(event.version))


class OverwritesOnInsert(ReferenceStore):
    """Accepts an id that exists already."""

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """Replace the earlier payment."""
        payment = check_insert(decision)
        with self._transaction() as connection:
            connection.execute("DELETE FROM events WHERE payment = ?", (payment.id,))
            self._write(connection, payment, decision)


class FindsCreditsOfOtherPayments(ReferenceStore):
    """Looks a credit up by its id alone."""

    def _credit(self, connection: sqlite3.Connection, id: PaymentId, credit_id: CreditId | None) -> Credit | None:  # noqa: ARG002
        row = connection.execute("SELECT value FROM credits WHERE id = ?", (credit_id,)).fetchone()
        return None if row is None else pickle.loads(row[0])  # noqa: S301


class TakesTheLatestCredit(ReferenceStore):
    """Passes the latest credit to `decide`, whatever its id is."""

    def _credit(self, connection: sqlite3.Connection, id: PaymentId, credit_id: CreditId | None) -> Credit | None:  # noqa: ARG002
        row = connection.execute("SELECT value FROM credits WHERE payment = ? ORDER BY rowid DESC", (id,)).fetchone()
        return None if row is None else pickle.loads(row[0])  # noqa: S301


class ShiftsTotals(ReferenceStore):
    """Returns events with a wrong total."""

    def events(self, id: PaymentId) -> Sequence[Event]:
        """Raise the total in each event after the first one."""
        first, *others = super().events(id)
        more = [evolve(event, received=evolve(event.received, value=event.received.value + 1)) for event in others]
        return [first, *more]


class BreaksWhenItLoads(ReferenceStore):
    """Cannot load."""

    def load(self, id: PaymentId) -> IncomingPayment:
        """Raise `StoreUnusable`."""
        raise StoreUnusable(f"payment {id} cannot be read")


class FailsToUpdate(ReferenceStore):
    """Raises an error of Python."""

    close: Any = None  # some stores need not be closed

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:  # noqa: ARG002
        """Fail."""
        raise ZeroDivisionError(f"no update of {id} works")


class NeverAnswers(ReferenceStore):
    """Does not return from `update`."""

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        """Sleep."""
        time.sleep(600)
        return super().update(id, decide, credit_id)
