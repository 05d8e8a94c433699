"""Call a sync or async store, from the single thread of the simulation."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.errors import StoreUnavailable
from incoming_payments.ports import Decide
from incoming_payments.testing.simulation.ledger import Mismatch, require
from incoming_payments.testing.simulation.operation import Task

INSPECT_TRIES_MAX: Final = 20  # the number of attempts to read from a store that fails at random


class StoreCaller:
    """A caller of stores, which waits for their answers. An async store runs in the event loop of `runner`."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner

    def inspect(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a store on behalf of the simulation itself, and retry while the store is unavailable."""
        for _ in range(INSPECT_TRIES_MAX):
            try:
                return self.wait(method(*arguments))
            except StoreUnavailable:
                continue
        raise Mismatch(f"the store was unavailable {INSPECT_TRIES_MAX} times in a row")

    def wait(self, answer: Any) -> Any:
        """Return `answer`, awaited if the store is async."""
        if inspect.isawaitable(answer):
            return self._runner.run(_await(answer))
        return answer

    def wait_all(self, outcomes: list[Any]) -> list[Any]:
        """Return the outcomes of several updates. The updates of an async store run concurrently."""
        if inspect.isawaitable(outcomes[0]):
            return self._runner.run(_gather(outcomes))
        return outcomes


def call_update(task: Task, decide: Decide[Any]) -> Any:
    """Call the store's `update` for `task`. Return the answer, the exception, or an awaitable of an async store."""
    try:
        return task.process.store.update(task.effect.id, decide, task.effect.credit_id)
    except Exception as error:  # noqa: BLE001 - the caller compares it with the required result
        return error


def recording(order: list[Task], task: Task, decide: Decide[Any]) -> Decide[Any]:
    """Return `decide`, changed to move `task` to the end of `order` at each call."""

    def decide_and_record(payment: Any, earlier: Any) -> Decision[Any]:
        if task in order:
            order.remove(task)
        order.append(task)
        return decide(payment, earlier)

    return decide_and_record


def deciding_twice(decide: Decide[Any]) -> Decide[Any]:
    """Return `decide`, changed to run twice at each call, like a decision in a transaction that the store retries."""
    return partial(_decide_twice, decide)


def _decide_twice(decide: Decide[Any], payment: Any, earlier: Any) -> Decision[Any]:
    first, second = decide(payment, earlier), decide(payment, earlier)
    require(first == second, "a decision is not pure: the same arguments gave two different results")
    return second


async def _await(answer: Awaitable[Any]) -> Any:
    return await answer


async def _gather(outcomes: Sequence[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*outcomes, return_exceptions=True)
