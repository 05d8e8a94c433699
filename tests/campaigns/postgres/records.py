"""The record of a client of the store: each call before it is made, and each answer.

Each client has one file. A line is one `write` without a sync, because processes are killed and the machine is not. A
client whose process was killed continues with its record, like a sender that keeps books.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from attrs import asdict, frozen

from kits.linearizability import Operation
from kits.payment_model import Action, Answer, Complete, Create, Credit, Get, Packet, View

SUFFIX: Final = ".record"
UNKNOWN: Final = "store_unavailable"  # the answer of a call that may have changed the payment
_ACTIONS: Final = {kind.__name__: kind for kind in (Create, Credit, Packet, Complete, Get)}


@frozen
class Call:
    """A call about the payment under `key`. `outcome` is `None` if the client was killed before the answer.

    Times are those of `time.monotonic`, which all processes of a machine share.
    """

    client: str
    key: str
    action: Action
    invoked: float
    returned: float | None = None
    outcome: Answer | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the client knows the outcome."""
        return self.returned is not None and self.outcome != UNKNOWN

    @property
    def operation(self) -> Operation:
        """Return this call for the check of linearizability."""
        if not self.is_settled:
            return Operation(self.client, self.action, self.invoked)
        return Operation(self.client, self.action, self.invoked, self.returned, self.outcome)


class ClientRecord:
    """The record of one client, open for writing."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # Remove an incomplete last line: the client was killed while writing it, and had not acted on it yet.
        os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)
        self.calls = calls_in(path)

    def called(self, key: str, action: Action) -> None:
        """Record a call that the client makes next."""
        self._write(["call", key, type(action).__name__, asdict(action)])

    def answered(self, outcome: Answer) -> None:
        """Record the answer to the last call."""
        self._write(["answer", [outcome.total, outcome.is_completed] if isinstance(outcome, View) else outcome])

    def _write(self, facts: list[Any]) -> None:
        os.write(self._file, json.dumps([time.monotonic(), *facts]).encode() + b"\n")


def calls_in(path: Path) -> list[Call]:
    """Return the calls of one client, in order."""
    return list(_calls(path)) if path.exists() else []


def calls_of(folder: Path) -> list[Call]:
    """Return the calls of all clients."""
    return [call for path in sorted(folder.glob(f"*{SUFFIX}")) for call in _calls(path)]


def _calls(path: Path) -> Iterator[Call]:
    pending: Call | None = None
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        at, kind, *facts = json.loads(line)
        if kind == "call":
            if pending is not None:
                yield pending
            key, action, values = facts
            pending = Call(path.stem, key, _ACTIONS[action](**values), at)
        else:
            assert pending is not None, f"{path}: an answer without a call"
            [outcome] = facts
            view = View(*outcome) if isinstance(outcome, list) else outcome
            yield Call(path.stem, pending.key, pending.action, pending.invoked, at, view)
            pending = None
    if pending is not None:
        yield pending
