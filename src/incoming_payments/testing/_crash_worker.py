"""The worker processes of the crash kit.

A worker inserts payments, or credits a payment, until it is killed or has finished.

The kit reads the reports of a worker. A report is a line of JSON before each step, and after each answer of the store.
The interpreter reports each call of the store's code to the worker, so the worker can end itself at a chosen call.
"""

import importlib
import json
import operator
import os
import random
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any, Final

from attrs import asdict, frozen

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import (
    PAYMENT_ID_RANDOM_BYTES,
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
    new_payment_id,
)
from incoming_payments.errors import PaymentExists
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.testing.steps import persistently
from incoming_payments.testing.values import NOW, a_creation, crediting

WATCHED: Final = 2  # the step at which a worker ends itself, after the store has opened its connections
AFTER_ANSWER: Final = -1  # the moment when the store has just answered, before the worker can report the answer
_MOMENTS_MAX: Final = 64
_VALUE_MAX: Final = 1000
_REQUEST_BYTES_MAX: Final = 65536


@frozen
class Plan:
    """The task of one worker.

    The worker opens a store by `factory(argument)`, and credits `payment` with credit ids that begin with `name`.
    If `payment` is `None`, the worker inserts payments. If `key` is set too, each insert has an idempotency key that
    begins with `key`. In the step `WATCHED`, the worker ends itself at `moment`, which is the number of a call or
    `AFTER_ANSWER`. See `Calls`.
    """

    factory: str
    argument: str
    payment: str | None
    name: str
    steps: int
    seed: int
    moment: int | None = None
    key: str | None = None

    @property
    def text(self) -> str:
        """Return the plan as a request to the parent of the workers."""
        return json.dumps(asdict(self))


def open_store(factory: str, argument: str) -> PaymentStore:
    """Return `factory(argument)`. `factory` is the name of a callable, in the form `module:callable`."""
    module, separator, path = factory.partition(":")
    if not separator:
        raise ValueError(f"factory must be written as module:callable, not {factory!r}")
    store: PaymentStore = operator.attrgetter(path)(importlib.import_module(module))(argument)
    return store


class Calls:
    """A counter of the calls and returns in all threads while an insert or an update runs.

    The call or return with the number `end_at` calls `end`, which ends the process.
    """

    def __init__(self, end_at: int | None, end: Callable[[], object]) -> None:
        self._end_at = end_at
        self._end = end
        self._times: list[int] = []
        self._is_counting = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and the threads that start in this context."""
        threading.setprofile(self.count)
        sys.setprofile(self.count)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def begin(self) -> None:
        """Begin to count calls."""
        self._times = []
        self._is_counting = True

    def stop(self) -> None:
        """Stop counting."""
        self._is_counting = False

    def slowest(self) -> list[int]:
        """Return the numbers of the calls and returns that directly follow the longest gaps, longest gap first.

        A slow call has read, written or committed data. The worst time for a crash is directly after such a call.
        """
        times = self._times
        gaps = sorted(((end - begin, number) for number, (begin, end) in enumerate(pairwise(times), 2)))
        return [number for _, number in reversed(gaps)][:_MOMENTS_MAX]

    def count(self, _frame: FrameType | None, _event: str, _argument: object) -> None:
        """Count a call or a return. `sys.setprofile` calls this function."""
        if self._is_counting:
            self._times.append(time.perf_counter_ns())
            if len(self._times) == self._end_at:
                self._end()


def work(plan: Plan, report: Callable[..., None], begin: Callable[[], object], end: Callable[[], object]) -> None:
    """Carry out `plan`: wait in `begin`, `report` each step, and call `end` at the moment of the plan."""
    choose = random.Random(plan.seed)  # noqa: S311 - amounts, not secrets
    calls = Calls(plan.moment, end)
    with calls.watching():
        store = open_store(plan.factory, plan.argument)
        report("ready")
        begin()
        for number in range(plan.steps):
            watch: Callable[[], object] = calls.begin if number == WATCHED else calls.stop
            finish = end if number == WATCHED and plan.moment == AFTER_ANSWER else calls.stop
            if plan.payment is None:
                key = None if plan.key is None else f"{plan.key}-{number}"
                value = 0 if key is None else number
                created = a_creation(id=new_payment_id(NOW, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES)), key=key)
                first = None
                report("sent", created.answer.id, value)
                watch()
                with suppress(PaymentExists):  # the payment exists because the answer of an earlier call was lost
                    first = persistently(partial(store.insert, created))
                finish()
                report("answered", created.answer.id if first is None else first.payment, value)
            else:
                id, value = CreditId(f"{plan.name}-{number}"), choose.randint(1, _VALUE_MAX)
                decide = _then(crediting(id, value), watch)
                report("sent", id, value)
                credit = persistently(partial(store.update, PaymentId(plan.payment), decide, id))
                finish()
                report("answered", id, credit.received.value)
    report("moments", calls.slowest())


def _then(decide: Decide[Credit], call: Callable[[], object]) -> Decide[Credit]:
    """Return `decide`, followed by `call`."""

    def decide_and_call(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
        decision = decide(payment, earlier)
        call()
        return decision

    return decide_and_call


def main() -> None:
    """Run the parent of the workers. The argument is the number of the socket on which the kit sends requests.

    A request with a plan and a channel starts a worker. The reply is the process id of the worker. A request with a
    process id waits for the end of that worker, and the reply is the status of the worker. Before that request, the kit
    can kill the worker safely, because the system does not reuse the process id yet.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    while True:
        text, files, _, _ = socket.recv_fds(control, _REQUEST_BYTES_MAX, 1)
        if not text:
            return  # the kit has ended
        request = json.loads(text)
        if isinstance(request, int):
            reply = os.waitstatus_to_exitcode(os.waitpid(request, 0)[1])
        else:
            channel = socket.socket(fileno=files[0])
            reply = os.fork()
            if not reply:
                control.close()
                _work_in_process(Plan(**request), channel)
                return
            channel.close()
        control.send(str(reply).encode())


def _work_in_process(plan: Plan, channel: socket.socket) -> None:
    """Carry out `plan`, and report through `channel`."""

    def report(*words: Any) -> None:
        channel.sendall(f"{json.dumps(words)}\n".encode())

    work(plan, report, lambda: channel.recv(1), lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    main()
