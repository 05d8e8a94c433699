"""The bodies of webhooks, and their JSON Schema."""

import json
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import FeedEvent
from incoming_payments.domain.payment import CreditId, WalletAddressUrl
from incoming_payments.endpoints.openapi import webhook_schema
from incoming_payments.limits import (
    ASSET_CODE_CHARS_MAX,
    CREDIT_ID_CHARS_MAX,
    DELIVERY_BYTES_MAX,
    DELIVERY_EVENTS_MAX,
    ILP_ADDRESS_CHARS_MAX,
    UINT64_MAX,
    URL_CHARS_MAX,
)
from incoming_payments.wire import write_webhook
from kits.openapi_kit import DOCUMENT
from kits.webhook_kit import BEGIN, PAYMENT, a_credit, an_event

SCHEMA: Final = webhook_schema()
CHECK: Final = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
THIN: Final = {"paymentId", "firstVersion", "lastVersion"}
LONG_URL: Final = "https://bank.example/".ljust(URL_CHARS_MAX, '"')
LONG_PEER: Final = "g.".ljust(ILP_ADDRESS_CHARS_MAX, "x")


def written(*events: FeedEvent, thin: bool = False) -> Any:
    """Return the body of a webhook, which the schema accepts."""
    body = json.loads(write_webhook(events, thin=thin))
    CHECK.validate(body)
    return body


def test_schema_is_valid() -> None:
    """The document is a JSON Schema, and its amounts are those of the OpenAPI document."""
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$defs"]["amount"] == DOCUMENT["components"]["schemas"]["amount"]
    assert SCHEMA["properties"]["type"]["enum"] == [f"payment.{kind}" for kind in EventKind]


def test_bounds_of_the_schema_are_the_limits() -> None:
    """Each bound of the schema is the limit of the library."""
    credits, state = (SCHEMA["$defs"][name]["properties"] for name in ("credits", "state"))
    assert (credits["creditCount"]["maximum"], credits["creditId"]["maxLength"], credits["peer"]["maxLength"]) == (
        DELIVERY_EVENTS_MAX,
        CREDIT_ID_CHARS_MAX,
        ILP_ADDRESS_CHARS_MAX,
    )
    assert state["walletAddress"]["maxLength"] == URL_CHARS_MAX


def test_examples_are_what_the_library_writes() -> None:
    """The schema has an example of each type, byte for byte as the library writes it."""
    at = BEGIN + timedelta(seconds=9)
    packets = [a_credit(v, 500 * (v - 1), 500, peer="g.peer", at=at) for v in range(3, 7)]
    bodies = [
        written(an_event(1, "created", 0)),
        written(a_credit(2, 500, 500, credit_id="wire-0007", at=BEGIN + timedelta(seconds=5.25))),
        written(*packets),
        written(an_event(7, "completed", 2500, at=at)),
        written(an_event(2, "expired", 0, at=BEGIN + timedelta(days=1)), thin=True),
    ]
    assert bodies == SCHEMA["examples"]
    assert {body["type"] for body in bodies} == set(SCHEMA["properties"]["type"]["enum"])


def test_joined_credits_have_sum_and_total() -> None:
    """A webhook for several credits has their number, their sum and the total, but the id of none."""
    data = written(a_credit(2, 300, 300), a_credit(3, 700, 400), a_credit(4, 1000, 300))["data"]
    assert (data["firstVersion"], data["lastVersion"], data["creditCount"]) == (2, 4, 3)
    assert (data["creditedAmount"]["value"], data["receivedAmount"]["value"]) == ("1000", "1000")
    assert "creditId" not in data


@pytest.mark.parametrize(
    ("peers", "peer"),
    [(["g.a"], "g.a"), (["g.a", "g.a"], "g.a"), (["g.a", "g.b"], None), (["g.a", None], None), ([None, "g.a"], None)],
)
def test_peer_is_named_if_it_owes_all_of_the_money(peers: list[str | None], peer: str | None) -> None:
    """If the credits came from several peers, or from another rail, the webhook names no peer."""
    events = [a_credit(version, 100 * version, 100, peer=peer) for version, peer in enumerate(peers, 2)]
    assert written(*events)["data"].get("peer") == peer


def test_timestamp_is_that_of_the_last_event() -> None:
    """The time of a webhook is the time of its last credit."""
    events = [a_credit(2, 300, 300), a_credit(3, 700, 400, at=BEGIN + timedelta(minutes=1))]
    assert written(*events)["timestamp"] == "2026-01-01T12:01:00Z"


@pytest.mark.parametrize("events", [[an_event(1, "created", 0)], [a_credit(2, 1, 1), a_credit(3, 2, 1, peer="g.a")]])
def test_thin_body_has_ids_and_versions_only(events: list[FeedEvent]) -> None:
    """A thin body names the payment and the versions, and no amount, wallet address or credit."""
    body = written(*events, thin=True)
    assert set(body) == {"type", "timestamp", "data"}
    assert set(body["data"]) == THIN


def test_largest_body_is_below_the_limit() -> None:
    """The longest values of each member fit, also when each character of the URL needs an escape."""
    asset = Asset("~" * ASSET_CODE_CHARS_MAX, 255)
    event = FeedEvent(
        payment_id=PAYMENT,
        version=2**53,
        kind=EventKind.CREDITED,
        at=BEGIN,
        wallet_address=WalletAddressUrl(LONG_URL),
        received=Amount(UINT64_MAX, asset),
        amount=Amount(UINT64_MAX, asset),
        credit_id=CreditId('"' * CREDIT_ID_CHARS_MAX),
        peer=LONG_PEER,
    )
    assert len(write_webhook([event])) < DELIVERY_BYTES_MAX / 2


@pytest.mark.parametrize(
    "change",
    [
        {"type": "incoming_payment.created"},
        {"type": "payment.completed"},
        {"timestamp": "yesterday"},
        {"data": {}},
        {"data": {"paymentId": PAYMENT, "firstVersion": 0, "lastVersion": 1}},
        {"data": {"paymentId": PAYMENT, "firstVersion": 2, "lastVersion": 2, "creditCount": 1}},
    ],
)
def test_schema_refuses_other_bodies(change: dict[str, Any]) -> None:
    """The check of the other tests can fail."""
    body = written(a_credit(2, 500, 500)) | change
    if change == {"type": "payment.completed"}:
        body["data"] = {**body["data"], "receivedAmount": 500}
    assert not CHECK.is_valid(body)


@given(
    amounts=st.lists(st.integers(1, UINT64_MAX // DELIVERY_EVENTS_MAX), min_size=1, max_size=20),
    first=st.integers(2, 2**31),
    peer=st.sampled_from([None, "g.a", LONG_PEER]),
    thin=st.booleans(),
)
def test_each_run_of_credits_has_a_valid_body(amounts: list[int], first: int, peer: str | None, thin: bool) -> None:
    """The sum of the body is the sum of the credits, and the schema accepts the body."""
    totals = [sum(amounts[: index + 1]) for index in range(len(amounts))]
    events = [
        a_credit(first + index, total, amount, peer=peer)
        for index, (total, amount) in enumerate(zip(totals, amounts, strict=True))
    ]
    data = written(*events, thin=thin)["data"]
    assert (data["firstVersion"], data["lastVersion"]) == (first, first + len(amounts) - 1)
    if not thin:
        assert int(data["creditedAmount"]["value"]) == sum(amounts) == int(data["receivedAmount"]["value"])
