"""The settings of a database on a PostgreSQL server."""

from attrs import field, frozen

from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import STORE_CONNECTIONS_DEFAULT, STORE_CONNECTIONS_MAX
from incoming_payments.server.config.setting import setting
from incoming_payments.stores._connection_text import is_url


@frozen
class PostgresDatabase:
    """A database on a PostgreSQL server.

    `conninfo` is its connection string, which may hold a password. `name` stands for the database in messages, and has
    no password.
    """

    conninfo: str = field(repr=False)
    name: str

    def __str__(self) -> str:
        return self.name


@frozen
class DatabasePassword:
    """The content of a file with the password of the role."""

    value: str = field(repr=False)


@frozen(kw_only=True)
class PostgresTable:
    """The connections to PostgreSQL, if `database` is a URL."""

    connections: int = setting(
        "the largest number of connections of each worker",
        STORE_CONNECTIONS_DEFAULT,
        bounds=(1, STORE_CONNECTIONS_MAX),
    )
    prepares: bool = setting(
        "whether the server parses each statement only once for each connection. Write `false` behind a pooler in "
        "transaction mode that does not support prepared statements, such as pgbouncer before 1.21",
        True,
    )
    password_file: DatabasePassword | None = setting(
        "a file with the password of the role, so that the URL need not contain it",
        None,
        "the password in the URL, or none",
        written='"database-password.txt"',
    )


def postgres_database(url: str) -> PostgresDatabase:
    """Return the database at `url`. Raises `ConfigurationError`, and its text contains no part of the URL."""
    try:
        from incoming_payments.stores.postgres._session import connection_string, shown
    except ImportError:
        how = "run pip install 'incoming-payments[postgres]' 'psycopg[binary]'"
        raise ConfigurationError(f"is a URL of PostgreSQL, which needs psycopg: {how}") from None
    try:
        conninfo = connection_string(url if is_url(url) else "not a URL")
    except ConfigurationError:
        text = (
            "is not a URL of PostgreSQL: write for example postgresql://user@host/database, and in the password, "
            "write %40 for @, %2F for / and %25 for %, and after a ?, name only parameters of libpq"
        )
        raise ConfigurationError(text) from None
    return PostgresDatabase(conninfo, shown(conninfo))


def conninfo_of(database: PostgresDatabase, given: PostgresTable) -> str:
    """Return the connection string of `database`, with the password of `given`."""
    from incoming_payments.stores.postgres._session import with_password

    password = given.password_file
    return database.conninfo if password is None else with_password(database.conninfo, password.value)
