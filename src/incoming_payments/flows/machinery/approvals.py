"""The functions by which the drivers request the approval of the host, and refuse a credit without this approval."""

from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from incoming_payments.domain.approval import Approver
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, IncomingPayment
from incoming_payments.errors import ApprovalRequired
from incoming_payments.flows.machinery.bounded import BoundedCall, Threads
from incoming_payments.flows.machinery.effects import UpdatePayment
from incoming_payments.ports import ApprovalPort, AsyncApprovalPort, Decide, Proposal, ProposedPayment

T = TypeVar("T")


class ApprovalCalls:
    """Calls of the approval `port`. Each call ends after `bound_s` seconds at the latest."""

    def __init__(self, port: ApprovalPort | AsyncApprovalPort, bound_s: float) -> None:
        self._port = port
        self._bound_s = bound_s
        self._threads = Threads()

    def request(self, proposal: Proposal) -> BoundedCall:
        """Return a call that asks the port to approve `proposal`. The call has not begun yet."""
        method = self._port.approve_payment if isinstance(proposal, ProposedPayment) else self._port.approve_credit
        return BoundedCall(self._threads, method, proposal, self._bound_s)


def only_approved(update: UpdatePayment[Any]) -> UpdatePayment[Any]:
    """Return `update`, changed so that it credits a packet only with the approval of the host.

    If the approval is missing, the decision raises `ApprovalRequired`. If the host has an approval port, the drivers
    call this function for each update.
    """
    return evolve(update, decide=partial(_decide_approved, update.decide))


def _decide_approved(decide: Decide[T], payment: IncomingPayment, earlier: Credit | None) -> Decision[T]:
    decision = decide(payment, earlier)
    # A host that uses no type checker may return a wrong type. The store refuses any value that is not a `Decision`.
    credit = decision.credit if isinstance(decision, Decision) else None
    if credit is not None and credit.id.startswith(STREAM_CREDITS):
        approved = decision.approved
        if approved is None or approved.by is not Approver.HOST or not approved.covers(credit):
            raise ApprovalRequired("a flow must request the approval of the host before it credits a packet", payment)
    return decision
