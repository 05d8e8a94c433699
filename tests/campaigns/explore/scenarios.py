"""The scenarios of the exploration. Each has a payment of 200 minor units, and its own requests and faults."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from campaigns.explore.requests import Complete, Consume, Create, HostCredit, Packet, Setup, Subject, Sweep
from incoming_payments.domain.feed import Consumer, Start, consumer_name
from incoming_payments.domain.payment import PaymentId
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.simulation.fixtures import WALLET

LEDGER: Final = consumer_name("ledger")
_SKEW: Final = (timedelta(0), timedelta(seconds=-12))  # the second clock is one moment late
_LIMIT: Final = 200
_ID: Final = PaymentId("019b7a0c-fe00-7000-8000-000000000001")


def _after(seconds: float) -> Any:
    return NOW + timedelta(seconds=seconds)


_OPEN, _EXPIRED, _LATE = _after(1), _after(13), _after(40)
_PACKET: Final = partial(Packet, expires_at=_after(30))  # the payment expires earlier, after 10 seconds


def _setup(
    name: str, subject: Subject | None, *requests: Any, expires: bool, feed: bool = False, **options: Any
) -> Setup:
    created = a_creation(id=_ID, limit=_LIMIT, expires_in_s=10 if expires else None, wallet_address=WALLET)

    def prepare(store: MemoryStore) -> None:
        if feed:
            store.feed.register(Consumer(name=LEDGER), Start.BEGINNING, NOW)
        store.insert(created)

    return Setup(
        name=name,
        requests=requests,
        id=created.answer.id,
        wallet=WALLET,
        limit=_LIMIT,
        subject=subject or Subject(),
        **{"prepare": prepare, **options},
    )


def packets(subject: Subject | None = None, *, large: bool = False) -> Setup:
    """Two packets that do not both fit, with copies of the first one, also with a changed amount."""
    return _setup(
        "packets",
        subject,
        _PACKET(name="first", amount=100, sequence=1, is_duplicated=True),
        _PACKET(name="second", amount=150, sequence=2, attempts=2 if large else 1),
        _PACKET(name="changed", amount=101, sequence=1, attempts=1),
        *([Complete(name="complete", attempts=1)] if large else []),
        expires=False,
        moments=(_OPEN, _LATE),
        crashes=2 if large else 1,
        failures=1,
    )


def expiry(subject: Subject | None = None, *, large: bool = False) -> Setup:
    """A packet, a credit, a completion and a sweep around the expiry of the payment."""
    return _setup(
        "expiry",
        subject,
        _PACKET(name="packet", amount=100),
        HostCredit(name="wire", amount=100, credit_id="wire-1", attempts=2 if large else 1),
        Complete(name="complete", attempts=2 if large else 1),
        Sweep(name="sweep", attempts=2 if large else 1),
        expires=True,
        moments=(_OPEN, _EXPIRED),
        crashes=1,
        failures=1 if large else 0,
    )


def clocks(subject: Subject | None = None, *, large: bool = False) -> Setup:
    """The same requests in two processes. Their clocks differ."""
    return _setup(
        "clocks",
        subject,
        _PACKET(name="packet", amount=100, attempts=2 if large else 1),
        HostCredit(name="wire", amount=100, credit_id="wire-1", attempts=2 if large else 1),
        Complete(name="complete", attempts=1),
        Sweep(name="sweep", attempts=1),
        expires=True,
        moments=(_OPEN, _EXPIRED, _LATE) if large else (_OPEN, _EXPIRED),
        offsets=_SKEW,
        crashes=1,
    )


def races(subject: Subject | None = None, *, large: bool = False) -> Setup:
    """A packet, a credit and a completion in three processes, while time stands still."""
    return _setup(
        "races",
        subject,
        _PACKET(name="packet", amount=100, attempts=3 if large else 2),
        HostCredit(name="wire", amount=100, credit_id="wire-1", is_duplicated=True, attempts=3 if large else 2),
        Complete(name="complete", attempts=2),
        expires=False,
        moments=(_OPEN,),
        offsets=(timedelta(0),) * 3,
        crashes=2 if large else 1,
        failures=2 if large else 1,
    )


def approvals(subject: Subject | None = None, *, large: bool = False) -> Setup:
    """Packets that need the approval of the host, which may refuse."""
    return _setup(
        "approvals",
        subject,
        _PACKET(name="first", amount=100, sequence=1, is_duplicated=large),
        _PACKET(name="second", amount=100, sequence=2, attempts=1),
        HostCredit(name="wire", amount=100, credit_id="wire-1", attempts=1),
        *([Complete(name="complete", attempts=1)] if large else []),
        expires=False,
        moments=(_OPEN, _LATE),
        crashes=1,
        has_approval=True,
    )


def feed(subject: Subject | None = None, *, large: bool = False) -> Setup:
    """Two processes that consume the events of a credit, and of a completion."""
    return _setup(
        "feed",
        subject,
        HostCredit(name="wire", amount=100, credit_id="wire-1", attempts=1),
        *([Complete(name="complete", attempts=1)] if large else []),
        Consume(name="consume", consumer=LEDGER, attempts=3 if large else 2, is_duplicated=True, repeats_at_end=8),
        expires=False,
        feed=True,
        moments=(_OPEN, _EXPIRED),
        crashes=1,
    )


def creations(subject: Subject | None = None, *, large: bool = False) -> Setup:
    """Concurrent creations under one idempotency key."""
    return _setup(
        "creations",
        subject,
        Create(name="create", key="order-7", attempts=4 if large else 3, is_duplicated=True),
        expires=False,
        prepare=lambda _: None,
        moments=(_OPEN, _EXPIRED) if large else (_OPEN,),
        crashes=2 if large else 1,
        failures=2 if large else 1,
    )


SCENARIOS: Final[dict[str, Callable[..., Setup]]] = {
    scenario.__name__: scenario for scenario in (packets, expiry, clocks, races, approvals, feed, creations)
}
