"""`ilp.receive`: the pure decisions. What comes of them in a service is in `flows/test_receive_packet.py`."""

from datetime import timedelta

import pytest
from attrs import evolve

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
from incoming_payments.ilp.packet import ErrorCode, Prepare, Reject, encode
from incoming_payments.ilp.receive import REFUSALS, Arrival, Receiver, open_packet
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
    late = open_packet(encode(prepare), peer=PEER, receiver=RECEIVER, nonce=NONCE, now=NOW)
    assert isinstance(late, Reject)
    assert arrival(prepare, Receiver(METHODS, margin_ms=0)).may_be_fulfilled


def test_nothing_secret_is_shown() -> None:
    """Neither keys nor fulfillments get into a log by way of a `repr`."""
    sender = a_sender()
    prepare = sender.prepare(1)
    shown = repr(arrival(prepare)) + repr(RECEIVER)
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


def test_default_tolerance() -> None:
    """One unit or one percent, what is more."""
    assert RECEIVER.tolerance == Tolerance(units=1, basis_points=100)
