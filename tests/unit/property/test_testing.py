"""Properties of `testing.sender`, for all amounts, packet sizes, and lost, delayed or repeated packets and answers."""

import random
from datetime import timedelta
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from incoming_payments.ilp.packet import ErrorCode, Reject, encode
from incoming_payments.testing.sender import Ending, Packet, Payee, StreamSender
from kits.stream_kit import Service

TEMPORARY_ERROR: Final = encode(Reject(ErrorCode.INTERNAL_ERROR, "test.bank", "try again later"))
STEPS_MAX: Final = 3000


@given(
    st.integers(0, 5000),
    st.none() | st.integers(1, 5000),
    st.integers(50, 3000),
    st.integers(1, 8),
    st.lists(
        st.sampled_from(["answer", "lose the packet", "lose the answer", "temporary error", "repeat"]), max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_sender_and_payment_have_the_same_total(
    amount: int, limit: int | None, packet_max: int, in_flight: int, fates: list[str], order: random.Random
) -> None:
    """When the sender has ended, its total is the received amount of the payment."""
    service = Service(limit=limit)
    now = service.now
    details = service.sender.credentials
    payee = Payee(details.ilp_address, details.shared_secret)
    sender = StreamSender(payee, amount, now=now, packet_max=packet_max, in_flight_max=in_flight, patience_s=10**6)
    in_flight_packets: list[Packet] = []
    for step in range(1, STEPS_MAX):
        if sender.has_ended:
            break
        packet = sender.next(now=now, nonce=step.to_bytes(12))
        if packet is not None:
            in_flight_packets.append(packet)
            continue
        if not in_flight_packets:
            assert sender.resumes_at is not None
            now = sender.resumes_at
            continue
        packet = in_flight_packets.pop(order.randrange(len(in_flight_packets)))
        fate = fates.pop() if fates else "answer"
        reply = TEMPORARY_ERROR if fate in ("lose the packet", "temporary error") else service.answer(packet.octets)
        if fate == "repeat":
            reply = service.answer(packet.octets)
        if fate.startswith("lose"):
            sender.lost(packet, now=now)
        else:
            sender.answered(packet, reply, now=now)
        now += timedelta(milliseconds=1)

    totals = sender.totals
    assert sender.has_ended
    assert (totals.sent, totals.delivered, totals.unknown) == (service.received, service.received, 0)
    tolerance = 0 if limit is None else max(1, limit // 100)
    accepted_max = amount if limit is None else min(amount, limit + tolerance)
    assert totals.delivered <= accepted_max
    assert totals.ending is (Ending.DONE if totals.delivered == amount else Ending.CLOSED)
    if totals.ending is Ending.CLOSED:
        assert limit is not None
        assert totals.delivered >= limit
