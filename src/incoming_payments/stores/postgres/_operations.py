"""The operations on payments. See `_steps` for what an operation is."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import ClientId, Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.limits import IDEMPOTENCY_KEYS_SWEPT_MAX
from incoming_payments.ports import Decide
from incoming_payments.stores._references import digest_in
from incoming_payments.stores._rows import corrupt, micros, time_of
from incoming_payments.stores.guard import check_update
from incoming_payments.stores.postgres._errors import again
from incoming_payments.stores.postgres._references import SELECT_SETTING
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Result, Steps, array, at_once, statement
from incoming_payments.stores.postgres._streams import mark
from incoming_payments.stores.postgres._unpaid import UnpaidCheck
from incoming_payments.stores.postgres._values import (
    LOCK_PAYMENT,
    SELECT_CREDITS,
    SELECT_EVENTS,
    SELECT_EXPIRED,
    SELECT_PAYMENT,
    check_replaced,
    checked_id,
    credits_in,
    events_in,
    exists,
    expiry_values,
    insertion,
    payment_in,
    replacement,
)

Wake = Callable[[], None]

# FOR SHARE: repeats of a creation do not wait for each other.
_LOCK_KEY: Final = statement(
    "SELECT fingerprint, payment_id, until FROM incoming_payments.idempotency_keys "
    "WHERE client = %s AND key = %s FOR SHARE"
)
# The statement waits for a transaction that writes the key. It changes no row if the record of the key has not expired.
_TAKE_KEY: Final = statement(
    "INSERT INTO incoming_payments.idempotency_keys AS old (client, key, fingerprint, payment_id, until) "
    "VALUES (%s, %s, %s, %s, %s) ON CONFLICT (client, key) DO UPDATE "
    "SET fingerprint = excluded.fingerprint, payment_id = excluded.payment_id, until = excluded.until "
    "WHERE old.until < %s"
)
# SKIP LOCKED: two transactions never wait for each other's records.
_SWEEP_KEYS: Final = statement(
    "DELETE FROM incoming_payments.idempotency_keys WHERE (client, key) IN (SELECT client, key "
    "FROM incoming_payments.idempotency_keys WHERE until < %s ORDER BY until LIMIT %s FOR UPDATE SKIP LOCKED)"
)


class Job:
    """An update that waits for its payment. `error` or `answer` is valid when the transaction has ended."""

    def __init__(self, decide: Decide[Any], credit_id: CreditId | None, settle: Callable[[], object]) -> None:
        self.decide = decide
        self.credit_id = credit_id
        self.settle = settle  # called once, when the outcome is known
        self.answer: Any = None
        self.error: BaseException | None = None

    def outcome(self) -> Any:
        """Return the answer or raise the error."""
        if self.error is not None:
            raise self.error
        return self.answer


def load(id: PaymentId) -> Operation[IncomingPayment]:
    """Read the payment. Raises `PaymentNotFound`."""
    query = Query(SELECT_PAYMENT, (checked_id(id),))
    return lambda: at_once(Ending([query], lambda results: payment_in(id, results[0]), writes=False))


def read_events(id: PaymentId) -> Operation[Sequence[Event]]:
    """Read the events of the payment. Raises `PaymentNotFound`."""
    query = Query(SELECT_EVENTS, (checked_id(id),))
    return lambda: at_once(Ending([query], lambda results: events_in(id, results[0]), writes=False))


def find_expired(now: datetime, limit: int) -> Operation[Sequence[PaymentId]]:
    """Find payments for the sweep."""
    query = Query(SELECT_EXPIRED, expiry_values(now, limit))
    return lambda: at_once(Ending([query], lambda results: [id for (id,) in results[0].rows], writes=False))


def find_creation(client: ClientId, key: IdempotencyKey, now: datetime) -> Operation[KeyedCreation | None]:
    """Find the record of the key.

    The record is locked, so that COMMIT waits until it is as durable as the answer to the creation. A plain read could
    return a record that the standby does not have yet.
    """
    query = Query(_LOCK_KEY, (client, key))

    def answer(results: list[Result]) -> KeyedCreation | None:
        earlier = _creation(client, key, results[0])
        return None if earlier is None or earlier.until < now else earlier

    return lambda: at_once(Ending([query], answer, writes=False))


def insert(
    payment: IncomingPayment, decision: Decision[Any], unpaid: UnpaidCheck, wake: Wake
) -> Operation[KeyedCreation | None]:
    """Write a new payment, its events and the record of its key, or return the earlier record of the key."""
    return lambda: _insert(payment, decision, unpaid, wake)


def _insert(
    payment: IncomingPayment, decision: Decision[Any], unpaid: UnpaidCheck, wake: Wake
) -> Steps[KeyedCreation | None]:
    keyed, now, metadata = decision.keyed, micros(payment.created_at), payment.terms.metadata
    reads, sweeps = [], []
    if keyed is not None:
        taken = (keyed.client, keyed.key, keyed.fingerprint, keyed.payment, micros(keyed.until), now)
        reads = [Query(_TAKE_KEY, taken), Query(_LOCK_KEY, (keyed.client, keyed.key))]
        sweeps = [Query(_SWEEP_KEYS, (now, IDEMPOTENCY_KEYS_SWEPT_MAX))]
    if metadata is not None:
        reads.append(Query(SELECT_SETTING))
    reads += unpaid.queries
    results = (yield reads) if reads else []
    if keyed is not None and not results[0].changed:
        earlier = _creation(keyed.client, keyed.key, results[1])
        return Ending([], lambda _: earlier, writes=False)
    counted = len(reads) - len(unpaid.queries)
    unpaid.check(results[counted:])
    reference = None if metadata is None else digest_in(metadata, results[counted - 1].rows[0][0])
    writes = [insertion(payment, decision.events, reference), *sweeps, *mark(payment, decision.events)]
    return Ending(writes, partial(_wake_if_marked, wake), writes=True, refusals=exists(payment.id))


def _wake_if_marked(wake: Wake, results: list[Result]) -> None:
    """Wake the watchers of the feed if the last query, that of `mark`, has changed a row."""
    if results[-1].changed:
        wake()


def update(id: PaymentId, jobs: Sequence[Job], wake: Wake) -> Operation[None]:
    """Run the decisions of `jobs` about one payment, one after the other, and write their outcome together.

    Each job sees the decisions of the jobs before it. A job that fails writes nothing, and the others go on.
    """
    return lambda: _update(id, jobs, wake)


def _update(id: PaymentId, jobs: Sequence[Job], wake: Wake) -> Steps[None]:
    wanted = [job.credit_id for job in jobs if job.credit_id is not None]
    locked, found = yield [Query(LOCK_PAYMENT, (id,)), Query(SELECT_CREDITS, (id, array(wanted)))]
    try:
        before = after = payment_in(id, locked)
    except IncomingPaymentsError as error:
        for job in jobs:
            job.error = again(error)
        return Ending([], lambda _: None, writes=False)
    known, credits, events = credits_in(before, found), list[Credit](), list[Event]()
    for job in jobs:
        job.error = None
        earlier = None if job.credit_id is None else known.get(job.credit_id)
        try:
            decision = job.decide(after, earlier)
            changed = check_update(after, job.credit_id, earlier, decision)
        except BaseException as error:  # noqa: BLE001 - the error of one caller must not reach the others
            job.error = error
            continue
        job.answer = decision.answer
        if changed is not None:
            after = changed
            events += decision.events
        if decision.credit is not None:
            credits.append(decision.credit)
            known[decision.credit.id] = decision.credit
    if after is before:
        return Ending([], lambda _: None, writes=False)  # the lock makes COMMIT wait for what the answers repeat

    def answer(results: list[Result]) -> None:
        check_replaced(results[0])
        _wake_if_marked(wake, results)

    return Ending([replacement(before, after, credits, events), *mark(after, events)], answer, writes=True)


def _creation(client: ClientId, key: IdempotencyKey, result: Result) -> KeyedCreation | None:
    """Return the record of a key. Raises `StoreUnusable` when the row is not a valid record."""
    if not result.rows:
        return None
    fingerprint, payment, until = result.rows[0]
    try:
        return KeyedCreation(client, key, fingerprint, payment, time_of(until))
    except (ValueError, OverflowError) as error:
        raise corrupt(f"an idempotency key of {client}", error) from error
