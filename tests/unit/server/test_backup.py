"""`incoming-payments backup`: the copy, and the cases that it refuses."""

from pathlib import Path

import pytest

from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.reference import Reference
from incoming_payments.errors import StoreStopped
from incoming_payments.server.command import main
from incoming_payments.server.database import naming_database
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.steps import create
from kits.processes import free_port


def test_backup_copies_the_database_while_it_is_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`backup` copies a database in use. It refuses an existing target, and a database that does not exist."""
    folder, target = tmp_path / "bank", tmp_path / "backup.sqlite3"
    assert main(["init", str(folder)]) == 0
    arguments = ["backup", str(target), "--config", str(folder / CONFIGURATION)]
    assert main(arguments) == 1
    assert "does not exist: correct the path of the database to back up" in capsys.readouterr().err
    with SqliteStore(folder / "payments.sqlite3") as store:
        id = create(store)
        assert main(arguments) == 0
        assert f"Wrote and verified the backup {target}." in capsys.readouterr().out
        assert main(arguments) == 1
        assert "exists: choose the path of a new file for the backup" in capsys.readouterr().err
    with SqliteStore(target) as copy:
        assert copy.load(id).id == id


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (
            "none/x.sqlite3",
            "{target}: the folder {folder}/none does not exist: create the folder, or choose another target",
        ),
        ("", "{folder} is a folder: give the path of a new file in the folder, such as {folder}/backup.sqlite3"),
        ("payments.sqlite3", "{target} exists: choose the path of a new file for the backup"),
        (
            "payments.sqlite3/x",
            "{target}: the folder {folder}/payments.sqlite3 does not exist: create the folder, or choose",
        ),
    ],
)
def test_target_that_cannot_be_written_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], target: str, says: str
) -> None:
    """The error names the target as it was given, and leaves no file."""
    SqliteStore(folder / "payments.sqlite3").close()
    before = sorted(folder.iterdir())
    assert main(["backup", str(folder / target), "--config", str(folder / CONFIGURATION)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"incoming-payments: {says.format(target=folder / target, folder=folder)}")
    assert ".partial" not in error
    assert sorted(folder.iterdir()) == before


def test_backup_without_a_database_names_the_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the configuration, its setting and the file."""
    path = folder / CONFIGURATION
    assert main(["backup", str(folder / "x.sqlite3"), "--config", str(path)]) == 1
    says = (
        f"{path}: database: {folder / 'payments.sqlite3'} does not exist: correct the path of the database to back up, "
        "or start serve, which creates it"
    )
    assert capsys.readouterr().err == f"incoming-payments: {says}\n"


def test_reindex_indexes_the_member_in_the_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`serve` refuses a database with another member, until the command has run. A missing database is an error."""
    path, database = folder / CONFIGURATION, folder / "payments.sqlite3"
    text = path.read_text("utf-8").replace("9002", f"{free_port()}")
    path.write_text(text.replace('# reference = "externalRef"', 'reference = "externalRef"'), "utf-8")
    arguments = ["reindex", "--config", str(path)]
    assert main(arguments) == 1
    assert "does not exist: correct the path of the database to index" in capsys.readouterr().err
    with SqliteStore(database) as store:
        create(store, a_creation(metadata='{"externalRef":"INV-7"}'))
    assert main(["serve", "--config", str(path)]) == 1
    says = f"{path}: reference: {database} indexes no member of the metadata of its payments, and not externalRef"
    assert f"incoming-payments: {says}: correct the setting" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "The member externalRef of the metadata is indexed as the reference." in capsys.readouterr().out
    with SqliteStore(database, reference="externalRef") as store:
        reference = Reference("externalRef", "INV-7")
        assert len(store.find_payments(PaymentQuery(now=NOW, limit=9, reference=reference))) == 1
    path.write_text(text, "utf-8")
    assert main(arguments) == 0
    assert "No member of the metadata is indexed" in capsys.readouterr().out


def test_file_that_is_no_database_is_refused_with_the_setting(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the configuration and its setting, for `backup` and for `serve`."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8").replace("payments.sqlite3", "client-key.jwk").replace("9002", f"{free_port()}")
    path.write_text(text, "utf-8")
    for command in (["backup", str(folder / "x.sqlite3")], ["serve"]):
        assert main([*command, "--config", str(path)]) == 1
        found = f"the database {folder / 'client-key.jwk'} cannot be used (file is not a database)"
        says = f"{path}: database: {found}: correct the path, or restore it from a backup"
        assert capsys.readouterr().err == f"incoming-payments: {says}\n"


def test_store_that_has_stopped_is_no_wrong_setting() -> None:
    """The error of a failed disk is passed on as it is."""
    with pytest.raises(StoreStopped, match="the disk failed"), naming_database():
        raise StoreStopped("the disk failed")
