"""The two drivers of flows: `run` for sync ports and `arun` for async ports. No other code waits for a port.

A driver runs a flow step by step. It answers each effect by calling a port, and throws the exception of a port into the
flow. When the flow ends, is cancelled, or takes too many steps, the driver closes it.
"""

import inspect
from collections.abc import Callable, Generator, Mapping
from types import GeneratorType
from typing import Any, Final, TypeVar

from incoming_payments.domain.checks import name_of
from incoming_payments.errors import ConfigurationError, FlowStuck, PortMissing
from incoming_payments.flows.machinery import effects, feed_effects
from incoming_payments.flows.machinery.approvals import only_approved
from incoming_payments.flows.machinery.bounded import BoundedCall
from incoming_payments.flows.machinery.observed import EffectReporter
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports, check_for_asyncio
from incoming_payments.limits import FLOW_STEPS_MAX
from incoming_payments.ports.approval import Approval

T = TypeVar("T")
_PORTS: Final = (Ports, AsyncPorts)


def _no_payload(_: object) -> bytes:
    return b""


# For each effect, the name of its port and the call to that port.
_ROUTES: Final[Mapping[type[effects.Effect[Any]], tuple[str, Callable[[Any, Any], Any]]]] = {
    effects.DrawRandomness: ("randomness", lambda port, effect: port(effect.count)),
    effects.FindWalletAddress: ("wallet_addresses", lambda port, effect: port.find(effect.url)),
    effects.IntrospectToken: ("introspector", lambda port, effect: port.introspect(effect.query)),
    effects.FindClientKey: ("client_keys", lambda port, effect: port.find(effect.client, effect.key_id)),
    effects.UseNonce: ("nonces", lambda port, effect: port.use(effect.key, effect.until, effect.now)),
    effects.AllocateMethods: ("methods", lambda port, effect: port.allocate(effect.payment)),
    effects.InsertPayment: ("store", lambda port, effect: port.insert(effect.decision)),
    effects.FindCreation: ("store", lambda port, effect: port.find_creation(effect.client, effect.key, effect.now)),
    effects.LoadPayment: ("store", lambda port, effect: port.load(effect.id)),
    effects.UpdatePayment: ("store", lambda port, effect: port.update(effect.id, effect.decide, effect.credit_id)),
    effects.LoadEvents: ("store", lambda port, effect: port.events(effect.id)),
    effects.RequestApproval: ("approval_calls", lambda port, effect: port.request(effect.proposal)),
    effects.CountRequest: ("quotas", lambda port, effect: port.admit(effect.client, effect.now)),
    effects.ReserveUnpaid: ("quotas", lambda port, effect: port.reserve(effect.client, effect.id)),
    effects.ReleaseUnpaid: ("quotas", lambda port, effect: port.release(effect.client, effect.id)),
    effects.FindExpired: ("store", lambda port, effect: port.find_expired(effect.now, effect.limit)),
    effects.EraseMetadata: ("erasure", lambda port, effect: port.erase(effect.id)),
    effects.EraseEnded: ("erasure", lambda port, effect: port.erase_ended(effect.before)),
    effects.FindPayments: ("store", lambda port, effect: port.find_payments(effect.query)),
    feed_effects.FindDeadLetters: (
        "feed",
        lambda port, effect: port.dead_letters(effect.consumer, effect.after, effect.limit),
    ),
    feed_effects.Redeliver: (
        "feed",
        lambda port, effect: port.redeliver(
            effect.delivery.consumer, effect.delivery.payment_id, effect.delivery.first_version, effect.now
        ),
    ),
    feed_effects.FindNextDue: ("feed", lambda port, effect: port.next_due(effect.consumer)),
    feed_effects.ClaimDeliveries: (
        "feed",
        lambda port, effect: port.claim(
            effect.consumer, _no_payload, now=effect.now, until=effect.until, limit=effect.limit
        ),
    ),
    feed_effects.SettleDelivery: (
        "feed",
        lambda port, effect: port.settle(effect.delivery, effect.result, effect.now),
    ),
    feed_effects.FindConsumers: ("feed", lambda port, _: port.consumers()),
    feed_effects.EnableConsumer: (
        "feed",
        lambda port, effect: port.set_enabled(effect.consumer, effect.now, enabled=effect.enabled),
    ),
    feed_effects.SkipDeliveries: ("feed", lambda port, effect: port.skip(effect.consumer, effect.now)),
    feed_effects.RemoveConsumer: ("feed", lambda port, effect: port.remove(effect.consumer)),
}
# The answers when an optional port is missing. Every request is approved, and no quota applies.
_WITHOUT_PORT: Final[Mapping[type[effects.Effect[Any]], Any]] = {
    effects.RequestApproval: Approval.APPROVED,
    effects.CountRequest: None,
    effects.ReserveUnpaid: (),
    effects.ReleaseUnpaid: None,
}


def run(flow: effects.Flow[T], ports: Ports, *, reporter: EffectReporter | None = None) -> T:
    """Run `flow` to its end with sync ports, and return its answer.

    `reporter` tells the observer about the introspections and credits of the flow.

    Raises the exceptions of the flow. Raises `PortMissing` when `ports` lacks a port that the flow needs, or when that
    port is async. Raises `FlowStuck` after `limits.FLOW_STEPS_MAX` effects, or when the flow has already run. Raises
    `ConfigurationError` when an argument is not a flow, or not `Ports`.
    """
    flow = fresh(flow, ports)
    if reporter is not None:
        flow = reporter.watched(flow)
    try:
        effect = next(flow)
        for _ in range(FLOW_STEPS_MAX):
            try:
                answer = _perform(ports, effect)
            except Exception as error:  # noqa: BLE001 - the flow handles every exception of a port
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
        raise _too_many_effects(effect)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
    finally:
        flow.close()


async def arun(flow: effects.Flow[T], ports: AsyncPorts | Ports, *, reporter: EffectReporter | None = None) -> T:
    """Run `flow` to its end, await the ports that are async, and return its answer.

    `reporter` tells the observer about the introspections and credits of the flow.

    Raises the exceptions of `run`, and `ConfigurationError` for a port of this library that would block the event loop.
    If a sync port of the host blocks the event loop for a long time, this is logged once for each port. When the task
    is cancelled during a port operation, the flow is closed, but the operation may still take effect. Credits have ids
    so that you can repeat such an operation.
    """
    flow = fresh(flow, ports)
    check_for_asyncio(ports)
    if reporter is not None:
        flow = reporter.watched(flow)
    try:
        effect = next(flow)
        for _ in range(FLOW_STEPS_MAX):
            try:
                answer = await _perform_async(ports, effect)
            except Exception as error:  # noqa: BLE001 - the flow handles every exception of a port
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
        raise _too_many_effects(effect)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
    finally:
        flow.close()


def fresh(flow: effects.Flow[T], ports: AsyncPorts | Ports) -> effects.Flow[T]:
    """Return the generator of `flow`. Raise `ConfigurationError` for wrong arguments, and `FlowStuck` for a used flow.

    A flow that has run would return `None` at once, as if it had succeeded.
    """
    if isinstance(ports, _PORTS):
        if type(flow) is effects.Guarded:
            return iter(flow)
        if isinstance(flow, GeneratorType):
            if inspect.getgeneratorstate(flow) != inspect.GEN_CREATED:
                raise FlowStuck("this flow has already run: make a new flow for each call")
            return flow
    for one in (flow, ports):
        if isinstance(one, Generator):
            one.close()  # prevent a second warning, that the flow was never run
    found = " and ".join("a flow" if isinstance(one, Generator) else name_of(one) for one in (flow, ports))
    raise ConfigurationError(f"pass a flow and its ports, as in run(flow, Ports(store=...)), not {found}")


def _perform(ports: Ports, effect: effects.Effect[Any]) -> Any:
    """Return the answer of the port of `effect`. Raise `PortMissing` for a port that is async."""
    answer = _call_port(effect, ports)
    if isinstance(answer, BoundedCall):
        return answer.wait()
    if not inspect.isawaitable(answer):
        return answer
    if inspect.iscoroutine(answer):
        answer.close()  # prevent a warning of Python that the coroutine was never awaited
    raise PortMissing(f"{effect.method} is async: use arun, or AsyncIncomingPayments")


async def _perform_async(ports: AsyncPorts | Ports, effect: effects.Effect[Any]) -> Any:
    """Return the answer of the port of `effect`, awaited if the port is async."""
    begin_s = ports.loop_watch.clock()
    try:
        answer = _call_port(effect, ports)
    finally:
        ports.loop_watch.called(effect.method, ports, begin_s)
    return await answer if inspect.isawaitable(answer) else answer


def _call_port(effect: effects.Effect[Any], ports: AsyncPorts | Ports) -> Any:
    route = _ROUTES.get(type(effect))
    if route is None:
        raise PortMissing(f"no port answers {type(effect).__name__}: yield only the effects of flows.machinery.effects")
    name, call = route
    port = getattr(ports, name)
    if port is not None:
        if isinstance(effect, effects.UpdatePayment) and ports.approval_calls is not None:
            effect = only_approved(effect)
        return call(port, effect)
    if type(effect) in _WITHOUT_PORT:
        return _WITHOUT_PORT[type(effect)]
    raise PortMissing(f"this call needs {effect.method}: pass {name}=... to {type(ports).__name__}")


def _too_many_effects(effect: effects.Effect[Any]) -> FlowStuck:
    return FlowStuck(
        f"the flow did not end after {FLOW_STEPS_MAX} effects, and its next effect was "
        f"{type(effect).__name__}: correct the flow"
    )
