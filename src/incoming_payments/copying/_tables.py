"""The rows to copy, in a form that is the same for both databases: the columns of PostgreSQL, in the order of a key."""

# ruff: noqa: S608 - the names of tables and columns are constants
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from attrs import frozen

from incoming_payments.domain.payment import HOST
from incoming_payments.stores.postgres._values import FIRST_ID
from incoming_payments.stores.sqlite._references import METADATA
from incoming_payments.stores.sqlite._schema import COMPLETED

Row = tuple[Any, ...]

_ENDED: Final = f"CASE WHEN {COMPLETED} THEN updated_at WHEN expiry_announced_at IS NOT NULL THEN expires_at END"
_UNPAID: Final = f"expiry_announced_at IS NULL AND NOT {COMPLETED} AND received_amount = '0' AND client <> '{HOST}'"


@frozen
class Table:
    """A table of the target.

    `columns` begin with the primary key. `start` is a key in SQLite before all others. `expressions` read the columns
    that SQLite lacks or names otherwise. `batch` is the number of rows in a batch.
    """

    name: str
    source: str
    start: Row
    columns: Sequence[str]
    batch: int = 5_000
    expressions: tuple[tuple[str, str], ...] = ()

    def page_of_source(self) -> str:
        """Return the `SELECT` for a page of rows in SQLite, after a key."""
        own = dict(self.expressions)
        columns = ", ".join(own.get(column, column) for column in self.columns)
        key = ", ".join(self.columns[: len(self.start)])
        return (
            f"SELECT {columns} FROM {self.source} WHERE ({key}) > ({', '.join('?' * len(self.start))}) "
            f"ORDER BY {key} LIMIT {self.batch}"
        )

    def from_source(self, rows: Iterable[Sequence[Any]]) -> Iterator[Row]:
        """Yield rows of SQLite in the common form. Raises `ValueError` or `TypeError` for an invalid value."""
        names = [(at, column, f"{self.name}.{column}") for at, column in enumerate(self.columns)]
        found = [(at, _CONVERSIONS.get(column) or _CONVERSIONS.get(name)) for at, column, name in names]
        conversions = [(at, convert) for at, convert in found if convert is not None]
        for row in rows:
            values = list(row)
            for at, convert in conversions:
                if values[at] is not None:
                    values[at] = convert(values[at])
            yield tuple(values)

    def select_of_target(self) -> str:
        """Return the `SELECT` for all rows in PostgreSQL, in order."""
        columns = ", ".join(f"{column}::{_CASTS[column]}" if column in _CASTS else column for column in self.columns)
        key = ", ".join(f"{self.name}.{column}" for column in self.columns[: len(self.start)])
        return f"SELECT {columns} FROM incoming_payments.{self.name} ORDER BY {key}"

    def copy_into_target(self) -> str:
        """Return the `COPY` statement."""
        return f"COPY incoming_payments.{self.name} ({', '.join(self.columns)}) FROM STDIN"

    def key_in_source(self, row: Row) -> Row:
        """Return the key of a row as it is in SQLite."""
        return tuple(value.hex() if isinstance(value, bytes) else value for value in row[: len(self.start)])


def _boolean(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{value!r} must be 0 or 1")
    return bool(value)


def _words(value: str) -> list[str]:
    return value.split()


def _place(value: str) -> str:
    return value or FIRST_ID


_CONVERSIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "completes": _boolean,
    "is_unpaid": _boolean,
    "joins_credits": _boolean,
    "is_known": _boolean,
    "is_removed": _boolean,
    "is_open": _boolean,
    "nonces.key": bytes.fromhex,
    "kinds": _words,
    "wallet_addresses": _words,
    "scanned_to": _place,
}
_CASTS: Final = {
    "id": "text",
    "payment_id": "text",
    "scanned_to": "text",
    "amount": "text",
    "received_amount": "text",
    "incoming_amount": "text",
    "credit_delay_s": "float8",
    "down_after_s": "float8",
    "disable_after_s": "float8",
}
TABLES: Final = (
    Table(
        name="payments",
        source="payments",
        start=("",),
        columns=(
            "id", "version", "received_amount", "updated_at", "wallet_address", "client", "asset_code", "asset_scale",
            "incoming_amount", "expires_at", "metadata", "created_at", "closed_at", "expiry_announced_at", "sweep_at",
            "reference", "ended_at", "is_unpaid",
        ),
        batch=1_000,
        expressions=(("metadata", METADATA), ("ended_at", _ENDED), ("is_unpaid", _UNPAID)),
    ),
    Table(
        name="credits",
        source="credits",
        start=("", ""),
        columns=("payment_id", "credit_id", "amount", "received_amount", "completes", "at"),
    ),
    Table(
        name="events",
        source="events",
        start=("", -1),
        columns=("payment_id", "version", "kind", "at", "received_amount", "credit_id", "peer"),
    ),
    Table(
        name="idempotency_keys",
        source="idempotency_keys",
        start=("", ""),
        columns=("client", "key", "fingerprint", "payment_id", "until"),
    ),
    Table(name="nonces", source="nonces", start=("",), columns=("key", "until")),
    # SQLite does not number registrations. `is_known` is true, because the target has no transactions in flight.
    Table(
        name="consumers",
        source="consumers",
        start=("",),
        columns=(
            "name", "kinds", "wallet_addresses", "joins_credits", "credit_delay_s", "down_after_s", "disable_after_s",
            "registration", "is_known", "scanned_to", "is_removed", "failing_since", "disabled_at",
        ),
        expressions=(("registration", "0"), ("is_known", "1")),
    ),
    Table(
        name="streams",
        source="streams",
        start=("", ""),
        columns=("consumer", "payment_id", "acknowledged", "head", "due_at", "is_open"),
    ),
    Table(
        name="deliveries",
        source="deliveries",
        start=("", "", -1),
        columns=(
            "consumer", "payment_id", "first_version", "last_version", "payload", "attempts", "created_at", "due_at",
            "lease", "ending", "ended_at", "error",
        ),
        batch=500,
    ),
    Table(name="quota_clients", source="request_counts", start=("",), columns=("client", "full_at")),
)  # fmt: skip

# The values that do not belong to a row of a table, as SQLite and PostgreSQL return them.
SETTINGS_OF_SOURCE: Final = "SELECT reference, reindexed_to, held, swept_until FROM settings, nonce_count"
SETTINGS_OF_TARGET: Final = (
    "SELECT reference, reindexed_to::text, (SELECT sum(held)::bigint FROM incoming_payments.nonce_counts), "
    "(SELECT max(swept_until) FROM incoming_payments.nonce_counts) FROM incoming_payments.settings"
)


def settings_from_source(row: Sequence[Any]) -> Row:
    """Return the settings in the common form."""
    reference, reindexed_to, held, swept_until = row
    return reference, None if reindexed_to is None else _place(reindexed_to), held, swept_until
