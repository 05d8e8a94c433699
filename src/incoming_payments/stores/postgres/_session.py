"""The connections to PostgreSQL, and what each transaction sets for itself.

A role, a database or a pooler such as pgbouncer in transaction mode may change the settings of a session. So each
transaction sets what it depends on with SET LOCAL, in the statement `settings`. The isolation level stays as it is,
because every operation works under each of them. No statement depends on the time zone, the date style or the
`search_path`.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.string import TextLoader

from incoming_payments.domain.checks import name_of
from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import STORE_CONNECTIONS_MAX, STORE_STATEMENT_S_MAX
from incoming_payments.stores.postgres._steps import Query, Result, statement

BEGIN: Final = statement("BEGIN")
# Some operations wait for a lock. Their later statements must see what others committed during that wait.
BEGIN_READ_COMMITTED: Final = statement("BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT: Final = statement("COMMIT")
# `synchronous_commit` is raised to `on`, and never lowered: an operator may have chosen `remote_apply`. A warning at
# COMMIT says that the standby may not have the transaction, so `client_min_messages` must not suppress warnings. An
# index serves every statement, but the server would keep a plan that reads the whole table if it made the plan while
# the table was small. Without `array_nulls`, a NULL in an array is a text. The last column tells a demoted primary from
# a primary.
_SETTINGS: Final = statement(
    "SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN "
    "('off', 'local', 'remote_write') THEN 'on' ELSE current_setting('synchronous_commit') END, true), "
    "set_config('client_min_messages', 'warning', true), "
    "set_config('enable_seqscan', 'off', true), "
    "set_config('array_nulls', 'on', true), "
    "set_config('lock_timeout', %s, true), "
    "set_config('statement_timeout', %s, true), "
    "set_config('idle_in_transaction_session_timeout', %s, true), "
    "current_setting('transaction_read_only')"
)
# A server that vanishes without a word, for example because its machine died, is noticed after some seconds.
_CONNECTION: Final = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "fallback_application_name": "incoming-payments",
}


class Conversions:
    """The conversions of the store on `connection`: amounts and ids are text in the program.

    The connection itself keeps the conversions of psycopg, because a host may use it in `acknowledging`.
    """

    adapters: Final = AdaptersMap(psycopg.adapters)

    def __init__(self, connection: psycopg.BaseConnection[Any]) -> None:
        self.connection = connection


class _BytesDumper(Dumper):
    """Bytes as text. The dumper of psycopg depends on `standard_conforming_strings`, which a role may switch off."""

    def dump(self, obj: bytes) -> bytes:
        """Return the hexadecimal form."""
        return rb"\x" + obj.hex().encode()


Conversions.adapters.register_dumper(bytes, _BytesDumper)
Conversions.adapters.register_loader("numeric", TextLoader)
Conversions.adapters.register_loader("uuid", TextLoader)


def connection_string(conninfo: object) -> str:
    """Return `conninfo` with the defaults of this store. Raises `ConfigurationError`.

    With several hosts, the default is to connect to a server that accepts writes.
    """
    if not isinstance(conninfo, str):
        raise ConfigurationError(
            f"conninfo must be a connection string of PostgreSQL, such as postgresql://user@host/database, not "
            f"{name_of(conninfo)}",
            setting="conninfo",
        )
    try:
        chosen = conninfo_to_dict(conninfo)
        _check_place(chosen)
        several = {"target_session_attrs": "read-write"} if "," in str(chosen.get("host", "")) else {}
        return make_conninfo("", **{**_CONNECTION, **several, **chosen, "client_encoding": "UTF8"})
    except psycopg.ProgrammingError:
        # The text of psycopg is left out, because it may contain a part of the password.
        raise ConfigurationError(
            "conninfo is not a connection string of PostgreSQL: write for example postgresql://user@host/database, and "
            "in the password of a URL, write %40 for @, %2F for / and %25 for %",
            setting="conninfo",
        ) from None


def _check_place(chosen: Mapping[str, object]) -> None:
    """Raise psycopg's error if the host, port or database may be a part of a password, which messages must not show.

    In the URL postgresql://bank:12/34@host/db, libpq takes `bank` for the host and `34@host/db` for the database.
    """
    ports = str(chosen.get("port", "")).split(",")
    place = str(chosen.get("host", "")) + ("" if "user" in chosen else str(chosen.get("dbname", "")))
    if "@" in place or not all(port.isdigit() or not port for port in ports):
        raise psycopg.ProgrammingError("@ in the host or the database, or a port that is not a number")


def checked_connections(connections: int) -> int:
    """Return the number of connections of a store. Raises `ConfigurationError` if it is out of its range."""
    if type(connections) is not int or not 1 <= connections <= STORE_CONNECTIONS_MAX:
        text = f"connections must be an integer from 1 to {STORE_CONNECTIONS_MAX}, not {connections!r}"
        raise ConfigurationError(text, setting="connections")
    return connections


def with_password(conninfo: str, password: str) -> str:
    """Return `conninfo` with `password`."""
    return make_conninfo(conninfo, password=password)


def shown(conninfo: str) -> str:
    """Return the database of a valid `conninfo` for messages: a URL without the password and the settings."""
    chosen = conninfo_to_dict(conninfo)
    user = f"{quote(str(chosen['user']))}@" if "user" in chosen else ""
    hosts, ports = (str(chosen.get(name, "")).split(",") for name in ("host", "port"))
    # Each host has a port of its own, or all hosts have the same port.
    places = zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=False)
    servers = ",".join(quote(host) + (f":{port}" if port else "") for host, port in places)
    return f"postgresql://{user}{servers}/{quote(str(chosen.get('dbname', '')))}"


# The arguments with which psycopg connects. If psycopg prepared the statements of a host, it would deallocate those of
# the store at a rollback.
ARGUMENTS: Final = {"autocommit": True, "prepare_threshold": None}


def settings(left_s: float) -> Query:
    """Return the query that sets what a transaction depends on. The call may take `left_s` seconds more."""
    lock_ms, longest_ms = max(1, int(left_s * 1000)), int(STORE_STATEMENT_S_MAX * 1000)
    return Query(_SETTINGS, (lock_ms, longest_ms, longest_ms))


def check_writable(result: Result) -> None:
    """Raise psycopg's error for a server that accepts no writes. `result` is that of `settings`."""
    if result.rows[0][-1] != "off":
        raise psycopg.errors.ReadOnlySqlTransaction("the server accepts no writes")
