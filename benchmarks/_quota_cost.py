"""Compare creates and signed gets over HTTP with and without the quotas that processes share, in alternating turns.

`serve` runs twice: with the quotas of `docs/quotas.md` and without. Each client keeps 32 unpaid payments: after a turn
of creates, the clients complete the new payments. The figures are the processor time of `serve`.
"""

import itertools
import json
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from _load import drive, free_port, run_fast, server
from _processes import threads_s
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign

KINDS: Final = ("create", "get")
CLIENTS: Final = 256
UNPAID: Final = 32
EACH: Final = 2  # requests of each client in a turn
CONNECTIONS: Final = 16
JWK: Final = "client.jwk"
SECRET: Final = "server-secret.hex"  # noqa: S105 - the name of a file


class Service:
    """`serve` with a database of its own, and its clients."""

    def __init__(self, folder: Path, *, has_quotas: bool) -> None:
        self.port = free_port()
        self.configuration = folder / "incoming-payments.toml"
        self._paths = dict[int, str]()
        self._url = f"http://127.0.0.1:{self.port}"
        self._key = PrivateKey.generate_ed25519("key-1")
        folder.mkdir(mode=0o700)
        (folder / SECRET).write_text("5a" * 32)
        (folder / JWK).write_text(json.dumps(self._key.public_jwk()))
        self.configuration.write_text(self._settings() + (QUOTAS if has_quotas else ""))

    def _settings(self) -> str:
        tokens = (CLIENT.format(token=token(client), client=client, jwk=JWK) for client in range(CLIENTS))
        return SETTINGS.format(url=self._url, port=self.port, secret=SECRET) + "".join(tokens)

    def prepare(self, pid: int) -> None:
        """Create the unpaid payments. `pid` is the process of `serve`."""
        self._pid = pid
        for _ in range(UNPAID):
            self._paths = self._answers("create")[1]

    def turn(self, kind: str) -> float:
        """Send some requests of each client. Return the microseconds of processor for one request."""
        turn_s = 0.0
        for _ in range(EACH):
            spent_s, answered = self._answers(kind)
            turn_s += spent_s
            if kind == "create":
                self._answers("complete", answered)
        return turn_s / (EACH * CLIENTS) * 1e6

    def _answers(self, kind: str, paths: Mapping[int, str] | None = None) -> tuple[float, dict[int, str]]:
        """Send requests of `kind`. Return the processor time in seconds, and the path of each client's payment."""
        queue = [self._request(kind, client, (paths or self._paths).get(client, "")) for client in range(CLIENTS)]
        answered = dict[int, str]()

        def accepts(head: bytes, body: bytes) -> bool:
            if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")):
                return False
            payment = json.loads(body)
            answered[payment["metadata"]["client"]] = urlsplit(payment["id"]).path
            return True

        begin_s = threads_s(self._pid)
        run_fast(drive(self.port, [queue] * CONNECTIONS, accepts))
        return threads_s(self._pid) - begin_s, answered

    def _request(self, kind: str, client: int, path: str) -> bytes:
        method, path, body = {
            "create": ("POST", "/incoming-payments", self._body(client)),
            "complete": ("POST", f"{path}/complete", b""),
            "get": ("GET", path, b""),
        }[kind]
        headers = [("authorization", f"GNAP {token(client)}")]
        if body:
            headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        message = RequestMessage(method, f"{self._url}{path}", tuple(headers), body)
        lines = [f"{name}: {value}" for name, value in sign(message, self._key, created=datetime.now(UTC)).headers]
        length = [] if body else ["content-length: 0"]
        return "\r\n".join([f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *length, *lines, "", ""]).encode() + body

    def _body(self, client: int) -> bytes:
        return json.dumps({"walletAddress": f"{self._url}/alice", "metadata": {"client": client}}).encode()


def token(client: int) -> str:
    """Return the access token of a client."""
    return f"a-token-of-some-length-as-they-are-{client}"


SETTINGS: Final = """\
base_url = "{url}"
auth_server = "{url}/auth"
database = "payments.sqlite3"
[listen]
port = {port}
[log]
access = false
[ilp]
address = "test.bank"
secret_files = ["{secret}"]
[[wallet_address]]
url = "{url}/alice"
asset_code = "USD"
asset_scale = 2
"""
CLIENT: Final = """\
[[token]]
value = "{token}"
client = "https://shop.example/{client}"
jwk_file = "{jwk}"
rights = [{{ actions = ["create", "read", "complete"] }}]
"""
QUOTAS: Final = """\
[quotas]
requests_per_minute = 600
unpaid_payments = 100
"""


def measure_quotas(folder: Path, turns: int) -> dict[bool, dict[str, list[float]]]:
    """Return the microseconds of a request by kind, with quotas (`True`) and without, for each turn."""
    spent: dict[bool, dict[str, list[float]]] = {has: {kind: [] for kind in KINDS} for has in (False, True)}
    with ExitStack() as running:
        services = {}
        for has in spent:
            service = services[has] = Service(folder / f"quotas-{has}", has_quotas=has)
            command = ["-m", "incoming_payments.server.command", "serve", "--config", str(service.configuration)]
            service.prepare(running.enter_context(server(command, service.port)))
        for turn, kind in itertools.product(range(turns), KINDS):
            for has in (False, True) if turn % 2 else (True, False):
                spent[has][kind].append(services[has].turn(kind))
    return spent
