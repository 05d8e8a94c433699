"""Decide from an error of SQLite whether data may be lost, and which error the caller gets."""

import sqlite3
from typing import Final

from incoming_payments.errors import (
    BrokenDecision,
    IncomingPaymentsError,
    StoreError,
    StoreStopped,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.stores.sqlite._watch import FileWatch


def _codes(names: str) -> frozenset[int]:
    """Return SQLite's result codes with these names."""
    return frozenset(getattr(sqlite3, f"SQLITE_{name}") for name in names.split())


# Errors after which written data may be lost. A short read means that a file has become shorter. FULL is not in the
# list, because SQLite rolls back a write that does not fit the disk.
_LOST_DATA: Final = _codes(
    "IOERR_SHORT_READ IOERR_WRITE IOERR_FSYNC IOERR_DIR_FSYNC IOERR_TRUNCATE IOERR_BEGIN_ATOMIC IOERR_COMMIT_ATOMIC "
    "IOERR_ROLLBACK_ATOMIC"
)
# Temporary errors, for example when another process holds the lock or the disk is full.
_TEMPORARY: Final = _codes("BUSY CANTOPEN FULL INTERRUPT IOERR LOCKED NOMEM PERM PROTOCOL READONLY")
_NO_ACCESS: Final = _codes("CANTOPEN PERM READONLY")  # the temporary errors about permissions
_ABOUT_THE_STATEMENT: Final = _codes("CONSTRAINT MISMATCH MISUSE RANGE TOOBIG")


def explain(error: BaseException, watch: FileWatch) -> IncomingPaymentsError:
    """Return the error to raise in place of `error`. Stops the store when data may be lost."""
    if _code(error) in _LOST_DATA:
        error = watch.stop(f"the disk failed ({error}, {getattr(error, 'sqlite_errorname', '')})")
    if isinstance(error, StoreError):
        return type(error)(error.description)
    if blames_the_statement(error) and not isinstance(error, sqlite3.OperationalError):
        return BrokenDecision(
            f"the database refused the values to store ({error}): correct the values that decide returns"
        )
    if _primary_code(error) in _NO_ACCESS:
        return StoreUnavailable(
            f"the database {watch.path} cannot be opened or written ({error}): let the process write to the file and "
            f"to its directory {watch.directory}, and repeat the call"
        )
    if isinstance(error, MemoryError | OSError) or _primary_code(error) in _TEMPORARY:
        return StoreUnavailable(f"the database {watch.path} is unavailable ({error}): repeat the call later")
    advice = "correct the path, or restore" if _primary_code(error) == sqlite3.SQLITE_NOTADB else "restore"
    return StoreUnusable(f"the database {watch.path} cannot be used ({error}): {advice} it from a backup")


def blames_the_statement(error: BaseException) -> bool:
    """Return whether `error` is about the values of one statement, and not about the file or the machine."""
    if isinstance(error, MemoryError | OSError | StoreStopped):
        return False
    code = _primary_code(error)
    return code is None or code in _ABOUT_THE_STATEMENT


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection holds the lock."""
    return _primary_code(error) == sqlite3.SQLITE_BUSY


def _code(error: BaseException) -> int | None:
    """Return SQLite's extended result code, or `None` for an error of Python, such as one about invalid Unicode."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return code


def _primary_code(error: BaseException) -> int | None:
    code = _code(error)
    return None if code is None else code & 0xFF
