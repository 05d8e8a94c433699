"""Check SQLite's log before and after each commit. The store acknowledges only commits that are on the disk."""

import contextlib
import os
from typing import Final

from incoming_payments.stores.sqlite import _disk
from incoming_payments.stores.sqlite._lock_file import TAG_BYTES
from incoming_payments.stores.sqlite._watch import FileWatch

# The header of the log, see https://sqlite.org/fileformat2.html#the_write_ahead_log. Two salts begin at byte 16. Each
# new log has other salts.
_LOG_MAGIC: Final = (bytes.fromhex("377f0682"), bytes.fromhex("377f0683"))
_LOG_HEADER_BYTES: Final = 24
_SALTS: Final = slice(16, 24)


class LogWatch:
    """A watch over the log for the one connection that writes. Create it when the connection has opened the log."""

    def __init__(self, files: FileWatch) -> None:
        self._files = files
        self._path = files.log_path
        self._last: tuple[bytes, int] | None = None  # the log after the last commit: its salts, and its size in bytes
        self._salts, self._bytes = b"", 0  # the salts and the size of the log before the commit in progress
        self._tag = os.urandom(TAG_BYTES)
        try:
            # Closing this descriptor releases no lock of SQLite, because SQLite locks only the database and the index.
            self._log = os.open(self._path, os.O_RDWR)
        except FileNotFoundError as error:
            raise files.stop(f"{self._path} was removed while it was open") from error
        self._file = _disk.identity(os.fstat(self._log))
        try:
            self.check_names()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the descriptor of the log."""
        with contextlib.suppress(OSError):  # the descriptor has written nothing that could be lost
            os.close(self._log)

    def before_write(self) -> bool:
        """Check the log, and return whether the log was emptied since the last commit.

        The caller must hold SQLite's write lock. If a checkpoint has emptied the log, the caller calls `forget`. Stops
        the store if another program has emptied the log.
        """
        # Check before the write. If the index was replaced, this store has not seen the commits of other processes.
        self.check_names()
        (size_bytes, header), last = self._read(), self._last
        is_empty, self._salts, self._bytes = size_bytes < _LOG_HEADER_BYTES, header[_SALTS], size_bytes
        if not is_empty and header[:4] not in _LOG_MAGIC:
            raise self._files.stop(f"{self._path} was emptied while it was open")
        if last is None or size_bytes >= last[1]:
            return False
        # SQLite shortens the log only after it has begun a new log, which has other salts.
        if not is_empty and self._salts == last[0]:
            raise self._files.stop(f"{self._path} was shortened while it was open")
        return is_empty

    def forget(self) -> None:
        """Forget the last commit, because a checkpoint has emptied the log."""
        self._last = None

    def is_new_committer(self) -> bool:
        """Mark this connection as the last one that committed. Return false if it already was the last one."""
        return self._files.is_new_committer(self._tag)

    def after_commit(self) -> int:
        """Check that the commit is in the files that the paths name. Returns the size of the log in bytes."""
        self.check_names()
        size_bytes, header = self._read()
        # The log may be empty, because a checkpoint may have emptied it since the commit. If another program emptied
        # the log before the commit, the log has content but no header.
        if size_bytes and header[:4] not in _LOG_MAGIC:
            raise self._files.stop(f"{self._path} was emptied while it was open")
        # The write lock is released, so another process may have begun a new log, which has other salts. SQLite may
        # then still shorten the log.
        salts = header[_SALTS]
        if (salts == self._salts and size_bytes < self._bytes) or self._has_hole():
            raise self._files.stop(f"{self._path} was shortened while it was open")
        self._last = salts, size_bytes if salts == self._salts else _LOG_HEADER_BYTES
        return size_bytes

    def check_names(self) -> None:
        """Stop the store unless the paths name the open files."""
        self._files.check()
        log = _disk.stat(self._path)
        if log is None or _disk.identity(log) != self._file:
            raise self._files.stop(f"{self._path} was removed or replaced while it was open")

    def _has_hole(self) -> bool:
        """Return whether the log has a hole, because it was shortened before SQLite wrote to it again."""
        while True:
            size_bytes = self._size()
            try:
                hole = os.lseek(self._log, 0, os.SEEK_HOLE)
            except OSError:  # a checkpoint has emptied the log
                return False
            if self._size() == size_bytes:
                return hole < size_bytes

    def _read(self) -> tuple[int, bytes]:
        """Return the size of the log in bytes, and its header."""
        while True:
            size_bytes, header = self._size(), os.pread(self._log, _LOG_HEADER_BYTES, 0)
            if self._size() == size_bytes:
                return size_bytes, header

    def _size(self) -> int:
        """Return the size of the log in bytes. Another process may change the size between two calls."""
        return os.lseek(self._log, 0, os.SEEK_END)
