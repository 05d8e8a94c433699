"""`webhooks` and `async_webhooks`: the events of a service arrive at its endpoints."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import standardwebhooks

from incoming_payments import AsyncIncomingPayments, AsyncPorts, DerivedMethods, IncomingPayments, Ports, ServicePolicy
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.feed import ConsumerState
from incoming_payments.domain.payment import PaymentId
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.outbound.webhooks import WebhookEndpoint, WebhookOptions, async_webhooks, webhooks
from incoming_payments.stores.memory import MemoryStore
from kits.scripted_server import Exchange, ScriptedServer, scripted_server
from kits.service_kit import ALICE, AUTH_SERVER, BASE_URL, BOB, SERVER_SECRET, USD, Hosted
from kits.webhook_kit import OTHER_SECRET, SECRET, an_endpoint

POLICY: Final = ServicePolicy(base_url=BASE_URL, auth_server=AUTH_SERVER)
QUICK: Final = RetryPolicy(attempts=3, first_s=0.05, factor=1, longest_s=0.05)
WAIT_S: Final = 20


class Host:
    """A service with a memory store. Its webhooks are sent by threads, or by an event loop in a thread."""

    def __init__(self, *, is_async: bool) -> None:
        store = MemoryStore()
        ports: dict[str, Any] = {
            "store": store,
            "feed": store.feed,
            "wallet_addresses": Hosted(),
            "methods": DerivedMethods("test.bank", [SERVER_SECRET]),
        }
        self.feed = store.feed
        self.payments = IncomingPayments(policy=POLICY, ports=Ports(**ports))
        self.async_service = AsyncIncomingPayments(policy=POLICY, ports=AsyncPorts(**ports))
        self._is_async = is_async

    @contextlib.contextmanager
    def sending(self, *endpoints: WebhookEndpoint) -> Iterator[None]:
        """Send webhooks to `endpoints` in the background."""
        options: WebhookOptions = {"retry": QUICK, "poll_s": 0.05}
        if not self._is_async:
            with webhooks(self.payments, endpoints, **options):
                yield
            return
        begun, ended = threading.Event(), threading.Event()

        async def send() -> None:
            async with async_webhooks(self.async_service, endpoints, **options):
                begun.set()
                await asyncio.to_thread(ended.wait)

        thread = threading.Thread(target=asyncio.run, args=(send(),))
        thread.start()
        try:
            assert begun.wait(WAIT_S)
            yield
        finally:
            ended.set()
            thread.join()

    def create(self, limit: int | None = None, wallet_address: str = ALICE.url) -> PaymentId:
        """Create a payment."""
        amount = None if limit is None else Amount(limit, USD)
        return self.payments.create(wallet_address=wallet_address, incoming_amount=amount).id

    def credit(self, payment: PaymentId, value: int, id: str) -> None:
        """Credit `value` minor units to `payment`."""
        self.payments.receive(payment, credit_id=id, amount=Amount(value, USD))

    def state(self, name: str) -> ConsumerState:
        """Return the state of a consumer."""
        return next(state for state in self.feed.consumers() if state.consumer.name == name)


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def host(request: pytest.FixtureRequest) -> Host:
    """A host that sends its webhooks in threads, and one that sends them in an event loop."""
    return Host(is_async=request.param)


def accepts(exchange: Exchange, _: int) -> None:
    """Answer 200."""
    exchange.answer(b"")


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until `condition` is true."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_requests(receiver: ScriptedServer, count: int) -> None:
    """Wait until `receiver` has got `count` requests."""
    wait_for(lambda: len(receiver.requests) >= count)


def bodies(receiver: ScriptedServer, secret: str = SECRET) -> list[Any]:
    """Return the bodies that the receiver got, whose signatures the official library accepts."""
    verifier = standardwebhooks.Webhook(secret)
    return [verifier.verify(exchange.body, headers(exchange)) for exchange in receiver.requests]


def headers(exchange: Exchange) -> dict[str, str]:
    """Return the header fields of a request."""
    lines = exchange.head.split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


def test_each_endpoint_gets_its_own_webhooks(host: Host) -> None:
    """Each endpoint has its own filters, secrets and payloads. The events of a payment arrive in order."""
    with scripted_server(accepts) as all_events, scripted_server(accepts) as filtered:
        endpoints = [
            an_endpoint(all_events.url, name="ledger", joins_credits=False),
            an_endpoint(
                filtered.url,
                name="shop",
                secrets=[OTHER_SECRET],
                kinds=["completed"],
                wallet_addresses=[ALICE.url],
                thin=True,
            ),
        ]
        with host.sending(*endpoints):
            payment = host.create(limit=1000)
            host.create(wallet_address=BOB.url)
            host.credit(payment, 400, "wire-1")
            host.credit(payment, 600, "wire-2")
            wait_for_requests(all_events, 5)
            wait_for_requests(filtered, 1)
        found = bodies(all_events)
        mine = [body for body in found if body["data"]["paymentId"] == payment]
        assert [body["type"] for body in mine] == [
            "payment.created",
            "payment.credited",
            "payment.credited",
            "payment.completed",
        ]
        assert [body["data"].get("creditId") for body in mine] == [None, "wire-1", "wire-2", None]
        assert len(found) == 5
        [completed] = bodies(filtered, OTHER_SECRET)
        assert completed["data"] == {"paymentId": payment, "firstVersion": 4, "lastVersion": 4}


def test_credits_during_an_attempt_are_joined(host: Host) -> None:
    """While a webhook is in flight, the next credits of the payment wait, and come together. The completion follows."""
    released = threading.Event()

    def holds_the_first(exchange: Exchange, number: int) -> None:
        if number == 0:
            released.wait(WAIT_S)
        exchange.answer(b"")

    with scripted_server(holds_the_first) as receiver, host.sending(an_endpoint(receiver.url)):
        payment = host.create(limit=100)
        wait_for_requests(receiver, 1)
        for number in range(100):
            host.credit(payment, 1, f"packet-{number}")
        released.set()
        wait_for_requests(receiver, 3)
        data = [body["data"] for body in bodies(receiver)]
    assert [(each["firstVersion"], each["lastVersion"]) for each in data] == [(1, 1), (2, 101), (102, 102)]
    assert (data[1]["creditCount"], data[1]["creditedAmount"]["value"]) == (100, "100")


def test_packets_are_joined_although_the_receiver_is_fast(host: Host) -> None:
    """A credit waits for others. The completion ends the wait, and comes last."""
    with scripted_server(accepts) as receiver, host.sending(an_endpoint(receiver.url, credit_delay_s=WAIT_S)):
        payment = host.create(limit=50)
        wait_for_requests(receiver, 1)
        begin_s = time.monotonic()
        for number in range(50):
            time.sleep(0.002)
            host.credit(payment, 1, f"packet-{number}")
        wait_for_requests(receiver, 3)
        assert time.monotonic() - begin_s < WAIT_S / 2
        data = [body["data"] for body in bodies(receiver)]
    assert [(each["firstVersion"], each["lastVersion"]) for each in data] == [(1, 1), (2, 51), (52, 52)]


def test_retry_has_the_same_id_and_bytes(host: Host) -> None:
    """A receiver that answers 500 gets the same webhook again, and the credits that came meanwhile in another one."""

    def fails_once(exchange: Exchange, number: int) -> None:
        if number == 0:
            host.credit(payments[0], 5, "wire-1")
        exchange.answer(b"", 500 if number == 0 else 200)

    payments: list[PaymentId] = []
    with scripted_server(fails_once) as receiver:
        payments.append(host.create())
        with host.sending(an_endpoint(receiver.url, kinds=["credited"])):
            host.credit(payments[0], 7, "wire-0")
            wait_for_requests(receiver, 3)
        first, second, third = receiver.requests
        assert (headers(first)["webhook-id"], first.body) == (headers(second)["webhook-id"], second.body)
        assert [body["data"]["creditedAmount"]["value"] for body in bodies(receiver)] == ["7", "7", "5"]
        assert third.json()["data"]["receivedAmount"]["value"] == "12"


def test_endpoint_that_is_throttled_gets_nothing_meanwhile(host: Host) -> None:
    """`Retry-After` of a 429 holds for the webhooks of other payments too, but not for other endpoints."""
    begun_s: list[float] = []

    def script(exchange: Exchange, number: int) -> None:
        begun_s.append(time.monotonic())
        exchange.answer(b"", 200 if number else 429, "Retry-After: 1")

    with (
        scripted_server(script) as busy,
        scripted_server(accepts) as other,
        host.sending(an_endpoint(busy.url, name="busy"), an_endpoint(other.url, name="other")),
    ):
        host.create()
        wait_for_requests(busy, 1)
        time.sleep(0.1)  # until the answer has arrived
        host.create()
        wait_for_requests(other, 2)
        wait_for_requests(busy, 2)
    assert begun_s[1] - begun_s[0] >= 1
    assert len({body["data"]["paymentId"] for body in bodies(busy)}) == 2


def test_endpoint_that_is_gone_is_disabled(host: Host) -> None:
    """After the status 410, the endpoint gets no more webhooks, and other endpoints still get theirs."""

    def is_gone(exchange: Exchange, _: int) -> None:
        exchange.answer(b"", 410)

    with scripted_server(is_gone) as gone, scripted_server(accepts) as other:
        with host.sending(an_endpoint(gone.url, name="gone"), an_endpoint(other.url, name="other")):
            host.create()
            wait_for(lambda: host.state("gone").health.disabled_at is not None)
            host.create()
            wait_for_requests(other, 2)
        assert len(gone.requests) == 1
    assert host.state("other").health.disabled_at is None


def test_endpoint_that_hangs_delays_no_other(host: Host) -> None:
    """Each endpoint has its own attempts."""

    def hangs(exchange: Exchange, _: int) -> None:
        exchange.ended.wait(WAIT_S)

    with scripted_server(hangs) as slow, scripted_server(accepts) as good:
        begin_s = time.monotonic()
        with host.sending(an_endpoint(slow.url, name="slow", timeout_s=1), an_endpoint(good.url, name="good")):
            for _ in range(20):
                host.create()
            wait_for_requests(good, 20)
            assert time.monotonic() - begin_s < WAIT_S / 2
    assert host.state("slow").health.failing_since is not None


def test_dead_letter_is_sent_again_with_the_same_bytes(host: Host) -> None:
    """A webhook whose attempts are used up is a dead letter. It releases the later events, and can be sent again."""
    is_repaired = threading.Event()

    def refuses_the_first(exchange: Exchange, _: int) -> None:
        is_first = json.loads(exchange.body)["type"] == "payment.created"
        exchange.answer(b"", 400 if is_first and not is_repaired.is_set() else 200)

    with scripted_server(refuses_the_first) as receiver, host.sending(an_endpoint(receiver.url, down_after_s=None)):
        payment = host.create()
        host.credit(payment, 5, "wire-1")
        wait_for_requests(receiver, 4)
        [letter] = host.payments.dead_letters("shop")
        assert letter.error == "port_unavailable: the endpoint answered with status 400"
        is_repaired.set()
        host.payments.redeliver(letter)
        wait_for_requests(receiver, 5)
        types = [body["type"] for body in bodies(receiver)]
        assert types == [*["payment.created"] * 3, "payment.credited", "payment.created"]
        assert receiver.requests[4].body == receiver.requests[0].body


def test_endpoints_need_different_names() -> None:
    """The name is that of the consumer, so two endpoints with one name would share their webhooks."""
    payments = Host(is_async=False).payments
    with (
        pytest.raises(ConfigurationError, match="endpoints has two endpoints with the name shop: give each"),
        webhooks(payments, [an_endpoint(), an_endpoint("https://other.example")]),
    ):
        pass
    endpoints: Any = ["https://shop.example/hooks"]
    with pytest.raises(InvalidValue, match="endpoints must be a list of WebhookEndpoint, not of str"):
        webhooks(payments, endpoints).__enter__()


def test_an_async_service_needs_async_webhooks() -> None:
    """The error names the function to call."""
    service = Host(is_async=True).async_service
    with (
        pytest.raises(ConfigurationError, match=r"service is async: write async with async_webhooks"),
        webhooks(service, [an_endpoint()]),
    ):
        pass


@pytest.mark.parametrize("is_async", [False, True])
def test_end_stops_all_relays_before_it_waits(is_async: bool) -> None:
    """Otherwise the end would wait for one attempt of each endpoint, one after the other."""
    calls: list[str] = []

    class Relay(contextlib.AbstractContextManager[None], contextlib.AbstractAsyncContextManager[None]):
        def __init__(self, name: str) -> None:
            self.name = name

        def stop(self) -> None:
            calls.append(f"stop {self.name}")

        def __exit__(self, *_: object) -> None:
            calls.append(f"wait for {self.name}")

        async def __aexit__(self, *_: object) -> None:
            calls.append(f"wait for {self.name}")

    class Service:
        def relay(self, consumer: Any, _: Any, **options: Any) -> Relay:
            assert options["attempt_s"] > 20
            return Relay(consumer.name)

    endpoints = [an_endpoint(name=name) for name in "ab"]

    async def run() -> None:
        async with async_webhooks(Service(), endpoints):
            calls.append("work")

    if is_async:
        asyncio.run(run())
    else:
        with webhooks(Service(), endpoints):
            calls.append("work")
    assert calls == ["work", "stop a", "stop b", "wait for b", "wait for a"]
