"""The promises that must hold in each state of the exploration, and between a state and the next one.

The rules read the rows of the store, and the answers that clients have. They use none of the library's decisions.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from attrs import frozen

from campaigns.explore.requests import Answer, Complete, Create, HostCredit, Kind, Packet, Request, Setup
from campaigns.explore.world import Broken, State, World
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.feed import DeliveryRecord, Ending, FeedEvent
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, IncomingPayment, PaymentId
from incoming_payments.testing.simulation.fixtures import MARGIN

_ENDS: Final = (EventKind.COMPLETED, EventKind.EXPIRED)


def require(holds: object, text: str, *facts: object) -> None:
    """Raise `Broken` with `text`, which has a place for each of `facts`, unless `holds` is true."""
    if not holds:
        raise Broken(text.format(*facts))


@frozen
class Books:
    """A payment with its credits and its events, as the rows have them."""

    payment: IncomingPayment
    credits: dict[str, Credit]
    events: list[Event]

    @property
    def is_completed(self) -> bool:
        """Whether the payment has its `incomingAmount`, or was closed by its client."""
        limit = self.payment.limit
        reached = limit is not None and self.payment.received.value >= limit.value
        return reached or self.payment.closed_at is not None


def books_of(rows: Any) -> dict[PaymentId, Books]:
    """Return the books of each payment in `rows`."""
    payments = [row for row in rows.values() if isinstance(row, IncomingPayment)]
    found = {payment.id: Books(payment, {}, []) for payment in payments}
    for key, row in rows.items():
        if isinstance(row, Credit):
            require(row.payment_id in found, "the credit {} has no payment", row.id)
            require(key == (row.payment_id, row.id), "the credit {} is stored under the key {}", row.id, key)
            found[row.payment_id].credits[row.id] = row
        elif isinstance(row, Event):
            found[row.payment_id].events.append(row)
    for books in found.values():
        books.events.sort(key=lambda event: event.version)
    return found


def check(world: World, before: State, after: State) -> None:
    """Raise `Broken` if `after` breaks a promise, alone or as the state that follows `before`."""
    found = books_of(after.rows)
    if after.rows is not before.rows:
        _check_rows(world, before, after, found)
    if after.rows is not before.rows or after.answers is not before.answers:
        for request, answers in zip(world.setup.requests, after.answers, strict=True):
            _check_answers(world.setup, request, answers, found)
    _check_deliveries(world, before, after, found)


def _check_rows(world: World, before: State, after: State, found: dict[PaymentId, Books]) -> None:
    earlier = books_of(before.rows)
    require(earlier.keys() <= found.keys(), "a payment has disappeared")
    for id, books in found.items():
        _check_books(world.setup, books)
        if world.setup.has_approval:
            _check_approved(after.rulings, books)
        if id in earlier:
            _check_change(earlier[id], books)
            _check_time(world, after, earlier[id], books)


def check_end(setup: Setup, state: State) -> None:
    """Raise `Broken` unless every client has an answer, and every event was handled if there is a consumer."""
    for request, answers in zip(setup.requests, state.answers, strict=True):
        if isinstance(request, Packet | HostCredit | Complete | Create):
            require(any(answer.is_final for answer in answers), "{} never gets an answer: {}", request.name, answers)
    books = books_of(state.rows)
    for row in state.rows.values():
        if isinstance(row, dict):  # the consumers, which are in one row
            handled = {event.version for events in state.handled for event in events}
            required = {event.version for event in books[setup.id].events}
            require(handled == required, "the consumer handled the events {}, but the store has {}", handled, required)


# --- one payment ---


def _check_books(setup: Setup, books: Books) -> None:
    payment, credits, events = books.payment, books.credits, books.events
    total = sum(credit.amount.value for credit in credits.values())
    require(payment.received.value == total, "the total is {}, but the credits have {}", payment.received.value, total)
    versions = [event.version for event in events]
    require(versions == list(range(1, payment.version + 1)), "the events have the versions {}", versions)
    kinds = [event.kind for event in events]
    require(kinds[0] is EventKind.CREATED and kinds.count(EventKind.CREATED) == 1, "the events are {}", kinds)
    ends = [index for index, kind in enumerate(kinds) if kind in _ENDS]
    require(ends in ([], [len(kinds) - 1]), "an event follows the end of the payment: {}", kinds)
    require((kinds[-1] is EventKind.COMPLETED) == books.is_completed, "completed does not agree with {}", kinds)
    announced = payment.expiry_announced_at is not None
    require((kinds[-1] is EventKind.EXPIRED) == announced, "the announced expiry does not agree with {}", kinds)
    _check_credit_events(books)
    for credit in credits.values():
        _check_credit(setup, books, credit)


def _check_credit_events(books: Books) -> None:
    total = 0
    credited = [event for event in books.events if event.kind is EventKind.CREDITED]
    ids = [event.credit_id for event in credited]
    require(sorted(map(str, ids)) == sorted(books.credits), "the credits and their events differ: {}", ids)
    for event in books.events:
        if event.credit_id is not None:
            total += books.credits[event.credit_id].amount.value
        require(event.received.value == total, "event {} has the total {}", event.version, event.received.value)


def _check_credit(setup: Setup, books: Books, credit: Credit) -> None:
    """Check that one request brought the money of `credit`, once."""
    limit = books.payment.limit
    sources = [each for each in setup.requests if _brought(setup, each, credit)]
    require(sources, "no request brought the credit {} of {}", credit.id, credit.amount.value)
    same = [each for each in books.credits if _suffix(each) == _suffix(credit.id)]
    require(len(same) == 1, "one packet was credited {} times", len(same))
    if isinstance(sources[0], Packet):
        most = None if limit is None else limit.value + max(1, limit.value // 100)
        require(most is None or credit.received.value <= most, "a packet led to the total {}", credit.received.value)


def _check_time(world: World, after: State, old: Books, new: Books) -> None:
    """Check that each new credit came before the payment and its packet expired, by the clock of a process."""
    now = min(world.now(after, process) for process in range(len(after.calls)))
    expires_at = new.payment.expires_at
    for id in new.credits.keys() - old.credits.keys():
        require(expires_at is None or now <= expires_at, "{} was credited after the payment expired", id)
        sources = [each for each in world.setup.requests if _brought(world.setup, each, new.credits[id])]
        for packet in sources:
            in_time = not isinstance(packet, Packet) or now <= packet.expires_at - MARGIN
            require(in_time, "{} was credited too late for the packet {}", id, packet.name)


def _check_approved(rulings: frozenset[tuple[str, bool]], books: Books) -> None:
    for id in books.credits:
        is_packet = id.startswith(STREAM_CREDITS)
        require(not is_packet or (id, True) in rulings, "{} was credited without the approval of the host", id)


def _suffix(credit_id: str) -> str:
    """Return the condition in the credit id of a packet, or the credit id of the host."""
    return credit_id.rpartition(":")[2]


def _brought(setup: Setup, request: Request, credit: Credit) -> bool:
    return request.brought(setup) == (_suffix(credit.id), credit.amount.value)


def _check_change(old: Books, new: Books) -> None:
    """Check that nothing stored has changed or disappeared, and that nothing was added after the end."""
    require(new.events[: len(old.events)] == old.events, "a stored event has changed")
    for id, credit in old.credits.items():
        require(new.credits.get(id) == credit, "the credit {} has changed or disappeared", id)
    if old.is_completed or old.payment.expiry_announced_at is not None:
        require(new == old, "the payment has changed after its end")
    require(new.payment.updated_at >= old.payment.updated_at, "updatedAt has moved backwards")


# --- the answers of clients ---


def _check_answers(setup: Setup, request: Request, answers: Sequence[Answer], found: dict[PaymentId, Books]) -> None:
    if isinstance(request, Create):
        _check_created(request, answers, found)
        return
    books = found[setup.id]
    credits = [credit for credit in books.credits.values() if _brought(setup, request, credit)]
    for answer in answers:
        require(answer.total <= books.payment.received.value, "an answer to {} has a larger total", request.name)
        if answer.kind is Kind.DONE:
            _check_done(request, answer, books, credits)
        elif answer.kind is Kind.REFUSED and setup.is_exact:
            require(not credits, "{} was refused with {}, but it is credited", request.name, answer)


def _check_done(request: Request, answer: Answer, books: Books, credits: Sequence[Credit]) -> None:
    if isinstance(request, Complete):
        require(books.is_completed, "{} was answered, but the payment is open", request.name)
        require(answer.total == books.payment.received.value, "money arrived after the answer to {}", request.name)
    elif isinstance(request, Packet | HostCredit):
        require(len(credits) == 1, "{} was answered with {}, but it has {} credits", request.name, answer, len(credits))
    if isinstance(request, HostCredit):
        expected = (f"credited {credits[0].amount.value}", credits[0].received.value)
        require((answer.text, answer.total) == expected, "{} was answered with {}", request.name, answer)


def _check_created(request: Create, answers: Sequence[Answer], found: dict[PaymentId, Books]) -> None:
    require(len(found) <= 1, "the key of {} has {} payments", request.name, len(found))
    created = {f"created {id}" for id in found}
    for answer in answers:
        if answer.kind is Kind.DONE:
            require(
                created == {answer.text}, "{} was answered with {}, but the store has {}", request.name, answer, created
            )


# --- the feed ---


def _check_deliveries(world: World, before: State, after: State, found: dict[PaymentId, Books]) -> None:
    held = [(each.consumer, each.payment_id) for each in world.held(after)]
    require(len(set(held)) == len(held), "two consumers hold a live lease of one payment")
    require(len(set(after.settled)) == len(after.settled), "a delivery was settled twice")
    for events in after.handled - before.handled:
        _check_handled(before.handled, events, found[events[0].payment_id])
    if after.rows is not before.rows:
        handled = {(events[0].version, events[-1].version) for events in after.handled}
        for row in after.rows.values():
            record = getattr(row, "record", None)
            if isinstance(record, DeliveryRecord) and record.ending is Ending.DELIVERED:
                is_handled = (record.first_version, record.last_version) in handled
                require(is_handled, "the delivery {} has ended, but no consumer handled it", record.id)


def _check_handled(earlier: Collection[Sequence[FeedEvent]], events: Sequence[FeedEvent], books: Books) -> None:
    """Check that `events` are those of the store, and that no event was left out before them."""
    first, last = events[0].version, events[-1].version
    facts = [(event.version, event.kind, event.at, event.received, event.credit_id, event.peer) for event in events]
    stored = [(each.version, each.kind, each.at, each.received, each.credit_id, each.peer) for each in books.events]
    require(facts == stored[first - 1 : last], "a consumer got events that differ from those of the store: {}", facts)
    latest = max((each[-1].version for each in earlier), default=0)
    require(first == latest + 1, "a consumer got the events from {} to {} after the event {}", first, last, latest)
