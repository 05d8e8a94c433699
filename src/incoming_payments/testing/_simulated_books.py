"""The books that a simulation keeps on its own: what each payment has to hold, by the rules as they are written.

Nothing here asks the library's own lifecycle: the contract's section 3 and the tolerance are written down a second
time, in plain integers, so that an error in one is an error between the two.
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

UINT64_MAX: Final = 2**64 - 1  # contract section 2.1, written down once more


class Contradiction(Exception):
    """The service and the books disagree; the text says about what."""


def require(holds: object, text: str) -> None:
    """Raise `Contradiction` unless it `holds`."""
    if not holds:
        raise Contradiction(text)


@frozen
class Verdict:
    """What has to become of an update: refused with `error`, or taken; then `write` notes it, if there is anything.

    `what` names it in the table of what was exercised. `remaining` is what a packet that is too large has to be told.
    """

    what: str
    error: type[IncomingPaymentsError] | None = None
    write: "Callable[[str | None], None] | None" = None
    remaining: int | None = None


@frozen
class Booked:
    """A credit as it has to be found again."""

    credit_id: str
    amount: int
    asset: Asset
    received: int
    completes: bool
    at: datetime


@define(slots=True, eq=False)
class Book:
    """One payment. `credits` are by what they are for: a packet's condition, a host's own name for the money."""

    id: PaymentId
    asset: Asset
    limit: int | None
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    received: int = 0
    closed_at: datetime | None = None
    announced_at: datetime | None = None
    credits: dict[Hashable, Booked] = field(factory=dict)
    events: list[tuple[str, datetime, int, str | None]] = field(factory=list)
    names: set[str] = field(factory=set)  # the credit ids that are taken
    told: int = 0  # the largest total that anybody was told
    told_completed: bool = False

    def __attrs_post_init__(self) -> None:
        self.events.append(("created", self.created_at, 0, None))

    def state(self, now: datetime) -> str:
        """Contract section 3, by the clock that decides."""
        if self.completed:
            return "completed"
        if self.expires_at is not None and (self.announced_at is not None or now > self.expires_at):
            return "expired"
        return "processing" if self.received else "pending"

    @property
    def completed(self) -> bool:
        """Full, or closed by its client."""
        return self.closed_at is not None or (self.limit is not None and self.received >= self.limit)

    def judge_credit(self, name: Hashable, amount: int, asset: Asset, now: datetime) -> Verdict:
        """What has to become of money that the host books: all of it, while the payment is open."""
        refused = self._refused("credit", name, amount, asset, now)
        if refused is not None:
            return refused
        if self.received + amount > UINT64_MAX:
            return Verdict("credit refused: overflow", AmountOverflow)
        return self._taken("credit", name, amount, now)

    def judge_packet(self, name: Hashable, amount: int, asset: Asset, now: datetime, *, in_time: bool) -> Verdict:
        """What has to become of the money of a packet: as a credit, but not too much of it, nor too late."""
        if name not in self.credits and not in_time:
            return Verdict("packet refused: waited until it was too late", PacketExpired)
        if amount == 0:
            return self._judge_nothing(name, asset)
        refused = self._refused("packet", name, amount, asset, now)
        if refused is not None:
            return refused
        if self.limit is None:
            most, open_for = UINT64_MAX, UINT64_MAX
        else:
            most, open_for = min(self.limit + max(1, self.limit // 100), UINT64_MAX), self.limit
        if self.received + amount > most:
            return Verdict("packet refused: too large", AmountTooLarge, remaining=open_for - self.received)
        return self._taken("packet", name, amount, now)

    def _judge_nothing(self, name: Hashable, asset: Asset) -> Verdict:
        if name in self.credits:
            return Verdict("packet of nothing refused: booked before with an amount", CreditIdReused)
        if asset != self.asset:
            return Verdict("packet of nothing refused: another asset", AssetMismatch)
        return Verdict("packet of nothing")

    def judge_complete(self, now: datetime) -> Verdict:
        """What has to become of the wish to close it."""
        state = self.state(now)
        if state == "completed":
            return Verdict("complete: completed already")
        if state == "expired":
            return Verdict("complete refused: expired", PaymentExpired)

        def write(_: str | None) -> None:
            self.closed_at = self.updated_at = max(now, self.updated_at)
            self.events.append(("completed", self.updated_at, self.received, None))

        return Verdict(f"complete: {state} -> completed", write=write)

    def judge_expire(self, now: datetime) -> Verdict:
        """What a sweep has to make of it."""
        if self.completed or self.announced_at is not None or self.expires_at is None or now <= self.expires_at:
            return Verdict("expire: nothing to announce")
        state = "processing" if self.received else "pending"

        def write(_: str | None) -> None:
            self.announced_at = now
            self.events.append(("expired", max(now, self.updated_at), self.received, None))

        return Verdict(f"expire: {state} -> expired", write=write)

    def _refused(self, how: str, name: Hashable, amount: int, asset: Asset, now: datetime) -> Verdict | None:
        earlier = self.credits.get(name)
        if earlier is not None:
            if (earlier.amount, earlier.asset) != (amount, asset):
                return Verdict(f"{how} refused: booked before with another amount", CreditIdReused)
            return Verdict(f"{how}: booked before")
        if asset != self.asset:
            return Verdict(f"{how} refused: another asset", AssetMismatch)
        state = self.state(now)
        if state == "completed":
            return Verdict(f"{how} refused: completed", PaymentCompleted)
        if state == "expired":
            return Verdict(f"{how} refused: expired", PaymentExpired)
        return None

    def _taken(self, how: str, name: Hashable, amount: int, now: datetime) -> Verdict:
        total = self.received + amount
        completes = self.limit is not None and total >= self.limit

        def write(credit_id: str | None) -> None:
            if credit_id is None or credit_id in self.names:
                raise Contradiction(f"money is booked for another thing under the credit id {credit_id}")
            self.names.add(credit_id)
            self.received = total
            self.updated_at = max(now, self.updated_at)
            self.credits[name] = Booked(credit_id, amount, self.asset, total, completes, self.updated_at)
            self.events.append(("credited", self.updated_at, total, credit_id))
            if completes:
                self.events.append(("completed", self.updated_at, total, None))

        before = "processing" if self.received else "pending"
        return Verdict(f"{how}: {before} -> {'completed' if completes else 'processing'}", write=write)

    # --- what the service says, compared ---------------------------------------------------------------

    def compare(self, payment: IncomingPayment) -> None:
        """Raise `Contradiction` unless `payment` is as the books have it."""
        found = (
            payment.received.value,
            payment.version,
            payment.updated_at,
            payment.closed_at,
            payment.expiry_announced_at,
        )
        expected = (self.received, len(self.events), self.updated_at, self.closed_at, self.announced_at)
        if found != expected or payment.id != self.id or payment.expires_at != self.expires_at:
            raise Contradiction(f"the payment has to be {_text(expected)} and is {_text(found)}")

    def compare_terms(self, payment: IncomingPayment) -> None:
        """Raise `Contradiction` unless `payment` is what its client asked for."""
        limit = None if payment.limit is None else payment.limit.value
        found = (payment.id, payment.asset, limit, payment.expires_at, payment.created_at)
        expected = (self.id, self.asset, self.limit, self.expires_at, self.created_at)
        if found != expected:
            raise Contradiction(f"a payment {expected} was asked for and {found} was created")

    def compare_events(self, events: Sequence[Event]) -> None:
        """Raise `Contradiction` unless `events` are those of the books, and sound in themselves."""
        found = [(str(event.kind), event.at, event.received.value, event.credit_id) for event in events]
        brought = [event.credit_id for event in events if event.peer is not None]
        if brought != [event.credit_id for event in events if (event.credit_id or "").startswith(STREAM_CREDITS)]:
            raise Contradiction(f"a peer is named for packets and for nothing else, and it is for {brought}")
        if found != self.events:
            raise Contradiction(f"the events have to be {self.events} and are {found}")
        _check_history(self, events)

    def compare_credit(self, name: Hashable, credit: Credit | None) -> None:
        """Raise `Contradiction` unless `credit` is what was booked for `name`."""
        booked = self.credits.get(name)
        found = None
        if credit is not None:
            found = Booked(
                credit.id, credit.amount.value, credit.amount.asset, credit.received.value, credit.completes, credit.at
            )
        if found != booked:
            raise Contradiction(f"the credit has to be {booked} and is {found}")


def _check_history(book: Book, events: Sequence[Event]) -> None:
    """What holds of the events of any payment, whatever has happened."""
    kinds = [str(event.kind) for event in events]
    ends = [index for index, kind in enumerate(kinds) if kind in {"completed", "expired"}]
    credited = [event.credit_id for event in events if event.kind == "credited"]
    total = sum(booked.amount for booked in book.credits.values())
    require([event.version for event in events] == list(range(1, len(events) + 1)), "events are counted without gaps")
    require(kinds.index("created") == 0 and kinds.count("created") == 1, "a payment is created once, at first")
    require(ends in ([], [len(kinds) - 1]), "a payment ends once, with its last event")
    require((kinds[-1] == "completed") == book.completed, "completed too early, or not at all")
    require(len(set(credited)) == len(credited), "one credit id has two events")
    require(events[-1].received.value == total, "receivedAmount is the sum of the credits")


def _text(row: tuple[object, ...]) -> str:
    names = ("received", "version", "updatedAt", "closed", "announced")
    return ", ".join(f"{name} {value}" for name, value in zip(names, row, strict=True))
