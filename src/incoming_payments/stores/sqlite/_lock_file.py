"""The lock file `<database>-lock` shows that processes have the database open, and the state of its files.

Each open store holds a shared `flock` on this file. The file begins with a text. The whole text shows that the database
is in use, and a shorter text shows another state. No release may change the text, because stores of two releases would
stop each other. After the text, the file has the tag of the connection that has committed last, the id of the database
(see `_database_id`), and the state of the checkpoints.
"""

import errno
import fcntl
import os
from enum import IntEnum
from typing import Final

from incoming_payments.stores.sqlite import _disk
from incoming_payments.stores.sqlite._database_id import ID_BYTES, UNKNOWN

TAG_BYTES: Final = 8
_TEXT: Final = b"An open database needs this file. Do not remove it.\n"
_TAG_AT: Final = len(_TEXT)
_ID_AT: Final = _TAG_AT + TAG_BYTES
_CHECKPOINTS_AT: Final = _ID_AT + ID_BYTES  # one byte, a member of `Checkpoints`
_CLOSED: Final = -1


class Text(IntEnum):
    """The length of the text in the file. After a shorter text, the file has zeros, or ends if the disk is full."""

    NEW = 0  # no database has used the lock file yet
    STOPPED = 1  # a store has stopped
    RESTORING = 2  # a store is restoring the log, or has failed to restore it
    IN_USE = len(_TEXT)


class Checkpoints(IntEnum):
    """The states of the pages that checkpoints have copied from the log into the database."""

    SYNCED = 0  # the pages are on the disk
    COPIED = 1  # a checkpoint has copied, or is copying, a part of the log, so some pages may not be on the disk
    SYNCING = 2  # some pages may not be on the disk, and another checkpoint has begun, which may sync them


class LockFile:
    """The lock file of one open store. Methods raise `OSError`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.id = UNKNOWN  # the id of the database that the log belongs to
        self._descriptor = _CLOSED
        self._identity: _disk.Identity | None = None

    def open(self) -> None:
        """Open the file, and create it if it does not exist."""
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._identity = _disk.identity(os.fstat(self._descriptor))

    def close(self) -> None:
        """Release the lock. Further calls do nothing."""
        if self._descriptor != _CLOSED:
            os.close(self._descriptor)
            self._descriptor = _CLOSED

    def is_in_place(self) -> bool:
        """Return whether the path still names the open file."""
        found = _disk.stat(self.path)
        return found is not None and _disk.identity(found) == self._identity

    def take(self, kind: int) -> bool:
        """Take the lock, or return false if another process holds it. `kind` is a constant of `fcntl`."""
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            return False
        return True

    def give_to(self, owner: os.stat_result) -> None:
        """Give the file to the user and the group of `owner`."""
        os.fchown(self._descriptor, owner.st_uid, owner.st_gid)

    def text_bytes(self) -> int:
        """Return the length of the text in the file, as a member of `Text`."""
        return len(os.pread(self._descriptor, len(_TEXT), 0).rstrip(b"\0"))

    def is_in_use(self) -> bool:
        """Return whether the whole text is in the file, which means that no store has stopped."""
        return os.pread(self._descriptor, len(_TEXT), 0) == _TEXT

    def shorten_text(self, state: Text) -> None:
        """Shorten the text and keep the id. The tag and the state of the checkpoints are removed."""
        os.ftruncate(self._descriptor, state)
        os.pwrite(self._descriptor, self.id, _ID_AT)

    def write_text(self) -> None:
        """Write the id and the whole text, which shows that the database is in use."""
        os.pwrite(self._descriptor, self.id, _ID_AT)
        os.pwrite(self._descriptor, _TEXT, 0)

    def tag(self) -> bytes:
        """Return the tag of the connection that has committed last."""
        return os.pread(self._descriptor, TAG_BYTES, _TAG_AT)

    def write_tag(self, tag: bytes) -> None:
        """Replace the tag of the connection that has committed last."""
        os.pwrite(self._descriptor, tag, _TAG_AT)

    def read_id(self) -> None:
        """Read the id that another process may have written."""
        id = os.pread(self._descriptor, ID_BYTES, _ID_AT)
        # After a power cut, the file may have zeros in place of the id.
        self.id = id if len(id) == ID_BYTES and any(id) else UNKNOWN

    def checkpoints(self) -> Checkpoints:
        """Return the state of the checkpoints."""
        state = int.from_bytes(os.pread(self._descriptor, 1, _CHECKPOINTS_AT), "big")
        return Checkpoints(min(state, Checkpoints.SYNCING))

    def write_checkpoints(self, state: Checkpoints) -> None:
        """Replace the state of the checkpoints."""
        os.pwrite(self._descriptor, bytes([state]), _CHECKPOINTS_AT)


def text_of_open(path: str) -> int | None:
    """Return the length of the text in the lock file at `path`, or `None` if no store holds the lock file.

    This function creates no file, and keeps no lock. Raises `OSError`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return len(os.pread(descriptor, len(_TEXT), 0).rstrip(b"\0"))
    finally:
        os.close(descriptor)
    return None
