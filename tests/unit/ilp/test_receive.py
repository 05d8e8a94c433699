"""Tests of `ilp.receive`, the pure decisions. `flows/test_receive_packet.py` tests them with a store."""

from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.domain.approval import Approved, Approver
from incoming_payments.domain.lifecycle import Decision, complete
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import (
    AmountOverflow,
    AmountTooLarge,
    BrokenDecision,
    IncomingPaymentsError,
    InvalidValue,
    PacketExpired,
    PaymentCompleted,
    PaymentNotFound,
    PaymentRefused,
    PolicyRefused,
    StoreError,
)
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.packet import ErrorCode, Fulfill, PacketType, Prepare, Reject, encode
from incoming_payments.ilp.receive import REFUSALS, Arrival, Receiver, open_packet
from incoming_payments.ilp.stream import (
    ConnectionClose,
    Frame,
    StreamData,
    StreamDataBlocked,
    StreamError,
    StreamMaxData,
    StreamMaxMoney,
    StreamMoney,
    StreamMoneyBlocked,
)
from incoming_payments.limits import PREPARE_MARGIN_MS_DEFAULT
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.replies import ildcp_request
from kits.service_kit import NOBODYS_ID
from kits.stream_kit import METHODS, PEER, SECRET, USD, Sender

RECEIVER = Receiver(METHODS)
NONCE = bytes(12)


def a_sender() -> Sender:
    return Sender(METHODS.derive(a_creation().answer.id))


def arrival(prepare: Prepare, receiver: Receiver = RECEIVER) -> Arrival:
    """Open `prepare`, which must be a packet for a payment."""
    opened = open_packet(encode(prepare), peer=PEER, receiver=receiver, nonce=NONCE, now=NOW)
    assert isinstance(opened, Arrival)
    return opened


@pytest.mark.parametrize(
    ("prepare", "may_be_fulfilled"),
    [
        (a_sender().prepare(1), True),
        (a_sender().prepare(1, least=1), True),
        (a_sender().prepare(1, least=2), False),
        (a_sender().prepare(0), True),
        (a_sender().prepare(0, least=1), False),
        (a_sender().probe(1), False),
    ],
)
def test_packet_may_be_fulfilled(prepare: Prepare, may_be_fulfilled: bool) -> None:
    """A packet may be fulfilled when the condition is ours and the amount reaches the minimum."""
    assert arrival(prepare).may_be_fulfilled is may_be_fulfilled


def test_probe_is_never_fulfilled() -> None:
    """`fulfilled` raises for a probe, with assertions and without them."""
    probe = arrival(a_sender().probe(1))
    with pytest.raises((AssertionError, InvalidValue)):
        probe.fulfilled(a_creation().answer, NOW)


def test_credit_id_depends_on_data_and_payment() -> None:
    """The credit id depends on the data and the payment, but not on amount and expiry, which connectors change."""
    sender = a_sender()
    prepare = sender.prepare(400)
    id = arrival(prepare).credit_id
    assert arrival(evolve(prepare, amount=1)).credit_id == id
    assert arrival(evolve(prepare, expires_at=NOW + timedelta(hours=1))).credit_id == id
    assert arrival(sender.prepare(400)).credit_id != id
    assert arrival(a_sender().prepare(400, sequence=1)).credit_id != id
    assert len(id) == 68


def test_receivers_with_equal_settings_are_equal() -> None:
    """The cache is not compared, not part of the `repr`, and not an argument of the constructor."""
    receiver = Receiver(METHODS)
    receiver.find(a_sender().credentials.ilp_address)
    assert receiver == RECEIVER
    settings = f"methods={METHODS}, tolerance={Tolerance()}, margin_ms={PREPARE_MARGIN_MS_DEFAULT}"
    assert repr(receiver) == f"Receiver({settings})"
    with pytest.raises(TypeError):
        Receiver(METHODS, find=receiver.find)  # type: ignore[call-arg] # on purpose
    with pytest.raises(TypeError):
        Receiver(METHODS, margin=timedelta(0))  # type: ignore[call-arg] # on purpose


def test_receivers_do_not_share_a_cache() -> None:
    """A receiver with another secret refuses an address that a different receiver has cached."""
    sender = a_sender()
    arrival(sender.prepare(1))
    other = Receiver(DerivedMethods("test.bank", [bytes(32)]))
    opened = open_packet(encode(sender.prepare(1)), peer=PEER, receiver=other, nonce=NONCE, now=NOW)
    assert isinstance(opened, Reject)
    assert opened.code == ErrorCode.UNREACHABLE


@pytest.mark.parametrize("margin_ms", [-1, 1.0, True, None])
def test_invalid_margin_is_refused(margin_ms: object) -> None:
    """A margin must be an integer of at least 0."""
    with pytest.raises(InvalidValue) as caught:
        Receiver(METHODS, margin_ms=margin_ms)  # type: ignore[arg-type] # on purpose
    assert str(caught.value).startswith("margin_ms must be an integer")
    assert caught.value.details == {"member": "margin_ms"}


def test_packet_within_the_margin_is_refused() -> None:
    """A packet that expires within the margin is refused, and accepted by a receiver with margin 0."""
    prepare = a_sender().prepare(1, expires_at=NOW + timedelta(milliseconds=PREPARE_MARGIN_MS_DEFAULT - 1))
    late = arrival(prepare)
    with pytest.raises(PacketExpired, match=r"^the packet expired while it waited for the store"):
        late.decide(late.credit_id, lambda: NOW, late.approved_by(Approver.HOST))(a_creation().answer, None)
    assert arrival(prepare, Receiver(METHODS, margin_ms=0)).may_be_fulfilled


def decide(arrival: Arrival, approval: Approved | IncomingPaymentsError, payment: IncomingPayment) -> Decision[Any]:
    return arrival.decide(arrival.credit_id, lambda: NOW, approval)(payment, None)


@pytest.mark.parametrize("approver", Approver)
def test_decision_has_the_proof_of_the_approval(approver: Approver) -> None:
    """The decision to credit a packet has the proof, for the driver. A packet of amount 0 needs none."""
    payment = a_creation().answer
    sender = Sender(METHODS.derive(payment.id))
    paying, empty = arrival(sender.prepare(5)), arrival(sender.prepare(0))
    approved = Approved(approver, payment.id, paying.credit_id, Amount(5, USD))
    assert paying.approved_by(approver) == approved
    assert decide(paying, approved, payment).approved == approved
    assert decide(empty, approved, payment) == Decision(payment)


@pytest.mark.parametrize(
    "changes",
    [
        {"payment_id": PaymentId(NOBODYS_ID)},
        {"credit_id": CreditId("stream:1")},
        {"amount": Amount(4, USD)},
        {"amount": Amount(5, Asset("EUR", 2))},
    ],
)
def test_proof_for_another_credit_is_refused(changes: dict[str, Any]) -> None:
    """The approval of one packet is no approval of another payment, packet or amount."""
    payment = a_creation().answer
    opened = arrival(Sender(METHODS.derive(payment.id)).prepare(5))
    with pytest.raises(BrokenDecision, match=r"^the approval is for another payment, credit or amount"):
        decide(opened, evolve(opened.approved_by(Approver.HOST), **changes), payment)


def test_decision_raises_the_refusal_of_the_host_last() -> None:
    """The refusals of the payment come first, and a refusal of the host does not matter if nothing is credited."""
    payment = a_creation().answer
    sender, refusal = Sender(METHODS.derive(payment.id)), PolicyRefused("no")
    opened = arrival(sender.prepare(5))
    with pytest.raises(PolicyRefused) as caught:
        decide(opened, refusal, payment)
    assert caught.value is refusal
    with pytest.raises(PaymentCompleted):
        decide(opened, refusal, complete(payment, now=NOW).answer)
    credited = decide(opened, opened.approved_by(Approver.HOST), payment)
    repeated = opened.decide(opened.credit_id, lambda: NOW, refusal)(credited.answer, credited.credit)
    assert repeated == Decision(credited.answer)


def test_exact_margin_is_enough() -> None:
    """A packet is in time with exactly the margin left, but not with one microsecond less."""
    prepare = a_sender().prepare(1, expires_at=NOW + timedelta(milliseconds=PREPARE_MARGIN_MS_DEFAULT))
    assert RECEIVER.in_time(prepare.expires_at, NOW)
    assert not RECEIVER.in_time(prepare.expires_at, NOW + timedelta(microseconds=1))


def test_reject_names_the_service() -> None:
    """A Reject has the address of the service in `triggered_by`, and optional data."""
    assert RECEIVER.reject(ErrorCode.UNREACHABLE, "unknown") == Reject("F02", "test.bank", "unknown", b"")
    assert RECEIVER.reject(ErrorCode.AMOUNT_TOO_LARGE, "", b"8") == Reject("F08", "test.bank", "", b"8")


ILDCP_REQUEST = ildcp_request(NOW + timedelta(seconds=30))


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (Fulfill(bytes(32)), "F01 a packet of type 13 is not a Prepare, at byte 0"),
        (
            evolve(a_sender().prepare(1, expires_at=NOW), condition=bytes(32)),
            "R00 the packet has expired or is about to expire",
        ),
        (
            evolve(a_sender().prepare(1), destination="test.other.x"),
            "F02 the ILP address does not begin with the address of this service",
        ),
        (evolve(a_sender().prepare(1), data=b""), "F06 the data is not a STREAM packet encrypted for this payment"),
        (
            a_sender().prepare(1, kind=PacketType.FULFILL),
            "F06 the data is a STREAM packet for another type of ILP packet",
        ),
        (evolve(ILDCP_REQUEST, amount=1), "F03 an ILDCP request must have amount 0"),
        (
            evolve(ILDCP_REQUEST, condition=bytes(32)),
            "F05 an ILDCP request must have the condition of Interledger RFC 31",
        ),
    ],
    ids=lambda part: part[:3] if isinstance(part, str) else "",
)
def test_refusal_without_the_payment(packet: Prepare | Fulfill, answer: str) -> None:
    """A packet that is refused without the payment gets a reason, and no encrypted data."""
    opened = open_packet(encode(packet), peer=PEER, receiver=RECEIVER, nonce=NONCE, now=NOW)
    assert isinstance(opened, Reject)
    assert f"{opened.code} {opened.message}" == answer
    assert opened.data == b""


def test_encrypted_answers_have_an_empty_message() -> None:
    """The answers to a probe and to `ConnectionClose` reveal nothing to connectors on the route."""
    sender = a_sender()
    quoted = arrival(sender.probe(1)).quoted(a_creation().answer, NOW)
    closing = sender.probe(0, frames=[ConnectionClose(StreamError.NO_ERROR, "bye")])
    closed = open_packet(encode(closing), peer=PEER, receiver=RECEIVER, nonce=NONCE, now=NOW)
    for answer in (quoted, closed):
        assert isinstance(answer, Reject)
        assert (answer.code, answer.message) == ("F99", "")


@pytest.mark.parametrize(
    "frame",
    [
        StreamMoney(7, 1),
        StreamMaxMoney(7, 0, 0),
        StreamMoneyBlocked(7, 0, 0),
        StreamData(7, 0, b""),
        StreamMaxData(7, 0),
        StreamDataBlocked(7, 0),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_reply_has_totals_for_the_stream_of_each_frame(frame: Frame) -> None:
    """Each kind of frame that names an open stream makes the reply contain the totals of that stream."""
    sender = a_sender()
    fulfill = arrival(sender.prepare(0, frames=[frame])).fulfilled(a_creation(limit=1000).answer, NOW)
    assert sender.read(fulfill).frames == (StreamMaxMoney(7, 1000, 0),)


def test_repr_contains_no_secret() -> None:
    """The `repr` of an `Arrival` and a `Receiver` contains no keys and no fulfillment."""
    sender = a_sender()
    prepare = sender.prepare(1)
    opened = arrival(prepare)
    shown = repr(opened) + repr(RECEIVER)
    assert repr(opened) == (
        f"Arrival(payment_id={opened.payment_id!r}, peer={opened.peer!r}, amount={opened.amount}, "
        f"expires_at={opened.expires_at!r}, "
        f"request={opened.request}, condition={opened.condition!r})"
    )
    for secret in (sender.keys.fulfillment(prepare.data), sender.credentials.shared_secret, SECRET):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


def test_every_refusal_has_an_error_code() -> None:
    """Every refusal that a packet can meet is in the table, also a class that the host defines."""
    prepare = a_sender().prepare(1)
    host_refusal = type("Frozen", (PaymentRefused,), {})
    for refusal in (
        *PaymentRefused.__subclasses__(),
        PaymentNotFound,
        PolicyRefused,
        StoreError,
        PacketExpired,
        host_refusal,
    ):
        code, message = next(row for cls, row in REFUSALS.items() if issubclass(refusal, cls))
        assert isinstance(code, ErrorCode)
        made = refusal("", remaining=0) if refusal is AmountTooLarge else refusal("")
        reject = arrival(prepare).refused(made)
        assert (reject.code, reject.message) == (code, message)
    assert arrival(prepare).refused(host_refusal("")).code == arrival(prepare).refused(AmountOverflow("")).code == "F07"


def test_table_of_refusals() -> None:
    """The codes are those that senders need. The messages reveal no details to connectors on the route."""
    assert [(refusal.__name__, f"{code} {message}") for refusal, (code, message) in REFUSALS.items()] == [
        ("PaymentNotFound", "F02 the payment does not exist"),
        ("PacketExpired", "R00 the packet has expired or is about to expire"),
        ("AssetMismatch", "F07 the payment and the account of this peer have different assets"),
        ("PaymentCompleted", "F07 the payment is completed"),
        ("PaymentExpired", "F07 the payment has expired"),
        ("AmountTooLarge", "F08 the amount is more than the payment can still receive"),
        ("CreditIdReused", "F03 this packet was already received with another amount"),
        ("PolicyRefused", "F99 the receiver refuses this packet"),
        ("ApprovalPending", "T99 the receiver has not decided yet"),
        ("PaymentRefused", "F07 the payment cannot receive this packet"),
        ("PortUnavailable", "T00 try again later"),
        ("StoreError", "T00 try again later"),
    ]


def test_default_tolerance() -> None:
    """The default tolerance is the larger of one unit and one percent."""
    assert RECEIVER.tolerance == Tolerance(units=1, basis_points=100)
