"""Request the approval of the host, before a payment or the money of a packet is stored."""

from typing import TypeVar

from incoming_payments.acceptance import Approval, Proposal, ProposedCredit
from incoming_payments.domain.payment import CreditId
from incoming_payments.errors import AcceptanceUnavailable, ApprovalPending, IncomingPaymentsError, PolicyRefused
from incoming_payments.flows.effects import Effect, FindCredit, Flow, LoadPayment, RequestApproval, UpdatePayment
from incoming_payments.ilp.receive import Arrival

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


def approved(flow: Flow[T]) -> Flow[T]:
    """Run `flow` unchanged, but request the approval of the host before the money of a packet is credited.

    The drivers wrap each flow in this one if the host has the port. So no path credits without approval, and a packet
    takes no longer without the port.
    """
    try:
        effect: Effect[object] = next(flow)
        while True:
            try:
                if isinstance(effect, UpdatePayment) and effect.arrival is not None and effect.arrival.amount.value:
                    yield from _require_approval(effect, effect.arrival)
                answer = yield effect
            except Exception as error:  # noqa: BLE001 - the flow handles every exception of a port
                effect = flow.throw(error)
            else:
                effect = flow.send(answer)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return] # a generator's return type is lost in StopIteration
    finally:
        flow.close()


def _require_approval(update: UpdatePayment[object], arrival: Arrival) -> Flow[None]:
    """Return once the host approves the money of `arrival`, or if the money is credited already.

    The payment refuses packets first, so the host decides only about packets that the payment would take.
    """
    id = CreditId(arrival.credit_id)
    if (yield from FindCredit(update.id, id)) is not None:
        return
    try:
        payment = yield from LoadPayment(update.id)
        update.decide(payment, None)  # raises the refusals of the payment, and of an expired packet
        proposal = ProposedCredit(
            payment=payment,
            amount=arrival.amount,
            peer=arrival.peer,
            expires_at=arrival.expires_at,
            data=arrival.stream_data,
        )
        yield from require_approval(proposal)
    except IncomingPaymentsError:
        # A copy of the packet may have been approved and credited meanwhile.
        if (yield from FindCredit(update.id, id)) is None:
            raise
