"""Rebuild a disk as a power cut may leave it, from the log of `faulty_disk.c`."""

import random
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

_HEAD: Final = struct.Struct("=IIQQ")
_SECTOR_BYTES: Final = 512
WRITE, TRUNCATE, SYNCED, SYNC_FAILED, REMOVE = range(1, 6)


class Rest(Enum):
    """The part of the data that reached the disk without a sync, or with a failed one."""

    NOTHING = "only synced data"
    SECTORS = "random sectors of 512 bytes"
    EVERYTHING = "everything"


@frozen
class Record:
    """One operation on one file."""

    kind: int
    name: str
    offset: int
    data: bytes


def read_log(path: Path) -> list[Record]:
    """Return the operations in their order."""
    return list(_records(path.read_bytes()))


def _records(log: bytes) -> Iterator[Record]:
    at = 0
    while at < len(log):
        kind, path_bytes, offset, data_bytes = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        name = Path(log[at : at + path_bytes].decode()).name
        at += path_bytes
        data = log[at : at + data_bytes] if kind == WRITE else b""
        at += len(data)
        yield Record(kind, name, offset, data)


@define
class _File:
    synced: bytearray = field(factory=bytearray)
    pending: list[Record] = field(factory=list)

    def sync(self) -> None:
        for record in self.pending:
            _apply(self.synced, record)
        self.pending.clear()

    def lose(self, rest: Rest, rng: random.Random) -> None:
        """Apply a part of the pending data, chosen by `rest`, and drop the other part.

        The kernel believes that all of it is written.
        """
        for record in self.pending if rest is not Rest.NOTHING else ():
            if rest is Rest.EVERYTHING:
                _apply(self.synced, record)
            elif record.kind == TRUNCATE:
                if rng.random() < 0.5:
                    _apply(self.synced, record)
            else:
                for sector in _sectors(record):
                    if rng.random() < 0.5:
                        _apply(self.synced, sector)
        self.pending.clear()


def _sectors(record: Record) -> Iterator[Record]:
    at = 0
    while at < len(record.data):
        size = _SECTOR_BYTES - (record.offset + at) % _SECTOR_BYTES
        yield Record(WRITE, record.name, record.offset + at, record.data[at : at + size])
        at += size


def _apply(content: bytearray, record: Record) -> None:
    end = record.offset + len(record.data)
    if record.kind == TRUNCATE:
        del content[end:]
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[record.offset : end] = record.data


def rebuild(records: Sequence[Record], *, rest: Rest, rng: random.Random) -> dict[str, bytes]:
    """Return the files that the disk holds after a power cut behind the last of `records`."""
    files: defaultdict[str, _File] = defaultdict(_File)
    for record in records:
        file = files[record.name]
        if record.kind in (WRITE, TRUNCATE):
            file.pending.append(record)
        elif record.kind == SYNCED:
            file.sync()
        elif record.kind == SYNC_FAILED:
            file.lose(rest, rng)
        else:
            del files[record.name]
    for file in files.values():
        file.lose(rest, rng)
    return {name: bytes(file.synced) for name, file in files.items()}
