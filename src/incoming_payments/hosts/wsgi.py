"""The service as a WSGI application (PEP 3333).

Mount a `WsgiApplication`, or call its method `answer` in a route of a framework.
"""

import http
import logging
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from attrs import evolve

from incoming_payments.domain.checks import name_of
from incoming_payments.endpoints.open_payments import Request, Response, body_too_large, http_refusal
from incoming_payments.errors import ConfigurationError, HttpRefused
from incoming_payments.hosts._paths import Mount, below, check_body, encoded, origin_form
from incoming_payments.hosts.host_log import HostLog, NothingRead, ReadFailed
from incoming_payments.limits import BODY_BYTES_MAX, HEADERS_MAX
from incoming_payments.service import IncomingPayments

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024
_UNREADABLE: Final = (
    "the body could not be read to its end: correct its length or its chunks, and send the request again"
)


class WsgiApplication:
    """The `service` as an application for any WSGI server. Thread-safe.

    - `mount` is the path in front of the service's own paths. The default is the path of `base_url`. A request path
      that does not begin with `mount` is also accepted, because some servers and proxies remove `mount`.
    - `explain_refusals` logs why signatures were refused, at most `limits.EXPLAINED_A_MINUTE_MAX` times a minute. The
      report names the likeliest cause and contains no secret.

    Route `paths`, and every path below them, to the application.

    Raises `ConfigurationError` when the service is not an `IncomingPayments`, when a port for the routes is missing, or
    when `mount` does not begin with a slash.

    The application reads at most `limits.BODY_BYTES_MAX` bytes of a body. It cannot limit the time of a read, because a
    read in WSGI blocks. The server or a proxy has to limit the time. The application answers with 500 after an
    unexpected exception of a port, and logs the traceback. The log has at most `limits.LOGGED_A_MINUTE_MAX` lines of
    each kind a minute.
    """

    def __init__(self, service: IncomingPayments, *, mount: str | None = None, explain_refusals: bool = False) -> None:
        self._mount = Mount(service, IncomingPayments, mount)
        self._service = service
        self.paths = self._mount.endpoints
        self._log = HostLog(logger, explain=explain_refusals)

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse | None" = None, *others: object
    ) -> Iterable[bytes]:
        """Answer one request (PEP 3333). Raises `ConfigurationError` for a call by an ASGI server or framework."""
        if start_response is None or others:  # ASGI 2 passes only the scope, and ASGI 3 passes three arguments
            text = "an ASGI server called WsgiApplication: use AsgiApplication(AsyncIncomingPayments(...))"
            raise ConfigurationError(text, setting="application")
        response = self.answer(environ)
        headers = [*response.headers, ("Content-Length", str(len(response.body)))]
        # send the header fields of GET without the content (RFC 9110 §9.3.2)
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        start_response(f"{response.status} {http.HTTPStatus(response.status).phrase}", headers)
        return [] if is_head else [response.body]

    def answer(self, environ: Mapping[str, Any], *, body: bytes | None = None) -> Response:
        """Return the response to the request in `environ`, which a route of a framework can send.

        Pass the `body` if other code has already read it. In that case, `wsgi.input` is not read. Raises
        `ConfigurationError` if `environ` is not a WSGI environ, or the body is not bytes, and no other exception.
        """
        given: object = environ
        if not isinstance(given, Mapping) or "REQUEST_METHOD" not in given:
            found = "an ASGI scope" if isinstance(given, Mapping) else name_of(given)
            text = f"answer() of WsgiApplication takes the WSGI environ, such as request.environ, not {found}"
            raise ConfigurationError(text, setting="environ")
        check_body(body)
        begin_s = time.perf_counter()
        path, response = self._answer(environ, body)
        self._service.answered(environ["REQUEST_METHOD"], path, response, begin_s)
        return response

    def _answer(self, environ: Mapping[str, Any], body: bytes | None) -> tuple[str, Response]:
        """Return the path below the base URL, and the response to the request."""
        path, endpoint = "", self._service.endpoint("")
        try:
            path = below(_path(environ), self._mount.path)
            endpoint = self._service.endpoint(path)
            answer = endpoint.begin(_head(environ, path))
            body = _body(environ, body, endpoint.body_bytes_max)
            response = self._service.run(answer(body))
        except HttpRefused as error:
            if isinstance(error, NothingRead):
                self._log.nothing_read(environ["REQUEST_METHOD"], _path(environ))
            elif isinstance(error, ReadFailed):
                self._log.read_failed(environ["REQUEST_METHOD"], _path(environ), error)
            return path, http_refusal(error)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._log.failed(error)
            return path, endpoint.failed()
        self._log.note(response)
        if response.status == 404:
            self._log.not_found(_path(environ), self._mount)
        return path, response


def read_request(environ: Mapping[str, Any], *, mount: str = "") -> Request:
    """Return the request in a WSGI environ with its whole body. The path of the request does not contain `mount`.

    The request has at most `limits.HEADERS_MAX` header fields and one more, so that the service refuses a longer list.
    Raises `HttpRefused` when the body exceeds `limits.BODY_BYTES_MAX`, when it is shorter than its `Content-Length`, or
    when `Content-Length` is not a number.
    """
    return evolve(_head(environ, below(_path(environ), mount)), body=_body(environ, None, BODY_BYTES_MAX))


def _head(environ: Mapping[str, Any], path: str) -> Request:
    return Request(
        method=environ["REQUEST_METHOD"],
        path=path,
        query=environ.get("QUERY_STRING", ""),
        # One field above the limit is enough for a refusal, and some servers pass on any number of fields.
        headers=tuple(islice(_headers(environ), HEADERS_MAX + 1)),
    )


def _path(environ: Mapping[str, Any]) -> str:
    """Return the whole path, if possible as the client sent it, because the signature covers that form.

    A PEP 3333 environ has only the decoded path. Most servers add the target of the request line as `REQUEST_URI` or
    `RAW_URI`. This function uses that target only if it decodes to the decoded path of the environ.
    """
    decoded = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    raw = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    raw = origin_form(raw)
    if unquote_to_bytes(raw).decode("latin-1") != decoded:
        raw = encoded(decoded.encode("latin-1"))
    return raw


def _headers(environ: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in environ.items():
        # In PEP 3333, these two names do not have the prefix HTTP_, but some servers also add names with the prefix.
        if key in {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}:
            continue
        if key.startswith("HTTP_"):
            yield key[5:].replace("_", "-").lower(), value
        elif key in {"CONTENT_TYPE", "CONTENT_LENGTH"} and value:
            yield key.replace("_", "-").lower(), value


def _body(environ: Mapping[str, Any], body: bytes | None, limit: int) -> bytes:
    """Return the body of the request, which is `body` if the host has already read it."""
    if body is None:
        body = _read_body(environ, limit)
    if len(body) > limit:
        raise body_too_large(limit)
    if not body and (environ.get("CONTENT_LENGTH") or "").strip("0"):
        raise NothingRead(400, "incomplete_body", "the body is empty, but Content-Length is not 0: send the whole body")
    return body


def _read_body(environ: Mapping[str, Any], limit: int) -> bytes:
    stated = environ.get("CONTENT_LENGTH") or ""
    if not stated:
        # A chunked body has no length. The adapter can read such a body only if the server marks the end of the stream.
        is_terminated = environ.get("wsgi.input_terminated")
        if "HTTP_TRANSFER_ENCODING" in environ and not is_terminated:
            raise HttpRefused(
                411,
                "length_required",
                "the request has a body but no Content-Length: send Content-Length, because this server "
                "cannot read chunked bodies",
            )
        length = limit + 1 if is_terminated else 0
    elif stated.isascii() and stated.isdigit():
        # convert few digits, because the conversion takes time quadratic in their number
        length = int(stated.lstrip("0")[:20] or "0")
    else:
        raise HttpRefused(400, "invalid_content_length", "Content-Length must be a number of bytes")
    if stated and length > limit:
        raise body_too_large(limit)
    if "stream" in getattr(environ.get("werkzeug.request"), "__dict__", ()):
        return b""  # code of Flask has already read the body, and some servers would wait for more bytes
    body, stream = bytearray(), environ["wsgi.input"]
    try:
        while len(body) < length and (chunk := stream.read(min(length - len(body), _CHUNK_BYTES))):
            body += chunk
    except OSError:  # the client disconnected, or sent malformed chunks
        raise HttpRefused(400, "incomplete_body", _UNREADABLE) from None
    except Exception as error:  # gunicorn raises its own exceptions for malformed chunks
        raise ReadFailed(400, "incomplete_body", _UNREADABLE) from error
    if stated and 0 < len(body) < length:
        raise HttpRefused(400, "incomplete_body", "the body is shorter than Content-Length: send the whole body")
    return bytes(body)
