"""`incoming-payments audit`, and the audit of `incoming-payments backup`."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from incoming_payments.audit import _report
from incoming_payments.server import audit
from incoming_payments.server.command import main
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.stores.sqlite import SqliteStore
from kits.audited_books import fill


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a backup with eight payments."""
    with SqliteStore(tmp_path / "payments.db") as store:
        fill(store)
        store.backup(tmp_path / "copy.db")
    return tmp_path / "copy.db"


def damage(path: Path) -> None:
    """Change the total of each payment."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE payments SET received_amount = '1'")


def test_sound_copy(copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says what was compared. Progress goes to stderr."""
    monkeypatch.setattr(audit, "_PROGRESS_S", 0.0)
    assert main(["audit", str(copy)]) == 0
    output = capsys.readouterr()
    assert f"Audited {copy}: 8 payments, 7 credits, 18 events, 3 idempotency keys" in output.out
    assert output.out.endswith("There is no difference: the books are proved.\n")
    assert "audited so far: 8 payments, 7 credits" in output.err


def test_live_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report says what was not checked."""
    with SqliteStore(tmp_path / "payments.db") as store:
        fill(store)
        assert main(["audit", str(tmp_path / "payments.db")]) == 0
    output = capsys.readouterr()
    assert "The pages and indexes were not checked, because the database is in use" in output.out
    assert output.err == ""


def test_differences(copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is 1, and each line names a payment."""
    damage(copy)
    assert main(["audit", str(copy)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["payment"] * 9 + ["Audited", "Differences:"]
    assert "payments: the row: received_amount is '1', and must be '120'" in lines[0]
    monkeypatch.setattr(_report, "AUDIT_DIFFERENCES_MAX", 2)
    assert main(["audit", str(copy)]) == 1
    assert "and 7 other differences" in capsys.readouterr().out


def test_report_as_json(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the whole report as one object."""
    damage(copy)
    assert main(["audit", str(copy), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["isSound"], report["isLive"], report["found"], report["counts"]["events"]) == (False, False, 9, 18)
    assert set(report["differences"][0]) == {"payment", "table", "text"}


def test_database_that_cannot_be_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message is on stderr."""
    assert main(["audit", str(tmp_path / "none.db")]) == 1
    assert "none.db is not a file: give the path of a database" in capsys.readouterr().err


@pytest.mark.parametrize("database", ["host=db password=hunter2", "postgresql:/bank:hunter2@db/bank"])
def test_another_connection_string_is_refused(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says how to write a URL, and shows no password."""
    assert main(["audit", database]) == 1
    error = capsys.readouterr().err
    assert "and not a URL of PostgreSQL: write for example postgresql://user@host/database" in error
    assert "hunter2" not in error


def test_backup_audits_the_copy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`backup --audit` has the status of the audit. A copy with differences stays."""
    database, good, bad = (folder / name for name in ("payments.sqlite3", "good.sqlite3", "bad.sqlite3"))
    with SqliteStore(database) as store:
        fill(store)
    assert main(["backup", str(good), "--audit", "--config", str(folder / CONFIGURATION)]) == 0
    assert "There is no difference" in capsys.readouterr().out
    damage(database)
    assert main(["backup", str(bad), "--audit", "--config", str(folder / CONFIGURATION)]) == 1
    assert "received_amount is '1'" in capsys.readouterr().out
    assert bad.is_file()
