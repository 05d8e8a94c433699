"""Concurrent callers: shared transactions, interrupts, cancellation, forks, and the end of a store."""

import _thread
import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import BrokenDecision, PaymentNotFound, StoreUnavailable
from incoming_payments.ports import Observation, PaymentStore, StoreBatch
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore, _engine, _workers
from incoming_payments.testing import a_creation, crediting
from incoming_payments.testing.steps import UNUSED_ID, check_credits, create, credit, together
from kits.postgres import async_view
from kits.postgres_callers import Hold, await_waiting, open_transactions


class Seen:
    """An observer that keeps the observations."""

    def __init__(self) -> None:
        self.batches: list[StoreBatch] = []

    def observe(self, observation: Observation) -> None:
        """Keep the observation."""
        assert isinstance(observation, StoreBatch)
        self.batches.append(observation)

    @property
    def sizes(self) -> list[int]:
        """The numbers of updates of the commits."""
        return [batch.size for batch in self.batches]


@pytest.fixture(params=["threads", "asyncio"])
def opened(request: pytest.FixtureRequest, database: str) -> Iterator[tuple[PaymentStore, Seen]]:
    """Yield a store of each kind in the database, and its observer."""
    seen = Seen()
    open_store: Any = PostgresStore if request.param == "threads" else async_view
    with open_store(database, observer=seen) as store:
        yield store, seen


# --- shared transactions ---


def test_updates_that_wait_for_a_payment_share_a_commit(database: str) -> None:
    """Each sees the decisions before it. A decision that raises affects only its own caller."""
    seen = Seen()
    with PostgresStore(database, observer=seen) as store, ThreadPoolExecutor(9) as executor:
        id = create(store)
        hold = Hold(store, id, executor)
        updates = [executor.submit(credit, store, id, f"wire-{number % 5}", 1) for number in range(6)]
        refused = executor.submit(store.update, id, fail)
        broken: Any = executor.submit(partial(store.update, id, wrong))
        await_waiting(store, id, 8)
        hold.end()
        answers = [update.result() for update in updates]
        with pytest.raises(ZeroDivisionError):
            refused.result()
        with pytest.raises(BrokenDecision):
            broken.result()
        assert seen.sizes == [1, 8]
        assert len({answer.received.value for answer in answers}) == 5
        check_credits(store, id, {answer.id: answer for answer in answers}.values())
    assert {batch.outcome for batch in seen.batches} == {"committed"}


def test_values_that_the_database_refuses_affect_only_their_caller(opened: tuple[PaymentStore, Seen]) -> None:
    """The others are committed one by one."""
    store, seen = opened
    id = create(store)
    bad, good = CreditId("wire-\0"), [f"wire-{number}" for number in range(3)]

    def calls() -> list[Callable[[], Any]]:
        return [
            partial(store.update, id, crediting("wire-1", 1), bad),
            *(partial(credit, store, id, name, 1) for name in good),
        ]

    def call(number: int) -> Any:
        try:
            return calls()[number]()
        except BrokenDecision as error:
            return error

    answers = together([partial(call, number) for number in range(4)])
    assert isinstance(answers[0], BrokenDecision)
    assert "the database refused the values" in str(answers[0])
    check_credits(store, id, answers[1:])
    assert "broken_decision" in {batch.outcome for batch in seen.batches}


def test_a_group_with_refused_values_is_split(database: str) -> None:
    """A transaction that fails for one job is repeated for each job alone."""
    seen = Seen()
    with PostgresStore(database, observer=seen) as store, ThreadPoolExecutor(4) as executor:
        id = create(store)
        hold = Hold(store, id, executor)
        bad = executor.submit(store.update, id, crediting("wire-1", 1), CreditId("\ud800"))
        good = executor.submit(credit, store, id, "wire-1", 1)
        await_waiting(store, id, 2)
        hold.end()
        with pytest.raises(BrokenDecision):
            bad.result()
        check_credits(store, id, [good.result()])
    assert seen.sizes == [1, 1, 1, 1]  # the last one is the repetition by `check_credits`


def test_other_payments_do_not_wait(store: PostgresStore) -> None:
    """A transaction in flight holds back only the updates of its own payment."""
    id, other = create(store), create(store)
    with ThreadPoolExecutor(1) as executor:
        hold = Hold(store, id, executor)
        assert credit(store, other, "wire-1", 1).received.value == 1
        hold.end()


def test_unknown_payments_are_not_found(opened: tuple[PaymentStore, Seen]) -> None:
    """Every caller gets its own error, also for a text that cannot be an id."""
    store, _ = opened

    def call(id: PaymentId) -> Exception:
        with pytest.raises(PaymentNotFound) as caught:
            credit(store, id, "wire-1", 1)
        return caught.value

    errors = together([partial(call, UNUSED_ID)] * 4)
    assert len({id(error) for error in errors}) == 4
    for text in ("nonsense", "{019b7a0c-ffff-7000-8000-000000000000}", UNUSED_ID.upper()):
        call(PaymentId(text))
        for read in (store.load, store.events):
            with pytest.raises(PaymentNotFound):
                read(PaymentId(text))


def test_too_many_waiting_updates_are_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller can repeat its call later. The waiting updates are not affected."""
    monkeypatch.setattr(_engine, "STORE_QUEUE_MAX", 2)
    with PostgresStore(database) as store, ThreadPoolExecutor(4) as executor:
        id = create(store)
        hold = Hold(store, id, executor)
        updates = [executor.submit(credit, store, id, f"wire-{number}", 1) for number in range(2)]
        await_waiting(store, id, 2)
        with pytest.raises(StoreUnavailable, match="2 calls are already waiting for this one"):
            credit(store, id, "wire-2", 1)
        hold.end()
        check_credits(store, id, [update.result() for update in updates])


def test_too_many_waiting_calls_are_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store has as many threads as connections. The other calls wait."""
    monkeypatch.setattr(_workers, "STORE_QUEUE_MAX", 1)
    with PostgresStore(database, connections=1) as store, ThreadPoolExecutor(3) as executor:
        id = create(store)
        hold = Hold(store, id, executor)
        load = executor.submit(store.load, id)
        while not store._engine._workers._queue.qsize():
            time.sleep(0.001)
        with pytest.raises(StoreUnavailable, match="1 calls are already waiting"):
            store.load(id)
        hold.end()
        assert load.result().id == id


def test_a_decision_must_not_call_the_store(store: PostgresStore) -> None:
    """The call could wait for its own thread, so it raises an error."""
    id = create(store)
    with pytest.raises(StoreUnavailable, match="this thread is running an update"):
        store.update(id, lambda *_: Decision(store.load(id)))
    assert credit(store, id, "wire-1", 1).received.value == 1


def test_an_observer_that_fails_does_not_affect_the_store(database: str) -> None:
    """Not even an exception that would end a thread."""

    class Failing:
        def observe(self, _: Observation) -> None:
            raise SystemExit

    with PostgresStore(database, observer=Failing()) as store:
        id = create(store)
        for number in range(10):
            credit(store, id, f"wire-{number}", 1)


# --- interrupts and cancellation ---


def test_an_interrupt_ends_the_call_and_not_the_update(store: PostgresStore, database: str) -> None:
    """No lock and no connection is left behind, and the update is committed."""
    id = create(store)

    def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[Credit]:
        _thread.interrupt_main()
        time.sleep(0.05)
        return crediting("wire-1", 1)(payment, earlier)

    with pytest.raises(KeyboardInterrupt):
        store.update(id, decide, CreditId("wire-1"))
    assert credit(store, id, "wire-2", 2).received.value == 3
    assert open_transactions(database) == []


def test_interrupts_at_any_time_leave_a_working_store(store: PostgresStore, database: str) -> None:
    """Interrupts come while the caller begins, waits and ends."""
    id = create(store)
    stop = threading.Event()

    def interrupt() -> None:
        pause_s = 0.0
        while not stop.wait(pause_s):
            _thread.interrupt_main()
            pause_s = (pause_s + 0.00037) % 0.003

    thread = threading.Thread(target=interrupt)
    answers, number = list[Credit](), 0
    end_s = time.monotonic() + 0.5
    with suppress(KeyboardInterrupt):
        thread.start()
    while time.monotonic() < end_s:
        with suppress(KeyboardInterrupt):
            number += 1
            answers.append(credit(store, id, f"wire-{number}", 1))
    while not stop.is_set() or thread.is_alive():
        with suppress(KeyboardInterrupt):
            stop.set()
            thread.join()
    with suppress(KeyboardInterrupt):  # the last one may still be pending
        time.sleep(0.01)
    answers = [credit(store, id, f"wire-{n}", 1) for n in range(1, number + 1)]
    check_credits(store, id, answers)
    assert open_transactions(database) == []


def test_cancelled_calls_leave_a_working_store(database: str) -> None:
    """A cancelled update, insert or load ends its caller only. Its transaction goes on."""

    async def run() -> None:
        async with AsyncPostgresStore(database, connections=2) as store:
            created = a_creation()
            await store.insert(created)
            id = created.answer.id
            for number in range(40):
                credit_id = CreditId(f"wire-{number}")
                calls = [
                    store.update(id, crediting(credit_id, 1), credit_id),
                    store.insert(a_creation()),
                    store.load(id),
                ]
                tasks = [asyncio.ensure_future(call) for call in calls]
                await asyncio.sleep(number * 0.0001)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for number in range(40):
                credit_id = CreditId(f"wire-{number}")
                await store.update(id, crediting(credit_id, 1), credit_id)
            assert (await store.load(id)).received.value == 40

    asyncio.run(run())
    assert open_transactions(database) == []


def test_an_error_that_no_caller_gets_is_not_logged(database: str, caplog: pytest.LogCaptureFixture) -> None:
    """The caller that was cancelled does not read the exception of the transaction."""

    async def run() -> None:
        async with AsyncPostgresStore(database) as store:
            task = asyncio.ensure_future(store.load(UNUSED_ID))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_the_end_of_an_event_loop_rolls_back(database: str) -> None:
    """The loop cancels the transactions in flight. Another process can use the payment at once."""
    with PostgresStore(database) as other:
        id = create(other)

        async def run() -> None:
            store = AsyncPostgresStore(database, connections=1)
            await store.open()
            for number in range(8):
                credit_id = CreditId(f"wire-{number}")
                asyncio.ensure_future(store.update(id, crediting(credit_id, 1), credit_id))  # noqa: RUF006 - abandoned
            await asyncio.sleep(0.001)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # the store was not closed
            asyncio.run(run())
            gc.collect()
        check_credits(other, id, [credit(other, id, f"wire-{number}", 1) for number in range(8)])


def wrong(_payment: IncomingPayment, _earlier: Credit | None) -> Any:
    """Return no decision."""


def fail(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[None]:
    """Raise an exception of the host."""
    raise ZeroDivisionError
