"""The bodies of requests and responses."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from attrs import fields, frozen
from cattrs import AttributeValidationNote, ClassValidationError, Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override
from dateutil.parser import isoparse

from incoming_payments import limits
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import MetadataJson, WalletAddressUrl, wallet_address_url
from incoming_payments.errors import InvalidValue, MalformedJson
from incoming_payments.wire._json import json_text, peek, printable, read_json, write_json
from incoming_payments.wire.strict import wrong_type

T = TypeVar("T")
JSON_MEDIA_TYPE: Final = "application/json"

# The form of RFC 3339 §5.6. `isoparse` alone would also accept other forms of ISO 8601, such as a missing offset or
# hour 24.
_DATE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt](?!24)\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


# The size that `read_json` counts for the seven members of a create request beside `metadata`, and some more.
_OTHER_MEMBERS_BYTES: Final = 64

# --- create requests -----------------------------------------------------------------------------


@frozen
class CreateRequest:
    """The checked body of a create request. Spec section 4.1."""

    wallet_address: WalletAddressUrl
    incoming_amount: Amount | None = None
    expires_at: datetime | None = None
    metadata: MetadataJson | None = None


def peek_wallet_address(body: bytes) -> WalletAddressUrl | None:
    """Return the wallet address of the create request in `body`, or `None` if the body names no wallet address.

    The body may be invalid. Use this function before the client is authenticated, because it costs little for any body.
    If `read_create_request` accepts `body`, both functions return the same wallet address.

    >>> peek_wallet_address(b'{"walletAddress": "https://bank.example/alice", "expiresAt": false}')
    'https://bank.example/alice'
    """
    try:
        return wallet_address_url(peek(body, "walletAddress"))
    except InvalidValue:
        return None


def read_create_request(
    body: bytes,
    *,
    metadata_bytes_max: int = limits.METADATA_BYTES_DEFAULT,
    metadata_depth_max: int = limits.METADATA_DEPTH_DEFAULT,
) -> CreateRequest:
    """Read the create request in `body`. Spec section 4.1.

    Raises `MalformedJson` with the wrong member when the body is not a JSON object, when a member is missing, unknown,
    duplicate or of the wrong type, when an amount, date or URL is invalid, or when the metadata is over its limits.

    >>> read_create_request(b'{"walletAddress": "https://bank.example/alice"}').wallet_address
    'https://bank.example/alice'
    """
    document = read_json(body, size_max=metadata_bytes_max + _OTHER_MEMBERS_BYTES)
    request = read_document(document, _read_creation)
    if request.metadata is not None:
        _check_metadata(document["metadata"], request.metadata, metadata_bytes_max, metadata_depth_max)
    return request


# --- responses -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class SummaryView:
    """A payment in a list, or in the response to a complete request. It has no payment methods and no `updatedAt`.

    Clients validate these responses with a schema that refuses both members.
    """

    id: str
    wallet_address: str
    completed: bool
    received_amount: Amount
    created_at: datetime
    incoming_amount: Amount | None = None
    expires_at: datetime | None = None
    metadata: MetadataJson | None = None


@frozen(kw_only=True)
class PaymentView(SummaryView):
    """The incoming payment resource in a response to a client. Spec section 2.2."""

    updated_at: datetime
    methods: Sequence[IlpPaymentMethod]


@frozen
class PageView:
    """One page of a list. The cursors name the first and the last payment. An empty page has no cursors."""

    result: Sequence[SummaryView]
    has_next_page: bool
    has_previous_page: bool
    start_cursor: str | None = None
    end_cursor: str | None = None


@frozen
class PublicView:
    """The public part of a payment, which needs no token: the received amount and the authorization server."""

    received_amount: Amount
    auth_server: str


def write_view(view: SummaryView | PageView | PublicView) -> bytes:
    """Return the JSON of `view`. Members with no value are left out, because real clients refuse `null`."""
    return _view_text(view).encode()


def _view_text(view: SummaryView | PageView | PublicView) -> str:
    text = json_text(_WRITERS[type(view)](view))
    if isinstance(view, PageView):
        return f'{{"pagination":{text},"result":[{",".join(map(_view_text, view.result))}]}}'
    if isinstance(view, PublicView) or view.metadata is None:
        return text
    # Insert the stored text and do not parse it again, because a list has up to 100 payments.
    return f'{text[:-1]},"metadata":{view.metadata}}}'


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

    Raises `InvalidValue` for other forms of ISO 8601. A time that has no offset is ambiguous, so it is refused too.

    >>> parse_date_time("2026-02-03T23:20:50.52+01:00")
    datetime.datetime(2026, 2, 3, 22, 20, 50, 520000, tzinfo=datetime.timezone.utc)
    """
    if _DATE_TIME.fullmatch(text):
        try:
            return isoparse(text.upper()).astimezone(UTC)
        except (ValueError, OverflowError):
            pass  # the time does not exist, has second 60, or is out of range in UTC
        if text[17:19] == "60":
            wanted = "has second 60, but this service cannot store leap seconds: write second 59, or the next minute"
            raise InvalidValue(f"expiresAt {wanted}", member="expiresAt")
    wanted = "must be an RFC 3339 date-time with an offset, such as 2026-02-03T23:20:50.52Z"
    raise InvalidValue(f"expiresAt {wanted}", member="expiresAt")


def write_date_time(time: datetime) -> str:
    """Return `time` as an RFC 3339 `date-time` in UTC, with microseconds if they are not zero."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return "".join([first, *map(str.capitalize, others)])


# --- cattrs: reading -------------------------------------------------------------------------------


def read_document(document: object, read: Callable[[object, object], T]) -> T:
    """Return `document` as the cattrs hook `read` reads it. Raises `MalformedJson` with the wrong member."""
    try:
        return read(document, None)
    except (ClassValidationError, ForbiddenExtraKeysError, InvalidValue, MalformedJson) as error:
        raise _first_error(error) from None


def exactly(expected: type[T]) -> Callable[[object, object], T]:
    """Return a cattrs hook that accepts only values of exactly this type."""

    def read(value: object, _: object) -> T:
        if type(value) is expected:
            return value
        raise MalformedJson(str(wrong_type(value, expected)))

    return read


_read_text: Final = exactly(str)
_read_integer: Final = exactly(int)
_read_object: Final = exactly(dict)


def _read_wallet_address(value: object, _: object) -> WalletAddressUrl:
    return wallet_address_url(_read_text(value, str))


def _read_date_time(value: object, _: object) -> datetime:
    return parse_date_time(_read_text(value, str))


def _read_metadata(value: object, _: object) -> MetadataJson:
    return MetadataJson(json_text(_read_object(value, dict)))


def strictly(cls: type[T], **hooks: Callable[[object, object], Any]) -> Callable[[object, object], T]:
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
    raw = _read_amount_json(value, _AmountJson)
    return Amount.parse(raw.value, Asset(raw.asset_code, raw.asset_scale))


_READER: Final = Converter(detailed_validation=True)
_read_amount_json: Final = strictly(_AmountJson, value=_read_text, asset_code=_read_text, asset_scale=_read_integer)
# These hooks are for members and not for types, because an optional member may be absent, but must not be null.
_read_creation: Final = strictly(
    CreateRequest,
    wallet_address=_read_wallet_address,
    incoming_amount=_read_amount,
    expires_at=_read_date_time,
    metadata=_read_metadata,
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
        unknown = ".".join([*path, printable(min(error.extra_fields))])
        return MalformedJson(f"{unknown} is not a member that a request can set: leave it out", member=unknown)
    if isinstance(error, KeyError):
        missing = ".".join(path)
        return MalformedJson(f"{missing} is missing", member=missing)
    description = str(error)
    if isinstance(error, InvalidValue) and path[-1] != error.details["member"]:
        # A value inside the member is wrong, such as incomingAmount.assetCode. The message begins with the name of the
        # wrong value.
        path.append(str(error.details["member"]))
        description = f"{'.'.join(path[:-1])}.{description}"
    member = ".".join(path)
    if isinstance(error, MalformedJson):
        description = f"{member or 'the body'} {description}"
    return MalformedJson(description, member=member) if member else MalformedJson(description)


def _check_metadata(document: object, text: MetadataJson, bytes_max: int, depth_max: int) -> None:
    if len(text.encode("utf-8")) > bytes_max:
        raise MalformedJson(
            f"metadata is larger than {bytes_max} bytes as compact JSON: send smaller metadata", member="metadata"
        )
    if _depth(document) > depth_max:
        raise MalformedJson(f"metadata is nested more than {depth_max} deep: use fewer levels", member="metadata")


def _depth(node: object) -> int:
    """Return the number of nested levels of arrays and objects in `node`, including `node` itself."""
    if not isinstance(node, dict | list):
        return 0
    return 1 + max(map(_depth, node.values() if isinstance(node, dict) else node), default=0)


# --- cattrs: writing -------------------------------------------------------------------------------


def write_amount(amount: Amount) -> dict[str, Any]:
    """Return the JSON object of `amount`."""
    return {"value": amount.text, "assetCode": amount.asset.code, "assetScale": amount.asset.scale}


def _write_method(method: IlpPaymentMethod) -> dict[str, str]:
    return {"type": "ilp", "ilpAddress": method.ilp_address, "sharedSecret": method.shared_secret}


def _write_members(cls: type[Any]) -> Callable[[Any], dict[str, Any]]:
    """Return a cattrs hook that writes `cls` in camelCase.

    The hook leaves out absent members, and members that `_view_text` adds.
    """
    written_apart = {"metadata", "result"}
    renamed: dict[str, Any] = {
        each.name: override(rename=_camel_case(each.name), omit=each.name in written_apart) for each in fields(cls)
    }
    return make_dict_unstructure_fn(cls, _WRITER, _cattrs_omit_if_default=True, **renamed)


_WRITER: Final = Converter()
_WRITER.register_unstructure_hook(Amount, write_amount)
_WRITER.register_unstructure_hook(IlpPaymentMethod, _write_method)
_WRITER.register_unstructure_hook(datetime, write_date_time)
_WRITERS: Final = {view: _write_members(view) for view in (PaymentView, SummaryView, PageView, PublicView)}
