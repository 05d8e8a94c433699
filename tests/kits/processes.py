"""Real processes on loopback, and a client that signs its requests, for tests of commands and examples."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import httpx
from attrs import frozen

from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.server.init import CLIENT_JWK, CLIENT_KEY, CONFIGURATION

ROOT: Final = Path(__file__).resolve().parents[2]
COMMAND: Final = (sys.executable, "-m", "incoming_payments.server.command")
_DEADLINE_S: Final = 60.0  # enough for a slow machine; a start takes a second or two


def run_command(*arguments: str | Path, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run the `incoming-payments` command as a process, and wait for its end."""
    whole = [*COMMAND, *map(str, arguments)]
    return subprocess.run(whole, capture_output=True, text=True, timeout=_DEADLINE_S, env=_environment(env))


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(
    arguments: Sequence[str | Path], port: int, log: Path, *, env: Mapping[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a process, and wait until it listens on `port` of loopback. Stop it at the end."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(map(str, arguments)), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=_environment(env)
        )
    try:
        _await_port(process, port, log)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **(more or {})}


def _await_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"{process.args!r} does not listen on {port}:\n{log.read_text('utf-8')}")


def is_running(pid: int) -> bool:
    """Return whether the process exists and is not a zombie. Needs Linux."""
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return False


def await_lines(log: Path, pattern: str, count: int = 1) -> None:
    """Wait until the log has `count` matches."""
    deadline = time.monotonic() + 30
    while len(re.findall(pattern, log.read_text("utf-8"))) < count:
        assert time.monotonic() < deadline, log.read_text("utf-8")
        time.sleep(0.01)


def await_true(is_true: Callable[[], bool]) -> None:
    """Wait until the function returns true."""
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def token_in(folder: Path) -> str:
    """Return the first token in the configuration that `init` wrote to `folder`."""
    found = re.search(r'^value = "([^"]+)"', (folder / CONFIGURATION).read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


@frozen
class HttpClient:
    """An Open Payments client over real HTTP, with the token and the key of `init`."""

    base_url: str
    token: str
    key: PrivateKey

    @classmethod
    def of(cls, folder: Path, base_url: str) -> "HttpClient":
        """Return the client with the key in `folder`."""
        kid = json.loads((folder / CLIENT_JWK).read_text("utf-8"))["kid"]
        return cls(base_url, token_in(folder), PrivateKey.from_pem((folder / CLIENT_KEY).read_bytes(), kid=kid))

    def create(self, **members: object) -> httpx.Response:
        """Send a signed request for an incoming payment; for Alice, unless `walletAddress` is among the members."""
        return self.order(None, **members)

    def order(self, idempotency_key: str | None, **members: object) -> httpx.Response:
        """Send the request of `create` with an idempotency key."""
        body = {"walletAddress": f"{self.base_url}/alice", **members}
        return self.send("POST", "/incoming-payments", body, idempotency_key=idempotency_key)

    def get(self, url: str) -> httpx.Response:
        """Read the payment at `url` by a signed request."""
        return self.send("GET", url.removeprefix(self.base_url))

    def complete(self, url: str) -> httpx.Response:
        """Complete the payment at `url` by a signed request."""
        return self.send("POST", f"{url.removeprefix(self.base_url)}/complete")

    def list(self, **members: object) -> httpx.Response:
        """Read a page of the client's own payments at Alice's wallet address by a signed request."""
        query = urlencode({"wallet-address": f"{self.base_url}/alice", **members})
        return self.send("GET", f"/incoming-payments?{query}")

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        nonce: str | None = None,
        idempotency_key: str | None = None,
    ) -> httpx.Response:
        """Send a signed request."""
        signed = self.signed(method, path, body, nonce=nonce, idempotency_key=idempotency_key)
        return unsigned(method, signed.target_uri, headers=list(signed.headers), content=signed.body)

    def signed(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        nonce: str | None = None,
        idempotency_key: str | None = None,
    ) -> RequestMessage:
        """Return a signed request."""
        content = b"" if body is None else json.dumps(body).encode()
        headers: tuple[tuple[str, str], ...] = (("authorization", f"GNAP {self.token}"),)
        if content:
            headers += (("content-type", "application/json"), ("content-length", str(len(content))))
        if idempotency_key is not None:
            headers += (("idempotency-key", f'"{idempotency_key}"'),)
        request = RequestMessage(method, f"{self.base_url}{path}", headers, content)
        keys = ["idempotency-key"] if idempotency_key is not None else []
        return sign(request, self.key, created=datetime.now(UTC), also=keys, nonce=nonce)


def unsigned(method: str, url: str, **options: Any) -> httpx.Response:
    """Send a request without a signature."""
    with httpx.Client(trust_env=False, timeout=_DEADLINE_S) as client:
        return client.request(method, url, **options)


def code_of(response: httpx.Response) -> tuple[int, str]:
    """Return the status and the error code of a refusal."""
    return response.status_code, response.json()["error"]["code"]


@frozen
class Bank:
    """A folder that `init` has filled, for a service on a free port."""

    folder: Path
    port: int

    @classmethod
    def init(cls, folder: Path, *options: str) -> "Bank":
        """Return the folder after `init` with these options."""
        bank = cls(folder, free_port())
        assert run_command("init", folder, "--port", str(bank.port), *options).returncode == 0
        return bank

    @property
    def base_url(self) -> str:
        """Return the base URL of the service."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def configuration(self) -> Path:
        """Return the configuration file."""
        return self.folder / CONFIGURATION

    @property
    def log(self) -> Path:
        """Return the file with the output of the service."""
        return self.folder / "log"

    @property
    def client(self) -> HttpClient:
        """Return a client with the key and the token of `init`."""
        return HttpClient.of(self.folder, self.base_url)

    def edit(self, old: str, new: str) -> None:
        """Replace a text in the configuration."""
        text = self.configuration.read_text("utf-8")
        assert old in text
        self.configuration.write_text(text.replace(old, new), "utf-8")

    def beside(self, folder: Path) -> "Bank":
        """Return a copy of this folder for another instance of the same service, on a port of its own."""
        shutil.copytree(self.folder, folder)
        other = Bank(folder, free_port())
        other.edit(f"\nport = {self.port}\n", f"\nport = {other.port}\n")
        return other

    @contextmanager
    def serving(self, command: Sequence[str] = COMMAND) -> Iterator["subprocess.Popen[bytes]"]:
        """Run `serve`."""
        with serving([*command, "serve", "--config", self.configuration], self.port, self.log) as process:
            yield process
