"""`incoming-payments copy-to-postgres`."""

import os
import sys
from pathlib import Path

import pytest

from incoming_payments.server import copy_to_postgres
from incoming_payments.server.command import main
from incoming_payments.stores.sqlite import SqliteStore
from kits.audited_books import fill
from kits.postgres import new_database
from kits.postgres_books import url_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a SQLite file with honest traffic."""
    with SqliteStore(tmp_path / "payments.sqlite3") as store:
        fill(store)
    return tmp_path / "payments.sqlite3"


def test_move(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints how many rows it has copied and compared, and where they are. Progress goes to stderr."""
    monkeypatch.setattr(copy_to_postgres, "_PROGRESS_S", 0.0)
    url = url_of(new_database(f"moved_{os.getpid()}")).replace("?", "?password=secret&")
    with SqliteStore(file):
        assert main(["copy-to-postgres", str(file), url]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("Copied 73 rows in 0.")
    assert "and compared 73 rows, of 8 payments, in 0." in output.out
    assert f"The payments of {file} are in postgresql://postgres@" in output.out
    assert f"A process still has {file} open: end it, and run this command again" in output.out
    assert "copied so far: 8 rows, " in output.err
    assert "now credits" in output.err
    assert main(["copy-to-postgres", str(file), url]) == 0
    again = capsys.readouterr()
    assert again.out.startswith(f"The payments of {file} are in postgresql://postgres@")
    assert "still has" not in again.out
    assert main(["audit", url]) == 0
    assert "There is no difference: the books are proved." in capsys.readouterr().out
    assert main(["copy-to-postgres", str(file), url, "--abandon"]) == 1
    refused = capsys.readouterr()
    assert "so the copy cannot be abandoned" in refused.err
    assert "secret" not in output.out + output.err + again.out + refused.err


def test_abandon(file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file accepts writes again."""
    url = url_of(new_database(f"moved_{os.getpid()}"))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(copy_to_postgres, "_Progress", lambda: interrupt)
        assert main(["copy-to-postgres", str(file), url]) == 130
    assert main(["copy-to-postgres", str(file), url, "--abandon"]) == 0
    assert f"The copy is abandoned. {file} accepts writes again" in capsys.readouterr().out
    SqliteStore(file).close()


def test_arguments_in_the_wrong_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the order, and shows no password."""
    assert main(["copy-to-postgres", "postgresql://bank:hunter2@db/bank", str(tmp_path / "payments.sqlite3")]) == 1
    says = "a connection string is in the place of the SQLite file: give the file first, and then the URL"
    assert capsys.readouterr().err == f"incoming-payments: {says}\n"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("incoming_payments.copying", ["copy-to-postgres", "payments.sqlite3", "postgresql:///bank"]),
        ("incoming_payments.audit._postgres", ["audit", "postgresql:///bank"]),
    ],
)
def test_missing_driver(
    module: str, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the import says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert f"needs psycopg (import of {module} halted" in error
    assert "run pip install 'incoming-payments[postgres]' 'psycopg[binary]'" in error
