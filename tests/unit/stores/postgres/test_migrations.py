"""The tables are created and upgraded by many processes at once, in two steps, beside the processes that use them."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import psycopg
import pytest

from incoming_payments.errors import ConfigurationError, StoreUnavailable, StoreUnusable
from incoming_payments.stores.postgres import PostgresStore, _migrations, migrate
from incoming_payments.stores.postgres._schema import VERSIONS, Version
from incoming_payments.testing.steps import check_credits, create, credit, together
from kits.postgres import async_view, execute, new_database, server_url

# A second version, whose new code writes a column that the first does not know, and needs an index on it.
SECOND = Version(
    2,
    before=(
        "ALTER TABLE incoming_payments.payments ADD COLUMN IF NOT EXISTS note text",
        "CREATE INDEX CONCURRENTLY IF NOT EXISTS payments_of_note ON incoming_payments.payments (note)",
        "CREATE TABLE IF NOT EXISTS incoming_payments.notes (id uuid PRIMARY KEY)",
    ),
    after=("ALTER TABLE incoming_payments.payments ALTER COLUMN asset_code SET DEFAULT 'EUR'",),
)
TWO = (*VERSIONS, SECOND)
THREE = (*TWO, Version(3, before=("CREATE TABLE incoming_payments.third (id uuid PRIMARY KEY)",)))
NUMBERS = count()


@pytest.fixture
def fresh() -> Iterator[str]:
    """Yield the connection string of a database without tables."""
    name = f"migrated_{next(NUMBERS)}"
    yield new_database(name)
    execute(server_url(), f"DROP DATABASE {name} WITH (FORCE)")


def versions(database: str) -> Any:
    """Return the last versions whose steps before and after have run."""
    [row] = execute(database, "SELECT before, after FROM incoming_payments.schema_version")
    return row


def test_a_database_without_tables_is_refused(fresh: str) -> None:
    """The error names the function. After `migrate`, the stores open."""
    with pytest.raises(
        StoreUnusable, match=r"has no tables of incoming-payments: run `incoming-payments migrate`, or call `"
    ):
        PostgresStore(fresh)
    with async_view(fresh) as view, pytest.raises(StoreUnusable, match="has no tables of incoming-payments"):
        create(view)
    execute(fresh, "CREATE SCHEMA incoming_payments")
    with pytest.raises(StoreUnusable, match="has no tables of incoming-payments"):
        PostgresStore(fresh)
    migrate(fresh)
    with PostgresStore(fresh) as store:
        create(store)


def test_many_processes_migrate_at_once(fresh: str) -> None:
    """One of them works, and the others find nothing to do."""
    together([partial(migrate, fresh, versions=TWO)] * 6)
    assert versions(fresh) == (2, 2)


def test_a_service_is_upgraded_without_a_stop(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old code works before, between and beside the steps before. It is refused after the steps after."""
    migrate(fresh)
    stop, answers = threading.Event(), list[Any]()
    with PostgresStore(fresh) as old, ThreadPoolExecutor(1) as executor:
        id = create(old)

        def work() -> None:
            while not stop.is_set():
                answers.append(credit(old, id, f"wire-{len(answers)}", 1))

        running = executor.submit(work)
        migrate(fresh, "before", TWO)
        assert versions(fresh) == (2, 1)
        migrate(fresh, "before", TWO)  # nothing is left to do
        with monkeypatch.context() as patched:
            patched.setattr(_migrations, "VERSION", 2)
            with PostgresStore(fresh) as new:
                credit(new, id, "new", 1)
        with PostgresStore(fresh) as again:
            again.load(id)
        stop.set()
        running.result()
        migrate(fresh, "after", TWO)
        assert versions(fresh) == (2, 2)
        check_credits(old, id, [*answers, credit(old, id, "new", 1)])
    with pytest.raises(StoreUnusable, match="has version 2, and this program knows only versions up to 1"):
        PostgresStore(fresh)
    with pytest.raises(StoreUnusable, match="has version 2, and this program knows only versions up to 1"):
        migrate(fresh)


def test_an_older_database_is_refused(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new code needs the steps before."""
    migrate(fresh)
    monkeypatch.setattr(_migrations, "VERSION", 2)
    with pytest.raises(StoreUnusable, match="has version 1, and this program needs version 2: run `incoming-payments"):
        PostgresStore(fresh)


def test_versions_follow_one_another(fresh: str) -> None:
    """The steps `before` of a version need the steps `after` of the last version, unless `all` runs both."""
    migrate(fresh)
    migrate(fresh, "after", TWO)  # the steps before have not run, so there is nothing to do
    assert versions(fresh) == (1, 1)
    with pytest.raises(StoreUnusable, match="the steps `after` of version 2 have not run"):
        migrate(fresh, "before", THREE)
    assert versions(fresh) == (2, 1)
    migrate(fresh, "all", THREE)
    assert versions(fresh) == (3, 3)


def test_a_new_database_gets_all_steps(fresh: str) -> None:
    """No process with old code works with it."""
    migrate(fresh, "before", THREE)
    assert versions(fresh) == (3, 3)


def test_an_interrupted_step_is_repeated(fresh: str) -> None:
    """`CREATE INDEX CONCURRENTLY` leaves an invalid index when it is interrupted. That index is built again."""
    migrate(fresh)
    execute(fresh, SECOND.before[0])
    execute(fresh, SECOND.before[1])
    execute(
        fresh,
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'incoming_payments.payments_of_note'::regclass",
    )
    migrate(fresh, versions=TWO)
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'incoming_payments.payments_of_note'::regclass"
    assert execute(fresh, valid) == [(True,)]


def test_a_step_that_waits_does_not_lock_readers_out(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a long transaction reads, the step tries again and again. Other reads wait at most as long as one try."""
    migrate(fresh)
    monkeypatch.setattr(_migrations, "_LIMITS", b"SELECT set_config('lock_timeout', '100ms', true)")
    with PostgresStore(fresh) as store, ThreadPoolExecutor(1) as executor:
        id = create(store)
        with psycopg.connect(fresh) as reader:
            reader.execute("SELECT 1 FROM incoming_payments.payments")
            migration = executor.submit(migrate, fresh, versions=TWO)
            end_s = time.monotonic() + 0.5
            while time.monotonic() < end_s:
                began_s = time.monotonic()
                store.load(id)
                assert time.monotonic() - began_s < 2
            assert not migration.done()
        migration.result()
    assert versions(fresh) == (2, 2)


def test_a_step_that_waits_for_too_long_is_unavailable(fresh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a migration that waits for another one."""
    migrate(fresh)
    monkeypatch.setattr(_migrations, "MIGRATION_S_MAX", 0.2)
    monkeypatch.setattr(_migrations, "_LIMITS", b"SELECT set_config('lock_timeout', '100ms', true)")
    with psycopg.connect(fresh) as reader:
        reader.execute("SELECT 1 FROM incoming_payments.payments")
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            migrate(fresh, versions=TWO)
        reader.rollback()
        reader.execute("SELECT pg_advisory_lock(%s)", (_migrations._LOCK,))
        with pytest.raises(StoreUnavailable, match="another migration is running"):
            migrate(fresh, versions=TWO)


def test_an_unreachable_server_is_unavailable() -> None:
    """The error says why."""
    with pytest.raises(StoreUnavailable, match="refused"):
        migrate("host=127.0.0.1 port=1")


def test_an_unknown_step_is_refused() -> None:
    """A misspelt step does not run the steps after."""
    step: Any = "befor"
    with pytest.raises(ConfigurationError, match='step must be "before", "after" or "all", not \'befor\''):
        migrate(server_url(), step)


def test_another_encoding_is_refused() -> None:
    """Metadata may have any character."""
    execute(server_url(), "DROP DATABASE IF EXISTS latin")
    execute(server_url(), "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    database = psycopg.conninfo.make_conninfo(server_url(), dbname="latin")
    says = "has the encoding LATIN1: create a database with the encoding UTF8"
    with pytest.raises(StoreUnusable, match=says):
        migrate(database)
    restored = f"SELECT 1 AS id, {VERSIONS[-1].number} AS before, 1 AS after"  # the tables of a backup
    execute(database, "CREATE SCHEMA incoming_payments")
    execute(database, f"CREATE TABLE incoming_payments.schema_version AS {restored}")
    execute(database, "CREATE TABLE incoming_payments.copies AS SELECT 'a' AS source, true AS is_complete")
    with pytest.raises(StoreUnusable, match=says):
        PostgresStore(database)
    execute(server_url(), "DROP DATABASE latin WITH (FORCE)")
