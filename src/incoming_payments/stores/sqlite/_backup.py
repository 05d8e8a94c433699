"""Copies of a database in use, by SQLite's own backup."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from incoming_payments.errors import BackupFailed
from incoming_payments.limits import STORE_BUSY_S_MAX
from incoming_payments.stores.sqlite._database_id import renew_id
from incoming_payments.stores.sqlite._rows import file_of
from incoming_payments.stores.sqlite._schema import APPLICATION_ID

# A backup must not have one of these names: SQLite and the store use them for files beside the database. While a
# backup is in progress, its file has the suffix `.partial`.
_OWN_SUFFIXES: Final = ("-journal", "-wal", "-shm", "-lock", ".partial")


def back_up(source: sqlite3.Connection, target: str | os.PathLike[str], check_answer: Callable[[], None]) -> None:
    """Copy the database of `source` to the new file `target`, sync the file, and read it back.

    Raises `BackupFailed`. Raises the error of `check_answer` if the database may have lacked pages.
    """
    path = _checked_path(target)
    partial = path.with_name(f"{path.name}.partial")
    database = file_of(source)
    if str(path) in [f"{database}{suffix}" for suffix in _OWN_SUFFIXES]:
        text = f"{path} is the name of a file that the database {database} uses: choose another name for the backup"
        raise BackupFailed(text)
    if path.exists():
        raise BackupFailed(f"{path} exists: choose the path of a new file for the backup")
    try:
        # only the owner may read the payments
        os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        raise BackupFailed(f"{partial} exists: remove it, unless another backup is running") from None
    except OSError as error:
        raise BackupFailed(
            f"{path} cannot be created ({error.strerror}): choose another path, or correct its directory"
        ) from error
    try:
        version, expected = _copy(source, partial)
        _sync(partial)
        _verify(partial, version, expected)
        check_answer()  # make all checks before the backup gets its name
        # `link` refuses to replace a file that another program has created in the meantime.
        os.link(partial, path)
        try:
            _sync(path.parent)
        except OSError:
            _remove(path)
            raise
    except (OSError, sqlite3.Error) as error:
        raise BackupFailed(f"the backup to {path} failed, and was removed: {error}") from error
    finally:
        _remove(partial)


def _checked_path(target: str | os.PathLike[str]) -> Path:
    text = os.fspath(target)
    if not isinstance(text, str) or "\0" in text or not Path(text).name:
        raise BackupFailed(f"a backup needs the path of a new file, not {target!r}")
    return Path(os.path.realpath(text))


def _copy(source: sqlite3.Connection, path: Path) -> tuple[int, dict[str, int]]:
    """Copy one snapshot of `source`, and return its schema version and its row counts."""
    with closing(sqlite3.connect(path, isolation_level=None)) as copy:
        # Let SQLite wait for locks, because the step that copies cannot be repeated alone.
        source.execute(f"PRAGMA busy_timeout = {STORE_BUSY_S_MAX * 1000:.0f}")
        source.execute("BEGIN")
        try:
            (version,) = source.execute("PRAGMA user_version").fetchone()
            counts = _counts(source)
            source.backup(copy)
        finally:
            source.rollback()
            source.execute("PRAGMA busy_timeout = 0")
        # The header of the source says WAL. Turn WAL off, so that the copy is a single file.
        copy.execute("PRAGMA journal_mode = DELETE")
        renew_id(copy)  # the log of the source does not belong to the copy
    return version, counts


def _verify(path: Path, version: int, expected: dict[str, int]) -> None:
    """Raise `BackupFailed` unless the file at `path` is a sound database with the `expected` row counts."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as copy:
        [*problems] = (problem for (problem,) in copy.execute("PRAGMA integrity_check") if problem != "ok")
        identify = "SELECT application_id, user_version FROM pragma_application_id, pragma_user_version"
        identity = copy.execute(identify).fetchone()
        if problems or identity != (APPLICATION_ID, version) or _counts(copy) != expected:
            why = "; ".join(problems[:3]) or "its header or its row counts differ from those of the database"
            raise BackupFailed(f"the backup differs from what was written, and was removed ({why}): check the disk")


def _counts(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the number of rows of each table, except the id, which differs in a copy."""
    found = "SELECT name FROM sqlite_master WHERE type = 'table' AND name <> 'database_id'"
    names = [name for (name,) in connection.execute(found)]
    return {name: int(connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in names}  # noqa: S608


def _sync(path: Path) -> None:
    """Sync a file or directory, and drop its data from the page cache, so that a later read comes from the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):  # pragma: no branch - macOS has none
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):
            os.unlink(f"{path}{suffix}")
