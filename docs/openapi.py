"""Build the OpenAPI document of the service from the code. `docs/generate.py` writes it into the package.

To document another operation, add a row to `OPERATIONS`. To document another refusal, add its code to
`reference/codes.py`, and to the rows of the operations that answer with it. `tests/unit/endpoints/test_openapi.py`
compares the document with the code.
"""

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from attrs import field, fields, frozen

sys.path.append(str(Path(__file__).resolve().parent))  # for `reference`

from reference.codes import CODES, SIGNATURE_CODES, TOKEN_CODES

from incoming_payments import limits
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.methods import ILP_ADDRESS_PATTERN, SHARED_SECRET_PATTERN, IlpPaymentMethod
from incoming_payments.domain.payment import MetadataJson, WalletAddressUrl
from incoming_payments.flows.policy import COLLECTION_PATH
from incoming_payments.wire import JSON_MEDIA_TYPE, CreateRequest, PageView, PaymentView, PublicView, SummaryView
from incoming_payments.wire._values import _camel_case as member_name

ROOT: Final = Path(__file__).resolve().parents[1]
FILE: Final = ROOT / "src" / "incoming_payments" / "endpoints" / "openapi.json"

Schema = dict[str, Any]

# --- refusals ----------------------------------------------------------------------------------------

STATUS_TEXTS: Final = {
    400: "The request is malformed",
    401: "The access token or the signature is missing or refused",
    403: "Forbidden",
    404: "Not found",
    405: "The path does not have this method",
    406: "The response would be JSON, which the client does not accept",
    408: "The body took too long to arrive",
    409: "The state of the payment does not allow this",
    411: "The body needs `Content-Length`",
    413: "The body is too large",
    414: "The target is too long",
    415: "The media type or the coding of the body is not supported",
    422: "The content contradicts an earlier request",
    429: "The client has used up a quota",
    431: "The header fields are too large",
    500: "The service failed",
    503: "The service cannot answer now",
}
HTTP: Final = (
    "invalid_http", "invalid_content_length", "incomplete_body", "method_not_allowed", "not_acceptable",
    "body_timeout", "length_required", "body_too_large", "target_too_long", "headers_too_large",
)  # fmt: skip
WITH_BODY: Final = ("unsupported_media_type", "unsupported_encoding")
TOKEN: Final = tuple(TOKEN_CODES)
SIGNATURE: Final = tuple(map(str, SIGNATURE_CODES))
SIGNED: Final = (
    *TOKEN, *SIGNATURE, "forbidden", "refused_by_policy", "authorization_server_unavailable",
    "client_keys_unavailable", "clock_behind", "too_many_requests",
)  # fmt: skip
OUTAGES: Final = ("internal_error", "port_unavailable", "store_unavailable", "store_stopped")

# A host's own kind of `PolicyRefused` or `PortUnavailable` has a code of its own, so these lists are not complete.
OPEN: Final[Mapping[int, str]] = {
    403: "another code: a rule of the account servicing entity, with its own description",
    503: "another code: a system of the account servicing entity does not answer now",
}

# The header fields that belong to a status.
HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    401: {"WWW-Authenticate": "`GNAP as_uri=<URI>`: the authorization server, where clients request a grant."},
    405: {"Allow": "The methods of this path."},
    429: {"Retry-After": "After how many seconds the client may repeat the request."},
    503: {"Retry-After": "After how many seconds the client may repeat the request."},
}
OPTIONAL_HEADERS: Final[Mapping[int, Mapping[str, str]]] = {
    415: {"Accept": "The media type of a body.", "Accept-Encoding": "The coding of a body."},
}

# --- members -----------------------------------------------------------------------------------------

_DATE_TIME: Final = {"type": "string", "format": "date-time"}
_URL: Final = {"type": "string", "format": "uri", "maxLength": limits.URL_CHARS_MAX}
_URLS: Final = dict.fromkeys(("id", "walletAddress", "authServer"), _URL)
_REQUESTED_URL: Final = {**_URL, "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://[!-~]+$"}
SCHEMAS_OF_TYPES: Final[Mapping[object, Schema]] = {
    str: {"type": "string", "minLength": 1},
    WalletAddressUrl: _URL,
    bool: {"type": "boolean"},
    datetime: _DATE_TIME,
    MetadataJson: {"type": "object"},
    Amount: {"$ref": "#/components/schemas/amount"},
    Sequence[SummaryView]: {
        "type": "array",
        "maxItems": limits.PAGE_PAYMENTS_MAX,
        "items": {"$ref": "#/components/schemas/incoming-payment-summary"},
    },
    Sequence[IlpPaymentMethod]: {
        "type": "array",
        "uniqueItems": True,
        "maxItems": limits.METHODS_MAX,
        "items": {"$ref": "#/components/schemas/ilp-payment-method"},
    },
}
MEMBERS: Final[Mapping[str, str]] = {
    "id": "The URL of the incoming payment.",
    "walletAddress": "The URL of the wallet address that is paid. In responses, scheme and host are in lower case, and "
    "there is no slash at the end.",
    "completed": "Whether the payment has received its `incomingAmount`, or its client completed it.",
    "incomingAmount": "The amount to receive. It has the asset of the wallet address, and is greater than zero.",
    "receivedAmount": "The total that the payment has received.",
    "expiresAt": "The time after which the payment takes no more money. In a request it is in the future, with an "
    "offset, and no leap second. The service may set it when the request has no `incomingAmount`.",
    "metadata": "Data of the client, such as an invoice reference. The service limits size and depth, by default to "
    f"{limits.METADATA_BYTES_DEFAULT} bytes of compact JSON and to {limits.METADATA_DEPTH_DEFAULT} levels.",
    "createdAt": "When the payment was created.",
    "updatedAt": "When the payment last changed.",
    "methods": "How to pay. It is empty when the payment takes no more money.",
    "result": "The payments, newest first.",
    "startCursor": "The cursor of the first payment of the page.",
    "endCursor": "The cursor of the last payment of the page.",
    "hasNextPage": "Whether there are payments after the page.",
    "hasPreviousPage": "Whether there are payments before the page.",
    "authServer": "The authorization server of the wallet address, where clients request a grant.",
}


def an_object(cls: type, *, schemas: Mapping[str, Schema] | None = None) -> Schema:
    """Return the schema of the JSON object for the attrs class `cls`. `schemas` replace those of some members."""
    hints, members = get_type_hints(cls), fields(cls)
    return {
        "type": "object",
        "properties": {
            (name := member_name(one.name)): {
                **(schemas or {}).get(name, SCHEMAS_OF_TYPES.get(hint := hints[one.name]) or _optional(hint)),
                "description": MEMBERS[name],
            }
            for one in members
        },
        "required": [member_name(one.name) for one in members if one.default is not None],
        "additionalProperties": False,
    }


def _optional(hint: object) -> Schema:
    """Return the schema for an optional type. An absent member is left out, and never null."""
    [schema] = [SCHEMAS_OF_TYPES[one] for one in get_args(hint) if one is not type(None)]
    return schema


def schemas() -> Schema:
    """Return the schemas of bodies."""
    amount = {
        "type": "object",
        "description": "A sum of money, in the minor units of an asset.",
        "properties": {
            "value": {
                "type": "string",
                "format": "uint64",
                "pattern": "^(0|[1-9][0-9]*)$",
                "maxLength": limits.UINT64_DIGITS_MAX,
                "description": f"Decimal digits without a leading zero, at most {limits.UINT64_MAX}.",
            },
            "assetCode": {
                "type": "string",
                "pattern": "^[!-~]+$",
                "maxLength": limits.ASSET_CODE_CHARS_MAX,
                "description": "The code of the asset, such as an ISO 4217 code.",
            },
            "assetScale": {
                "type": "integer",
                "minimum": 0,
                "maximum": limits.ASSET_SCALE_MAX,
                "description": "The number of decimal places of the minor unit: 2 for cents.",
            },
        },
        "required": ["value", "assetCode", "assetScale"],
        "additionalProperties": False,
    }
    method = {
        "type": "object",
        "description": "The ILP address and the shared secret of a STREAM connection that pays.",
        "properties": {
            "type": {"type": "string", "const": "ilp", "description": "The kind of payment method."},
            "ilpAddress": {
                "type": "string",
                "maxLength": limits.ILP_ADDRESS_CHARS_MAX,
                "pattern": f"^{ILP_ADDRESS_PATTERN}$",
                "description": "The ILP address (Interledger RFC 15).",
            },
            "sharedSecret": {
                "type": "string",
                "maxLength": limits.SHARED_SECRET_CHARS_MAX,
                "pattern": f"^{SHARED_SECRET_PATTERN}$",
                "description": "The shared secret of STREAM (Interledger RFC 29) in base64url. Keep it private.",
            },
        },
        "required": ["type", "ilpAddress", "sharedSecret"],
        "additionalProperties": False,
    }
    error = {
        "type": "object",
        "description": "Why a request was refused.",
        "properties": {
            "error": {
                "type": "object",
                "description": "The refusal.",
                "properties": {
                    "code": {"type": "string", "description": "Stable, for programs."},
                    "description": {
                        "type": "string",
                        "minLength": 1,
                        "description": "A text for people, with the fault and its remedy. The text may change.",
                    },
                    "details": {
                        "type": "object",
                        "description": "Facts, such as the path of the wrong member in `member`.",
                        "minProperties": 1,
                        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
                    },
                },
                "required": ["code", "description"],
                "additionalProperties": False,
            }
        },
        "required": ["error"],
        "additionalProperties": False,
    }
    return {
        "amount": amount,
        "ilp-payment-method": method,
        "create-incoming-payment": an_object(CreateRequest, schemas={"walletAddress": _REQUESTED_URL}),
        "incoming-payment": an_object(PaymentView, schemas=_URLS),
        "incoming-payment-summary": an_object(SummaryView, schemas=_URLS),
        "public-incoming-payment": an_object(PublicView, schemas=_URLS),
        "page": _page(),
        "empty": {"type": "object", "maxProperties": 0},
        "error": error,
    }


def _page() -> Schema:
    """Return the schema of a page. Its cursors and flags are in an object of their own."""
    flat = an_object(PageView)
    result = flat["properties"].pop("result")
    flat["required"].remove("result")
    return {
        "type": "object",
        "properties": {"pagination": {**flat, "description": "Where the page is in the list."}, "result": result},
        "required": ["pagination", "result"],
        "additionalProperties": False,
    }


# --- operations --------------------------------------------------------------------------------------

SIGNED_REQUEST: Final = {"access-token": [], "signature-input": [], "signature": []}
_ANY_ORIGIN: Final = {"Access-Control-Allow-Origin": "`*`, unless the service forbids it."}


@frozen(kw_only=True)
class Success:
    """A response that is no refusal: its status, its meaning, the names of its schemas, and its header fields."""

    status: int = 200
    text: str
    schemas: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(factory=dict)
    optional_headers: Mapping[str, str] = field(factory=dict)


@frozen(kw_only=True)
class Operation:
    """One operation. `path` is below the base URL of the service. `codes` are the codes of its refusals."""

    id: str
    method: str
    path: str
    summary: str
    description: str = ""
    success: Success
    codes: tuple[str, ...]
    parameters: tuple[Schema, ...] = ()
    body: str | None = None  # the name of a schema
    security: tuple[Mapping[str, Sequence[str]], ...] = (SIGNED_REQUEST,)
    has_content: bool = True  # whether responses have a body


def a_query(name: str, text: str, schema: Schema, *, required: bool = False) -> Schema:
    """Return a parameter in the query."""
    return {"name": name, "in": "query", "required": required, "description": text, "schema": schema}


_CURSOR: Final = {"type": "string", "minLength": 1}
# Without a default: a generated client would send the default of `first` with each `last`, which is refused.
_PAGE_SIZE: Final = {"type": "integer", "minimum": 1, "maximum": limits.PAGE_PAYMENTS_MAX}
_ID: Final = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The last segment of the payment's URL.",
    "schema": {"type": "string", "minLength": 1},
}
_IDEMPOTENCY: Final = (
    {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "A string of the client's choice, in double quotes. A retry with the same key gets the "
        "payment that the first request created. The signature has to cover it.",
        "schema": {
            "type": "string",
            "pattern": r'^"([ !#-\[\]-~]|\\["\\])+"$',
            "maxLength": limits.IDEMPOTENCY_KEY_CHARS_MAX + 2,
        },
    },
)
_LIST: Final = {
    "path": COLLECTION_PATH,
    "success": Success(text="A page of the payments of the wallet address", schemas=("page",)),
    "codes": (
        *HTTP, "unexpected_body", "invalid_query", "unknown_cursor", "unknown_wallet_address", *SIGNED,
        "wallet_addresses_unavailable", *OUTAGES,
    ),
    "parameters": (
        a_query("wallet-address", "The URL of the wallet address.", _REQUESTED_URL, required=True),
        a_query("cursor", "`startCursor` or `endCursor` of a page: the list continues there.", _CURSOR),
        a_query(
            "first",
            "How many payments the page has at most, after the cursor: "
            f"{limits.PAGE_PAYMENTS_DEFAULT} without `first` and `last`.",
            _PAGE_SIZE,
        ),
        a_query("last", "The same, before the cursor. It needs a cursor, and excludes `first`.", _PAGE_SIZE),
    ),
}  # fmt: skip
_GET: Final = {
    "path": COLLECTION_PATH + "/{id}",
    "success": Success(
        text="The incoming payment. Without a token, only its public part",
        schemas=("incoming-payment", "public-incoming-payment"),
        optional_headers=_ANY_ORIGIN,
    ),
    "codes": (
        *HTTP, "unexpected_body", "not_found", *SIGNED, "payment_not_found", "wallet_addresses_unavailable", *OUTAGES,
    ),
    "parameters": (_ID,),
    "security": (SIGNED_REQUEST, {}),
}  # fmt: skip

OPERATIONS: Final = (
    Operation(
        id="create-incoming-payment",
        method="post",
        path=COLLECTION_PATH,
        summary="Create an incoming payment",
        description="The access token needs the action `create`.",
        success=Success(
            status=201,
            text="The incoming payment was created",
            schemas=("incoming-payment",),
            headers={"Location": "The URL of the incoming payment."},
        ),
        codes=(
            *HTTP, *WITH_BODY, "invalid_body", "unknown_wallet_address", "asset_mismatch", "invalid_terms", *SIGNED,
            "inactive_wallet_address", "invalid_idempotency_key", "idempotency_key_reused",
            "too_many_unpaid_payments", "approval_pending", "acceptance_unavailable", "wallet_addresses_unavailable",
            *OUTAGES,
        ),
        parameters=_IDEMPOTENCY,
        body="create-incoming-payment",
    ),
    Operation(
        id="list-incoming-payments",
        method="get",
        summary="List the incoming payments of a wallet address",
        description="The access token needs the action `list`, or `list-all` for payments of other clients.",
        **_LIST,
    ),
    Operation(
        id="head-incoming-payments",
        method="head",
        summary="Get the header fields of a list of incoming payments",
        description="As `get`, without the content.",
        has_content=False,
        **_LIST,
    ),
    Operation(
        id="get-incoming-payment",
        method="get",
        summary="Get an incoming payment",
        description="The access token needs the action `read`, or `read-all` for payments of other clients. Without "
        "`Authorization`, `Signature` and `Signature-Input`, the response is the public part, unless the service "
        "forbids it.",
        **_GET,
    ),
    Operation(
        id="head-incoming-payment",
        method="head",
        summary="Get the header fields of an incoming payment",
        description="As `get`, without the content.",
        has_content=False,
        **_GET,
    ),
    Operation(
        id="preflight-incoming-payment",
        method="options",
        path=COLLECTION_PATH + "/{id}",
        summary="Check whether a script of another website may read the public part",
        description="The preflight request of a browser. The service may forbid it.",
        success=Success(
            text="Scripts of any website may read the public part",
            schemas=("empty",),
            headers={
                "Access-Control-Allow-Origin": "`*`",
                "Access-Control-Allow-Methods": "The methods that a script may use.",
                "Access-Control-Allow-Headers": "The header fields that a script may set.",
                "Access-Control-Max-Age": "For how many seconds the answer is valid.",
            },
        ),
        codes=(*HTTP, "not_found"),
        parameters=(_ID,),
        security=({},),
    ),
    Operation(
        id="complete-incoming-payment",
        method="post",
        path=COLLECTION_PATH + "/{id}/complete",
        summary="Complete an incoming payment",
        description="The payment takes no more money. A completed payment does not change, so the request can be "
        "repeated. The access token needs the action `complete`, and the client must have created the payment.",
        success=Success(text="The incoming payment is completed", schemas=("incoming-payment-summary",)),
        codes=(*HTTP, "unexpected_body", *SIGNED, "payment_not_found", "payment_expired", *OUTAGES),
        parameters=(_ID,),
    ),
)  # fmt: skip


# --- the document ------------------------------------------------------------------------------------


def _headers(required: Mapping[str, str], optional: Mapping[str, str]) -> Schema:
    return {
        name: {"description": text, **({"required": True} if name in required else {}), "schema": {"type": "string"}}
        for name, text in {**required, **optional}.items()
    }


def _content(schema: Schema) -> Schema:
    return {JSON_MEDIA_TYPE: {"schema": schema}}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


_NO_STORE: Final = {"Cache-Control": "`no-store`, as a resource may hold a secret."}


def _success(operation: Operation) -> Schema:
    success = operation.success
    refs = [_ref("schemas", name) for name in success.schemas]
    schema = refs[0] if len(refs) == 1 else {"anyOf": refs}
    return {
        "description": success.text,
        "headers": _headers({**_NO_STORE, **success.headers}, success.optional_headers),
        **({"content": _content(schema)} if operation.has_content else {}),
    }


def _refusal(status: int, codes: Sequence[str], *, has_content: bool) -> Schema:
    texts: dict[str, list[str]] = {}
    for code in codes:
        texts.setdefault(CODES[code].cause, []).append(f"`{code}`")
    lines = [f"{', '.join(names)}: {text}" for text, names in texts.items()]
    if is_open := status in OPEN:
        lines.append(OPEN[status])
    causes = "\n".join(f"- {line}" for line in lines)
    enum = {"properties": {"error": {"properties": {"code": {"examples" if is_open else "enum": list(codes)}}}}}
    content = {"content": _content({"allOf": [_ref("schemas", "error"), enum]})} if has_content else {}
    headers = _headers({**_NO_STORE, **HEADERS.get(status, {})}, OPTIONAL_HEADERS.get(status, {}))
    return {"description": f"{STATUS_TEXTS[status]}.\n\n{causes}", "headers": headers, **content}


def document() -> Schema:
    """Return the OpenAPI document. Equal refusals of several operations share one component."""
    shared: dict[str, Schema] = {}
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        by_status: dict[int, list[str]] = {}
        for code in operation.codes:
            by_status.setdefault(CODES[code].status, []).append(code)
        responses = {str(operation.success.status): _success(operation)}
        for status, codes in sorted(by_status.items()):
            refusal = _refusal(status, codes, has_content=operation.has_content)
            names = (name for name, known in shared.items() if known == refusal)
            name = next(names, str(status) if str(status) not in shared else f"{status}-{operation.id}")
            shared[name] = refusal
            responses[str(status)] = _ref("responses", name)
        paths.setdefault(operation.path, {})[operation.method] = {
            "operationId": operation.id,
            "summary": operation.summary,
            **({"description": operation.description} if operation.description else {}),
            "security": list(operation.security),
            **({"parameters": list(operation.parameters)} if operation.parameters else {}),
            **(
                {"requestBody": {"required": True, "content": _content(_ref("schemas", operation.body))}}
                if operation.body
                else {}
            ),
            "responses": responses,
        }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Incoming payments",
            "version": project["version"],
            "description": "The incoming payments of Open Payments. Clients sign each request by HTTP message "
            "signatures (RFC 9421) with the key that their access token is bound to. The service adds neither null for "
            "an absent member nor unknown members, and refuses unknown members of a request.",
            "license": {"name": project["license"], "identifier": project["license"]},
        },
        "servers": [{"url": "https://bank.example"}],
        "paths": paths,
        "components": {
            "schemas": schemas(),
            "responses": dict(sorted(shared.items())),
            "securitySchemes": {
                "access-token": {
                    "type": "http",
                    "scheme": "GNAP",
                    "description": "An access token (RFC 9635 §7.2): `Authorization: GNAP <token>`.",
                },
                "signature-input": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Signature-Input",
                    "description": "The covered components and the parameters of the signature (RFC 9421 §4.1). They "
                    "cover `@method`, `@target-uri` and `authorization`, and `content-digest` if there is a body. "
                    "`keyid` is the `kid` of the key, and `created` is recent.",
                },
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Signature",
                    "description": "The signature (RFC 9421 §4.2).",
                },
            },
        },
    }


def text() -> str:
    """Return the document as the text of its file."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
