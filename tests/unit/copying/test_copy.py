"""A move to PostgreSQL keeps every row, can be killed at any moment, and can be abandoned before it is complete."""

# ruff: noqa: S608 - constants
import os
import random
import re
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from incoming_payments.audit import audit
from incoming_payments.copying import CopyProgress, abandon_copy, compare, copy_to_postgres
from incoming_payments.domain.feed import Consumer, ConsumerName, Start
from incoming_payments.domain.idempotency import IdempotencyKey
from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import PaymentId, client_id
from incoming_payments.domain.reference import Reference
from incoming_payments.errors import AuditFailed, ConfigurationError, CopyFailed, StoreUnavailable, StoreUnusable
from incoming_payments.stores.postgres import PostgresStore, migrate
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.steps import create, credit
from incoming_payments.testing.values import NOW, a_creation
from kits.audited_books import ALL, CLOSED, SINGLE, fill, handle, multiply, render, store_as_version_1, texts
from kits.postgres import OwnServer, end_connections, execute, new_database
from kits.postgres_books import url_of
from kits.processes import COMMAND, run_command

LATER: Final = NOW + timedelta(hours=3)


@pytest.fixture
def url() -> str:
    """Return the URL of a new database without tables."""
    return url_of(new_database(f"target_{os.getpid()}"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a SQLite file with honest traffic, in which every table has rows."""
    path = tmp_path / "payments.sqlite3"
    with SqliteStore(path, reference="ref") as store:
        fill(store)
        store.feed.register(Consumer(name=ConsumerName("new")), Start.NOW, NOW)
    return path


def edit(path: Path, *statements: str) -> None:
    """Change a file that no store has open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in ("PRAGMA ignore_check_constraints = 1", *statements):
            connection.execute(statement)


def at(table: str, action: Callable[[], object]) -> Callable[[CopyProgress], None]:
    """Return a function that calls `action` when the copy begins with `table`."""

    def on_progress(progress: CopyProgress) -> None:
        if progress.table == table:
            action()

    return on_progress


def interrupt() -> None:
    """End the copy."""
    raise KeyboardInterrupt


def seen(store: SqliteStore | PostgresStore, ids: list[PaymentId]) -> object:
    """Return what the ports of `store` show."""
    first = store.find_payments(PaymentQuery(now=LATER, limit=3))
    second = store.find_payments(PaymentQuery(now=LATER, limit=3, older_than=Place(first[-1].created_at, first[-1].id)))
    found = store.find_payments(PaymentQuery(now=LATER, limit=9, reference=Reference("ref", "7")))
    return (
        [store.load(id) for id in ids],
        [store.events(id) for id in ids],
        [first, second, found],
        store.find_expired(LATER, 10),
        [store.find_creation(client_id("app"), IdempotencyKey(key), NOW) for key in ("k3", "k1")],
        store.feed.consumers(),
        [store.feed.deliveries(id) for id in ids],
        [store.feed.next_due(name) for name in (ALL, CLOSED, SINGLE)],
        store.reference,
    )


# --- the rows ----------------------------------------------------------------------------------------


def test_every_port_shows_the_same_after_the_move(file: Path, url: str) -> None:
    """Clients, consumers and operators continue where they were."""
    with SqliteStore(file) as store:
        ids = [payment.id for payment in store.find_payments(PaymentQuery(now=LATER, limit=50))]
        before = seen(store, ids)
    store_as_version_1(file)
    report = copy_to_postgres(file, url)
    assert (report.payments, report.rows, report.copied, report.is_one_file) == (8, 74, 74, True)
    with PostgresStore(url) as target:
        assert seen(target, ids) == before
        assert not target.nonces.use(f"{3:064x}", NOW + timedelta(seconds=77), NOW + timedelta(seconds=72))
        [*events] = target.events(ids[0])
        credit(target, ids[0], "wire-after", 1, now=LATER)
        assert len(target.events(ids[0])) > len(events)
        assert [len(target.feed.claim(ALL, render=render, now=LATER, until=LATER, limit=50)) > 0]
    assert texts(audit(url)) == ""


def test_both_sides_are_audited_and_the_same(file: Path, url: str) -> None:
    """The file that was moved is a single file, which can be audited. Only erased texts are not in PostgreSQL."""
    copy_to_postgres(file, url)
    source, target = audit(file), audit(url)
    assert (texts(source), texts(target), source.is_live) == ("", "", False)
    assert source.counts.metadata == target.counts.metadata + 1
    assert compare(file, url) == []
    with PostgresStore(url) as store:
        id = create(store, a_creation())
    assert {(found.table, found.text) for found in compare(file, url)} == {
        (table, "the row is not in the file") for table in ("payments", "events", "streams")
    }
    assert id in str(compare(file, url)[0])
    assert texts(audit(file)) == ""


def test_work_in_progress_is_moved(file: Path, url: str) -> None:
    """A registration, a removal and a `reindex` continue in PostgreSQL."""
    with SqliteStore(file) as store:
        ids = [payment.id for payment in store.find_payments(PaymentQuery(now=LATER, limit=50))]
    edit(
        file,
        "UPDATE consumers SET is_removed = 1 WHERE name = 'all'",
        "UPDATE consumers SET scanned_to = '' WHERE name = 'new'",
        "UPDATE settings SET reindexed_to = ''",
    )
    copy_to_postgres(file, url)
    with PostgresStore(url) as store:
        while not store.feed.remove(ALL):
            pass
        while not store.feed.register(Consumer(name=ConsumerName("new")), Start.BEGINNING, NOW):
            pass
        claimed = store.feed.claim(ConsumerName("new"), render=render, now=LATER, until=LATER, limit=50)
        assert {delivery.payment_id for delivery in claimed} == set(ids)
        store.reindex("ref")
        assert len(store.find_payments(PaymentQuery(now=LATER, limit=9, reference=Reference("ref", "7")))) == 1
    assert texts(audit(url)) == ""


# --- the file ----------------------------------------------------------------------------------------


def test_file_refuses_to_be_written_and_says_where_its_payments_are(file: Path, url: str) -> None:
    """A store that had the file open refuses writes from the first step on, and other stores cannot open it."""
    secret = url.replace("?", "?password=secret&")
    with SqliteStore(file) as open_before:
        id = create(open_before, a_creation())

        def refuses(text: str) -> None:
            with pytest.raises(StoreUnusable, match=text) as caught:
                credit(open_before, id, "late", 1)
            assert "secret" not in str(caught.value)

        copying = rf"{file} are being copied to postgresql://.*/target_\d+, so the file refuses writes: complete"
        report = copy_to_postgres(file, secret, on_progress=at("events", lambda: refuses(copying)))
        refuses(rf"{file} were moved to postgresql://.*/target_\d+: open that database in its place")
        assert not report.is_one_file
        assert texts(audit(file)) == ""
    with pytest.raises(StoreUnusable, match="were moved to"):
        SqliteStore(file)
    again = copy_to_postgres(file, url)
    assert (again.copied, again.is_one_file) == (0, True)
    assert run_command("audit", file).returncode == 0


def test_moved_file_that_another_program_reads_keeps_its_log(file: Path, url: str) -> None:
    """The move is complete all the same, and a repeated call removes the log."""
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM payments").fetchone()
        assert not copy_to_postgres(file, url).is_one_file
    assert copy_to_postgres(file, url).is_one_file


def test_target_of_an_incomplete_copy_is_refused(file: Path, url: str) -> None:
    """Neither a store nor an audit opens the target. A repeated call completes the copy."""
    with pytest.raises(KeyboardInterrupt):
        copy_to_postgres(file, url, on_progress=at("streams", interrupt))
    with pytest.raises(
        StoreUnusable, match=rf"a part of the rows of {file}, and the copy is not complete: complete it"
    ):
        PostgresStore(url)
    with pytest.raises(AuditFailed, match="the copy is not complete"):
        audit(url)
    with pytest.raises(StoreUnusable, match="are being copied to"):
        SqliteStore(file)
    assert 0 < copy_to_postgres(file, url).copied < 74
    assert compare(file, url) == []


def test_table_of_several_batches_is_copied_whole(file: Path, url: str) -> None:
    with SqliteStore(file) as store:
        id = create(store, a_creation(limit=100))
    multiply(file, id, 1_100)
    copy_to_postgres(file, url)
    assert compare(file, url) == []


def test_copy_that_was_killed_at_any_moment_continues(file: Path, url: str) -> None:
    """A process is killed at random points and started again, and no row is missing, twice or changed."""
    with SqliteStore(file) as store:
        id = create(store, a_creation(limit=100))
        for number, value in enumerate((40, 50, 30)):
            credit(store, id, f"wire-{number}", value)
    multiply(file, id, 2_500)
    before, chance, killed = counts_of(file), random.Random(1), 0
    migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(4):
            before_start = places(connection)
            with subprocess.Popen([*COMMAND, "copy-to-postgres", str(file), url], stdout=subprocess.DEVNULL) as process:
                while places(connection) == before_start and process.poll() is None:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, 0.05))
                process.kill()
            killed += process.returncode == -signal.SIGKILL
            with pytest.raises(StoreUnusable, match=r"are being copied to|were moved to"):
                SqliteStore(file)
    assert killed >= 3
    assert run_command("copy-to-postgres", file, url).returncode == 0
    report = audit(url)
    assert (texts(report), compare(file, url), texts(audit(file))) == ("", [], "")
    assert (report.counts.payments, report.counts.credits, report.counts.events) == before


def counts_of(file: Path) -> tuple[int, int, int]:
    """Return the numbers of payments, credits and events in a file that no store has open."""
    with closing(sqlite3.connect(file)) as connection:
        counted = (
            "SELECT (SELECT count(*) FROM payments), (SELECT count(*) FROM credits), (SELECT count(*) FROM events)"
        )
        payments, credits, events = connection.execute(counted).fetchone()
    return payments, credits, events


def places(connection: psycopg.Connection[Any]) -> list[tuple[str]]:
    """Return the place of the copy, if it has begun."""
    return connection.execute("SELECT place FROM incoming_payments.copies").fetchall()


# --- differences and refusals ------------------------------------------------------------------------


def test_difference_ends_the_copy(file: Path, url: str) -> None:
    """A changed, a missing and an unknown row are named, and the copy can be abandoned."""
    other = "019b796e-0000-7000-8000-000000000009"

    def damage() -> None:
        execute(url, "UPDATE incoming_payments.credits SET at = at + 1 WHERE credit_id = 'wire-1'")
        execute(url, "DELETE FROM incoming_payments.events WHERE kind = 'expired'")
        execute(url, f"INSERT INTO incoming_payments.credits VALUES ('{other}', 'wire-9', 1, 1, false, 0)")

    damage_settings = "UPDATE incoming_payments.nonce_counts SET held = held + 1 WHERE slot = 7"
    with pytest.raises(CopyFailed, match="of 3 differences") as caught:
        copy_to_postgres(file, url, on_progress=at("quota_clients", damage))
    found = str(caught.value).splitlines()[1:]
    assert re.fullmatch(r"credits [0-9a-f-]+, wire-1: not the same: at", found[0])
    assert found[1] == f"credits {other}, wire-9: the row is not in the file"
    assert re.fullmatch(r"events [0-9a-f-]+, 3: the row is missing in PostgreSQL", found[2])
    with pytest.raises(CopyFailed, match="of 3 differences"):
        copy_to_postgres(file, url)
    abandon_copy(file, url)
    with pytest.raises(CopyFailed, match=r"settings : the reference, or the count of the nonces, is not the same"):
        copy_to_postgres(file, url, on_progress=at("quota_clients", lambda: execute(url, damage_settings)))
    abandon_copy(file, url)
    with SqliteStore(file) as store:
        create(store, a_creation())
    assert copy_to_postgres(file, url).payments == 9


def test_abandoned_copy_leaves_an_empty_database(file: Path, url: str) -> None:
    """The file accepts writes again, also from a store that was open, and a store can use the target."""
    with SqliteStore(file) as store:
        with pytest.raises(KeyboardInterrupt):
            copy_to_postgres(file, url, on_progress=at("nonces", interrupt))
        abandon_copy(file, url)
        create(store, a_creation())
    abandon_copy(file, url)  # a repeated call does nothing
    with PostgresStore(url) as target:
        assert target.find_payments(PaymentQuery(now=LATER, limit=9)) == []
        create(target, a_creation())
    assert texts(audit(url)) == ""
    with pytest.raises(CopyFailed, match=r"target_\d+ has payments or consumers already: choose an empty database"):
        copy_to_postgres(file, url)
    with SqliteStore(file) as store:
        create(store, a_creation())


def test_copy_is_abandoned_although_the_target_does_not_answer(file: Path, url: str) -> None:
    """The rows stay in the target, which no store opens, and the next copy removes them."""
    with pytest.raises(KeyboardInterrupt):
        copy_to_postgres(file, url, on_progress=at("nonces", interrupt))
    with pytest.raises(StoreUnavailable, match=r"accepts writes again, but the rows in .*target_\d+ were not removed"):
        abandon_copy(file, "postgresql://127.0.0.1:1/target")
    with SqliteStore(file) as store:
        create(store, a_creation())
    with pytest.raises(StoreUnusable, match="the copy is not complete"):
        PostgresStore(url)
    assert copy_to_postgres(file, url).payments == 9


def test_copy_ends_when_another_process_abandons_it(file: Path, url: str) -> None:
    """The copy adds no further row to the target."""
    with pytest.raises(CopyFailed, match="another process has completed or abandoned the copy"):
        copy_to_postgres(file, url, on_progress=at("nonces", lambda: abandon_copy(file, url)))
    assert execute(url, "SELECT count(*) FROM incoming_payments.payments") == [(0,)]

    def abandon_without_the_target() -> None:
        with pytest.raises(StoreUnavailable):
            abandon_copy(file, "postgresql://127.0.0.1:1/target")

    with pytest.raises(CopyFailed, match="another process has abandoned the copy"):
        copy_to_postgres(file, url, on_progress=at("nonces", abandon_without_the_target))
    with SqliteStore(file) as store:
        create(store, a_creation())


def test_complete_move_cannot_be_abandoned(file: Path, url: str) -> None:
    """The payments of the target may have changed."""
    copy_to_postgres(file, url)
    with pytest.raises(CopyFailed, match=r"were moved to postgresql://.*, so the copy cannot be abandoned"):
        abandon_copy(file, url)
    with pytest.raises(StoreUnusable, match="were moved to"):
        SqliteStore(file)


def test_complete_move_is_not_repeated_to_an_empty_database(file: Path, url: str) -> None:
    """The same URL may lead to another server, and then both databases would accept credits."""
    copy_to_postgres(file, url)
    new_database(f"target_{os.getpid()}")
    with pytest.raises(CopyFailed, match=r"were moved to .*target_\d+, and the empty database at .* is another one"):
        copy_to_postgres(file, url)
    assert execute(url, "SELECT count(*) FROM incoming_payments.copies") == [(0,)]


def test_settings_of_the_role_change_no_row(file: Path, url: str) -> None:
    """A database may have other forms of texts and bytes."""
    name = f"target_{os.getpid()}"
    for setting in ("standard_conforming_strings = off", "bytea_output = 'escape'", "extra_float_digits = 0"):
        execute(url, f"ALTER DATABASE {name} SET {setting}")
    assert copy_to_postgres(file, url).payments == 8
    assert texts(audit(url)) == ""


def test_target_that_a_store_has_open_is_refused(file: Path, url: str) -> None:
    """The store could go on to write, and to abandon the copy would remove its payments."""
    migrate(url)
    with PostgresStore(url):
        with pytest.raises(CopyFailed, match=r"a store has .*target_\d+ open: end its process, and run the command"):
            copy_to_postgres(file, url)
        with SqliteStore(file) as store:
            create(store, a_creation())
    assert copy_to_postgres(file, url).payments == 9


def test_file_that_lacks_the_mark_of_a_complete_move_gets_it(file: Path, url: str) -> None:
    """The file may come from an old copy of the disk. Only one of the two databases accepts writes."""
    with pytest.raises(KeyboardInterrupt):
        copy_to_postgres(file, url, on_progress=at("nonces", interrupt))
    old = file.read_bytes()
    copy_to_postgres(file, url)
    file.write_bytes(old)
    with pytest.raises(CopyFailed, match=r"the copy to .*target_\d+ is complete, so it cannot be abandoned: run it"):
        abandon_copy(file, url)
    with pytest.raises(StoreUnusable, match="are being copied"):
        SqliteStore(file)
    assert copy_to_postgres(file, url).copied == 0
    with pytest.raises(StoreUnusable, match="were moved"):
        SqliteStore(file)


def test_copy_continues_after_the_server_was_restarted(file: Path, url: str) -> None:
    """The error says that the database is unavailable for now."""
    with pytest.raises(StoreUnavailable, match="PostgreSQL is unavailable"):
        copy_to_postgres(file, url, on_progress=at("nonces", lambda: end_connections(url)))
    assert copy_to_postgres(file, url).payments == 8


def test_target_that_another_file_uses_is_refused(file: Path, url: str, tmp_path: Path) -> None:
    """The other file still accepts writes."""
    other = tmp_path / "other.sqlite3"
    SqliteStore(other).close()
    with pytest.raises(KeyboardInterrupt):
        copy_to_postgres(file, url, on_progress=at("nonces", interrupt))
    with pytest.raises(CopyFailed, match=rf"has a part of the payments of {file}: choose an empty database"):
        copy_to_postgres(other, url)
    elsewhere = url_of(new_database(f"elsewhere_{os.getpid()}"))
    with pytest.raises(CopyFailed, match=r"are being copied to .*target_\d+, or were moved there: give that URL in"):
        copy_to_postgres(file, elsewhere)
    with pytest.raises(CopyFailed, match=r"give that URL in place of .*/elsewhere_"):
        abandon_copy(file, elsewhere)
    copy_to_postgres(file, url)
    with pytest.raises(CopyFailed, match=rf"has the payments of {file}: choose an empty database"):
        copy_to_postgres(other, url)
    with SqliteStore(other) as store:
        create(store, a_creation())


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("UPDATE credits SET received_amount = '1'", "PostgreSQL refused a row (.*credits_check.*): audit the file"),
        (
            "UPDATE events SET payment_id = 'x' WHERE kind = 'expired'",
            "PostgreSQL refused a row (.*uuid.*): audit the file",
        ),
        ("UPDATE credits SET completes = 2", r"has an invalid row in credits \(2 must be 0 or 1\): audit the file"),
        ("UPDATE nonces SET key = 'x'", r"has an invalid row in nonces \(non-hexadecimal.*\): audit the file"),
    ],
)
def test_row_that_cannot_be_copied_ends_the_copy(file: Path, url: str, statement: str, text: str) -> None:
    """The message says what PostgreSQL refused, without the values of the row."""
    edit(file, statement)
    with pytest.raises(CopyFailed, match=text) as caught:
        copy_to_postgres(file, url)
    assert "wire-" not in str(caught.value)
    abandon_copy(file, url)
    SqliteStore(file).close()


def test_wrong_arguments_are_refused(file: Path, tmp_path: Path) -> None:
    """Nothing is changed."""
    with pytest.raises(CopyFailed, match="is not a file: give the path of a database"):
        copy_to_postgres(tmp_path / "none", "postgresql:///x")
    with pytest.raises(CopyFailed, match="is not being copied, so there is nothing to abandon"):
        abandon_copy(file, "postgresql:///x")
    with pytest.raises(ConfigurationError, match="conninfo is not a connection string"):
        copy_to_postgres(file, "postgresql://host/x?nothing")
    with pytest.raises(StoreUnavailable):
        copy_to_postgres(file, "postgresql://127.0.0.1:1/target")
    with SqliteStore(file) as store:
        handle(store)


def test_cancelled_wait_for_a_standby_does_not_complete_the_copy(file: Path) -> None:
    """The rows may be on the primary alone. A repeated call waits for the standby."""
    with OwnServer() as server:
        execute(server.url, "CREATE DATABASE bank")
        url = url_of(server.url).replace("///postgres", "///bank")
        with pytest.raises(KeyboardInterrupt):
            copy_to_postgres(file, url, on_progress=at("nonces", interrupt))
        is_over = threading.Event()

        def cancel() -> None:
            while not is_over.is_set():
                server.cancel_wait()

        with server.absent_standby(url):
            canceller = threading.Thread(target=cancel)
            canceller.start()
            with pytest.raises(StoreUnavailable, match=r"may lack the last rows .*: run the command again"):
                copy_to_postgres(file, url)
            is_over.set()
            canceller.join()
        assert copy_to_postgres(file, url).payments == 8
