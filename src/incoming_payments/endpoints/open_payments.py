"""Answer HTTP requests for Open Payments. This module has the routes, status codes and error bodies.

All decisions use the raw path and query, the header lines and the bytes of the body, as received. The public URL of the
service comes from its policy, never from the request.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final

from attrs import evolve, field, frozen

from incoming_payments import errors, limits
from incoming_payments.domain.checks import check_time, name_of
from incoming_payments.domain.payment import PaymentId, payment_id
from incoming_payments.errors import HttpRefused
from incoming_payments.flows.complete import complete_payment
from incoming_payments.flows.create import create_payment
from incoming_payments.flows.get import get_payment, get_public_payment
from incoming_payments.flows.list import list_payments
from incoming_payments.flows.machinery.effects import Flow, flow
from incoming_payments.flows.policy import COLLECTION_PATH, ServicePolicy
from incoming_payments.gnap.access import payment_not_found
from incoming_payments.gnap.token import challenge, parse_authorization
from incoming_payments.httpsig import RequestMessage
from incoming_payments.wire import JSON_MEDIA_TYPE, write_error, write_view

Headers = tuple[tuple[str, str], ...]


def _pairs(headers: Iterable[tuple[str, str]]) -> Headers:
    if isinstance(headers, Mapping):
        text = f"headers must be (name, value) pairs, such as list(request.headers.items()), not {name_of(headers)}"
        raise errors.InvalidValue(text, member="headers")
    # White space around a value is not a part of the value (RFC 9110 §5.5), but some servers do not remove it.
    return tuple((name, value.strip(" \t")) for name, value in headers)


def _octets(body: bytes) -> bytes:
    given: object = body
    # refuse an integer, because `bytes(5)` would be five zero bytes
    if not isinstance(given, bytes | bytearray | memoryview):
        raise errors.InvalidValue(f"body must be the bytes of the content, not {name_of(given)}", member="body")
    return bytes(given)


@frozen
class Request:
    """An HTTP request as received.

    `path` and `query` are raw, still percent-encoded. `path` begins with a slash and is relative to the base
    URL of the service. `query` has no question mark. `headers` are (name, value) pairs in the order received, one for
    each field line, with values decoded as Latin-1. The white space around a value is removed (RFC 9110 §5.5). `body`
    has all bytes of the content. Raises `InvalidValue` if `headers` is a mapping, or if `body` has another type.
    """

    method: str
    path: str
    query: str = ""
    headers: Headers = field(default=(), converter=_pairs, repr=False)
    body: bytes = field(default=b"", converter=_octets, repr=False)

    def values(self, name: str) -> list[str]:
        """Return the values of the header field lines with this name. `name` is in lower case."""
        return [value for line, value in self.headers if line.lower() == name]


@frozen
class Response:
    """An HTTP response, with a status, header fields other than `Content-Length`, and the bytes of the body.

    The response to HEAD is the same as to GET, and the host leaves out the body (RFC 9110 §9.3.2). `cause` is the
    refusal or the failure that the response reports. Only the log of the host may show `cause`, and never the client.
    """

    status: int
    headers: Headers
    body: bytes = field(repr=False)
    cause: errors.IncomingPaymentsError | None = field(default=None, repr=False, eq=False)


# The status for each error that a client can cause, and for ports that cannot answer. Other errors become a 500.
STATUS: Final[Mapping[type[errors.IncomingPaymentsError], int]] = {
    errors.MalformedJson: 400,
    errors.MalformedIdempotencyKey: 400,
    errors.MalformedQuery: 400,
    errors.CursorNotFound: 400,
    errors.WalletAddressNotFound: 400,
    errors.AssetMismatch: 400,
    errors.TermsRefused: 400,
    errors.TokenRefused: 401,
    errors.SignatureRefused: 401,
    errors.AccessForbidden: 403,
    errors.PolicyRefused: 403,
    errors.WalletAddressInactive: 403,
    errors.PaymentNotFound: 404,
    errors.PaymentExpired: 409,
    errors.IdempotencyKeyReused: 422,
    errors.QuotaExceeded: 429,
    errors.ApprovalPending: 503,
    errors.PortUnavailable: 503,
    errors.ApprovalUnavailable: 503,
    errors.AuthorizationServerUnavailable: 503,
    errors.ClientKeysUnavailable: 503,
    errors.ClockBehind: 503,
    errors.WalletAddressesUnavailable: 503,
    errors.StoreUnavailable: 503,
    errors.StoreStopped: 503,
}
_RETRY_AFTER_S: Final = "1"
_IDENTITY: Final = frozenset({"authorization", "signature", "signature-input"})
_PATH_CHARS_SHOWN: Final = 200  # the longest path that an error shows


@flow
def handle(
    request: Request, *, policy: ServicePolicy, now: datetime, clock: Callable[[], datetime] | None = None
) -> Flow[Response]:
    """Answer one request to the service (spec section 4).

    `now` is the time of the request. `clock` returns the time for later decisions. By default, `clock` returns `now`.
    Raises `InvalidValue` unless `now` is in UTC.

    A refusal is also a response. A client can never cause an exception, such as `PortMissing` or `StoreUnusable`.

    >>> from datetime import UTC
    >>> from incoming_payments.flows.machinery.run import run
    >>> from incoming_payments.flows.machinery.ports import Ports
    >>> policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    >>> run(handle(Request("POST", "/"), policy=policy, now=datetime.now(UTC)), Ports()).status
    404
    """
    check_time(now)
    try:
        check_head(request)
    except HttpRefused as error:
        return http_refusal(error)
    return (yield from answer(request, request.body, policy, now, clock or (lambda: now)))


def answer(
    head: Request, body: bytes, policy: ServicePolicy, now: datetime, clock: Callable[[], datetime]
) -> Flow[Response]:
    """Answer the request with the headers of `head`, which have passed `check_head`, and this `body`. See `handle`."""
    try:
        if len(body) > limits.BODY_BYTES_MAX:
            raise body_too_large()
        query = f"?{head.query}" if head.query else ""
        # From here on, read header fields through the index of `message`.
        message = RequestMessage(head.method, f"{policy.base_url}{head.path}{query}", head.headers, body)
        route, id = route_of(head.path, policy)
        is_public = _is_public(head.method, route, message, policy)
        respond = _respond(head, route, policy, is_public=is_public)
        if not (is_public or head.method == "OPTIONS" or message.values("authorization")):
            # The 401 comes before the checks for 406 and 415, so that every client learns `as_uri`.
            parse_authorization(())
        _require_acceptable(message)
        if is_public and respond is _get:
            respond = _get_public
        return (yield from respond(message, id, policy, now, clock))
    except tuple(STATUS) as error:
        return _refusal(error, policy)
    except HttpRefused as error:
        return http_refusal(error)


# --- routes ----------------------------------------------------------------------------------------

Clock = Callable[[], datetime]
Answer = Callable[[RequestMessage, str, ServicePolicy, datetime, Clock], Flow[Response]]


def _create(request: RequestMessage, _: str, policy: ServicePolicy, now: datetime, clock: Clock) -> Flow[Response]:
    require_content(request, JSON_MEDIA_TYPE)
    view = yield from create_payment(request, policy, now, clock)
    return _response(201, write_view(view), ("Location", view.id))


def _list(request: RequestMessage, _: str, policy: ServicePolicy, now: datetime, _clock: Clock) -> Flow[Response]:
    _require_no_body(request)
    view = yield from list_payments(request, request.target_uri.partition("?")[2], policy, now)
    return _response(200, write_view(view))


def _complete(request: RequestMessage, name: str, policy: ServicePolicy, now: datetime, clock: Clock) -> Flow[Response]:
    id = _payment_id(name)
    _require_no_body(request)  # accept a Content-Type, because real clients send this field even if there is no body
    view = yield from complete_payment(request, id, policy, now, clock)
    return _response(200, write_view(view))


def _get(request: RequestMessage, name: str, policy: ServicePolicy, now: datetime, _clock: Clock) -> Flow[Response]:
    id = _payment_id(name)
    _require_no_body(request)
    view = yield from get_payment(request, id, policy, now)
    return _response(200, write_view(view))


def _get_public(
    request: RequestMessage, name: str, policy: ServicePolicy, _now: datetime, _clock: Clock
) -> Flow[Response]:
    id = _payment_id(name)
    _require_no_body(request)
    view = yield from get_public_payment(id, policy)
    return _response(200, write_view(view), *([_ANY_ORIGIN] if policy.public_cors else []))


def _options(_: RequestMessage, _id: str, _policy: ServicePolicy, _now: datetime, _clock: Clock) -> Flow[Response]:
    """Answer the preflight request of a browser. Scripts may read only the public view, without `Authorization`."""
    yield from ()
    return _response(200, b"{}", _ANY_ORIGIN, *_PREFLIGHT)


_ANY_ORIGIN: Final = ("Access-Control-Allow-Origin", "*")
_PREFLIGHT: Final = (
    ("Access-Control-Allow-Methods", "GET, HEAD"),
    ("Access-Control-Allow-Headers", "Content-Type"),
    ("Access-Control-Max-Age", "7200"),  # the longest time in seconds that browsers allow
)
_PAYMENT_PATH: Final = re.compile(f"{re.escape(COLLECTION_PATH)}/([^/]+)(.*)", re.DOTALL)
_PAYMENT: Final = f"{COLLECTION_PATH}/{{id}}"

# The operations for each path and method. Observers see these paths as routes.
ROUTES: Final[Mapping[str, Mapping[str, Answer]]] = {
    COLLECTION_PATH: {"POST": _create, "GET": _list, "HEAD": _list},
    _PAYMENT: {"GET": _get, "HEAD": _get, "OPTIONS": _options},
    f"{_PAYMENT}/complete": {"POST": _complete},
}


def route_of(path: str, policy: ServicePolicy) -> tuple[str, str]:
    """Return the path in `ROUTES` that matches the raw `path`, and the id in `path`, or two empty texts.

    >>> policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    >>> route_of("/incoming-payments/7/complete", policy), route_of("/incoming-payments", policy)
    (('/incoming-payments/{id}/complete', '7'), ('/incoming-payments', ''))
    """
    if policy.trailing_slash:
        path = path.removesuffix("/")
    match = _PAYMENT_PATH.fullmatch(path)
    route, id = (f"{_PAYMENT}{match[2]}", match[1]) if match else (path, "")
    return (route, id) if route in ROUTES else ("", "")


def _respond(request: Request, route: str, policy: ServicePolicy, *, is_public: bool) -> Answer:
    if not route:
        text = f"this service has no path {request.path[:_PATH_CHARS_SHOWN]!a}"
        raise HttpRefused(404, "not_found", f"{text}: use {policy.base_url}{COLLECTION_PATH}")
    answers = ROUTES[route]
    answer = answers.get(request.method)
    takes_preflights = policy.public_get and policy.public_cors
    if answer is None or (answer is _options and not (takes_preflights and is_public)):
        methods = [name for name in answers if name != "OPTIONS" or takes_preflights]
        allow = ", ".join([name for name in methods if name != request.method])
        raise HttpRefused(405, "method_not_allowed", f"use {allow} for this path", headers=(("Allow", allow),))
    return answer


def _payment_id(text: str) -> PaymentId:
    try:
        return payment_id(text)
    except errors.InvalidValue:
        raise payment_not_found() from None


def _is_public(method: str, route: str, message: RequestMessage, policy: ServicePolicy) -> bool:
    """Return whether the request is for the public view, which is a GET of a payment without a token and a signature.

    A request with an invalid token or signature does not get the public view. OPTIONS counts as GET.
    """
    return (
        policy.public_get
        and method in {"GET", "HEAD", "OPTIONS"}
        and route == _PAYMENT
        and _IDENTITY.isdisjoint(message.fields)
    )


# --- checks of HTTP itself -------------------------------------------------------------------------


def check_head(head: Request) -> None:
    """Raise `HttpRefused` with 414 or 431 when the target or the header fields are too large. Ignore the body."""
    if len(head.path) + len(head.query) > limits.TARGET_CHARS_MAX:
        raise HttpRefused(414, "target_too_long", f"shorten path and query to {limits.TARGET_CHARS_MAX} characters")
    if len(head.headers) > limits.HEADERS_MAX:
        raise HttpRefused(431, "headers_too_large", f"send at most {limits.HEADERS_MAX} header fields")
    sizes = [len(name) + len(value) for name, value in head.headers]
    if sum(sizes) > limits.HEADERS_BYTES_MAX or max(sizes, default=0) > limits.HEADER_BYTES_MAX:
        text = f"send at most {limits.HEADERS_BYTES_MAX} bytes of header fields"
        raise HttpRefused(431, "headers_too_large", f"{text}, and at most {limits.HEADER_BYTES_MAX} in one field")


def body_too_large(limit: int = limits.BODY_BYTES_MAX) -> HttpRefused:
    """Return the refusal of a body of more than `limit` bytes. Hosts stop reading the body at the limit."""
    return HttpRefused(413, "body_too_large", f"send a body of at most {limit} bytes")


def require_content(request: Request | RequestMessage, *media_types: str) -> None:
    """Raise `HttpRefused` with 415 unless the body has one of `media_types` and no content coding."""
    types = request.values("content-type")
    if len(types) != 1 or types[0].partition(";")[0].strip().lower() not in media_types:
        accepted = (("Accept", ", ".join(media_types)),)
        raise HttpRefused(415, "unsupported_media_type", f"send Content-Type: {media_types[0]}", headers=accepted)
    if any(coding.strip().lower() not in {"", "identity"} for coding in request.values("content-encoding")):
        accepted = (("Accept-Encoding", "identity"),)
        raise HttpRefused(415, "unsupported_encoding", "send the body without Content-Encoding", headers=accepted)


def _require_no_body(request: RequestMessage) -> None:
    if request.body:
        text = f"this {request.method} request must not have a body: leave out the body"
        raise HttpRefused(400, "unexpected_body", text)


# The media ranges that match JSON, with their specificity. The most specific range decides (RFC 9110 §12.5.1).
_RANGES: Final[Mapping[str, int]] = {"*/*": 0, "application/*": 1, JSON_MEDIA_TYPE: 2}

_NEVER: Final = re.compile(r";[ \t]*[qQ]=0(?:\.0{0,3})?[ \t]*(?:;|$)")  # a weight of zero (RFC 9110 §12.4.2)


def _require_acceptable(request: RequestMessage) -> None:
    if not _accepts_json(request.values("accept")):
        text = f"accept {JSON_MEDIA_TYPE}, the only media type of this service, in an Accept field of at most"
        raise HttpRefused(406, "not_acceptable", f"{text} {limits.ACCEPT_CHARS_MAX} characters")


def _accepts_json(values: tuple[str, ...]) -> bool:
    # The client is not authenticated yet, and each range takes time, so limit the length of the fields.
    if sum(map(len, values)) > limits.ACCEPT_CHARS_MAX:
        return False
    # Ignore empty list members (RFC 9110 §5.6.1.2). A field that has only empty members counts as absent.
    ranges = [part for value in values for part in value.split(",") if part.strip()]
    matching = [found for part in ranges if (found := _range(part))]
    return not ranges or max(matching, default=(0, False))[1]


def _range(media_range: str) -> tuple[int, bool] | None:
    """Return the specificity of the range, and whether its weight is above zero.

    Return `None` if the range does not match JSON.
    """
    name, _, parameters = media_range.partition(";")
    specificity = _RANGES.get(name.strip().lower())
    return None if specificity is None else (specificity, not _NEVER.search(f";{parameters}"))


# --- responses -------------------------------------------------------------------------------------


def _response(status: int, body: bytes, *headers: tuple[str, str]) -> Response:
    # A resource contains a shared secret and changes often, so no cache may store it.
    return Response(status, (("Content-Type", JSON_MEDIA_TYPE), ("Cache-Control", "no-store"), *headers), body)


def _refusal(error: errors.IncomingPaymentsError, policy: ServicePolicy) -> Response:
    status = next(STATUS[cls] for cls in type(error).__mro__ if cls in STATUS)
    # The description of a store error may name the file of the store.
    shown = payment_not_found() if isinstance(error, errors.PaymentNotFound) else error
    description, details = policy.describe(shown), shown.details
    headers: Headers = ()
    if status == 401:
        headers = (("WWW-Authenticate", challenge(policy.auth_server)),)
    elif isinstance(error, errors.QuotaExceeded):
        headers = (("Retry-After", str(max(1, math.ceil(error.retry_after_s)))),)
    elif status == 503:
        if not isinstance(error, errors.ApprovalPending):
            # The description may name files or servers of the host, so a client must not see it.
            description, details = "the service cannot answer now: try again later", {}
        headers = (("Retry-After", _RETRY_AFTER_S),)
    return evolve(_response(status, write_error(error.code, description, details), *headers), cause=error)


def http_refusal(error: HttpRefused) -> Response:
    """Return the response to a request that a host refuses before it builds a `Request`."""
    body = write_error(error.code, error.description, {})
    return evolve(_response(error.status, body, *error.headers), cause=error)


def internal_error() -> Response:
    """Return the response of a host after a port or this library failed. The host logs the reason."""
    return _response(
        500, write_error("internal_error", "the service failed and logged the reason: try again later", {})
    )
