"""Convert between JSON and values. No other module knows the JSON format (camelCase, amounts as strings, RFC 3339).

The reader is strict. It accepts only the format of the specification, and refuses everything else with `MalformedJson`.
`details["member"]` is the full path of the wrong member, such as `metadata.lines[2].price`. Duplicate members are
refused, because two readers could read such a body differently. So are numbers that a double changes (RFC 7493 §2.2).
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, TypeVar, cast

from attrs import fields, frozen
from cattrs import AttributeValidationNote, ClassValidationError, Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from dateutil.parser import isoparse

from incoming_payments import limits
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import MetadataJson, WalletAddressUrl, wallet_address_url
from incoming_payments.errors import InvalidValue, MalformedJson
from incoming_payments.strict import wrong_type

T = TypeVar("T")
JSON_MEDIA_TYPE: Final = "application/json"

_NAME_CHARS_MAX: Final = 100  # of a member name in an error message
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))  # `dumps` builds one

# RFC 3339 §5.6. `isoparse` alone would also accept other forms of ISO 8601: a missing offset, or hour 24.
_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt](?!24)\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)

# RFC 7493 §2.1 forbids surrogates, which no encoder can write. PostgreSQL cannot store NUL.
_FORBIDDEN: Final = re.compile("[\0\ud800-\udfff]")


# --- create requests -----------------------------------------------------------------------------


@frozen
class CreateRequest:
    """The checked body of a create request. Spec section 4.1."""

    wallet_address: WalletAddressUrl
    incoming_amount: Amount | None = None
    expires_at: datetime | None = None
    metadata: MetadataJson | None = None


def read_create_request(
    body: bytes,
    *,
    metadata_bytes_max: int = limits.METADATA_BYTES_MAX,
    metadata_depth_max: int = limits.METADATA_DEPTH_MAX,
) -> CreateRequest:
    """Read the create request in `body`. Spec section 4.1.

    Raises `MalformedJson` with the wrong member when the body is not a JSON object, when a member is missing, unknown,
    duplicate or of the wrong type, when an amount, date or URL is invalid, or when the metadata is over its limits.

    >>> read_create_request(b'{"walletAddress": "https://bank.example/alice"}').wallet_address
    'https://bank.example/alice'
    """
    document = read_json(body)
    try:
        request = _READER.structure(document, CreateRequest)
    except (ClassValidationError, ForbiddenExtraKeysError, InvalidValue, MalformedJson) as error:
        raise _first_error(error) from None
    if request.metadata is not None:
        _check_metadata(document["metadata"], request.metadata, metadata_bytes_max, metadata_depth_max)
    return request


# --- responses -----------------------------------------------------------------------------------


@frozen
class PaymentView:
    """The incoming payment resource in a response to a client. Spec section 2.2."""

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
    """The public part of a payment, which needs no token: the received amount and the authorization server."""

    received_amount: Amount
    auth_server: str


def write_view(view: PaymentView | PublicView) -> bytes:
    """Return the JSON of `view`. Absent members are left out, because real clients refuse `null`."""
    return write_json(_WRITER.unstructure(view))


def write_error(code: str, description: str, details: Mapping[str, object]) -> bytes:
    """Return the error body: `{"error": {"code", "description", "details"}}`. Empty `details` are left out.

    >>> write_error("not_found", "check the path", {})
    b'{"error":{"code":"not_found","description":"check the path"}}'
    """
    error: dict[str, object] = {"code": code, "description": description}
    if details:
        error["details"] = {name: value if _is_scalar(value) else str(value) for name, value in details.items()}
    return write_json({"error": error})


def _is_scalar(value: object) -> bool:
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


# --- dates and times -------------------------------------------------------------------------------


def parse_date_time(text: str) -> datetime:
    """Return the UTC time of an RFC 3339 `date-time`. Digits after the microsecond are cut off.

    Raises `InvalidValue` for other forms of ISO 8601. A time without an offset is refused because it is ambiguous.

    >>> parse_date_time("2026-02-03T23:20:50.52+01:00")
    datetime.datetime(2026, 2, 3, 22, 20, 50, 520000, tzinfo=datetime.timezone.utc)
    """
    if _DATE_TIME.fullmatch(text):
        try:
            return isoparse(text.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass  # 30 February, second 60, or a year out of range in UTC
        if text[17:19] == "60":
            wanted = "has second 60, but leap seconds cannot be stored: write second 59, or the next minute"
            raise InvalidValue(f"expiresAt {wanted}", member="expiresAt")
    wanted = "must be an RFC 3339 date-time with an offset, such as 2026-02-03T23:20:50.52Z"
    raise InvalidValue(f"expiresAt {wanted}", member="expiresAt")


def write_date_time(time: datetime) -> str:
    """Return `time` as an RFC 3339 `date-time` in UTC, with microseconds if they are not zero."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


# --- JSON documents ------------------------------------------------------------------------------


def read_json(body: bytes, *, bytes_max: int = limits.BODY_BYTES_MAX, depth_max: int = limits.JSON_DEPTH_MAX) -> Any:
    """Read the JSON value in `body`, with the restrictions of I-JSON (RFC 7493) and the limits of this library.

    Raises `MalformedJson` for a body that is too long, too deep or not UTF-8, for a byte order mark, for duplicate
    members, for NaN, for numbers that are long or that a double changes, and for NUL and lone surrogates in strings.
    """
    if len(body) > bytes_max:
        raise MalformedJson(f"the body is larger than {bytes_max} bytes")
    try:
        document = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique_members,
            parse_constant=_refuse_constant,
            parse_float=_parse_number,
            parse_int=_parse_number,
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
    """Return `document` as compact JSON in UTF-8."""
    return _ENCODER.encode(document).encode("utf-8")


@frozen
class _Refused:
    """A value that breaks I-JSON (RFC 7493), or the object with such a `member`. `_check_tree` knows its path."""

    why: str
    member: str | None = None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Refused:
    if len(members := dict(pairs)) == len(pairs):
        return members
    [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
    return _Refused("occurs twice in one object", name)


def _refuse_constant(name: str) -> _Refused:
    return _Refused(f"is {name}, which is not JSON: leave the member out or write a number")


def _parse_number(text: str) -> float | _Refused:
    if len(text) > limits.JSON_NUMBER_CHARS_MAX:
        return _LONG
    if text.lstrip("-").isdigit() and text != "-0":
        return int(text)
    value = float(text)
    try:
        if math.isfinite(value) and Decimal(text) == Decimal(repr(value)):
            return value
    except ArithmeticError:
        pass  # an exponent beyond those of `Decimal`
    return _Refused("is a number that a double cannot hold exactly (RFC 7493 §2.2): round it, or write it as a string")


_LONG: Final = _Refused(f"is a number of more than {limits.JSON_NUMBER_CHARS_MAX} characters: write it as a string")
_Path = tuple[Any, ...]  # empty for the document; else the path of the container, and the name or index in it


def _check_tree(document: object, depth_max: int) -> None:
    """Raise `MalformedJson` when `document` is nested too deep, or a part of it is refused or cannot be stored."""
    level: list[tuple[_Path, object]] = [((), document)]
    depth = 0
    while level:
        below: list[tuple[_Path, object]] = []
        for path, node in level:
            if isinstance(node, dict):
                below += [((path, name), name) for name in node]
                below += [((path, name), member) for name, member in node.items()]
            elif isinstance(node, list):
                below += [((path, index), item) for index, item in enumerate(node)]
            elif isinstance(node, str) and _FORBIDDEN.search(node):
                raise _refusal(path, "holds a NUL or a lone surrogate")
            elif isinstance(node, _Refused):
                raise _refusal(path if node.member is None else (path, node.member), node.why)
        depth += any(isinstance(node, dict | list) for _, node in level)
        if depth > depth_max:
            raise MalformedJson(f"the body is nested more than {depth_max} deep")
        level = below


def _refusal(path: _Path, why: str) -> MalformedJson:
    steps = []
    while path:
        path, step = path
        steps.append(f"[{step}]" if isinstance(step, int) else f".{_printable(step)}")
    member = "".join(reversed(steps)).removeprefix(".")
    return MalformedJson(f"{member} {why}", member=member) if member else MalformedJson(f"the body {why}")


def _printable(name: str) -> str:
    """Return the name of a member for an error message: short, and in printable ASCII."""
    return name.encode("unicode_escape").decode("ascii")[:_NAME_CHARS_MAX] or '""'


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return "".join([first, *map(str.capitalize, others)])


# --- cattrs: reading -------------------------------------------------------------------------------


def _exactly(expected: type[T]) -> Callable[[object, object], T]:
    """Return a cattrs hook that accepts only values of exactly this type."""

    def read(value: object, _: object) -> T:
        if complaint := wrong_type(value, expected):
            raise MalformedJson(complaint)
        return cast("T", value)

    return read


_read_text: Final = _exactly(str)
_read_integer: Final = _exactly(int)
_read_object: Final = _exactly(dict)


def _read_wallet_address(value: object, _: object) -> WalletAddressUrl:
    return wallet_address_url(_read_text(value, str))


def _read_date_time(value: object, _: object) -> datetime:
    return parse_date_time(_read_text(value, str))


def _read_metadata(value: object, _: object) -> MetadataJson:
    return MetadataJson(write_json(_read_object(value, dict)).decode("utf-8"))


def _strict(cls: type[T], **hooks: Callable[[object, object], Any]) -> Callable[[object, object], T]:
    """Return a cattrs hook that reads an object into `cls` and refuses unknown members."""
    overrides: dict[str, Any] = {
        name: override(rename=_camel_case(name), struct_hook=hook) for name, hook in hooks.items()
    }
    read = make_dict_structure_fn(
        cls, _READER, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **overrides
    )
    return lambda value, _: read(_read_object(value, dict), cls)


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
    _AmountJson, _strict(_AmountJson, value=_read_text, asset_code=_read_text, asset_scale=_read_integer)
)
# Hooks by member instead of by type: an optional member may be absent, but it must not be null.
_READER.register_structure_hook(
    CreateRequest,
    _strict(
        CreateRequest,
        wallet_address=_read_wallet_address,
        incoming_amount=_read_amount,
        expires_at=_read_date_time,
        metadata=_read_metadata,
    ),
)


def _first_error(error: Exception) -> MalformedJson:
    """Return the first error that cattrs reports, with the path of the wrong member."""
    path: list[str] = []
    while True:
        notes = getattr(error, "__notes__", ())
        path += [_camel_case(note.name) for note in notes if isinstance(note, AttributeValidationNote)]
        if not isinstance(error, ClassValidationError):
            break
        error = error.exceptions[0]
    if isinstance(error, ForbiddenExtraKeysError):
        unknown = ".".join([*path, _printable(min(error.extra_fields))])
        return MalformedJson(f"{unknown} is not a member that can be set: leave it out", member=unknown)
    if isinstance(error, KeyError):
        missing = ".".join(path)
        return MalformedJson(f"{missing} is missing", member=missing)
    description = str(error)
    if isinstance(error, InvalidValue) and path[-1] != error.details["member"]:
        # A value inside the member is wrong, such as incomingAmount.assetCode. The message begins with its name.
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


def _write_members(cls: type[Any]) -> Callable[[Any], dict[str, Any]]:
    """Return a cattrs hook that writes `cls` in camelCase, without absent optional members."""
    names = [field.name for field in fields(cls)]
    renamed: dict[str, Any] = {name: override(rename=_camel_case(name)) for name in names}
    if "metadata" in renamed:
        renamed["metadata"] = override(unstruct_hook=json.loads)
    return make_dict_unstructure_fn(cls, _WRITER, _cattrs_omit_if_default=True, **renamed)


_WRITER: Final = Converter()
_WRITER.register_unstructure_hook(Amount, _write_amount)
_WRITER.register_unstructure_hook(IlpPaymentMethod, _write_method)
_WRITER.register_unstructure_hook(datetime, write_date_time)
for _view in (PaymentView, PublicView):
    _WRITER.register_unstructure_hook(_view, _write_members(_view))
