"""The consumers of the events for an operator, by the sync and the async service."""

import asyncio
import inspect
from datetime import datetime
from typing import Any

import pytest

from incoming_payments import ConsumerNotFound, InvalidValue, PortMissing, Start
from incoming_payments.domain.feed import ConsumerName
from incoming_payments.stores.memory_feed import MemoryFeed
from kits.relay_kit import LEDGER, NAME, Host, later

both = pytest.mark.parametrize("way", ["sync", "async"])


class InBatches:
    """A feed that skips and removes in more than one step."""

    def __init__(self, feed: MemoryFeed) -> None:
        self.feed = feed
        self.began: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.feed, name)

    def skip(self, name: ConsumerName, now: datetime) -> bool:
        """Skip in the second step."""
        return not self._is_first("skip") and self.feed.skip(name, now)

    def remove(self, name: ConsumerName) -> bool:
        """Remove in the second step."""
        return not self._is_first("remove") and self.feed.remove(name)

    def _is_first(self, step: str) -> bool:
        is_first = step not in self.began
        self.began.add(step)
        return is_first


class Operator:
    """An operator, who calls the sync or the async service of a host with a consumer and a waiting delivery."""

    def __init__(self, way: str) -> None:
        self.host = Host(way)
        self.host.feed = InBatches(self.host.feed)
        self.host.feed.register(LEDGER, Start.NOW, self.host.clock())
        self.host.create()
        self.way = way

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of a method of the service."""
        service = self.host.service if self.way == "sync" else self.host.async_service
        answer = getattr(service, name)(*args, **kwargs)
        return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

    def claimed(self) -> int:
        """Return the number of deliveries that a relay would get."""
        return len(self.host.feed.claim(NAME, lambda _: b"", now=later(0), until=later(9), limit=9))


@both
def test_disabled_consumer_continues_where_it_was(way: str) -> None:
    """A disabled consumer gets no deliveries, and loses none."""
    operator = Operator(way)
    assert operator.call("disable", "ledger") is None
    [state] = operator.call("consumers")
    assert (state.consumer, state.health.disabled_at) == (LEDGER, later(0))
    assert state.oldest_due_at is not None
    assert operator.claimed() == 0
    assert operator.call("enable", "ledger") is None
    assert operator.call("consumers")[0].health.disabled_at is None
    assert operator.claimed() == 1


@both
def test_consumer_skips_what_waits(way: str) -> None:
    """All batches are dropped before the consumer is enabled."""
    operator = Operator(way)
    operator.call("disable", "ledger")
    operator.call("enable", "ledger", skip=True)
    [state] = operator.call("consumers")
    assert (state.health.disabled_at, state.oldest_due_at) == (None, None)
    operator.host.create()
    assert operator.claimed() == 1


@both
def test_consumer_is_removed(way: str) -> None:
    """All batches are removed."""
    operator = Operator(way)
    assert operator.call("remove_consumer", "ledger") is None
    assert operator.call("consumers") == []
    with pytest.raises(ConsumerNotFound):
        operator.call("remove_consumer", "ledger")


@pytest.mark.parametrize("name", ["enable", "disable", "remove_consumer"])
def test_wrong_name_is_refused(name: str) -> None:
    """The error says which names a consumer can have."""
    with pytest.raises(InvalidValue, match="the name of a consumer must have"):
        Operator("sync").call(name, "Ledger")


@both
@pytest.mark.parametrize("name", ["enable", "remove_consumer"])
def test_methods_of_both_services_have_the_same_text(way: str, name: str) -> None:
    """`help` of either service shows the text."""
    host = Host(way)
    assert getattr(host.async_service, name).__doc__ == getattr(host.service, name).__doc__


def test_service_without_a_feed_names_the_port() -> None:
    """The host learns which argument is missing."""
    operator = Operator("sync")
    operator.host.feed = None
    with pytest.raises(PortMissing) as caught:
        operator.call("consumers")
    assert caught.value.description == "this call needs feed.consumers: pass feed=... to Ports"
