"""Ports that do what a test needs, in place of any port."""

import asyncio
from collections.abc import Callable
from typing import Any

from incoming_payments.ports.approval import Approval, ProposedCredit, ProposedPayment

Decide = Callable[[Any], object]


class Raising:
    """Every port at once. Each call raises `error`."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _raise(self, *_: object) -> Any:
        raise self._error

    def __getattr__(self, _: str) -> Any:
        return self._raise


class Async:
    """The methods of a sync port as coroutines, which yield to the event loop first."""

    def __init__(self, port: object) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        async def call(*args: Any) -> Any:
            await asyncio.sleep(0)
            return method(*args)

        return call


def raising(error: BaseException) -> Decide:
    """Return a function that raises `error`."""

    def decide(_: object) -> object:
        raise error

    return decide


class Rules:
    """An approval port that answers by `decide`, and keeps the proposals."""

    def __init__(self, decide: Decide = lambda _: Approval.APPROVED) -> None:
        self.decide = decide
        self.proposals: list[Any] = []

    def approve_payment(self, proposed: ProposedPayment) -> Any:
        """Answer by `decide`."""
        self.proposals.append(proposed)
        return self.decide(proposed)

    def approve_credit(self, proposed: ProposedCredit) -> Any:
        """Answer by `decide`."""
        self.proposals.append(proposed)
        return self.decide(proposed)
