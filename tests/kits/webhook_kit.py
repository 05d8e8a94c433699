"""Events, deliveries and senders for the tests of webhooks."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Delivery, FeedEvent, Lease, consumer_name
from incoming_payments.domain.payment import CreditId, PaymentId, WalletAddressUrl
from incoming_payments.outbound.webhooks import AsyncWebhookSender, WebhookEndpoint, WebhookSender

PAYMENT: Final = PaymentId("019b76da-a800-7000-8000-000000000000")
BEGIN: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
USD: Final = Asset("USD", 2)
SECRET: Final = "whsec_" + "c2VjcmV0" * 4  # 24 bytes
OTHER_SECRET: Final = "whsec_" + "b3RoZXIh" * 8  # 48 bytes


def an_event(version: int, kind: str, received: int, amount: int | None = None, **members: Any) -> FeedEvent:
    """Return an event. `amount` is the amount of its credit."""
    settings: dict[str, Any] = {
        "at": BEGIN,
        "wallet_address": WalletAddressUrl("https://bank.example/alice"),
        **members,
    }
    return FeedEvent(
        payment_id=PAYMENT,
        version=version,
        kind=EventKind(kind),
        received=Amount(received, USD),
        amount=None if amount is None else Amount(amount, USD),
        **settings,
    )


def a_credit(version: int, received: int, amount: int, **members: Any) -> FeedEvent:
    """Return a `credited` event."""
    members = {"credit_id": CreditId(f"wire-{version}"), **members}
    return an_event(version, "credited", received, amount, **members)


def a_delivery(endpoint: WebhookEndpoint, *events: FeedEvent) -> Delivery:
    """Return a delivery of `events` to `endpoint`."""
    events = events or (an_event(1, "created", 0),)
    return Delivery(
        consumer=consumer_name(endpoint.name),
        events=events,
        payload=endpoint.render(events),
        attempt=1,
        lease=Lease(b"lease"),
        leased_until=BEGIN + timedelta(minutes=1),
    )


def an_endpoint(url: str = "https://shop.example/hooks", **settings: Any) -> WebhookEndpoint:
    """Return an endpoint that may have a private address. Its credits wait for no other credits."""
    defaults = {"name": "shop", "url": url, "secrets": [SECRET], "allow_private": True, "credit_delay_s": 0}
    return WebhookEndpoint(**{**defaults, **settings})


class Sending:
    """Calls of a sync or an async sender."""

    def __init__(self, sender: Any) -> None:
        self.sender = sender
        self._runner = asyncio.Runner() if isinstance(sender, AsyncWebhookSender) else None

    def __call__(self, delivery: Delivery) -> None:
        """Send the webhook once."""
        if self._runner is None:
            self.sender(delivery)
        else:
            self._runner.run(self.sender(delivery))

    def close(self) -> None:
        """Close the sender."""
        if self._runner is None:
            self.sender.close()
        else:
            self._runner.run(self.sender.aclose())
            self._runner.close()


@contextmanager
def sending(
    cls: type[WebhookSender | AsyncWebhookSender], endpoint: WebhookEndpoint, **options: Any
) -> Iterator[Sending]:
    """Yield a sender to `endpoint`, and close it."""
    sender = Sending(cls(endpoint, **options))
    try:
        yield sender
    finally:
        sender.close()
