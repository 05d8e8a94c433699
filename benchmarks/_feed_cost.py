"""Measure what the feed costs a durable credit, and whether a claim takes longer after many past events.

Both compare files in short alternating turns, because the speed of a disk changes from second to second. Each ratio is
taken within a turn, and the result is the median of the turns.
"""

import asyncio
import itertools
import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeVar

from _durable import UNIT, credit_ids, endless
from _flat import KINDS, NAMES
from _past import CONSUMER, fill
from incoming_payments import AsyncPorts, Ports
from incoming_payments.domain.feed import Consumer, Delivered, Start
from incoming_payments.domain.payment import PaymentId
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.flows.receive import receive
from incoming_payments.ports.clock import utc_now
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import a_creation

T = TypeVar("T")

CONSUMERS: Final = (0, 1, 16)
PAST_LEAST: Final = 1_000
CLAIMED: Final = 8  # deliveries of one claim, the default `concurrency` of a relay
CLAIMS: Final = ("claim, new payments", "settle, new payments", "claim, old payments", "settle, old payments", "idle")


def median_ratio(times: Sequence[float], bases: Sequence[float]) -> float:
    """Return the median of the ratios of two series, turn by turn."""
    return statistics.median(time / base for time, base in zip(times, bases, strict=True))


# --- the cost of a credit ------------------------------------------------------------------------


async def measure_cost(folder: Path, turns: int) -> dict[int, list[list[float]]]:
    """Return the microseconds of a durable credit by the number of registered consumers, and by kind and turn.

    In each turn, each file gets one batch of credits of each kind. The consumers are registered, and no relay runs,
    because its writes are not part of the credit.
    """
    spent: dict[int, list[list[float]]] = {count: [[] for _ in KINDS] for count in CONSUMERS}
    async with AsyncExitStack() as open_:
        files = {}
        for count in CONSUMERS:
            store = await open_.enter_async_context(AsyncSqliteStore(folder / f"consumers-{count}.db"))
            for number in range(count):
                await store.feed.register(Consumer(name=f"consumer-{number}"), Start.NOW, utc_now())
            files[count] = store, await new_payments(store, 1)
        names = credit_ids("turn")
        for turn, kind in itertools.product(range(turns), range(len(KINDS))):
            for count in CONSUMERS if turn % 2 else reversed(CONSUMERS):
                store, large = files[count]
                spread, in_flight = KINDS[kind]
                ids = await new_payments(store, in_flight) if spread else large * in_flight
                spent[count][kind].append(await credit_us(store, ids, names))
    return spent


async def new_payments(store: AsyncSqliteStore, count: int) -> list[PaymentId]:
    """Store new payments that take any number of credits, and return their ids."""
    created = [a_creation(limit=None, now=utc_now()) for _ in range(count)]
    await asyncio.gather(*map(store.insert, created))
    return [creation.answer.id for creation in created]


async def credit_us(store: AsyncSqliteStore, ids: Sequence[PaymentId], names: Iterator[str]) -> float:
    """Credit each of `ids` at the same time. Return the microseconds, divided by their number."""
    ports = AsyncPorts(store=store)
    start = time.perf_counter()
    await asyncio.gather(*(arun(receive(id, credit_id=next(names), amount=UNIT, clock=utc_now), ports) for id in ids))
    return (time.perf_counter() - start) * 1e6 / len(ids)


def cost_ratios(spent: Mapping[int, Sequence[Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Return the cost of a credit by the number of consumers and by kind, in relation to no consumer."""
    return {
        str(count): {
            name: round(median_ratio(times, bases), 3)
            for name, times, bases in zip(NAMES, spent[count], spent[0], strict=True)
        }
        for count in CONSUMERS[1:]
    }


# --- claims after many events --------------------------------------------------------------------


class Claims:
    """One file with past events, each of which has an acknowledged delivery."""

    def __init__(self, path: Path, events: int) -> None:
        payments = events // 2  # the events of a payment are `created` and `credited`
        fill(path, payments=payments, credits=1, is_delivered=True)
        with closing(sqlite3.connect(path)) as connection:
            self._old = itertools.cycle(list(_sample(connection, payments)))
        self.store = SqliteStore(path)
        self._names = credit_ids("turn")

    def turn(self) -> dict[str, float]:
        """Return the microseconds of each of `CLAIMS`."""
        new = [endless(self.store) for _ in range(CLAIMED)]
        claim_new, settle_new = self._handle(new)
        old = [next(self._old) for _ in range(CLAIMED)]
        for id in old:
            run(receive(id, credit_id=next(self._names), amount=UNIT, clock=utc_now), Ports(store=self.store))
        claim_old, settle_old = self._handle(old)
        idle, _ = self._handle([])
        return dict(zip(CLAIMS, (claim_new, settle_new, claim_old, settle_old, idle), strict=True))

    def _handle(self, expected: Sequence[PaymentId]) -> tuple[float, float]:
        """Return the microseconds to claim the deliveries of the `expected` payments, and to settle one of them."""
        feed, now = self.store.feed, utc_now()
        until = now + timedelta(minutes=1)
        claim_us, deliveries = _timed(
            lambda: feed.claim(CONSUMER.name, lambda _: bytes(400), now=now, until=until, limit=CLAIMED)
        )
        assert {delivery.payment_id for delivery in deliveries} == set(expected)
        settled = [_timed(lambda each=each: feed.settle(each, Delivered(), now)) for each in deliveries]  # type: ignore[misc]
        assert all(is_stored for _, is_stored in settled)
        return claim_us, statistics.median(us for us, _ in settled) if settled else 0.0


def _sample(connection: sqlite3.Connection, payments: int) -> Iterator[PaymentId]:
    """Yield different random payments. There is one payment in each millisecond."""
    (first,) = connection.execute("SELECT min(created_at) FROM payments").fetchone()
    for place in random.sample(range(payments), min(payments, 4000) // CLAIMED * CLAIMED):
        at = first + place * 1000
        yield PaymentId(*connection.execute("SELECT id FROM payments WHERE created_at = ?", (at,)).fetchone())


def _timed(action: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    answer = action()
    return (time.perf_counter() - start) * 1e6, answer


def measure_claims(folder: Path, past: int, turns: int) -> dict[int, dict[str, list[float]]]:
    """Return the microseconds of each of `CLAIMS` by the number of past events, for each turn."""
    with ExitStack() as open_:
        files = {}
        for events in (PAST_LEAST, past):
            files[events] = Claims(folder / f"past-{events}.db", events)
            open_.enter_context(files[events].store)
        spent: dict[int, dict[str, list[float]]] = {events: {name: [] for name in CLAIMS} for events in files}
        for turn in range(turns):
            for events in list(files) if turn % 2 else reversed(list(files)):
                for name, us in files[events].turn().items():
                    spent[events][name].append(us)
    return spent


def flatness(spent: Mapping[int, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return the time of each of `CLAIMS` after most events, in relation to the time after the fewest."""
    least, most = spent[min(spent)], spent[max(spent)]
    return {name: round(median_ratio(most[name], least[name]), 3) for name in CLAIMS}
