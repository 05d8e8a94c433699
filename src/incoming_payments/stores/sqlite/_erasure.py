"""The erasure of metadata from one SQLite file.

A page of the database and a page of the log can hold a text that no row has any more. The store takes these steps, so
that no copy of the metadata stays in its files:

- The metadata is in a table of its own, and its rows never move. New rows come last, no row grows, and none is deleted.
  SQLite moves the rows of other tables from page to page, and leaves copies in unused bytes, even with `secure_delete`.
- Connections that write have `secure_delete` on, so SQLite overwrites a removed text and its overflow pages with zeros.
- After the erasure, the store copies the log into the database, and empties the log.

The row of `settings` has the number of erasures, and the number up to which the log was emptied. If a process is killed
in between, the two numbers differ, and the next erasure in any process empties the log.
"""

import asyncio
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Final

from incoming_payments.domain.lifecycle import without_metadata
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.errors import StoreUnavailable
from incoming_payments.limits import ERASED_PAYMENTS_MAX, STORE_BUSY_S_MAX
from incoming_payments.stores._rows import micros, optional_micros
from incoming_payments.stores.guard import ended_at
from incoming_payments.stores.sqlite._engine import Engine
from incoming_payments.stores.sqlite._rows import Batch, LogRequest, Rows, file_of

_PAUSE_S: Final = 0.05  # the pause between attempts to empty the log, in which readers can end
_ERASE_TEXT: Final = (
    "UPDATE metadata SET text = NULL WHERE number = (SELECT metadata_number FROM payments WHERE id = ?)"
)
_ERASE: Final = "UPDATE payments SET metadata = NULL, metadata_number = NULL, reference = NULL WHERE id = ?"
_REMOVE: Final = "DELETE FROM metadata_to_erase WHERE ended_at = ? AND payment_id = ?"
_SELECT_ENDED: Final = "SELECT ended_at, payment_id FROM metadata_to_erase WHERE ended_at < ? ORDER BY ended_at LIMIT ?"
_COUNT: Final = "UPDATE settings SET erasures = erasures + 1"
_SELECT_COUNTS: Final = "SELECT erasures, emptied FROM settings"
_NOTE_EMPTIED: Final = "UPDATE settings SET emptied = max(emptied, ?)"


class SqliteErasure:
    """The `Erasure` port in the file of `store`. The port keeps the store open.

    Each method may raise the errors of the store. It also raises `StoreUnavailable` if a reader of another process or
    a backup uses the log for longer than `limits.STORE_BUSY_S_MAX` seconds. The metadata is then erased from the
    database, but not from the log, and a repeated call empties the log.
    """

    async_class = "the erasure of an AsyncSqliteStore"

    def __init__(self, store: object, engine: Engine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    def erase(self, id: PaymentId) -> IncomingPayment:
        """See `Erasure.erase`."""
        request = LogRequest()
        payment = self._engine.write(partial(_erase, id, request))
        self._empty_log(request)
        return payment

    def erase_ended(self, before: datetime) -> bool:
        """See `Erasure.erase_ended`."""
        if self._engine.read(partial(_is_idle, before)):
            return True
        request = LogRequest()
        is_done = self._engine.write(partial(_erase_ended, before, request))
        self._empty_log(request)
        return is_done

    def _empty_log(self, request: LogRequest) -> None:
        for pause_s in _pauses(request):
            time.sleep(pause_s)
            self._engine.write(partial(_ask_again, request))
        if request.is_emptied:
            self._engine.write(partial(_note_emptied, request.erasures))


class AsyncSqliteErasure:
    """`SqliteErasure` for asyncio, in the file of an `AsyncSqliteStore`."""

    def __init__(self, store: object, engine: Engine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    async def erase(self, id: PaymentId) -> IncomingPayment:
        """Await the result of `SqliteErasure.erase`."""
        request = LogRequest()
        payment = await self._engine.write_in_loop(partial(_erase, id, request))
        await self._empty_log(request)
        return payment

    async def erase_ended(self, before: datetime) -> bool:
        """Await the result of `SqliteErasure.erase_ended`."""
        if await self._engine.read_in_loop(partial(_is_idle, before)):
            return True
        request = LogRequest()
        is_done = await self._engine.write_in_loop(partial(_erase_ended, before, request))
        await self._empty_log(request)
        return is_done

    async def _empty_log(self, request: LogRequest) -> None:
        for pause_s in _pauses(request):
            await asyncio.sleep(pause_s)
            await self._engine.write_in_loop(partial(_ask_again, request))
        if request.is_emptied:
            await self._engine.write_in_loop(partial(_note_emptied, request.erasures))


def _pauses(request: LogRequest) -> Iterator[float]:
    """Yield the pause before each further attempt to empty the log. Raises `StoreUnavailable` after the last one."""
    deadline_s = time.monotonic() + STORE_BUSY_S_MAX
    while request.erasures and not request.is_emptied:
        if time.monotonic() >= deadline_s:
            raise StoreUnavailable(
                f"the metadata is erased from the database {request.path}, but its log may still hold the metadata, "
                "because a reader or a backup uses the log: repeat the call later"
            )
        yield _PAUSE_S


def _erase(id: PaymentId, request: LogRequest, rows: Batch) -> IncomingPayment:
    payment = rows.payment(id)
    is_needed = payment.terms.metadata is not None
    if is_needed:
        _remove(rows, payment)
        rows.connection.execute(_REMOVE, (optional_micros(ended_at(payment)), id))
    _request(rows, request, is_needed=is_needed)
    return without_metadata(payment)


def _erase_ended(before: datetime, request: LogRequest, rows: Batch) -> bool:
    found = rows.connection.execute(_SELECT_ENDED, (micros(before), ERASED_PAYMENTS_MAX)).fetchall()
    for payment in [rows.payment(id) for _, id in found]:
        _remove(rows, payment)
    rows.connection.executemany(_REMOVE, found)
    _request(rows, request, is_needed=bool(found))
    return len(found) < ERASED_PAYMENTS_MAX


def _remove(rows: Batch, payment: IncomingPayment) -> None:
    rows.connection.execute(_ERASE_TEXT, (payment.id,))
    rows.connection.execute(_ERASE, (payment.id,))
    rows.forget_metadata(payment.id)


def _request(rows: Batch, request: LogRequest, *, is_needed: bool) -> None:
    """Ask the writer to empty the log after the commit, if this call or an unfinished one removed metadata."""
    if is_needed:
        rows.connection.execute(_COUNT)
    erasures, emptied = rows.connection.execute(_SELECT_COUNTS).fetchone()
    if erasures > emptied:
        request.erasures, request.path = erasures, file_of(rows.connection)
        rows.log_requests.append(request)


def _ask_again(request: LogRequest, rows: Batch) -> None:
    rows.log_requests.append(request)


def _note_emptied(erasures: int, rows: Batch) -> None:
    rows.connection.execute(_NOTE_EMPTIED, (erasures,))


def _is_idle(before: datetime, rows: Rows) -> bool:
    """Return whether there is no metadata to erase, and no log to empty."""
    erasures, emptied = rows.connection.execute(_SELECT_COUNTS).fetchone()
    ended = rows.connection.execute(_SELECT_ENDED, (micros(before), 1)).fetchone()
    return ended is None and erasures == emptied
