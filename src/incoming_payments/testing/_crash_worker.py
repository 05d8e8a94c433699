"""The worker process of the crash kit. It credits one payment until it has made its credits, or is killed.

The kit reads the standard output: a line of JSON before each credit, and one after the store has answered. The worker
can end itself at a chosen call of the store's code, because the interpreter reports each call to it.
"""

import importlib
import json
import operator
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import FrameType
from typing import Any, Final

from attrs import asdict, frozen

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.ports import Decide, PaymentStore
from incoming_payments.testing.steps import persistently
from incoming_payments.testing.values import crediting

WATCHED: Final = 2  # the credit at which a worker ends itself: the store has opened its connections by then
AFTER_ANSWER: Final = -1  # the moment at which the worker has just reported the answer
_MOMENTS_MAX: Final = 64
_VALUE_MAX: Final = 1000


@frozen
class Plan:
    """The task of one worker.

    It opens a store by `factory(argument)`, and credits `payment` with credit ids that begin with `name`. It ends
    itself at `moment` of the credit `WATCHED`: at the call with that number, or `AFTER_ANSWER`. See `Calls`.
    """

    factory: str
    argument: str
    payment: str
    name: str
    credits: int
    seed: int
    moment: int | None = None

    @property
    def text(self) -> str:
        """The plan as an argument of the process."""
        return json.dumps(asdict(self))


def open_store(factory: str, argument: str) -> PaymentStore:
    """Return `factory(argument)`. `factory` is the name of a callable: `module:callable`."""
    module, separator, path = factory.partition(":")
    if not separator:
        raise ValueError(f"factory must be written as module:callable, not {factory!r}")
    store: PaymentStore = operator.attrgetter(path)(importlib.import_module(module))(argument)
    return store


class Calls:
    """The calls and returns in the thread of a decision, from the decision until the answer.

    At the call or return with the number `end_at`, it calls `end`, which ends the process.
    """

    def __init__(self, end_at: int | None, end: Callable[[], object]) -> None:
        self._end_at = end_at
        self._end = end
        self._times: list[int] = []

    def watch(self, decide: Decide[Credit]) -> Decide[Credit]:
        """Return `decide`, which starts to count when it returns."""

        def watched(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
            decision = decide(payment, earlier)
            self._times = []
            sys.setprofile(self.count)
            return decision

        return watched

    def slowest(self) -> list[int]:
        """Return the numbers that directly follow the longest gaps, longest first.

        A call that takes long has read, written or committed. The worst time for a crash is directly after it.
        """
        times = self._times
        gaps = sorted(((end - begin, number) for number, (begin, end) in enumerate(pairwise(times), 2)))
        return [number for _, number in reversed(gaps)][:_MOMENTS_MAX]

    def count(self, _frame: FrameType | None, _event: str, _argument: object) -> None:
        """Count a call or a return. `sys.setprofile` calls this function."""
        self._times.append(time.perf_counter_ns())
        if len(self._times) == self._end_at:
            self._end()


def work(plan: Plan, report: Callable[..., None], begin: Callable[[], object], end: Callable[[], object]) -> None:
    """Do `plan`: wait in `begin`, `report` each step, and call `end` at the moment of the plan."""
    store = open_store(plan.factory, plan.argument)
    choose = random.Random(plan.seed)  # noqa: S311 - amounts, not secrets
    report("ready")
    begin()
    for number in range(plan.credits):
        id, value = CreditId(f"{plan.name}-{number}"), choose.randint(1, _VALUE_MAX)
        report("sent", id, value)
        if number != WATCHED:
            report("answered", id, _credit(store, plan, id, crediting(id, value)))
            continue
        calls = Calls(plan.moment, end)
        answer = _credit(store, plan, id, calls.watch(crediting(id, value)))
        sys.setprofile(None)
        report("answered", id, answer)
        if plan.moment == AFTER_ANSWER:
            end()
        report("moments", calls.slowest())


def _credit(store: PaymentStore, plan: Plan, id: CreditId, decide: Decide[Credit]) -> int:
    """Return the total received after the credit `id`."""
    return persistently(lambda: store.update(PaymentId(plan.payment), decide, id)).received.value


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the worker: the argument is the text of a plan."""
    [text] = sys.argv[1:] if arguments is None else arguments
    output = os.dup(1)
    os.dup2(2, 1)  # the factory may print

    def report(*words: Any) -> None:
        os.write(output, f"{json.dumps(words)}\n".encode())

    work(Plan(**json.loads(text)), report, sys.stdin.readline, lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    main()
