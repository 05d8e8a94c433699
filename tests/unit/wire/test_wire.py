"""Tests of `wire`: accepted JSON, refused JSON with its messages, and written JSON. Spec sections 2 and 4.1."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import MetadataJson, WalletAddressUrl
from incoming_payments.errors import InvalidValue, MalformedJson
from incoming_payments.limits import BODY_BYTES_MAX
from incoming_payments.wire import (
    CreateRequest,
    PaymentView,
    PublicView,
    parse_date_time,
    peek_wallet_address,
    read_create_request,
    read_json,
    write_date_time,
    write_error,
    write_json,
    write_view,
)

USD = Asset("USD", 2)
URL = "https://bank.example/alice"
NOT_JSON = "is not JSON: "
NO_NUMBER = "which is not JSON: leave out the member, or write a number"
INEXACT = "is a number that a double cannot hold exactly (RFC 7493 §2.2): round it, or write it as a string"
TWICE = "occurs twice in one object"
UNSTORABLE = "holds a NUL or a lone surrogate"
LONG = "is a number of more than 64 characters: write it as a string"


def body(**members: Any) -> bytes:
    """Return a create request with `members` besides `walletAddress`."""
    return json.dumps({"walletAddress": URL} | members).encode()


def amount(**members: Any) -> dict[str, Any]:
    """Return an amount object with these `members` replaced."""
    return {"value": "2500", "assetCode": "USD", "assetScale": 2} | members


def nested(depth: int) -> dict[str, Any]:
    """Return an object with `depth` levels."""
    return {} if depth == 1 else {"a": nested(depth - 1)}


def without(name: str, members: dict[str, Any]) -> dict[str, Any]:
    """Return `members` without `name`."""
    return {member: value for member, value in members.items() if member != name}


# --- reading: accepted JSON ----------------------------------------------------------------------


def test_create_request_with_all_members() -> None:
    """Every member of spec section 4.1 is read, in any order."""
    text = b"""{
        "metadata": {"invoice": "2026/0007", "lines": [1, 2.5, true, null, "\xc3\xa9\xf0\x9f\x92\xb6"]},
        "expiresAt": "2026-02-03T23:20:50.52+01:00",
        "incomingAmount": {"assetScale": 2, "assetCode": "USD", "value": "2500"},
        "walletAddress": "HTTPS://Bank.example:443/alice/"
    }"""
    assert read_create_request(text) == CreateRequest(
        wallet_address=WalletAddressUrl(URL),
        incoming_amount=Amount(2500, USD),
        expires_at=datetime(2026, 2, 3, 22, 20, 50, 520000, tzinfo=UTC),
        metadata=MetadataJson('{"invoice":"2026/0007","lines":[1,2.5,true,null,"\u00e9\U0001f4b6"]}'),
    )


def test_create_request_with_only_the_wallet_address() -> None:
    """Only `walletAddress` is required. Spec section 4.1."""
    assert read_create_request(body()) == CreateRequest(WalletAddressUrl(URL))


@pytest.mark.parametrize("metadata", [{}, nested(8), {"a": "x" * (8192 - 8)}])
def test_metadata_up_to_the_limits(metadata: dict[str, Any]) -> None:
    """Metadata is any object of at most 8 levels and 8 KiB of compact JSON, and is not changed."""
    text = read_create_request(body(metadata=metadata)).metadata
    assert text is not None
    assert json.loads(text) == metadata


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("0", "0"),
        ("-0", "-0.0"),
        ("-0.0", "-0.0"),
        ("1E5", "100000.0"),
        ("1.50", "1.5"),
        ("0.1", "0.1"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("0.30000000000000004", "0.30000000000000004"),
    ],
)
def test_number_in_metadata_keeps_its_value(sent: str, stored: str) -> None:
    """A number is stored with the value that was sent, in the shortest spelling that Python gives it."""
    text = read_create_request(f'{{"walletAddress":"{URL}","metadata":{{"n":{sent}}}}}'.encode()).metadata
    assert text == f'{{"n":{stored}}}'


def test_brackets_are_counted_in_strings_too() -> None:
    """A create request with one bracket too many is refused, and names no wallet address to a stranger's look-up."""
    bodies = [f'{{"walletAddress":"{URL}","metadata":{{"n":"{"[" * count}"}}}}'.encode() for count in (16382, 16383)]
    accepted = read_create_request(bodies[0], metadata_bytes_max=BODY_BYTES_MAX)
    assert peek_wallet_address(bodies[0]) == accepted.wallet_address
    with pytest.raises(MalformedJson, match="opening brackets"):
        read_create_request(bodies[1], metadata_bytes_max=BODY_BYTES_MAX)
    assert peek_wallet_address(bodies[1]) is None


# --- reading: refused JSON, in this order ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault", "position"),
    [
        (b" " * 65537, "is larger than 65536 bytes", None),
        (b'{"a":"\xff"}', "is not UTF-8", None),
        ('{"a":1}'.encode("utf-16-le"), NOT_JSON, 1),
        (b"\xed\xa0\x80", "is not UTF-8", None),  # a surrogate
        (b"[" * 5000, "is nested more than 32 deep", None),  # too deep for the parser
        (b"[" * 33 + b"]" * 33, "is nested more than 32 deep", None),
        (b'{"a":' * 33 + b"1" + b"}" * 33, "is nested more than 32 deep", None),
        (b"[]," * 16385, "has more than 16384 opening brackets [ and {", None),
        (b"{}," * 16385, "has more than 16384 opening brackets [ and {", None),
        (b"", NOT_JSON + "Expecting value at line 1, column 1", 0),
        (b"\xef\xbb\xbf{}", NOT_JSON + "Unexpected UTF-8 BOM", 0),
        (b'{\n "a": nul}', NOT_JSON + "Expecting value at line 2, column 7", 8),
        (b"{} {}", NOT_JSON + "Extra data at line 1, column 4", 3),
        (b'{"a":1,,}', NOT_JSON, 7),
        (b"{'a':1}", NOT_JSON, 1),
        (b'{"a":01}', NOT_JSON, 6),
        (b'{"a":"\n"}', NOT_JSON, 6),
        (b'{"a":"\\x"}', NOT_JSON, 6),
    ],
)
def test_text_that_is_not_json_is_refused(text: bytes, fault: str, position: int | None) -> None:
    """A text that is not JSON, or is over the limits, is refused with the reason and the place."""
    with pytest.raises(MalformedJson) as caught:
        read_json(text)
    assert str(caught.value).startswith(f"the body {fault}")
    assert caught.value.details == ({} if position is None else {"position": position})
    with pytest.raises(MalformedJson) as again:
        read_create_request(text)
    assert str(again.value) == str(caught.value)


@pytest.mark.parametrize(
    ("text", "member", "fault"),
    [
        (b'{"walletAddress":1,"walletAddress":1}', "walletAddress", TWICE),
        (b'{"metadata":{"a":{"c":1,"b":1,"b":1}}}', "metadata.a.b", TWICE),
        (b'{"a":1,"\\u0061":1}', "a", TWICE),
        (b'{"a":[0,{"b":[1],"b":[2]}]}', "a[1].b", TWICE),
        (b'{"a":NaN}', "a", f"is NaN, {NO_NUMBER}"),
        (b"Infinity", "", f"is Infinity, {NO_NUMBER}"),
        (b"-Infinity", "", f"is -Infinity, {NO_NUMBER}"),
        (b"[1e400]", "[0]", INEXACT),
        (b"[-1e400]", "[0]", INEXACT),
        (b'{"a":[1,1e-400]}', "a[1]", INEXACT),
        (b'{"a":5e-325}', "a", INEXACT),  # below the smallest double
        (b'{"a":1e-99999999999999999999}', "a", INEXACT),
        (b'{"a":1e99999999999999999999}', "a", INEXACT),
        (b'{"a":123456789012345678.5}', "a", INEXACT),
        (b'{"a":9007199254740993.0}', "a", INEXACT),  # 2**53 + 1
        (b'{"a":0.1000000000000000055511151231257827}', "a", INEXACT),  # the digits of the double 0.1
        (b"0." + b"1" * 62, "", INEXACT),
        (b"0." + b"1" * 63, "", LONG),
        (b"1" * 65, "", LONG),
        (b'{"a":' + b"1" * 65530 + b"}", "a", LONG),
        (b'"\\ud800"', "", UNSTORABLE),
        (b'{"a":{"b":["\\udfff"]}}', "a.b[0]", UNSTORABLE),
        (b'{"a":{"\\ud800":1}}', "a.\\ud800", UNSTORABLE),
        (b'{"a":"\\u0000"}', "a", UNSTORABLE),
        (b'{"a":{"\\u0000":1}}', "a.\\x00", UNSTORABLE),
        (b'{"a":{"b":"\\u0000"},"c":{"d":1}}', "a.b", UNSTORABLE),
        (b'{"a":["\\u0000"],"c":[1]}', "a[0]", UNSTORABLE),
    ],
)
def test_json_that_readers_could_change_is_refused(text: bytes, member: str, fault: str) -> None:
    """JSON that is not I-JSON, or holds what a database or a client could change, is refused with the member."""
    with pytest.raises(MalformedJson) as caught:
        read_json(text)
    assert str(caught.value) == f"{member or 'the body'} {fault}"
    assert caught.value.details == ({"member": member} if member else {})
    with pytest.raises(MalformedJson) as again:
        read_create_request(text)
    assert str(again.value) == str(caught.value)


def test_first_fault_is_named() -> None:
    """With several faults, the first one in the text is named. Repeated names count where their object begins."""
    faults = [b'"a":[NaN]', b'"b":"\\u0000"', b'"c":{"x":1e400}', b'"d":{"y":[0,Infinity],"y":0}']
    named = []
    while faults:
        with pytest.raises(MalformedJson) as caught:
            read_json(b"{" + b",".join(faults) + b"}")
        named.append(caught.value.details["member"])
        del faults[0]
    assert named == ["a[0]", "b", "c.x", "d.y"]


@pytest.mark.parametrize(
    ("text", "document"),
    [
        (b"[" * 32 + b"]" * 32, None),
        (b"1" * 64, int("1" * 64)),
        (b"0.5" + b"0" * 61, 0.5),
        (b"0e-99999999999999999", 0),
        (b"1e308", 1e308),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        ('"\u00e9"'.encode(), "\u00e9"),
        (b' {"a" : [ -0.5 , null ] }\n', {"a": [-0.5, None]}),
        (b" " * 65532 + b"null", None),
    ],
)
def test_json_within_the_limits_is_accepted(text: bytes, document: object) -> None:
    """JSON at the limits of depth, digits and size is read, and so are surrogate pairs."""
    read = read_json(text)
    if document is not None:
        assert read == document


SHAPES: Final = {
    "integers": (b"[", b"1", b"]"),
    "fractions": (b"[", b"0.1", b"]"),
    "long fractions": (b"[", b"2e-310", b"]"),
    "strings": (b"[", b'""', b"]"),
    "arrays": (b"[", b"[]", b"]"),
    "objects": (b"[", b'{"":1}', b"]"),
}


@pytest.mark.parametrize(("start", "item", "end"), SHAPES.values(), ids=SHAPES)
def test_many_values_are_read_only_if_they_fit_into_metadata(start: bytes, item: bytes, end: bytes) -> None:
    """Metadata of the allowed size is accepted with any values. Much more is refused early, with its position."""

    def body(bytes_max: int) -> bytes:
        count = (bytes_max - len(b'{"a":[]}') + 1) // (len(item) + 1)
        return (
            b'{"walletAddress":"https://h.example/a","metadata":{"a":' + start + b",".join([item] * count) + end + b"}}"
        )

    accepted = read_create_request(body(4000), metadata_bytes_max=4000)
    assert len(accepted.metadata or "") > 3980
    with pytest.raises(MalformedJson) as caught:
        read_create_request(body(5000), metadata_bytes_max=4000)
    assert caught.value.details["member"].startswith("metadata")
    with pytest.raises(MalformedJson, match="as compact JSON: send less") as early:
        read_create_request(body(60_000).replace(b"[]", b"3"), metadata_bytes_max=4000)
    assert early.value.details["member"].startswith("metadata.a")


def test_json_limits_are_arguments() -> None:
    """Other documents, such as settings, can have other limits."""
    assert read_json(b"[[1]]", bytes_max=5, depth_max=2) == [[1]]
    with pytest.raises(MalformedJson) as caught:
        read_json(b"[[1]]", bytes_max=4)
    assert str(caught.value) == "the body is larger than 4 bytes: send a smaller body"
    with pytest.raises(MalformedJson) as caught:
        read_json(b"[[1]]", depth_max=1)
    assert str(caught.value) == "the body is nested more than 1 deep"


UINT64 = "must be in minor units, such as cents: an integer from 0 to 18446744073709551615"
DIGITS = "must be a string of decimal digits without sign, spaces or leading zeros, from 0 to 18446744073709551615"
SCALE = "must be an integer from 0 to 255"
CODE = "must be 1 to 32 printable ASCII characters without spaces"
EXPIRY = "must be an RFC 3339 date-time with an offset, such as 2026-02-03T23:20:50.52Z"
NO_URL = "must be an absolute http or https URL, in ASCII, of at most 2048 characters"
NO_BOOLEAN = "must be an integer, not a boolean"
NO_FRACTION = "must be an integer, not a number with a fraction or exponent"
NOT_SET = "is not a member that a request can set: leave it out"
TOO_LARGE = "is larger than 8192 bytes as compact JSON: send smaller metadata"
SERVER_SET = ["id", "createdAt", "updatedAt", "completed", "receivedAmount", "methods"]


@pytest.mark.parametrize(
    ("text", "member", "fault"),
    [
        (b"[]", "", "must be an object, not an array"),
        (b"null", "", "must be an object, not null"),
        (b'"{}"', "", "must be an object, not a string"),
        (b"1", "", "must be an object, not an integer"),
        (b"true", "", "must be an object, not a boolean"),
        (b"1e3", "", "must be an object, not a number with a fraction or exponent"),
        (b"{}", "walletAddress", "is missing"),
        (b'{"walletaddress":"https://bank.example"}', "walletAddress", "is missing"),
        (b'{"wallet_address":"https://bank.example"}', "walletAddress", "is missing"),
        (body(walletAddress=None), "walletAddress", "must be a string, not null"),
        (body(walletAddress=[URL]), "walletAddress", "must be a string, not an array"),
        (body(walletAddress={}), "walletAddress", "must be a string, not an object"),
        (body(walletAddress="bank.example"), "walletAddress", NO_URL),
        (body(walletAddress="https://bank.example/#a"), "walletAddress", "must not contain a fragment or a backslash"),
        (body(incomingAmount=None), "incomingAmount", "must be an object, not null"),
        (body(incomingAmount="25"), "incomingAmount", "must be an object, not a string"),
        *((body(incomingAmount=without(name, amount())), f"incomingAmount.{name}", "is missing") for name in amount()),
        (body(incomingAmount=amount(value=2500)), "incomingAmount.value", "must be a string, not an integer"),
        (body(incomingAmount=amount(value=None)), "incomingAmount.value", "must be a string, not null"),
        (body(incomingAmount=amount(assetCode=7)), "incomingAmount.assetCode", "must be a string, not an integer"),
        (body(incomingAmount=amount(assetScale="2")), "incomingAmount.assetScale", "must be an integer, not a string"),
        (body(incomingAmount=amount(assetScale=True)), "incomingAmount.assetScale", NO_BOOLEAN),
        (body(incomingAmount=amount(assetScale=2.0)), "incomingAmount.assetScale", NO_FRACTION),
        (body(incomingAmount=amount(scale=2)), "incomingAmount.scale", NOT_SET),
        (body(incomingAmount=amount(value="-1")), "incomingAmount.value", DIGITS),
        (body(incomingAmount=amount(value="18446744073709551616")), "incomingAmount.value", UINT64),
        (body(incomingAmount=amount(assetCode="")), "incomingAmount.assetCode", CODE),
        (body(incomingAmount=amount(assetScale=256)), "incomingAmount.assetScale", SCALE),
        (body(incomingAmount=amount(assetScale=-1)), "incomingAmount.assetScale", SCALE),
        (body(expiresAt=None), "expiresAt", "must be a string, not null"),
        (body(expiresAt=7), "expiresAt", "must be a string, not an integer"),
        (body(expiresAt="tomorrow"), "expiresAt", EXPIRY),
        (body(metadata=None), "metadata", "must be an object, not null"),
        (body(metadata=[]), "metadata", "must be an object, not an array"),
        (body(metadata="{}"), "metadata", "must be an object, not a string"),
        *((body(**{name: "x"}), name, NOT_SET) for name in SERVER_SET),
        (body(b=1, a=1), "a", NOT_SET),
        (body(**{"\u00e9\n\\": 1}), "\\xe9\\n\\\\", NOT_SET),
        (body(**{"": 1}), '""', NOT_SET),
        (body(**{"x" * 200: 1}), "x" * 100, NOT_SET),
        (body(metadata={"a": "x" * (8192 - 7)}), "metadata", TOO_LARGE),
        (body(metadata={"a": "\u20ac" * 2730}), "metadata", TOO_LARGE),  # in UTF-8
        (body(metadata=nested(9)), "metadata", "is nested more than 8 deep: use fewer levels"),
    ],
)
def test_invalid_create_request_is_refused(text: bytes, member: str, fault: str) -> None:
    """An invalid create request is refused, with the path of the first wrong member."""
    with pytest.raises(MalformedJson) as caught:
        read_create_request(text)
    assert str(caught.value) == f"{member or 'the body'} {fault}"
    assert caught.value.details == ({"member": member} if member else {})


def test_members_are_checked_in_the_order_of_the_spec() -> None:
    """With several errors, the first wrong member in the table of the spec is named. Unknown members come last."""
    errors = {"extra": 1, "metadata": 1, "expiresAt": 1, "incomingAmount": 1, "walletAddress": 1}
    order = []
    while errors:
        with pytest.raises(MalformedJson) as caught:
            read_create_request(json.dumps({"walletAddress": URL} | errors).encode())
        order.append(caught.value.details["member"])
        del errors[str(order[-1])]
    assert order == ["walletAddress", "incomingAmount", "expiresAt", "metadata", "extra"]


def test_metadata_limits_are_arguments() -> None:
    """A host can allow more or less metadata."""
    text = body(metadata={"a": {"b": 1}})
    assert read_create_request(text, metadata_bytes_max=15, metadata_depth_max=2).metadata == '{"a":{"b":1}}'
    with pytest.raises(MalformedJson) as caught:
        read_create_request(text, metadata_bytes_max=12)
    assert str(caught.value) == "metadata is larger than 12 bytes as compact JSON: send smaller metadata"
    with pytest.raises(MalformedJson) as caught:
        read_create_request(text, metadata_depth_max=1)
    assert str(caught.value) == "metadata is nested more than 1 deep: use fewer levels"


# --- dates and times--------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-02-03T23:20:50Z", datetime(2026, 2, 3, 23, 20, 50, tzinfo=UTC)),
        ("2026-02-03t23:20:50z", datetime(2026, 2, 3, 23, 20, 50, tzinfo=UTC)),
        ("2026-02-03T23:20:50.5Z", datetime(2026, 2, 3, 23, 20, 50, 500000, tzinfo=UTC)),
        ("2026-02-03T23:20:50.123456Z", datetime(2026, 2, 3, 23, 20, 50, 123456, tzinfo=UTC)),
        (f"2026-02-03T23:20:50.{'9' * 1000}Z", datetime(2026, 2, 3, 23, 20, 50, 999999, tzinfo=UTC)),
        ("2026-02-03T23:20:50.123456999Z", datetime(2026, 2, 3, 23, 20, 50, 123456, tzinfo=UTC)),
        ("2026-02-03T23:20:50+00:00", datetime(2026, 2, 3, 23, 20, 50, tzinfo=UTC)),
        ("2026-02-03T23:20:50-00:00", datetime(2026, 2, 3, 23, 20, 50, tzinfo=UTC)),
        ("2026-02-03T23:20:50-08:30", datetime(2026, 2, 4, 7, 50, 50, tzinfo=UTC)),
        ("2024-02-29T00:00:00+23:59", datetime(2024, 2, 28, 0, 1, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_valid_date_time_is_parsed(text: str, time: datetime) -> None:
    """An RFC 3339 date-time with any offset becomes a time in UTC."""
    parsed = parse_date_time(text)
    assert parsed == time
    assert parsed.tzinfo is UTC


@pytest.mark.parametrize("text", ["2016-12-31T23:59:60Z", "2017-01-01t00:59:60.5+01:00"])
def test_leap_second_is_refused_by_name(text: str) -> None:
    """RFC 3339 §5.6 allows a leap second, so the refusal says that this is the reason."""
    with pytest.raises(InvalidValue) as caught:
        parse_date_time(text)
    expected = (
        "expiresAt has second 60, but this service cannot store leap seconds: write second 59, or the next minute"
    )
    assert str(caught.value) == expected
    assert caught.value.details == {"member": "expiresAt"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("2026-02-03", id="no time"),
        pytest.param("2026-02-03T23:20:50", id="no offset"),
        pytest.param("2026-02-03T23:20Z", id="no seconds"),
        pytest.param("2026-02-03 23:20:50Z", id="space instead of T"),
        pytest.param("20260203T232050Z", id="ISO 8601 basic form"),
        pytest.param("2026-W06-2T23:20:50Z", id="week date"),
        pytest.param("2026-034T23:20:50Z", id="ordinal date"),
        pytest.param("2026-02-03T23:20:50,5Z", id="decimal comma"),
        pytest.param("2026-02-03T23:20:50.Z", id="point without fraction"),
        pytest.param("2026-02-03T23:20:50+01", id="offset without minutes"),
        pytest.param("2026-02-03T23:20:50+0100", id="offset without colon"),
        pytest.param("2026-02-03T23:20:50+24:00", id="offset of a day"),
        pytest.param("2026-02-03T23:20:50+01:60", id="offset minute 60"),
        pytest.param("2026-02-03T23:20:50 UTC", id="named offset"),
        pytest.param("+2026-02-03T23:20:50Z", id="signed year"),
        pytest.param("0000-01-01T00:00:00Z", id="year zero"),
        pytest.param("2026-13-03T23:20:50Z", id="month 13"),
        pytest.param("2026-02-30T23:20:50Z", id="30 February"),
        pytest.param("2025-02-29T23:20:50Z", id="29 February in a common year"),
        pytest.param("2026-02-03T24:00:00Z", id="hour 24"),
        pytest.param("2026-02-03T23:60:00Z", id="minute 60"),
        pytest.param("0001-01-01T00:00:00+00:01", id="before year 1 in UTC"),
        pytest.param("9999-12-31T23:59:59-00:01", id="after year 9999 in UTC"),
        pytest.param("2026-02-03T23:20:50Z\n", id="trailing newline"),
        pytest.param(" 2026-02-03T23:20:50Z", id="leading space"),
        pytest.param("\u0662\u0660\u0662\u0666-02-03T23:20:50Z", id="Arabic digits"),
        pytest.param("1770160850", id="Unix time"),
    ],
)
def test_invalid_date_time_is_refused(text: str) -> None:
    """Other forms of ISO 8601 are refused, also a time without an offset."""
    with pytest.raises(InvalidValue) as caught:
        parse_date_time(text)
    assert str(caught.value) == f"expiresAt {EXPIRY}"
    assert caught.value.details == {"member": "expiresAt"}


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (datetime(2026, 2, 3, 23, 20, 50, tzinfo=UTC), "2026-02-03T23:20:50Z"),
        (datetime(2026, 2, 3, 23, 20, 50, 1, tzinfo=UTC), "2026-02-03T23:20:50.000001Z"),
        (datetime(2026, 2, 3, 23, 20, tzinfo=timezone(timedelta(hours=1))), "2026-02-03T22:20:00Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00Z"),
    ],
)
def test_date_time_is_written_in_utc(time: datetime, text: str) -> None:
    """A time is written in UTC with a Z, with microseconds if they are not zero."""
    assert write_date_time(time) == text


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the test on a machine whose time zone is that of Tokyo."""
    if not hasattr(time, "tzset"):
        pytest.skip("this platform cannot change its time zone")
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_time_zone_of_the_machine_changes_no_date_time() -> None:
    """A time is read and written in UTC on every machine."""
    text = "2026-02-03T23:20:50Z"
    assert write_date_time(parse_date_time(text)) == text


# --- writing -----------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 1, tzinfo=UTC)
METHOD = IlpPaymentMethod("g.bank.x7", "c2VjcmV0")
VIEW = PaymentView(
    id="https://bank.example/incoming-payments/1",
    wallet_address=URL,
    completed=False,
    received_amount=Amount(0, USD),
    created_at=NOW,
    updated_at=NOW + timedelta(seconds=1),
    methods=(METHOD,),
    incoming_amount=Amount(2**64 - 1, USD),
    expires_at=NOW + timedelta(hours=1),
    metadata=MetadataJson('{"invoice":"\u00e9","n":1.5}'),
)


def test_spec_2_2_members() -> None:
    """The resource has the members of spec sections 2.2 and 2.3, and no others, because clients validate it."""
    assert json.loads(write_view(VIEW)) == {
        "id": "https://bank.example/incoming-payments/1",
        "walletAddress": "https://bank.example/alice",
        "completed": False,
        "incomingAmount": {"value": "18446744073709551615", "assetCode": "USD", "assetScale": 2},
        "receivedAmount": {"value": "0", "assetCode": "USD", "assetScale": 2},
        "expiresAt": "2026-01-01T01:00:00Z",
        "metadata": {"invoice": "\u00e9", "n": 1.5},
        "createdAt": "2026-01-01T00:00:00Z",
        "updatedAt": "2026-01-01T00:00:01Z",
        "methods": [{"type": "ilp", "ilpAddress": "g.bank.x7", "sharedSecret": "c2VjcmV0"}],
    }


def test_absent_optional_members_are_left_out() -> None:
    """An absent member is not written as `null`. An empty list of methods is written."""
    view = PaymentView(
        id="i", wallet_address=URL, completed=True, received_amount=Amount(7, USD), created_at=NOW, updated_at=NOW,
        methods=(),
    )  # fmt: skip
    assert write_view(view) == (
        b'{"id":"i","walletAddress":"https://bank.example/alice","completed":true,'
        b'"receivedAmount":{"value":"7","assetCode":"USD","assetScale":2},'
        b'"createdAt":"2026-01-01T00:00:00Z","updatedAt":"2026-01-01T00:00:00Z","methods":[]}'
    )


def test_empty_metadata_is_written() -> None:
    """Empty metadata is written as `{}`."""
    view = evolve(VIEW, metadata=MetadataJson("{}"))
    assert json.loads(write_view(view))["metadata"] == {}


def test_public_view_has_two_members() -> None:
    """The public view has the received amount and the authorization server."""
    view = PublicView(Amount(7, USD), "https://auth.bank.example")
    assert write_view(view) == (
        b'{"receivedAmount":{"value":"7","assetCode":"USD","assetScale":2},"authServer":"https://auth.bank.example"}'
    )


def test_error_body() -> None:
    """An error body has a code, a description, and details unless they are empty."""
    assert write_error("c", "d", {}) == b'{"error":{"code":"c","description":"d"}}'
    assert json.loads(write_error("c", "d", {"member": "m", "position": 3})) == {
        "error": {"code": "c", "description": "d", "details": {"member": "m", "position": 3}}
    }


def test_error_details_that_json_cannot_hold_are_written_as_text() -> None:
    """Null, text and finite numbers stay what they are; every other value becomes its text."""
    details = {"none": None, "text": "m", "integer": 1, "number": 0.5, "nan": float("nan"), "asset": USD}
    assert json.loads(write_error("c", "d", details))["error"]["details"] == {
        "none": None,
        "text": "m",
        "integer": 1,
        "number": 0.5,
        "nan": "nan",
        "asset": str(USD),
    }


def test_json_is_written_compact_in_utf_8() -> None:
    """No space is wasted, and text stays text."""
    assert write_json({"a": [1, "\u00e9", None]}) == b'{"a":[1,"\xc3\xa9",null]}'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_nan_and_infinity_are_not_written(number: float) -> None:
    """`write_json` refuses NaN and infinity."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"a": number})
