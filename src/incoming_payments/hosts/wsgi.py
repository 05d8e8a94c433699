"""The service as a WSGI application. PEP 3333.

Mount `WsgiApplication` as it is, or call its `answer` from a framework's own route.
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
_UNREADABLE: Final = "the body could not be read to its end: check its length or its chunks, and send it again"


class WsgiApplication:
    """The `service` as an application for any WSGI server. Thread-safe.

    - `mount` is the path in front of the service's own paths. The default is the path of `base_url`. A request
      without the `mount` is accepted, because some servers and proxies remove it.
    - `explain_refusals` logs why signatures were refused, at most `limits.EXPLAINED_A_MINUTE_MAX` times a minute. The
      report names the likeliest cause and holds no secret.

    Route `paths`, and every path below them, to the application.

    Raises `ConfigurationError` when the service is not an `IncomingPayments`, when a port for the routes is missing, or
    when `mount` does not begin with a slash.

    The application reads at most `limits.BODY_BYTES_MAX` bytes of a body. It cannot limit the time of a read, because a
    read in WSGI blocks. The server or a proxy has to set that limit. An unexpected exception of a port is answered with
    500 and logged with its traceback. Such lines, and those about outages of the store, are limited to
    `limits.LOGGED_A_MINUTE_MAX` of each kind a minute.
    """

    def __init__(self, service: IncomingPayments, *, mount: str | None = None, explain_refusals: bool = False) -> None:
        self._mount = Mount(service, IncomingPayments, mount)
        self._service = service
        self.paths = self._mount.endpoints
        self._log = HostLog(logger, explain=explain_refusals)

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse | None" = None, *others: object
    ) -> Iterable[bytes]:
        """Answer one request. PEP 3333. Raises `ConfigurationError` when an ASGI server or framework calls it."""
        if start_response is None or others:  # ASGI 2 passes only the scope, and ASGI 3 passes three arguments
            text = "an ASGI server called WsgiApplication: use AsgiApplication(AsyncIncomingPayments(...))"
            raise ConfigurationError(text, setting="application")
        response = self.answer(environ)
        headers = [*response.headers, ("Content-Length", str(len(response.body)))]
        is_head = environ["REQUEST_METHOD"] == "HEAD"  # RFC 9110 §9.3.2: the header fields of GET without its content
        start_response(f"{response.status} {http.HTTPStatus(response.status).phrase}", headers)
        return [] if is_head else [response.body]

    def answer(self, environ: Mapping[str, Any], *, body: bytes | None = None) -> Response:
        """Return the response to the request in `environ`, for a framework's own route to send.

        Pass the `body` if other code has already read it. In that case, `wsgi.input` is not read. Raises
        `ConfigurationError` if the argument is not an environ, or the body is not bytes. It raises no other exception.
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
        """Return the response to the request, with the path below the base URL."""
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
    """Return the request in a WSGI environment with its whole body. Its path has no `mount` in front.

    Of its header fields, the request has at most one more than `limits.HEADERS_MAX`, for which the service refuses it.
    Raises `HttpRefused` when the body is over `limits.BODY_BYTES_MAX` or shorter than its `Content-Length`, or when the
    length is not a number.
    """
    return evolve(_head(environ, below(_path(environ), mount)), body=_body(environ, None, BODY_BYTES_MAX))


def _head(environ: Mapping[str, Any], path: str) -> Request:
    return Request(
        method=environ["REQUEST_METHOD"],
        path=path,
        query=environ.get("QUERY_STRING", ""),
        # The first field too many is enough for a refusal, and some servers pass on any number of fields.
        headers=tuple(islice(_headers(environ), HEADERS_MAX + 1)),
    )


def _path(environ: Mapping[str, Any]) -> str:
    """Return the whole path, as sent if the server reports it: the signature covers the path as sent.

    PEP 3333 has the decoded path only. Most servers add the target of the request line as `REQUEST_URI` or `RAW_URI`.
    This target is used only if it decodes to the same path, so that the two cannot differ.
    """
    decoded = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    raw = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    raw = origin_form(raw)
    if unquote_to_bytes(raw).decode("latin-1") != decoded:
        raw = encoded(decoded.encode("latin-1"))
    return raw


def _headers(environ: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in environ.items():
        # PEP 3333 has these two names without the prefix HTTP_, but some servers also add them with the prefix.
        if key in {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}:
            continue
        if key.startswith("HTTP_"):
            yield key[5:].replace("_", "-").lower(), value
        elif key in {"CONTENT_TYPE", "CONTENT_LENGTH"} and value:
            yield key.replace("_", "-").lower(), value


def _body(environ: Mapping[str, Any], body: bytes | None, limit: int) -> bytes:
    """Return the body of the request: `body`, if the host has read it already."""
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
        # A chunked body has no length. It can be read only if the server marks the end of the stream.
        is_terminated = environ.get("wsgi.input_terminated")
        if "HTTP_TRANSFER_ENCODING" in environ and not is_terminated:
            raise HttpRefused(411, "length_required", "send Content-Length: this server cannot read a body without it")
        length = limit + 1 if is_terminated else 0
    elif stated.isascii() and stated.isdigit():
        length = int(stated.lstrip("0")[:20] or "0")  # the conversion of a number takes time quadratic in its length
    else:
        raise HttpRefused(400, "invalid_content_length", "Content-Length must be a number of bytes")
    if stated and length > limit:
        raise body_too_large(limit)
    if "stream" in getattr(environ.get("werkzeug.request"), "__dict__", ()):
        return b""  # other code in Flask has read the body, and some servers would wait for more bytes
    body, stream = bytearray(), environ["wsgi.input"]
    try:
        while len(body) < length and (chunk := stream.read(min(length - len(body), _CHUNK_BYTES))):
            body += chunk
    except OSError:  # the client disconnected, or its chunks are malformed
        raise HttpRefused(400, "incomplete_body", _UNREADABLE) from None
    except Exception as error:  # gunicorn has exceptions of its own for malformed chunks
        raise ReadFailed(400, "incomplete_body", _UNREADABLE) from error
    if stated and 0 < len(body) < length:
        raise HttpRefused(400, "incomplete_body", "the body is shorter than Content-Length: send the whole body")
    return bytes(body)
