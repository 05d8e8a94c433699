"""Tests of `bounded`: calls of sync and async ports end at their bound, whatever the port does."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from incoming_payments.errors import PortMissing
from incoming_payments.flows.machinery import bounded
from incoming_payments.flows.machinery.bounded import BoundedCall, Threads

BOUND_S = 0.05
PATIENCE_S = 10.0  # far more than any call needs


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield an event for which hanging calls wait. It is set at the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


def by_wait(method: Callable[[Any], Any], bound_s: float = PATIENCE_S, threads: Threads | None = None) -> Any:
    """Return the answer of a bounded call in the thread of the caller."""
    return BoundedCall(threads or Threads(), method, "argument", bound_s).wait()


def by_await(method: Callable[[Any], Any], bound_s: float = PATIENCE_S, threads: Threads | None = None) -> Any:
    """Return the answer of a bounded call in an event loop."""

    async def call() -> Any:
        return await BoundedCall(threads or Threads(), method, "argument", bound_s)

    return asyncio.run(call())


both = pytest.mark.parametrize("call", [by_wait, by_await])


async def answering(argument: object) -> object:
    """Return the argument, as an async port."""
    await asyncio.sleep(0)
    return argument


def failing(_: object) -> None:
    """Fail."""
    raise RuntimeError("the port is broken")


async def failing_async(_: object) -> None:
    """Fail."""
    raise RuntimeError("the port is broken")


@both
def test_sync_port_answers_in_another_thread(call: Callable[..., Any]) -> None:
    """A sync port runs in a daemon thread with the context of its caller, and its answer is returned."""
    seen = contextvars.ContextVar("seen", default="nothing")
    seen.set("the context of the caller")

    def method(argument: object) -> tuple[object, str, bool, bool]:
        thread = threading.current_thread()
        return argument, seen.get(), thread is threading.main_thread(), thread.daemon

    assert call(method) == ("argument", "the context of the caller", False, True)


@both
def test_exception_of_a_sync_port_reaches_the_caller(call: Callable[..., Any]) -> None:
    """The exception is raised as it is."""
    with pytest.raises(RuntimeError, match="the port is broken"):
        call(failing)


def test_async_port_that_blocks_the_loop_is_too_late() -> None:
    """A port that blocks the event loop blocks the timer too. Its late answer is dropped."""

    async def blocking(_: object) -> str:
        time.sleep(2 * BOUND_S)  # noqa: ASYNC251 - the mistake of the port
        return "too late"

    with pytest.raises(TimeoutError):
        by_await(blocking, BOUND_S)


def test_sync_port_that_blocks_the_interpreter_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may wake up long after the bound with an answer. That answer is dropped."""
    times = iter([0.0, 2 * PATIENCE_S])
    monkeypatch.setattr(bounded, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with pytest.raises(TimeoutError):
        by_wait(lambda argument: argument)


@both
def test_sync_port_that_hangs_ends_at_the_bound(call: Callable[..., Any], gate: threading.Event) -> None:
    """The caller gets `TimeoutError`. A later answer is dropped."""
    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        call(lambda _: gate.wait(PATIENCE_S), BOUND_S)
    assert time.monotonic() - began_s < PATIENCE_S / 2


def test_async_port_answers() -> None:
    """A coroutine function, and a function that returns a coroutine, are awaited in the loop of the caller."""
    assert by_await(answering) == "argument"
    assert by_await(lambda argument: answering(argument)) == "argument"  # noqa: PLW0108 - no coroutine function
    with pytest.raises(RuntimeError, match="the port is broken"):
        by_await(failing_async)


def test_async_port_that_hangs_is_cancelled() -> None:
    """The coroutine gets `CancelledError` at the bound."""
    cancelled: list[bool] = []

    async def hanging(_: object) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(TimeoutError):
        by_await(hanging, BOUND_S)
    assert cancelled == [True]


@pytest.mark.parametrize("end", ["late answer", "late exception"])
def test_async_port_that_ignores_its_cancellation_is_dropped(end: str) -> None:
    """The caller does not wait for the coroutine, and its late answer or exception is dropped."""

    async def call() -> float:
        release = asyncio.Event()

        async def stubborn(_: object) -> str:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            if end == "late exception":
                raise RuntimeError("too late")
            return "too late"

        loop = asyncio.get_running_loop()
        complaints: list[Any] = []
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        began_s = loop.time()
        with pytest.raises(TimeoutError):
            await BoundedCall(Threads(), stubborn, None, BOUND_S)
        took_s = loop.time() - began_s
        release.set()
        await asyncio.sleep(0.01)
        assert complaints == []
        return took_s

    assert asyncio.run(call()) < PATIENCE_S / 2


def test_async_port_that_cancels_itself_is_no_answer() -> None:
    """The `CancelledError` of a port must not look like a cancellation of the caller."""

    async def cancelling(_: object) -> None:
        raise asyncio.CancelledError

    with pytest.raises(TimeoutError):
        by_await(cancelling)


def test_cancelled_caller_cancels_the_port() -> None:
    """When the request is cancelled, the port is cancelled too, and the caller sees its own cancellation."""
    ended: list[str] = []

    async def hanging(_: object) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.append("cancelled")

    async def call() -> None:
        task = asyncio.ensure_future(BoundedCall(Threads(), hanging, None, PATIENCE_S)._bounded())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    asyncio.run(call())
    assert ended == ["cancelled"]


def test_async_answer_in_a_sync_host_is_refused() -> None:
    """A plain function that returns a coroutine passes the checks of `Ports`, and is found at the first call."""
    with pytest.raises(PortMissing, match="acceptance is async"):
        by_wait(lambda argument: answering(argument))  # noqa: PLW0108 - no coroutine function


@both
def test_idle_threads_are_used_again(call: Callable[..., Any]) -> None:
    """Calls one after the other need one thread."""
    threads = Threads()
    names = {call(lambda _: threading.get_ident(), threads=threads)}
    for _ in range(5):
        time.sleep(0.01)  # the thread becomes idle after it has answered
        names.add(call(lambda _: threading.get_ident(), threads=threads))
    assert len(names) == 1


def test_hanging_port_takes_a_limited_number_of_threads(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit, calls wait until their bound. Once as many calls wait, further ones are refused at once."""
    monkeypatch.setattr(bounded, "PORT_THREADS_MAX", 3)
    threads = Threads()
    calls: list[str] = []

    def hanging(_: object) -> None:
        calls.append("began")
        gate.wait(PATIENCE_S)

    for _ in range(3):
        threads.submit(hanging, None)
    deadline_s = time.monotonic() + PATIENCE_S
    while len(calls) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert calls == ["began"] * 3
    waiting = [threads.submit(hanging, None) for _ in range(3)]
    with pytest.raises(TimeoutError, match="3 calls of the port have no answer yet"):
        threads.submit(hanging, None)
    for future in waiting:
        assert future.cancel()  # as `wait` does at the bound
    gate.set()
    while not threads._calls.empty() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert threads.submit(lambda argument: argument, "works again").result(PATIENCE_S) == "works again"
    assert calls == ["began"] * 3  # the cancelled calls never began


def test_hanging_port_does_not_keep_the_process_from_ending() -> None:
    """A process ends although a call of a port still hangs."""
    code = (
        "import time; from incoming_payments.flows.machinery.bounded import *\n"
        "try: BoundedCall(Threads(), lambda _: time.sleep(60), None, 0.05).wait()\n"
        "except TimeoutError: print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "refused\n"


def test_child_begins_without_threads() -> None:
    """The hook for a fork forgets the threads of the parent, so that the next call starts one."""
    threads = Threads()
    assert by_wait(lambda argument: argument, threads=threads) == "argument"
    bounded._after_fork_in_child()
    assert threads._started == 0
    assert by_wait(lambda argument: argument, threads=threads) == "argument"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_calls_work_after_a_fork() -> None:
    """A child process has none of the threads of its parent, and starts threads of its own."""
    code = (
        "import os, time; from incoming_payments.flows.machinery.bounded import *\n"
        "threads = Threads()\n"
        "call = BoundedCall(threads, lambda argument: argument, 'answer', 5)\n"
        "call.wait(); time.sleep(0.05)\n"  # the thread of the parent is idle
        "child = os.fork()\n"
        "answer = call.wait()\n"
        "if child: os.waitpid(child, 0)\n"  # two processes that print at the same time mix their lines
        "print(answer, flush=True)\n"
        "if not child: os._exit(0)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "answer\nanswer\n"
