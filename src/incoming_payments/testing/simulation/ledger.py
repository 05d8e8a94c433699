"""The expected state of each payment, which follows only from the rules of the specification.

This module does not use the library's own lifecycle. It implements spec section 3 and the tolerance a second time, with
plain integers. So an error in one of the two implementations shows as a difference.
"""

from collections.abc import Callable, Hashable, Sequence
from datetime import datetime
from typing import Final

from attrs import define, field, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.events import Event
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, IncomingPayment, PaymentId
from incoming_payments.errors import (
    AmountOverflow,
    AmountTooLarge,
    AssetMismatch,
    CreditIdReused,
    IncomingPaymentsError,
    PacketExpired,
    PaymentCompleted,
    PaymentExpired,
)

UINT64_MAX: Final = 2**64 - 1  # the limit of spec section 2.1, written again to check the value in `limits`


class Mismatch(Exception):
    """The service and the ledger differ. The text names the difference."""


def require(holds: object, text: str) -> None:
    """Raise `Mismatch` with `text` unless `holds` is true."""
    if not holds:
        raise Mismatch(text)


@frozen
class Expected:
    """The required result of an update: the refusal `error`, or success.

    `kind` is the key under which the report counts the result. `record` records the change in the ledger, or is `None`
    if the update changes nothing. `remaining` is the amount that a refused packet must report as acceptable. `total` is
    the total received after a credit.
    """

    kind: str
    error: type[IncomingPaymentsError] | None = None
    record: "Callable[[str | None], None] | None" = None
    remaining: int | None = None
    total: int | None = None


@frozen
class LedgerEntry:
    """One credit, as the store must return it."""

    credit_id: str
    amount: int
    asset: Asset
    received: int
    completes: bool
    at: datetime


@define(slots=True, eq=False)
class Ledger:
    """The expected state of one payment.

    The keys of `credits` are conditions of packets, and credit ids that the host chose.
    """

    id: PaymentId
    asset: Asset
    limit: int | None
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    received: int = 0
    closed_at: datetime | None = None
    announced_at: datetime | None = None
    credits: dict[Hashable, LedgerEntry] = field(factory=dict)
    events: list[tuple[str, datetime, int, str | None]] = field(factory=list)
    credit_ids: set[str] = field(factory=set)
    answered_total: int = 0  # the largest total in any answer so far
    answered_completed: bool = False

    def __attrs_post_init__(self) -> None:
        self.events.append(("created", self.created_at, 0, None))

    def state(self, now: datetime) -> str:
        """Return the state at `now` (spec section 3)."""
        if self.completed:
            return "completed"
        if self.expires_at is not None and (self.announced_at is not None or now > self.expires_at):
            return "expired"
        return "processing" if self.received else "pending"

    @property
    def completed(self) -> bool:
        """Return whether the payment has received its `incomingAmount`, or was closed by its client."""
        return self.closed_at is not None or (self.limit is not None and self.received >= self.limit)

    # --- the required result of an update --------------------------------------------------------------

    def expect_credit(self, key: Hashable, amount: int, asset: Asset, now: datetime) -> Expected:
        """Return the required result of a credit by the host. An open payment accepts any amount."""
        known = self._duplicate_or_refused("credit", key, amount, asset, now)
        if known is not None:
            return known
        if self.received + amount > UINT64_MAX:
            return Expected("credit refused: overflow", AmountOverflow)
        return self._accepted("credit", key, amount, now)

    def expect_packet(self, key: Hashable, amount: int, asset: Asset, now: datetime, *, in_time: bool) -> Expected:
        """Return the required result of a packet, which differs from a credit by limits on the amount and the time."""
        if key not in self.credits and not in_time:
            return Expected("packet refused: expired while waiting", PacketExpired)
        if amount == 0:
            return self._expect_zero_amount(key, asset)
        known = self._duplicate_or_refused("packet", key, amount, asset, now)
        if known is not None:
            return known
        if self.limit is None:
            most, open_for = UINT64_MAX, UINT64_MAX
        else:
            most, open_for = min(self.limit + max(1, self.limit // 100), UINT64_MAX), self.limit
        if self.received + amount > most:
            return Expected("packet refused: too large", AmountTooLarge, remaining=open_for - self.received)
        return self._accepted("packet", key, amount, now)

    def _expect_zero_amount(self, key: Hashable, asset: Asset) -> Expected:
        if key in self.credits:
            return Expected("packet of amount 0 refused: duplicate with another amount", CreditIdReused)
        if asset != self.asset:
            return Expected("packet of amount 0 refused: wrong asset", AssetMismatch)
        return Expected("packet of amount 0")

    def expect_complete(self, now: datetime) -> Expected:
        """Return the required result of a client's request to complete the payment."""
        state = self.state(now)
        if state == "completed":
            return Expected("complete: already completed")
        if state == "expired":
            return Expected("complete refused: expired", PaymentExpired)

        def record(_: str | None) -> None:
            self.closed_at = self.updated_at = max(now, self.updated_at)
            self.events.append(("completed", self.updated_at, self.received, None))

        return Expected(f"complete: {state} -> completed", record=record)

    def expect_expire(self, now: datetime) -> Expected:
        """Return the required result of a sweep that reaches this payment."""
        if self.completed or self.announced_at is not None or self.expires_at is None or now <= self.expires_at:
            return Expected("expire: nothing to announce")
        state = "processing" if self.received else "pending"

        def record(_: str | None) -> None:
            self.announced_at = now
            self.events.append(("expired", max(now, self.updated_at), self.received, None))

        return Expected(f"expire: {state} -> expired", record=record)

    def _duplicate_or_refused(
        self, source: str, key: Hashable, amount: int, asset: Asset, now: datetime
    ) -> Expected | None:
        """Return the required result if `key` is a duplicate or the payment refuses the money, or else `None`."""
        earlier = self.credits.get(key)
        if earlier is not None:
            if (earlier.amount, earlier.asset) != (amount, asset):
                return Expected(f"{source} refused: duplicate with another amount", CreditIdReused)
            return Expected(f"{source}: duplicate")
        if asset != self.asset:
            return Expected(f"{source} refused: wrong asset", AssetMismatch)
        state = self.state(now)
        if state == "completed":
            return Expected(f"{source} refused: completed", PaymentCompleted)
        if state == "expired":
            return Expected(f"{source} refused: expired", PaymentExpired)
        return None

    def _accepted(self, source: str, key: Hashable, amount: int, now: datetime) -> Expected:
        total = self.received + amount
        completes = self.limit is not None and total >= self.limit

        def record(credit_id: str | None) -> None:
            if credit_id is None or credit_id in self.credit_ids:
                raise Mismatch(f"a new credit has the credit id {credit_id}, which is missing or already used")
            self.credit_ids.add(credit_id)
            self.received = total
            self.updated_at = max(now, self.updated_at)
            self.credits[key] = LedgerEntry(credit_id, amount, self.asset, total, completes, self.updated_at)
            self.events.append(("credited", self.updated_at, total, credit_id))
            if completes:
                self.events.append(("completed", self.updated_at, total, None))

        before = "processing" if self.received else "pending"
        kind = f"{source}: {before} -> {'completed' if completes else 'processing'}"
        return Expected(kind, record=record, total=total)

    # --- comparison with the service -------------------------------------------------------------------

    def compare(self, payment: IncomingPayment) -> None:
        """Raise `Mismatch` unless `payment` has the expected state."""
        found = (
            payment.received.value,
            payment.version,
            payment.updated_at,
            payment.closed_at,
            payment.expiry_announced_at,
        )
        expected = (self.received, len(self.events), self.updated_at, self.closed_at, self.announced_at)
        if found != expected or payment.id != self.id or payment.expires_at != self.expires_at:
            raise Mismatch(f"the payment {payment.id} should have {_text(expected)} but has {_text(found)}")

    def compare_terms(self, payment: IncomingPayment) -> None:
        """Raise `Mismatch` unless `payment` has the terms that its client requested."""
        limit = None if payment.limit is None else payment.limit.value
        found = (payment.id, payment.asset, limit, payment.expires_at, payment.created_at)
        expected = (self.id, self.asset, self.limit, self.expires_at, self.created_at)
        if found != expected:
            raise Mismatch(f"the client requested a payment {expected}, but the store has {found}")

    def compare_events(self, events: Sequence[Event]) -> None:
        """Raise `Mismatch` unless `events` are the expected events and form a valid history."""
        found = [(str(event.kind), event.at, event.received.value, event.credit_id) for event in events]
        with_peer = [event.credit_id for event in events if event.peer is not None]
        if with_peer != [event.credit_id for event in events if (event.credit_id or "").startswith(STREAM_CREDITS)]:
            raise Mismatch(f"exactly the events of packets must name a peer, but these events name a peer: {with_peer}")
        if found != self.events:
            raise Mismatch(f"the events should be {self.events} but are {found}")
        _check_history(self, events)

    def compare_credit(self, key: Hashable, credit: Credit | None) -> None:
        """Raise `Mismatch` unless `credit` is the credit that was recorded under `key`."""
        expected = self.credits.get(key)
        found = None
        if credit is not None:
            found = LedgerEntry(
                credit.id, credit.amount.value, credit.amount.asset, credit.received.value, credit.completes, credit.at
            )
        if found != expected:
            raise Mismatch(f"the credit should be {expected} but is {found}")


def _check_history(ledger: Ledger, events: Sequence[Event]) -> None:
    """Check the rules for the events of every payment."""
    kinds = [str(event.kind) for event in events]
    ends = [index for index, kind in enumerate(kinds) if kind in {"completed", "expired"}]
    credited = [event.credit_id for event in events if event.kind == "credited"]
    total = sum(entry.amount for entry in ledger.credits.values())
    require([event.version for event in events] == list(range(1, len(events) + 1)), "event versions have a gap")
    require(
        kinds.index("created") == 0 and kinds.count("created") == 1,
        "the first event, and no other event, must be `created`",
    )
    require(ends in ([], [len(kinds) - 1]), "only the last event may be `completed` or `expired`")
    require((kinds[-1] == "completed") == ledger.completed, "the `completed` event is missing or too early")
    require(len(set(credited)) == len(credited), "two events have the same credit id")
    require(events[-1].received.value == total, "receivedAmount is not the sum of the credits")


def _text(row: tuple[object, ...]) -> str:
    names = ("received", "version", "updatedAt", "closed", "announced")
    return ", ".join(f"{name} {value}" for name, value in zip(names, row, strict=True))
