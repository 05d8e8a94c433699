"""Property tests of `wire`: every input is parsed or raises `MalformedJson`, and no other exception."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.payment import wallet_address_url
from incoming_payments.errors import InvalidValue, MalformedJson
from incoming_payments.wire import (
    CreateRequest,
    parse_date_time,
    peek_wallet_address,
    read_create_request,
    read_json,
    write_date_time,
    write_json,
)

NAMES = ["walletAddress", "incomingAmount", "expiresAt", "metadata", "value", "assetCode", "assetScale", "id"]
VALUES = ["https://bank.example/alice", "2500", "USD", "2026-02-03T23:20:50Z", "", "\0", "\ud800"]

texts = st.sampled_from(VALUES) | st.text(st.characters(), max_size=8)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
documents = st.recursive(
    scalars,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | texts, below, max_size=5),
    max_leaves=12,
)
amounts = st.fixed_dictionaries(
    {"value": scalars | st.just("1"), "assetCode": st.just("USD"), "assetScale": st.integers(-1, 256) | scalars}
)
near_requests = st.fixed_dictionaries(
    {"walletAddress": st.just("https://bank.example/alice") | texts},
    optional={
        "incomingAmount": amounts | scalars,
        "expiresAt": texts,
        "metadata": st.dictionaries(texts, documents, max_size=3),
        "extra": scalars,
    },
)


def check_refusal(error: MalformedJson) -> None:
    """Check that the description of `error` can be logged, and that its details can be written as JSON."""
    assert error.description
    assert error.description.isprintable()
    write_json(dict(error.details))


def check(body: bytes) -> None:
    """Check that `body` is read as a valid request, or is refused with a description."""
    peeked = peek_wallet_address(body)  # raises nothing for any body
    try:
        request = read_create_request(body)
    except MalformedJson as error:
        check_refusal(error)
        return
    assert type(request) is CreateRequest
    assert peeked == request.wallet_address
    assert wallet_address_url(request.wallet_address) == request.wallet_address
    assert request.expires_at is None or request.expires_at.tzinfo is UTC
    assert request.metadata is None or isinstance(json.loads(request.metadata), dict)


@given(st.binary(max_size=200))
@example(b"[" * 60_000)
@example(b'{"a":' * 13_000)
@example(b"9" * 60_000)
def test_arbitrary_bytes(body: bytes) -> None:
    """Any bytes are a create request, or raise `MalformedJson`."""
    check(body)


@given(documents | near_requests)
def test_arbitrary_documents(document: Any) -> None:
    """Any JSON document, also with NaN and infinity, is a create request, or raises `MalformedJson`."""
    check(json.dumps(document).encode())


@given(near_requests, st.data())
def test_truncated_and_corrupted_requests(document: Any, data: st.DataObject) -> None:
    """A truncated request, or a request with one changed byte, is a create request, or raises `MalformedJson`."""
    body = json.dumps(document).encode()
    at = data.draw(st.integers(0, len(body) - 1))
    check(body[:at])
    check(body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :])


@given(st.dictionaries(texts, documents, max_size=5))
def test_metadata_is_not_changed(metadata: dict[str, Any]) -> None:
    """Accepted metadata is stored as compact JSON of the same value."""
    body = json.dumps({"walletAddress": "https://bank.example/alice", "metadata": metadata}).encode()
    try:
        text = read_create_request(body).metadata
    except MalformedJson:
        return
    assert text is not None
    assert json.loads(text) == metadata
    assert write_json(metadata) == text.encode()


@given(documents)
def test_strict_reader_agrees_with_json_loads(document: Any) -> None:
    """A document that `read_json` accepts has the same value in `json.loads`."""
    body = json.dumps(document).encode()
    try:
        read = read_json(body)
    except MalformedJson:
        return
    assert repr(read) == repr(json.loads(body))
    assert read_json(write_json(read)) == read


@given(st.integers(0, 2**64 - 1), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=32))
def test_amounts_round_trip(value: int, code: str) -> None:
    """An amount is read as it was written."""
    amount = Amount(value, Asset(code, value % 256))
    written = {"value": amount.text, "assetCode": amount.asset.code, "assetScale": amount.asset.scale}
    body = json.dumps({"walletAddress": "https://bank.example/alice", "incomingAmount": written}).encode()
    assert read_create_request(body).incoming_amount == amount


@given(st.text(st.sampled_from("0123456789+-_. eE\u0661\n"), max_size=22))
def test_amount_has_one_form(text: str) -> None:
    """A string that is accepted as an amount is the string that would be written."""
    try:
        amount = Amount.parse(text, Asset("USD", 2))
    except InvalidValue:
        return
    assert amount.text == text


@given(
    st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)),  # noqa: DTZ001 - the next strategy adds an offset
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_date_times_round_trip(naive: datetime, offset_min: int) -> None:
    """A time is read as it was written, with any offset."""
    time = naive.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    assert parse_date_time(time.isoformat()) == time
    assert parse_date_time(write_date_time(time)) == time
    assert write_date_time(parse_date_time(time.isoformat())) == write_date_time(time)


@given(st.text(st.sampled_from("0123456789-:.,TtZzW+ \n\u0661"), max_size=32) | st.text(max_size=32))
@example("9999-12-31T23:59:59-00:01")
def test_any_text_is_a_date_time_or_refused(text: str) -> None:
    """Any text is a time in UTC, or raises `InvalidValue`."""
    try:
        time = parse_date_time(text)
    except InvalidValue:
        return
    assert time.tzinfo is UTC
