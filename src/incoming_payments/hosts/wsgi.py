"""The service as a WSGI application. PEP 3333.

Mount `WsgiApplication` as it is, or call its `answer` from a framework's own route.
"""

import http
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from attrs import evolve

from incoming_payments.api import Request, Response, body_too_large, http_refusal
from incoming_payments.errors import HttpRefused
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.run import run
from incoming_payments.hosts.clock import utc_now
from incoming_payments.hosts.host_log import HostLog
from incoming_payments.hosts.paths import below, encoded, origin_form
from incoming_payments.hosts.surfaces import Surfaces
from incoming_payments.ilp_http import PacketPolicy
from incoming_payments.limits import BODY_BYTES_MAX
from incoming_payments.ports import Ports

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024


class WsgiApplication:
    """The service, for any WSGI server. One object serves any number of threads.

    `mount` is the path the server puts before the service's own paths; by default what `SCRIPT_NAME` says. `clock`
    tells the time. What a port raises that no client can cause is answered with 500 and logged with its trace,
    as often in a minute as `limits.LOGGED_A_MINUTE_MAX` says, like troubles of the store; the others are counted.
    `packets` says from whom ILP packets are taken, and at which path; without it there is no such path. Raises
    `InvalidValue` when its receiver could not read the addresses that `ports.methods` hands out.
    `explain_refusals` logs why signatures were refused, with the likeliest cause and no secret, at most
    `limits.EXPLAINED_A_MINUTE_MAX` times a minute.
    """

    def __init__(
        self,
        *,
        policy: ServicePolicy,
        ports: Ports,
        packets: PacketPolicy | None = None,
        mount: str | None = None,
        clock: Callable[[], datetime] = utc_now,
        explain_refusals: bool = False,
    ) -> None:
        self._surfaces = Surfaces(policy, packets, ports.methods)
        self._ports = ports
        self._mount = mount
        self._clock = clock
        self._log = HostLog(logger, explain=explain_refusals)

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        """Answer one request: the WSGI interface."""
        response = self.answer(environ)
        headers = [*response.headers, ("Content-Length", str(len(response.body)))]
        is_head = environ["REQUEST_METHOD"] == "HEAD"  # RFC 9110 §9.3.2: GET's header fields without its content
        start_response(f"{response.status} {http.HTTPStatus(response.status).phrase}", headers)
        return [] if is_head else [response.body]

    def answer(self, environ: Mapping[str, Any]) -> Response:
        """The response to the request in `environ`, for a framework's own route to send. Raises nothing."""
        surface = self._surfaces.payments
        try:
            path = _path(environ, self._mount)
            surface = self._surfaces.at(path)
            answer = surface.begin(_head(environ, path))
            body = _read_body(environ, surface.body_bytes_max)
            response = run(answer(body, self._clock), self._ports)
        except HttpRefused as error:
            return http_refusal(error)
        except Exception as error:  # noqa: BLE001 - it is logged
            self._log.failed(error)
            return surface.failed()
        self._log.note(response)
        return response


def read_request(environ: Mapping[str, Any], *, mount: str | None = None) -> Request:
    """The request in a WSGI environment, its body read to the end.

    Raises `HttpRefused` when the body is over `limits.BODY_BYTES_MAX`, shorter than it says, or of no readable length.
    """
    return evolve(_head(environ, _path(environ, mount)), body=_read_body(environ, BODY_BYTES_MAX))


def _head(environ: Mapping[str, Any], path: str) -> Request:
    return Request(
        method=environ["REQUEST_METHOD"],
        path=path,
        query=environ.get("QUERY_STRING", ""),
        headers=tuple(_headers(environ)),
    )


def _path(environ: Mapping[str, Any], mount: str | None) -> str:
    """The path below the service, raw where the server tells it.

    PEP 3333 gives the path decoded only, but the signature covers it as sent. Most servers add the request's own
    line as `REQUEST_URI` or `RAW_URI`; it is used when it says the same as the decoded path, so that nothing in
    between can make the two differ.
    """
    script = environ.get("SCRIPT_NAME", "")
    decoded = script + environ.get("PATH_INFO", "")
    raw = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    raw = origin_form(raw)
    if unquote_to_bytes(raw).decode("latin-1") != decoded:
        raw = encoded(decoded.encode("latin-1"))
    return below(raw, encoded(script.encode("latin-1")) if mount is None else mount)


def _headers(environ: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in environ.items():
        # PEP 3333 gives these two names without HTTP_; what some servers add with it is the same once more.
        if key in {"HTTP_CONTENT_TYPE", "HTTP_CONTENT_LENGTH"}:
            continue
        if key.startswith("HTTP_"):
            yield key[5:].replace("_", "-").lower(), value
        elif key in {"CONTENT_TYPE", "CONTENT_LENGTH"} and value:
            yield key.replace("_", "-").lower(), value


def _read_body(environ: Mapping[str, Any], limit: int) -> bytes:
    stated = environ.get("CONTENT_LENGTH") or ""
    if not stated:
        # A chunked body has no length; only a server that ends the stream itself lets it be read to the end.
        is_terminated = environ.get("wsgi.input_terminated")
        if "HTTP_TRANSFER_ENCODING" in environ and not is_terminated:
            raise HttpRefused(411, "length_required", "send Content-Length: no body without it can be read here")
        length = limit + 1 if is_terminated else 0
    elif stated.isascii() and stated.isdigit():
        length = int(stated.lstrip("0")[:20] or "0")  # a number of any size is quadratic to convert
    else:
        raise HttpRefused(400, "invalid_content_length", "Content-Length must be a number of bytes")
    if stated and length > limit:
        raise body_too_large(limit)
    body = bytearray()
    try:
        while len(body) < length and (chunk := environ["wsgi.input"].read(min(length - len(body), _CHUNK_BYTES))):
            body += chunk
    except OSError:  # how servers say that the client hung up, or that its chunks cannot be read
        raise HttpRefused(400, "incomplete_body", "the body could not be read to its end") from None
    if len(body) > limit:
        raise body_too_large(limit)
    if stated and len(body) < length:
        raise HttpRefused(400, "incomplete_body", "the body ended before Content-Length was reached")
    return bytes(body)
