"""Request the approval of the host before a payment or the money of a packet is stored."""

from typing import TypeVar

from incoming_payments.errors import ApprovalPending, ApprovalUnavailable, PolicyRefused
from incoming_payments.flows.machinery.effects import Flow, RequestApproval
from incoming_payments.ports.approval import Approval, Proposal

T = TypeVar("T")


def require_approval(proposal: Proposal) -> Flow[None]:
    """Return once the host approves `proposal`.

    Raises `PolicyRefused` with the description of the host, `ApprovalPending`, or `ApprovalUnavailable` when the port
    fails in any way. A failure is never an approval.
    """
    try:
        answer = yield from RequestApproval(proposal)
    except PolicyRefused:
        raise
    except TimeoutError as error:
        raise ApprovalUnavailable("the approval port timed out: make it faster, or increase approval_s") from error
    except Exception as error:
        text = f"the approval port failed: {type(error).__name__}: {error}"
        raise ApprovalUnavailable(text) from error
    if answer is not Approval.APPROVED:
        raise ApprovalPending("the receiver has not decided yet: repeat the request later")
