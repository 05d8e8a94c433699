"""Upgrades of a database that an earlier release has written. The earlier releases come from the history of git."""

import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing, suppress
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.domain.feed import Consumer, Start
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import StoreUnusable
from incoming_payments.stores.sqlite import SqliteStore, _backup, _versions
from incoming_payments.stores.sqlite._schema import UPGRADES, VERSION
from incoming_payments.testing import NOW
from incoming_payments.testing.steps import credit
from kits.processes import ROOT
from kits.sqlite_jobs import edit, rows

# The last commits whose databases have version 1, without and with an id of the database.
REVISIONS: Final = ["c0d2407fe30944855b0af21dfa7913e7b0a11ff0", "b61b99af"]
SCRIPT: Final = """
import sys
from datetime import timedelta
from incoming_payments.domain.payment import CreditId
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import NOW, a_creation, crediting
store = SqliteStore(sys.argv[1])
creation = a_creation(limit=500, expires_in_s=60, metadata="{}", key="key-1")
store.insert(creation)
store.update(creation.answer.id, crediting("wire-1", 20), CreditId("wire-1"))
store.nonces.use("0" * 64, NOW + timedelta(seconds=60), NOW)
print(creation.answer.id, flush=True)
sys.stdin.readline()
store.close()
"""
OPENING: Final = "import sys; from incoming_payments.stores.sqlite import SqliteStore; SqliteStore(sys.argv[1]).close()"


@pytest.fixture(scope="module", params=REVISIONS)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the source of an earlier release."""
    found = subprocess.run(["git", "archive", request.param, "src"], cwd=ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"the history of git has no {request.param}, which wrote databases of version 1")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(found.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def run_old(release: Path, script: str, path: Path) -> "subprocess.Popen[str]":
    """Run `script` with the earlier release on the database."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # coverage would measure the earlier release too
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    env = {**own, "PYTHONPATH": str(release)}
    return subprocess.Popen([sys.executable, "-c", script, str(path)], env=env, text=True, **pipes)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def id(release: Path, path: Path) -> PaymentId:
    """Return the id of a payment in a database that the earlier release has written and closed."""
    output, errors = run_old(release, SCRIPT, path).communicate("\n")
    assert not errors
    return PaymentId(output.strip())


def backups(path: Path) -> list[str]:
    """Return the names of the backups beside the database."""
    return sorted(found.name for found in path.parent.glob("*.backup"))


def test_database_of_an_earlier_release_is_upgraded(path: Path, id: PaymentId) -> None:
    """Every row is there, and new statements work. The backup has the old version and the same rows."""
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 20
        assert credit(store, id, "wire-1", 20).received.value == 20
        assert credit(store, id, "wire-2", 480).completes
        assert not store.nonces.use("0" * 64, NOW + timedelta(seconds=60), NOW)
        assert store.feed.register(Consumer(name="ledger"), Start.BEGINNING, NOW)
        [delivery] = store.feed.claim("ledger", lambda _: b"", now=NOW, until=NOW, limit=10)  # type: ignore[arg-type]
        assert delivery.payment_id == id
    assert backups(path) == [f"{path.name}.version-1-1.backup"]
    backup = path.with_name(backups(path)[0])
    assert rows(backup, "PRAGMA user_version") == [(1,)]
    assert rows(backup, "SELECT id, received_amount FROM payments") == [(id, "20")]
    assert backup.stat().st_mode & 0o777 == 0o600


def test_upgraded_database_has_the_schema_of_a_new_one(path: Path, id: PaymentId) -> None:  # noqa: ARG001 - the file
    """The later code cannot tell them apart."""
    SqliteStore(path).close()
    new = path.with_name("new.db")
    SqliteStore(new).close()
    schema = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
    assert rows(path, schema) == rows(new, schema)
    assert rows(path, "PRAGMA user_version") == [(VERSION,)]


def test_second_opening_upgrades_nothing(path: Path, id: PaymentId) -> None:
    """There is one backup, and the store works."""
    SqliteStore(path).close()
    with SqliteStore(path) as store:
        assert store.load(id).id == id
    assert len(backups(path)) == 1


def test_backup_overwrites_nothing(path: Path, id: PaymentId) -> None:  # noqa: ARG001 - the file
    """Files of an earlier attempt keep their content."""
    earlier = path.with_name(f"{path.name}.version-1-1.backup")
    partial = path.with_name(f"{path.name}.version-1-2.backup.partial")
    earlier.write_text("mine", "utf-8")
    partial.write_text("half", "utf-8")
    SqliteStore(path).close()
    assert (earlier.read_text("utf-8"), partial.read_text("utf-8")) == ("mine", "half")
    assert backups(path) == [earlier.name, f"{path.name}.version-1-3.backup"]


def test_upgrade_is_refused_while_an_earlier_release_has_the_file_open(release: Path, path: Path) -> None:
    """The message says what to do. The old process works on, and after its end the upgrade works."""
    old = run_old(release, SCRIPT, path)
    assert old.stdout is not None
    id = PaymentId(old.stdout.readline().strip())
    with pytest.raises(StoreUnusable, match=r"cannot be upgraded .*: end every process that uses the database"):
        SqliteStore(path)
    assert not backups(path)
    _, errors = old.communicate("\n")
    assert not errors
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 20


def test_earlier_release_refuses_an_upgraded_database(release: Path, path: Path, id: PaymentId) -> None:
    """It says that it is too old, and changes nothing."""
    SqliteStore(path).close()
    before = path.read_bytes()
    _, errors = run_old(release, SCRIPT, path).communicate("\n")
    assert "schema version 2" in errors
    assert "upgrade incoming-payments" in errors
    assert path.read_bytes() == before
    with SqliteStore(path) as store:
        assert store.load(id).id == id


def test_processes_that_open_at_once_upgrade_once(path: Path, id: PaymentId) -> None:
    """One process upgrades the database, and the others wait for it."""
    opening = [subprocess.Popen([sys.executable, "-c", OPENING, str(path)]) for _ in range(3)]
    assert [process.wait() for process in opening] == [0, 0, 0]
    assert len(backups(path)) == 1
    with SqliteStore(path) as store:
        assert store.load(id).id == id


KILLING: Final = """
import os, signal, sys
from incoming_payments.stores.sqlite import SqliteStore, _backup, _versions
path, place, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
module = _backup if place == "_sync" else _versions
function = getattr(module, place)
def count(*arguments):
    global number
    number -= 1
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)
setattr(module, place, count)
if place == "_execute":  # each statement alone, so that the process is killed between two of them
    def _execute(connection, *statements):
        for statement in statements:
            count(connection, statement)
    _versions._execute = _execute
SqliteStore(path)
"""


@pytest.mark.parametrize(
    ("place", "number"), [("_sync", 0), ("_sync", 1), ("_execute", 0), ("_execute", 3), ("_check_parts", 0)]
)
def test_killed_upgrade_is_repeated(path: Path, id: PaymentId, place: str, number: int) -> None:
    """The file has its old or its new version, and every row. The next opening completes the upgrade."""
    killed = subprocess.run([sys.executable, "-c", KILLING, str(path), place, str(number)])
    assert killed.returncode == -signal.SIGKILL
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 20
    assert rows(path, "PRAGMA user_version") == [(VERSION,)]


def test_failed_backup_prevents_the_upgrade(path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the reason. The database keeps its version, and the next opening tries again."""

    def fail(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(_backup, "_sync", fail)
        with pytest.raises(StoreUnusable, match=r"was not upgraded to version 2, because .*No space left on device"):
            SqliteStore(path)
    assert not backups(path)
    with SqliteStore(path) as store:
        assert store.load(id).received.value == 20


def test_no_program_can_write_between_the_backup_and_the_upgrade(
    path: Path,
    id: PaymentId,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The backup has all rows, and a program that takes the lock at that time causes no further backups."""
    with closing(sqlite3.connect(path, timeout=0)) as other:

        def lock_and_back_up(*arguments: Any) -> None:
            with suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
            _backup.back_up(*arguments)

        monkeypatch.setattr(_versions, "back_up", lock_and_back_up)
        with SqliteStore(path) as store:
            assert store.load(id).received.value == 20
    assert len(backups(path)) == 1


def test_failed_statement_changes_nothing(path: Path, id: PaymentId, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upgrade is one transaction."""
    with monkeypatch.context() as patch:
        patch.setattr(_versions, "UPGRADES", {1: (*UPGRADES[1], "CREATE nonsense")})
        with pytest.raises(StoreUnusable, match="nonsense"):
            SqliteStore(path)
    with closing(sqlite3.connect(path)) as other:
        assert not other.execute("SELECT count(*) FROM sqlite_master WHERE name = 'streams'").fetchone()[0]
    with SqliteStore(path) as store:
        assert store.load(id).id == id


@pytest.mark.parametrize(
    ("version", "why"),
    [
        (0, r"older than version 1, the oldest that this release can upgrade: restore a backup of version 1 or later"),
        (VERSION + 1, f"newer than version {VERSION} of this release: upgrade incoming-payments"),
    ],
)
def test_other_versions_are_refused(path: Path, version: int, why: str) -> None:
    """The file is unchanged."""
    SqliteStore(path).close()
    edit(path, f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(StoreUnusable, match=why):
        SqliteStore(path)
    assert before == path.read_bytes()


def test_version_that_changes_under_an_open_store_is_refused(path: Path) -> None:
    """Only a program without the locks of this library can do this. No call then writes with the wrong tables."""
    with SqliteStore(path) as store:
        edit(path, "PRAGMA user_version = 1")
        with pytest.raises(StoreUnusable, match="which an earlier release has written while this process had"):
            store.nonces.use("0" * 64, NOW, NOW)
