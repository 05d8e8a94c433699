"""The rules of the simulated host: its quotas, and its approvals, which may fail, hang or come late."""

from datetime import timedelta
from typing import Any, Final

from incoming_payments.errors import ApprovalPending, ApprovalUnavailable, PolicyRefused
from incoming_payments.flows.machinery.effects import (
    CountRequest,
    Effect,
    ReleaseUnpaid,
    RequestApproval,
    ReserveUnpaid,
)
from incoming_payments.ports.approval import Approval, ProposedCredit
from incoming_payments.service.quotas import MemoryQuotas
from incoming_payments.testing.simulation.commits import UNAPPROVED
from incoming_payments.testing.simulation.ledger import Expected, require
from incoming_payments.testing.simulation.operation import Task
from incoming_payments.testing.simulation.state import SimulationState

QUOTA_EFFECTS: Final[tuple[type[Effect[Any]], ...]] = (CountRequest, ReserveUnpaid, ReleaseUnpaid)
_UNPAID_MAX: Final = 40  # a quota that a few creates reach, so that they look for payments that are no longer unpaid

_REFUSED: Final = Expected("approval refused", PolicyRefused)
_PENDING: Final = Expected("approval pending", ApprovalPending)
_FAILED: Final = Expected("approval port failed", ApprovalUnavailable)
_HANGING: Final = Expected("approval port hung", ApprovalUnavailable)


class HostRules:
    """The rules that answer the effects for approval and quotas."""

    def __init__(self, state: SimulationState) -> None:
        self._state = state
        self._quotas = MemoryQuotas(unpaid_payments=_UNPAID_MAX)

    def execute(self, task: Task) -> None:
        """Set the answer of the effect of `task`, or its error."""
        effect = task.effect
        if isinstance(effect, RequestApproval):
            self._approve(task)
        elif isinstance(effect, ReserveUnpaid):
            # A create that reaches the quota loads every unpaid payment. A store that sometimes fails by itself would
            # hardly ever answer all these calls, so the host has no quota at the end.
            task.answer = self._quotas.reserve(effect.client, effect.id) if self._state.injects_faults else ()
        elif isinstance(effect, ReleaseUnpaid):
            self._quotas.release(effect.client, effect.id)
        elif self._state.injects_faults and self._state.roll() < 0.02:
            task.answer = 1.0
            self._state.count("client reached its quota of requests")

    def _approve(self, task: Task) -> None:
        """Usually approve.

        The other results are to refuse, delay, fail, hang, or approve so late that the packet may have expired.
        """
        if isinstance(task.effect.proposal, ProposedCredit):
            require(
                task.expected is UNAPPROVED, f"the host was asked to approve {task.operation}, which needs no approval"
            )
        roll = self._state.roll() if self._state.injects_faults else 1.0
        if roll < 0.03:
            self._refuse(task, _REFUSED, PolicyRefused("the host says no"))
        elif roll < 0.06:
            self._refuse(task, _PENDING, None)
            task.answer = Approval.PENDING
        elif roll < 0.08:
            self._refuse(task, _FAILED, RuntimeError("the approval port is broken"))
        elif roll < 0.09:
            self._refuse(task, _HANGING, TimeoutError())
        else:
            if roll < 0.10:
                self._state.count("approval late")
                self._state.now += timedelta(seconds=self._state.roll() * 60)
            task.answer, task.is_approved = Approval.APPROVED, True

    def _refuse(self, task: Task, refusal: Expected, error: Any) -> None:
        self._state.count(refusal.kind)
        task.refusal, task.error = refusal, error
