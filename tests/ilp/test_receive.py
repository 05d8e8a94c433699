"""`ilp.receive`: the pure decisions. What comes of them in a service is in `flows/test_receive_packet.py`."""

from datetime import timedelta

import pytest
from attrs import evolve

from frozen_values import assert_frozen
from incoming_payments.domain.lifecycle import Tolerance
from incoming_payments.errors import (
    AmountOverflow,
    AmountTooLarge,
    InvalidValue,
    MalformedAddress,
    PacketExpired,
    PaymentNotFound,
    PaymentRefused,
    PolicyRefused,
    StoreError,
)
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.ildcp import ildcp_request
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
from incoming_payments.limits import PREPARE_MARGIN_MS_MIN, STREAM_KEYS_REMEMBERED_MAX
from incoming_payments.testing import NOW, a_creation
from stream_kit import METHODS, PEER, SECRET, Sender

RECEIVER = Receiver(METHODS)
NONCE = bytes(12)


def a_sender() -> Sender:
    return Sender(METHODS.derive(a_creation().answer.id))


def arrival(prepare: Prepare, receiver: Receiver = RECEIVER) -> Arrival:
    """What `prepare` is, when it is for a payment."""
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
def test_may_be_fulfilled(prepare: Prepare, may_be_fulfilled: bool) -> None:
    """It is an offer when the condition is ours, and the amount enough."""
    assert arrival(prepare).may_be_fulfilled is may_be_fulfilled


def test_what_is_no_question_of_money_is_never_fulfilled() -> None:
    """A probe cannot be fulfilled, not even by a mistake of ours, whether assertions are on or off."""
    probe = arrival(a_sender().probe(1))
    with pytest.raises((AssertionError, InvalidValue)):
        probe.fulfilled(a_creation().answer, NOW)
    assert_frozen(probe)


def test_credit_id_is_that_of_the_data() -> None:
    """Amount and expiry, which connectors change, have no part in it; data and payment have."""
    sender = a_sender()
    prepare = sender.prepare(400)
    id = arrival(prepare).credit_id
    assert arrival(evolve(prepare, amount=1)).credit_id == id
    assert arrival(evolve(prepare, expires_at=NOW + timedelta(hours=1))).credit_id == id
    assert arrival(sender.prepare(400)).credit_id != id
    assert arrival(a_sender().prepare(400, sequence=1)).credit_id != id
    assert len(id) == 68


def test_receiver_remembers_a_bounded_number_of_addresses() -> None:
    """What was derived for an address is kept, for so many of them; an address of nobody's is not kept at all."""
    receiver = Receiver(METHODS)
    address = a_sender().credentials.ilp_address
    assert receiver.find(address)[1] is receiver.find(address)[1]
    with pytest.raises(MalformedAddress):
        receiver.find("test.bank.x")
    info = receiver.find.cache_info()  # type: ignore[attr-defined] # of the lru_cache that it is
    assert (info.currsize, info.maxsize) == (1, STREAM_KEYS_REMEMBERED_MAX)


def test_a_receiver_is_its_settings() -> None:
    """Two with the same are equal; what it remembers is neither compared, nor shown, nor given."""
    receiver = Receiver(METHODS)
    receiver.find(a_sender().credentials.ilp_address)
    assert receiver == RECEIVER
    assert repr(receiver) == f"Receiver(methods={METHODS}, tolerance={Tolerance()}, margin_ms={PREPARE_MARGIN_MS_MIN})"
    with pytest.raises(TypeError):
        Receiver(METHODS, find=receiver.find)  # type: ignore[call-arg] # on purpose
    with pytest.raises(TypeError):
        Receiver(METHODS, margin=timedelta(0))  # type: ignore[call-arg] # on purpose
    assert_frozen(receiver)


def test_receivers_with_other_secrets_remember_apart() -> None:
    """Two receivers never read each other's addresses."""
    sender = a_sender()
    arrival(sender.prepare(1))
    stranger = Receiver(DerivedMethods("test.bank", [bytes(32)]))
    opened = open_packet(encode(sender.prepare(1)), peer=PEER, receiver=stranger, nonce=NONCE, now=NOW)
    assert isinstance(opened, Reject)
    assert opened.code == ErrorCode.UNREACHABLE


@pytest.mark.parametrize("margin_ms", [-1, 1.0, True, None])
def test_margin_is_a_count(margin_ms: object) -> None:
    """A margin is a whole number of milliseconds, not below zero."""
    with pytest.raises(InvalidValue) as caught:
        Receiver(METHODS, margin_ms=margin_ms)
    assert caught.value.details == {"member": "margin_ms"}


def test_margin() -> None:
    """A packet needs the margin that the service says, and none for a service that wants none."""
    prepare = a_sender().prepare(1, expires_at=NOW + timedelta(milliseconds=PREPARE_MARGIN_MS_MIN - 1))
    late = arrival(prepare)
    with pytest.raises(PacketExpired):
        late.decide(late.credit_id, lambda: NOW)(a_creation().answer, None)
    assert arrival(prepare, Receiver(METHODS, margin_ms=0)).may_be_fulfilled


def test_just_in_time() -> None:
    """What has exactly the margin left has enough, and not a microsecond less."""
    prepare = a_sender().prepare(1, expires_at=NOW + timedelta(milliseconds=PREPARE_MARGIN_MS_MIN))
    assert RECEIVER.in_time(prepare.expires_at, NOW)
    assert not RECEIVER.in_time(prepare.expires_at, NOW + timedelta(microseconds=1))


def test_rejects_are_in_the_name_of_the_service() -> None:
    """With data only where there is some."""
    assert RECEIVER.reject(ErrorCode.UNREACHABLE, "nobody") == Reject("F02", "test.bank", "nobody", b"")
    assert RECEIVER.reject(ErrorCode.AMOUNT_TOO_LARGE, "", b"8") == Reject("F08", "test.bank", "", b"8")


QUESTION = ildcp_request(NOW + timedelta(seconds=30))


@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (Fulfill(bytes(32)), "F01 a packet of type 13 is not a Prepare, at byte 0"),
        (
            evolve(a_sender().prepare(1, expires_at=NOW), condition=bytes(32)),
            "R00 the packet has expired, or is about to",
        ),
        (evolve(a_sender().prepare(1), destination="test.other.x"), "F02 the ILP address is not below this service's"),
        (evolve(a_sender().prepare(1), data=b""), "F06 the data is no STREAM packet for this payment"),
        (a_sender().prepare(1, kind=PacketType.FULFILL), "F06 the data does not belong on a Prepare"),
        (evolve(QUESTION, amount=1), "F03 to be told one's address costs nothing"),
        (evolve(QUESTION, condition=bytes(32)), "F05 the condition is not that of RFC 31"),
    ],
    ids=lambda part: part[:3] if isinstance(part, str) else "",
)
def test_what_is_wrong_with_a_packet_is_said(packet: Prepare | Fulfill, answer: str) -> None:
    """What is refused without a look at the payment says why, and nothing about a payment."""
    opened = open_packet(encode(packet), peer=PEER, receiver=RECEIVER, nonce=NONCE, now=NOW)
    assert isinstance(opened, Reject)
    assert f"{opened.code} {opened.message}" == answer
    assert opened.data == b""


def test_what_is_said_to_the_sender_alone_has_no_words_for_others() -> None:
    """The answers to a question and to a goodbye: who carries them learns nothing from their messages."""
    sender = a_sender()
    quoted = arrival(sender.probe(1)).quoted(a_creation().answer, NOW)
    goodbye = sender.probe(0, frames=[ConnectionClose(StreamError.NO_ERROR, "bye")])
    closed = open_packet(encode(goodbye), peer=PEER, receiver=RECEIVER, nonce=NONCE, now=NOW)
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
def test_who_speaks_of_a_stream_hears_of_it(frame: Frame) -> None:
    """Every frame about a stream that is open makes the reply one about that stream."""
    sender = a_sender()
    fulfill = arrival(sender.prepare(0, frames=[frame])).fulfilled(a_creation(limit=1000).answer, NOW)
    assert sender.read(fulfill).frames == (StreamMaxMoney(7, 1000, 0),)


def test_nothing_secret_is_shown() -> None:
    """Neither keys nor fulfillments get into a log by way of a `repr`."""
    sender = a_sender()
    prepare = sender.prepare(1)
    came = arrival(prepare)
    shown = repr(came) + repr(RECEIVER)
    assert repr(came) == (
        f"Arrival(payment_id={came.payment_id!r}, peer={came.peer!r}, amount={came.amount}, "
        f"expires_at={came.expires_at!r}, "
        f"request={came.request}, condition={came.condition!r})"
    )
    for secret in (sender.keys.fulfillment(prepare.data), sender.credentials.shared_secret, SECRET):
        assert repr(secret)[2:-1] not in shown
        assert secret.hex() not in shown


def test_every_refusal_has_its_code() -> None:
    """Each that a packet can meet is in the table, one of a host's own as well."""
    prepare = a_sender().prepare(1)
    own = type("Frozen", (PaymentRefused,), {})
    for refusal in (*PaymentRefused.__subclasses__(), PaymentNotFound, PolicyRefused, StoreError, PacketExpired, own):
        code, message = next(row for cls, row in REFUSALS.items() if issubclass(refusal, cls))
        assert isinstance(code, ErrorCode)
        made = refusal("", remaining=0) if refusal is AmountTooLarge else refusal("")
        reject = arrival(prepare).refused(made)
        assert (reject.code, reject.message) == (code, message)
    assert arrival(prepare).refused(own("")).code == arrival(prepare).refused(AmountOverflow("")).code == "F07"


def test_what_refusals_are_to_a_sender() -> None:
    """The codes that senders need, and words that tell nothing to those on the way who read them."""
    assert [(refusal.__name__, f"{code} {message}") for refusal, (code, message) in REFUSALS.items()] == [
        ("PaymentNotFound", "F02 there is no such payment"),
        ("PacketExpired", "R00 the packet has expired, or is about to"),
        ("AssetMismatch", "F07 the payment is in another asset than the account with this peer"),
        ("PaymentCompleted", "F99 the payment is completed"),
        ("PaymentExpired", "F99 the payment has expired"),
        ("AmountTooLarge", "F08 the payment cannot take so much"),
        ("CreditIdReused", "F03 this packet came before, with another amount"),
        ("PolicyRefused", "F07 the receiver does not take this payment"),
        ("PaymentRefused", "F07 the payment cannot take this"),
        ("StoreError", "T00 try again later"),
    ]


def test_default_tolerance() -> None:
    """One unit or one percent, what is more."""
    assert RECEIVER.tolerance == Tolerance(units=1, basis_points=100)
