"""The approval of the host: it is requested before a payment or the money of a packet is stored."""

from typing import TypeVar

from incoming_payments.errors import AcceptanceUnavailable, ApprovalPending, PolicyRefused
from incoming_payments.flows.machinery.effects import Flow, RequestApproval
from incoming_payments.ports.approval import Approval, Proposal

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
