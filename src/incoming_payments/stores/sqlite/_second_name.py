"""Refuse a database with a second name, because each name would get its own log, and commits would be lost."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from incoming_payments.errors import StoreUnusable

_MOUNTS: Final = "/proc/self/mountinfo"  # https://man7.org/linux/man-pages/man5/proc_pid_mountinfo.5.html
_MOUNT_POINT: Final = 4  # the index of the mount point among the fields of a line
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")  # the octal form of a space, tab, line break or backslash in a path


def refuse_second_names(paths: Iterable[str]) -> None:
    """Raise `StoreUnusable` when a file of `paths` has several hard links or is mounted as a single file."""
    mounted = _mount_points()
    for path in paths:
        with suppress(FileNotFoundError):
            if (links := os.stat(path).st_nlink) > 1:
                raise StoreUnusable(
                    f"{path} has {links} names (hard links), and a program that uses another name loses payments: "
                    f'end every program that uses the file, list its names with "find DIRECTORY -samefile {path}", and '
                    "remove all names but one. Keep the name with a log (-wal) beside it, if there is one"
                )
        if path in mounted:
            raise StoreUnusable(
                f"{path} is mounted as a single file, and a program that uses its other name loses payments: mount its "
                "directory instead, with all files of the database"
            )


def _mount_points() -> frozenset[str]:
    try:
        with open(_MOUNTS, "rb") as file:
            fields = [line.split(b" ")[_MOUNT_POINT] for line in file]
    except OSError:  # the system is not Linux, or has no /proc
        return frozenset()
    return frozenset(os.fsdecode(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), field)) for field in fields)
