"""A host with a relay, which runs in threads or in an event loop of its own thread."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from incoming_payments import (
    AsyncIncomingPayments,
    AsyncPorts,
    Consumer,
    ConsumerName,
    Delivery,
    DeliveryRecord,
    IncomingPayments,
    PaymentId,
    Ports,
    RetryPolicy,
    ServicePolicy,
)
from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import CreditId
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, FakeClock, a_creation, crediting
from kits.service_kit import AUTH_SERVER, BASE_URL, Recorder

POLICY: Final = ServicePolicy(base_url=BASE_URL, auth_server=AUTH_SERVER)
NAME: Final = ConsumerName("ledger")
LEDGER: Final = Consumer(name=NAME)
PATIENCE_S: Final = 20.0  # far more than any step needs
# the relay in threads, in an event loop with an async handler, and in an event loop with a sync handler
WAYS: Final = ("threads", "tasks", "mixed")


def eventually(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds."""
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, "the condition does not come true"
        time.sleep(0.002)


class Altered:
    """A feed whose methods in `methods` are replaced."""

    def __init__(self, feed: Any, **methods: Any) -> None:
        self._feed = feed
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


class Host:
    """A host with a memory store, a fake clock, and a handler that a test scripts with `answer`."""

    def __init__(self, way: str, *, consumer: Consumer = LEDGER, **options: Any) -> None:
        self.way = way
        self.consumer = consumer
        self.options = {"poll_s": 0.005, "retry": RetryPolicy(jitter=0), **options}
        self.clock = FakeClock()
        self.service_clock: Callable[[], datetime] = self.clock
        self.store = MemoryStore()
        self.feed: Any = self.store.feed
        self.recorder = Recorder()
        self.handled: list[Delivery] = []
        self.answer: Callable[[Delivery], object] = lambda _: None
        self.credits = 0

    # --- payments ---

    def create(self) -> PaymentId:
        """Create a payment."""
        created = a_creation(now=self.clock())
        self.store.insert(created)
        return created.answer.id

    def credit(self, id: PaymentId, value: int = 1) -> None:
        """Credit the payment."""
        self.credits += 1
        name = f"wire-{self.credits}"
        self.store.update(id, crediting(name, value, now=self.clock()), CreditId(name))

    def complete(self, id: PaymentId) -> None:
        """Complete the payment."""
        self.store.update(id, lambda payment, _: lifecycle.complete(payment, now=self.clock()))

    def records(self, id: PaymentId) -> list[DeliveryRecord]:
        """Return the deliveries of the payment."""
        return list(self.store.feed.deliveries(id))

    # --- the relay ---

    def handle(self, delivery: Delivery) -> object:
        """Handle a delivery, in a thread."""
        self.handled.append(delivery)
        return self.answer(delivery)

    async def handle_in_loop(self, delivery: Delivery) -> object:
        """Handle a delivery, in the event loop."""
        return await asyncio.to_thread(self.handle, delivery)

    @property
    def payloads(self) -> list[list[str]]:
        """The kinds and versions of the handled deliveries, in their order."""
        return [[f"{event.kind} {event.version}" for event in one.events] for one in list(self.handled)]

    @property
    def service(self) -> IncomingPayments:
        """Return a sync service."""
        ports = Ports(store=self.store, feed=self.feed)
        return IncomingPayments(policy=POLICY, ports=ports, clock=self.service_clock, observer=self.recorder)

    @property
    def async_service(self) -> AsyncIncomingPayments:
        """Return an async service."""
        ports = AsyncPorts(store=self.store, feed=self.feed)
        return AsyncIncomingPayments(policy=POLICY, ports=ports, clock=self.service_clock, observer=self.recorder)

    @contextmanager
    def relaying(self) -> Iterator[Any]:
        """Run the relay, as a context manager of the host does."""
        if self.way == "threads":
            with self.service.relay(self.consumer, self.handle, **self.options) as relay:
                yield relay
        else:
            handler: Any = self.handle_in_loop if self.way == "tasks" else self.handle
            with in_loop(lambda: self.async_service.relay(self.consumer, handler, **self.options)) as relay:
                yield relay


class InLoop:
    """A relay in an event loop. `stop` may be called in any thread."""

    def __init__(self, relay: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.relay = relay
        self._loop = loop

    def stop(self) -> None:
        """Stop the relay."""
        self._loop.call_soon_threadsafe(self.relay.stop)


@contextmanager
def in_loop(make: Callable[[], Any]) -> Iterator[InLoop]:
    """Run the async relay of `make` in an event loop of another thread. Raise the error of its beginning or end."""
    begun, errors, yielded = threading.Event(), list[BaseException](), list[Any]()

    async def main() -> None:
        end = asyncio.Event()
        async with make() as relay:
            loop = asyncio.get_running_loop()
            yielded.extend((InLoop(relay, loop), lambda: loop.call_soon_threadsafe(end.set)))
            begun.set()
            await end.wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - the test gets it
            errors.append(error)
        begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(PATIENCE_S)
    try:
        if yielded:
            yield yielded[0]
            yielded[1]()
    finally:
        if yielded and thread.is_alive():
            yielded[1]()
        thread.join(PATIENCE_S)
        if errors:
            raise errors[0]


def later(seconds: float) -> datetime:
    """Return the time `seconds` after `NOW`."""
    return NOW + timedelta(seconds=seconds)
