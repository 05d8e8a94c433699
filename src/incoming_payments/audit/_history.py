"""Replay the history of one payment from its terms and events, and compare it with the rows.

Each event is the result of a decision of `domain.lifecycle`. The replay makes the same decision at the time of the
event, and compares the rows that follow from it: the events, the credit and, at the end, the payment.
"""

from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import (
    STREAM_CREDITS,
    ClientId,
    Credit,
    IncomingPayment,
    MetadataJson,
    WalletAddress,
    WalletAddressUrl,
    credit_id,
    payment_id,
)
from incoming_payments.domain.transitions import is_completed
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.limits import UINT64_MAX

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# These settings of the host are not in the database, so the replay uses the widest ones.
_EXPIRY_S_MAX: Final = timedelta.max // timedelta(seconds=1)
_TOLERANCE: Final = Tolerance(units=UINT64_MAX)
_AUTH_SERVER: Final = "https://auth.invalid/"  # an authorization server does not affect the creation

# The errors of the constructors and decisions of the domain for a row that is invalid.
INVALID: Final = (IncomingPaymentsError, ValueError, TypeError, OverflowError, RecursionError)


class Contradiction(Exception):
    """A row contradicts the rules."""

    def __init__(self, table: str, text: str) -> None:
        super().__init__(text)
        self.table = table
        self.text = text


class PaymentRow(NamedTuple):
    """The columns of the table `payments`."""

    id: Any
    version: Any
    received_amount: Any
    updated_at: Any
    wallet_address: Any
    client: Any
    asset_code: Any
    asset_scale: Any
    incoming_amount: Any
    expires_at: Any
    metadata: Any
    created_at: Any
    closed_at: Any
    expiry_announced_at: Any
    sweep_at: Any


class EventRow(NamedTuple):
    """The columns of the table `events`, without the payment."""

    version: Any
    kind: Any
    at: Any
    received_amount: Any
    credit_id: Any
    peer: Any


class CreditRow(NamedTuple):
    """The columns of the table `credits`, without the payment. All are `None` if there is no such credit."""

    credit_id: Any
    amount: Any
    received_amount: Any
    completes: Any
    at: Any


Row = PaymentRow | EventRow | CreditRow


class History:
    """The replay of one payment. Its size does not depend on the number of events.

    The events of a payment never change. So a replay may stop after any event, and continue with later events that were
    read in another transaction. Methods raise `Contradiction`.
    """

    def __init__(self, row: PaymentRow) -> None:
        self.version = 0  # the version of the last event
        self.credits = 0
        self._creation = _creation(row)
        self._payment: IncomingPayment | None = None  # the payment after the last decision
        self._expected: deque[Event] = deque()  # the events of the last decision that are still to come

    def follow(self, event: EventRow, credit: CreditRow) -> None:
        """Compare the next event, and its credit if there is one, with the result of the decision."""
        if event.version != self.version + 1:
            raise Contradiction("events", f"version {self.version + 1} is missing, and version {event.version} follows")
        if not self._expected:
            try:
                self._decide(event, credit)
            except INVALID as error:
                raise Contradiction("events", f"version {event.version} breaks a rule: {error}") from error
        expected = self._expected.popleft()
        _compare("events", f"version {event.version}", event, _event_row(expected))
        self.version = event.version

    def _decide(self, event: EventRow, credit: CreditRow) -> None:
        """Make the decision that leads to `event`."""
        decision = self._creation if self._payment is None else self._change(self._payment, event, credit)
        if decision.payment is None:
            raise Contradiction("events", f"version {event.version} is {event.kind!r}, and no change leads to it")
        if decision.credit is not None:
            self.credits += 1
            _compare("credits", f"credit {credit.credit_id}", credit, _credit_row(decision.credit))
        self._payment = decision.payment
        self._expected.extend(decision.events)

    def _change(self, payment: IncomingPayment, event: EventRow, credit: CreditRow) -> Decision[Any]:
        now = time_of(event.at)
        if event.kind == EventKind.CREDITED:
            return _credited(payment, event, credit, now)
        if event.kind == EventKind.COMPLETED:
            return lifecycle.complete(payment, now=now)
        if event.kind == EventKind.EXPIRED:
            return lifecycle.expire(payment, now=now)
        raise Contradiction("events", f"version {event.version} is {event.kind!r}, and no change leads to it")

    def finish(self, row: PaymentRow, *, events: int, credits: int) -> None:
        """Compare the payment with its history. `events` and `credits` are the numbers of all its rows."""
        payment = self._payment
        if payment is None:
            raise Contradiction("events", "the payment has no events")
        if self._expected:
            kind, version = self._expected[0].kind.value, self._expected[0].version
            raise Contradiction("events", f"version {version} is missing, which must be {kind!r}")
        # The metadata may have been erased since the history began, and nothing depends on it.
        _compare("payments", "the row", row, _payment_row(payment)._replace(metadata=row.metadata))
        if events != self.version:
            raise Contradiction("events", f"there are {events} events for {self.version} versions")
        # Two events cannot name the same credit, because the totals after them differ.
        if credits != self.credits:
            raise Contradiction("credits", f"there are {credits} credits, and {self.credits} events of credits")


def _creation(row: PaymentRow) -> Decision[IncomingPayment]:
    """Return the decision to create a payment with the terms in `row`."""
    try:
        asset = Asset(row.asset_code, row.asset_scale)
        decision = lifecycle.create(
            id=payment_id(row.id),
            wallet_address=WalletAddress(WalletAddressUrl(row.wallet_address), asset, _AUTH_SERVER),
            client=ClientId(row.client),
            limit=None if row.incoming_amount is None else Amount.parse(row.incoming_amount, asset),
            expires_at=None if row.expires_at is None else time_of(row.expires_at),
            metadata=None if row.metadata is None else MetadataJson(row.metadata),
            now=time_of(row.created_at),
            expiry_s_max=_EXPIRY_S_MAX,
        )
        metadata: object = decision.answer.metadata
    except INVALID as error:
        raise Contradiction("payments", f"its terms are invalid: {error}") from error
    if metadata is not None and not isinstance(metadata, dict):
        raise Contradiction("payments", "metadata is not a JSON object")
    return decision


def _credited(payment: IncomingPayment, event: EventRow, credit: CreditRow, now: datetime) -> Decision[Any]:
    """Return the decision to credit the money of `credit`, which the event names."""
    id, peer = credit_id(event.credit_id), event.peer
    if credit.credit_id is None:
        raise Contradiction("credits", f"credit {id} is missing, which event {event.version} names")
    if (peer is None) == id.startswith(STREAM_CREDITS):
        text = f"version {event.version} must have a peer if, and only if, credit {id} begins with {STREAM_CREDITS}"
        raise Contradiction("events", text)
    amount = Amount.parse(credit.amount, payment.asset)
    if peer is None:
        return lifecycle.credit(payment, None, credit_id=id, amount=amount, now=now)
    return lifecycle.credit_packet(payment, None, credit_id=id, amount=amount, now=now, tolerance=_TOLERANCE, peer=peer)


def _compare(table: str, name: str, found: Row, expected: Row) -> None:
    """Raise `Contradiction` unless `found` has the `expected` columns. Both are rows of the same class."""
    if found != expected:
        wrong = (
            f"{column} is {is_!r}, and must be {must_be!r}"
            for column, is_, must_be in zip(expected._fields, found, expected, strict=True)
            if is_ != must_be
        )
        raise Contradiction(table, f"{name}: {'; '.join(wrong)}")


def _event_row(event: Event) -> EventRow:
    at, received = _micros(event.at), event.received.text
    return EventRow(event.version, event.kind.value, at, received, event.credit_id, event.peer)


def _credit_row(credit: Credit) -> CreditRow:
    amount, received = credit.amount.text, credit.received.text
    return CreditRow(credit.id, amount, received, int(credit.completes), _micros(credit.at))


def _payment_row(payment: IncomingPayment) -> PaymentRow:
    expires_at = _optional_micros(payment.expires_at)
    can_expire = not is_completed(payment) and payment.expiry_announced_at is None
    return PaymentRow(
        id=payment.id,
        version=payment.version,
        received_amount=payment.received.text,
        updated_at=_micros(payment.updated_at),
        wallet_address=payment.wallet_address,
        client=payment.client,
        asset_code=payment.asset.code,
        asset_scale=payment.asset.scale,
        incoming_amount=None if payment.limit is None else payment.limit.text,
        expires_at=expires_at,
        metadata=payment.terms.metadata,
        created_at=_micros(payment.created_at),
        closed_at=_optional_micros(payment.closed_at),
        expiry_announced_at=_optional_micros(payment.expiry_announced_at),
        sweep_at=expires_at if can_expire else None,
    )


def _micros(time: datetime) -> int:
    """Return `time` as it is stored, in microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def _optional_micros(time: datetime | None) -> int | None:
    return None if time is None else _micros(time)


def time_of(stored: int) -> datetime:
    """Return the time that is stored as microseconds since 1970. Raises `TypeError` or `OverflowError`."""
    return _EPOCH + timedelta(microseconds=stored)
