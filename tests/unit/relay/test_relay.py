"""The relay in threads and in an event loop: order, retries, dead letters, stopping, and trouble of the feed."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from incoming_payments import (
    Acknowledged,
    ConfigurationError,
    Consumer,
    ConsumerNotFound,
    Delivery,
    DeliveryAttempted,
    Ending,
    HandlerGone,
    RetryLater,
    RetryPolicy,
    Start,
    StoreUnavailable,
)
from incoming_payments.domain.feed import Delivered, Released
from incoming_payments.relay import RelaySettings, _core
from kits.relay_kit import LEDGER, NAME, PATIENCE_S, WAYS, Altered, Host, eventually, later

each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pause after trouble, which is real time."""
    monkeypatch.setattr(_core, "RELAY_TROUBLE_S_MIN", 0.01)


@pytest.fixture
def gate() -> Any:
    """Yield an event for which handlers wait. It is set at the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


def failing(*errors: BaseException) -> Callable[[Delivery], None]:
    """Return a handler that raises `errors` one after the other, and then succeeds."""
    left = list(errors)

    def answer(_: Delivery) -> None:
        if left:
            raise left.pop(0)

    return answer


def events_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the names of the log events."""
    return [record.__dict__["event"] for record in caplog.records if "event" in record.__dict__]


# --- deliveries --------------------------------------------------------------------------------------


@each_way
def test_events_of_a_payment_arrive_in_order(way: str) -> None:
    """Credits that wait together are one delivery, which has a stable id."""
    host = Host(way)
    with host.relaying():
        id = host.create()
        eventually(lambda: len(host.handled) == 1)
    host.credit(id, 40)
    host.credit(id, 60)
    host.complete(id)
    with host.relaying():
        eventually(lambda: [record.ending for record in host.records(id)] == [Ending.DELIVERED] * 3)
    assert host.payloads == [["created 1"], ["credited 2", "credited 3"], ["completed 4"]]
    assert [one.id for one in host.handled] == [f"{id}_1_1", f"{id}_2_3", f"{id}_4_4"]
    assert [one.payload for one in host.handled] == [b""] * 3
    eventually(lambda: len(host.recorder.observations) == 3)
    delivered = DeliveryAttempted(consumer="ledger", outcome="delivered", duration_s=0.0)
    assert host.recorder.take() == [delivered] * 3


@each_way
def test_payload_is_rendered_once(way: str) -> None:
    """A retry gets the bytes of the first attempt."""
    rendered = []

    def render(events: Any) -> bytes:
        rendered.append(events)
        return f"{len(rendered)}".encode()

    host = Host(way, render=render)
    host.answer = failing(RuntimeError("no"))
    with host.relaying():
        host.create()
        eventually(lambda: len(host.recorder.observations) == 1)
        host.clock.advance(5)
        eventually(lambda: len(host.recorder.observations) == 2)
    assert [one.payload for one in host.handled] == [b"1", b"1"]


@each_way
def test_payments_do_not_wait_for_each_other(way: str, gate: threading.Event) -> None:
    """A handler that is slow for one payment does not hold back another payment."""
    host = Host(way)
    first = host.create()
    host.answer = lambda delivery: delivery.payment_id == first and gate.wait(PATIENCE_S)
    host.options["start"] = Start.BEGINNING
    with host.relaying():
        eventually(lambda: host.handled)
        host.credit(first)
        second = host.create()
        eventually(lambda: len(host.handled) == 2)
        assert host.handled[1].payment_id == second
        gate.set()
        eventually(lambda: len(host.records(first)) == 2)


@each_way
def test_handler_may_acknowledge_its_delivery(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """The relay then stores no result, and reports no lost lease."""
    host = Host(way)

    def acknowledge(delivery: Delivery) -> Acknowledged:
        assert host.feed.settle(delivery, Delivered(), host.clock())
        return Acknowledged()

    host.answer = acknowledge
    with host.relaying():
        id = host.create()
        eventually(lambda: host.recorder.observations)
    assert [record.ending for record in host.records(id)] == [Ending.DELIVERED]
    assert host.recorder.take() == [DeliveryAttempted(consumer="ledger", outcome="delivered", duration_s=0.0)]
    assert events_of(caplog) == []


@each_way
def test_number_of_attempts_at_the_same_time_is_limited(way: str, gate: threading.Event) -> None:
    """Further deliveries wait for a free slot."""
    host = Host(way, concurrency=2)
    host.answer = lambda _: gate.wait(PATIENCE_S)
    with host.relaying():
        ids = [host.create() for _ in range(5)]
        eventually(lambda: len(host.handled) == 2)
        assert sum(len(host.records(id)) for id in ids) == 2
        gate.set()
        eventually(lambda: len(host.handled) == 5)


@each_way
def test_change_of_this_process_wakes_the_relay(way: str) -> None:
    """The relay does not wait for its next look."""
    host = Host(way, poll_s=3600)
    with host.relaying():
        host.create()
        eventually(lambda: len(host.recorder.observations) == 1)
        host.create()
        eventually(lambda: len(host.recorder.observations) == 2)


@each_way
def test_relay_that_found_nothing_looks_before_it_claims(way: str) -> None:
    """A claim is a write. Credits that wait for others do not cause one for each credit."""
    host = Host(way, consumer=Consumer(name=NAME, kinds=["credited"], credit_delay_s=60), poll_s=3600)
    calls: list[str] = []

    def noting(method: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(method)
            return getattr(host.store.feed, method)(*arguments, **options)

        return call

    def has_looked(times: int) -> bool:
        return calls.count("next_due") >= times

    host.feed = Altered(host.feed, claim=noting("claim"), next_due=noting("next_due"))
    with host.relaying():
        id = host.create()
        for number in range(10):
            host.credit(id)
            eventually(partial(has_looked, number + 1))
        host.clock.advance(60)
        host.credit(id)
        eventually(lambda: host.handled)
    assert calls.count("claim") <= 3


@each_way
def test_change_of_another_process_is_found_at_the_next_look(way: str) -> None:
    """Without a wake-up, the relay looks again after `poll_s`."""
    host = Host(way)
    host.feed = Altered(host.feed, watch=lambda _: lambda: None)
    with host.relaying():
        host.create()
        eventually(lambda: len(host.handled) == 1)


@each_way
def test_relays_share_the_deliveries(way: str) -> None:
    """Two relays of one consumer never handle a delivery twice."""
    host = Host(way)
    with host.relaying(), host.relaying():
        ids = [host.create() for _ in range(20)]
        eventually(lambda: len(host.recorder.observations) == 20)
    assert sorted(one.payment_id for one in host.handled) == sorted(ids)


# --- failures ----------------------------------------------------------------------------------------


@each_way
def test_failed_delivery_is_attempted_again_later(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """The pauses grow. The store has the type and the first line of the error, and the log has the traceback."""
    host = Host(way)
    host.answer = failing(RuntimeError("the ledger is down\nwith details"), RuntimeError("again"))
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].error)
        [record] = host.records(id)
        assert (record.error, record.attempts, record.due_at) == ("RuntimeError: the ledger is down", 1, later(5))
        host.clock.advance(4.9)
        host.credit(id)
        assert len(host.handled) == 1
        host.clock.advance(0.1)
        eventually(lambda: host.records(id)[0].due_at == later(5 + 20))
        host.clock.advance(20)
        eventually(lambda: len(host.handled) == 4)
    assert host.payloads == [["created 1"]] * 3 + [["credited 2"]]
    assert [one.attempt for one in host.handled] == [1, 2, 3, 1]
    outcomes = [one.outcome for one in host.recorder.take() if isinstance(one, DeliveryAttempted)]
    assert outcomes == ["internal_error", "internal_error", "delivered", "delivered"]
    assert events_of(caplog) == ["delivery_failed"] * 2
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].getMessage() == (
        f"incoming payments: attempt 1 of the delivery {id}_1_1 to the consumer ledger failed: RuntimeError: the "
        "ledger is down"
    )


@each_way
def test_poison_delivery_becomes_a_dead_letter_and_releases_later_events(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The dead letter can be listed, read and sent again."""
    host = Host(way, retry=RetryPolicy(attempts=2, jitter=0))
    poison = RuntimeError("poison")
    host.answer = failing(poison, poison)
    with host.relaying():
        id = host.create()
        host.credit(id)
        eventually(lambda: host.records(id) and host.records(id)[0].error)
        host.clock.advance(5)
        eventually(lambda: len(host.records(id)) == 2)
        eventually(lambda: host.records(id)[1].ending is Ending.DELIVERED)
        service = host.service
        [dead] = service.dead_letters("ledger")
        assert (dead.id, dead.ending, dead.attempts) == (f"{id}_1_1", Ending.DEAD, 2)
        assert [event.kind for event in service.read_delivery(dead)] == ["created"]
        service.redeliver(dead)
        eventually(lambda: host.records(id)[0].ending is Ending.DELIVERED)
    assert host.payloads == [["created 1"], ["created 1"], ["credited 2"], ["created 1"]]
    assert events_of(caplog) == ["delivery_failed", "dead_letter"]
    assert "is a dead letter after attempt 2: RuntimeError: poison" in caplog.text


@each_way
def test_handler_can_ask_for_a_later_attempt(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """The pause is at least the one that the handler asks for. A known error has no traceback."""
    host = Host(way)
    host.answer = failing(RetryLater("closed until midnight", after_s=3600))
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].due_at == later(3600))
        eventually(lambda: len(host.recorder.observations) == 1)
    [observed] = host.recorder.take()
    assert observed.outcome == "retry_later"
    assert caplog.records[0].exc_info is None


@each_way
def test_handler_can_throttle_all_deliveries(way: str, gate: threading.Event) -> None:
    """The relay begins no attempt meanwhile. The success of an attempt that began earlier does not end this."""
    host = Host(way, concurrency=2)
    begun_s: list[float] = []

    def answer(_: Delivery) -> None:
        begun_s.append(time.monotonic())
        if len(begun_s) == 1:
            gate.wait(PATIENCE_S)
        elif len(begun_s) == 2:
            raise RetryLater("too many", after_s=3600, throttle_s=0.3)

    host.answer = answer
    with host.relaying():
        host.create()
        eventually(lambda: len(begun_s) == 1)
        host.create()
        eventually(lambda: len(host.recorder.observations) == 1)
        gate.set()
        eventually(lambda: len(host.recorder.observations) == 2)
        host.create()
        eventually(lambda: len(host.recorder.observations) == 3)
    assert begun_s[2] - begun_s[1] >= 0.3


@each_way
def test_handler_that_is_gone_disables_the_consumer(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost: the consumer continues when it is enabled again."""
    host = Host(way)
    host.answer = failing(HandlerGone("410"), HandlerGone("410"))
    with host.relaying():
        id = host.create()
        other = host.create()
        eventually(lambda: len(host.recorder.observations) == 2)
        host.credit(id)
        host.clock.advance(3600)
        assert host.feed.consumers()[0].health.disabled_at is not None
        host.feed.set_enabled(NAME, host.clock(), enabled=True)
        eventually(lambda: len(host.handled) == 5)
        eventually(lambda: len(host.recorder.observations) == 5)
    assert [record.ending for record in host.records(id) + host.records(other)] == [Ending.DELIVERED] * 3
    assert events_of(caplog).count("consumer_disabled") == 1


@each_way
def test_consumer_that_is_down_gets_one_delivery_at_a_time(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its attempts do not count, no delivery becomes a dead letter, and a success ends this."""
    consumer = Consumer(name="ledger", down_after_s=60)
    host = Host(way, consumer=consumer, retry=RetryPolicy(attempts=1, first_s=60, jitter=0))
    works = threading.Event()

    def answer(_: Delivery) -> None:
        if not works.is_set():
            time.sleep(0.05)  # until no claim is in progress
            raise RuntimeError("no")

    host.answer = answer
    with host.relaying():
        host.create()
        eventually(lambda: "dead_letter" in events_of(caplog))  # the consumer is not down yet
        host.clock.advance(60)
        ids = [host.create() for _ in range(3)]
        eventually(lambda: len(host.recorder.observations) == 2)
        eventually(lambda: "consumer_down" in events_of(caplog))
        assert sum(len(host.records(id)) for id in ids) == 1
    works.set()
    host.clock.advance(60)
    with host.relaying():  # a relay that begins does not wait for the pause
        eventually(lambda: len(host.recorder.observations) == 5)
    assert events_of(caplog) == ["dead_letter", "delivery_failed", "consumer_down"]


@each_way
def test_relay_waits_between_probes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that is down is not called all the time, even if many payments wait for it."""
    monkeypatch.setattr(_core, "probe_pause_s", lambda _: 0.2)
    consumer = Consumer(name="ledger", down_after_s=0)
    host = Host(way, consumer=consumer, concurrency=1, retry=RetryPolicy(first_s=60))

    def answer(_: Delivery) -> None:
        if len(host.handled) < 3:
            raise RuntimeError("no")

    host.answer = answer
    with host.relaying():
        for _ in range(5):
            host.create()
        eventually(lambda: len(host.recorder.observations) == 1)
        time.sleep(0.1)
        assert len(host.handled) == 1
        eventually(lambda: len(host.handled) == 5)


@each_way
def test_health_that_cannot_be_read_is_trouble(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is stored in any case."""

    def consumers() -> Any:
        raise StoreUnavailable("busy")

    host = Host(way, consumer=Consumer(name="ledger", down_after_s=60))
    host.feed = Altered(host.feed, consumers=consumers)
    host.answer = failing(RuntimeError("no"))
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].error)
        eventually(lambda: "delivery_failed" in events_of(caplog))
    assert events_of(caplog) == ["relay_failed", "delivery_failed"]


def test_exit_of_a_handler_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """In a thread, `SystemExit` would end only this thread."""
    host = Host("threads")
    host.answer = failing(SystemExit(1))
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].error == "SystemExit: 1")
        eventually(lambda: "delivery_failed" in events_of(caplog))


def test_cancelled_error_in_a_handler_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    """A sync handler may run an event loop. It becomes a dead letter, like any other failure."""
    host = Host("threads", retry=RetryPolicy(attempts=1))
    host.answer = failing(asyncio.CancelledError())
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].ending is Ending.DEAD)
    assert host.records(id)[0].error == "RuntimeError: CancelledError"
    assert "dead_letter" in events_of(caplog)


# --- slow handlers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["threads", "mixed"])
def test_handler_that_does_not_return_holds_one_slot(
    way: str, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """Its attempt fails after the time limit. The other slots work on, and a late return is not an acknowledgement."""
    host = Host(way, concurrency=2, attempt_s=0.5)
    slow = host.create()
    host.options["start"] = Start.BEGINNING
    host.answer = lambda delivery: delivery.payment_id == slow and delivery.attempt < 3 and gate.wait(PATIENCE_S)
    with host.relaying():
        eventually(lambda: host.records(slow) and host.records(slow)[0].error)
        assert host.records(slow)[0].error == "HandlerTimeout: the handler did not return within 0.5 s"
        other = host.create()
        eventually(lambda: host.records(other) and host.records(other)[0].ending)
        host.clock.advance(5)
        eventually(lambda: host.records(slow)[0].due_at == later(25))  # now it holds both slots
        waiting = host.create()
        host.clock.advance(20)
        time.sleep(0.05)
        assert host.records(waiting) == []
        gate.set()
        eventually(lambda: host.records(slow)[0].ending and host.records(waiting) and host.records(waiting)[0].ending)
    assert [one.attempt for one in host.handled if one.payment_id == slow] == [1, 2, 3]
    assert "did not return within 0.5 s" in caplog.text
    assert [one.outcome for one in host.recorder.take()][0] == "timed_out"  # noqa: RUF015


@each_way
def test_timeout_of_the_handler_itself_is_an_error(way: str) -> None:
    """`TimeoutError` of the handler's own client is not the time limit of the relay."""
    host = Host(way)
    host.answer = failing(TimeoutError("the ledger"))
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].error == "TimeoutError: the ledger")


@each_way
def test_answer_after_the_lease_has_ended_is_refused(
    way: str, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """The next holder of the lease decides."""
    host = Host(way)
    host.answer = lambda _: gate.wait(PATIENCE_S)
    with host.relaying():
        id = host.create()
        eventually(lambda: host.handled)
        host.clock.advance(60)
        [again] = host.store.feed.claim(NAME, lambda _: b"", now=later(60), until=later(600), limit=1)
        assert again.attempt == 2
        gate.set()
        eventually(lambda: "lease_lost" in events_of(caplog))
        assert host.records(id)[0].ending is None
        assert host.store.feed.settle(again, Delivered(), later(60))
        assert not host.store.feed.settle(again, Delivered(), later(60))
    assert [one.outcome for one in host.recorder.take()] == ["lease_lost"]


# --- stopping ----------------------------------------------------------------------------------------


@each_way
def test_stop_finishes_what_is_in_progress(way: str, gate: threading.Event) -> None:
    """The attempts end and are stored, and nothing new begins."""
    host = Host(way)
    host.answer = lambda _: gate.wait(PATIENCE_S)
    with host.relaying() as relay:
        first = host.create()
        eventually(lambda: host.handled)
        relay.stop()
        second = host.create()
        time.sleep(0.05)
        assert host.records(second) == []
        gate.set()
    assert host.records(first)[0].ending is Ending.DELIVERED
    assert host.records(second) == []


@each_way
def test_stop_releases_what_has_not_begun(way: str) -> None:
    """A delivery that was claimed during the stop can be claimed at once, and has no attempt."""
    host = Host(way)
    stops: list[Callable[[], None]] = []

    def claim(*args: Any, **kwargs: Any) -> Any:
        deliveries = host.store.feed.claim(*args, **kwargs)
        if deliveries:
            stops[0]()
        return deliveries

    host.feed = Altered(host.feed, claim=claim)
    with host.relaying() as relay:
        stops.append(relay.stop if way == "threads" else relay.relay.stop)
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].attempts == 0)
    assert host.handled == []
    assert host.store.feed.next_due(NAME) == later(0)


# --- the consumer ------------------------------------------------------------------------------------


@each_way
def test_registration_over_history_works_in_batches(way: str) -> None:
    """The relay completes the registration before its first claim."""
    host = Host(way, start=Start.BEGINNING)
    host.create()
    answers = [False, False, True]
    calls = []

    def register(consumer: Consumer, start: Start, now: Any) -> bool:
        calls.append(host.handled[:])
        host.store.feed.register(consumer, start, now)
        return answers.pop(0)

    host.feed = Altered(host.feed, register=register)
    with host.relaying():
        eventually(lambda: host.handled)
    assert calls == [[]] * 3


@each_way
def test_new_consumer_starts_now(way: str) -> None:
    """Old events are for a consumer that starts at the beginning."""
    host = Host(way)
    host.create()
    with host.relaying():
        new = host.create()
        eventually(lambda: host.handled)
    assert [one.payment_id for one in host.handled] == [new]


@each_way
def test_error_at_the_registration_is_raised(way: str) -> None:
    """The host notices the error when it starts."""
    host = Host(way)

    def register(*_: object) -> bool:
        raise StoreUnavailable("busy")

    host.feed = Altered(host.feed, register=register)
    with pytest.raises(StoreUnavailable), host.relaying():
        pytest.fail("the relay must not begin")


@each_way
def test_removed_consumer_is_trouble(way: str, gate: threading.Event, caplog: pytest.LogCaptureFixture) -> None:
    """A relay does not register its consumer again by itself."""
    host = Host(way)
    host.answer = lambda _: gate.wait(PATIENCE_S)
    with host.relaying():
        host.create()
        eventually(lambda: host.handled)
        host.feed.remove(NAME)
        gate.set()
        eventually(lambda: {"lease_lost", "relay_failed"} <= set(events_of(caplog)))
        host.feed.register(LEDGER, Start.NOW, host.clock())
        host.create()
        eventually(lambda: len(host.handled) == 2)
    assert events_of(caplog).count("relay_failed") == 1


@each_way
def test_consumer_that_is_removed_during_a_failure_is_no_trouble(way: str) -> None:
    """The state of the consumer is then unknown."""
    host = Host(way, consumer=Consumer(name="ledger", down_after_s=60))
    host.feed = Altered(host.feed, consumers=list)
    host.answer = failing(RuntimeError("no"))
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].error)


# --- trouble of the feed -----------------------------------------------------------------------------


def troubled(method: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Return `method`, which raises `StoreUnavailable` for the first calls after the registration."""
    left = [StoreUnavailable("busy")] * times

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return method(*args, **kwargs)

    return call


@each_way
@pytest.mark.parametrize("name", ["claim", "next_due", "settle"])
def test_trouble_is_logged_once_and_the_relay_tries_again(
    way: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A new trouble is logged again."""
    host = Host(way)
    host.feed = Altered(host.feed, **{name: troubled(getattr(host.feed, name), 4)})
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].ending)
    [line] = [record for record in caplog.records if record.__dict__["event"] == "relay_failed"]
    assert line.levelno == logging.ERROR
    assert "store_unavailable: busy" in line.getMessage()


@each_way
def test_result_is_not_stored_after_the_lease(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """While the feed does not answer, the relay tries until the lease ends. Then another attempt begins."""
    host = Host(way)
    calls = []

    def settle(delivery: Delivery, *rest: Any) -> bool:
        calls.append(delivery)
        if delivery.attempt == 1:
            host.clock.advance(30)
            raise StoreUnavailable("busy")
        return host.store.feed.settle(delivery, *rest)

    host.feed = Altered(host.feed, settle=settle)
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].ending)
    assert [one.attempt for one in host.handled] == [1, 2]
    assert len(calls) == 4
    assert "lease_lost" in events_of(caplog)


@each_way
def test_stop_does_not_wait_for_a_feed_that_does_not_answer(way: str) -> None:
    """The lease ends by itself."""
    host = Host(way)
    called = threading.Event()

    def settle(*_: Any) -> bool:
        called.set()
        raise StoreUnavailable("busy")

    host.feed = Altered(host.feed, settle=settle)
    with host.relaying():
        id = host.create()
        assert called.wait(PATIENCE_S)
    assert host.records(id)[0].ending is None


RUNS_ONCE = "this relay has run already: make another one with service.relay"


def test_a_relay_runs_once() -> None:
    """A second run would handle nothing, and one at the same time would exceed `concurrency`."""
    host = Host("threads")
    relay = host.service.relay(LEDGER, host.handle)
    with relay:
        with pytest.raises(ConfigurationError, match=RUNS_ONCE):
            relay.run()
        with pytest.raises(ConfigurationError, match=RUNS_ONCE):
            relay.__enter__()
    with pytest.raises(ConfigurationError, match=RUNS_ONCE):
        relay.run()


def test_an_async_relay_runs_once() -> None:
    """The same holds in an event loop."""

    async def run() -> None:
        host = Host("tasks")
        relay = host.async_service.relay(LEDGER, host.handle)
        async with relay:
            with pytest.raises(ConfigurationError, match=RUNS_ONCE):
                await relay.run()
        with pytest.raises(ConfigurationError, match=RUNS_ONCE):
            await relay.__aenter__()

    asyncio.run(run())


@each_way
def test_broken_clock_does_not_end_the_relay(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error is logged, and its delivery is attempted again when the lease has ended."""
    host = Host(way, poll_s=3600)
    breaks = [True]

    def clock() -> datetime:
        if host.handled and breaks and threading.current_thread().name != "MainThread":
            breaks.clear()
            raise RuntimeError("the clock is broken")
        return host.clock()

    host.service_clock = clock
    with host.relaying():
        id = host.create()
        eventually(lambda: "relay_failed" in events_of(caplog))
        host.clock.advance(60)
        host.create()  # wakes the relay
        eventually(lambda: host.records(id)[0].ending)


# --- settings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"consumer": "ledger"}, "consumer must not be str: pass Consumer(name=...)"),
        ({"handler": None}, "handler must not be NoneType: pass a function that takes a Delivery"),
        ({"handler": Host}, "handler must not be the class Host: pass a function that takes a Delivery"),
        ({"start": "yesterday"}, "start must be one of beginning, now"),
        ({"retry": 3}, "retry must not be int: pass RetryPolicy(...)"),
        ({"concurrency": 0}, "concurrency must be an integer from 1 to 64, not 0"),
        ({"concurrency": True}, "concurrency must be an integer from 1 to 64, not True"),
        ({"attempt_s": 0}, "attempt_s must be a number of seconds up to 3600, not 0"),
        ({"attempt_s": "1"}, "attempt_s must be a number of seconds up to 3600, not '1'"),
        ({"poll_s": True}, "poll_s must be a number of seconds up to 3600, not True"),
        ({"lease_s": 30}, "lease_s must be more than attempt_s, which is 30, so that no lease ends during an attempt"),
        ({"lease_s": 8000}, "lease_s must be a number of seconds up to 7200, not 8000"),
        ({"render": b""}, "render must not be bytes: pass a function that takes a list of FeedEvent"),
    ],
)
def test_wrong_setting_is_named(changes: dict[str, Any], text: str) -> None:
    """A wrong setting fails when the relay is built."""
    settings = {"consumer": LEDGER, "handler": lambda _: None, **changes}
    with pytest.raises(ConfigurationError) as caught:
        RelaySettings(**settings)
    assert caught.value.description == text
    assert caught.value.details == {"setting": next(iter(changes))}


def test_lease_is_longer_than_an_attempt() -> None:
    """By default, there are 30 seconds to store the result."""
    assert RelaySettings(consumer=LEDGER, handler=print, attempt_s=100).lease_s == 130
    assert RelaySettings(consumer=LEDGER, handler=print, attempt_s=3600).lease_s == 3630


@each_way
def test_relay_needs_a_feed(way: str) -> None:
    """The error names the argument."""
    host = Host(way)
    host.feed = None
    with pytest.raises(ConfigurationError) as caught, host.relaying():
        pytest.fail("the relay must not begin")
    assert caught.value.description == "ports has no feed: pass Ports(feed=store.feed)"


def test_dead_letters_of_an_unknown_consumer_are_refused() -> None:
    """The name is probably wrong."""
    with pytest.raises(ConsumerNotFound):
        Host("threads").service.dead_letters("unknown")


def test_released_result_is_not_a_failure() -> None:
    """A release is neither a success nor a failure of the consumer."""
    host = Host("threads")
    host.feed.register(LEDGER, Start.NOW, host.clock())
    host.create()
    [delivery] = host.feed.claim(NAME, lambda _: b"", now=later(0), until=later(9), limit=1)
    assert host.feed.settle(delivery, Released(), later(0))
    assert host.feed.consumers()[0].health.failing_since is None
