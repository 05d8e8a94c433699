"""Odd introspection answers, and a server that gives one of them over HTTP."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast

from kits.service_kit import ALICE, SHOP, ed25519_key

TIMEOUT_S: Final = 10.0
HANG_S: Final = 0.3  # how long the client waits for a server that hangs
_RIGHT: Final = {"type": "incoming-payment", "actions": ["create", "read"], "identifier": ALICE.url}
_OTHER: Final = {"type": "quote", "actions": ["create", "read"]}

Serve = Callable[[BaseHTTPRequestHandler, threading.Event], None]
Answered = tuple[int, str | None]
OK: Final[Answered] = (201, None)
INVALID: Final[Answered] = (401, "invalid_token")
NO_RIGHT: Final[Answered] = (401, "insufficient_rights")
NO_KEY: Final[Answered] = (401, "key_unusable")
OUTAGE: Final[Answered] = (503, "authorization_server_unavailable")


def an_answer(**changes: object) -> dict[str, Any]:
    """Return the introspection answer for a token that may create payments. A change to `...` removes a member."""
    members = {
        "active": True,
        "iss": "https://auth.bank.example",
        "client": SHOP,
        "key": {"proof": "httpsig", "jwk": ed25519_key().public_jwk()},
        "exp": 4_000_000_000,
        "access": [_RIGHT],
        **changes,
    }
    return {name: value for name, value in members.items() if value is not ...}


def a_right(**changes: object) -> dict[str, Any]:
    """Return an answer with one right, changed. A change to `...` removes a member of the right."""
    return an_answer(access=[{name: value for name, value in {**_RIGHT, **changes}.items() if value is not ...}])


# Each answer, as JSON or as bytes, and the response to the client.
CONTENTS: Final[Mapping[str, tuple[object, Answered]]] = {
    "as in RFC 9767": (an_answer(client=..., instance_id="7C7C4AZ9KHRS6X63AJAO"), OK),
    "not active": ({"active": False}, INVALID),
    "for this service": (an_answer(aud="bank"), OK),
    "for this service and others": (an_answer(aud=["shop", "bank"]), OK),
    "for other services": (an_answer(aud=["shop"]), INVALID),
    "for another service": (an_answer(aud="shop"), INVALID),
    "aud is a number": (an_answer(aud=7), OUTAGE),
    "aud holds a number": (an_answer(aud=["bank", 7]), OUTAGE),
    "of another authorization server": (an_answer(iss="https://auth.elsewhere.example"), INVALID),
    "no iss": (an_answer(iss=...), OUTAGE),
    "iss is a number": (an_answer(iss=7), OUTAGE),
    "not active yet": (an_answer(nbf=3_999_999_999), INVALID),
    "active since": (an_answer(nbf=1.5, iat=1), OK),
    "nbf is a string": (an_answer(nbf="2020-01-01"), OUTAGE),
    "no exp": (an_answer(exp=...), OK),
    "exp is null": (an_answer(exp=None), OK),
    "exp with a fraction": (an_answer(exp=4e9 + 0.5), OK),
    "expired": (an_answer(exp=1), (401, "token_expired")),
    "exp is a string": (an_answer(exp="2030-01-01"), OUTAGE),
    "exp is true": (an_answer(exp=True), OUTAGE),
    "exp beyond the calendar": (an_answer(exp=10**18), OUTAGE),
    "exp is infinite": (json.dumps(an_answer(exp=0)).replace('"exp": 0', '"exp": 1e400').encode(), OUTAGE),
    "no client": (an_answer(client=...), OK),
    "client is an object": (an_answer(client={"walletAddress": SHOP}), OK),
    "client is an object with a key": (an_answer(client={"jwk": ed25519_key().public_jwk()}), OK),
    "client name with a space": (an_answer(client="My Shop"), OK),
    "client is a number": (an_answer(client=7), OK),
    "key by reference": (an_answer(key="key-7"), NO_KEY),
    "no key": (an_answer(key=...), NO_KEY),
    "jwk by reference": (an_answer(key={"proof": "httpsig", "jwk": "key-7"}), NO_KEY),
    "jwk of an unknown type": (an_answer(client=..., key={"proof": "httpsig", "jwk": {"kty": "AKP", "n": 1}}), NO_KEY),
    "jwk without its members": (an_answer(client=..., key={"proof": "httpsig", "jwk": {"kty": "OKP"}}), NO_KEY),
    "key for TLS": (an_answer(key={"proof": "mtls", "jwk": ed25519_key().public_jwk()}), NO_KEY),
    "proof as an object": (
        an_answer(key={"proof": {"method": "httpsig"}, "jwk": ed25519_key().public_jwk()}),
        OK,
    ),
    "unknown actions": (a_right(actions=["create", "refund", 7, None, ["read"]]), OK),
    "only unknown actions": (a_right(actions=["refund"]), NO_RIGHT),
    "unknown types": (an_answer(access=[_OTHER, _RIGHT, {"type": 7}, {}]), OK),
    "only unknown types": (an_answer(access=[_OTHER]), NO_RIGHT),
    "rights by reference": (an_answer(access=["a-reference", _RIGHT, 7, None]), OK),
    "no actions": (a_right(actions=...), NO_RIGHT),
    "empty actions": (a_right(actions=[]), NO_RIGHT),
    "actions are a string": (a_right(actions="create"), NO_RIGHT),
    "identifier is null": (a_right(identifier=None), NO_RIGHT),
    "identifier is no URL": (a_right(identifier="alice"), NO_RIGHT),
    "identifier is an array": (a_right(identifier=[ALICE.url]), NO_RIGHT),
    "access is a string": (an_answer(access="incoming-payment"), NO_RIGHT),
    "access is an object": (an_answer(access=_RIGHT), NO_RIGHT),
    "no access": (an_answer(access=...), NO_RIGHT),
    "65 rights": (an_answer(access=[_RIGHT] * 65), OK),
    "65 rights of other types": (an_answer(access=[_OTHER] * 65 + [_RIGHT]), OK),
    "no active": (an_answer(active=...), OUTAGE),
    "active is a string": (an_answer(active="true"), OUTAGE),
    "an array": ([an_answer()], OUTAGE),
    "null": (None, OUTAGE),
    "not JSON": (b"<html>Sign in</html>", OUTAGE),
    "not UTF-8": (b'{"active": true, "client": "\xff"}', OUTAGE),
    "nothing": (b"", OUTAGE),
    "deep JSON": (b"[" * 60_000, OUTAGE),
    "active twice": (json.dumps(an_answer()).replace("{", '{"active": false, ', 1).encode(), OUTAGE),
    "actions twice": (json.dumps(an_answer()).replace('"actions"', '"actions": ["read"], "actions"').encode(), OUTAGE),
    "NaN": (json.dumps(an_answer(iat=float("nan"))).encode(), OUTAGE),
    "exp is Infinity": (json.dumps(an_answer(exp=float("inf"))).encode(), OUTAGE),
    "UTF-16": (json.dumps(an_answer()).encode("utf-16"), OUTAGE),
    "a byte order mark": (b"\xef\xbb\xbf" + json.dumps(an_answer()).encode(), OUTAGE),
    "lone surrogates": (an_answer(client="\ud800", instance_id="\udfff", flags=["\ud800"]), OK),
    "iss with a lone surrogate": (an_answer(iss="https://auth.bank.example\ud800"), INVALID),
    "aud with a lone surrogate": (an_answer(aud=["\ud800"]), INVALID),
    "identifier with a lone surrogate": (a_right(identifier=f"{ALICE.url}\ud800"), NO_RIGHT),
    "jwk with lone surrogates": (
        an_answer(client=..., key={"proof": "httpsig", "jwk": {"kty": "OKP", "x": "\ud800", "crv": "\udfff"}}),
        NO_KEY,
    ),
    "NUL in the client": (an_answer(client="https://shop.example/\0"), OK),
    "a long number": (b'{"active": ' + b"1" * 60_000 + b"}", OUTAGE),
    "5 MB of JSON": (json.dumps(an_answer(flags=["x" * 100] * 50_000)).encode(), OUTAGE),
}


_JWK: Final = ed25519_key().public_jwk()


def of_rafiki(**changes: object) -> dict[str, Any]:
    """Return an answer of Rafiki. A change to `...` removes a member."""
    members = {"active": True, "grant": "7b0d", "access": [_RIGHT], "client": {"walletAddress": SHOP}, **changes}
    return {name: value for name, value in members.items() if value is not ...}


# The same for answers in the dialect of Rafiki.
OF_RAFIKI: Final[Mapping[str, tuple[object, Answered]]] = {
    "client with a wallet address": (of_rafiki(), NO_KEY),
    "client is its URL": (of_rafiki(client=SHOP), NO_KEY),
    "client is a key": (of_rafiki(client={"jwk": _JWK}), OK),
    "client is an object without members": (of_rafiki(client={}), NO_KEY),
    "client is a key by reference": (of_rafiki(client={"jwk": "key-7"}), NO_KEY),
    "client with a wallet address and a key": (of_rafiki(client={"walletAddress": SHOP, "jwk": _JWK}), OK),
    "no client": (of_rafiki(client=...), NO_KEY),
    "token with a key": (of_rafiki(key={"proof": "httpsig", "jwk": _JWK}), OK),
    "token with a key for TLS": (of_rafiki(key={"proof": "mtls", "jwk": _JWK}), NO_KEY),
    "no access": (of_rafiki(client={"jwk": _JWK}, access=[]), NO_RIGHT),
    "not active": ({"active": False}, INVALID),
}


def serves(content: bytes, status: int = 200, **headers: str) -> Serve:
    """Return a function that answers with `content`."""

    def serve(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client stops reading at its limit
            handler.wfile.write(content)

    return serve


def _hangs(_: BaseHTTPRequestHandler, ended: threading.Event) -> None:
    ended.wait()


def _is_no_http(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")


def octets(content: object) -> bytes:
    """Return `content` as JSON, unless it is bytes already."""
    return content if isinstance(content, bytes) else json.dumps(content).encode()


OVER_HTTP: Final[Mapping[str, tuple[Serve, Answered]]] = {
    **{name: (serves(octets(content)), answered) for name, (content, answered) in CONTENTS.items()},
    "HTTP 500": (serves(b"oops", 500), OUTAGE),
    "HTTP 400": (serves(b'{"error": "invalid_resource_server"}', 400), OUTAGE),
    "HTTP 401": (serves(b'{"error": {"code": "invalid_request"}}', 401), OUTAGE),
    "a redirect": (serves(b"", 307, Location="http://127.0.0.1:1/"), OUTAGE),
    "a hang": (_hangs, OUTAGE),
    "no HTTP": (_is_no_http, OUTAGE),
}


_CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNKS: Final = b"%x\r\n%b\r\n0\r\n\r\n"


def _with_length(body: bytes, *fields: bytes, start: bytes = b"HTTP/1.1 200 OK") -> bytes:
    return b"\r\n".join([start, b"Content-Length: %d" % len(body), *fields, b"", body])


def _framed(body: bytes, field: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + field + b"\r\n\r\n" + body


def _in_chunks(body: bytes, *fields: bytes, status: bytes = b"200") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 %b X" % status, *fields, b"", _CHUNKS % (len(body), body)])


def _in_chunks_of(pattern: bytes) -> Callable[[bytes], bytes]:
    return lambda body: _CHUNKED + pattern.replace(b"SIZE", b"%x" % len(body)).replace(b"BODY", body)


# The bytes of an answer with a given body, which are exactly one final, well-formed answer (RFC 9112).
ONE_ANSWER: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "a length": _with_length,
    "no reason": lambda body: _with_length(body, start=b"HTTP/1.1 200 "),
    "no reason and no space": lambda body: _with_length(body, start=b"HTTP/1.1 200"),
    "a reason in Latin-1": lambda body: _with_length(body, start=b"HTTP/1.1 200 d\xe9j\xe0\tvu"),
    "a client error": lambda body: _with_length(body, start=b"HTTP/1.1 404 Not Found"),
    "names in lower case": lambda body: _framed(body, b"content-length:%d \t\r\nX:" % len(body)),
    "one chunk": lambda body: _in_chunks(body, b"transfer-encoding:\tChunked"),
    "two chunks": lambda body: _CHUNKED + b"1\r\n%b\r\n%02X\r\n%b\r\n00\r\n\r\n" % (body[:1], len(body) - 1, body[1:]),
    "a similar name": lambda body: _with_length(body, b"X-Content-Length: 7", b"X: Transfer-Encoding: chunked"),
}

# Bytes that are anything else. A client may take an answer out of them, and then closes the connection.
NOT_ONE_ANSWER: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "an interim response": lambda body: b"HTTP/1.1 103 X\r\n\r\n" + _with_length(body),
    "an interim response with two spaces": lambda body: b"HTTP/1.1  103 X\r\n\r\n" + _with_length(body),
    "an interim response with a tab": lambda body: b"HTTP/1.1\t103 X\r\n\r\n" + _with_length(body),
    "an interim response after CRLF": lambda body: b"\r\nHTTP/1.1 103 X\r\n\r\n" + _with_length(body),
    "an interim response of HTTP/1.0": lambda body: b"HTTP/1.0 100 X\r\n\r\n" + _with_length(body),
    "CRLF first": lambda body: b"\r\n" + _with_length(body),
    "LF first": lambda body: b"\n" + _with_length(body),
    "a space first": lambda body: b" " + _with_length(body),
    "a byte order mark": lambda body: b"\xef\xbb\xbf" + _with_length(body),
    "two spaces": lambda body: _with_length(body, start=b"HTTP/1.1  200 OK"),
    "a tab": lambda body: _with_length(body, start=b"HTTP/1.1\t200 OK"),
    "HTTP/1.0 that stays open": lambda body: _with_length(body, b"Connection: keep-alive", start=b"HTTP/1.0 200 OK"),
    "HTTP/1.2": lambda body: _with_length(body, start=b"HTTP/1.2 200 OK"),
    "HTTP/2.0": lambda body: _with_length(body, start=b"HTTP/2.0 200 OK"),
    "http/1.1": lambda body: _with_length(body, start=b"http/1.1 200 OK"),
    "status 099": lambda body: _with_length(body, start=b"HTTP/1.1 099 OK"),
    "status 600": lambda body: _with_length(body, start=b"HTTP/1.1 600 OK"),
    "status +200": lambda body: _with_length(body, start=b"HTTP/1.1 +200 OK"),
    "status 2000": lambda body: _with_length(body, start=b"HTTP/1.1 2000 OK"),
    "status 204 with a body": lambda body: _with_length(body, start=b"HTTP/1.1 204 No Content"),
    "status 204 with an answer as its body": lambda body: _with_length(
        _with_length(body), start=b"HTTP/1.1 204 No Content"
    ),
    "status 204 and bytes after it": lambda body: b"HTTP/1.1 204 No Content\r\n\r\n" + body,
    "status 204 with chunks": lambda body: _in_chunks(body, b"Transfer-Encoding: chunked", status=b"204"),
    "status 304 with a body": lambda body: _with_length(body, start=b"HTTP/1.1 304 Not Modified"),
    "status 304 with chunks": lambda body: _in_chunks(body, b"Transfer-Encoding: chunked", status=b"304"),
    "no length": lambda body: _framed(body, b"X: y"),
    "two equal lengths": lambda body: _with_length(body, b"Content-Length: %d" % len(body)),
    "two lengths": lambda body: _with_length(body, b"Content-Length: 7"),
    "a list of lengths": lambda body: _framed(body, b"Content-Length: %d, %d" % (len(body), len(body))),
    "a length with a sign": lambda body: _framed(body, b"Content-Length: +%d" % len(body)),
    "a negative length": lambda body: _framed(body, b"Content-Length: -1"),
    "a length with an underscore": lambda body: _framed(body.ljust(10), b"Content-Length: 1_0"),
    "a hexadecimal length": lambda body: _framed(body, b"Content-Length: 0x%x" % len(body)),
    "a long length": lambda body: _framed(body, b"Content-Length: " + b"9" * 5000),
    "an empty length": lambda body: _framed(body, b"Content-Length:"),
    "a folded length": lambda body: _framed(body, b"Content-Length:\r\n %d" % len(body)),
    "a length and a space": lambda body: _framed(body, b"Content-Length : %d" % len(body)),
    "a length that is too small": lambda body: _framed(body, b"Content-Length: %d" % (len(body) - 1)),
    "a length and chunks": lambda body: _in_chunks(
        body, b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked"
    ),
    "chunks and a length": lambda body: _in_chunks(body, b"Transfer-Encoding: chunked", b"Content-Length: 7"),
    "chunked twice": lambda body: _in_chunks(body, b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "gzip and chunks": lambda body: _in_chunks(body, b"Transfer-Encoding: gzip, chunked"),
    "chunks with a parameter": lambda body: _in_chunks(body, b"Transfer-Encoding: chunked;q=1"),
    "another transfer coding": lambda body: _with_length(body, b"Transfer-Encoding: xchunked"),
    "identity": lambda body: _with_length(body, b"Transfer-Encoding: identity"),
    "a field without a colon": lambda body: _with_length(body, b"garbage", b"X: y"),
    "a folded field": lambda body: _with_length(body, b"X: y", b" z"),
    "a name with a space": lambda body: _with_length(body, b"X y: z"),
    "an empty name": lambda body: _with_length(body, b": z"),
    "NUL": lambda body: _with_length(body, b"X: a\0b"),
    "CR alone": lambda body: _with_length(body, b"X: a\rY: b"),
    "LF alone": lambda body: _with_length(body).replace(b"\r\n", b"\n"),
    "a chunk size with 0x": _in_chunks_of(b"0xSIZE\r\nBODY\r\n0\r\n\r\n"),
    "a chunk size with a sign": _in_chunks_of(b"+SIZE\r\nBODY\r\n0\r\n\r\n"),
    "a negative chunk size": _in_chunks_of(b"-1\r\nBODY\r\n0\r\n\r\n"),
    "a chunk size with spaces": _in_chunks_of(b" SIZE \r\nBODY\r\n0\r\n\r\n"),
    "a chunk size with an underscore": lambda body: _CHUNKED + b"1_0\r\n%b\r\n0\r\n\r\n" % body.ljust(16),
    "a long chunk size": _in_chunks_of(b"0000000000SIZE\r\nBODY\r\n0\r\n\r\n"),
    "a chunk without a size": _in_chunks_of(b"\r\nBODY\r\n0\r\n\r\n"),
    "a chunk with another end": _in_chunks_of(b"SIZE\r\nBODYAB0\r\n\r\n"),
    "a chunk with LF alone": _in_chunks_of(b"SIZE\nBODY\n0\n\n"),
    "a last chunk with LF alone": _in_chunks_of(b"SIZE\r\nBODY\r\n0\n\n"),
    "a chunk extension": _in_chunks_of(b"SIZE;a=b\r\nBODY\r\n0\r\n\r\n"),
    "a trailer": _in_chunks_of(b"SIZE\r\nBODY\r\n0\r\nA: b\r\n\r\n"),
    "a length as a trailer": _in_chunks_of(b"SIZE\r\nBODY\r\n0\r\nContent-Length: 9\r\n\r\n"),
    "no last chunk": _in_chunks_of(b"SIZE\r\nBODY\r\n"),
}


@contextlib.contextmanager
def authorization_server(serve: Serve) -> Iterator[Callable[[], HTTPConnection]]:
    """Run a server that answers every request with `serve`. Yield a function that returns a connection to it."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            serve(self, ended)

        def log_message(self, *_: object) -> None:
            """Write nothing to stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        host, port = cast("tuple[str, int]", server.server_address[:2])
        try:
            yield lambda: HTTPConnection(host, port, timeout=HANG_S if serve is _hangs else TIMEOUT_S)
        finally:
            ended.set()
            server.shutdown()
            thread.join()
