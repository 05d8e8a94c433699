"""A small authorization server over real HTTP, for tests and demonstrations. Never use it in production.

```
with AuthorizationServer(issuer="http://127.0.0.1:9000") as server:
    server.issue("token", actions=["create", "read"], jwk=key.public_jwk())
    ...                               # server.url is the introspection endpoint
    server.fail("delay", seconds=30)  # until server.fail(None)
```

The server also serves the key sets of clients at `{walletAddress}/jwks.json`. As a process, the server executes each
line of its standard input, such as `{"do": "revoke", "token": "token"}`, and writes a confirmation to its standard
output: `python -m incoming_payments.testing.authorization_server --port 9000`.
"""

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, get_args

from incoming_payments.errors import SignatureRefused
from incoming_payments.gnap import Dialect
from incoming_payments.httpsig import Policy, RequestMessage, load_jwk, verify
from incoming_payments.ports.clock import utc_now

Fault = Literal["delay", "error", "garbage", "huge", "redirect", "close", "delay_unknown"]

_PATH: Final = "/introspect"
_EXAMPLE: Final = '{"do": "issue", "token": "T", "actions": ["create"], "jwk": {...}}'
_HUGE_BYTES: Final = 5_000_000
# the components that a signature must cover (RFC 9635 §7.3.1)
_COVERED: Final = ("@method", "@target-uri", "content-digest")


class AuthorizationServer:
    """An authorization server on loopback. Use it as a context manager, or call `start` and `stop`.

    If `port` is 0, the server takes a free port. `dialect` is the form of the answers. `issuer` is the `iss` of the
    answers, by default the URL of the server. If `service_jwk` is set, this key must sign each introspection request.
    All methods are thread-safe. `clock` returns the time that decides about expiry.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        dialect: Dialect = "rfc9767",
        issuer: str | None = None,
        service_jwk: Mapping[str, Any] | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._http = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._http.daemon_threads = True
        self.base_url: Final = f"http://127.0.0.1:{self._http.server_port}"
        self.url: Final = f"{self.base_url}{_PATH}"
        self._dialect = dialect
        self._issuer = issuer or self.base_url
        self._service_key = None if service_jwk is None else load_jwk(service_jwk)
        self._clock = clock
        self._tokens: dict[str, dict[str, Any]] = {}
        self._key_sets: dict[str, list[Mapping[str, Any]]] = {}
        self._fault: Fault | None = None
        self._delay_s = 0.0
        self._woken = threading.Event()
        self.requests: list[str] = []  # the path of each request

    def start(self) -> Self:
        """Serve in a thread."""
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop the server, and end each delay."""
        self._woken.set()
        self._http.shutdown()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def issue(
        self,
        token: str,
        *,
        actions: Iterable[str],
        identifier: str | None = None,
        client: str | None = None,
        jwk: Mapping[str, Any] | None = None,
        expires_s: float | None = None,
    ) -> None:
        """Make `token` active, with one access right.

        `client` is the wallet address of the client. In the dialect `rafiki`, a token that has no `jwk` has the keys
        that the client publishes (see `publish`). RFC 9767 §3.3 requires the `jwk`. `expires_s` is the lifetime in
        seconds.
        """
        expires_at = None if expires_s is None else self._clock() + timedelta(seconds=expires_s)
        access = {"type": "incoming-payment", "actions": list(actions)}
        if identifier is not None:
            access["identifier"] = identifier
        self._tokens[token] = {"access": access, "client": client, "jwk": jwk, "expires_at": expires_at}

    def revoke(self, token: str) -> None:
        """Make `token` inactive."""
        self._tokens.pop(token, None)

    def publish(self, name: str, jwks: Iterable[Mapping[str, Any]]) -> str:
        """Replace the key set of the client `name`, and return its wallet address on this server."""
        self._key_sets[f"/{name}/jwks.json"] = list(jwks)
        return f"{self.base_url}/{name}"

    def fail(self, fault: Fault | None, *, seconds: float = 0.0) -> None:
        """Make each later request fail with `fault`. `None` ends the failures.

        For `delay`, the server answers correctly after `seconds`. For `error`, the status is 500. For `garbage`, the
        answer is not JSON. For `huge`, the answer has 5 MB. For `redirect`, the server answers 307 to another path that
        would answer correctly. For `close`, there is no answer. For `delay_unknown`, the server answers correctly, but
        after `seconds` for a token that is not active.
        """
        if fault is not None and fault not in get_args(Fault):
            raise ValueError(f"fault must be one of {', '.join(get_args(Fault))}, not {fault!r}")
        self._fault, self._delay_s = fault, seconds

    def answer(self, request: RequestMessage) -> tuple[int, dict[str, str], bytes] | None:
        """Return status, header fields and body for `request`, or `None` to close the connection."""
        path = request.target_uri.removeprefix(self.base_url)
        self.requests.append(path)
        if self._fault == "delay":
            self._woken.wait(self._delay_s)
        elif self._fault == "close":
            return None
        elif self._fault == "redirect" and not path.startswith("/moved"):
            return 307, {"Location": f"{self.base_url}/moved{path}"}, b""
        elif self._fault in {"error", "garbage", "huge"}:
            status = 500 if self._fault == "error" else 200
            return status, {}, b"x" * (_HUGE_BYTES if self._fault == "huge" else 10)
        status, document = self._document(request, path.removeprefix("/moved"))
        if self._fault == "delay_unknown" and document == {"active": False}:
            self._woken.wait(self._delay_s)
        return status, {"Content-Type": "application/json"}, json.dumps(document).encode()

    def _document(self, request: RequestMessage, path: str) -> tuple[int, object]:
        if path in self._key_sets:
            return 200, {"keys": self._key_sets[path]}
        if path != _PATH or request.method != "POST":
            return 404, {"error": "not_found"}
        if not self._is_signed(request):
            return 400, {"error": "invalid_resource_server"}
        try:
            document = json.loads(request.body)
            token = self._tokens.get(document["access_token"])
        except (ValueError, KeyError, TypeError):
            return 400, {"error": "invalid_request"}
        if token is None or (token["expires_at"] is not None and token["expires_at"] <= self._clock()):
            return 200, {"active": False}
        return 200, self._rafiki(token, document) if self._dialect == "rafiki" else self._rfc9767(token)

    def _is_signed(self, request: RequestMessage) -> bool:
        if self._service_key is None:
            return True
        keys = {self._service_key.kid: self._service_key}
        try:
            verify(request, keys, policy=Policy(required=_COVERED), now=self._clock())
        except SignatureRefused:
            return False
        return True

    def _rfc9767(self, token: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of RFC 9767 §3.3, which names the client in `instance_id`."""
        answer = {"active": True, "iss": self._issuer, "access": [token["access"]]}
        if token["client"] is not None:
            answer["instance_id"] = token["client"]
        if token["jwk"] is not None:
            answer["key"] = {"proof": "httpsig", "jwk": token["jwk"]}
        if token["expires_at"] is not None:
            answer["exp"] = int(token["expires_at"].timestamp())
        return answer

    def _rafiki(self, token: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer of Rafiki. It contains the access that the request names, if the token has this access."""
        granted = token["access"]
        wanted = document.get("access", [])
        if not all(
            set(item["actions"]) <= set(granted["actions"])
            and granted.get("identifier") in (None, item.get("identifier"))
            for item in wanted
        ):
            return {"active": False}
        client = {"walletAddress": token["client"]} if token["jwk"] is None else {"jwk": token["jwk"]}
        return {"active": True, "grant": "a-grant", "access": [granted] if wanted else [], "client": client}

    def run(self, lines: Iterable[str]) -> Iterable[str]:
        """Yield the base URL, then execute each line and yield its confirmation.

        Raises `ValueError` for a line that is not a valid command.
        """
        methods: dict[str, Callable[..., object]] = {
            "issue": self.issue,
            "revoke": self.revoke,
            "publish": self.publish,
            "fail": self.fail,
            "requests": lambda: len(self.requests),
        }
        yield self.base_url
        for line in lines:
            try:
                arguments = json.loads(line)
                done = methods[arguments.pop("do")](**arguments)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise ValueError(
                    f"{line.strip()!r} is not a valid command ({error}): write lines such as {_EXAMPLE}"
                ) from error
            yield json.dumps(done)


def _handler(server: AuthorizationServer) -> type[BaseHTTPRequestHandler]:
    """Return the class that passes requests over HTTP to `server`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # If this option is off, an answer in two parts may wait 40 ms for an acknowledgement.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            uri, headers = f"{server.base_url}{self.path}", tuple(self.headers.items())
            answer = server.answer(RequestMessage(self.command, uri, headers, body))
            if answer is None:
                self.close_connection = True
                return
            status, fields, content = answer
            self.send_response(status)
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, format: str, *arguments: object) -> None:
            """Write no log, because the requests are in `AuthorizationServer.requests`."""

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # the client has disconnected, perhaps because the answer came too late
                self.close_connection = True

    return Handler


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an authorization server until the end of its standard input, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m incoming_payments.testing.authorization_server",
        description="Run an authorization server for tests on loopback. It reads commands from standard input.",
        epilog=f"Each command is a line of JSON, such as {_EXAMPLE}. Other commands are revoke, publish, fail and "
        "requests.",
    )
    parser.add_argument("--port", type=int, default=0, help="the port to listen on (default: a free port)")
    parser.add_argument(
        "--dialect", choices=get_args(Dialect), default="rfc9767", help="the form of the answers (default: rfc9767)"
    )
    parser.add_argument("--issuer", help="the iss of the answers (default: the URL of the server)")
    parser.add_argument(
        "--service-jwk", type=Path, help="a file with the public key whose owner must sign introspection requests"
    )
    options = parser.parse_args(arguments)
    try:
        jwk = None if options.service_jwk is None else json.loads(options.service_jwk.read_bytes())
        with AuthorizationServer(
            port=options.port, dialect=options.dialect, issuer=options.issuer, service_jwk=jwk
        ) as server:
            for line in server.run(sys.stdin):
                print(line, flush=True)
    except (OSError, ValueError) as error:
        print(f"authorization server: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130  # 128 + SIGINT, as in shells
    return 0


if __name__ == "__main__":
    sys.exit(main())
