"""JSON <-> values: the only place where the wire's spelling (camelCase, amounts as strings, RFC 3339) is known.

Reading is strict. What is not exactly as the contract says is refused with `MalformedJson`, whose
`details["member"]` is the path of the member at fault (its name alone when it occurs twice or holds what no text
may); a body is never read in two ways, so duplicate members are refused as well.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn, TypeVar, cast

from attrs import fields, frozen
from cattrs import AttributeValidationNote, ClassValidationError, Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from dateutil.parser import isoparse

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import MetadataJson, WalletAddressUrl, wallet_address_url
from incoming_payments.errors import InvalidValue, MalformedJson
from incoming_payments.limits import (
    BODY_BYTES_MAX,
    JSON_DEPTH_MAX,
    JSON_NUMBER_CHARS_MAX,
    METADATA_BYTES_MAX,
    METADATA_DEPTH_MAX,
)
from incoming_payments.strict import wrong_type

T = TypeVar("T")

JSON_MEDIA_TYPE: Final = "application/json"

_NAME_CHARS_MAX: Final = 100  # of a client's member name, quoted back to it

# RFC 3339 §5.6, with the offset that isoparse would let go missing, and none of the other ISO 8601 forms it takes,
# such as an hour 24.
_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt](?!24)\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


# --- what a client may send ----------------------------------------------------------------------


@frozen
class CreateRequest:
    """The body of contract section 4.1, read and checked member by member."""

    wallet_address: WalletAddressUrl
    incoming_amount: Amount | None = None
    expires_at: datetime | None = None
    metadata: MetadataJson | None = None


def read_create_request(
    body: bytes, *, metadata_bytes_max: int = METADATA_BYTES_MAX, metadata_depth_max: int = METADATA_DEPTH_MAX
) -> CreateRequest:
    """The create request in `body`. Contract section 4.1.

    Raises `MalformedJson` naming the member at fault: not JSON, not an object, a member missing, unknown, twice there
    or of the wrong type, an amount, date or URL that is not one, metadata over the limits.

    >>> read_create_request(b'{"walletAddress": "https://bank.example/alice"}').wallet_address
    'https://bank.example/alice'
    """
    document = read_json(body)
    try:
        request = _READER.structure(document, CreateRequest)
    except (ClassValidationError, ForbiddenExtraKeysError, InvalidValue, MalformedJson) as error:
        raise _first_complaint(error) from None
    if request.metadata is not None:
        _check_metadata(document["metadata"], request.metadata, metadata_bytes_max, metadata_depth_max)
    return request


# --- what a client gets to see -------------------------------------------------------------------


@frozen
class PaymentView:
    """The incoming payment resource of contract section 2.2, as one client sees it at one moment."""

    id: str
    wallet_address: str
    completed: bool
    received_amount: Amount
    created_at: datetime
    updated_at: datetime
    methods: Sequence[IlpPaymentMethod]
    incoming_amount: Amount | None = None
    expires_at: datetime | None = None
    metadata: MetadataJson | None = None


@frozen
class PublicView:
    """What anybody may see of a payment: how much has arrived, and where to ask for a grant."""

    received_amount: Amount
    auth_server: str


def write_view(view: PaymentView | PublicView) -> bytes:
    """The JSON of `view`. Members that are not there are left out, as real clients refuse `null`."""
    return write_json(_WRITER.unstructure(view))


def write_error(code: str, description: str, details: Mapping[str, object]) -> bytes:
    """The error body: `{"error": {"code", "description", "details"}}`, with `details` left out when there are none.

    >>> write_error("not_found", "check the path", {})
    b'{"error":{"code":"not_found","description":"check the path"}}'
    """
    error: dict[str, object] = {"code": code, "description": description}
    if details:
        error["details"] = {name: value if _is_json(value) else str(value) for name, value in details.items()}
    return write_json({"error": error})


def _is_json(value: object) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


# --- moments ---------------------------------------------------------------------------------------


def parse_date_time(text: str) -> datetime:
    """The moment that an RFC 3339 `date-time` names, in UTC; digits beyond the microsecond are dropped.

    Raises `InvalidValue` for anything else that ISO 8601 allows, above all a moment without an offset, which would
    mean another moment to every reader.

    >>> parse_date_time("2026-02-03T23:20:50.52+01:00")
    datetime.datetime(2026, 2, 3, 22, 20, 50, 520000, tzinfo=datetime.timezone.utc)
    """
    if _DATE_TIME.fullmatch(text):
        try:
            return isoparse(text.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass  # the 30th of February, second 60, or a year that no UTC date has
    raise InvalidValue(
        "expiresAt must be an RFC 3339 date-time with an offset, such as 2026-02-03T23:20:50.52Z", member="expiresAt"
    )


def write_date_time(moment: datetime) -> str:
    """`moment` as RFC 3339 in UTC, to the microsecond where it has any.

    >>> write_date_time(datetime(2026, 2, 3, 23, 20, 50, 520000, tzinfo=UTC))
    '2026-02-03T23:20:50.520000Z'
    """
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


# --- JSON itself ---------------------------------------------------------------------------------


def read_json(body: bytes, *, bytes_max: int = BODY_BYTES_MAX, depth_max: int = JSON_DEPTH_MAX) -> Any:
    """The JSON value in `body`: RFC 8259 as I-JSON (RFC 7493) narrows it, within bounds.

    Raises `MalformedJson` for anything else: too long or too deep, not UTF-8, a byte order mark, duplicate members,
    NaN and infinities (also as 1e400), overlong numbers, lone surrogates.
    """
    if len(body) > bytes_max:
        raise MalformedJson(f"the body is larger than {bytes_max} bytes")
    try:
        document = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_integer,
        )
    except UnicodeDecodeError:
        raise MalformedJson("the body is not UTF-8") from None
    except RecursionError:
        raise MalformedJson(f"the body is nested more than {depth_max} deep") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise MalformedJson(f"the body is not JSON: {error.msg} at {where}", position=error.pos) from None
    _check_tree(document, depth_max)
    return document


def write_json(document: object) -> bytes:
    """`document` as compact JSON in UTF-8."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise MalformedJson(f"{_show(twice)} occurs twice in one object", member=_show(twice))
    return members


def _no_constant(name: str) -> NoReturn:
    raise MalformedJson(f"{name} is not JSON: leave the member out or write a number")


def _finite(text: str) -> float:
    value = float(text) if len(text) <= JSON_NUMBER_CHARS_MAX else math.inf
    if math.isinf(value):
        raise MalformedJson(f"a number is too large, or longer than {JSON_NUMBER_CHARS_MAX} characters")
    return value


def _integer(text: str) -> int:
    if len(text) > JSON_NUMBER_CHARS_MAX:
        raise MalformedJson(f"a number is longer than {JSON_NUMBER_CHARS_MAX} characters")
    return int(text)


def _check_tree(document: object, depth_max: int) -> None:
    """`MalformedJson` when `document` is nested too deep, or a text in it cannot be stored or sent again."""
    level: list[tuple[str, object]] = [("the body", document)]
    depth = 0
    while level:
        below: list[tuple[str, object]] = []
        for name, node in level:
            if isinstance(node, dict):
                below += [(name, member) for member in node]
                below += node.items()
            elif isinstance(node, list):
                below += [(name, item) for item in node]
            elif isinstance(node, str) and not _is_text(node):
                raise MalformedJson(f"{_show(name)} holds a NUL or a lone surrogate", member=_show(name))
        depth += any(isinstance(node, dict | list) for _, node in level)
        if depth > depth_max:
            raise MalformedJson(f"the body is nested more than {depth_max} deep")
        level = below


def _is_text(text: str) -> bool:
    # RFC 7493 §2.1: no surrogates, as no encoder can write them; and no store of text takes a NUL.
    return "\0" not in text and (text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text))


def _show(name: str) -> str:
    """A member's name as it may stand in an error or a log: short, and in printable ASCII."""
    return name.encode("unicode_escape").decode("ascii")[:_NAME_CHARS_MAX] or '""'


# --- cattrs: reading -------------------------------------------------------------------------------


def _exactly(value: object, expected: type[T]) -> T:
    if complaint := wrong_type(value, expected):
        raise MalformedJson(complaint)
    return cast("T", value)


def _read_text(value: object, _: object) -> str:
    return _exactly(value, str)


def _read_scale(value: object, _: object) -> int:
    return _exactly(value, int)


def _read_wallet_address(value: object, _: object) -> WalletAddressUrl:
    return wallet_address_url(_read_text(value, str))


def _read_date_time(value: object, _: object) -> datetime:
    return parse_date_time(_read_text(value, str))


def _read_metadata(value: object, _: object) -> MetadataJson:
    return MetadataJson(write_json(_read_object(value)).decode("utf-8"))


def _read_object(value: object) -> dict[str, Any]:
    return _exactly(value, dict)


def _strict(cls: type[T], **renamed: Any) -> Callable[[object, object], T]:
    """A cattrs hook that reads an object into `cls`, and refuses members it does not know."""
    read = make_dict_structure_fn(
        cls, _READER, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **renamed
    )
    return lambda value, _: read(_read_object(value), cls)


@frozen
class _AmountJson:
    value: str
    asset_code: str
    asset_scale: int


def _read_amount(value: object, _: object) -> Amount:
    raw = _READER.structure(value, _AmountJson)
    return Amount.parse(raw.value, Asset(raw.asset_code, raw.asset_scale))


_READER: Final = Converter(detailed_validation=True)
_READER.register_structure_hook(
    _AmountJson,
    _strict(
        _AmountJson,
        value=override(struct_hook=_read_text),
        asset_code=override(rename="assetCode", struct_hook=_read_text),
        asset_scale=override(rename="assetScale", struct_hook=_read_scale),
    ),
)
# Hooks by member rather than by type: an optional member may be absent, but it may not be null.
_READER.register_structure_hook(
    CreateRequest,
    _strict(
        CreateRequest,
        wallet_address=override(rename="walletAddress", struct_hook=_read_wallet_address),
        incoming_amount=override(rename="incomingAmount", struct_hook=_read_amount),
        expires_at=override(rename="expiresAt", struct_hook=_read_date_time),
        metadata=override(struct_hook=_read_metadata),
    ),
)

_JSON_NAMES: Final = {
    "wallet_address": "walletAddress",
    "incoming_amount": "incomingAmount",
    "received_amount": "receivedAmount",
    "expires_at": "expiresAt",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "asset_code": "assetCode",
    "asset_scale": "assetScale",
    "auth_server": "authServer",
    "ilp_address": "ilpAddress",
    "shared_secret": "sharedSecret",
}


def _first_complaint(error: Exception) -> MalformedJson:
    """The first thing wrong in what cattrs reports, with the path of the member at fault."""
    path: list[str] = []
    while True:
        notes = getattr(error, "__notes__", ())
        path += [_JSON_NAMES.get(note.name, note.name) for note in notes if isinstance(note, AttributeValidationNote)]
        if not isinstance(error, ClassValidationError):
            break
        error = error.exceptions[0]
    if isinstance(error, ForbiddenExtraKeysError):
        unknown = ".".join([*path, _show(min(error.extra_fields))])
        return MalformedJson(f"{unknown} is not a member that can be set: leave it out", member=unknown)
    if isinstance(error, KeyError):
        missing = ".".join(path)
        return MalformedJson(f"{missing} is missing", member=missing)
    description = str(error)
    if isinstance(error, InvalidValue) and path[-1] != error.details["member"]:
        # A value inside the member is at fault, such as incomingAmount's assetCode; its message begins with its name.
        path.append(str(error.details["member"]))
        description = f"{'.'.join(path[:-1])}.{description}"
    member = ".".join(path)
    if isinstance(error, MalformedJson):
        description = f"{member or 'the body'} {description}"
    return MalformedJson(description, member=member) if member else MalformedJson(description)


def _check_metadata(document: object, text: MetadataJson, bytes_max: int, depth_max: int) -> None:
    if len(text.encode("utf-8")) > bytes_max:
        raise MalformedJson(f"metadata is larger than {bytes_max} bytes, written as compact JSON", member="metadata")
    try:
        _check_tree(document, depth_max)
    except MalformedJson:
        raise MalformedJson(f"metadata is nested more than {depth_max} deep", member="metadata") from None


# --- cattrs: writing -------------------------------------------------------------------------------


def _write_amount(amount: Amount) -> dict[str, Any]:
    return {"value": amount.text, "assetCode": amount.asset.code, "assetScale": amount.asset.scale}


def _write_method(method: IlpPaymentMethod) -> dict[str, Any]:
    return {"type": "ilp", "ilpAddress": method.ilp_address, "sharedSecret": method.shared_secret}


def _camel_case(cls: type[Any]) -> Callable[[Any], dict[str, Any]]:
    """A cattrs hook that writes `cls` in the wire's spelling, without the optional members that are absent."""
    names = [field.name for field in fields(cls)]
    renamed: dict[str, Any] = {name: override(rename=_JSON_NAMES.get(name, name)) for name in names}
    if "metadata" in renamed:
        renamed["metadata"] = override(unstruct_hook=json.loads)
    return make_dict_unstructure_fn(cls, _WRITER, _cattrs_omit_if_default=True, **renamed)


_WRITER: Final = Converter()
_WRITER.register_unstructure_hook(Amount, _write_amount)
_WRITER.register_unstructure_hook(IlpPaymentMethod, _write_method)
_WRITER.register_unstructure_hook(datetime, write_date_time)
for _view in (PaymentView, PublicView):
    _WRITER.register_unstructure_hook(_view, _camel_case(_view))
