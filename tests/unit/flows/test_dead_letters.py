"""The dead letters for an operator, by the sync and the async service."""

import asyncio
import inspect
from typing import Any

import pytest

from incoming_payments import Amount, DeliveryNotFound, InvalidValue, PaymentId, PortMissing, Start
from incoming_payments.domain.feed import Failed
from kits.relay_kit import LEDGER, NAME, Host, later
from kits.service_kit import USD

both = pytest.mark.parametrize("way", ["sync", "async"])


class Operator:
    """An operator, who calls the sync or the async service of a host with dead letters."""

    def __init__(self, way: str) -> None:
        self.host = Host(way)
        self.host.feed.register(LEDGER, Start.NOW, self.host.clock())
        self.way = way

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of a method of the service."""
        service = self.host.service if self.way == "sync" else self.host.async_service
        answer = getattr(service, name)(*args, **kwargs)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

    def fail(self) -> PaymentId:
        """Make dead letters of all deliveries of a new payment."""
        id = self.host.create()
        self.host.credit(id, 40)
        self.host.credit(id, 60)
        self.host.complete(id)
        while deliveries := self.host.feed.claim(NAME, lambda _: b"", now=later(0), until=later(9), limit=1):
            result = Failed(error="no", retry_at=later(0), is_last=True)
            assert self.host.feed.settle(deliveries[0], result, later(0))
        return id


@both
def test_dead_letters_are_listed_and_read(way: str) -> None:
    """Each event has the amount of its credit, and the total after it."""
    operator = Operator(way)
    id = operator.fail()
    created, credited, completed = operator.call("dead_letters", "ledger")
    assert [one.id for one in (created, credited, completed)] == [f"{id}_1_1", f"{id}_2_3", f"{id}_4_4"]
    events = operator.call("read_delivery", credited)
    assert [(event.version, event.amount, event.received) for event in events] == [
        (2, Amount(40, USD), Amount(40, USD)),
        (3, Amount(60, USD), Amount(100, USD)),
    ]
    assert [event.credit_id for event in events] == ["wire-1", "wire-2"]
    assert {event.wallet_address for event in events} == {"https://bank.example/alice"}
    assert [event.amount for event in operator.call("read_delivery", completed)] == [None]
    assert [event.amount for event in operator.call("read_delivery", created)] == [None]


@both
def test_list_has_pages(way: str) -> None:
    """`after` is the last dead letter of the page before."""
    operator = Operator(way)
    operator.fail()
    first = operator.call("dead_letters", "ledger", limit=2)
    rest = operator.call("dead_letters", "ledger", after=first[-1])
    assert [len(page) for page in (first, rest)] == [2, 1]
    assert first[-1].first_version < rest[0].first_version


@both
def test_dead_letter_is_sent_again(way: str) -> None:
    """A second call finds no dead letter."""
    operator = Operator(way)
    operator.fail()
    dead = operator.call("dead_letters", "ledger")[0]
    assert operator.call("redeliver", dead) is None
    [again] = operator.host.feed.claim(NAME, lambda _: b"", now=later(0), until=later(9), limit=9)
    assert (again.id, again.attempt) == (dead.id, 1)
    with pytest.raises(DeliveryNotFound):
        operator.call("redeliver", dead)


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "text"),
    [
        ("dead_letters", ("Ledger",), {}, "the name of a consumer must have"),
        ("dead_letters", ("ledger",), {"limit": 0}, "limit must be an integer from 1 to 1000"),
        ("dead_letters", ("ledger",), {"limit": True}, "limit must be an integer from 1 to 1000"),
        ("dead_letters", ("ledger",), {"after": "id"}, "after must be a DeliveryRecord, such as those of dead_letters"),
        ("read_delivery", ("id",), {}, "delivery must be a DeliveryRecord, such as those of dead_letters, not str"),
        ("redeliver", ("id",), {}, "delivery must be a DeliveryRecord, such as those of dead_letters, not str"),
    ],
)
def test_wrong_argument_is_named(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], text: str) -> None:
    """The error says what to pass."""
    with pytest.raises(InvalidValue) as caught:
        Operator("sync").call(name, *args, **kwargs)
    assert caught.value.description.startswith(text)


def test_service_without_a_feed_names_the_port() -> None:
    """The host learns which argument is missing."""
    operator = Operator("sync")
    operator.host.feed = None
    with pytest.raises(PortMissing) as caught:
        operator.call("dead_letters", "ledger")
    assert caught.value.description == "this call needs feed.dead_letters: pass feed=... to Ports"
