"""`incoming-payments migrate`: the tables in PostgreSQL, and databases that it refuses."""

import os
from pathlib import Path

import pytest

from incoming_payments.server.command import main
from incoming_payments.server.init import CONFIGURATION
from kits.postgres import execute, new_database, url_of


@pytest.fixture
def database() -> str:
    """Return the connection string of a database without tables."""
    return new_database(f"migrated_{os.getpid()}")


def folder_for(tmp_path: Path, database: str) -> str:
    """Return the configuration that `init` writes for the database."""
    assert main(["init", str(tmp_path), "--database-url", url_of(database)]) == 0
    return str(tmp_path / CONFIGURATION)


def test_migrate_creates_the_tables(tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Other commands name `migrate` until it has run. A repeated call changes nothing."""
    config = folder_for(tmp_path, database)
    for command in ("serve", "list"):
        capsys.readouterr()
        assert main([command, "--config", config]) == 1
        error = capsys.readouterr().err
        says = f"{config}: database: the database has no tables of incoming-payments: run `incoming-payments migrate`"
        assert error.startswith(f"incoming-payments: {says}")
    for step, says in [
        (["--step", "before"], "replace the processes, and then run `incoming-payments migrate --step after`"),
        (["--step", "after"], "and older versions can no longer use them"),
        ([], "The tables are at the version of this program."),
    ]:
        assert main(["migrate", "--config", config, *step]) == 0
        assert says in capsys.readouterr().out
    assert main(["list", "--config", config]) == 0


def test_another_role_may_own_the_tables(tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With a URL, no configuration is read."""
    missing = str(tmp_path / CONFIGURATION)
    assert main(["migrate", "--config", missing, "--database-url", url_of(database)]) == 0
    assert execute(database, "SELECT count(*) FROM incoming_payments.payments") == [(0,)]
    execute(database, "UPDATE incoming_payments.schema_version SET before = 99, after = 99")
    assert main(["migrate", "--database-url", url_of(database)]) == 1
    assert "incoming-payments: database: the database has version 99" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["payments.sqlite3", "postgresql://bank:hunter2@[db/bank"])
def test_a_wrong_url_is_refused(capsys: pytest.CaptureFixture[str], url: str) -> None:
    """The error names the option, and shows no password."""
    assert main(["migrate", "--database-url", url]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "incoming-payments: --database-url is not a URL of PostgreSQL: write for example postgresql"
    )
    assert "hunter2" not in error


def test_an_sqlite_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says how a SQLite file is upgraded."""
    config = folder / CONFIGURATION
    assert main(["migrate", "--config", str(config)]) == 1
    found = f"needs a URL of PostgreSQL, and {folder / 'payments.sqlite3'} is a SQLite file, which serve creates and"
    assert f"incoming-payments: {config}: database: migrate {found}" in capsys.readouterr().err
