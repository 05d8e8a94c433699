"""Deliveries that a handler acknowledges in one transaction with its own tables: exactly once."""

import asyncio
import inspect
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from incoming_payments import (
    Acknowledged,
    AsyncIncomingPayments,
    AsyncPorts,
    IncomingPayments,
    LeaseLost,
    Ports,
    RetryPolicy,
    StoreUnavailable,
    StoreUnusable,
)
from incoming_payments.domain.feed import Consumer, Delivered, Delivery, Ending, LeasedDelivery, Start
from incoming_payments.stores.postgres import PostgresStore, _errors, _wire, migrate
from incoming_payments.testing import NOW, SyncView
from incoming_payments.testing._feed_hooks import LEDGER, claim, failed, leased, remove_all
from incoming_payments.testing.steps import create, credit
from kits.pgbouncer import PROGRAM, pgbouncer
from kits.postgres import OwnServer, async_view, end_connections, execute, server_url
from kits.postgres_callers import open_transactions
from kits.postgres_proxy import Cut, proxied
from kits.relay_kit import POLICY, eventually

Store = PostgresStore | SyncView
Action = Callable[[Any], Any]

TABLE: Final = (
    "DROP TABLE IF EXISTS ledger; CREATE TABLE ledger (delivery text CONSTRAINT once UNIQUE DEFERRABLE INITIALLY "
    "DEFERRED, payment uuid, value numeric)"
)
each_kind = pytest.mark.parametrize("open_store", [PostgresStore, async_view])


@pytest.fixture(params=[PostgresStore, async_view])
def both(database: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Yield a store of each kind, with a consumer and a table of the host."""
    execute(database, TABLE)
    with request.param(database, connections=2) as store:
        register(store)
        yield store


def register(store: Store, **settings: Any) -> None:
    """Register the consumer `ledger`."""
    assert store.feed.register(Consumer(name=LEDGER, **settings), Start.NOW, NOW)


def leased_one(store: Store, *, after_s: float = 0) -> Delivery:
    """Create a payment, and claim its first delivery."""
    create(store)
    [delivery] = claim(store.feed, after_s=after_s)
    return delivery


def acknowledge(store: Store, delivery: Delivery | LeasedDelivery, *actions: Action) -> None:
    """Acknowledge a delivery with a block that does `actions`."""
    if isinstance(store, SyncView):
        store.run(_acknowledge(store.store, delivery, actions))
    else:
        with store.acknowledging(delivery) as connection:
            for action in actions:
                action(connection)


async def _acknowledge(store: Any, delivery: Delivery | LeasedDelivery, actions: Sequence[Action]) -> None:
    async with store.acknowledging(delivery) as connection:
        for action in actions:
            answer = action(connection)
            if inspect.isawaitable(answer):
                await answer


def running(statement: str, *values: object) -> Action:
    """Return an action that executes a statement."""
    return lambda connection: connection.execute(statement, values)


def posting(delivery: Delivery) -> Action:
    """Return an action that posts a delivery to the table of the host."""
    return running("INSERT INTO ledger VALUES (%s, %s, 1)", delivery.id, delivery.payment_id)


def raising(error: BaseException) -> Action:
    """Return an action that raises `error`."""

    def action(_: object) -> None:
        raise error

    return action


def expecting(store: Store, message: str, action: Action) -> Action:
    """Return an action that expects a `ProgrammingError` of `action`, and hides it."""

    async def do(connection: Any) -> None:
        with pytest.raises(psycopg.ProgrammingError, match=message):
            await action(connection)

    def do_sync(connection: Any) -> None:
        with pytest.raises(psycopg.ProgrammingError, match=message):
            action(connection)

    return do if isinstance(store, SyncView) else do_sync


def check_once(database: str, delivery: Delivery) -> None:
    """Check that the delivery has been posted once, and is acknowledged."""
    assert execute(database, "SELECT delivery FROM ledger") == [(delivery.id,)]
    assert execute(database, "SELECT ending, lease FROM incoming_payments.deliveries") == [("delivered", None)]
    assert open_transactions(database) == []


def check_nothing(database: str, store: Store, delivery: Delivery) -> None:
    """Check that nothing was posted, and that the lease is still there."""
    assert execute(database, "SELECT delivery FROM ledger") == []
    assert open_transactions(database) == []
    assert store.feed.settle(delivery, Delivered(), NOW)


def test_the_tables_of_the_host_and_the_acknowledgement_are_one_transaction(database: str, both: Store) -> None:
    """Afterwards, the next events of the payment are due, and a second acknowledgement fails before its block."""
    delivery = leased_one(both)
    credit(both, delivery.payment_id, "wire-1", 5)
    woken: list[int] = []
    both.feed.watch(lambda: woken.append(1))
    acknowledge(both, leased(delivery), posting(delivery))
    check_once(database, delivery)
    assert woken
    assert [record.ending for record in both.feed.deliveries(delivery.payment_id)] == [Ending.DELIVERED]
    with pytest.raises(LeaseLost, match="let this exception end the handler"):
        acknowledge(both, delivery, posting(delivery))
    assert not both.feed.settle(delivery, Delivered(), NOW)
    check_once(database, delivery)
    assert [event.version for one in claim(both.feed) for event in one.events] == [2]


def test_a_lease_that_another_process_has_taken_over_is_lost(database: str, both: Store) -> None:
    """The block does not run."""
    delivery = leased_one(both)
    [again] = claim(both.feed, after_s=60)
    with pytest.raises(LeaseLost):
        acknowledge(both, delivery, posting(delivery))
    acknowledge(both, again, posting(again))
    check_once(database, delivery)


def test_no_other_process_takes_over_during_the_block(database: str, both: Store) -> None:
    """The lease has ended, but the row is locked."""
    delivery = leased_one(both)
    with PostgresStore(database) as other:

        def take_over(_: object) -> None:
            assert claim(other.feed, after_s=3600) == []

        acknowledge(both, delivery, posting(delivery), take_over)
    check_once(database, delivery)


def test_a_removed_consumer_has_no_leases(both: Store) -> None:
    """Its deliveries are deleted."""
    delivery = leased_one(both)
    remove_all(both.feed, LEDGER)
    with pytest.raises(LeaseLost):
        acknowledge(both, delivery)


def test_an_exception_of_the_block_rolls_everything_back(database: str, both: Store) -> None:
    """The caller gets the exception as it is, also one of psycopg."""
    delivery = leased_one(both)
    with pytest.raises(RuntimeError, match="no account"):
        acknowledge(both, delivery, posting(delivery), raising(RuntimeError("no account")))
    with pytest.raises(psycopg.errors.UndefinedTable):
        acknowledge(both, delivery, posting(delivery), running("SELECT * FROM nothing"))
    check_nothing(database, both, delivery)


def test_commit_checks_a_deferred_constraint_of_the_host(database: str, both: Store) -> None:
    """The error of psycopg names the constraint."""
    delivery = leased_one(both)
    with pytest.raises(psycopg.errors.UniqueViolation, match="once"):
        acknowledge(both, delivery, posting(delivery), posting(delivery))
    check_nothing(database, both, delivery)


def test_a_success_ends_the_failures_of_the_consumer(database: str, both: Store) -> None:
    """The health is stored in the same transaction."""
    register(both, down_after_s=0)
    first = leased_one(both)
    assert both.feed.settle(first, failed(), NOW)
    [again] = claim(both.feed)
    acknowledge(both, again, posting(again))
    check_once(database, again)
    assert [state.health.failing_since for state in both.feed.consumers()] == [None]


# --- the connection ---


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_the_block_must_not_end_the_transaction(database: str, both: Store, end: str) -> None:
    """The method of the connection refuses, and the transaction continues."""
    delivery = leased_one(both)

    refuse = expecting(both, "do not call commit or rollback", lambda connection: getattr(connection, end)())
    acknowledge(both, delivery, posting(delivery), refuse)
    check_once(database, delivery)


def test_block_that_sends_commit_gets_an_error(database: str, both: Store) -> None:
    """The store cannot prevent the commit, so the error tells the developer."""
    delivery = leased_one(both)
    with pytest.raises(psycopg.ProgrammingError, match="send neither COMMIT nor ROLLBACK"):
        acknowledge(both, delivery, running("ROLLBACK"))
    check_nothing(database, both, delivery)


def test_a_block_must_not_hide_the_error_of_a_statement(database: str, both: Store) -> None:
    """PostgreSQL has rolled the transaction back, so nothing is acknowledged. A savepoint keeps the transaction."""
    delivery = leased_one(both)

    failing = running("SELECT * FROM nothing")

    async def nest(connection: Any) -> None:
        async with connection.transaction():
            await failing(connection)

    def nest_sync(connection: Any) -> None:
        with connection.transaction():
            failing(connection)

    hiding = expecting(both, "does not exist", failing)
    nesting = expecting(both, "does not exist", nest if isinstance(both, SyncView) else nest_sync)
    with pytest.raises(psycopg.ProgrammingError, match="has hidden the error of a statement"):
        acknowledge(both, delivery, posting(delivery), hiding)
    assert execute(database, "SELECT * FROM ledger") == []
    acknowledge(both, delivery, posting(delivery), nesting)
    check_once(database, delivery)


def test_connection_has_the_defaults_of_psycopg(both: Store) -> None:
    """The host sees neither the conversions nor the `enable_seqscan` of the store."""
    delivery = leased_one(both)
    found: list[Any] = []

    async def read(connection: Any) -> None:
        cursor = await connection.execute(query)
        found.extend(await cursor.fetchone())

    def read_sync(connection: Any) -> None:
        found.extend(connection.execute(query).fetchone())

    query = f"SELECT 1.50::numeric, '{delivery.payment_id}'::uuid, current_setting('enable_seqscan')"
    acknowledge(both, delivery, read if isinstance(both, SyncView) else read_sync)
    assert found == [Decimal("1.50"), UUID(delivery.payment_id), "on"]


def test_statements_of_the_host_do_not_disturb_those_of_the_store(both: Store) -> None:
    """psycopg would prepare a repeated statement, and deallocate all others after a rollback."""
    delivery = leased_one(both)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            acknowledge(both, delivery, *[running("SELECT 1")] * 8, raising(RuntimeError()))
        assert both.load(delivery.payment_id).id == delivery.payment_id
    acknowledge(both, delivery)


def test_block_does_not_notice_connections_that_were_closed_while_idle(database: str, both: Store) -> None:
    """The transaction begins on another connection."""
    delivery = leased_one(both)
    end_connections(database)
    acknowledge(both, delivery, posting(delivery))
    check_once(database, delivery)


def test_a_connection_that_ends_in_the_block_is_unavailable(database: str, both: Store) -> None:
    """Everything is rolled back."""
    delivery = leased_one(both)
    with pytest.raises(StoreUnavailable):
        acknowledge(both, delivery, posting(delivery), lambda _: end_connections(database))
    check_nothing(database, both, delivery)


def test_a_closed_store_acknowledges_nothing(database: str) -> None:
    """The call fails at once."""
    with PostgresStore(database) as store:
        register(store)
        delivery = leased_one(store)
    began_s = time.monotonic()
    with pytest.raises(StoreUnusable, match="the store is closed"):
        acknowledge(store, delivery)
    assert time.monotonic() - began_s < 1


def test_store_leaves_a_server_that_accepts_no_writes(
    database: str, both: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block does not run, and the store connects again."""
    name, delivery = conninfo_to_dict(database)["dbname"], leased_one(both)
    with monkeypatch.context() as patched:
        patched.setattr(_errors, "STORE_BUSY_S_MAX", 0.2)
        execute(server_url(), f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        end_connections(database)
        try:
            with pytest.raises(StoreUnavailable, match=r"accepts no writes|read-only"):
                acknowledge(both, delivery, posting(delivery))
        finally:
            execute(server_url(), f"ALTER DATABASE {name} RESET default_transaction_read_only")
    acknowledge(both, delivery, posting(delivery))
    check_once(database, delivery)


@pytest.mark.skipif(PROGRAM is None, reason="pgbouncer is not installed: install Debian's pgbouncer")
@each_kind
def test_the_block_works_behind_pgbouncer(database: str, open_store: Any) -> None:
    """pgbouncer keeps the connection for the transaction."""
    execute(database, TABLE)
    with pgbouncer(database) as pooled, open_store(pooled, prepares=False) as store:
        register(store)
        delivery = leased_one(store)
        for _ in range(8):
            with pytest.raises(RuntimeError):
                acknowledge(store, delivery, posting(delivery), raising(RuntimeError()))
        acknowledge(store, delivery, posting(delivery))
        with pytest.raises(LeaseLost):
            acknowledge(store, delivery)
    assert execute(database, "SELECT delivery FROM ledger") == [(delivery.id,)]


# --- outcomes that are unknown ---


@pytest.mark.parametrize("cut", ["before", "after"])
@each_kind
def test_a_connection_cut_in_commit_acknowledges_once(database: str, open_store: Any, cut: Cut) -> None:
    """The outcome is unknown. A handler that runs again posts the delivery, or its lease is lost."""
    execute(database, TABLE)
    with proxied(database) as proxy, open_store(proxy.conninfo, prepares=False) as store:
        register(store)
        delivery = leased_one(store)
        proxy.cut = cut
        with pytest.raises(StoreUnavailable, match="repeat the call later"):
            acknowledge(store, delivery, posting(delivery))
        assert proxy.cuts == 1
        if cut == "after":
            with pytest.raises(LeaseLost):
                acknowledge(store, delivery, posting(delivery))
        else:
            acknowledge(store, delivery, posting(delivery))
    check_once(database, delivery)


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """Yield a server. The tests change its settings."""
    with OwnServer() as server:
        migrate(server.url)
        yield server


@each_kind
def test_a_commit_that_the_standby_does_not_have_is_no_acknowledgement(
    server: OwnServer, open_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is unknown after a cancelled wait or a long wait. The block cannot weaken the transaction."""
    execute(server.url, TABLE)
    weaken = running(
        "SELECT set_config('synchronous_commit', 'off', true), set_config('client_min_messages', 'error', true)"
    )
    with open_store(server.url) as store, ThreadPoolExecutor(1) as executor:
        register(store)
        first, second = leased_one(store), leased_one(store)
        with server.absent_standby():
            answer = executor.submit(acknowledge, store, first, posting(first), weaken)
            while not server.cancel_wait():
                assert not answer.done()
            with pytest.raises(StoreUnavailable, match="canceling wait for synchronous replication"):
                answer.result()
            monkeypatch.setattr(_wire, "STORE_ANSWER_S_MAX", 0.3)
            with pytest.raises(StoreUnavailable, match=r"no answer for 0\.3 s"):
                acknowledge(store, second, posting(second), weaken)
        for delivery in (first, second):
            with pytest.raises(LeaseLost):
                acknowledge(store, delivery)
        remove_all(store.feed, LEDGER)
    assert execute(server.url, "SELECT delivery FROM ledger") == [(first.id,), (second.id,)]


@pytest.mark.parametrize("is_late", [False, True])
@each_kind
def test_a_killed_process_posts_once(database: str, open_store: Any, *, is_late: bool) -> None:
    """The process is killed in the block, or after the commit and before the relay gets the result."""
    execute(database, TABLE)
    pid = os.fork()
    if pid == 0:
        try:
            with open_store(database) as store:
                register(store)
                delivery = leased_one(store)
                kill = partial(os.kill, os.getpid(), signal.SIGKILL)
                acknowledge(store, delivery, posting(delivery), *([] if is_late else [lambda _: kill()]))
                kill()
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    with open_store(database) as store:
        again = claim(store.feed, after_s=60)
        assert len(again) == (0 if is_late else 1)
        for delivery in again:
            acknowledge(store, delivery, posting(delivery))
        [(name,)] = execute(database, "SELECT delivery FROM ledger")
        [record] = store.feed.deliveries(name.partition("_")[0])
        assert (record.id, record.ending) == (name, Ending.DELIVERED)


def test_a_cancelled_block_is_rolled_back(database: str, view: SyncView) -> None:
    """The relay cancels a handler that takes too long."""
    execute(database, TABLE)
    register(view)
    delivery = leased_one(view)

    async def cancel() -> None:
        sleep: Action = lambda _: asyncio.sleep(60)  # noqa: E731 - the same form as the others
        task = asyncio.ensure_future(_acknowledge(view.store, delivery, [posting(delivery), sleep]))
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    view.run(cancel())
    check_nothing(database, view, delivery)


# --- with a relay ---

RETRY: Final = RetryPolicy(first_s=0.01, jitter=0)
DELIVERED: Final = "SELECT count(*) FROM incoming_payments.deliveries WHERE ending = 'delivered'"


def check_posted(database: str, created: Sequence[str], caplog: pytest.LogCaptureFixture) -> None:
    """Check that each payment has been posted once, and that the relay has seen one failure and no lost lease."""
    posted = execute(database, "SELECT payment FROM ledger ORDER BY payment")
    assert [str(id) for (id,) in posted] == sorted(created)
    events = [record.__dict__.get("event") for record in caplog.records if record.name.startswith("incoming_payments")]
    assert events == ["delivery_failed"]


def test_a_handler_of_a_relay_acknowledges(
    database: str, store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler fails once, and each delivery is posted once."""
    execute(database, TABLE)
    failures = [RuntimeError("no account")]

    def handle(delivery: Delivery) -> Acknowledged:
        with store.acknowledging(delivery) as connection:
            posting(delivery)(connection)
            if failures:
                raise failures.pop()
        return Acknowledged()

    service = IncomingPayments(policy=POLICY, ports=Ports(store=store, feed=store.feed))
    with service.relay(Consumer(name=LEDGER), handle, poll_s=0.01, retry=RETRY):
        created = [create(store) for _ in range(3)]
        eventually(lambda: execute(database, DELIVERED) == [(3,)])
    check_posted(database, created, caplog)


def test_an_async_handler_of_a_relay_acknowledges(
    database: str, view: SyncView, caplog: pytest.LogCaptureFixture
) -> None:
    """The handler runs in the event loop of the store."""
    execute(database, TABLE)
    store: Any = view.store
    failures = [RuntimeError("no account")]

    async def handle(delivery: Delivery) -> Acknowledged:
        async with store.acknowledging(delivery) as connection:
            await posting(delivery)(connection)
            if failures:
                raise failures.pop()
        return Acknowledged()

    async def relay() -> Sequence[str]:
        service = AsyncIncomingPayments(policy=POLICY, ports=AsyncPorts(store=store, feed=store.feed))
        async with service.relay(Consumer(name=LEDGER), handle, poll_s=0.01, retry=RETRY):
            created = await asyncio.to_thread(lambda: [create(view) for _ in range(3)])
            await asyncio.to_thread(eventually, lambda: execute(database, DELIVERED) == [(3,)])
        return created

    check_posted(database, view.run(relay()), caplog)
