"""The record of a client of a service that is killed: each request before it is sent, and each answer.

Each client has one file, with one line for each entry. An entry is one `write` without a sync, because the service is
killed and the machine is not. A client that is killed as well continues with its record.
"""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

PACKET: Final = "packet"
CALL: Final = "call"
CREATE: Final = "create"
ORDER: Final = "order"  # a create with an idempotency key, which is also in the metadata
COMPLETE: Final = "complete"
LIST: Final = "list"  # the key of each wrong answer to a list request. Right answers are not recorded.
NO_ANSWER: Final = "no_answer"  # the connection was refused or closed
STOPPED: Final = "store_stopped"
UNKNOWN: Final = frozenset({NO_ANSWER, STOPPED})  # the service may have carried out the request
_NOT_NOW: Final = ("T00", "T99", "store_unavailable", "acceptance_unavailable", "approval_pending")
RETRIED: Final = UNKNOWN.union(_NOT_NOW)  # the answers after which a client repeats the request


@frozen
class SentRequest:
    """A request of a `kind`. `key` identifies it: the condition of a packet in hex, or the credit id of a call."""

    kind: str
    key: str
    payment: str = ""
    amount: int = 0
    sequence: int = 0
    packet: str = ""  # in hex


@frozen
class ReceivedAnswer:
    """The answer to a request: `fulfilled`, `credited`, `created`, `completed`, or the code of a refusal."""

    key: str
    answer: str
    details: dict[str, Any] = field(factory=dict)


Entry = SentRequest | ReceivedAnswer


class ClientRecord:
    """The record of one client, open for writing."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # Remove an incomplete last line: the client was killed while writing it, and had not acted on it yet.
        os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)

    def sent(self, **facts: Any) -> SentRequest:
        """Record a request that the client sends next."""
        request = SentRequest(**facts)
        facts_in_order = (request.kind, request.key, request.payment, request.amount, request.sequence, request.packet)
        self._write(["sent", *facts_in_order])
        return request

    def answered(self, key: str, answer: str, **details: Any) -> None:
        """Record an answer, or `NO_ANSWER`."""
        self._write(["answered", key, answer, details])

    def _write(self, line: list[Any]) -> None:
        with self._lock:
            os.write(self._file, json.dumps(line).encode() + b"\n")


class Reader:
    """Reads a record while another process writes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_entries(self) -> Iterator[Entry]:
        """Yield the entries that were written since the last call, without an incomplete last line."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # the next call reads the whole line
                    return
                self._offset += len(line)
                kind, *facts = json.loads(line)
                yield SentRequest(*facts) if kind == "sent" else ReceivedAnswer(*facts)


def entries_in(path: Path) -> Iterator[Entry]:
    """Yield all entries of a record."""
    return Reader(path).new_entries()


def pending(entries: Iterable[Entry]) -> list[SentRequest]:
    """Return the requests without a final answer."""
    left: dict[str, SentRequest] = {}
    for entry in entries:
        if isinstance(entry, SentRequest):
            left[entry.key] = entry
        elif entry.answer not in RETRIED:
            left.pop(entry.key, None)
    return list(left.values())
