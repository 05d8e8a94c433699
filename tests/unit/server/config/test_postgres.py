"""The settings of a PostgreSQL database: the URL, the password, and errors that show no part of them."""

import sys
from pathlib import Path
from typing import Final

import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.config.postgres import DatabasePassword, PostgresDatabase, PostgresTable, conninfo_of
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.init import CONFIGURATION

FILE: Final = 'database = "payments.sqlite3"'
SECRET: Final = "hunter2"


def write(folder: Path, database: str, table: str = "") -> Path:
    """Write a configuration with this database and these settings of `[postgres]`, and return its path."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8").replace(FILE, f'database = "{database}"')
    path.write_text(text.replace("\n[postgres]\n", f"\n[postgres]\n{table}\n"), "utf-8")
    return path


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_url_is_a_database_on_postgresql(folder: Path, scheme: str) -> None:
    """The name in messages has no password. The connection string has the defaults of the store."""
    path = write(folder, f"{scheme}://bank:{SECRET}@db.internal:5433/payments?sslmode=require")
    given = load_settings(path).given
    assert isinstance(given.database, PostgresDatabase)
    assert str(given.database) == "postgresql://bank@db.internal:5433/payments"
    conninfo = conninfo_of(given.database, given.postgres)
    for part in ("user=bank", f"password={SECRET}", "host=db.internal", "port=5433", "sslmode=require"):
        assert part in conninfo.split(" ")
    assert SECRET not in repr(given.database) + repr(given)


@pytest.mark.parametrize(
    ("servers", "name"),
    [
        ("db1,db2", "db1,db2"),
        ("db1:5433,db2", "db1:5433,db2"),
        ("db1:5433,db2:5434", "db1:5433,db2:5434"),
    ],
)
def test_the_name_of_several_servers_is_a_url(folder: Path, servers: str, name: str) -> None:
    """Each server has its port."""
    given = load_settings(write(folder, f"postgresql://bank:{SECRET}@{servers}/payments")).given
    assert str(given.database) == f"postgresql://bank@{name}/payments"


def test_the_password_may_be_in_a_file(folder: Path) -> None:
    """The password has no end of a line, and may have spaces and quotes. Other users must not read the file."""
    file = folder / "database-password.txt"
    file.write_text(" it's a secret \n", "utf-8")
    file.chmod(0o644)
    table = f'connections = 3\nprepares = false\npassword_file = "{file.name}"'
    settings = load_settings(write(folder, "postgresql://bank@db.internal/payments", table))
    given = settings.given
    assert isinstance(given.database, PostgresDatabase)
    assert r"password=' it\'s a secret '" in conninfo_of(given.database, given.postgres)
    assert "secret" not in repr(given.postgres)
    assert given.postgres == PostgresTable(
        connections=3, prepares=False, password_file=DatabasePassword(" it's a secret ")
    )
    assert [text for text in settings.warnings if f"{file}: other users have access" in text]


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff", b"a\0b", b"a\nb\n", b"postgresql://bank:a@db/bank\n"])
def test_a_file_without_a_password_is_refused(folder: Path, content: bytes) -> None:
    """The error names the file."""
    (folder / "empty.txt").write_bytes(content)
    path = write(folder, "postgresql://bank@db.internal/payments", 'password_file = "empty.txt"')
    with pytest.raises(
        ConfigurationError, match=r"empty.txt must hold only the password of the role: one line in UTF-8"
    ):
        load_settings(path)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://bank:{SECRET}@[db",
        f"postgresql://bank:%{SECRET}@db/bank",
        f"postgresql://bank:{SECRET}@{SECRET}@db/bank",  # everything behind the first @ would be the host
        f"postgresql://bank:{SECRET}/x@db/bank",  # the text in front of the slash would be the port
        f"postgresql://bank:12/{SECRET}@db/bank",  # the text behind the slash would be the database
        f"postgresql://db/bank?pasword={SECRET}",
        f"postgresql://db/bank?{SECRET}",
    ],
)
def test_an_error_about_a_url_shows_no_part_of_it(folder: Path, url: str) -> None:
    """A part of a wrong URL may be the password."""
    with pytest.raises(ConfigurationError, match="database is not a URL of PostgreSQL: write for exam") as refused:
        load_settings(write(folder, url))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "database",
    [
        f"host=db.internal user=bank password={SECRET} dbname=bank",
        f"postgresql:/bank:{SECRET}@db.internal/bank",
        f"Postgresql://bank:{SECRET}@db.internal/bank",
        f"postgresql+psycopg://bank:{SECRET}@db.internal/bank",
        f"bank:{SECRET}@db.internal:5432/bank",
    ],
)
def test_another_connection_string_is_no_file_name(folder: Path, database: str) -> None:
    """`serve` creates no SQLite file with a password in its name, and the error shows none."""
    with pytest.raises(ConfigurationError, match='or a URL such as "postgresql://user@host/database"') as refused:
        load_settings(write(folder, database))
    assert SECRET not in str(refused.value)


def test_a_url_needs_psycopg(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the packages to install."""
    path = write(folder, "postgresql://db/bank")
    monkeypatch.setitem(sys.modules, "incoming_payments.stores.postgres._session", None)
    with pytest.raises(ConfigurationError, match=r"needs psycopg: run pip install 'incoming-payments\[postgres\]' "):
        load_settings(path)


@pytest.mark.parametrize("connections", [0, 1001])
def test_the_number_of_connections_has_bounds(folder: Path, connections: int) -> None:
    """The error names the bounds."""
    path = write(folder, "postgresql://db/bank", f"connections = {connections}")
    with pytest.raises(ConfigurationError, match=r"postgres.connections must be an integer from 1 to 1000, not"):
        load_settings(path)


def test_the_password_in_place_of_its_file_is_hidden(folder: Path) -> None:
    """A password may be shorter than every token."""
    with pytest.raises(ConfigurationError, match=r"password_file: the file \(its name is hidden") as refused:
        load_settings(write(folder, "postgresql://db/bank", f'password_file = "{SECRET}"'))
    assert SECRET not in str(refused.value)


def test_settings_of_postgresql_for_a_file_are_useless(folder: Path) -> None:
    """A warning says so."""
    assert not load_settings(folder / CONFIGURATION).warnings
    path = write(folder, "payments.sqlite3", "connections = 4")
    says = "[postgres] has no effect, because database is an SQLite file: remove the settings, or give a URL"
    assert load_settings(path).warnings == (f"{path}: {says}",)
