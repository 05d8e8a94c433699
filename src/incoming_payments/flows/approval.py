"""The approval of the host: it is requested before a payment or the money of a packet is stored."""

from functools import partial
from typing import Any, TypeVar

from attrs import evolve

from incoming_payments.acceptance import Approval, Proposal
from incoming_payments.domain.approval import Approver
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, IncomingPayment
from incoming_payments.errors import AcceptanceUnavailable, ApprovalPending, ApprovalRequired, PolicyRefused
from incoming_payments.flows.effects import Flow, RequestApproval, UpdatePayment
from incoming_payments.ports import Decide

T = TypeVar("T")


def require_approval(proposal: Proposal) -> Flow[None]:
    """Return once the host approves `proposal`.

    Raises `PolicyRefused` with the words of the host, `ApprovalPending`, or `AcceptanceUnavailable` when the port fails
    in any way: a failure never approves.
    """
    try:
        answer = yield from RequestApproval(proposal)
    except PolicyRefused:
        raise
    except TimeoutError as error:
        raise AcceptanceUnavailable("the acceptance port did not answer within approval_s, or timed out") from error
    except Exception as error:
        text = f"the acceptance port failed: {type(error).__name__}: {error}"
        raise AcceptanceUnavailable(text) from error
    if answer is not Approval.APPROVED:
        raise ApprovalPending("the receiver has not decided yet: repeat the request later")


def only_approved(update: UpdatePayment[Any]) -> UpdatePayment[Any]:
    """Return `update` for a host with an acceptance port: it credits no packet without the approval of the host.

    Its decision raises `ApprovalRequired` instead. The drivers call this function for each update.
    """
    return evolve(update, decide=partial(_decide_approved, update.decide))


def _decide_approved(decide: Decide[T], payment: IncomingPayment, earlier: Credit | None) -> Decision[T]:
    decision = decide(payment, earlier)
    # A host without a type checker may return anything. The store refuses any value but a `Decision`.
    credit = decision.credit if isinstance(decision, Decision) else None
    if credit is not None and credit.id.startswith(STREAM_CREDITS):
        approved = decision.approved
        if approved is None or approved.by is not Approver.HOST or not approved.covers(credit):
            raise ApprovalRequired("a flow must request the approval of the host before it credits a packet", payment)
    return decision
