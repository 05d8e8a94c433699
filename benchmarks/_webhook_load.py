"""Send webhooks from one process on SQLite to receivers on loopback, and measure the time until they are acknowledged.

The service, the relays and the senders of credits share one event loop. The receivers are one process, which verifies
nothing. Each event counts when each of the receivers has it, and when the store has the acknowledgement.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from attrs import frozen

from _durable import IN_FLIGHT, credit_ids
from incoming_payments import Amount, Asset, AsyncIncomingPayments, AsyncPorts, ServicePolicy
from incoming_payments.domain.feed import Delivered, Delivery, Failed, LeasedDelivery, Result, consumer_name
from incoming_payments.domain.payment import PaymentId
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.outbound.webhooks import WebhookEndpoint, async_webhooks
from incoming_payments.ports.clock import utc_now
from incoming_payments.stores.sqlite import AsyncSqliteStore
from incoming_payments.stores.sqlite._feed import AsyncSqliteFeed
from incoming_payments.testing import a_creation

PAYMENTS: Final = 64
BESIDE: Final = 15  # the receivers beside one that fails
FAILING: Final = "failing"  # the path of the receiver that fails
POLICY: Final = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
UNIT: Final = Amount(1, Asset("USD", 2))
PATIENCE_S: Final = 120.0
SECRET: Final = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"  # noqa: S105 - made up


async def receiver(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    """Answer a webhook with 204, or with 500 at the path `/failing`. This is an ASGI application."""
    while (await receive()).get("more_body"):
        pass
    status = 500 if scope["path"] == f"/{FAILING}" else 204
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@frozen(kw_only=True)
class Outcome:
    """What one run has measured.

    `processor_s` is the processor time of the service. `delays_ms` has one delay for each event and receiver, in order
    of size.
    """

    events: int
    seconds: float
    webhooks: int
    processor_s: float
    delays_ms: Sequence[float]

    @property
    def rate(self) -> float:
        """The events a second, each of which all receivers have acknowledged."""
        return self.events / self.seconds

    @property
    def credits_per_webhook(self) -> float:
        """The mean number of credits of one webhook."""
        return len(self.delays_ms) / self.webhooks

    @property
    def processor_us(self) -> float:
        """The processor time of the service for one webhook, with its share of the credits, in microseconds."""
        return self.processor_s / self.webhooks * 1e6

    def delay_ms(self, share: float) -> float:
        """Return the delay that this share of the delays does not exceed."""
        return self.delays_ms[int(share * (len(self.delays_ms) - 1))]


class Board:
    """The times of the events: when each was committed, and when each receiver's acknowledgement was."""

    def __init__(self, receivers: int) -> None:
        self._receivers = receivers
        self._committed_s: dict[str, float] = {}
        self._delivered: list[tuple[float, Sequence[str]]] = []
        self._open = 0  # acknowledgements that are missing
        self._error: str | None = None
        self._is_empty = asyncio.Event()

    def committed(self, credit_id: str) -> None:
        """Note the commit of an event."""
        self._committed_s[credit_id] = time.perf_counter()
        self._add(self._receivers)

    def acknowledged(self, delivery: Delivery) -> None:
        """Note the acknowledgement of a delivery."""
        self._delivered.append((time.perf_counter(), [str(event.credit_id) for event in delivery.events]))
        self._add(-len(delivery.events))

    def failed(self, error: str) -> None:
        """Note that a delivery is a dead letter."""
        self._error = error
        self._is_empty.set()

    async def until_empty(self) -> None:
        """Wait until all receivers have acknowledged all events. Raises `RuntimeError` after a dead letter."""
        await asyncio.wait_for(self._is_empty.wait(), PATIENCE_S)
        if self._error is not None:
            raise RuntimeError(self._error)

    def _add(self, change: int) -> None:
        self._open += change
        (self._is_empty.clear if self._open else self._is_empty.set)()

    def outcome(self, begin_s: float, processor_s: float) -> Outcome:
        """Return the outcome of a run that began at `begin_s`."""
        delays = [(at - self._committed_s[id]) * 1e3 for at, ids in self._delivered for id in ids]
        return Outcome(
            events=len(self._committed_s),
            seconds=max(at for at, _ in self._delivered) - begin_s,
            webhooks=len(self._delivered),
            processor_s=processor_s,
            delays_ms=sorted(delays),
        )


class TimedFeed(AsyncSqliteFeed):
    """The feed of a store, which reports acknowledgements that are stored."""

    def __init__(self, store: AsyncSqliteStore, board: Board) -> None:
        super().__init__(store, store.feed._engine)
        self.board = board

    async def settle(self, delivery: Delivery | LeasedDelivery, result: Result, now: datetime) -> bool:
        """Await the result of `AsyncSqliteFeed.settle`."""
        is_stored = await super().settle(delivery, result, now)
        if is_stored and isinstance(delivery, Delivery) and delivery.consumer.startswith("good-"):
            if isinstance(result, Delivered):
                self.board.acknowledged(delivery)
            elif isinstance(result, Failed) and result.is_last:
                self.board.failed(result.error)
        return is_stored


@frozen(kw_only=True)
class Load:
    """One run with `receivers`, for `seconds`.

    Without a `rate`, 64 tasks make credits as fast as they can. With a `rate`, one task makes as many a second.
    """

    receivers: int
    seconds: float
    joins_credits: bool = True
    rate: float | None = None


def good_names(count: int) -> list[str]:
    """Return the names of receivers that work."""
    return [f"good-{number}" for number in range(count)]


def endpoints(names: Iterable[str], port: int, **settings: Any) -> list[WebhookEndpoint]:
    """Return the endpoints. Credits wait for no other credits, because that wait would be most of the delay."""
    return [
        WebhookEndpoint(
            name=name,
            url=f"http://127.0.0.1:{port}/{name}",
            secrets=[SECRET],
            allow_private=True,
            credit_delay_s=0,
            **settings,
        )
        for name in names
    ]


async def credit(service: AsyncIncomingPayments, board: "Board", id: PaymentId, name: str) -> None:
    """Credit one unit, and note its commit."""
    await service.receive(id, credit_id=name, amount=UNIT)
    board.committed(name)


async def measure(path: Path, port: int, load: Load) -> Outcome:
    """Make credits on a new database at `path`, and wait until all receivers that work have all of them."""
    board = Board(load.receivers)
    async with AsyncSqliteStore(path) as store:
        created = [a_creation(limit=None, now=utc_now()) for _ in range(PAYMENTS)]
        await asyncio.gather(*map(store.insert, created))
        ids = itertools.cycle([creation.answer.id for creation in created])
        ports = AsyncPorts(store=store, feed=TimedFeed(store, board))
        service = AsyncIncomingPayments(policy=POLICY, ports=ports)
        sent_to = endpoints(good_names(load.receivers), port, joins_credits=load.joins_credits)
        async with async_webhooks(service, sent_to):
            begin_s, processor_s = time.perf_counter(), time.process_time()
            await _make_credits(service, board, ids, load)
            await board.until_empty()
            processor_s = time.process_time() - processor_s
    return board.outcome(begin_s, processor_s)


async def _make_credits(service: AsyncIncomingPayments, board: Board, ids: Iterator[PaymentId], load: Load) -> None:
    names, end_s = credit_ids("load"), time.perf_counter() + load.seconds

    async def caller() -> None:
        while time.perf_counter() < end_s:
            await credit(service, board, next(ids), next(names))

    if load.rate is None:
        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
        return
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(load.rate * load.seconds)):
            due_s = end_s - load.seconds + number / load.rate
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
            tasks.create_task(credit(service, board, next(ids), next(names)))


# --- one receiver that fails -----------------------------------------------------------------------


class Sixteen:
    """A service with 15 receivers that work and an `extra` one: `None`, one that works, or one that fails.

    The extra receiver has one attempt of each webhook, so it gets as many requests as the others, whether it fails or
    not.
    """

    def __init__(self, path: Path, port: int, extra: str | None) -> None:
        self._path = path
        self._port = port
        self._extra = extra
        self._names = credit_ids("batch")

    async def __aenter__(self) -> Self:
        """Open the database, and start the relays."""
        async with AsyncExitStack() as open_:
            store = await open_.enter_async_context(AsyncSqliteStore(self._path))
            self._feed = TimedFeed(store, Board(BESIDE))
            self._service = AsyncIncomingPayments(policy=POLICY, ports=AsyncPorts(store=store, feed=self._feed))
            names = [*good_names(BESIDE), *([self._extra] if self._extra else [])]
            sent_to = endpoints(names, self._port, kinds=["credited"])
            relays = async_webhooks(self._service, sent_to, retry=RetryPolicy(attempts=1))
            await open_.enter_async_context(relays)
            self._store, self._open = store, open_.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop the relays, and close the database."""
        await self._open.aclose()

    async def batch(self) -> float:
        """Credit new payments. Return the seconds until the 15 receivers have acknowledged all events."""
        created = [a_creation(limit=None, now=utc_now()) for _ in range(PAYMENTS // 2)]
        await asyncio.gather(*map(self._store.insert, created))
        board = self._feed.board = Board(BESIDE)
        start = time.perf_counter()
        ids = [creation.answer.id for creation in created] * 2
        await asyncio.gather(*(credit(self._service, board, id, next(self._names)) for id in ids))
        await board.until_empty()
        seconds = time.perf_counter() - start
        while self._extra and await self._feed.next_due(consumer_name(self._extra)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return seconds


async def beside_failing(folder: Path, port: int, turns: int) -> dict[str, float]:
    """Return the rate of 15 receivers beside one that fails, divided by their rate beside one that works, and alone.

    Each rate is that of the fastest quarter of the turns, because other work on the machine can only slow it down.
    """
    rates: dict[str | None, list[float]] = {FAILING: [], "extra": [], None: []}
    async with AsyncExitStack() as open_:
        services = {
            extra: await open_.enter_async_context(Sixteen(folder / f"beside-{extra}.db", port, extra))
            for extra in rates
        }
        for turn in range(turns):
            for extra in itertools.islice(itertools.cycle(rates), turn, turn + len(rates)):
                rates[extra].append(1 / await services[extra].batch())
    fast = {extra: statistics.quantiles(each, n=4)[2] for extra, each in rates.items()}
    return {"beside one that works": fast[FAILING] / fast["extra"], "alone": fast[FAILING] / fast[None]}
