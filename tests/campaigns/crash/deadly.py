"""`serve`, spoilt for tests: it kills itself at one exact moment, or breaks one promise, to see that it is noticed.

    python -m campaigns.crash.deadly NAME,... serve --config FILE

The names are those in `SPOILS`. The moments inside a commit are met by replacing what SQLite calls to write a file, as
SQLite's own tests do (`xSetSystemCall`), in the very library that Python uses.
"""

import _sqlite3
import ctypes
import os
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from incoming_payments.domain.payment import CreditId
from incoming_payments.flows import receive_packet
from incoming_payments.hosts import asgi
from incoming_payments.ilp.receive import Arrival
from incoming_payments.server import command
from incoming_payments.stores.sqlite._queue import Job, deliver
from incoming_payments.stores.sqlite._writer import Writer

PAIR: Final = 2  # packets in the batch that is killed


def die() -> None:
    """SIGKILL, here and now: nothing is closed, flushed or handed back."""
    os.kill(os.getpid(), signal.SIGKILL)


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(what it is)` in the place of an attribute."""
    setattr(owner, name, make(getattr(owner, name)))


# --- statements --------------------------------------------------------------------------------------

_before: Final[list[tuple[str, Callable[[sqlite3.Connection], object]]]] = []
_after: Final[list[tuple[str, Callable[[sqlite3.Connection], object]]]] = []


class Watched(sqlite3.Connection):
    """A connection that has something done before and after statements that begin in a certain way."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        """With what is to be done."""
        _do(_before, sql, self)
        cursor = super().execute(sql, *arguments)
        _do(_after, sql, self)
        return cursor

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        """With what is to be done."""
        _do(_before, sql, self)
        cursor = super().executemany(sql, *arguments)
        _do(_after, sql, self)
        return cursor


def _do(
    actions: Sequence[tuple[str, Callable[[sqlite3.Connection], object]]], sql: str, connection: sqlite3.Connection
) -> None:
    for start, action in actions:
        if sql.startswith(start):
            action(connection)


# --- system calls ------------------------------------------------------------------------------------

_POINTERS: Final = (
    "open", "delete", "access", "full_path", "dl_open", "dl_error", "dl_sym", "dl_close", "randomness", "sleep", "time",
    "last_error", "time64",
)  # fmt: skip
_SET: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_GET: Final = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_WRITE: Final = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
_LOCK: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
_FRAME_HEADER_BYTES: Final = 24
_kept: Final[list[Any]] = []  # what C may call has to stay


class Vfs(ctypes.Structure):
    """`sqlite3_vfs`, version 3."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_bytes", ctypes.c_int),
        ("path_bytes_max", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("set_system_call", _SET),
        ("get_system_call", _GET),
    )


def watches_files() -> bool:
    """Whether the system calls of the SQLite that Python uses can be replaced here."""
    return sys.platform == "linux" and _vfs() is not None


def _vfs() -> Any:
    try:
        find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
    except (AttributeError, OSError):  # built in, or linked so that its names are not to be seen
        return None
    find.restype = ctypes.POINTER(Vfs)
    vfs = find(None)
    return vfs if vfs.contents.version >= 3 and vfs.contents.get_system_call(vfs, b"pwrite64") else None


def _replace_system_call(name: bytes, kind: Any, make: Callable[[Any], Callable[..., int]]) -> None:
    vfs = _vfs()
    hook = kind(make(kind(vfs.contents.get_system_call(vfs, name))))
    _kept.append(hook)
    vfs.contents.set_system_call(vfs, name, ctypes.cast(hook, ctypes.c_void_p))


def _is(descriptor: int, ending: str) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").endswith(ending)


def _on_commit_frame(then: Callable[[], None]) -> None:
    """Do it when the last frame of a transaction has been written to the log, and not yet synced."""

    def make(real: Any) -> Callable[[int, int, int, int], int]:
        is_last = False

        def write(descriptor: int, data: int, count: int, offset: int) -> int:
            nonlocal is_last
            written = int(real(descriptor, data, count, offset))
            if _is(descriptor, "-wal"):
                if is_last:
                    then()
                # https://sqlite.org/fileformat2.html#walformat: 4 bytes that are 0 unless the frame is the last one
                is_last = count == _FRAME_HEADER_BYTES and ctypes.string_at(data + 4, 4) != bytes(4)
            return written

        return write

    _replace_system_call(b"pwrite64", _WRITE, make)


def _tear(ending: str, nth: int) -> None:
    """Die in the `nth` write of a page to the file, when half of it is written."""

    def make(real: Any) -> Callable[[int, int, int, int], int]:
        pages = 0

        def write(descriptor: int, data: int, count: int, offset: int) -> int:
            nonlocal pages
            if count >= 512 and _is(descriptor, ending):
                pages += 1
                if pages == nth:
                    real(descriptor, data, count // 2, offset)
                    die()
            return int(real(descriptor, data, count, offset))

        return write

    _replace_system_call(b"pwrite64", _WRITE, make)


# --- moments to die ----------------------------------------------------------------------------------


def arrived() -> None:
    """The packet has arrived, and is not read yet."""
    replace(receive_packet, "open_packet", lambda _: lambda *_, **__: die())


def between() -> None:
    """One packet of the batch is decided, the next is not."""
    _after_work(1)


def decided() -> None:
    """All packets of the batch are decided, nothing is written."""
    _after_work(PAIR)


def _after_work(nth: int) -> None:
    done = 0

    def counted(work: Callable[[Any], Any], batch: Any) -> Any:
        nonlocal done
        answer = work(batch)
        done += 1
        if done == nth:
            die()
        return answer

    def make(transact: Callable[[Writer, Sequence[Job[Any]]], None]) -> Any:
        def transact_counted(writer: Writer, jobs: Sequence[Job[Any]]) -> None:
            for job in jobs:
                job.work = partial(counted, job.work)
            transact(writer, jobs)

        return transact_counted

    replace(Writer, "_transact", make)


def written_in_part() -> None:
    """The new total is written, in the transaction, and the credits are not."""
    _before.append(("INSERT INTO credits", lambda _: die()))


def uncommitted() -> None:
    """All is written, and the commit has not begun."""
    _before.append(("COMMIT", lambda _: die()))


def logged_in_part() -> None:
    """The commit has written half of a page to the log."""
    _tear("-wal", 2)


def logged() -> None:
    """The commit has written all of the log, and not synced it."""
    _on_commit_frame(die)


def synced() -> None:
    """The commit has synced the log, and not said so."""
    is_logged = False

    def note() -> None:
        nonlocal is_logged
        is_logged = True

    def make(real: Any) -> Callable[[int, int, int], int]:
        def lock(descriptor: int, request: int, argument: int) -> int:
            if is_logged:  # SQLite lets go of its lock
                die()
            return int(real(descriptor, request, argument))

        return lock

    _on_commit_frame(note)
    _replace_system_call(b"fcntl", _LOCK, make)


def checkpointing() -> None:
    """The commit is done, and half of a page has been copied from the log into the file."""
    _after.append(("PRAGMA synchronous", lambda connection: connection.execute("PRAGMA wal_autocheckpoint = 1")))
    _tear(".sqlite3", 1)


def committed() -> None:
    """The commit is done, and nobody was told."""
    _after.append(("COMMIT", lambda _: die()))


def answered() -> None:
    """The replies have left."""
    sent = 0

    def make(send: Callable[..., Any]) -> Callable[..., Any]:
        async def send_and_die(*arguments: Any) -> None:
            nonlocal sent
            await send(*arguments)
            sent += 1
            if sent == PAIR:
                die()

        return send_and_die

    replace(asgi, "_send", make)


def recovering() -> None:
    """A new process reads the log that a killed one has left."""
    frames = 0

    def make(real: Any) -> Callable[[int, int, int, int], int]:
        def read(descriptor: int, data: int, count: int, offset: int) -> int:
            nonlocal frames
            if count >= 512 and _is(descriptor, "-wal"):
                frames += 1
                if frames == PAIR:
                    die()
            return int(real(descriptor, data, count, offset))

        return read

    _replace_system_call(b"pread64", _WRITE, make)


# --- promises to break -------------------------------------------------------------------------------


def answers_first() -> None:
    """Fulfils before it commits."""
    under_way: Sequence[Job[Any]] = ()

    def make(transact: Callable[[Writer, Sequence[Job[Any]]], None]) -> Any:
        def noting(writer: Writer, jobs: Sequence[Job[Any]]) -> None:
            nonlocal under_way
            under_way = jobs
            transact(writer, jobs)

        return noting

    def answer(_: sqlite3.Connection) -> None:
        deliver(under_way)
        time.sleep(0.05)  # as a slow disk would take

    replace(Writer, "_transact", make)
    _before.append(("COMMIT", answer))


def forgets_ids() -> None:
    """Credits under an id that has nothing to do with the packet."""
    replace(Arrival, "credit_id", lambda _: property(lambda _: CreditId(f"stream:{secrets.token_hex(16)}")))


def commits_apart() -> None:
    """Commits the new total first, and the credits after it."""

    def part(connection: sqlite3.Connection) -> None:
        sqlite3.Connection.execute(connection, "COMMIT")
        time.sleep(0.05)
        sqlite3.Connection.execute(connection, "BEGIN IMMEDIATE")

    _before.append(("INSERT INTO credits", part))


# --- the process -------------------------------------------------------------------------------------


def in_pairs() -> None:
    """Commits when two jobs wait, and no sooner: so that a batch is what a test thinks it is."""
    waiting: list[Job[Any]] = []

    def make(run: Callable[[Writer, Sequence[Job[Any]]], None]) -> Any:
        def run_pairs(writer: Writer, jobs: Sequence[Job[Any]]) -> None:
            waiting.extend(jobs)
            if len(waiting) >= PAIR:
                pair = tuple(waiting)
                waiting.clear()
                run(writer, pair)

        return run_pairs

    replace(Writer, "run", make)


MOMENTS: Final = (
    arrived, between, decided, written_in_part, uncommitted, logged_in_part, logged, synced, committed, checkpointing,
    answered, recovering,
)  # fmt: skip
SPOILS: Final = {spoil.__name__: spoil for spoil in (*MOMENTS, answers_first, forgets_ids, commits_apart, in_pairs)}


def main(names: str, *arguments: str) -> int:
    """Run the `incoming-payments` command, spoilt by all of `names`, in this order."""
    replace(sqlite3, "connect", lambda connect: partial(connect, factory=Watched))
    for name in names.split(","):
        SPOILS[name]()
    return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
