"""`incoming-payments backup`: the copy, and the cases that it refuses."""

from pathlib import Path

import pytest

from incoming_payments.server.command import main
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import create


def test_backup_copies_the_database_while_it_is_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`backup` copies a database in use. It refuses an existing target, and a database that does not exist."""
    folder, target = tmp_path / "bank", tmp_path / "backup.sqlite3"
    assert main(["init", str(folder)]) == 0
    arguments = ["backup", str(target), "--config", str(folder / CONFIGURATION)]
    assert main(arguments) == 1
    assert "does not exist: nothing to back up" in capsys.readouterr().err
    with SqliteStore(folder / "payments.sqlite3") as store:
        id = create(store)
        assert main(arguments) == 0
        assert f"Wrote {target}, and read it back" in capsys.readouterr().out
        assert main(arguments) == 1
        assert "exists: name a new file for the backup" in capsys.readouterr().err
    with SqliteStore(target) as copy:
        assert copy.load(id).id == id
