"""The schema version of the database: create the tables of a new file, and upgrade a file of an earlier version.

A store upgrades a file only while it holds the exclusive lock on the lock file, which every open store shares. So no
process of an earlier release can have the file open. Before the upgrade, the store writes a backup beside the file. The
upgrade is one transaction, so a killed process leaves the file in its old version.
"""

import logging
import sqlite3
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Final

from incoming_payments.errors import BackupFailed, StoreUnusable
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.stores.sqlite._backup import back_up
from incoming_payments.stores.sqlite._moves import is_moved, moved, own_version
from incoming_payments.stores.sqlite._schema import APPLICATION_ID, PARTS, UPGRADES, VERSION, VERSION_1

# A single statement, so that all three values are from before or from after another process creates the tables.
_IDENTIFY: Final = (
    "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
    "FROM pragma_application_id, pragma_user_version"
)

logger = logging.getLogger("incoming_payments.stores.sqlite")


def prepare_tables(connection: sqlite3.Connection, path: Path, *, is_alone: bool, may_be_moved: bool) -> None:
    """Create the tables of an empty file, or check those of another file. If `is_alone` is true, upgrade an older file.

    Raises `StoreUnusable`, and any `sqlite3.Error`.
    """
    _version(
        connection, path, may_be_moved=may_be_moved
    )  # check the version first, because the file may belong to another application
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise StoreUnusable(
            f"the file system of {path} cannot hold a write-ahead log (WAL): keep the database on a local disk"
        )
    version = _version(connection, path, may_be_moved=may_be_moved)
    if version == 0:
        _create(connection, path)
    elif version < VERSION:
        _upgrade(connection, path, version, is_alone=is_alone)
    _check_parts(connection, path)


def check_version(connection: sqlite3.Connection, path: Path, *, may_be_moved: bool) -> None:
    """Raise `StoreUnusable` for another schema version. Another program may change the version at any time."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if is_moved(version) and not may_be_moved:
        raise moved(connection, path)
    if own_version(version) != VERSION:
        raise _refusal(path, own_version(version))


def _create(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have created the tables before this process got the lock.
        is_new = _version(connection, path, may_be_moved=False) == 0
        if is_new:
            _execute(connection, *VERSION_1, f"PRAGMA application_id = {APPLICATION_ID}")
            _upgrade_tables(connection, 1)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    if is_new:
        text = "created the database %s, which holds no payments yet"
        log_event(logger, logging.INFO, LogEvent.DATABASE_CREATED, text, path)


def _upgrade(connection: sqlite3.Connection, path: Path, version: int, *, is_alone: bool) -> None:
    """Write a backup beside the file, and bring the tables to the current version in one transaction."""
    if not is_alone:
        raise StoreUnusable(
            f"{path} has schema version {version}, and cannot be upgraded to version {VERSION} while a process of an "
            "earlier release has it open: end every process that uses the database, and start again"
        )
    names = (f"{path}.version-{version}-{number}.backup" for number in count(1))
    backup = next(name for name in names if not Path(name).exists() and not Path(f"{name}.partial").exists())
    # Take the write lock before the backup. No other program can write in between, and a caller that repeats this
    # function because the lock is taken repeats no backup.
    connection.execute("BEGIN IMMEDIATE")
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)) as source:
            back_up(source, backup, lambda: None)
        _upgrade_tables(connection, version)
        connection.execute("COMMIT")
    except BackupFailed as error:
        connection.rollback()
        raise StoreUnusable(
            f"{path} has schema version {version}, and was not upgraded to version {VERSION}, because "
            f"{error.description}"
        ) from error
    except BaseException:
        connection.rollback()
        raise
    text = "upgraded the database %s from schema version %d to %d; its backup is %s"
    log_event(logger, logging.WARNING, LogEvent.DATABASE_UPGRADED, text, path, version, VERSION, backup)


def _upgrade_tables(connection: sqlite3.Connection, version: int) -> None:
    for earlier in range(version, VERSION):
        _execute(connection, *UPGRADES[earlier])
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _check_parts(connection: sqlite3.Connection, path: Path) -> None:
    """Raise `StoreUnusable` for a file that lacks tables or indexes."""
    found = {f"{type} {name}" for type, name in connection.execute("SELECT type, name FROM sqlite_master")}
    missing = [part for part in PARTS if part not in found]
    if missing:
        raise StoreUnusable(
            f"{path} has schema version {VERSION}, but lacks {', '.join(missing)}: restore the file from a backup"
        )


def _version(connection: sqlite3.Connection, path: Path, *, may_be_moved: bool) -> int:
    """Return the version of the tables, or 0 for an empty file.

    Raises `StoreUnusable` for the file of another program, for a version that this release cannot upgrade, and, unless
    `may_be_moved` is true, for a file that was moved.
    """
    application, version, tables = connection.execute(_IDENTIFY).fetchone()
    if application != APPLICATION_ID:
        if (application, version, tables) != (0, 0, 0):
            raise StoreUnusable(f"{path} is the database of another application: choose another file")
        return 0
    if is_moved(version) and not may_be_moved:
        raise moved(connection, path)
    version = own_version(version)
    if version != VERSION and version not in UPGRADES:
        raise _refusal(path, version)
    return int(version)


def _refusal(path: Path, version: int) -> StoreUnusable:
    found, oldest = f"{path} has schema version {version}", min(UPGRADES)
    if version > VERSION:
        text = f"{found}, which is newer than version {VERSION} of this release: upgrade incoming-payments"
        return StoreUnusable(text)
    if version < oldest:
        return StoreUnusable(
            f"{found}, which is older than version {oldest}, the oldest that this release can upgrade: restore a "
            f"backup of version {oldest} or later"
        )
    return StoreUnusable(
        f"{found}, which an earlier release has written while this process had the file open: end every process that "
        "uses the database, and start again"
    )


def _execute(connection: sqlite3.Connection, *statements: str) -> None:
    for statement in statements:
        connection.execute(statement)
