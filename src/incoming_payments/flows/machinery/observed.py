"""Report the introspections and credits of flows to an observer."""

from collections.abc import Callable
from typing import Any, TypeVar

from attrs import frozen

from incoming_payments.errors import ApprovalRequired, AuthorizationServerUnavailable, IncomingPaymentsError
from incoming_payments.flows.machinery.effects import Effect, Flow, IntrospectToken, UpdatePayment
from incoming_payments.ports import CreditDecided, Observation, TokenIntrospected

T = TypeVar("T")


@frozen
class EffectReporter:
    """Passes introspections and credits to `report`, for the drivers. `clock_s` returns monotonic seconds."""

    report: Callable[[Observation], None]
    clock_s: Callable[[], float]

    def watched(self, flow: Flow[T]) -> Flow[T]:
        """Return a flow that does the same as `flow`, and also reports the answers of the ports."""
        try:
            effect = next(flow)
            while True:
                begin_s = self.clock_s()
                try:
                    answer = yield effect
                except Exception as error:  # noqa: BLE001 - the flow handles every exception of a port
                    self._failed(effect, error, begin_s)
                    effect = flow.throw(error)
                else:
                    self._answered(effect, answer, begin_s)
                    effect = flow.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
        finally:
            flow.close()

    def _answered(self, effect: Effect[Any], answer: object, begin_s: float) -> None:
        introspected = "inactive" if answer is None else "active"
        self._report(effect, introspected if isinstance(effect, IntrospectToken) else "credited", begin_s)

    def _failed(self, effect: Effect[Any], error: Exception, begin_s: float) -> None:
        # not for `ApprovalRequired`, after which the flow requests the approval and decides again
        if not isinstance(error, ApprovalRequired):
            self._report(effect, _code(error), begin_s)

    def _report(self, effect: Effect[Any], outcome: str, begin_s: float) -> None:
        if isinstance(effect, IntrospectToken):
            self.report(TokenIntrospected(outcome=outcome, duration_s=self.clock_s() - begin_s))
        elif isinstance(effect, UpdatePayment) and effect.credit_id is not None:
            self.report(CreditDecided(outcome=outcome, duration_s=self.clock_s() - begin_s))


def _code(error: Exception) -> str:
    # `flows.authenticate` also treats these exceptions as an outage
    if isinstance(error, ConnectionError | TimeoutError):
        return AuthorizationServerUnavailable.code
    return error.code if isinstance(error, IncomingPaymentsError) else "internal_error"
