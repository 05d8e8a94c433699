"""Helpers for files, which use only the operating system, not SQLite."""

import errno
import fcntl
import os
from typing import Final

# errors about a lack of resources, after which a repeated call may succeed
OUT_OF_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
Identity = tuple[int, int]


def stat(path: str) -> os.stat_result | None:
    """Return the status of the file at `path`, or `None` if there is no file."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def identity(found: os.stat_result) -> Identity:
    """Return the device and the inode number of a file. They identify the file while it exists."""
    return found.st_dev, found.st_ino


def sync(descriptor: int) -> None:
    """Write the file to the disk. On macOS, only `F_FULLFSYNC` reaches the disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_directory(path: str) -> None:
    """Sync the names of the files in a directory. SQLite also syncs the names, but ignores an error."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def says_nothing_about_the_disk(error: OSError) -> bool:
    """Return whether this process lacks memory or descriptors, or a signal handler has raised `error`."""
    return error.errno is None or error.errno in OUT_OF_RESOURCES - {errno.ENOSPC}
