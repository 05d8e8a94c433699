"""Observe the port operations of a flow: introspections and credits."""

from collections.abc import Callable
from typing import Any, TypeVar

from incoming_payments.errors import ApprovalRequired, AuthorizationServerUnavailable, IncomingPaymentsError
from incoming_payments.flows.effects import Effect, Flow, IntrospectToken, UpdatePayment
from incoming_payments.ports import CreditDecided, Observation, TokenIntrospected

T = TypeVar("T")


def observed(flow: Flow[T], report: Callable[[Observation], None], clock_s: Callable[[], float]) -> Flow[T]:
    """Run `flow` unchanged, and `report` its introspections and its credits. `clock_s` returns monotonic seconds."""
    try:
        effect = next(flow)
        while True:
            begin_s = clock_s()
            try:
                answer = yield effect
            except Exception as error:  # noqa: BLE001 - the flow handles every exception of a port
                _report(effect, "", _code(error), report, clock_s() - begin_s)
                effect = flow.throw(error)
            else:
                _report(effect, "inactive" if answer is None else "active", "", report, clock_s() - begin_s)
                effect = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
    finally:
        flow.close()


def _report(
    effect: Effect[Any], state: str, code: str, report: Callable[[Observation], None], duration_s: float
) -> None:
    if isinstance(effect, IntrospectToken):
        report(TokenIntrospected(outcome=code or state, duration_s=duration_s))
    elif isinstance(effect, UpdatePayment) and effect.credit_id is not None and code != ApprovalRequired.code:
        report(CreditDecided(outcome=code or "credited", duration_s=duration_s))


def _code(error: Exception) -> str:
    if isinstance(error, ConnectionError | TimeoutError):  # `flows.authenticate` maps these too
        return AuthorizationServerUnavailable.code
    return error.code if isinstance(error, IncomingPaymentsError) else "internal_error"
