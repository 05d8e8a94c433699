"""The tasks beside the requests: `expired` events without a call of the host, and the sign of life of a worker."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import pytest

from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import PaymentId, payment_id
from incoming_payments.domain.reference import Reference
from incoming_payments.errors import StoreUnavailable
from incoming_payments.flows.machinery.ports import AsyncPorts
from incoming_payments.limits import ERASED_PAYMENTS_MAX, SWEEP_PAYMENTS_MAX
from incoming_payments.ports import AsyncFeed
from incoming_payments.server import background
from incoming_payments.server.background import Task, sweeping, with_tasks
from incoming_payments.server.config.sweep import SweepTable
from incoming_payments.service import AsyncIncomingPayments
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import SqliteStore
from kits.processes import Bank, await_lines
from kits.service_kit import ALICE, Service

METADATA: Final = {"externalRef": "Jane-Doe"}
OFTEN: Final = SweepTable(interval_s=1)


def kinds(store: SqliteStore, ids: Sequence[PaymentId]) -> list[list[str]]:
    """Return the kinds of the events of each payment."""
    return [[event.kind.value for event in store.events(id)] for id in ids]


def test_workers_share_the_sweep(bank: Bank) -> None:
    """Two workers sweep the same database. Each expired payment gets one event, and its metadata is erased.

    The other payments stay as they are.
    """
    bank.edit("# workers = 1", "workers = 2")
    bank.edit("# interval_s = 15", "interval_s = 1")
    bank.edit("# metadata_kept_s = 7776000", "metadata_kept_s = 0")
    bank.edit('# reference = "externalRef"', 'reference = "externalRef"')
    with bank.serving():
        await_lines(bank.log, "Application startup complete", 2)
        client = bank.client
        at = datetime.now(UTC) + timedelta(seconds=6)
        urls = [client.create(expiresAt=at.isoformat(), metadata=METADATA).json()["id"] for _ in range(20)]
        staying = client.create(metadata=METADATA).json()["id"]
        ids = [payment_id(url.rpartition("/")[2]) for url in [*urls, staying]]
        with SqliteStore(bank.folder / "payments.sqlite3") as store:
            deadline = time.monotonic() + 30
            while kinds(store, ids) != [["created", "expired"]] * 20 + [["created"]]:
                assert time.monotonic() < deadline, kinds(store, ids)
                time.sleep(0.05)
            while any(store.load(id).metadata for id in ids[:-1]):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            time.sleep(2)  # some more sweeps
            assert kinds(store, ids) == [["created", "expired"]] * 20 + [["created"]]
            reference = Reference("externalRef", "Jane-Doe")
            found = store.find_payments(PaymentQuery(now=datetime.now(UTC), limit=9, reference=reference))
            assert [(payment.id, payment.metadata) for payment in found] == [(ids[-1], METADATA)]
    assert "Traceback" not in bank.log.read_text("utf-8")


class Failing(MemoryStore):
    """A store whose first sweep fails. `is_swept` is set when a sweep finds nothing more."""

    fails = True

    def __init__(self) -> None:
        super().__init__()
        self.is_swept = asyncio.Event()

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        """Fail once."""
        if self.fails:
            self.fails = False
            raise StoreUnavailable("the database is locked")
        found = super().find_expired(now, limit)
        if not found:
            self.is_swept.set()
        return found


class Deliveries:
    """A feed with batches of old deliveries. The first call fails."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)
        self.calls: list[datetime] = []
        self.is_swept = asyncio.Event()

    async def forget(self, before: datetime) -> bool:
        """Return the next answer."""
        self.calls.append(before)
        if self.answers:
            return self.answers.pop(0)
        self.is_swept.set()
        raise StoreUnavailable("the disk is full")


def test_old_metadata_and_deliveries_are_removed_in_batches(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The times are settings. A failure of one step is logged, and does not prevent the others."""
    monkeypatch.setattr(random, "uniform", lambda *_: 0.001)
    kit, store, feed = Service(), MemoryStore(), Deliveries(False, False, True)
    ports = AsyncPorts(store=store, wallet_addresses=kit.hosted, methods=kit.methods, erasure=store.erasure)
    service = AsyncIncomingPayments(policy=kit.policy, ports=ports, clock=kit.clock)

    async def sweep() -> list[object]:
        made = [
            await service.create(wallet_address=ALICE.url, metadata=METADATA) for _ in range(ERASED_PAYMENTS_MAX + 1)
        ]
        for payment in made[1:]:
            await service.complete(payment.id)
        kit.clock.advance(60)
        table = SweepTable(metadata_kept_s=59, deliveries_kept_s=30)
        task = asyncio.create_task(sweeping(service, cast("AsyncFeed", feed), table)())
        await feed.is_swept.wait()
        task.cancel()
        return [(await service.get(payment.id)).metadata for payment in made]

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(sweep()) == [METADATA] + [None] * ERASED_PAYMENTS_MAX
    assert feed.calls == [kit.now - timedelta(seconds=30)] * 4
    [line] = caplog.records
    assert (line.levelname, line.__dict__["event"]) == ("WARNING", "clean_up_failed")
    assert "old deliveries were not deleted, and are deleted later: the disk is full" in line.getMessage()


def test_sweep_goes_on_after_a_failure_and_a_full_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure is logged. All payments are found, also when there are more than one call takes."""
    monkeypatch.setattr(random, "uniform", lambda *_: 0.001)
    kit, store = Service(), Failing()
    kit.replace(store=store)
    ports = AsyncPorts(store=store, wallet_addresses=kit.hosted, methods=kit.methods)
    service = AsyncIncomingPayments(policy=kit.policy, ports=ports, clock=kit.clock)

    async def sweep() -> list[str]:
        expires_at = kit.now + timedelta(seconds=1)
        made = [
            await service.create(wallet_address=ALICE.url, expires_at=expires_at) for _ in range(SWEEP_PAYMENTS_MAX + 1)
        ]
        kit.clock.advance(2)
        task = asyncio.create_task(sweeping(service, cast("AsyncFeed", Deliveries(*[True] * 9999)), OFTEN)())
        await store.is_swept.wait()
        task.cancel()
        return [(await service.events(payment.id))[-1].kind.value for payment in made]

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(sweep()) == ["expired"] * (SWEEP_PAYMENTS_MAX + 1)
    [line] = caplog.records
    assert (line.levelname, line.__dict__["event"]) == ("WARNING", "expiry_sweep_failed")
    assert "the database is locked" in line.getMessage()


def test_task_that_waits_for_several_things_delays_the_stop_only_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Receivers of webhooks that hang do not keep the server from closing its store. The task has ended before that."""
    monkeypatch.setattr(background, "TASKS_STOP_S_MAX", 0.01)
    steps: list[str] = []

    async def hang() -> None:
        for number in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            steps.append(f"wait {number} ends")

    async def application(_: Any, receive: Any, __: Any) -> None:
        steps.append((await receive())["type"])

    async def receive() -> Any:
        await asyncio.sleep(0)
        return {"type": "lifespan.shutdown"}

    async def stop() -> None:
        async with asyncio.timeout(10):
            await with_tasks(application, hang)({"type": "lifespan"}, receive, cast("Any", None))

    asyncio.run(stop())
    assert steps == ["wait 0 ends", "wait 1 ends", "wait 2 ends", "lifespan.shutdown"]


def test_tasks_run_from_the_start_of_the_server_until_its_end() -> None:
    """The tasks begin before the first request, and have ended when the application closes its store."""
    steps: list[str] = []

    def task(name: str) -> Task:
        async def run() -> None:
            steps.append(f"{name} begins")
            try:
                await asyncio.sleep(600)
            finally:
                steps.append(f"{name} ends")

        return run

    async def application(scope: Any, receive: Any, send: Any) -> None:
        steps.append(scope["type"])
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            steps.append("closes its store")

    async def live() -> None:
        answer = with_tasks(application, task("a"), task("b"))
        messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> Any:
            await asyncio.sleep(0)
            if messages[0]["type"] == "lifespan.shutdown":
                await answer({"type": "http"}, receive, send)
            return messages.pop(0)

        async def send(_: Any) -> None:
            """Do nothing."""

        await answer({"type": "lifespan"}, receive, send)

    asyncio.run(live())
    ends = ["a ends", "b ends", "closes its store"]
    assert steps == ["lifespan", "a begins", "b begins", "http", *ends]
