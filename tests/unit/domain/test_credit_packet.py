"""`domain.lifecycle.credit_packet`: the money of ILP packets."""

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.transitions import State
from incoming_payments.errors import (
    AmountTooLarge,
    AssetMismatch,
    CreditIdReused,
    IncomingPaymentsError,
    PaymentCompleted,
    PaymentExpired,
)
from incoming_payments.limits import UINT64_MAX
from kits.lifecycle_kit import (
    EUR,
    PEER,
    REUSED,
    USD,
    a_payment,
    an_earlier_credit,
    credit,
    credit_packet,
    credited,
    now_of,
)


def test_packet_stores_the_same_as_a_credit() -> None:
    """A packet stores what a credit stores, and its event names the peer. The answer is the payment."""
    payment = a_payment(State.PROCESSING)
    as_credit, as_packet = credit(payment, 400), credit_packet(payment, 400)
    events = tuple(evolve(event, peer=PEER) for event in as_credit.events)
    assert as_packet == Decision(as_credit.payment, as_credit.payment, events, as_credit.credit)


def test_only_the_credited_event_names_the_peer() -> None:
    """Only the first of the two events of a completing packet names the peer."""
    assert [event.peer for event in credit_packet(a_payment(State.PENDING), 1000).events] == [PEER, None]


@pytest.mark.parametrize("state", State)
def test_repeated_packet_changes_nothing(state: State) -> None:
    """The answer to a repeated packet is the payment as it is now, in every state."""
    payment = a_payment(state)
    earlier = an_earlier_credit(payment)
    assert credit_packet(payment, 400, now_of(state), earlier=earlier) == Decision(payment)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize(("value", "asset"), [(399, USD), (0, USD), (2**64 - 1, USD), (400, EUR)])
def test_repeated_packet_with_another_amount_is_refused(state: State, value: int, asset: Asset) -> None:
    """A copy with another amount is refused before any other check, in every state."""
    payment = a_payment(state)
    earlier = an_earlier_credit(payment)
    with pytest.raises(CreditIdReused) as caught:
        credit_packet(payment, value, now_of(state), earlier=earlier, asset=asset)
    assert str(caught.value) == REUSED


@pytest.mark.parametrize("state", State)
def test_packet_of_zero_changes_nothing(state: State) -> None:
    """A packet of zero carries STREAM frames only; the answer is the payment, in every state."""
    payment = a_payment(state)
    assert credit_packet(payment, 0, now_of(state)) == Decision(payment)


@pytest.mark.parametrize(
    ("state", "value", "asset", "refusal"),
    [
        (State.COMPLETED, 0, EUR, AssetMismatch),
        (State.COMPLETED, 2**64 - 1, USD, PaymentCompleted),
        (State.EXPIRED, 2**64 - 1, USD, PaymentExpired),
        (State.PENDING, 2**64 - 1, USD, AmountTooLarge),
    ],
)
def test_packet_refused(state: State, value: int, asset: Asset, refusal: type[IncomingPaymentsError]) -> None:
    """An impossible packet is refused, in this order of reasons."""
    with pytest.raises(refusal) as caught:
        credit_packet(a_payment(state), value, now_of(state), asset=asset)
    assert type(caught.value) is refusal


@pytest.mark.parametrize(
    ("limit", "received", "tolerance", "most"),
    [
        pytest.param(1000, 0, None, 1010, id="one percent"),
        pytest.param(1000, 999, None, 11, id="of incomingAmount, not of what remains"),
        pytest.param(99, 0, None, 100, id="one unit"),
        pytest.param(1000, 0, Tolerance(0, 0), 1000, id="none"),
        pytest.param(9999, 0, None, 9999 + 99, id="rounded down"),
        pytest.param(1000, 0, Tolerance(50, 100), 1050, id="units"),
        pytest.param(1000, 0, Tolerance(50, 1000), 1100, id="basis points"),
        pytest.param(2**64 - 2, 0, Tolerance(50, 1000), 2**64 - 1, id="at most 64 bits"),
        pytest.param(2**64 - 2, 5, Tolerance(UINT64_MAX, UINT64_MAX), 2**64 - 6, id="at most 64 bits by any tolerance"),
        pytest.param(None, 1, None, 2**64 - 2, id="no incomingAmount"),
        pytest.param(None, 0, Tolerance(50, 100), 2**64 - 1, id="no incomingAmount, with a tolerance"),
    ],
)
def test_packet_may_pass_the_limit_by_the_tolerance(
    limit: int | None, received: int, tolerance: Tolerance | None, most: int
) -> None:
    """A packet with more than the tolerance is refused; the remaining amount does not include the tolerance."""
    payment = a_payment(State.PENDING, limit=limit)
    payment = credited(payment, received, id="wire-0") if received else payment
    assert credit_packet(payment, most, tolerance=tolerance).answer.received == Amount(received + most, USD)
    if most < 2**64 - 1:
        with pytest.raises(AmountTooLarge) as caught:
            credit_packet(payment, most + 1, tolerance=tolerance)
        remaining = (2**64 - 1 if limit is None else limit) - received
        assert caught.value.details == {"remaining": remaining}
        assert caught.value.remaining == remaining
        assert str(caught.value) == (
            f"the packet carries more money than the payment can still accept: send at most {remaining}"
        )
