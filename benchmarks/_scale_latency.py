"""Measure the latency of each operation of the store in databases of different sizes, in alternating turns."""

# ruff: noqa: S311 - a random choice of payments
import itertools
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from _durable import UNIT, USD, credit_ids
from _scale_fill import CONSUMER, OPEN_EACH, Filled
from incoming_payments import Amount, Ports
from incoming_payments.domain.feed import Delivered
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, PaymentId, new_payment_id
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive import receive
from incoming_payments.ports.clock import utc_now
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.testing import a_creation, a_wallet_address

T = TypeVar("T")
Spent = dict[int, dict[str, list[float]]]  # the microseconds of each operation, by the number of payments

CALLS: Final = 5  # creates, and gets, credits and lists of each age, in a turn
EACH: Final = 8  # deliveries of a claim, and expired payments of a sweep
PAGE: Final = 21  # payments that the service requests for a page of 20
RECENT: Final = 1_000  # the last payments of a database
OPERATIONS: Final = (
    *("create", "get", "get, any age", "credit", "credit, any age", "list", "list, any age", "claim", "settle"),
    "sweep",
)


class Operations:
    """The operations in one database, on recent payments and on any of them, chosen at random."""

    def __init__(self, filled: Filled, turns: int) -> None:
        self.store = PostgresStore(filled.conninfo, connections=1)
        self._ports = Ports(store=self.store)
        self._filled = filled
        self._names = credit_ids(secrets.token_hex(4))
        calls, recent, old = (turns + 1) * CALLS, filled.payments - RECENT, 0
        self._ids = {first: self._sample(range(first, filled.payments), calls) for first in (recent, old)}
        self._open_ids = {
            first: self._sample(range(first, filled.payments, OPEN_EACH), calls + EACH * turns)
            for first in (recent, old)
        }
        self._recent = recent
        self._handle()  # the deliveries that the check of the filled rows has left

    def _sample(self, places: Sequence[int], count: int) -> Iterator[PaymentId]:
        return itertools.cycle(self._filled.ids(random.choices(places, k=count)))

    def turn(self) -> dict[str, list[float]]:
        """Return the microseconds of each call."""
        us: dict[str, list[float]] = {name: [] for name in OPERATIONS}
        for _ in range(CALLS):
            us["create"].append(_us(self._create))
            for first, suffix in ((self._recent, ""), (0, ", any age")):
                us[f"get{suffix}"].append(_us(partial(self.store.load, next(self._ids[first]))))
                us[f"credit{suffix}"].append(_us(partial(self._credit, next(self._open_ids[first]))))
                us[f"list{suffix}"].append(_us(partial(self._list, first)))
        self._handle()
        expected = {next(self._open_ids[self._recent]) for _ in range(EACH)}
        for id in expected:
            self._credit(id)
        us["claim"], us["settle"] = self._handle(len(expected))
        for _ in range(EACH):
            self._create(expires_in_s=60, ago=timedelta(hours=1))
        us["sweep"] = [_us(self._sweep) / EACH]
        return us

    def _create(self, *, expires_in_s: float = 86_400, ago: timedelta = timedelta()) -> PaymentId:
        now = utc_now() - ago
        place = random.randrange(self._recent, self._filled.payments)
        id = new_payment_id(now, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES))
        wallet_address = a_wallet_address(self._filled.wallet(place))
        self.store.insert(
            a_creation(id=id, limit=2500, expires_in_s=expires_in_s, wallet_address=wallet_address, now=now)
        )
        return id

    def _credit(self, id: PaymentId) -> None:
        run(receive(id, credit_id=next(self._names), amount=UNIT, clock=utc_now), self._ports)

    def _list(self, first: int) -> None:
        wallet_address = self._filled.wallet(random.randrange(first, self._filled.payments))
        query = PaymentQuery(now=utc_now(), limit=PAGE, wallet_address=wallet_address)
        assert len(self.store.find_payments(query)) == PAGE

    def _handle(self, expected: int | None = None) -> tuple[list[float], list[float]]:
        """Claim and settle all due deliveries. Return the microseconds of the first claim, and of each result."""
        feed, claims, results = self.store.feed, list[float](), list[float]()
        while True:
            now = utc_now()
            begin_s = time.perf_counter()
            claimed = feed.claim(CONSUMER.name, lambda _: b"", now=now, until=now + timedelta(minutes=1), limit=EACH)
            claims.append((time.perf_counter() - begin_s) * 1e6)
            results += [_us(lambda each=each, now=now: feed.settle(each, Delivered(), now)) for each in claimed]  # type: ignore[misc]
            if expected is not None:
                assert len(claimed) == expected
                return claims, results
            if not claimed:
                return [], []

    def _sweep(self) -> None:
        found = run(announce_expired(utc_now(), limit=EACH), self._ports)
        assert found == EACH

    def live(self) -> None:
        """Create `EACH` payments, complete each by three credits, and handle their deliveries."""
        ids = [self._create() for _ in range(EACH)]
        for id, amount in itertools.product(ids, (Amount(500, USD), Amount(500, USD), Amount(1500, USD))):
            run(receive(id, credit_id=next(self._names), amount=amount, clock=utc_now), self._ports)
        self._handle(EACH)


def measure_lives(filled: Filled, turns: int) -> dict[str, float]:
    """Return the cost of a payment from its creation to its delivery, in one process without HTTP.

    The figures are the microseconds of processor, the bytes of log, the bytes by which the tables and indexes grow
    before a VACUUM, and the share of the updates of payments that write to no index.
    """
    operations = Operations(filled, 1)
    with operations.store:
        for _ in range(turns // 10 + 1):
            operations.live()  # grows each file by the pages that PostgreSQL adds ahead
        begun = (
            time.process_time(),
            filled.server.processor_s(),
            filled.server.wal_bytes(),
            sum(filled.sizes().values()),
        )
        updates = filled.updates()
        for _ in range(turns):
            operations.live()
        ended = (
            time.process_time(),
            filled.server.processor_s(),
            filled.server.wal_bytes(),
            sum(filled.sizes().values()),
        )
    count = turns * EACH
    library, postgres, log, size = ((new - old) / count for new, old in zip(ended, begun, strict=True))
    all_, hot = (new - old for new, old in zip(filled.updates(), updates, strict=True))
    return {
        "library_us": round(library * 1e6),
        "postgres_us": round(postgres * 1e6),
        "log_bytes": round(log),
        "grows_bytes": round(size),
        "hot_updates": round(hot / all_, 2),
    }


def _us(action: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    action()
    return (time.perf_counter() - begin_s) * 1e6


def measure(databases: Sequence[Filled], turns: int) -> Spent:
    """Return the microseconds of each operation. The databases of one turn follow each other directly."""
    spent: Spent = {filled.payments: {name: [] for name in OPERATIONS} for filled in databases}
    with ExitStack() as stack:
        operations = {filled.payments: Operations(filled, turns) for filled in databases}
        for each in operations.values():
            stack.enter_context(each.store)
            each.turn()
        for turn in range(turns):
            order = list(operations.items())
            for payments, each in order if turn % 2 else reversed(order):
                for name, calls in each.turn().items():
                    spent[payments][name] += calls
    return spent


def medians(spent: Spent) -> dict[str, dict[int, float]]:
    """Return the median microseconds of each operation by the number of payments."""
    return {name: {size: statistics.median(of[name]) for size, of in spent.items()} for name in OPERATIONS}


def flatness(medians: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return the highest median of each operation divided by the lowest."""
    return {name: round(max(of.values()) / min(of.values()), 3) for name, of in medians.items()}
