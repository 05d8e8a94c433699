"""`flows.run`: the two drivers answer, throw, bound and close alike."""

import asyncio
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from datetime import datetime
from typing import Any, TypeVar

import pytest

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import Event
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    CreditId,
    IncomingPayment,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
    wallet_address_url,
)
from incoming_payments.errors import FlowStuck, PaymentNotFound, PolicyRefused, PortMissing
from incoming_payments.flows.effects import (
    AllocateMethods,
    DrawRandomness,
    Effect,
    FindExpired,
    FindWalletAddress,
    Flow,
    InsertPayment,
    IntrospectToken,
    LoadEvents,
    LoadPayment,
    UpdatePayment,
)
from incoming_payments.flows.run import arun, run
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo
from incoming_payments.limits import FLOW_STEPS_MAX
from incoming_payments.ports import AsyncPorts, Decide, Ports
from incoming_payments.testing import NOW, a_creation, a_wallet_address, crediting

T = TypeVar("T")
CREATED = a_creation()
PAYMENT = CREATED.answer
METHOD = IlpPaymentMethod("g.bank.x7", "c2VjcmV0")
INFO = AccessTokenInfo("https://shop.example", {"kid": "key-1"}, [AccessRight(["read"])])
EVENT = CREATED.events[0]
URL = wallet_address_url("https://bank.example/alice")


class Store:
    """Notes what it is asked, and answers."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        self.asked.append(("insert", decision))

    def load(self, id: PaymentId) -> IncomingPayment:
        self.asked.append(("load", id))
        return PAYMENT

    def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        self.asked.append(("update", id, credit_id))
        return decide(PAYMENT, None).answer

    def events(self, id: PaymentId) -> Sequence[Event]:
        self.asked.append(("events", id))
        return [EVENT]

    def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        self.asked.append(("find_expired", now, limit))
        return [PAYMENT.id]


class AsyncStore:
    """The same, in its own time."""

    def __init__(self) -> None:
        self.store = Store()
        self.asked = self.store.asked

    async def insert(self, decision: Decision[IncomingPayment]) -> None:
        await asyncio.sleep(0)
        self.store.insert(decision)

    async def load(self, id: PaymentId) -> IncomingPayment:
        await asyncio.sleep(0)
        return self.store.load(id)

    async def update(self, id: PaymentId, decide: Decide[T], credit_id: CreditId | None = None) -> T:
        await asyncio.sleep(0)
        return self.store.update(id, decide, credit_id)

    async def events(self, id: PaymentId) -> Sequence[Event]:
        await asyncio.sleep(0)
        return self.store.events(id)

    async def find_expired(self, now: datetime, limit: int) -> Sequence[PaymentId]:
        await asyncio.sleep(0)
        return self.store.find_expired(now, limit)


class Others:
    """The other ports in one: each answers by what it is asked."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        return a_wallet_address(url)

    def introspect(self, token: AccessToken) -> AccessTokenInfo | None:
        return INFO if token == AccessToken("known") else None

    def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]:
        return [METHOD] if payment is PAYMENT else []


class AsyncOthers:
    """The same, in their own time."""

    async def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        await asyncio.sleep(0)
        return Others().find(url)

    async def introspect(self, token: AccessToken) -> AccessTokenInfo | None:
        await asyncio.sleep(0)
        return Others().introspect(token)

    async def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]:
        await asyncio.sleep(0)
        return Others().allocate(payment)


async def async_randomness(count: int) -> bytes:
    """Not random at all."""
    await asyncio.sleep(0)
    return bytes(count)


def sync_ports(store: Store) -> Ports:
    """All ports, sync."""
    others = Others()
    return Ports(store=store, wallet_addresses=others, introspector=others, methods=others, randomness=bytes)


def async_ports(store: AsyncStore) -> AsyncPorts:
    """All ports, async."""
    others = AsyncOthers()
    return AsyncPorts(
        store=store, wallet_addresses=others, introspector=others, methods=others, randomness=async_randomness
    )


def run_sync(flow: Flow[T]) -> tuple[T, list[object]]:
    """Drive with `run` and sync ports: the answer, and what the store was asked."""
    store = Store()
    return run(flow, sync_ports(store)), store.asked


def run_async(flow: Flow[T]) -> tuple[T, list[object]]:
    """Drive with `arun` and async ports."""
    store = AsyncStore()
    return asyncio.run(arun(flow, async_ports(store))), store.asked


def run_mixed(flow: Flow[T]) -> tuple[T, list[object]]:
    """Drive with `arun`, some ports sync and some async."""
    store, others = Store(), AsyncOthers()
    ports = AsyncPorts(store=store, wallet_addresses=others, introspector=Others(), methods=others, randomness=bytes)
    return asyncio.run(arun(flow, ports)), store.asked


def run_sync_ports_async(flow: Flow[T]) -> tuple[T, list[object]]:
    """Drive with `arun` and the very ports of `run`."""
    store = Store()
    return asyncio.run(arun(flow, sync_ports(store))), store.asked


Drive = Callable[[Flow[Any]], tuple[Any, list[object]]]
drivers = pytest.mark.parametrize("drive", [run_sync, run_async, run_mixed, run_sync_ports_async])


def asking(*effects: Effect[Any]) -> Flow[list[object]]:
    """A flow that asks one question after another and returns the answers."""
    answers: list[object] = []
    for effect in effects:
        answers.append((yield from effect))  # noqa: PERF401 - a comprehension cannot yield
    return answers


# --- answers ---------------------------------------------------------------------------------------


@drivers
@pytest.mark.parametrize(
    ("effect", "answer", "asked"),
    [
        (DrawRandomness(4), bytes(4), []),
        (FindWalletAddress(URL), a_wallet_address(), []),
        (IntrospectToken(AccessToken("known")), INFO, []),
        (IntrospectToken(AccessToken("unknown")), None, []),
        (AllocateMethods(PAYMENT), [METHOD], []),
        (InsertPayment(CREATED), None, [("insert", CREATED)]),
        (LoadPayment(PAYMENT.id), PAYMENT, [("load", PAYMENT.id)]),
        (LoadEvents(PAYMENT.id), [EVENT], [("events", PAYMENT.id)]),
        (FindExpired(NOW, 7), [PAYMENT.id], [("find_expired", NOW, 7)]),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Effect) else None,
)
def test_each_effect_is_answered_by_its_port(
    drive: Drive, effect: Effect[Any], answer: object, asked: list[object]
) -> None:
    """Every question reaches its port with all that it holds, and the answer comes back as it is."""
    assert drive(asking(effect)) == ([answer], asked)


@drivers
def test_update_reaches_the_store_with_its_decision(drive: Drive) -> None:
    """The decision is run by the store, and its answer is the effect's."""
    effect = UpdatePayment(PAYMENT.id, crediting("wire-1", 5), CreditId("wire-1"))
    [booked], asked = drive(asking(effect))
    assert booked.received == Amount(5, Asset("USD", 2))
    assert asked == [("update", PAYMENT.id, "wire-1")]


@drivers
def test_a_flow_asks_in_its_order(drive: Drive) -> None:
    """One question at a time, each after the answer to the one before."""
    answers, asked = drive(asking(LoadPayment(PAYMENT.id), DrawRandomness(1), LoadEvents(PAYMENT.id)))
    assert answers == [PAYMENT, b"\0", [EVENT]]
    assert asked == [("load", PAYMENT.id), ("events", PAYMENT.id)]


@drivers
def test_a_flow_may_ask_nothing(drive: Drive) -> None:
    """An answer that needs no port needs no port."""
    assert drive(asking()) == ([], [])


# --- a port's exception ------------------------------------------------------------------------------


class Breaking:
    """A port that raises what it was built with, sync or async."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def find(self, _url: WalletAddressUrl) -> WalletAddress | None:
        raise self.error


class AsyncBreaking(Breaking):
    """The same, only when it is awaited."""

    async def find(self, _url: WalletAddressUrl) -> WalletAddress | None:  # type: ignore[override] # async on purpose
        await asyncio.sleep(0)
        raise self.error


def break_sync(flow: Flow[T], error: BaseException) -> T:
    """Drive with `run`; to find a wallet address raises `error`."""
    return run(flow, Ports(wallet_addresses=Breaking(error), randomness=bytes))


def break_async(flow: Flow[T], error: BaseException) -> T:
    """Drive with `arun`; the port raises when it is awaited."""
    ports = AsyncPorts(wallet_addresses=AsyncBreaking(error), randomness=bytes)
    return asyncio.run(arun(flow, ports))


def break_mixed(flow: Flow[T], error: BaseException) -> T:
    """Drive with `arun`; the port raises when it is called."""
    return asyncio.run(arun(flow, AsyncPorts(wallet_addresses=Breaking(error), randomness=bytes)))


Break = Callable[[Flow[Any], BaseException], Any]
breakers = pytest.mark.parametrize("drive", [break_sync, break_async, break_mixed])


class Seen:
    """A flow that notes what happens to it: what it catches, and that it is closed."""

    def __init__(self) -> None:
        self.notes: list[object] = []

    def catching(self) -> Flow[object]:
        try:
            return (yield from FindWalletAddress(URL))
        except Exception as error:  # noqa: BLE001 - that is what is looked at
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
def test_a_ports_exception_is_thrown_into_the_flow(drive: Break, error: Exception) -> None:
    """A flow may catch whatever its port raises, the very object, at the place where it asked, and go on."""
    seen = Seen()
    assert drive(seen.catching(), error) == bytes(2)
    assert seen.notes == [error]


@breakers
def test_a_ports_exception_that_the_flow_lets_pass_reaches_the_caller(drive: Break) -> None:
    """The caller gets the very exception that the port raised."""
    error = PolicyRefused("not today")
    with pytest.raises(PolicyRefused) as caught:
        drive(asking(FindWalletAddress(URL)), error)
    assert caught.value is error


@pytest.mark.parametrize("drive", [break_sync, break_mixed])
def test_a_ports_stop_iteration_is_no_answer(drive: Break) -> None:
    """A port that lets a StopIteration escape has failed: it must not pass for the end of the flow."""
    with pytest.raises(RuntimeError) as caught:
        drive(asking(FindWalletAddress(URL)), StopIteration("an answer?"))
    assert str(caught.value) == "generator raised StopIteration"


@drivers
def test_what_the_flow_raises_reaches_the_caller(drive: Drive) -> None:
    """A refusal by the flow itself ends it."""

    def refusing() -> Flow[None]:
        yield from DrawRandomness(1)
        raise PolicyRefused("not today")

    with pytest.raises(PolicyRefused) as caught:
        drive(refusing())
    assert str(caught.value) == "not today"


# --- ports that are not there ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "port"),
    [
        (FindWalletAddress(URL), "wallet_addresses"),
        (IntrospectToken(AccessToken("known")), "introspector"),
        (AllocateMethods(PAYMENT), "methods"),
        (InsertPayment(CREATED), "store"),
        (LoadPayment(PAYMENT.id), "store"),
        (UpdatePayment(PAYMENT.id, crediting("wire-1", 5)), "store"),
        (LoadEvents(PAYMENT.id), "store"),
        (FindExpired(NOW, 7), "store"),
    ],
    ids=lambda part: type(part).__name__ if isinstance(part, Effect) else part,
)
def test_a_missing_port_is_named(effect: Effect[Any], port: str) -> None:
    """Both drivers say which port to pass, and to what."""
    with pytest.raises(PortMissing) as caught:
        run(asking(effect), Ports())
    assert str(caught.value) == f"{type(effect).__name__} needs a port: pass {port}=... to Ports"
    with pytest.raises(PortMissing) as caught:
        asyncio.run(arun(asking(effect), AsyncPorts()))
    assert str(caught.value) == f"{type(effect).__name__} needs a port: pass {port}=... to AsyncPorts"


def test_a_missing_port_can_be_caught() -> None:
    """A flow for which a port is optional may go on without it."""
    seen = Seen()
    assert run(seen.catching(), Ports(randomness=bytes)) == bytes(2)
    assert [type(note) for note in seen.notes] == [PortMissing]


class Eventually:
    """Something to await that is no coroutine."""

    def __await__(self) -> Generator[None, None, WalletAddress]:
        yield
        return a_wallet_address()


class EventualAddresses:
    """A port that answers with one."""

    def find(self, _url: WalletAddressUrl) -> Awaitable[WalletAddress | None]:
        return Eventually()


class OldAddresses:
    """A port that is written as coroutines were before there was a word for them."""

    @types.coroutine
    def find(self, _url: WalletAddressUrl) -> Generator[Any, None, WalletAddress]:
        """What `types.coroutine` makes has no `__await__`."""
        yield from asyncio.sleep(0).__await__()
        return a_wallet_address()


@pytest.mark.parametrize("port", [AsyncOthers(), EventualAddresses(), OldAddresses()])
def test_run_refuses_an_async_port(port: Any) -> None:
    """`run` says which driver to use, rather than hand a coroutine to the flow; no warning is left behind."""
    with pytest.raises(PortMissing) as caught:
        run(asking(FindWalletAddress(URL)), Ports(wallet_addresses=port))
    assert str(caught.value) == "the port for FindWalletAddress is async: drive this flow with arun"


@pytest.mark.parametrize("port", [EventualAddresses(), OldAddresses()])
def test_arun_awaits_whatever_can_be_awaited(port: Any) -> None:
    """A port need not be written with `async def` to be async."""
    ports = AsyncPorts(wallet_addresses=port)
    assert asyncio.run(arun(asking(FindWalletAddress(URL)), ports)) == [a_wallet_address()]


# --- bounds and ends ---------------------------------------------------------------------------------


@drivers
def test_a_flow_may_take_as_many_steps_as_the_limit_says(drive: Drive) -> None:
    """The last effect within the limit is answered."""
    answers, _ = drive(asking(*[DrawRandomness(0)] * FLOW_STEPS_MAX))
    assert len(answers) == FLOW_STEPS_MAX


@drivers
def test_a_flow_that_does_not_end_is_stopped(drive: Drive) -> None:
    """One effect more is a bug in the flow: it is named and not answered, and the flow is closed."""
    ends: list[str] = []

    def endless() -> Flow[None]:
        try:
            while True:
                yield from DrawRandomness(0)
        finally:
            ends.append("closed")

    with pytest.raises(FlowStuck) as caught:
        drive(endless())
    assert str(caught.value) == "a flow still asked for DrawRandomness after 1000 effects"
    assert ends == ["closed"]


@drivers
def test_a_flow_is_driven_once(drive: Drive) -> None:
    """A flow that has ended is refused, as it would answer nothing, as if all were well."""

    def once() -> Flow[bytes]:
        return (yield from DrawRandomness(1))

    flow = once()
    assert drive(flow) is not None
    with pytest.raises(FlowStuck) as caught:
        drive(flow)
    assert str(caught.value) == "this flow was driven before: make a new one for each call"


@drivers
def test_a_question_that_no_driver_knows(drive: Drive) -> None:
    """An effect of somebody else's is named, rather than looked up in vain."""

    class Unknown(Effect[None]):
        """No driver knows it."""

    def asking() -> Flow[None]:
        yield Unknown()

    with pytest.raises(PortMissing) as caught:
        drive(asking())
    assert str(caught.value) == "no port answers Unknown: flows ask with the effects of flows.effects only"


@drivers
def test_a_flow_that_hides_every_failure_is_stopped_too(drive: Drive) -> None:
    """Asking again after each exception counts as well."""

    class Unknown(Effect[None]):
        """No driver knows it."""

    def stubborn() -> Flow[None]:
        while True:
            try:
                yield Unknown()
            except PortMissing:
                continue

    with pytest.raises(FlowStuck):
        drive(stubborn())


@breakers
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_a_flow_is_closed_when_the_process_is_told_to_end(drive: Break, error: BaseException) -> None:
    """What ends the process is no answer for the flow to handle: it is closed, and the caller gets the exception."""
    seen = Seen()
    with pytest.raises(type(error)):
        drive(seen.closing(), error)
    assert seen.notes == ["closed"]


def test_a_flow_is_closed_when_its_task_is_cancelled() -> None:
    """Cancelling the task while a port is at work cancels the port and closes the flow."""
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


def test_many_flows_run_side_by_side() -> None:
    """Flows share nothing: what one waits for does not reach another."""

    async def scenario() -> list[list[object]]:
        ports = async_ports(AsyncStore())
        flows: list[Coroutine[Any, Any, list[object]]] = [
            arun(asking(DrawRandomness(count), DrawRandomness(count + 1)), ports) for count in range(50)
        ]
        return list(await asyncio.gather(*flows))

    assert asyncio.run(scenario()) == [[bytes(count), bytes(count + 1)] for count in range(50)]
