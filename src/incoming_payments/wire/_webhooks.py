"""The body of a webhook, as Standard Webhooks recommends it: `{"type", "timestamp", "data"}`.

`endpoints/webhooks.json` is the JSON Schema of these bodies.
"""

from collections.abc import Sequence
from typing import Any

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import FeedEvent
from incoming_payments.wire._json import write_json
from incoming_payments.wire._values import write_amount, write_date_time


def write_webhook(events: Sequence[FeedEvent], *, thin: bool = False) -> bytes:
    """Return the body of a webhook for the `events` of one delivery: one event, or consecutive `credited` events.

    A thin body has only the type, the time, the id of the payment and the versions. Each body is smaller than
    `limits.DELIVERY_BYTES_MAX`, because it names at most one credit.
    """
    return write_json(webhook(events, thin=thin))


def webhook(events: Sequence[FeedEvent], *, thin: bool = False) -> dict[str, Any]:
    """Return the body of `write_webhook` as a JSON object."""
    last = events[-1]
    data: dict[str, Any] = {
        "paymentId": last.payment_id,
        "firstVersion": events[0].version,
        "lastVersion": last.version,
    }
    if not thin:
        data |= {"walletAddress": last.wallet_address, "receivedAmount": write_amount(last.received)}
        data |= _credits(events) if last.kind is EventKind.CREDITED else {}
    return {"type": f"payment.{last.kind}", "timestamp": write_date_time(last.at), "data": data}


def _credits(events: Sequence[FeedEvent]) -> dict[str, Any]:
    """Return the number and the sum of the credits, the id of a single credit, and the peer that owes all of them."""
    total = sum(event.amount.value for event in events if event.amount is not None)
    members: dict[str, Any] = {
        "creditCount": len(events),
        "creditedAmount": write_amount(Amount(total, events[0].received.asset)),
    }
    if len(events) == 1 and events[0].credit_id is not None:
        members["creditId"] = events[0].credit_id
    if (peer := events[0].peer) is not None and all(event.peer == peer for event in events):
        members["peer"] = peer
    return members
