"""Decide from an error of psycopg whether to repeat a transaction, and which error the caller gets."""

import random
import time
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from incoming_payments.errors import (
    BrokenDecision,
    IncomingPaymentsError,
    StoreError,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.limits import STORE_BUSY_S_MAX, STORE_RETRY_S_MAX, STORE_RETRY_S_MIN

_SERIALIZATION: Final = {"40001", "40P01"}  # rolled back for certain, also when COMMIT raised it
_READ_ONLY: Final = "25006"
_PREPARED: Final = {"26000", "42P05"}  # a prepared statement that does not exist, or exists already
_ALWAYS_UNAVAILABLE: Final = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError)


class OutcomeUnknown(psycopg.OperationalError):
    """COMMIT has returned, but the transaction may not be on the standby, or not be committed."""


class Attempts:
    """The attempts of one call to run its transaction, until a deadline.

    `may_be_committed` is true from the moment when the COMMIT of a transaction that writes may be on its way.
    `refusals` are those of its `Ending`.
    """

    def __init__(self) -> None:
        self._deadline_s = time.monotonic() + STORE_BUSY_S_MAX
        self._pause_s = STORE_RETRY_S_MIN
        self.may_be_committed = False
        self.refusals: Mapping[str, IncomingPaymentsError] = {}

    @property
    def left_s(self) -> float:
        """The seconds until the deadline."""
        return max(self._deadline_s - time.monotonic(), STORE_RETRY_S_MIN)

    def pause_after(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt.

        Raises the error for the caller if the transaction may be committed, if another attempt cannot help, or if the
        time is over.
        """
        is_over = time.monotonic() + self._pause_s >= self._deadline_s
        if is_over or not _may_help(error, may_be_committed=self.may_be_committed):
            raise self._explained(error) from error
        self.may_be_committed = False
        pause_s = random.uniform(0, self._pause_s)  # noqa: S311 - jitter
        self._pause_s = min(2 * self._pause_s, STORE_RETRY_S_MAX)
        return pause_s

    def _explained(self, error: Exception) -> Exception:
        constraint = error.diag.constraint_name if isinstance(error, psycopg.errors.UniqueViolation) else None
        return self.refusals.get(constraint or "") or explain(error)


def is_read_only(error: Exception) -> bool:
    """Return whether the server accepts no writes, for example because it was a primary and is a standby now."""
    return isinstance(error, psycopg.Error) and error.sqlstate == _READ_ONLY


def explain(error: Exception) -> StoreError | BrokenDecision:
    """Return the error to raise in place of `error`, which is of psycopg, or about the characters of a text."""
    if isinstance(error, PoolClosed):
        return StoreUnusable("the store is closed: open another store")
    if isinstance(error, psycopg.Error) and error.sqlstate in _PREPARED:
        return StoreUnusable(
            f"a pooler has lost a prepared statement ({_text(error)}): set prepares=False, or use pgbouncer 1.21 with "
            "max_prepared_statements"
        )
    if isinstance(error, psycopg.DataError | psycopg.IntegrityError | UnicodeError):
        return BrokenDecision(
            f"the database refused the values to store ({_text(error)}): correct the values that decide returns"
        )
    if isinstance(error, PoolTimeout):
        return StoreUnavailable(
            f"PostgreSQL is unavailable ({_text(error)}), because the server does not answer, or other calls use all "
            "connections of the store: repeat the call later, or open the store with more connections"
        )
    if is_read_only(error):
        return StoreUnavailable(
            f"PostgreSQL is unavailable ({_text(error)}): repeat the call after the failover, or connect to the primary"
        )
    if isinstance(error, _ALWAYS_UNAVAILABLE):
        return StoreUnavailable(f"PostgreSQL is unavailable ({_text(error)}): repeat the call later")
    return StoreUnusable(
        f"PostgreSQL refused a statement ({_text(error)}): check the tables, and the rights of the role"
    )


def unreachable(error: psycopg.OperationalError) -> StoreUnavailable:
    """Return the error to raise if the server was not reached, or has refused the connection."""
    return StoreUnavailable(
        f"PostgreSQL is unavailable ({_text(error)}): check the host, the database, the role and its password, or "
        "repeat the call later"
    )


def again(error: BaseException) -> BaseException:
    """Return a copy of `error` for another caller, if it is an error of this library."""
    if not isinstance(error, IncomingPaymentsError):
        return error
    copy = type(error)(error.description)
    copy.__cause__ = error
    return copy


def _may_help(error: Exception, *, may_be_committed: bool) -> bool:
    """Return whether another attempt may succeed without the risk of storing anything twice."""
    if not isinstance(error, psycopg.Error) or isinstance(error, OutcomeUnknown | PoolClosed):
        return False
    if error.sqlstate in _SERIALIZATION:
        return True
    if may_be_committed:
        return False
    # The first statements of a transaction find out that the connection was closed while it was idle.
    is_lost = error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
    return is_read_only(error) or (is_lost and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError))


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
