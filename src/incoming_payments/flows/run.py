"""The only two drivers: `run` for sync ports, `arun` for async ones. They are the whole of what waits.

A driver steps a flow, answers each effect from its port, throws what a port raises into the flow, and closes the flow
when it is cancelled or gives up.
"""

import inspect
from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any, Final, TypeVar

from incoming_payments.errors import FlowStuck, PortMissing
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
    UseNonce,
)
from incoming_payments.limits import FLOW_STEPS_MAX
from incoming_payments.ports import AsyncPorts, Ports

T = TypeVar("T")

# Each effect, the port it is a question for, and how that port is asked.
_ROUTES: Final[Mapping[type[Effect[Any]], tuple[str, Callable[[Any, Any], Any]]]] = {
    DrawRandomness: ("randomness", lambda port, effect: port(effect.count)),
    FindWalletAddress: ("wallet_addresses", lambda port, effect: port.find(effect.url)),
    IntrospectToken: ("introspector", lambda port, effect: port.introspect(effect.token)),
    UseNonce: ("nonces", lambda port, effect: port.use(effect.key, effect.until, effect.now)),
    AllocateMethods: ("methods", lambda port, effect: port.allocate(effect.payment)),
    InsertPayment: ("store", lambda port, effect: port.insert(effect.decision)),
    LoadPayment: ("store", lambda port, effect: port.load(effect.id)),
    UpdatePayment: ("store", lambda port, effect: port.update(effect.id, effect.decide, effect.credit_id)),
    LoadEvents: ("store", lambda port, effect: port.events(effect.id)),
    FindExpired: ("store", lambda port, effect: port.find_expired(effect.now, effect.limit)),
}


def run(flow: Flow[T], ports: Ports) -> T:
    """Drive `flow` to its end with sync ports and return its answer.

    Raises what the flow raises; `PortMissing` when it asks for a port that `ports` lacks, or that is async;
    `FlowStuck` after `limits.FLOW_STEPS_MAX` effects, or when the flow was driven before.
    """
    _require_fresh(flow)
    try:
        effect = next(flow)
        for _ in range(FLOW_STEPS_MAX):
            try:
                answer = _ask(effect, ports)
                if _is_awaitable(answer):
                    _discard(answer)
                    raise PortMissing(f"the port for {type(effect).__name__} is async: drive this flow with arun")
            except Exception as error:  # noqa: BLE001 - whatever a port raises is the flow's to handle
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
        raise _stuck(effect)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
    finally:
        flow.close()


async def arun(flow: Flow[T], ports: AsyncPorts | Ports) -> T:
    """Drive `flow` to its end, awaiting the ports that are async, and return its answer.

    Raises as `run` does. When the task is cancelled while a port is at work the flow is closed; what the port was
    asked to do may happen all the same, which is why credits carry ids.
    """
    _require_fresh(flow)
    try:
        effect = next(flow)
        for _ in range(FLOW_STEPS_MAX):
            try:
                answer = _ask(effect, ports)
                if _is_awaitable(answer):
                    answer = await answer
            except Exception as error:  # noqa: BLE001 - whatever a port raises is the flow's to handle
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
        raise _stuck(effect)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
    finally:
        flow.close()


def _require_fresh(flow: Flow[Any]) -> None:
    """A flow that was driven before would answer `None` at once, as if all were well."""
    if inspect.getgeneratorstate(flow) != inspect.GEN_CREATED:
        raise FlowStuck("this flow was driven before: make a new one for each call")


def _ask(effect: Effect[Any], ports: AsyncPorts | Ports) -> Any:
    route = _ROUTES.get(type(effect))
    if route is None:
        raise PortMissing(f"no port answers {type(effect).__name__}: flows ask with the effects of flows.effects only")
    name, ask = route
    port = getattr(ports, name)
    if port is None:
        raise PortMissing(f"{type(effect).__name__} needs a port: pass {name}=... to {type(ports).__name__}")
    return ask(port, effect)


def _is_awaitable(answer: Any) -> bool:
    """As `inspect.isawaitable`, sooner: no port answers with a generator but one that `types.coroutine` has made."""
    return hasattr(answer, "__await__") or isinstance(answer, GeneratorType)


def _discard(answer: Any) -> None:
    """Spare the caller a second complaint, about a coroutine that was never awaited."""
    if inspect.iscoroutine(answer):
        answer.close()


def _stuck(effect: Effect[Any]) -> FlowStuck:
    return FlowStuck(f"a flow still asked for {type(effect).__name__} after {FLOW_STEPS_MAX} effects")
