"""`incoming-payments list` and `show`: the payments of the database, for operators."""

import itertools
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.feed import DeliveryRecord
from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import IncomingPayment, client_id, wallet_address_url
from incoming_payments.ports.clock import utc_now
from incoming_payments.server.config.settings import Settings
from incoming_payments.server.database import opened
from incoming_payments.server.report import Row, print_json, print_table
from incoming_payments.wire import write_date_time

_LISTED: Final = ("id", "createdAt", "state", "walletAddress", "client", "incomingAmount", "receivedAmount")
_CREDIT: Final = ("at", "creditId", "amount", "receivedAmount", "peer")
_EVENT: Final = ("version", "at", "kind", "receivedAmount")
DELIVERY: Final = ("consumer", "id", "state", "attempts", "createdAt", "dueAt", "endedAt", "error")


def list_payments(
    settings: Settings, *, wallet_address: str | None, client: str | None, state: str | None, limit: int, as_json: bool
) -> int:
    """Print the newest payments that have the given properties, and return the exit status.

    Raises `InvalidValue` for an invalid argument, `ConfigurationError` when the database cannot be opened, and
    `StoreError` when it fails.
    """
    now = utc_now()
    query = PaymentQuery(
        now=now,
        limit=limit,
        wallet_address=None if wallet_address is None else wallet_address_url(wallet_address),
        client=None if client is None else client_id(client),
        state=state,
    )
    with opened(settings, "to list") as store:
        rows = [_payment(payment, now) for payment in store.find_payments(query)]
    if as_json:
        print_json(rows)
    else:
        print_table(f"{len(rows)} payments, newest first", _LISTED, [_with_amounts(row) for row in rows])
    return 0


def show(settings: Settings, *, id: str, as_json: bool) -> int:
    """Print a payment with its credits, events and deliveries, and return the exit status.

    `id` is its id or its URL. Raises the errors of `list_payments`, and `PaymentNotFound`.
    """
    wanted = settings.policy.payment_id(id)
    with opened(settings, "to read") as store:
        payment, events, deliveries = store.load(wanted), store.events(wanted), store.feed.deliveries(wanted)
    parts = {
        "credits": (_CREDIT, _credits(events)),
        "events": (_EVENT, [_event(event) for event in events]),
        "deliveries": (DELIVERY, [delivery_row(delivery) for delivery in deliveries]),
    }
    row = _payment(payment, utc_now())
    if as_json:
        print_json({"payment": row} | {name: rows for name, (_, rows) in parts.items()})
        return 0
    members = [{"member": name, "value": value} for name, value in _with_amounts(row).items()]
    print_table("payment", ("member", "value"), members)
    for name, (columns, rows) in parts.items():
        print_table(name, columns, [_with_amounts(row) for row in rows])
    return 0


def _payment(payment: IncomingPayment, now: datetime) -> Row:
    metadata = payment.terms.metadata
    return {
        "id": payment.id,
        "walletAddress": payment.wallet_address,
        "client": payment.client,
        "state": state_of(payment, now).value,
        "incomingAmount": _amount(payment.limit),
        "receivedAmount": _amount(payment.received),
        "createdAt": write_date_time(payment.created_at),
        "updatedAt": write_date_time(payment.updated_at),
        "expiresAt": time_text(payment.expires_at),
        "version": payment.version,
        "metadata": None if metadata is None else json.loads(metadata),
    }


def _credits(events: Sequence[Event]) -> list[Row]:
    """Return the credits, each of which has one `credited` event. The amount is the difference of the totals."""
    return [
        {
            "at": write_date_time(event.at),
            "creditId": event.credit_id,
            "amount": _amount(Amount(event.received.value - before.received.value, event.received.asset)),
            "receivedAmount": _amount(event.received),
            "peer": event.peer,
        }
        for before, event in itertools.pairwise(events)
        if event.kind is EventKind.CREDITED
    ]


def _event(event: Event) -> Row:
    return {
        "version": event.version,
        "at": write_date_time(event.at),
        "kind": event.kind.value,
        "receivedAmount": _amount(event.received),
    }


def delivery_row(delivery: DeliveryRecord) -> Row:
    """Return a delivery without its payload."""
    return {
        "consumer": delivery.consumer,
        "id": delivery.id,
        "paymentId": delivery.payment_id,
        "firstVersion": delivery.first_version,
        "lastVersion": delivery.last_version,
        "state": "open" if delivery.ending is None else delivery.ending.value,
        "attempts": delivery.attempts,
        "createdAt": write_date_time(delivery.created_at),
        "dueAt": time_text(delivery.due_at),
        "endedAt": time_text(delivery.ended_at),
        "error": delivery.error,
    }


def time_text(time: datetime | None) -> str | None:
    """Return a time as text, or `None`."""
    return None if time is None else write_date_time(time)


def _amount(amount: Amount | None) -> Row | None:
    if amount is None:
        return None
    return {"value": str(amount.value), "assetCode": amount.asset.code, "assetScale": amount.asset.scale}


def _with_amounts(row: Row) -> Row:
    """Return the row of a table, in which amounts are short: `2500 USD/2` is 25.00 USD."""
    return {
        name: f"{value['value']} {value['assetCode']}/{value['assetScale']}"
        if isinstance(value, dict) and name.lower().endswith("amount")
        else value
        for name, value in row.items()
    }
