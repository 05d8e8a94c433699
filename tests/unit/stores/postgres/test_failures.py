"""The stores when PostgreSQL, a connection or a lock fails."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest

from incoming_payments.audit import audit
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment
from incoming_payments.errors import ConfigurationError, StoreUnavailable, StoreUnusable
from incoming_payments.ports import PaymentStore
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore, _errors, _wire, migrate
from incoming_payments.testing import a_creation, crediting
from incoming_payments.testing.steps import check_credits, create, created_under, credit, persistently
from kits.audited_books import fill, texts
from kits.postgres import (
    SERIALIZABLE,
    OwnServer,
    async_view,
    empty_database,
    end_connections,
    execute,
    new_database,
    server_url,
    settings_of,
)
from kits.postgres_books import url_of
from kits.postgres_proxy import Cut, proxied


@pytest.fixture(params=["threads", "asyncio"])
def opened(request: pytest.FixtureRequest, database: str) -> Iterator[PaymentStore]:
    """Yield a store of each kind in the database."""
    opened = PostgresStore(database) if request.param == "threads" else async_view(database)
    with opened as store:
        yield store


# --- connections ---


@pytest.mark.parametrize("cut", ["before", "after"])
@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_connection_cut_in_commit_is_an_unknown_outcome(database: str, cut: Cut, open_store: Any) -> None:
    """The store does not repeat the update itself. The repeated call credits once, or returns the first answer."""
    with proxied(database) as proxy, open_store(proxy.conninfo, prepares=False) as store:
        id = create(store)
        proxy.cut = cut
        with pytest.raises(StoreUnavailable, match="repeat the call later"):
            credit(store, id, "wire-1", 5)
        assert proxy.cuts == 1
        assert store.load(id).received.value == (5 if cut == "after" else 0)
        check_credits(store, id, [credit(store, id, "wire-1", 5)])


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_read_repeats_itself_when_its_connection_is_cut(database: str, open_store: Any) -> None:
    """A transaction that changes nothing cannot do harm, so the caller does not notice."""
    with proxied(database) as proxy, open_store(proxy.conninfo, prepares=False) as store:
        id = create(store)
        proxy.cut = "after"
        assert store.load(id).received.value == 0
        assert proxy.cuts == 1


def test_connections_that_were_closed_while_idle_are_not_noticed(opened: PaymentStore, database: str) -> None:
    """After a restart of the server, every connection in the pool is dead. The first statements find that out."""
    id = create(opened)
    for number in range(3):
        with ThreadPoolExecutor(8) as executor:
            list(executor.map(lambda _: opened.load(id), range(8)))
        end_connections(database)
        assert credit(opened, id, f"wire-{number}", 1).received.value == number + 1


def test_a_backend_that_ends_during_the_decision_decides_again(opened: PaymentStore, database: str) -> None:
    """Nothing was committed, so the store repeats the transaction."""
    id, calls = create(opened), list[int]()

    def decide(payment: IncomingPayment, earlier: Any) -> Any:
        if not calls:
            end_connections(database)
        calls.append(1)
        return crediting("wire-1", 1)(payment, earlier)

    try:
        answer = opened.update(id, decide, CreditId("wire-1"))
    except StoreUnavailable:  # the message that has COMMIT was already on its way
        answer = credit(opened, id, "wire-1", 1)
    check_credits(opened, id, [answer])


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_an_answer_that_is_no_message_is_an_unknown_outcome(database: str, open_store: Any) -> None:
    """A broken network or pooler may send anything."""
    with proxied(database) as proxy, open_store(proxy.conninfo, prepares=False) as store:
        id = create(store)
        proxy.cut = "garbled"
        with pytest.raises(StoreUnavailable, match="repeat the call later"):
            credit(store, id, "wire-1", 5)
        check_credits(store, id, [credit(store, id, "wire-1", 5)])


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_message_that_is_larger_than_all_buffers_is_sent(database: str, open_store: Any) -> None:
    """The store sends the rest while the server reads."""
    with open_store(database) as store:
        created = a_creation(metadata="{" + " " * 20_000_000 + "}")
        store.insert(created)
        assert store.load(created.answer.id) == created.answer


def test_an_unreachable_server_is_unavailable() -> None:
    """The constructor says why. So do the calls of an async store, which connects at its first call."""
    conninfo = "host=127.0.0.1 port=1 dbname=bank user=bank password=SECRET"
    with pytest.raises(StoreUnavailable, match="refused") as caught:
        PostgresStore(conninfo)
    assert "SECRET" not in str(caught.value)
    with async_view(conninfo) as view:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="refused"):
                create(view)


@pytest.mark.parametrize("conninfo", ["host", "postgresql://[", "nonsense=1", "postgresql://bank:12/34@db/bank"])
def test_an_invalid_connection_string_is_refused(conninfo: str) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigurationError, match="conninfo is not a connection string of PostgreSQL"):
        PostgresStore(conninfo)


@pytest.mark.parametrize("conninfo", [None, {"host": "db", "password": "SECRET"}])
def test_a_connection_string_of_another_type_is_refused(conninfo: Any) -> None:
    """A variable of the environment may be missing. The error shows no value, which may have the password."""
    with pytest.raises(ConfigurationError, match=r"conninfo must be a connection string of Postgre.* not ") as caught:
        migrate(conninfo)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("connections", [0, 1001, "8", True])
def test_a_wrong_number_of_connections_is_refused(connections: Any) -> None:
    """Both stores refuse it before they connect."""
    for store in (PostgresStore, AsyncPostgresStore):
        with pytest.raises(ConfigurationError, match="connections must be an integer from 1 to 1000, not "):
            store("host=127.0.0.1 port=1", connections=connections)


# --- locks and serialization ---


def test_a_locked_payment_is_unavailable_after_some_time(
    opened: PaymentStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may hold the lock for long. Other payments are not affected."""
    monkeypatch.setattr(_errors, "STORE_BUSY_S_MAX", 0.3)
    id, other = create(opened), create(opened)
    with psycopg.connect(database) as connection:
        connection.execute("SELECT 1 FROM incoming_payments.payments WHERE id = %s FOR UPDATE", (id,))
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            credit(opened, id, "wire-1", 1)
        assert time.monotonic() - began_s < 3
        credit(opened, other, "wire-1", 1)
    assert credit(opened, id, "wire-1", 1).received.value == 1


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_serialization_failure_decides_again(open_store: Any) -> None:
    """The decision gets the payment that another transaction has changed."""
    database = empty_database(SERIALIZABLE)
    with open_store(database) as store, ThreadPoolExecutor(1) as executor:
        id = create(store)
        store.load(id)
        with psycopg.connect(database) as connection:
            connection.execute("UPDATE incoming_payments.payments SET updated_at = updated_at + 1 WHERE id = %s", (id,))
            update = executor.submit(credit, store, id, "wire-1", 1)
            await_lock(database)
        assert update.result().received.value == 1
        check_credits(store, id, [update.result()])


def test_serialization_failures_without_end_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store gives up at its deadline."""
    monkeypatch.setattr(_errors, "STORE_BUSY_S_MAX", 0.3)
    database = new_database("failing")
    migrate(database)
    with PostgresStore(database) as store:
        id = create(store)
        trigger(database, "RAISE EXCEPTION 'again' USING ERRCODE = '40001'")
        with pytest.raises(StoreUnavailable, match="again"):
            credit(store, id, "wire-1", 1)
        execute(database, "DROP TRIGGER broken ON incoming_payments.payments")
        trigger(database, "RETURN NULL")
        with pytest.raises(StoreUnusable, match="could not be updated"):
            credit(store, id, "wire-1", 1)
        assert execute(database, "SELECT count(*) FROM incoming_payments.credits") == [(0,)]
        execute(database, "DROP TRIGGER broken ON incoming_payments.payments")
        check_credits(store, id, [credit(store, id, "wire-1", 1)])


def trigger(database: str, body: str) -> None:
    """Add a trigger to the updates of payments."""
    execute(
        database,
        f"CREATE OR REPLACE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}; END $$",
    )
    execute(
        database,
        "CREATE TRIGGER broken BEFORE UPDATE ON incoming_payments.payments FOR EACH ROW EXECUTE FUNCTION broken()",
    )


def await_lock(database: str) -> None:
    """Wait until a session waits for a lock."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not execute(database, waiting):
        time.sleep(0.01)


# --- the server ---


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """Yield a server of its own, with tables."""
    with OwnServer() as server:
        migrate(server.url)
        yield server


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_server_that_is_killed_loses_nothing(server: OwnServer, open_store: Any) -> None:
    """Every acknowledged credit is there after the restart, and the store works again."""
    with open_store(server.url) as store:
        id = create(store)
        answers, stop = list[Any](), threading.Event()

        def credit_on() -> None:
            number = 0
            while not stop.is_set():
                answers.append(persistently(partial(credit, store, id, f"wire-{number}", 1)))
                number += 1

        with ThreadPoolExecutor(1) as executor:
            running = executor.submit(credit_on)
            time.sleep(0.2)
            server.kill()
            server.start()
            before = len(answers)
            while len(answers) < before + 5 and not running.done():
                time.sleep(0.01)
            stop.set()
            running.result()
        check_credits(store, id, answers)


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_cancelled_wait_for_the_standby_is_no_acknowledgement(server: OwnServer, open_store: Any) -> None:
    """COMMIT then returns without an error, but with a warning. A repeated call waits for the standby as well."""
    with open_store(server.url) as store, ThreadPoolExecutor(1) as executor:
        created = a_creation(key=f"order-{open_store.__name__}")
        id = created.answer.id
        calls = [
            partial(store.insert, created),
            partial(store.insert, created),  # finds the record of the key, which the standby may not have
            partial(created_under, store, f"order-{open_store.__name__}"),
            partial(credit, store, id, "wire-1", 5),
            partial(credit, store, id, "wire-1", 5),
        ]
        with server.absent_standby():
            for call in calls:
                answer = executor.submit(call)
                while not server.cancel_wait():
                    assert not answer.done()
                with pytest.raises(StoreUnavailable, match="canceling wait for synchronous replication"):
                    answer.result()
        assert created_under(store, f"order-{open_store.__name__}") == created.keyed
        check_credits(store, id, [credit(store, id, "wire-1", 5)])


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_standby_that_stays_absent_is_unavailable(
    server: OwnServer, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call ends after some time, and its transaction holds no lock. The server is asked to end the wait."""
    monkeypatch.setattr(_wire, "STORE_ANSWER_S_MAX", 0.3)
    monkeypatch.setattr(_errors, "STORE_BUSY_S_MAX", 0.3)
    with open_store(server.url) as store:
        id = create(store)
        with server.absent_standby():
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"no answer for 0\.3 s"):
                    credit(store, id, "wire-1", 5)
        check_credits(store, id, [credit(store, id, "wire-1", 5)])
        assert (
            execute(server.url, "SELECT 1 FROM pg_stat_activity WHERE state <> 'idle' AND wait_event = 'SyncRep'") == []
        )


def test_the_role_cannot_weaken_a_transaction(server: OwnServer) -> None:
    """The store raises the settings of the role that are too low, and keeps a higher one."""
    seen: list[Any] = []
    levels = {"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"}
    for number, level in enumerate(levels):
        execute(server.url, f"ALTER ROLE CURRENT_USER SET synchronous_commit = {level}")
        messages = (
            "error" if number % 2 else "debug5"
        )  # too few messages, and more than the store may take for warnings
        execute(server.url, f"ALTER ROLE CURRENT_USER SET client_min_messages = {messages}")
        with PostgresStore(server.url) as store:
            id = create(store)

            def decide(_payment: IncomingPayment, _earlier: Any) -> Decision[None]:
                return Decision(None)

            store.update(id, decide)
            seen.append(settings_of(store, "synchronous_commit", "client_min_messages", "lock_timeout"))
    execute(server.url, "ALTER ROLE CURRENT_USER RESET ALL")
    assert [level for level, _, _ in seen] == list(levels.values())
    assert {messages for _, messages, _ in seen} == {"warning"}
    assert all(0 < int(lock.removesuffix("ms").removesuffix("s")) <= 5000 for _, _, lock in seen)


def test_the_form_of_values_does_not_depend_on_the_settings() -> None:
    """A lease is found again, the digest of a reference is the same for all processes, and NULL stays NULL."""
    database = url_of(new_database(name := f"values_{os.getpid()}"))
    migrate(database)
    for setting in ("standard_conforming_strings = off", "bytea_output = 'escape'", "array_nulls = off"):
        execute(database, f"ALTER DATABASE {name} SET {setting}")
    with PostgresStore(database, reference="ref") as store:
        fill(store)
    assert texts(audit(database)) == ""


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_a_server_that_accepts_no_writes_is_left(
    database: str, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections to a primary that was demoted are closed, and the store connects again."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    with open_store(database) as store:
        id = create(store)
        with monkeypatch.context() as patched:
            patched.setattr(_errors, "STORE_BUSY_S_MAX", 0.5)
            execute(server_url(), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            end_connections(database)
            for call in (partial(store.load, id), lambda: create(store), partial(credit, store, id, "wire-1", 1)):
                with pytest.raises(
                    StoreUnavailable, match=r"(accepts no writes|read-only).*, or connect to the primary"
                ):
                    call()
        execute(server_url(), f"ALTER DATABASE {name} RESET default_transaction_read_only")
        assert credit(store, id, "wire-1", 1).received.value == 1


def test_a_server_that_accepts_no_connection(
    opened: PaymentStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the two causes for which there is no free connection."""
    id, name = create(opened), psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    monkeypatch.setattr(_errors, "STORE_BUSY_S_MAX", 0.5)
    execute(server_url(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        execute(server_url(), f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")  # noqa: S608
        with pytest.raises(StoreUnavailable, match="does not answer, or other calls use all connections"):
            opened.load(id)
    finally:
        execute(server_url(), f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    assert persistently(partial(opened.load, id)).terms.id == id
