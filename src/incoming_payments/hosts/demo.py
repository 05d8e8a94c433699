"""`incoming-payments demo`: the whole story, between three real processes, each step checked.

The service runs in a process of its own, on a fresh SQLite file. This process is the client: it signs requests and
sends them over HTTP. A third one is the ASE's core banking: it embeds the library on the same file and books money.
Halfway the service is killed with SIGKILL and started again. The exit status is 0 only if every step went as it
should.
"""

import http.client
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from attrs import frozen

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.flows.receive import receive
from incoming_payments.flows.run import run
from incoming_payments.hosts.clock import utc_now
from incoming_payments.httpsig import PrivateKey, Request, sign
from incoming_payments.ports import Ports
from incoming_payments.stores.sqlite import SqliteStore

_USD: Final = Asset("USD", 2)
_START_S_MAX: Final = 30.0  # a cold start with its imports takes one or two
_SHOWN_CHARS_MAX: Final = 150
_COMMAND: Final = (sys.executable, "-m", "incoming_payments.hosts.command")


def main() -> int:
    """Run the story; 0 when all went as it should, else 1."""
    with tempfile.TemporaryDirectory(prefix="incoming-payments-demo-") as folder:
        return _Story(Path(folder)).run()


class _Story:
    """The steps, and the tally of what was as it should be."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = _free_port()
        self._step = 0
        self._wrong = 0
        self._checks = 0

    def run(self) -> int:
        _run_command("init", str(self._folder), "--port", str(self._port))
        client = _Client.of(self._folder, self._port)
        forger = _Client(client.base_url, client.token, PrivateKey.generate_ed25519(client.key.kid))
        with core_banking(self._folder / "payments.sqlite3") as book:
            with service(self._folder, self._port) as pid:
                self._say(f"The service starts on a fresh SQLite file (process {pid}).")
                payment = self._create(client)
                self._read(client, payment, received="0", completed=False)
                self._read_publicly(client, payment, received="0")
                self._say("Core banking, a process of its own on the same file, books 10.00, and repeats the call.")
                first = self._book(book, payment, "wire-1", 1000, "credited")
                self._same("the repeated call gets the first answer", self._book(book, payment, "wire-1", 1000), first)
                self._say(f"The service is killed with SIGKILL (process {pid}). Core banking goes on and books 7.50.")
            self._book(book, payment, "wire-2", 750, "credited")
            with service(self._folder, self._port) as pid:
                self._say(f"The service is back (process {pid}).")
                self._read(client, payment, received="1750", completed=False)
                self._say("Core banking books the last 7.50.")
                self._book(book, payment, "wire-3", 750, "credited")
                self._read(client, payment, received="2500", completed=True)
                self._say("Core banking tries to book 0.01 more.")
                self._book(book, payment, "wire-4", 1, "payment_completed")
                self._forge(forger, payment)
                self._ask_for_euros(client)
        return self._conclude()

    def _create(self, client: "_Client") -> str:
        self._say("A client asks for an incoming payment of 25.00 USD.")
        answer = client.send("POST", "/incoming-payments", _wanted(client, "USD"))
        self._show(answer)
        self._same("status", answer.status, 201)
        self._same("completed", answer.body.get("completed"), False)
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), "0")
        self._same("methods", [method["type"] for method in answer.body.get("methods", [])], ["ilp"])
        return urlsplit(str(answer.body.get("id"))).path

    def _read(self, client: "_Client", path: str, *, received: str, completed: bool) -> None:
        self._say("The client reads it, signed.")
        answer = client.send("GET", path)
        self._show(answer)
        self._same("status", answer.status, 200)
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), received)
        self._same("completed", answer.body.get("completed"), completed)
        self._same("methods", len(answer.body.get("methods", [])), 0 if completed else 1)

    def _read_publicly(self, client: "_Client", path: str, *, received: str) -> None:
        self._say("Anybody reads it, with neither token nor signature.")
        answer = client.send("GET", path, signed=False)
        self._show(answer)
        self._same("status", answer.status, 200)
        self._same("members", sorted(answer.body), ["authServer", "receivedAmount"])
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), received)

    def _book(self, book: "_Booker", path: str, credit: str, value: int, outcome: str | None = None) -> dict[str, Any]:
        answer = book(path.rpartition("/")[2], credit, value)
        print(f"     booked {credit}: {_short(json.dumps(answer))}")
        if outcome is not None:
            self._same("outcome", answer["outcome"], outcome)
        return answer

    def _forge(self, forger: "_Client", path: str) -> None:
        self._say("A thief has the token but not the key, and signs with one of his own.")
        answer = forger.send("GET", path)
        self._show(answer)
        self._same("status", answer.status, 401)
        self._same("challenge", answer.challenge, f"GNAP as_uri={forger.base_url}/auth")

    def _ask_for_euros(self, client: "_Client") -> None:
        self._say("The client asks for a payment in the wrong asset.")
        answer = client.send("POST", "/incoming-payments", _wanted(client, "EUR"))
        self._show(answer)
        self._same("status", answer.status, 400)
        self._same("code", answer.body.get("error", {}).get("code"), "asset_mismatch")

    def _conclude(self) -> int:
        good = self._checks - self._wrong
        print(f"\n{good} of {self._checks} checks held." + (" Something is wrong." if self._wrong else ""))
        return 1 if self._wrong else 0

    def _say(self, text: str) -> None:
        self._step += 1
        print(f"\n{self._step:>2}  {text}", flush=True)

    def _show(self, answer: "_Answer") -> None:
        print(f"     > {_short(answer.sent)}")
        print(f"     < {answer.status} {_short(json.dumps(answer.body))}")

    def _same(self, what: str, actual: object, expected: object) -> None:
        self._checks += 1
        if actual != expected:
            self._wrong += 1
            print(f"     WRONG: {what} should be {expected!r}, but is {actual!r}")


# --- the client ------------------------------------------------------------------------------------


@frozen
class _Answer:
    sent: str
    status: int
    body: dict[str, Any]
    challenge: str | None


@frozen
class _Client:
    """An Open Payments client: signs what it sends."""

    base_url: str
    token: str
    key: PrivateKey

    @classmethod
    def of(cls, folder: Path, port: int) -> Self:
        """The client that `init` made a key and a token for."""
        configuration = (folder / "incoming-payments.toml").read_text("utf-8")
        token = next(line.split('"')[1] for line in configuration.splitlines() if line.startswith("value = "))
        kid = json.loads((folder / "client-key.jwk").read_text("utf-8"))["kid"]
        return cls(
            f"http://127.0.0.1:{port}", token, PrivateKey.from_pem((folder / "client-key.pem").read_bytes(), kid=kid)
        )

    def send(self, method: str, path: str, body: dict[str, Any] | None = None, *, signed: bool = True) -> _Answer:
        """Send a request over HTTP, signed by default, and read the answer."""
        content = b"" if body is None else json.dumps(body).encode("utf-8")
        headers = (("authorization", f"GNAP {self.token}"),) if signed else ()
        if content:
            headers += (("content-type", "application/json"), ("content-length", str(len(content))))
        request = Request(method, f"{self.base_url}{path}", headers, content)
        if signed:
            request = sign(request, self.key, created=utc_now())
        address = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=_START_S_MAX)
        try:
            connection.request(method, path, content or None, dict(request.headers))
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        sent = f"{method} {path} {'signed' if signed else 'unsigned'} {content.decode('utf-8')}"
        return _Answer(sent.rstrip(), response.status, answer, response.getheader("WWW-Authenticate"))


def _wanted(client: _Client, asset_code: str) -> dict[str, Any]:
    return {
        "walletAddress": f"{client.base_url}/alice",
        "incomingAmount": {"value": "2500", "assetCode": asset_code, "assetScale": 2},
        "metadata": {"externalRef": "INV-2026-0042"},
    }


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."


# --- the processes ---------------------------------------------------------------------------------


def _run_command(*arguments: str) -> None:
    subprocess.run([*_COMMAND, *arguments], check=True)  # noqa: S603 - our own


@contextmanager
def service(folder: Path, port: int) -> Iterator[int]:
    """A serving process, ready for requests; it is killed with SIGKILL at the end, as nothing may be lost by that."""
    log = folder / "service.log"
    arguments = ["serve", "--config", str(folder / "incoming-payments.toml")]
    with log.open("ab") as output:
        process = subprocess.Popen([*_COMMAND, *arguments], stdout=output, stderr=output)  # noqa: S603 - our own
    try:
        _await_port(process, port, log)
        yield process.pid
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


class _Booker:
    """The core banking process: takes bookings on its standard input and answers each on its standard output."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, id: str, credit: str, value: int) -> dict[str, Any]:
        """Have one credit booked; the outcome, once it is durable."""
        assert self._process.stdin is not None  # noqa: S101 - our own pipe
        assert self._process.stdout is not None  # noqa: S101 - our own pipe
        self._process.stdin.write(f"{id} {credit} {value}\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


@contextmanager
def core_banking(database: Path) -> Iterator[_Booker]:
    """A process that embeds the library on the file of the service."""
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "incoming_payments.hosts.demo", str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield _Booker(process)


def book_all(database: str, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """What core banking does: book each line, `payment-id credit-id value`, and tell the outcome."""
    with SqliteStore(database) as store:
        ports = Ports(store=store)
        for line in lines:
            id, credit, value = line.split()
            try:
                booked = run(receive(id, credit=credit, amount=Amount(int(value), _USD), now=utc_now()), ports)
            except IncomingPaymentsError as error:
                yield {"outcome": error.code, "why": error.description}
            else:
                yield {"outcome": "credited", "received": booked.received.text, "completes": booked.completes}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the service did not start:\n{log.read_text()}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"the service did not listen within {_START_S_MAX:.0f} seconds:\n{log.read_text()}")


def _core_banking_main(arguments: Sequence[str]) -> None:
    for outcome in book_all(arguments[0], iter(sys.stdin)):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    _core_banking_main(sys.argv[1:])
