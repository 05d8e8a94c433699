"""The sender splits an amount into packets, reacts to each reply, and ends with the same total as the payment."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.errors import InvalidValue
from incoming_payments.ilp.packet import Fulfill, PacketType, Reject, encode, write_amounts
from incoming_payments.ilp.stream import ConnectionClose, StreamClose, condition_of
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing import NOW
from incoming_payments.testing.sender import Ending, Packet, Payee, Quote, SenderTotals
from kits.sender_kit import PAYEE, TIMEOUT, ManualSender, fulfillment, payee_of, rejection, sealed
from kits.stream_kit import Service

# --- the payee and the amounts ------------------------------------------------------------------------------


def test_a_payee_is_read_from_the_resource() -> None:
    """The ilp method is used, other methods are ignored, and `repr` does not contain the secret."""
    ilp = {"type": "ilp", "ilpAddress": "test.bank.abc", "sharedSecret": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"}
    payee = Payee.of({"methods": [{"type": "other"}, ilp]})

    assert payee == PAYEE
    assert "secret" not in repr(payee)


@pytest.mark.parametrize("resource", [{}, {"methods": []}, {"methods": [{"type": "other"}]}])
def test_a_resource_without_an_ilp_method_has_no_payee(resource: dict[str, Any]) -> None:
    """Such a payment is completed or expired, and the error says so."""
    with pytest.raises(
        InvalidValue, match="methods contains no ilp method, because the payment is completed or expired:"
    ):
        Payee.of(resource)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": -1}, "amount must be an integer from 0 to 18446744073709551615, not -1"),
        ({"amount": True}, "amount must be"),
        ({"amount": UINT64_MAX + 1}, "amount must be"),
        ({"amount": 1, "probe": -1}, "probe must be an integer from 0"),
        ({"amount": 1, "packet_max": 0}, "packet_max must be an integer from 1"),
        ({"amount": 1, "in_flight_max": 0}, "in_flight_max must be an integer from 1 to 64"),
        ({"amount": 1, "in_flight_max": 65}, "in_flight_max must be an integer from 1 to 64"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    """Amounts and limits are checked before the first packet."""
    with pytest.raises(InvalidValue, match=message):
        ManualSender(**options)


# --- sending -----------------------------------------------------------------------------------------


def test_the_first_packet_is_a_probe() -> None:
    """No receiver can fulfil the probe, and no other packet is sent before the answer to it."""
    service = Service(limit=2500)
    manual = ManualSender(3000, payee_of(service))
    probe = manual.next()
    assert (probe.probe, probe.prepare.amount, manual.has_next()) == (True, 3000, False)
    assert condition_of(service.sender.keys.fulfillment(probe.prepare.data)) != probe.prepare.condition

    manual.answer(probe, service.answer(probe.octets))
    assert manual.sender.quote == Quote(3000, 3000, 2500, 0, Asset("USD", 2))
    assert service.received == 0


def test_a_quote_without_frames_has_defaults() -> None:
    """If the receiver reports no limit and no asset, the quote has the largest amount and `None`."""
    assert ManualSender(3000).quoted().sender.quote == Quote(3000, 3000, UINT64_MAX, 0, None)


def test_packets_in_flight_are_limited() -> None:
    """Unanswered packets count, and the sum of all packets is the amount."""
    manual = ManualSender(100, packet_max=40, in_flight_max=2).quoted()
    first, second = manual.next(), manual.next()
    assert not manual.has_next()
    manual.answer(second, fulfillment(second))
    third = manual.next()
    assert [packet.prepare.amount for packet in (first, second, third)] == [40, 40, 20]
    manual.answer(third, fulfillment(third))
    assert (manual.has_next(), manual.totals.ending, manual.sender.has_ended) == (False, None, False)
    manual.answer(first, fulfillment(first))
    assert (manual.has_next(), manual.totals.ending, manual.sender.has_ended) == (False, Ending.DONE, True)


# --- replies -----------------------------------------------------------------------------------------

REFUSALS: Final[dict[str, tuple[Callable[[Packet], Reject], Ending, str]]] = {
    "unreachable": (lambda _: rejection("F02", message="no route"), Ending.REFUSED, "F02 no route"),
    "unknown code": (lambda _: rejection("F42"), Ending.REFUSED, "F42"),
    "no STREAM packet": (lambda _: rejection("F99"), Ending.REFUSED, "F99"),
    "answer to another packet": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, sequence=99)),
        Ending.REFUSED,
        "F99",
    ),
    "wrong packet type": (
        lambda packet: rejection("F99", sealed(packet, PacketType.FULFILL)),
        Ending.REFUSED,
        "F99",
    ),
    "less arrived": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, amount=9)),
        Ending.REFUSED,
        "only 9 of the 10 units of a packet arrived",
    ),
    "stream closed": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, StreamClose(1, 1, "")), "closed"),
        Ending.CLOSED,
        "closed",
    ),
    "payment closed": (
        lambda packet: rejection("F07", sealed(packet, PacketType.REJECT, StreamClose(1, 1, "")), "completed"),
        Ending.CLOSED,
        "completed",
    ),
    "cannot receive": (
        lambda packet: rejection("F07", sealed(packet, PacketType.REJECT), "another asset"),
        Ending.REFUSED,
        "F07 another asset",
    ),
    "connection closed": (
        lambda packet: rejection("F99", sealed(packet, PacketType.REJECT, ConnectionClose(1, ""))),
        Ending.CLOSED,
        "",
    ),
    "no capacity": (lambda _: rejection("F08", write_amounts(10, 0), "full"), Ending.REFUSED, "F08 full"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_final_refusal_ends_the_sender(case: str) -> None:
    """The totals contain the reason. The other packets in flight still count when they are answered."""
    reply, ending, reason = REFUSALS[case]
    manual = ManualSender(100, packet_max=10).quoted()
    refused, other = manual.next(), manual.next()
    manual.answer(refused, reply(refused))

    assert (manual.totals.ending, manual.totals.reason) == (ending, reason)
    assert (manual.has_next(), manual.sender.has_ended) == (False, False)
    manual.answer(other, fulfillment(other))
    assert (manual.totals.delivered, manual.sender.has_ended, manual.totals.ending) == (10, True, ending)


@pytest.mark.parametrize(
    ("data", "amounts"),
    [
        (write_amounts(100, 30), [30, 30, 30, 10]),
        (write_amounts(1000, 300), [30, 30, 30, 10]),  # in the units of another asset
        (b"", [50, 50]),  # without amounts: half
        (write_amounts(0, 5), [50, 50]),  # the maximum is not smaller: half
        (write_amounts(1, 5), [50, 50]),
        (write_amounts(5, 5), [50, 50]),
    ],
)
@pytest.mark.parametrize("probing", [True, False])
def test_f08_reduces_the_packet_size(data: bytes, amounts: list[int], probing: bool) -> None:
    """The new size is always smaller than the refused packet, for the probe and for packets with money."""
    manual = ManualSender(100) if probing else ManualSender(100).quoted()
    large = manual.next()
    manual.answer(large, rejection("F08", data))
    if probing:
        assert manual.quoted().sender.quote == Quote(amounts[0], amounts[0], UINT64_MAX, 0, None)
    packets = []
    while manual.totals.ending is None:
        packets.append(manual.next())
        manual.answer(packets[-1], fulfillment(packets[-1]))
    assert [packet.prepare.amount for packet in packets] == amounts


REPEATED: Final[dict[str, Callable[[Packet], bytes]]] = {
    "temporary error": lambda _: encode(rejection("T00", message="try again later")),
    "timed out": lambda _: encode(rejection("R00")),
    "not an ILP packet": lambda _: b"<html>",
    "wrong fulfillment": lambda packet: encode(Fulfill(bytes(32), sealed(packet, PacketType.FULFILL))),
}


@pytest.mark.parametrize("case", REPEATED)
@pytest.mark.parametrize("probing", [True, False])
def test_an_unanswered_packet_is_repeated(case: str, probing: bool) -> None:
    """Only the expiry changes. The pauses between repeats double, up to one second."""
    manual = ManualSender(100) if probing else ManualSender(100).quoted()
    first = manual.next()
    pauses = []
    for _ in range(7):
        manual.answer(first, REPEATED[case](first))
        assert not manual.has_next()
        resumes_at = manual.sender.resumes_at
        assert resumes_at is not None
        pauses.append((resumes_at - manual.now).total_seconds())
        manual.now = resumes_at
        again = manual.next()
        assert (again.prepare.data, again.prepare.condition) == (first.prepare.data, first.prepare.condition)
        assert again.prepare.expires_at - first.prepare.expires_at == timedelta(seconds=pauses[-1])
        first = again
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert (manual.totals.repeats, manual.sender.resumes_at) == (7, None)


def test_a_second_answer_is_ignored() -> None:
    """The totals do not change, for each kind of answer."""
    manual = ManualSender(100, packet_max=50).quoted()
    packet = manual.next()
    manual.answer(packet, fulfillment(packet))
    totals = manual.totals
    for reply in (fulfillment(packet), rejection("F02"), rejection("T00")):
        manual.answer(packet, reply)
        assert (manual.totals, manual.sender.resumes_at) == (totals, None)


def test_a_packet_answered_late_is_not_repeated() -> None:
    """The answer cancels the repeat of a packet that was reported lost."""
    manual = ManualSender(100, packet_max=50).quoted()
    packet = manual.next()
    manual.sender.lost(packet, now=manual.now)
    manual.sender.lost(packet, now=manual.now)
    manual.answer(packet, fulfillment(packet))
    manual.now += timedelta(seconds=1)
    assert (manual.totals.sent, manual.sender.resumes_at, manual.next().sequence) == (50, None, packet.sequence + 1)


def test_a_fulfill_without_a_stream_packet_ends_the_sender() -> None:
    """The receiver does not follow STREAM, so the sender sends no more money to it."""
    manual = ManualSender(100, packet_max=50).quoted()
    packet = manual.next()
    manual.answer(packet, fulfillment(packet, b""))

    assert (manual.totals.sent, manual.totals.delivered, manual.totals.ending) == (50, 0, Ending.REFUSED)
    assert manual.totals.reason == "the Fulfill does not contain the STREAM packet that reports the received amount"


# --- the timeout ---------------------------------------------------------------------------------------


def test_the_sender_ends_after_the_timeout() -> None:
    """A lost packet becomes `unknown`. A packet that is still in flight counts when it is answered."""
    manual = ManualSender(100, packet_max=10, in_flight_max=3).quoted()
    first, second, third = manual.next(), manual.next(), manual.next()
    manual.sender.lost(first, now=NOW)
    manual.now += TIMEOUT
    manual.answer(second, rejection("T00", message="try again later"))
    expected = SenderTotals(100, unknown=10, ending=Ending.TIMEOUT, reason="T00 try again later")
    assert (expected, manual.sender.has_ended) == (manual.totals, False)
    manual.sender.lost(manual.next(), now=manual.now)
    assert (manual.totals.unknown, manual.sender.has_ended) == (20, False)
    manual.answer(third, fulfillment(third))
    assert (manual.totals.unknown, manual.totals.delivered, manual.sender.has_ended) == (20, 10, True)


def test_each_fulfilled_packet_restarts_the_timeout() -> None:
    """A packet that is lost after a fulfilled packet is repeated."""
    manual = ManualSender(100, packet_max=10).quoted()
    first, second = manual.next(), manual.next()
    manual.now += TIMEOUT - timedelta(seconds=1)
    manual.answer(first, fulfillment(first))
    manual.now += timedelta(seconds=2)
    manual.sender.lost(second, now=manual.now)
    assert (manual.totals.ending, manual.totals.unknown) == (None, 0)


def test_repeated_f08_leads_to_the_timeout() -> None:
    """The timeout ends the sender if the receiver refuses each packet as too large."""
    manual = ManualSender(UINT64_MAX).quoted()
    manual.now += TIMEOUT - timedelta(seconds=1)
    manual.answer(manual.next(), rejection("F08"))
    assert manual.has_next()
    manual.now += timedelta(seconds=1)
    manual.answer(manual.next(), rejection("F08", message="still too much"))
    assert (manual.totals.ending, manual.totals.reason) == (Ending.TIMEOUT, "F08 still too much")


def test_an_unanswered_probe_leads_to_the_timeout() -> None:
    """No amount is `unknown`, because a probe moves no money."""
    manual = ManualSender(100)
    probe = manual.next()
    manual.now += TIMEOUT
    manual.sender.lost(probe, now=manual.now)
    assert (manual.totals, manual.sender.has_ended) == (SenderTotals(100, ending=Ending.TIMEOUT), True)


def test_stop_ends_the_sender_at_once() -> None:
    """The packets in flight become `unknown`, and later answers to them are ignored."""
    manual = ManualSender(100, packet_max=10).quoted()
    first, second = manual.next(), manual.next()
    manual.sender.lost(first, now=manual.now)
    manual.sender.stop("enough")
    manual.now += timedelta(seconds=1)
    manual.sender.lost(first, now=manual.now)
    manual.answer(second, fulfillment(second))
    assert not manual.has_next()
    assert manual.totals == SenderTotals(100, unknown=20, ending=Ending.REFUSED, reason="enough")
    assert (manual.sender.has_ended, manual.sender.resumes_at) == (True, None)
