"""The threads in which the sync store runs its transactions.

A caller waits for its transaction in its own thread. So an interrupt, such as `KeyboardInterrupt`, ends the wait of a
caller, and never a transaction: no connection is left in the middle of one, and no lock stays.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from incoming_payments.errors import StoreUnavailable, StoreUnusable
from incoming_payments.limits import STORE_QUEUE_MAX

T = TypeVar("T")


class Wait(Generic[T]):
    """The wait of a thread for the answer of `work`, which runs in another thread."""

    answer: T

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._error: BaseException | None = None
        # Do not use an `Event` or a `Future`: an interrupt in the waiting thread could leave its inner lock locked.
        self._unsettled = threading.Lock()
        self._unsettled.acquire()

    def run(self) -> None:
        """Run the work, and end the wait."""
        try:
            self.answer = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of the caller
            self._error = error
        self._unsettled.release()

    def result(self) -> T:
        """Return the answer or raise the error, once it is there."""
        self._unsettled.acquire()
        if self._error is not None:
            raise self._error
        return self.answer


class Workers:
    """Threads that run functions from a queue.

    The threads are daemons, so a process can end without closing the store. An answered call is durable by then.
    """

    def __init__(self, number: int) -> None:
        """Start the threads. Raises `StoreUnavailable` when the operating system refuses another thread."""
        self._queue: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._lock = threading.Lock()  # held when the queue gets an item, so that nothing follows the end
        self._is_at_end = False
        self._threads: list[threading.Thread] = []
        try:
            for _ in range(number):
                thread = threading.Thread(target=_serve, args=(self._queue,), name="incoming-payments", daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:
            self.end()
            raise StoreUnavailable(
                f"the threads of the store could not be started ({error}): repeat the call later"
            ) from error

    def run(self, work: Callable[[], T]) -> T:
        """Return the answer of `work`, which runs in one of the threads. Raises its exceptions."""
        wait = Wait(work)
        self.start(wait.run)
        return wait.result()

    def start(self, work: Callable[[], object]) -> None:
        """Run `work`, which must not raise, in one of the threads.

        Raises `StoreUnusable` after `end`. Raises `StoreUnavailable` when too much work waits, or if the call comes
        from inside a decision, because the call could wait for its own thread.
        """
        if threading.current_thread() in self._threads:
            raise StoreUnavailable("this thread is running an update: repeat the call after the update")
        with self._lock:
            if self._is_at_end:
                raise StoreUnusable("the store is closed: open another store")
            if self._queue.qsize() >= STORE_QUEUE_MAX:
                raise StoreUnavailable(f"{STORE_QUEUE_MAX} calls are already waiting: repeat the call later")
            self._queue.put(work)

    def repeat(self, work: Callable[[], bool]) -> None:
        """Run `work` in this thread, and again while it returns true, each time behind the work that waits already."""
        while work():
            with self._lock:
                if not self._is_at_end:
                    self._queue.put(lambda: self.repeat(work))
                    return

    def end(self, *, wait: bool = True) -> None:
        """Finish the waiting work, and end the threads. If `wait` is false, do not wait for them."""
        with self._lock:
            self._is_at_end = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads if wait else ():
            thread.join()


def _serve(queue: "SimpleQueue[Callable[[], object] | None]") -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # do not keep a caller's values alive while the thread waits
