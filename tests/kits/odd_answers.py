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


@contextlib.contextmanager
def authorization_server(serve: Serve) -> Iterator[Callable[[], HTTPConnection]]:
    """Run a server that answers every request with `serve`. Yield a function that returns a connection to it."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
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
