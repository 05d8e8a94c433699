"""Make ILP Prepares as senders do in the middle of a payment, with one frame for the money."""

import os
from collections.abc import Sequence
from datetime import datetime, timedelta

from incoming_payments import DerivedMethods
from incoming_payments.domain.payment import PaymentId
from incoming_payments.ilp.packet import PacketType, Prepare, encode
from incoming_payments.ilp.stream import StreamKeys, StreamMoney, StreamPacket, condition_of


def prepares(
    methods: DerivedMethods, ids: Sequence[PaymentId], count: int, *, amount: int, now: datetime, first: int = 1
) -> list[bytes]:
    """Return `count` Prepares of `amount` each to the payments `ids` in turn. Sequence numbers begin with `first`."""
    credentials = [methods.derive(id) for id in ids]
    keys = [StreamKeys(each.shared_secret) for each in credentials]
    made = []
    for number in range(count):
        place, sequence = number % len(ids), first + number // len(ids)
        request = StreamPacket(PacketType.PREPARE, sequence, amount, [StreamMoney(1, 1)])
        data = keys[place].seal(request, nonce=os.urandom(12))
        condition = condition_of(keys[place].fulfillment(data))
        destination = credentials[place].ilp_address
        made.append(encode(Prepare(amount, now + timedelta(hours=1), condition, destination, data)))
    return made
