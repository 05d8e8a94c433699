"""The audit finds damage to each table and column, and nothing in the database of a store that works."""

import itertools
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Final

import pytest

from incoming_payments.audit import Counts, _database, _report, _sqlite, audit
from incoming_payments.domain.feed import Consumer, ConsumerName, Start
from incoming_payments.errors import AuditFailed, StoreStopped
from incoming_payments.limits import STORE_LOG_BYTES_MAX
from incoming_payments.stores.sqlite import SqliteStore, _writer
from incoming_payments.testing.simulation import simulate
from incoming_payments.testing.steps import create, credit
from incoming_payments.testing.values import NOW, a_creation
from kits.audited_books import NEVER_FOUND, SOMETIMES_FOUND, Books, fill, store_as_version_1, texts
from kits.processes import ROOT, run_command
from kits.sqlite_jobs import leave_a_log

TABLES: Final = (
    "consumers", "credits", "database_id", "deliveries", "events", "idempotency_keys", "metadata", "metadata_to_erase",
    "nonce_count", "nonces", "payments", "request_counts", "settings", "streams",
)  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backup of a database with honest traffic."""
    folder = tmp_path_factory.mktemp("honest")
    with SqliteStore(folder / "payments.db", reference="ref") as store:
        fill(store)
        store.backup(folder / "backup.db")
    store_as_version_1(folder / "backup.db")
    return folder / "backup.db"


@pytest.fixture
def copy(honest: Path, tmp_path: Path) -> Path:
    """Return a copy of `honest` that the test may change."""
    return Path(shutil.copy(honest, tmp_path / "copy.db"))


@pytest.fixture(scope="module")
def books(honest: Path) -> Books:
    """Return the rows of `honest` without constraints."""
    return Books(honest)


def edit(path: Path, *statements: str) -> None:
    """Change a database that no store has open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# --- honest databases --------------------------------------------------------------------------------


def test_backup_of_honest_traffic_has_no_difference(honest: Path) -> None:
    """The report has the number of rows in each table."""
    report = audit(honest)
    assert (texts(report), report.is_sound, report.is_live) == ("", True, False)
    assert report.counts == Counts(
        payments=8,
        credits=7,
        events=18,
        idempotency_keys=3,
        nonces=1,
        metadata=7,
        metadata_to_erase=3,
        streams=16,
        deliveries=15,
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_simulated_service_has_no_difference(tmp_path: Path, seed: int) -> None:
    """The simulation creates, credits, completes and expires payments in several processes, which crash."""
    with SqliteStore(tmp_path / "payments.db") as store:
        simulate(seed, 1000, store_factory=lambda: SqliteStore(tmp_path / "payments.db"))
        report = audit(tmp_path / "payments.db")
        assert (texts(report), report.is_live) == ("", True)
        assert report.counts.credits > 10
        store.backup(tmp_path / "backup.db")
    assert audit(tmp_path / "backup.db").counts == report.counts


def test_removal_and_registration_in_progress_are_no_differences(tmp_path: Path) -> None:
    """The removal of a consumer deletes its deliveries before its streams."""
    path, copy = tmp_path / "payments.db", tmp_path / "copy.db"
    with SqliteStore(path) as store:
        fill(store)
        store.feed.register(Consumer(name=ConsumerName("new")), Start.BEGINNING, NOW)
        store.backup(copy)
    edit(
        copy,
        "UPDATE consumers SET is_removed = 1 WHERE name = 'all'",
        "DELETE FROM deliveries WHERE consumer = 'all'",
        "UPDATE consumers SET scanned_to = (SELECT min(id) FROM payments) WHERE name = 'new'",
    )
    assert texts(audit(copy)) == ""


# --- damage ------------------------------------------------------------------------------------------


def _is_found(damaged: bytes, path: Path) -> bool:
    """Return whether the audit finds the damage, apart from the missing constraints."""
    path.write_bytes(damaged)
    return any(difference.table != "file" for difference in audit(path).differences)


def _found(cases: Iterator[bytes], path: Path) -> set[bool]:
    return {_is_found(case, path) for case in cases}


def test_rows_without_constraints_are_no_difference_by_themselves(books: Books, tmp_path: Path) -> None:
    """Only the definitions of the tables are different."""
    assert sorted(books.tables) == sorted(TABLES)
    assert not _is_found(books.changed(), tmp_path / "x.db")
    assert "file: the table credits is missing or has another definition" in texts(audit(tmp_path / "x.db"))


@pytest.mark.parametrize("table", TABLES)
def test_damage_to_each_table_and_column_is_found(books: Books, tmp_path: Path, table: str) -> None:
    """The audit finds a missing row, a row twice, and a wrong value, except in the places that are listed."""
    path = tmp_path / "x.db"
    cases = {(table, "missing"): books.without(table), (table, "twice"): books.twice(table)}
    for column in books.tables[table]:
        for kind in ("other", "null", "swapped"):
            cases[f"{table}.{column}", kind] = books.damaged(table, column, kind)
    found = {place: _found(damaged, path) for place, damaged in cases.items()}
    never, sometimes = _by_place(found, {False}), _by_place(found, {False, True})
    assert never == {place: kinds for place, kinds in NEVER_FOUND.items() if place.partition(".")[0] == table}
    assert sometimes == {place: kinds for place, kinds in SOMETIMES_FOUND.items() if place.partition(".")[0] == table}


def _by_place(found: dict[tuple[str, str], set[bool]], outcomes: set[bool]) -> dict[str, str]:
    by_place: dict[str, str] = {}
    for (place, kind), seen in found.items():
        if seen == outcomes:
            by_place[place] = f"{by_place.get(place, '')} {kind}".strip()
    return by_place


def test_page_lists_the_damage_that_stays_hidden() -> None:
    """The page has the same places as the tables above."""
    text = (ROOT / "docs/audit.md").read_text("utf-8")
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([a-z ]+) \| (never|for some rows) \|", text, re.MULTILINE)
    listed = [(place, kinds, "never") for place, kinds in NEVER_FOUND.items()]
    listed += [(place, kinds, "for some rows") for place, kinds in SOMETIMES_FOUND.items()]
    assert sorted(rows) == sorted(listed)


@pytest.mark.parametrize(
    ("statement", "table", "text"),
    [
        (
            "UPDATE credits SET amount = '41' WHERE credit_id = 'wire-0'",
            "credits",
            "received_amount is '40', and must be '41'",
        ),
        ("UPDATE payments SET received_amount = '1'", "payments", "received_amount is '1', and must be '120'"),
        ("DELETE FROM events WHERE version = 3", "events", "version 3 is missing, and version 4 follows"),
        ("DELETE FROM events WHERE version = 5", "events", "version 5 is missing, which must be 'completed'"),
        ("DELETE FROM events", "events", "the payment has no events"),
        ("DELETE FROM credits", "credits", "credit wire-0 is missing, which event 2 names"),
        ("DELETE FROM payments", "payments", "there must be one row of the payment, and there are 0"),
        ("UPDATE events SET kind = 'expired' WHERE version = 2", "events", "version 2 is 'expired', and no change"),
        ("UPDATE events SET kind = 'paid' WHERE version = 2", "events", "version 2 is 'paid', and no change"),
        ("UPDATE events SET at = at + 4000000000 WHERE version = 2", "events", "version 2 breaks a rule: the payment"),
        ("UPDATE events SET credit_id = NULL WHERE version = 2", "events", "version 2 breaks a rule: a credit id"),
        ("UPDATE events SET peer = 'test.peer' WHERE version = 2", "events", "must have a peer if, and only if"),
        ("UPDATE payments SET metadata = '7'", "payments", "metadata is not a JSON object"),
        ("UPDATE payments SET metadata = '{'", "payments", "its terms are invalid"),
        ("UPDATE payments SET incoming_amount = '0'", "payments", "its terms are invalid: incomingAmount"),
        ("UPDATE payments SET closed_at = updated_at", "payments", "closed_at is "),
        (
            "INSERT INTO credits SELECT payment_id, 'x', amount, received_amount, completes, at FROM credits LIMIT 1",
            "credits",
            "there are 4 credits, and 3 events of credits",
        ),
    ],
)
def test_difference_names_the_payment(tmp_path: Path, statement: str, table: str, text: str) -> None:
    """The difference has the payment, the table, and what is wrong."""
    with SqliteStore(tmp_path / "payments.db") as store:
        id = create(store, a_creation(limit=100, expires_in_s=3600))
        for number, value in enumerate((40, 50, 30)):
            credit(store, id, f"wire-{number}", value)
        store.backup(tmp_path / "copy.db")
    edit(tmp_path / "copy.db", statement)
    [difference] = audit(tmp_path / "copy.db").differences
    assert (difference.payment, difference.table) == (id, table)
    assert text in difference.text
    assert str(difference).startswith(f"payment {id}: {table}: ")


@pytest.mark.parametrize(
    ("statements", "text"),
    [
        (["DROP INDEX events_of_other_kinds"], "the index events_of_other_kinds is missing or has another definition"),
        (["DROP TABLE credits"], "the audit cannot continue: no such table"),
        (["CREATE TRIGGER steal AFTER INSERT ON credits BEGIN SELECT 1; END"], "there is a trigger steal"),
        (["UPDATE consumers SET kinds = 'paid'"], "consumers: consumer all is invalid: kinds must be some of"),
        (["DELETE FROM consumers"], "streams: consumer all is unknown"),
        (["DELETE FROM consumers", "DELETE FROM streams"], "deliveries: consumer all is unknown"),
        (["UPDATE idempotency_keys SET client = 'eve' WHERE key = 'k1'"], "names a payment of the client https://shop"),
        (["DELETE FROM settings"], "settings: there must be one row, and there are 0"),
        (["UPDATE settings SET reference = ''"], "settings: the row is invalid: reference must be"),
        (["UPDATE settings SET erasures = 7, emptied = 8"], "the log was emptied after 8 of 7 erasures"),
        (["UPDATE settings SET reindexed_to = 'x'"], "reindexed_to is x, and there is no such payment"),
        (["UPDATE settings SET reference = 'note'"], "and must be None"),
        (['UPDATE metadata SET text = \'{"ref": "\\ud800"}\' WHERE number = 3'], "payments: reference is "),
        (["DELETE FROM metadata WHERE number = 3"], "there is no text 3, which the payment names"),
        (["DELETE FROM metadata WHERE number = 3"], "metadata: number 3 is missing, and 4 follows"),
        (["UPDATE metadata SET text = '{}' WHERE number = 4"], "metadata: there are 5 texts, and 4 payments name one"),
        (
            ["UPDATE payments SET metadata = '{}'"],
            "it has metadata in its own row, and also names a row of the table metadata",
        ),
        (["UPDATE payments SET metadata_number = 5"], "metadata_number 5 is also that of another payment"),
        (["DELETE FROM metadata_to_erase"], "metadata_to_erase: there must be one row with the time "),
        (["UPDATE metadata_to_erase SET ended_at = 1"], "metadata_to_erase: ended_at is 1, and must be "),
        (["UPDATE metadata_to_erase SET payment_id = 'x'"], "x: payments: there must be one row of the payment"),
        (["UPDATE idempotency_keys SET until = 1"], "ends before its payment was created"),
        (["UPDATE idempotency_keys SET fingerprint = 'x'"], "is invalid: a fingerprint must be"),
    ],
)
def test_difference_in_other_tables(copy: Path, statements: list[str], text: str) -> None:
    """The difference names the index, the trigger, the consumer or the key."""
    edit(copy, "PRAGMA ignore_check_constraints = 1", *statements)
    assert text in texts(audit(copy))


def test_reindex_in_progress_is_no_difference(copy: Path) -> None:
    """The payments that it has not passed may have the reference of any earlier setting, or none."""
    edit(copy, "UPDATE settings SET reindexed_to = (SELECT id FROM payments ORDER BY id LIMIT 1 OFFSET 3)")
    edit(copy, "UPDATE payments SET reference = zeroblob(16) WHERE metadata_number = 5")
    assert texts(audit(copy)) == ""
    edit(copy, "UPDATE settings SET reference = 'other', reindexed_to = ''")
    assert texts(audit(copy)) == ""
    edit(copy, "UPDATE payments SET reference = zeroblob(15) WHERE metadata_number = 5")
    assert "payments: reference is 000000000000000000000000000000, and must be 16 bytes of a" in texts(audit(copy))
    edit(copy, "UPDATE payments SET reference = zeroblob(16), metadata_number = NULL WHERE metadata_number = 5")
    assert "payments: reference is 00000000000000000000000000000000, and must be 16 by" in texts(audit(copy))


def test_amount_that_is_no_number_is_found_twice(books: Books, tmp_path: Path) -> None:
    """The row of the payment is wrong, and the end of its metadata is unknown."""
    statement = "UPDATE payments SET received_amount = 'x' WHERE incoming_amount = '100'"
    (tmp_path / "x.db").write_bytes(books.changed((statement, ())))
    found = texts(audit(tmp_path / "x.db"))
    assert "payments: the row: received_amount is 'x', and must be '120'" in found
    assert "payments: its amounts are invalid: " in found


def test_damaged_pages_are_found(copy: Path) -> None:
    """The audit of a copy reads every page and index. It reports a page that SQLite cannot read."""
    whole = copy.read_bytes()
    size = int.from_bytes(whole[16:18])
    for start in range(size, len(whole), size):
        copy.write_bytes(whole[:start] + bytes(64) + whole[start + 64 :])
        assert "the audit cannot continue: database disk image is malformed" in texts(audit(copy))


def test_damaged_bytes_are_found(copy: Path) -> None:
    """A wrong byte makes an index differ from its table, or a row differ from the rules."""
    whole = copy.read_bytes()
    size = int.from_bytes(whole[16:18])
    reports = []
    for end in range(2 * size, len(whole), size):
        at = end - 40
        copy.write_bytes(whole[:at] + b"\x7f" + whole[at + 1 :])
        reports.append(texts(audit(copy)))
    assert "file: row 1 missing from index payments_of_client" in "\n".join(reports)
    assert sum(map(bool, reports)) > len(reports) / 2  # the other bytes belong to no row


def test_random_damage_ends_no_audit_with_another_error(copy: Path) -> None:
    """For any bytes, the audit returns a report."""
    whole, random = copy.read_bytes(), Random(1)
    reports = []
    for _ in range(200):
        damaged = bytearray(whole)
        at, length = random.randrange(100, len(whole) - 64), random.choice([1, 4, 64])
        damaged[at : at + length] = random.randbytes(length)
        copy.write_bytes(damaged)
        reports.append(audit(copy).is_sound)
    assert not all(reports)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payment_id = x'00'",
        "UPDATE events SET payment_id = CAST(x'ff' AS TEXT)",
        "UPDATE deliveries SET payment_id = x'00'",
        "UPDATE deliveries SET consumer = CAST(x'ff' AS TEXT)",
        "UPDATE idempotency_keys SET client = x'00'",
        "UPDATE metadata SET number = 'x'",
    ],
)
def test_keys_that_have_no_order_end_the_audit(books: Books, tmp_path: Path, statement: str) -> None:
    """A key that is no text, or invalid text, could make a pass read the same row for ever."""
    (tmp_path / "x.db").write_bytes(books.changed((statement, ())))
    assert "file: the audit cannot continue: the rows of a table are not in order" in texts(audit(tmp_path / "x.db"))


def test_payment_that_is_no_text_can_be_printed(books: Books, tmp_path: Path) -> None:
    """The report has its representation."""
    (tmp_path / "x.db").write_bytes(books.changed(("UPDATE metadata_to_erase SET payment_id = x'00'", ())))
    report = audit(tmp_path / "x.db")
    assert r"b'\x00'" in [difference.payment for difference in report.differences]
    assert all(type(difference.payment) in (str, type(None)) for difference in report.differences)


def test_definition_with_invalid_text_ends_the_audit(copy: Path) -> None:
    """Python cannot decode the message of SQLite."""
    copy.write_bytes(copy.read_bytes().replace(b"received_amount NOT GLOB", b"received_amount N\xffT GLOB"))
    assert "file: the audit cannot continue: " in texts(audit(copy))


def test_event_without_a_version_is_found(books: Books, tmp_path: Path) -> None:
    """The replay does not read an event without a version, but the audit counts it."""
    statement = "INSERT INTO events SELECT payment_id, NULL, kind, at, received_amount, credit_id, peer FROM events"
    (tmp_path / "x.db").write_bytes(books.changed((f"{statement} WHERE version = 5", ())))
    assert "events: there are 6 events for 5 versions" in texts(audit(tmp_path / "x.db"))


def test_only_the_first_differences_are_kept(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit counts the others."""
    monkeypatch.setattr(_report, "AUDIT_DIFFERENCES_MAX", 2)
    edit(copy, "DELETE FROM events")
    report = audit(copy)
    assert (len(report.differences), report.found > 5, report.is_sound) == (2, True, False)


# --- slices ------------------------------------------------------------------------------------------


def test_history_continues_in_later_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a transaction for each event, the audit of a payment that receives money meanwhile finds no difference."""
    ticks = itertools.count()
    monkeypatch.setattr(_sqlite, "AUDIT_SLICE_S_MAX", 1.5)
    monkeypatch.setattr(_sqlite, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    seen: list[Counts] = []
    with SqliteStore(tmp_path / "payments.db") as store:
        ids = fill(store)

        def on_progress(counts: Counts) -> None:
            seen.append(counts)
            if len(seen) < 30:
                credit(store, ids[3], f"new-{len(seen)}", 1, now=NOW.replace(hour=13))

        report = audit(tmp_path / "payments.db", on_progress=on_progress)
    assert texts(report) == ""
    assert report.counts.credits > 20
    assert len(seen) > 40


def test_erasures_and_another_reference_during_the_audit_are_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of a payment may vanish between two events of its history."""
    ticks = itertools.count()
    monkeypatch.setattr(_sqlite, "AUDIT_SLICE_S_MAX", 1.5)
    monkeypatch.setattr(_sqlite, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    seen: list[Counts] = []
    with SqliteStore(tmp_path / "payments.db") as store:
        ids = fill(store)

        def on_progress(counts: Counts) -> None:
            seen.append(counts)
            if len(seen) == 4:
                store.reindex("ref")
            if len(seen) in (8, 12, 16):
                store.erasure.erase(ids[len(seen) // 4 - 2])

        report = audit(tmp_path / "payments.db", on_progress=on_progress)
        assert texts(report) == ""
        assert (report.counts.metadata, report.counts.metadata_to_erase) == (7, 0)
        store.backup(tmp_path / "copy.db")
    assert texts(audit(tmp_path / "copy.db")) == ""


def test_audit_does_not_hold_back_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While audits run one after the other in another process, the store empties its log, and finds no difference."""
    bound = 400_000
    monkeypatch.setattr(_writer, "STORE_LOG_BYTES_MAX", bound)
    path, log = tmp_path / "payments.db", tmp_path / "payments.db-wal"
    with SqliteStore(path) as store:
        id = create(store)
        ended = threading.Event()
        results = []

        def run() -> None:
            while not ended.is_set():
                results.append(run_command("audit", path))

        auditor = threading.Thread(target=run)
        auditor.start()
        sizes: list[int] = []
        try:
            while len(results) < 2:
                credit(store, id, f"wire-{len(sizes):05}-{'x' * 150}", 1)
                sizes.append(log.stat().st_size)
        finally:
            ended.set()
            auditor.join()
    assert max(sizes) < 8 * bound < STORE_LOG_BYTES_MAX
    assert [result.stderr for result in results if result.returncode] == []
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes))
    assert "There is no difference" in results[-1].stdout


def test_store_opens_while_an_audit_reads(tmp_path: Path) -> None:
    """A service that starts again need not wait for the audit, whose connection was the only one for a while."""
    path = tmp_path / "payments.db"
    first = SqliteStore(path)
    id = fill(first)[3]
    with _database.Database(path).read() as snapshot:
        first.close()
        second = SqliteStore(path)
        credit(second, id, "later", 1, now=NOW.replace(hour=13))
        assert snapshot.one("SELECT received_amount FROM payments WHERE id = ?", (id,)) == ("0",)
    assert texts(audit(path)) == ""
    assert second.load(id).received.value == 1
    second.close()


def test_audit_changes_no_file(tmp_path: Path) -> None:
    """The audit of a database that a store has open leaves every byte as it was, and the store goes on."""
    path = tmp_path / "payments.db"
    with SqliteStore(path) as store:
        ids = fill(store)
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
        assert run_command("audit", path).returncode == 0
        after = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
        assert after == before
        credit(store, ids[3], "later", 1, now=NOW.replace(hour=13))
    with SqliteStore(path) as store:
        assert store.load(ids[3]).received.value == 1


# --- refusals ----------------------------------------------------------------------------------------


def _absent(path: Path) -> None:
    """Make no file."""


def _closed(path: Path) -> None:
    SqliteStore(path).close()


def _killed(path: Path) -> None:
    leave_a_log(path)


def _newer(path: Path) -> None:
    _backup(path)
    edit(path, "PRAGMA user_version = 99")


def _older(path: Path) -> None:
    _backup(path)
    edit(path, "PRAGMA user_version = 1")


def _foreign(path: Path) -> None:
    edit(path, "CREATE TABLE t (x)")


def _text(path: Path) -> None:
    path.write_text("not a database, but a text that is longer than a header")


def _encrypted(path: Path) -> None:
    _backup(path)
    path.write_bytes(path.read_bytes()[:20] + bytes(80) + path.read_bytes()[100:])


def _backup(path: Path) -> None:
    with SqliteStore(path.with_name("source.db")) as store:
        store.backup(path)


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (_absent, "is not a file: give the path of a database"),
        (_text, "is not a SQLite database"),
        (_encrypted, "cannot be read"),
        (_foreign, "is the database of another application"),
        (_newer, "has schema version 99, which is newer than version .*: upgrade incoming-payments"),
        (_older, "has schema version 1, which is older than version .*: audit it with the release that wrote it"),
        (_closed, "no store has it open: audit the database while the service runs, or audit a copy"),
        (_killed, "no store has it open: audit the database while the service runs, or audit a copy"),
    ],
)
def test_file_that_cannot_be_audited_is_refused(tmp_path: Path, prepare: Callable[[Path], None], says: str) -> None:
    """The message says what to do, and no file is created or changed."""
    path = tmp_path / "payments.db"
    prepare(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(AuditFailed, match=says):
        audit(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_stopped_store_is_refused(tmp_path: Path) -> None:
    """The database may lack pages after a store has stopped."""
    path = tmp_path / "payments.db"
    with SqliteStore(path) as store:
        id = create(store)
        Path(f"{path}-shm").rename(tmp_path / "elsewhere")
        with pytest.raises(StoreStopped):
            credit(store, id, "wire-1", 1)
        with pytest.raises(AuditFailed, match="has stopped or is being opened"):
            audit(path)


def test_store_that_is_closed_during_the_audit_ends_it(tmp_path: Path) -> None:
    """The audit cannot know whether the log that it reads is on the disk."""
    path = tmp_path / "payments.db"
    store = SqliteStore(path)
    fill(store)
    with pytest.raises(AuditFailed, match="no store has it open"):
        audit(path, on_progress=lambda _: store.close())


def test_store_that_is_closed_during_a_read_ends_the_audit(tmp_path: Path) -> None:
    """The lock is checked again after each read."""
    path = tmp_path / "payments.db"
    store = SqliteStore(path)
    database = _database.Database(path)
    with pytest.raises(AuditFailed, match=r"the last store of .* was closed during the audit"), database.read():
        store.close()


def test_lock_file_that_cannot_be_read_is_refused(copy: Path) -> None:
    """The message names the file."""
    lock = copy.with_name("copy.db-lock")
    lock.symlink_to(lock)
    with pytest.raises(AuditFailed, match=r"copy.db-lock cannot be read \(Too many levels of symbolic links\): let"):
        audit(copy)
