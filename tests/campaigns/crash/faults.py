"""`serve` with fault injection: it kills itself at one exact step, or breaks one promise so that a check must notice.

    python -m campaigns.crash.faults NAME,... serve --config FILE        with PYTHONPATH=tests

The names are those in `FAULTS`. A kill inside a commit replaces the system calls of SQLite, as SQLite's own tests do
(`xSetSystemCall`), in the library that Python uses.
"""

import _sqlite3
import asyncio
import ctypes
import itertools
import os
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
from incoming_payments.ports.approval import Approval
from incoming_payments.server import command
from incoming_payments.server import serve as server
from incoming_payments.stores.sqlite._queue import Job, deliver
from incoming_payments.stores.sqlite._writer import Writer

PAIR: Final = 2  # packets in the batch that is killed


def die() -> None:
    """Kill this process by SIGKILL, so that it closes and flushes nothing."""
    os.kill(os.getpid(), signal.SIGKILL)


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute by `make(its value)`."""
    setattr(owner, name, make(getattr(owner, name)))


# --- statements --------------------------------------------------------------------------------------

_before: Final[list[tuple[str, Callable[[sqlite3.Connection], object]]]] = []
_after: Final[list[tuple[str, Callable[[sqlite3.Connection], object]]]] = []


class Watched(sqlite3.Connection):
    """A connection that runs an action before or after statements that begin with a given text."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        """Execute the statement and its actions."""
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
_kept: Final[list[Any]] = []  # C calls these functions, so Python must not free them


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
    """Return whether the system calls of SQLite can be replaced here."""
    return sys.platform == "linux" and _vfs() is not None


def _vfs() -> Any:
    try:
        find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
    except (AttributeError, OSError):  # SQLite is built into Python, or its names are hidden
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
    """Call `then` when the last frame of a transaction is written to the log, before the sync."""

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
    """Die in the `nth` write of a page to the file, with half of the page written."""

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


# --- steps at which the process dies ----------------------------------------------------------------------------------


def packet_arrived() -> None:
    """Die when a packet has arrived, before it is parsed."""
    replace(receive_packet, "open_packet", lambda _: lambda *_, **__: die())


def between_packets() -> None:
    """Die when one packet of the batch is decided and the next is not."""
    _after_work(1)


def batch_decided() -> None:
    """Die when all packets of the batch are decided and nothing is written."""
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

    def make(transact: Callable[..., None]) -> Any:
        def transact_counted(writer: Writer, jobs: list[Job[Any]], *, may_add: bool) -> None:
            del may_add  # jobs that are added later would not be counted
            for job in jobs:
                job.work = partial(counted, job.work)
            transact(writer, jobs, may_add=False)

        return transact_counted

    replace(Writer, "_transact", make)


def between_statements() -> None:
    """Die when the transaction has written the new total and not the credits."""
    _before.append(("INSERT INTO credits", lambda _: die()))


def before_commit() -> None:
    """Die when everything is written and the commit has not begun."""
    _before.append(("COMMIT", lambda _: die()))


def log_page_torn() -> None:
    """Die when the commit has written half of a page to the log."""
    _tear("-wal", 2)


def log_written() -> None:
    """Die when the commit has written all of the log and not synced it."""
    _on_commit_frame(die)


def log_synced() -> None:
    """Die when the commit has synced the log and not returned."""
    is_logged = False

    def entry() -> None:
        nonlocal is_logged
        is_logged = True

    def make(real: Any) -> Callable[[int, int, int], int]:
        def lock(descriptor: int, request: int, argument: int) -> int:
            if is_logged:  # SQLite releases its lock
                die()
            return int(real(descriptor, request, argument))

        return lock

    _on_commit_frame(entry)
    _replace_system_call(b"fcntl", _LOCK, make)


def checkpoint_torn() -> None:
    """Die after the commit, when half of a page is copied from the log to the database file."""
    _after.append(("PRAGMA synchronous", lambda connection: connection.execute("PRAGMA wal_autocheckpoint = 1")))
    _tear(".sqlite3", 1)


def after_commit() -> None:
    """Die when the commit is done and no reply is sent."""
    _after.append(("COMMIT", lambda _: die()))


def after_reply() -> None:
    """Die when the replies are sent."""
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


def during_recovery() -> None:
    """Die in a new process that reads the log of a killed one."""
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


# --- broken promises -------------------------------------------------------------------------------


def answer_before_commit() -> None:
    """Fulfill packets before their commit."""
    under_way: Sequence[Job[Any]] = ()

    def make(transact: Callable[..., None]) -> Any:
        def noting(writer: Writer, jobs: list[Job[Any]], *, may_add: bool) -> None:
            nonlocal under_way
            under_way = jobs
            transact(writer, jobs, may_add=may_add)

        return noting

    def answer(_: sqlite3.Connection) -> None:
        deliver(under_way)
        time.sleep(0.05)  # as a slow disk would take

    replace(Writer, "_transact", make)
    _before.append(("COMMIT", answer))


def random_credit_ids() -> None:
    """Use the random nonce of the reply as the credit id, which does not depend on the packet."""
    replace(Arrival, "credit_id", lambda _: property(lambda arrival: CreditId(f"stream:{arrival._nonce.hex()}")))


def commit_in_two_steps() -> None:
    """Commit the new total first, and the credits after it."""

    def part(connection: sqlite3.Connection) -> None:
        sqlite3.Connection.execute(connection, "COMMIT")
        time.sleep(0.05)
        sqlite3.Connection.execute(connection, "BEGIN IMMEDIATE")

    _before.append(("INSERT INTO credits", part))


# --- the process -------------------------------------------------------------------------------------


def batches_of_two() -> None:
    """Run the writer only when two jobs wait, so that a test knows the batch."""
    waiting: list[Job[Any]] = []

    def make(run: Callable[..., None]) -> Any:
        def run_pairs(writer: Writer, jobs: list[Job[Any]], *, may_add: bool) -> None:
            waiting.extend(jobs)
            if len(waiting) >= PAIR:
                pair = waiting.copy()
                waiting.clear()
                run(writer, pair, may_add=may_add)

        return run_pairs

    replace(Writer, "_run", make)


class UnsteadyRules:
    """A host that approves most requests. It delays the others, fails, or hangs until after the bound.

    The other answers come early and by turns, so a short campaign on a busy machine has each of them.
    """

    def __init__(self) -> None:
        self._payments, self._credits = itertools.count(), itertools.count()

    async def approve_payment(self, _: object) -> Approval:
        """Usually approve."""
        return await self._answer(next(self._payments))

    async def approve_credit(self, _: object) -> Approval:
        """Usually approve."""
        return await self._answer(next(self._credits))

    async def _answer(self, number: int) -> Approval:
        turn = number % 20
        if turn == 2:
            raise RuntimeError("the approval port is broken")
        if turn == 7:
            await asyncio.sleep(10)
        return Approval.PENDING if turn == 1 else Approval.APPROVED


def unsteady_approval() -> None:
    """Request the approval of an unsteady host for each payment and packet."""
    rules = {"approval": UnsteadyRules(), "approval_s": 0.1}
    replace(server, "AsyncPorts", lambda ports: partial(ports, **rules))


KILL_POINTS: Final = (
    packet_arrived, between_packets, batch_decided, between_statements, before_commit, log_page_torn, log_written,
    log_synced, after_commit, checkpoint_torn, after_reply, during_recovery,
)  # fmt: skip
BROKEN_PROMISES: Final = (answer_before_commit, random_credit_ids, commit_in_two_steps)
FAULTS: Final = {fault.__name__: fault for fault in (*KILL_POINTS, *BROKEN_PROMISES, batches_of_two, unsteady_approval)}


def main(names: str, *arguments: str) -> int:
    """Run the `incoming-payments` command with all faults in `names`, in this order."""
    replace(sqlite3, "connect", lambda connect: partial(connect, factory=Watched))
    for name in names.split(","):
        FAULTS[name]()
    return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
