"""Tests of `flows.machinery.run`: both drivers answer effects, pass on exceptions, and end flows in the same way."""

import asyncio
import gc
import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from datetime import datetime
from typing import Any, TypeVar

import pytest

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    HOST,
    ClientId,
    CreditId,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
    wallet_address_url,
)
from incoming_payments.errors import ConfigurationError, FlowStuck, PaymentNotFound, PolicyRefused, PortMissing
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.machinery.effects import (
    AllocateMethods,
    DrawRandomness,
    Effect,
    FindCreation,
    FindExpired,
    FindPayments,
    FindWalletAddress,
    Flow,
    InsertPayment,
    IntrospectToken,
    LoadEvents,
    LoadPayment,
    UpdatePayment,
)
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, TokenQuery
from incoming_payments.limits import FLOW_STEPS_MAX
from incoming_payments.ports import Decide
from incoming_payments.testing import NOW, a_creation, a_wallet_address, crediting
from kits.fake_ports import Async

T = TypeVar("T")
CREATED = a_creation(key="order-1")
KEY = IdempotencyKey("order-1")
PAYMENT = CREATED.answer
METHOD = IlpPaymentMethod("g.bank.x7", "c2VjcmV0")
KNOWN = TokenQuery(AccessToken("known"), "read", WalletAddressUrl("https://bank.example/alice"))
INFO = AccessTokenInfo("https://shop.example", {"kid": "key-1"}, [AccessRight(["read"])])
EVENT = CREATED.events[0]
QUERY = PaymentQuery(now=NOW, limit=7)
URL = wallet_address_url("https://bank.example/alice")


class Store:
    """A store that records its calls and returns fixed answers."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        self.calls.append(("insert", decision))

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        self.calls.append(("find_creation", client, key, now))
        return CREATED.keyed

    def load(self, id: PaymentId) -> IncomingPayment:
        self.calls.append(("load", id))
        return PAYMENT

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        self.calls.append(("update", id, credit_id))
        return decide(PAYMENT, None).answer

    def events(self, id: PaymentId) -> Sequence[Event]:
        self.calls.append(("events", id))
        return [EVENT]

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        self.calls.append(("find_expired", now, limit))
        return [PAYMENT.id]

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        self.calls.append(("find_payments", query))
        return [PAYMENT]


class Others:
    """The other ports in one class. The answers depend on the arguments."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        return a_wallet_address(url)

    def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        return INFO if query == KNOWN else None

    def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]:
        return [METHOD] if payment is PAYMENT else []

    def randomness(self, count: int) -> bytes:
        return bytes(count)


def sync_ports(store: Store) -> Ports:
    """Return all ports, sync."""
    others = Others()
    return Ports(store=store, wallet_addresses=others, introspector=others, methods=others, randomness=bytes)


def async_ports(store: Store) -> AsyncPorts:
    """Return all ports, async."""
    others: Any = Async(Others())
    return AsyncPorts(
        store=Async(store),
        wallet_addresses=others,
        introspector=others,
        methods=others,
        randomness=others.randomness,
    )


def run_sync(flow: Flow[T]) -> tuple[T, list[object]]:
    """Run the flow with `run` and sync ports. Return its answer and the calls of the store."""
    store = Store()
    return run(flow, sync_ports(store)), store.calls


def run_async(flow: Flow[T]) -> tuple[T, list[object]]:
    """Run the flow with `arun` and async ports."""
    store = Store()
    return asyncio.run(arun(flow, async_ports(store))), store.calls


def run_mixed(flow: Flow[T]) -> tuple[T, list[object]]:
    """Run the flow with `arun`, some ports sync and some async."""
    store = Store()
    others: Any = Async(Others())
    ports = AsyncPorts(store=store, wallet_addresses=others, introspector=Others(), methods=others, randomness=bytes)
    return asyncio.run(arun(flow, ports)), store.calls


def run_sync_ports_async(flow: Flow[T]) -> tuple[T, list[object]]:
    """Run the flow with `arun` and the ports of `run_sync`."""
    store = Store()
    return asyncio.run(arun(flow, sync_ports(store))), store.calls


Drive = Callable[[Flow[Any]], tuple[Any, list[object]]]
drivers = pytest.mark.parametrize("drive", [run_sync, run_async, run_mixed, run_sync_ports_async])


def yielding(*effects: Effect[Any]) -> Flow[list[object]]:
    """Return a flow that yields these effects and returns their answers."""
    answers: list[object] = []
    for effect in effects:
        answers.append((yield from effect))  # noqa: PERF401 - a comprehension cannot yield
    return answers


# --- answers ---------------------------------------------------------------------------------------


@drivers
@pytest.mark.parametrize(
    ("effect", "answer", "calls"),
    [
        (DrawRandomness(4), bytes(4), []),
        (FindWalletAddress(URL), a_wallet_address(), []),
        (IntrospectToken(KNOWN), INFO, []),
        (IntrospectToken(TokenQuery(AccessToken("unknown"), "read")), None, []),
        (AllocateMethods(PAYMENT), [METHOD], []),
        (InsertPayment(CREATED), None, [("insert", CREATED)]),
        (FindCreation(HOST, KEY, NOW), CREATED.keyed, [("find_creation", HOST, KEY, NOW)]),
        (LoadPayment(PAYMENT.id), PAYMENT, [("load", PAYMENT.id)]),
        (LoadEvents(PAYMENT.id), [EVENT], [("events", PAYMENT.id)]),
        (FindExpired(NOW, 7), [PAYMENT.id], [("find_expired", NOW, 7)]),
        (FindPayments(QUERY), [PAYMENT], [("find_payments", QUERY)]),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Effect) else None,
)
def test_each_effect_is_answered_by_its_port(
    drive: Drive, effect: Effect[Any], answer: object, calls: list[object]
) -> None:
    """Each effect reaches its port with all its members, and the answer reaches the flow."""
    assert drive(yielding(effect)) == ([answer], calls)


@drivers
def test_update_reaches_the_store_with_its_decision(drive: Drive) -> None:
    """The store runs the decision, and its answer is the answer of the effect."""
    effect = UpdatePayment(PAYMENT.id, crediting("wire-1", 5), CreditId("wire-1"))
    [credit], calls = drive(yielding(effect))
    assert credit.received == Amount(5, Asset("USD", 2))
    assert calls == [("update", PAYMENT.id, "wire-1")]


# --- exceptions of ports -----------------------------------------------------------------------------


class Breaking:
    """A port that raises the given exception when it is called."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def find(self, _url: WalletAddressUrl) -> WalletAddress | None:
        raise self.error


class AsyncBreaking(Breaking):
    """A port that raises the given exception when it is awaited."""

    async def find(self, _url: WalletAddressUrl) -> WalletAddress | None:  # type: ignore[override] # async on purpose
        await asyncio.sleep(0)
        raise self.error


def break_sync(flow: Flow[T], error: BaseException) -> T:
    """Run the flow with `run` and a port that raises `error`."""
    return run(flow, Ports(wallet_addresses=Breaking(error), randomness=bytes))


def break_async(flow: Flow[T], error: BaseException) -> T:
    """Run the flow with `arun` and a port that raises `error` when it is awaited."""
    ports = AsyncPorts(wallet_addresses=AsyncBreaking(error), randomness=bytes)
    return asyncio.run(arun(flow, ports))


def break_mixed(flow: Flow[T], error: BaseException) -> T:
    """Run the flow with `arun` and a port that raises `error` when it is called."""
    return asyncio.run(arun(flow, AsyncPorts(wallet_addresses=Breaking(error), randomness=bytes)))


Break = Callable[[Flow[Any], BaseException], Any]
breakers = pytest.mark.parametrize("drive", [break_sync, break_async, break_mixed])


class Seen:
    """Flows that record the exceptions that they catch, and whether they are closed."""

    def __init__(self) -> None:
        self.notes: list[object] = []

    def catching(self) -> Flow[object]:
        try:
            return (yield from FindWalletAddress(URL))
        except Exception as error:  # noqa: BLE001 - the test looks at the exception
            self.notes.append(error)
            return (yield from DrawRandomness(2))

    def closing(self) -> Flow[object]:
        try:
            return (yield from FindWalletAddress(URL))
        except GeneratorExit:
            self.notes.append("closed")
            raise


@breakers
@pytest.mark.parametrize(
    "error",
    [PolicyRefused("not today"), PaymentNotFound("no"), RuntimeError("broken"), ExceptionGroup("two", [OSError()])],
)
def test_exception_of_a_port_is_thrown_into_the_flow(drive: Break, error: Exception) -> None:
    """A flow can catch the exception object of a port at the `yield from`, and continue."""
    seen = Seen()
    assert drive(seen.catching(), error) == bytes(2)
    assert seen.notes == [error]


@breakers
def test_uncaught_exception_of_a_port_reaches_the_caller(drive: Break) -> None:
    """The caller gets the exception object that the port raised."""
    error = PolicyRefused("not today")
    with pytest.raises(PolicyRefused) as caught:
        drive(yielding(FindWalletAddress(URL)), error)
    assert caught.value is error


@pytest.mark.parametrize("drive", [break_sync, break_mixed])
def test_stop_iteration_of_a_port_is_an_error(drive: Break) -> None:
    """A `StopIteration` of a port does not look like the end of the flow."""
    with pytest.raises(RuntimeError, match=r"^(generator|coroutine) raised StopIteration$"):
        drive(yielding(FindWalletAddress(URL)), StopIteration("an answer?"))


@drivers
def test_exception_of_the_flow_reaches_the_caller(drive: Drive) -> None:
    """An exception that the flow raises ends it."""

    def refusing() -> Flow[None]:
        yield from DrawRandomness(1)
        raise PolicyRefused("not today")

    with pytest.raises(PolicyRefused) as caught:
        drive(refusing())
    assert str(caught.value) == "not today"


# --- missing and wrong ports -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "method"),
    [
        (FindWalletAddress(URL), "wallet_addresses.find"),
        (IntrospectToken(KNOWN), "introspector.introspect"),
        (AllocateMethods(PAYMENT), "methods.allocate"),
        (InsertPayment(CREATED), "store.insert"),
        (FindCreation(HOST, KEY, NOW), "store.find_creation"),
        (LoadPayment(PAYMENT.id), "store.load"),
        (UpdatePayment(PAYMENT.id, crediting("wire-1", 5)), "store.update"),
        (LoadEvents(PAYMENT.id), "store.events"),
        (FindExpired(NOW, 7), "store.find_expired"),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Effect) else part,
)
def test_missing_port_is_named(effect: Effect[Any], method: str) -> None:
    """The exception names the port, its method, and the class that takes it."""
    port = method.partition(".")[0]
    with pytest.raises(PortMissing) as caught:
        run(yielding(effect), Ports())
    assert str(caught.value) == f"this call needs {method}: pass {port}=... to Ports"
    with pytest.raises(PortMissing) as caught:
        asyncio.run(arun(yielding(effect), AsyncPorts()))
    assert str(caught.value) == f"this call needs {method}: pass {port}=... to AsyncPorts"


class Eventually:
    """An awaitable that is not a coroutine."""

    def __await__(self) -> Generator[None, None, WalletAddress]:
        yield
        return a_wallet_address()


class EventualAddresses:
    """A port that returns an awaitable that is not a coroutine."""

    def find(self, _url: WalletAddressUrl) -> Awaitable[WalletAddress | None]:
        return Eventually()


class OldAddresses:
    """A port with a generator-based coroutine."""

    @types.coroutine
    def find(self, _url: WalletAddressUrl) -> Generator[Any, None, WalletAddress]:
        """Return a wallet address. A generator from `types.coroutine` has no `__await__`."""
        yield from asyncio.sleep(0).__await__()
        return a_wallet_address()


class CoroutineAddresses:
    """Wallet addresses with a `def` method that returns a coroutine."""

    def find(self, url: WalletAddressUrl) -> Coroutine[Any, Any, WalletAddress | None]:
        """Return a coroutine, which only a call can show."""
        return Async(Others()).find(url)  # type: ignore[no-any-return] # `Async` finds it at run time


@pytest.mark.parametrize("port", [CoroutineAddresses(), EventualAddresses(), OldAddresses()])
def test_run_refuses_an_async_port(port: Any) -> None:
    """`run` refuses an async port and names the right driver. No warning about an unawaited coroutine follows."""
    with pytest.raises(PortMissing) as caught:
        run(yielding(FindWalletAddress(URL)), Ports(wallet_addresses=port))
    assert str(caught.value) == "wallet_addresses.find is async: use arun, or AsyncIncomingPayments"


@pytest.mark.parametrize("port", [EventualAddresses(), OldAddresses()])
def test_arun_awaits_every_awaitable(port: Any) -> None:
    """A port may return any awaitable, without `async def`."""
    ports = AsyncPorts(wallet_addresses=port)
    assert asyncio.run(arun(yielding(FindWalletAddress(URL)), ports)) == [a_wallet_address()]


# --- limits and ends ---------------------------------------------------------------------------------


@drivers
def test_flow_may_have_as_many_effects_as_the_limit(drive: Drive) -> None:
    """The last effect within the limit is answered."""
    answers, _ = drive(yielding(*[DrawRandomness(0)] * FLOW_STEPS_MAX))
    assert len(answers) == FLOW_STEPS_MAX


@drivers
def test_flow_with_too_many_effects_is_stopped(drive: Drive) -> None:
    """One effect more is not answered. The exception names it, and the flow is closed."""
    ends: list[str] = []

    def endless() -> Flow[None]:
        try:
            while True:
                yield from DrawRandomness(0)
        finally:
            ends.append("closed")

    with pytest.raises(FlowStuck) as caught:
        drive(endless())
    assert (
        str(caught.value)
        == "the flow did not end after 1000 effects, and its next effect was DrawRandomness: correct the flow"
    )
    assert ends == ["closed"]


@drivers
def test_flow_that_has_run_is_refused(drive: Drive) -> None:
    """A flow cannot run twice. It would return `None`, as if it had succeeded."""

    def once() -> Flow[bytes]:
        return (yield from DrawRandomness(1))

    flow = once()
    assert drive(flow) is not None
    with pytest.raises(FlowStuck) as caught:
        drive(flow)
    assert str(caught.value) == "this flow has already run: make a new flow for each call"


def start(flow: Any, ports: Any, driver: Callable[[Any, Any], Any]) -> object:
    """Return the answer of either driver."""
    answer = driver(flow, ports)
    return asyncio.run(answer) if inspect.iscoroutine(answer) else answer


@pytest.mark.parametrize("driver", [run, arun])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (lambda: (announce_expired(NOW), Store()), "a flow and Store"),
        (lambda: (Ports(), announce_expired(NOW)), "Ports and a flow"),
        (lambda: (announce_expired, Ports()), "function and Ports"),
        (lambda: ([], Ports()), "list and Ports"),
        (lambda: (yielding(), None), "a flow and NoneType"),
    ],
)
def test_other_arguments_are_refused(
    driver: Callable[[Any, Any], Any], given: Callable[[], tuple[Any, Any]], found: str
) -> None:
    """The exception says what to pass. The flow gives no further warning."""
    with pytest.raises(ConfigurationError) as caught:
        start(*given(), driver)
    expected = f"pass a flow and its ports, as in run(flow, Ports(store=...)), not {found}"
    assert str(caught.value) == expected
    del caught
    gc.collect()


@drivers
def test_unknown_effect_is_refused(drive: Drive) -> None:
    """The exception names an effect that has no port."""

    class Unknown(Effect[None]):
        """An effect without a route."""

    def yielding() -> Flow[None]:
        yield Unknown()

    with pytest.raises(PortMissing) as caught:
        drive(yielding())
    assert str(caught.value) == "no port answers Unknown: yield only the effects of flows.machinery.effects"


@drivers
def test_flow_that_catches_every_exception_is_stopped(drive: Drive) -> None:
    """An effect that ends with an exception counts too."""

    class Unknown(Effect[None]):
        """An effect without a route."""

    def retrying() -> Flow[None]:
        while True:
            try:
                yield Unknown()
            except PortMissing:
                continue

    with pytest.raises(FlowStuck):
        drive(retrying())


@breakers
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_flow_is_closed_when_the_process_exits(drive: Break, error: BaseException) -> None:
    """`KeyboardInterrupt` and `SystemExit` close the flow and reach the caller."""
    seen = Seen()
    with pytest.raises(type(error)):
        drive(seen.closing(), error)
    assert seen.notes == ["closed"]


def test_flow_is_closed_when_its_task_is_cancelled() -> None:
    """Cancelling the task during a port operation cancels the operation and closes the flow."""
    seen = Seen()

    class Hanging:
        async def find(self, _url: WalletAddressUrl) -> WalletAddress | None:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.notes.append("cancelled")
                raise
            return None

    async def scenario() -> None:
        task = asyncio.ensure_future(arun(seen.closing(), AsyncPorts(wallet_addresses=Hanging())))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    started = asyncio.Event()
    asyncio.run(scenario())
    assert seen.notes == ["cancelled", "closed"]
