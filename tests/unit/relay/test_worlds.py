"""What differs between the relay in threads and the relay in an event loop."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from incoming_payments import (
    Amount,
    AsyncIncomingPayments,
    AsyncPorts,
    ConfigurationError,
    Delivery,
    Ending,
    IncomingPayments,
    Ports,
    RetryPolicy,
    Start,
)
from incoming_payments.limits import LOGGED_A_MINUTE_MAX
from incoming_payments.relay import _core
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import a_creation
from kits.relay_kit import LEDGER, NAME, PATIENCE_S, POLICY, WAYS, Host, eventually, later
from kits.service_kit import USD


async def eventually_in_loop(condition: Any) -> None:
    """Wait in an event loop until `condition` holds."""
    await asyncio.to_thread(eventually, condition)


class AsyncHandler:
    """A handler with an async `__call__`."""

    async def __call__(self, delivery: Delivery) -> None:
        """Handle a delivery."""


async def handle_async(delivery: Delivery) -> None:
    """Handle a delivery."""


# --- threads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [handle_async, AsyncHandler()])
def test_sync_relay_refuses_an_async_handler(handler: Any) -> None:
    """A coroutine that no code awaits would do nothing."""
    with pytest.raises(ConfigurationError) as caught:
        Host("threads").service.relay(LEDGER, handler)
    assert caught.value.description == "handler is async: use AsyncIncomingPayments, or write the handler with def"


@pytest.mark.parametrize("way", ["threads", "mixed"])
def test_function_that_returns_a_coroutine_is_no_success(way: str) -> None:
    """The error names the remedy."""
    host = Host(way)
    host.handle = lambda *args: handle_async(*args)  # type: ignore[method-assign] # noqa: PLW0108
    with host.relaying():
        id = host.create()
        eventually(lambda: host.records(id) and host.records(id)[0].error)
    assert host.records(id)[0].error == (
        "configuration_error: the handler returns a coroutine: write it with async def"
    )


def test_run_returns_after_stop() -> None:
    """`run` works in the thread of the caller. A service without an observer has a relay, too."""
    host = Host("threads")
    service = IncomingPayments(policy=POLICY, ports=Ports(store=host.store, feed=host.feed), clock=host.clock)
    relay = service.relay(LEDGER, host.handle, poll_s=0.01)
    thread = threading.Thread(target=relay.run)
    thread.start()
    eventually(host.feed.consumers)
    id = host.create()
    eventually(lambda: host.records(id) and host.records(id)[0].ending is Ending.DELIVERED)
    relay.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("way", WAYS)
def test_relay_that_has_ended_leaves_no_thread(way: str) -> None:
    """A host may begin and end any number of relays."""

    def relay_once() -> None:
        host = Host(way)
        with host.relaying():
            host.create()
            eventually(lambda: len(host.recorder.observations) == 1)

    before = set(threading.enumerate())
    for _ in range(3):
        relay_once()
    eventually(lambda: set(threading.enumerate()) <= before)


def test_relay_without_a_free_thread_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The delivery is attempted again when its lease has ended, and its slot is free."""
    monkeypatch.setattr(_core, "RELAY_TROUBLE_S_MIN", 0.01)
    host = Host("threads", concurrency=1)
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def starting(thread: threading.Thread) -> None:
        if thread.name == "incoming-payments-port" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    with host.relaying():
        id = host.create()
        eventually(lambda: "can't start new thread" in caplog.text)
        host.clock.advance(60)
        eventually(lambda: host.records(id)[0].ending is Ending.DELIVERED)


def test_log_lines_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that always fails cannot fill the log."""
    host = Host("threads", retry=RetryPolicy(first_s=900))

    def answer(_: Delivery) -> None:
        if len(host.handled) <= LOGGED_A_MINUTE_MAX + 1:
            raise RuntimeError("no")
        host.clock.advance(60)
        host.store.feed.claim(NAME, lambda _: b"", now=host.clock(), until=later(900), limit=1)

    host.answer = answer
    with host.relaying():
        for number in range(LOGGED_A_MINUTE_MAX + 2):
            host.create()
            eventually(lambda: len(host.recorder.observations) > number)  # noqa: B023 - it is called here
    assert [observed.outcome for observed in host.recorder.take()][-1] == "lease_lost"
    assert len([record for record in caplog.records if record.name.startswith("incoming_payments")]) == (
        LOGGED_A_MINUTE_MAX
    )


# --- the event loop ----------------------------------------------------------------------------------


def test_async_feed_is_awaited() -> None:
    """The port may be written with `async def`, except `watch`."""

    class AsyncFeed:
        def watch(self, wake: Any) -> Any:
            return host.store.feed.watch(wake)

        def __getattr__(self, name: str) -> Any:
            async def call(*args: Any, **kwargs: Any) -> Any:
                await asyncio.sleep(0)
                return getattr(host.store.feed, name)(*args, **kwargs)

            return call

    async def main() -> None:
        async with host.async_service.relay(LEDGER, handle_async) as relay:
            host.create()
            await eventually_in_loop(lambda: len(host.recorder.observations) == 1)
        relay.stop()

    host = Host("tasks")
    host.feed = AsyncFeed()
    asyncio.run(main())


def test_run_in_a_task() -> None:
    """`run` returns after `stop`, also if the relay was stopped before."""

    async def main() -> None:
        relay = host.async_service.relay(LEDGER, handle_async, poll_s=0.01)
        running = asyncio.ensure_future(relay.run())
        await eventually_in_loop(host.feed.consumers)
        id = host.create()
        await eventually_in_loop(lambda: host.records(id) and host.records(id)[0].ending)
        relay.stop()
        await asyncio.wait_for(running, PATIENCE_S)
        stopped = host.async_service.relay(LEDGER, handle_async)
        stopped.stop()
        await asyncio.wait_for(stopped.run(), PATIENCE_S)

    host = Host("tasks")
    asyncio.run(main())


def test_coroutine_that_ignores_its_cancellation_holds_one_slot() -> None:
    """The other slots work on. Its attempt fails after the time limit."""

    async def handler(delivery: Delivery) -> None:
        host.handled.append(delivery)
        while delivery.payment_id == slow and not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        async with host.async_service.relay(LEDGER, handler, concurrency=2, attempt_s=0.5, start=Start.BEGINNING):
            await eventually_in_loop(lambda: host.records(slow) and host.records(slow)[0].error)
            other = host.create()
            await eventually_in_loop(lambda: host.records(other) and host.records(other)[0].ending)
            host.clock.advance(10)
            await eventually_in_loop(lambda: len(host.recorder.observations) == 3)
            third = host.create()
            await asyncio.sleep(0.05)
            assert host.records(third) == []
            gate.set()
            await eventually_in_loop(lambda: host.records(third) and host.records(third)[0].ending)

    host = Host("tasks")
    slow = host.create()
    gate = asyncio.Event()
    asyncio.run(main())


def test_cancelled_run_cancels_its_attempts() -> None:
    """The leases end by themselves. A sync handler that returns after the end of the loop is harmless."""
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def handler(_: Delivery) -> None:
        entered.set()
        leave.wait(PATIENCE_S)
        left.set()

    async def main() -> None:
        running = asyncio.ensure_future(host.async_service.relay(LEDGER, handler, start=Start.BEGINNING).run())
        await asyncio.to_thread(entered.wait, PATIENCE_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(0)

    host = Host("mixed")
    id = host.create()
    asyncio.run(main())
    leave.set()
    assert left.wait(PATIENCE_S)
    time.sleep(0.01)
    assert host.records(id)[0].ending is None


# --- the SQLite store --------------------------------------------------------------------------------


def test_relay_of_the_sqlite_store(tmp_path: Path) -> None:
    """Credits of another thread arrive in order, and each of them once."""
    seen: list[Delivery] = []
    with SqliteStore(tmp_path / "payments.sqlite3") as store:
        service = IncomingPayments(policy=POLICY, ports=Ports(store=store, feed=store.feed))
        with service.relay(LEDGER, seen.append):
            created = a_creation(now=service.clock())
            store.insert(created)
            for number in range(20):
                service.receive(created.answer.id, credit_id=f"wire-{number}", amount=Amount(1, USD))
            eventually(lambda: sum(len(delivery.events) for delivery in list(seen)) == 21)
    assert [event.version for delivery in seen for event in delivery.events] == list(range(1, 22))


def test_error_with_odd_characters_is_stored(tmp_path: Path) -> None:
    """The name of a file may have bytes that are not UTF-8, which Python reads as surrogates. SQLite stores none."""

    def broken(_: Delivery) -> None:
        raise RuntimeError("no file caf\udce9\x1b[2J")

    with SqliteStore(tmp_path / "payments.sqlite3") as store:
        service = IncomingPayments(policy=POLICY, ports=Ports(store=store, feed=store.feed))
        with service.relay(LEDGER, broken, retry=RetryPolicy(attempts=1)):
            store.insert(a_creation(now=service.clock()))
            eventually(lambda: service.dead_letters(NAME))
        [letter] = service.dead_letters(NAME)
    assert letter.error == "RuntimeError: no file caf  [2J"


def test_relay_of_the_async_sqlite_store(tmp_path: Path) -> None:
    """The relay and the service share the event loop."""
    seen: list[Delivery] = []

    async def handler(delivery: Delivery) -> None:
        seen.append(delivery)

    async def main() -> None:
        async with AsyncSqliteStore(tmp_path / "payments.sqlite3") as store:
            service = AsyncIncomingPayments(policy=POLICY, ports=AsyncPorts(store=store, feed=store.feed))
            async with service.relay(LEDGER, handler):
                created = a_creation(now=service.clock())
                await store.insert(created)
                for number in range(20):
                    await service.receive(created.answer.id, credit_id=f"wire-{number}", amount=Amount(1, USD))
                await eventually_in_loop(lambda: sum(len(delivery.events) for delivery in list(seen)) == 21)

    asyncio.run(main())
    assert [event.version for delivery in seen for event in delivery.events] == list(range(1, 22))


def test_sync_feed_that_waits_is_refused_in_an_event_loop(tmp_path: Path) -> None:
    """The error names the feed to use instead."""
    with SqliteStore(tmp_path / "payments.sqlite3") as store, pytest.raises(ConfigurationError) as caught:
        AsyncPorts(feed=store.feed)
    assert caught.value.description == (
        "feed is a SqliteFeed, which would block the event loop: use the feed of an AsyncSqliteStore"
    )
