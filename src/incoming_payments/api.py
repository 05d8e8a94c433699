"""From a request to a response: routes, status codes, error bodies. Pure; a flow from end to end.

Everything is decided on what was received: the raw path and query, the header lines, the bytes of the body. The public
address of the service comes from its policy, never from the request.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

from attrs import evolve, field, frozen

from incoming_payments.domain.payment import PaymentId, payment_id
from incoming_payments.errors import (
    AccessForbidden,
    AssetMismatch,
    HttpRefused,
    IncomingPaymentsError,
    InvalidValue,
    MalformedJson,
    PaymentNotFound,
    PolicyRefused,
    SignatureRefused,
    StoreStopped,
    StoreUnavailable,
    TermsRefused,
    TokenRefused,
    WalletAddressNotFound,
)
from incoming_payments.flows.create import create_payment
from incoming_payments.flows.effects import Flow
from incoming_payments.flows.get import get_payment, get_public_payment
from incoming_payments.flows.policy import COLLECTION_PATH, ServicePolicy
from incoming_payments.gnap.access import payment_not_found
from incoming_payments.gnap.token import challenge
from incoming_payments.httpsig import RequestMessage
from incoming_payments.limits import (
    BODY_BYTES_MAX,
    HEADER_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    TARGET_CHARS_MAX,
)
from incoming_payments.wire import JSON_MEDIA_TYPE, write_error, write_view

Headers = tuple[tuple[str, str], ...]


def _headers(headers: Iterable[tuple[str, str]]) -> Headers:
    return tuple(headers)


def _body(body: bytes) -> bytes:
    return bytes(body)


@frozen
class Request:
    """An HTTP request, as received.

    `path` and `query` are raw, as sent, still percent-encoded: the path below the service's base URL, starting with
    a slash, and the query without its question mark. `headers` are (name, value) pairs in the order received, one a
    field line, with values decoded as latin-1. `body` is every byte of the content.
    """

    method: str
    path: str
    query: str = ""
    headers: Headers = field(default=(), converter=_headers, repr=False)
    body: bytes = field(default=b"", converter=_body, repr=False)

    def values(self, name: str) -> list[str]:
        """The values of the header field lines called `name`, which is given in lower case."""
        return [value for line, value in self.headers if line.lower() == name]


@frozen
class Response:
    """An HTTP response: status, header fields without `Content-Length`, and the bytes of the body.

    To a HEAD request it is that of GET, and whoever sends it leaves the body out. RFC 9110 §9.3.2.
    `cause` is the refusal or the outage that the response reports, for the host's log and never for the client.
    """

    status: int
    headers: Headers
    body: bytes = field(repr=False)
    cause: IncomingPaymentsError | None = field(default=None, repr=False, eq=False)


# The one table of status codes. A class that is not in it is our fault or the host's, and no client's: the host's
# edge answers it with 500.
STATUS: Final[Mapping[type[IncomingPaymentsError], int]] = {
    MalformedJson: 400,
    WalletAddressNotFound: 400,
    AssetMismatch: 400,
    TermsRefused: 400,
    TokenRefused: 401,
    SignatureRefused: 401,
    AccessForbidden: 403,
    PolicyRefused: 403,
    PaymentNotFound: 404,
    StoreUnavailable: 503,
    StoreStopped: 503,
}
_RETRY_AFTER_S: Final = "1"


def handle(request: Request, *, policy: ServicePolicy, now: datetime) -> Flow[Response]:
    """Answer one request to the service. Contract section 4.

    The answer to anything that a client can send is a response. Raises only what no client can cause, such as
    `PortMissing` or `StoreUnusable`.

    >>> from datetime import UTC
    >>> from incoming_payments.flows.run import run
    >>> from incoming_payments.ports import Ports
    >>> policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    >>> run(handle(Request("POST", "/"), policy=policy, now=datetime.now(UTC)), Ports()).status
    404
    """
    try:
        check_head(request)
        if len(request.body) > BODY_BYTES_MAX:
            raise body_too_large()
        _require_acceptable(request)
        answer, id = _route(request)
        return (yield from answer(request, id, policy, now))
    except tuple(STATUS) as error:
        return _refusal(error, policy)
    except HttpRefused as error:
        return http_refusal(error)


# --- routes ----------------------------------------------------------------------------------------

Answer = Callable[[Request, PaymentId, ServicePolicy, datetime], Flow[Response]]


def _create(request: Request, _: PaymentId, policy: ServicePolicy, now: datetime) -> Flow[Response]:
    require_content(request, JSON_MEDIA_TYPE)
    view = yield from create_payment(_signed(request, policy), policy, now)
    return _response(201, write_view(view), ("Location", view.id))


def _get(request: Request, id: PaymentId, policy: ServicePolicy, now: datetime) -> Flow[Response]:
    if request.body:
        raise HttpRefused(400, "unexpected_body", "a GET request has no body here: leave it out")
    if policy.public_get and not _claims_identity(request):
        return _response(200, write_view((yield from get_public_payment(id, policy))))
    view = yield from get_payment(_signed(request, policy), id, policy, now)
    return _response(200, write_view(view))


_ROUTES: Final[tuple[tuple[re.Pattern[str], Mapping[str, Answer]], ...]] = (
    (re.compile(re.escape(COLLECTION_PATH)), {"POST": _create}),
    (re.compile(re.escape(COLLECTION_PATH) + r"/(?P<id>[^/]+)"), {"GET": _get, "HEAD": _get}),
)


def _route(request: Request) -> tuple[Answer, PaymentId]:
    for pattern, answers in _ROUTES:
        if match := pattern.fullmatch(request.path):
            if request.method not in answers:
                allow = ", ".join(answers)
                raise HttpRefused(405, "method_not_allowed", f"use {allow} here", headers=(("Allow", allow),))
            return answers[request.method], _payment_id(match.groupdict().get("id"))
    raise HttpRefused(404, "not_found", f"there is nothing at this path: try {COLLECTION_PATH}")


def _payment_id(text: str | None) -> PaymentId:
    try:
        return PaymentId("") if text is None else payment_id(text)
    except InvalidValue:
        raise payment_not_found() from None


def _claims_identity(request: Request) -> bool:
    """Whether the request says who sends it: then that has to hold, and nothing less is answered instead."""
    return any(request.values(name) for name in ("authorization", "signature", "signature-input"))


def _signed(request: Request, policy: ServicePolicy) -> RequestMessage:
    query = f"?{request.query}" if request.query else ""
    return RequestMessage(request.method, f"{policy.base_url}{request.path}{query}", request.headers, request.body)


# --- what HTTP itself asks for ---------------------------------------------------------------------


def check_head(head: Request) -> None:
    """Raise `HttpRefused` with 414 or 431 when target or header fields are too large; the body is not looked at."""
    if len(head.path) + len(head.query) > TARGET_CHARS_MAX:
        raise HttpRefused(414, "target_too_long", f"path and query are longer than {TARGET_CHARS_MAX} characters")
    if len(head.headers) > HEADERS_MAX:
        raise HttpRefused(431, "headers_too_large", f"send at most {HEADERS_MAX} header fields")
    sizes = [len(name) + len(value) for name, value in head.headers]
    if sum(sizes) > HEADERS_BYTES_MAX or max(sizes, default=0) > HEADER_BYTES_MAX:
        raise HttpRefused(
            431,
            "headers_too_large",
            f"send at most {HEADERS_BYTES_MAX} bytes of header fields, and {HEADER_BYTES_MAX} in one",
        )


def body_too_large(limit: int = BODY_BYTES_MAX) -> HttpRefused:
    """The refusal of a body of more than `limit` bytes; hosts stop reading there and pass no such body on."""
    return HttpRefused(413, "body_too_large", f"send at most {limit} bytes")


def require_content(request: Request, *media_types: str) -> None:
    """Raise `HttpRefused` with 415 unless the body is of one of `media_types`, and neither packed nor encoded."""
    types = request.values("content-type")
    if len(types) != 1 or types[0].partition(";")[0].strip().lower() not in media_types:
        raise HttpRefused(
            415,
            "unsupported_media_type",
            f"send Content-Type: {media_types[0]}",
            headers=(("Accept", ", ".join(media_types)),),
        )
    if any(coding.strip().lower() not in {"", "identity"} for coding in request.values("content-encoding")):
        raise HttpRefused(
            415,
            "unsupported_encoding",
            "send the body as it is, without Content-Encoding",
            headers=(("Accept-Encoding", "identity"),),
        )


# How specific the ranges are that JSON is in. RFC 9110 §12.5.1: the most specific one that matches decides.
_RANGES: Final[Mapping[str, int]] = {"*/*": 0, "application/*": 1, JSON_MEDIA_TYPE: 2}

_NEVER: Final = re.compile(r";[ \t]*[qQ]=0(?:\.0{0,3})?[ \t]*(?:;|$)")  # RFC 9110 §12.4.2: a weight of zero


def _require_acceptable(request: Request) -> None:
    # RFC 9110 §5.6.1.2: empty members of a list are nothing; then so is a field of them alone.
    ranges = [part for value in request.values("accept") for part in value.split(",") if part.strip()]
    matching = [found for part in ranges if (found := _range(part))]
    if ranges and not max(matching, default=(0, False))[1]:
        raise HttpRefused(406, "not_acceptable", f"accept {JSON_MEDIA_TYPE}: there is nothing else")


def _range(media_range: str) -> tuple[int, bool] | None:
    """How specific the range is, and whether its weight allows it; `None` when JSON is not in it."""
    name, _, parameters = media_range.partition(";")
    specificity = _RANGES.get(name.strip().lower())
    return None if specificity is None else (specificity, not _NEVER.search(f";{parameters}"))


# --- responses -------------------------------------------------------------------------------------


def _response(status: int, body: bytes, *headers: tuple[str, str]) -> Response:
    # A resource holds a shared secret, and its numbers change by the second: nobody is to keep a copy.
    return Response(status, (("Content-Type", JSON_MEDIA_TYPE), ("Cache-Control", "no-store"), *headers), body)


def _refusal(error: IncomingPaymentsError, policy: ServicePolicy) -> Response:
    status = next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)
    description, details = error.description, error.details
    headers: Headers = ()
    if status == 401:
        headers = (("WWW-Authenticate", challenge(policy.auth_server)),)
    elif isinstance(error, StoreUnavailable | StoreStopped):
        # The store's own description is for the host: it may name files.
        description, details = "the service cannot do it now: try again", {}
        headers = (("Retry-After", _RETRY_AFTER_S),)
    return evolve(_response(status, write_error(error.code, description, details), *headers), cause=error)


def http_refusal(error: HttpRefused) -> Response:
    """The response to what a host refuses before there is a `Request`."""
    return _response(error.status, write_error(error.code, error.description, {}), *error.headers)


def internal_error() -> Response:
    """What a host answers when a port or this library failed.

    It says nothing: the reason belongs into the host's log.
    """
    return _response(500, write_error("internal_error", "the service failed; it has been logged", {}))
