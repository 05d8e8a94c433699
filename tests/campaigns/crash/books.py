"""What a client of a service that is killed writes down: what it asks for, before it asks, and each answer it gets.

One file a client, a line a note, written with one call and never synced: it is the service that is killed, not the
machine. A client that is killed too goes on from its book.
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
UNHEARD: Final = "unheard"  # no answer came: the connection was refused or cut
AGAIN: Final = frozenset({UNHEARD, "T00", "store_unavailable"})  # what the very same request is sent again for


@frozen
class Asked:
    """A request of a `kind`. `key` names it in its book: the condition of a packet in hex, the credit id of a call."""

    kind: str
    key: str
    payment: str = ""
    amount: int = 0
    sequence: int = 0
    packet: str = ""  # in hex


@frozen
class Answered:
    """What a request was answered: `fulfilled`, `booked`, `created`, or the code of a refusal."""

    key: str
    said: str
    details: dict[str, Any] = field(factory=dict)


Note = Asked | Answered


class Book:
    """The book of one client, opened to go on with."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        # The last line may be in part: its writer was killed. It had not acted on it, so it may go.
        os.ftruncate(self._file, path.read_bytes().rfind(b"\n") + 1)

    def asked(self, **facts: Any) -> Asked:
        """Note a request that is about to be sent."""
        note = Asked(**facts)
        self._write(["asked", note.kind, note.key, note.payment, note.amount, note.sequence, note.packet])
        return note

    def answered(self, key: str, said: str, **details: Any) -> None:
        """Note an answer, or that there was none."""
        self._write(["answered", key, said, details])

    def _write(self, line: list[Any]) -> None:
        with self._lock:
            os.write(self._file, json.dumps(line).encode() + b"\n")


class Reader:
    """Follows a book that another process writes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def more(self) -> Iterator[Note]:
        """The notes that were written since, but for a line that is there in part."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # its rest, which may come at any moment, would be taken for a line
                    return
                self._offset += len(line)
                kind, *facts = json.loads(line)
                yield Asked(*facts) if kind == "asked" else Answered(*facts)


def notes_in(path: Path) -> Iterator[Note]:
    """All notes of a book."""
    return Reader(path).more()


def pending(notes: Iterable[Note]) -> list[Asked]:
    """What was asked and has no answer that is final."""
    left: dict[str, Asked] = {}
    for note in notes:
        if isinstance(note, Asked):
            left[note.key] = note
        elif note.said not in AGAIN:
            left.pop(note.key, None)
    return list(left.values())
