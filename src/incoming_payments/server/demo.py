"""`incoming-payments demo`: the whole story, between three real processes, each step checked.

The service runs in a process of its own, on a fresh SQLite file. This process is the client, which signs requests and
sends them over HTTP, and the payer, which sends the money in packets, by STREAM over HTTP. A third one is the ASE's
core banking: it embeds the library on the same file, books money that came otherwise, and knows the books. Halfway
through the packets the service is killed with SIGKILL and started again. The exit status is 0 only if every step went
as it should, and payer and payee have the same in their books.
"""

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from attrs import frozen

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.payment import STREAM_CREDITS, payment_id
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.flows.receive import receive
from incoming_payments.flows.run import run
from incoming_payments.hosts.clock import utc_now
from incoming_payments.httpsig import PrivateKey, Request, sign
from incoming_payments.ports import Ports
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.sender import Books, Ending, Link, NotTaken, Payee, over_http, pay, quote

_USD: Final = Asset("USD", 2)
_START_S_MAX: Final = 30.0  # a cold start with its imports takes one or two
_WIDTH_CHARS: Final = 118
_BAR_CHARS: Final = 60
_TOTAL: Final = 2500  # cents
_PACKET_MAX: Final = 10  # cents
_IN_FLIGHT: Final = 8
_COMMAND: Final = (sys.executable, "-m", "incoming_payments.server.command")


def main() -> int:
    """Run the story; 0 when all went as it should, else 1."""
    with tempfile.TemporaryDirectory(prefix="incoming-payments-demo-") as folder:
        try:
            return _Story(Path(folder)).run()
        except (StoryEnds, NotTaken) as error:
            print(f"\n{error}", file=sys.stderr)
            return 1


class StoryEnds(Exception):
    """Something did not do its part, so that the story cannot go on."""


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
            self._pay_by_stream(client, book)
            with service(self._folder, self._port):
                self._forge(forger, self._pay_otherwise(client, book))
                self._ask_for_euros(client)
        return self._conclude()

    def _pay_by_stream(self, client: "_Client", book: "Booker") -> None:
        with ThreadPoolExecutor(1) as payer:
            with service(self._folder, self._port) as pid:
                self._say(f"The service starts on a fresh SQLite file (process {pid}).")
                path = self._create(client)
                resource = self._read(client, path, received="0", completed=False)
                self._read_publicly(client, path, received="0")
                link, payee = over_http(f"{client.base_url}/ilp", self._token()), Payee.of(resource)
                self._ask(link, payee)
                self._say(
                    f"The payer sends {_usd(_TOTAL)} by STREAM over HTTP, in packets of {_usd(_PACKET_MAX)}, "
                    f"{_IN_FLIGHT} at a time."
                )
                progress = Progress(_TOTAL)
                paying = payer.submit(
                    pay, link, payee, _TOTAL, packet_max=_PACKET_MAX, in_flight=_IN_FLIGHT, progress=progress
                )
                paying.add_done_callback(progress.finish)
                progress.halfway.wait()
                self._say(f"The service is killed with SIGKILL (process {pid}), with packets under way.")
            progress.go_on.set()
            with service(self._folder, self._port) as pid:
                self._say(f"The service is back (process {pid}). The payer repeats what was not answered.")
                books = paying.result()
                self._tell(books)
                self._same("ending", books.ending, Ending.DONE)
                self._same("delivered", books.delivered, _TOTAL)
                self._same("whether packets were sent again", books.repeats > 0, True)
                self._read(client, path, received=str(_TOTAL), completed=True)
                self._compare(book, path, books)
                self._say("The payer tries to send 0.01 more.")
                more = pay(link, payee, 1)
                self._tell(more)
                self._same("ending", more.ending, Ending.CLOSED)

    def _token(self) -> str:
        """The token of the peer that `init` has made."""
        return (self._folder / "peer-token.txt").read_text("utf-8").strip()

    def _ask(self, link: Link, payee: Payee) -> None:
        self._say("A payer, who was told address and secret, asks what would arrive, before any money moves.")
        print(shown(">", f"a packet of {_usd(_TOTAL)} that nobody can fulfil, to {payee.address}"))
        quoted = quote(link, payee, _TOTAL)
        print(shown("<", f"{_usd(quoted.arrives)} would arrive; the payment takes {_usd(quoted.receive_max)} in all"))
        self._same("what would arrive", (quoted.arrives, quoted.asset), (_TOTAL, _USD))

    def _tell(self, books: Books) -> None:
        ending = [books.ending.value if books.ending else "", books.reason]
        told = f"{_usd(books.delivered)} delivered in {books.packets} packets, {books.repeats} times one was sent again"
        print(shown("<", f"{': '.join(filter(None, ending))}: {told}"))

    def _compare(self, book: "Booker", path: str, books: Books) -> None:
        self._say("The payer's books are compared with the payee's, as core banking reads them from the file.")
        payee = book.books(path.rpartition("/")[2])
        print(shown("<", f"payer: {_usd(books.sent)} in {books.packets} packets, {_usd(books.unknown)} unknown"))
        print(shown("<", f"payee: {_usd(payee['received'])} in {payee['credits']} credits"))
        self._same("what is unknown to the payer", books.unknown, 0)
        self._same("the payee's books", (payee["received"], payee["credits"]), (books.sent, books.packets))

    def _pay_otherwise(self, client: "_Client", book: "Booker") -> str:
        payment = self._create(client)
        self._say("Core banking, a process of its own on the same file, books 10.00, and repeats the call.")
        first = self._book(book, payment, "wire-1", 1000, "credited")
        again = self._book(book, payment, "wire-1", 1000, "credited")
        self._same("the answer to the repeated call", again, first)
        self._say("Core banking books the other 15.00.")
        self._book(book, payment, "wire-2", 1500, "credited")
        self._read(client, payment, received="2500", completed=True)
        self._say("Core banking tries to book 0.01 more.")
        self._book(book, payment, "wire-3", 1, "payment_completed")
        return payment

    def _create(self, client: "_Client") -> str:
        self._say("A client asks for an incoming payment of 25.00 USD.")
        answer = self._send(client, "POST", "/incoming-payments", _wanted(client, "USD"))
        self._same("status", answer.status, 201)
        self._same("completed", answer.body.get("completed"), False)
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), "0")
        self._same("methods", [method["type"] for method in answer.body.get("methods", [])], ["ilp"])
        if "id" not in answer.body:
            raise StoryEnds("There is no payment to go on with.")
        return urlsplit(str(answer.body["id"])).path

    def _read(self, client: "_Client", path: str, *, received: str, completed: bool) -> dict[str, Any]:
        self._say("The client reads it, signed.")
        answer = self._send(client, "GET", path)
        self._same("status", answer.status, 200)
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), received)
        self._same("completed", answer.body.get("completed"), completed)
        self._same("methods", len(answer.body.get("methods", [])), 0 if completed else 1)
        return answer.body

    def _read_publicly(self, client: "_Client", path: str, *, received: str) -> None:
        self._say("Anybody reads it, with neither token nor signature.")
        answer = self._send(client, "GET", path, signed=False)
        self._same("status", answer.status, 200)
        self._same("members", sorted(answer.body), ["authServer", "receivedAmount"])
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), received)

    def _book(self, book: "Booker", path: str, credit: str, value: int, outcome: str) -> dict[str, Any]:
        print(shown(">", f"book {_usd(value)} as {credit}"))
        answer = book(path.rpartition("/")[2], credit, value)
        print(shown("<", ": ".join(str(part) for part in answer.values())))
        self._same("outcome", answer.get("outcome"), outcome)
        return answer

    def _forge(self, forger: "_Client", path: str) -> None:
        self._say("A thief has the token but not the key, and signs with one of his own.")
        answer = self._send(forger, "GET", path)
        self._same("status", answer.status, 401)
        self._same("challenge", answer.challenge, f"GNAP as_uri={forger.base_url}/auth")

    def _ask_for_euros(self, client: "_Client") -> None:
        self._say("The client asks for a payment in the wrong asset.")
        answer = self._send(client, "POST", "/incoming-payments", _wanted(client, "EUR"))
        self._same("status", answer.status, 400)
        self._same("code", answer.body.get("error", {}).get("code"), "asset_mismatch")

    def _conclude(self) -> int:
        good = self._checks - self._wrong
        print(f"\n{good} of {self._checks} checks held." + (" Something is wrong." if self._wrong else ""))
        return 1 if self._wrong else 0

    def _say(self, text: str) -> None:
        self._step += 1
        print(f"\n{self._step:>2}  {text}", flush=True)

    def _send(
        self, client: "_Client", method: str, path: str, body: dict[str, Any] | None = None, *, signed: bool = True
    ) -> "_Answer":
        wanted = f", {_terms(body)}" if body else ""
        print(shown(">", f"{method} {path} {'signed' if signed else 'unsigned'}{wanted}"))
        answer = client.send(method, path, body, signed=signed)
        print(shown("<", f"{answer.status} {_told(answer.body)}"))
        return answer

    def _same(self, what: str, actual: object, expected: object) -> None:
        self._checks += 1
        if actual != expected:
            self._wrong += 1
            print(f"     WRONG: {what} should be {expected!r}, but is {actual!r}")


# --- what is printed -------------------------------------------------------------------------------


def shown(direction: str, text: str) -> str:
    """`text` as lines of bounded width, marked as sent (`>`) or received (`<`)."""
    return textwrap.fill(text, _WIDTH_CHARS, initial_indent=f"     {direction} ", subsequent_indent=" " * 7)


class Progress:
    """What is shown of a payment of `total` cents while it is made. Halfway it waits until it may `go_on`.

    On a terminal that is a bar which grows; elsewhere a line for each tenth.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = 0  # tenths
        self.halfway = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, books: Books) -> None:
        """Show how far the payment is."""
        done = books.delivered / self._total
        bar = "#" * round(done * _BAR_CHARS)
        line = f"     [{bar:-<{_BAR_CHARS}}] {_usd(books.delivered):>9}"
        if sys.stdout.isatty():
            print(f"\r{line}", end="\n" if books.ending else "", flush=True)
        elif int(done * 10) > self._shown:
            print(line, flush=True)
        self._shown = max(self._shown, int(done * 10))
        if done >= 0.5 and not self.halfway.is_set():
            self.halfway.set()
            self.go_on.wait(_START_S_MAX)

    def finish(self, _: object) -> None:
        """The payment is over, be it that it got halfway or not."""
        self.halfway.set()


def _told(body: Mapping[str, Any]) -> str:
    """What a body says, in a few words: an error, the public view, or the resource."""
    if "error" in body:
        return f"{body['error'].get('code')}: {body['error'].get('description')}"
    parts = [f"received {_amount(body.get('receivedAmount'))}"]
    if "incomingAmount" in body:
        parts[0] += f" of {_amount(body['incomingAmount'])}"
    if "completed" in body:
        parts.append("completed" if body["completed"] else "not completed")
    if "expiresAt" in body:
        parts.append(f"expires {body['expiresAt']}")
    if "methods" in body:
        parts.append(f"can be paid by {', '.join(method['type'] for method in body['methods']) or 'nothing any more'}")
    if "authServer" in body:
        parts.append(f"grants at {body['authServer']}")
    return ", ".join(parts)


def _terms(body: Mapping[str, Any]) -> str:
    return f"{_amount(body['incomingAmount'])} into {body['walletAddress']}, expires {body['expiresAt']}"


def _amount(amount: Any) -> str:
    """An amount of the wire in major units: 2500 at scale 2 is 25.00."""
    try:
        return f"{_decimal(int(amount['value']), amount['assetScale'])} {amount['assetCode']}"
    except (KeyError, TypeError, ValueError):
        return f"{amount!r}, which is no amount"


def _usd(cents: int) -> str:
    return f"{_decimal(cents, _USD.scale)} {_USD.code}"


def _decimal(value: int, scale: int) -> str:
    return f"{Decimal(value).scaleb(-scale):f}"


# --- the client ------------------------------------------------------------------------------------


@frozen
class _Answer:
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
        headers: tuple[tuple[str, str], ...] = ()
        if signed:
            headers += (("authorization", f"GNAP {self.token}"),)
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
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise StoryEnds(f"The service did not answer {method} {path} with JSON: {error!r}") from error
        finally:
            connection.close()
        return _Answer(response.status, answer, response.getheader("WWW-Authenticate"))


def _wanted(client: _Client, asset_code: str) -> dict[str, Any]:
    return {
        "walletAddress": f"{client.base_url}/alice",
        "incomingAmount": {"value": "2500", "assetCode": asset_code, "assetScale": 2},
        "expiresAt": (utc_now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "metadata": {"externalRef": "INV-2026-0042"},
    }


# --- the processes ---------------------------------------------------------------------------------


def _run_command(*arguments: str) -> None:
    done = subprocess.run([*_COMMAND, *arguments], check=False, capture_output=True, text=True)  # noqa: S603 - our own
    if done.returncode:
        raise StoryEnds(done.stderr.strip())


@contextmanager
def service(folder: Path, port: int) -> Iterator[int]:
    """A serving process, ready for requests; it is killed at the end (SIGKILL), as nothing may be lost by that."""
    log = folder / "service.log"
    arguments = ["serve", "--config", str(folder / "incoming-payments.toml")]
    with log.open("ab") as output:
        process = subprocess.Popen([*_COMMAND, *arguments], stdout=output, stderr=output)  # noqa: S603 - our own
    try:
        _await_port(process, port, log)
        yield process.pid
    finally:
        process.kill()
        process.wait()


class Booker:
    """The core banking process: takes bookings on its standard input and answers each on its standard output."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, id: str, credit: str, value: int) -> dict[str, Any]:
        """Have one credit booked; the outcome, once it is durable."""
        return self._ask(f"{id} {credit} {value}")

    def books(self, id: str) -> dict[str, Any]:
        """What the books say of a payment: what it has `received`, in how many `credits` of packets."""
        return self._ask(id)

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None  # noqa: S101 - our own pipe
        assert self._process.stdout is not None  # noqa: S101 - our own pipe
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            said = self._process.stdout.readline()
        except BrokenPipeError:
            said = ""
        if not said:
            raise StoryEnds("The core banking process ended; what it said is above.")
        answer: dict[str, Any] = json.loads(said)
        return answer


@contextmanager
def core_banking(database: Path) -> Iterator[Booker]:
    """A process that embeds the library on the file of the service."""
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-m", "incoming_payments.server.demo", str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Booker(process)
        finally:
            process.communicate()  # closes its input, which is how it is told to end


def book_all(database: str, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """What core banking does: book each line, `payment-id credit-id value`, and tell the outcome.

    A line that is a payment's id asks what is in the books.
    """
    with SqliteStore(database) as store:
        ports = Ports(store=store)
        for line in lines:
            id, *booking = line.split()
            if not booking:
                yield _books(store, id)
                continue
            credit, value = booking
            try:
                booked = run(receive(id, credit=credit, amount=Amount(int(value), _USD), now=utc_now()), ports)
            except IncomingPaymentsError as error:
                yield {"outcome": error.code, "why": error.description}
            else:
                total = f"received {_decimal(booked.received.value, _USD.scale)} {_USD.code} in all"
                yield {"outcome": "credited", "total": total + (", which completes it" if booked.completes else "")}


def _books(store: SqliteStore, id: str) -> dict[str, Any]:
    """The total, and the number of packets that were credited, from the events that lie beside the credits."""
    credits = [event for event in store.events(payment_id(id)) if event.kind is EventKind.CREDITED]
    names = {event.credit_id for event in credits if str(event.credit_id).startswith(STREAM_CREDITS)}
    return {"received": credits[-1].received.value if credits else 0, "credits": len(names)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StoryEnds(f"The service did not start:\n{log.read_text()}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise StoryEnds(f"The service did not listen within {_START_S_MAX:.0f} seconds:\n{log.read_text()}")


def _core_banking_main(arguments: Sequence[str]) -> None:
    with suppress(KeyboardInterrupt):  # Ctrl-C reaches every process of the demo
        for outcome in book_all(arguments[0], iter(sys.stdin)):
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    _core_banking_main(sys.argv[1:])
