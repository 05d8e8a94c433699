"""The audit of a PostgreSQL database finds the same damage as the audit of a SQLite database."""

# ruff: noqa: S608 - constants
import itertools
import os
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Final

import psycopg
import pytest

from incoming_payments.audit import Counts, _postgres, audit
from incoming_payments.domain.feed import Consumer, ConsumerName, Start
from incoming_payments.errors import AuditFailed, ConfigurationError
from incoming_payments.stores.postgres import PostgresStore, migrate
from incoming_payments.testing.simulation import simulate
from incoming_payments.testing.steps import create, credit
from incoming_payments.testing.values import NOW, a_creation
from kits.audited_books import NEVER_FOUND, SOMETIMES_FOUND, fill, texts
from kits.postgres import empty_database, execute, new_database
from kits.postgres_books import PostgresBooks, filled_database, url_of
from kits.processes import ROOT

# The tables with another name than in SQLite.
OTHER_NAMES: Final = {"nonce_counts": "nonce_count", "quota_clients": "request_counts"}
# The damage that the audit does not find in tables and columns that SQLite does not have.
NEVER_FOUND_HERE: Final = {
    "consumers.registration": "other swapped",
    "feed_writers.slot": "swapped",
    "nonce_counts.slot": "swapped",
    "nonce_counts.held": "swapped",
    "nonce_counts.swept_until": "other swapped",
    "registrations.registration": "other",
}
TABLES: Final = (
    "consumers", "credits", "deliveries", "events", "feed_writers", "idempotency_keys", "nonce_counts", "nonces",
    "payments", "quota_clients", "registrations", "settings", "streams",
)  # fmt: skip


@pytest.fixture(scope="module")
def books() -> Iterator[PostgresBooks]:
    """Return a database with honest traffic and without constraints."""
    books = PostgresBooks(filled_database(f"audited_{os.getpid()}"))
    yield books
    books.close()


@pytest.fixture
def url() -> str:
    """Return the URL of a database with honest traffic."""
    url = url_of(empty_database())
    with PostgresStore(url, reference="ref") as store:
        fill(store)
    return url


# --- honest databases --------------------------------------------------------------------------------


def test_honest_traffic_has_no_difference(url: str) -> None:
    """The report has the same numbers as that of a SQLite database. Only texts that were erased are not counted."""
    report = audit(url)
    assert (texts(report), report.is_sound, report.is_live) == ("", True, True)
    assert report.counts == Counts(
        payments=8,
        credits=7,
        events=18,
        idempotency_keys=3,
        nonces=1,
        metadata=6,
        metadata_to_erase=3,
        streams=16,
        deliveries=15,
    )


def test_simulated_service_has_no_difference() -> None:
    """The simulation creates, credits, completes and expires payments in several processes, which crash."""
    url = url_of(empty_database())
    simulate(1, 300, store_factory=lambda: PostgresStore(url))
    report = audit(url)
    assert (texts(report), report.counts.payments > 10) == ("", True)


def test_registration_in_progress_is_no_difference(url: str) -> None:
    """The registration has not come to some payments, or the writers do not know it yet."""
    with PostgresStore(url) as store:
        while not store.feed.register(Consumer(name=ConsumerName("new")), Start.BEGINNING, NOW):
            pass
    last = "(SELECT id FROM incoming_payments.payments ORDER BY id LIMIT 1)"
    changes = ("is_known = false", f"scanned_to = {last}", "scanned_to = '00000000-0000-0000-0000-000000000000'")
    for change in changes:
        execute(url, f"UPDATE incoming_payments.consumers SET {change} WHERE name = 'new'")
        assert texts(audit(url)) == ""
    execute(url, f"UPDATE incoming_payments.settings SET reindexed_to = {last}")
    assert texts(audit(url)) == ""


def test_audit_sees_one_state_of_the_database(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes during the audit are not part of it. The audit shows its progress after each row."""
    ticks = itertools.count()
    monkeypatch.setattr(_postgres, "AUDIT_SLICE_S_MAX", 1.5)
    monkeypatch.setattr(_postgres, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    monkeypatch.setattr(_postgres, "_ROWS_MAX", 2)
    seen: list[Counts] = []
    with PostgresStore(url) as store:
        id = create(store, a_creation())

        def on_progress(counts: Counts) -> None:
            seen.append(counts)
            if len(seen) < 9:
                credit(store, id, f"new-{len(seen)}", 1)
                create(store, a_creation())

        report = audit(url, on_progress=on_progress)
    assert texts(report) == ""
    assert (report.counts.payments, report.counts.credits, report.counts.events) == (9, 7, 19)
    assert len(seen) > 20
    assert audit(url).counts.credits > 7


# --- damage ------------------------------------------------------------------------------------------


def test_missing_constraints_are_found(books: PostgresBooks) -> None:
    """The books have no other difference."""
    assert sorted(books.columns) == sorted(TABLES)
    assert {difference.table for difference in audit(books.url).differences} == {"file"}
    assert "file: the table or index credits_pkey is missing or invalid" in texts(audit(books.url))


@pytest.mark.parametrize("table", TABLES)
def test_damage_to_each_table_and_column_is_found(books: PostgresBooks, table: str) -> None:
    """The audit finds a missing row, a row twice, and a wrong value, except in the places that are listed."""
    places = [(table, "missing"), (table, "twice")]
    places += [(f"{table}.{column}", kind) for column in books.columns[table] for kind in ("other", "null", "swapped")]
    wrong = []
    for place, kind in places:
        if books.damage(table, place.partition(".")[2], kind):
            found = any(text.table != "file" or "cannot" in text.text for text in audit(books.url).differences)
            books.undo(table)
            name = place.replace(table, OTHER_NAMES.get(table, table), 1)
            never = NEVER_FOUND_HERE.get(place, NEVER_FOUND.get(name, "")).split()
            sometimes = SOMETIMES_FOUND.get(name, "").split()
            if found != (kind not in never) and kind not in sometimes:
                wrong.append((place, kind, found))
    assert wrong == []


def test_page_lists_the_damage_that_stays_hidden() -> None:
    """The page has the places that only PostgreSQL has."""
    text = (ROOT / "docs/audit.md").read_text("utf-8").partition("## A PostgreSQL database")[2]
    rows = re.findall(r"^\| `([a-z_.]+)` \| ([a-z ]+) \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(NEVER_FOUND_HERE.items())


@pytest.mark.parametrize(
    ("statement", "table", "text"),
    [
        ("UPDATE credits SET amount = 39 WHERE credit_id = 'wire-0'", "credits", "received_amount is '40', and must"),
        ("UPDATE payments SET received_amount = 1", "payments", "received_amount is '1', and must be '120'"),
        ("UPDATE payments SET received_amount = 'NaN'", "payments", "received_amount is 'NaN', and must be '120'"),
        ("DELETE FROM events WHERE version = 3", "events", "version 3 is missing, and version 4 follows"),
        ("DELETE FROM events", "events", "the payment has no events"),
        ("DELETE FROM credits", "credits", "credit wire-0 is missing, which event 2 names"),
        ("DELETE FROM payments", "payments", "there must be one row of the payment, and there are 0"),
        ("UPDATE events SET at = at + 4000000000 WHERE version = 2", "events", "version 2 breaks a rule: the payment"),
        ("UPDATE payments SET ended_at = 1", "payments", "ended_at is 1 and is_unpaid is 0, and they must be 17"),
        ("UPDATE payments SET is_unpaid = true", "payments", "and is_unpaid is 1, and they must be 17"),
        ("UPDATE payments SET reference = '\\x00'", "payments", "reference is 00, and must be None"),
        (
            "INSERT INTO credits SELECT payment_id, 'x', amount, received_amount, completes, at FROM credits LIMIT 1",
            "credits",
            "there are 4 credits, and 3 events of credits",
        ),
    ],
)
def test_difference_names_the_payment(statement: str, table: str, text: str) -> None:
    """The difference has the payment, the table, and what is wrong, and the payments beside it have none."""
    url = url_of(empty_database())
    with PostgresStore(url) as store:
        create(store, a_creation())
        id = create(store, a_creation(limit=100, expires_in_s=3600))
        for number, value in enumerate((40, 50, 30)):
            credit(store, id, f"wire-{number}", value)
        create(store, a_creation())
    of = "WHERE id" if "payments" in statement else "WHERE payment_id"
    if "LIMIT" not in statement:
        statement += f" {of.replace('WHERE', 'AND' if 'WHERE' in statement else 'WHERE')} = '{id}'"
    execute(url, f"SET search_path = incoming_payments; {statement}")
    [difference] = audit(url).differences
    assert (difference.payment, difference.table) == (id, table)
    assert text in difference.text


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("DROP INDEX events_of_other_kinds", "file: the table or index events_of_other_kinds is missing or invalid"),
        ("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'credits_pkey'::regclass", "credits_pkey is missi"),
        ("ALTER TABLE credits RENAME TO debits", 'cannot continue: relation "incoming_payments.credits" does not exi'),
        ("CREATE RULE steal AS ON INSERT TO credits DO NOTHING", "file: there is a rule steal, which may change rows"),
        (
            "CREATE TRIGGER steal BEFORE UPDATE ON credits EXECUTE FUNCTION suppress_redundant_updates_trigger()",
            "file: there is a trigger steal, which may change rows: remove it",
        ),
        ("DELETE FROM settings", "settings: there must be one row, and there are 0"),
        ("DELETE FROM consumers", "streams: consumer all is unknown"),
        ("UPDATE consumers SET kinds = '{paid}'", "consumers: consumer all is invalid: kinds must be some of"),
        ("DELETE FROM streams WHERE is_open", "streams: consumer closed: delivery "),
        ("UPDATE nonce_counts SET held = 7", "nonce_counts: there must be one row for each slot from 0 to 31, and"),
        ("DELETE FROM feed_writers WHERE slot = 255", "feed_writers: there must be one row for each slot"),
        ("UPDATE feed_writers SET registration = 99", "registrations: there must be one row, with the greatest"),
        ("UPDATE idempotency_keys SET client = 'eve' WHERE key = 'k1'", "names a payment of the client https://shop"),
    ],
)
def test_difference_in_other_tables(url: str, statement: str, text: str) -> None:
    """The difference names the index, the trigger, the consumer or the key."""
    name = f"damaged_{os.getpid()}"
    copy = url_of(new_database(name, template=str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])))
    execute(copy, f"SET search_path = incoming_payments; {statement}")
    assert text in texts(audit(copy))


def test_row_without_a_key_ends_the_audit(books: PostgresBooks) -> None:
    """Such a row has no place in the order of the others."""
    books.change(
        "ALTER TABLE incoming_payments.events ALTER payment_id DROP NOT NULL",
        "UPDATE incoming_payments.events SET payment_id = NULL WHERE version = 2",
    )
    found = texts(audit(books.url))
    books.undo("events")
    assert "file: the audit cannot continue: the rows of a table are not in order: (None,) follows" in found


# --- refusals ----------------------------------------------------------------------------------------


def test_database_that_cannot_be_audited_is_refused() -> None:
    """The message names the database without the password, and says what to do."""
    conninfo = new_database(f"refused_{os.getpid()}")
    url = url_of(conninfo)
    with pytest.raises(AuditFailed, match=r"cannot be audited: the database has no tables of incoming-payments"):
        audit(url)
    migrate(url)
    execute(url, "DROP ROLE IF EXISTS stranger")
    execute(url, "CREATE ROLE stranger LOGIN")
    execute(url, "GRANT USAGE ON SCHEMA incoming_payments TO stranger")
    execute(url, "GRANT SELECT ON incoming_payments.schema_version, incoming_payments.copies TO stranger")
    with pytest.raises(AuditFailed, match=r"permission denied .*: let the role read all of its tables"):
        audit(re.sub("user=.*", "user=stranger", url))
    with pytest.raises(AuditFailed, match=r"^postgresql://eve@127.0.0.1:1/bank cannot be audited: .*") as caught:
        audit("postgresql://eve:secret@127.0.0.1:1/bank")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="conninfo is not a connection string") as invalid:
        audit("postgresql://eve:secret%@127.0.0.1/bank")
    assert "secret" not in str(invalid.value)


def test_rows_that_a_policy_hides_are_not_passed_over(url: str) -> None:
    """The audit of the visible rows alone would prove nothing."""
    execute(url, "DROP ROLE IF EXISTS tenant")
    execute(url, "CREATE ROLE tenant LOGIN")
    execute(url, "GRANT USAGE ON SCHEMA incoming_payments TO tenant")
    execute(url, "GRANT SELECT ON ALL TABLES IN SCHEMA incoming_payments TO tenant")
    as_tenant = re.sub("user=.*", "user=tenant", url)
    assert texts(audit(as_tenant)) == ""
    try:
        for table in ("payments", "credits", "events", "idempotency_keys", "streams", "deliveries"):
            execute(url, f"ALTER TABLE incoming_payments.{table} ENABLE ROW LEVEL SECURITY")
        with pytest.raises(AuditFailed, match=r"row-level security policy .*: let the role read all of its tables"):
            audit(as_tenant)
        assert texts(audit(url)) == ""
    finally:
        execute(url, "DROP OWNED BY tenant")
        for table in TABLES:
            execute(url, f"ALTER TABLE incoming_payments.{table} DISABLE ROW LEVEL SECURITY")


def test_connection_that_is_lost_ends_the_audit(url: str) -> None:
    """The audit cannot continue in another transaction."""

    def on_progress(_: Counts) -> None:
        execute(
            url,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )

    with pytest.raises(AuditFailed, match=r"cannot be read \(.*\): correct this, and repeat the audit"):
        audit(url, on_progress=on_progress)
