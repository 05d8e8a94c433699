"""`testing`: the sender, over all amounts and sizes, and all that can happen to its packets and their answers."""

import random
from datetime import timedelta
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from incoming_payments.ilp.packet import ErrorCode, Reject, encode
from incoming_payments.testing.sender import Ending, Packet, Payee, StreamSender
from stream_kit import Service

TROUBLE: Final = encode(Reject(ErrorCode.INTERNAL_ERROR, "test.bank", "try again later"))
STEPS_MAX: Final = 3000


@given(
    st.integers(0, 5000),
    st.none() | st.integers(1, 5000),
    st.integers(50, 3000),
    st.integers(1, 8),
    st.lists(st.sampled_from(["answer", "lose the packet", "lose the answer", "trouble", "again"]), max_size=40),
    st.randoms(use_true_random=False),
)
def test_both_books_agree(
    amount: int, limit: int | None, packet_max: int, in_flight: int, fates: list[str], order: random.Random
) -> None:
    """Whatever packets and answers are lost, delayed or repeated, in the end the payer's books are the payee's."""
    service = Service(limit=limit)
    now = service.now
    details = service.sender.credentials
    payee = Payee(details.ilp_address, details.shared_secret)
    sender = StreamSender(payee, amount, now=now, packet_max=packet_max, in_flight_max=in_flight, patience_s=10**6)
    under_way: list[Packet] = []
    for step in range(1, STEPS_MAX):
        if sender.is_over:
            break
        packet = sender.next(now=now, nonce=step.to_bytes(12))
        if packet is not None:
            under_way.append(packet)
            continue
        if not under_way:
            assert sender.resumes_at is not None
            now = sender.resumes_at
            continue
        packet = under_way.pop(order.randrange(len(under_way)))
        fate = fates.pop() if fates else "answer"
        reply = TROUBLE if fate in ("lose the packet", "trouble") else service.answer(packet.octets)
        if fate == "again":
            reply = service.answer(packet.octets)
        if fate.startswith("lose"):
            sender.lost(packet, now=now)
        else:
            sender.answered(packet, reply, now=now)
        now += timedelta(milliseconds=1)

    books = sender.books
    assert sender.is_over
    assert (books.sent, books.delivered, books.unknown) == (service.received, service.received, 0)
    tolerance = 0 if limit is None else max(1, limit // 100)
    takes = amount if limit is None else min(amount, limit + tolerance)
    assert books.delivered <= takes
    assert books.ending is (Ending.DONE if books.delivered == amount else Ending.CLOSED)
    if books.ending is Ending.CLOSED:
        assert limit is not None
        assert books.delivered >= limit
