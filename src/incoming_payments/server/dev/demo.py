"""`incoming-payments demo` shows a whole payment between four real processes, and checks each step.

- This process is the client, which sends signed requests, and the payer, which sends packets by STREAM over HTTP.
- The service runs in a process of its own on a new SQLite file. Halfway through the packets, the demo kills
  the service with SIGKILL and starts it again.
- The ASE's core banking is the third process. It embeds the library, opens the same database, and credits money that
  does not come in packets.
- The authorization server is the fourth process. The service introspects the token there for each request, and
  signs these introspection requests.

The exit status is 0 only if every check holds, which includes that the ledgers of payer and payee agree.
"""

import http.client
import json
import secrets
import sys
import tempfile
import textwrap
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

from attrs import frozen

from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.ports.clock import utc_now
from incoming_payments.server.dev._demo_processes import (
    START_S_MAX,
    USD,
    Authorization,
    CoreBanking,
    StoryEnds,
    authorization_server,
    core_banking,
    decimal,
    free_port,
    run_command,
    service,
)
from incoming_payments.testing.sender import Ending, Link, NotTaken, Payee, SenderTotals, over_http, pay, quote

_WIDTH_CHARS: Final = 118
_BAR_CHARS: Final = 60
_TOTAL: Final = 2500  # the amount of the payment, in cents
_PACKET_MAX: Final = 10  # the largest amount of a packet, in cents
_IN_FLIGHT: Final = 8


def main() -> int:
    """Run the demo, and return its exit status: 0 if every check held, else 1."""
    with tempfile.TemporaryDirectory(prefix="incoming-payments-demo-") as folder:
        try:
            return _Story(Path(folder)).run()
        except (StoryEnds, NotTaken) as error:
            print(f"\n{error}", file=sys.stderr)
            return 1


class _Story:
    """The steps of the demo, and the count of their checks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._step = 0
        self._wrong = 0
        self._checks = 0

    def run(self) -> int:
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}/introspect"
        run_command("init", str(self._folder), "--port", str(self._port), "--authorization-server", endpoint)
        with (
            authorization_server(port, self._folder / "service-key.jwk") as authorization,
            core_banking(self._folder / "payments.sqlite3") as bank,
        ):
            client = self._obtain_token(authorization)
            forger = _Client(client.base_url, client.token, PrivateKey.generate_ed25519(client.key.kid))
            self._pay_by_stream(client, bank)
            with service(self._folder, self._port):
                path = self._pay_otherwise(client, bank)
                self._forge(forger, path, authorization.url)
                self._request_euros(client)
                self._fail_and_revoke(authorization, client, path)
        return self._conclude()

    def _obtain_token(self, authorization: Authorization) -> "_Client":
        self._say("The authorization server issues a token that is bound to the key of a client.")
        key, token = PrivateKey.generate_ed25519("client-key-1"), secrets.token_urlsafe(32)
        authorization("issue", token=token, actions=["create", "read"], jwk=key.public_jwk())
        print(shown("<", "a token with the rights create and read"))
        return _Client(f"http://127.0.0.1:{self._port}", token, key)

    def _fail_and_revoke(self, authorization: Authorization, client: "_Client", path: str) -> None:
        self._say("The authorization server fails. The client reads the payment.")
        authorization("fail", fault="error")
        answer = self._send(client, "GET", path)
        self._same("status", answer.status, 503)
        self._same("code", answer.body.get("error", {}).get("code"), "authorization_server_unavailable")
        authorization("fail", fault=None)
        self._read(client, path, received="2500", completed=True)
        self._say("The authorization server revokes the token. The client reads the payment once more.")
        authorization("revoke", token=client.token)
        answer = self._send(client, "GET", path)
        self._same("status", answer.status, 401)
        self._same("code", answer.body.get("error", {}).get("code"), "invalid_token")

    def _pay_by_stream(self, client: "_Client", bank: "CoreBanking") -> None:
        progress = Progress(_TOTAL)
        with ThreadPoolExecutor(1) as payer, progress:
            with service(self._folder, self._port) as pid:
                self._say(f"The service starts on a fresh SQLite file (process {pid}).")
                path = self._create(client)
                resource = self._read(client, path, received="0", completed=False)
                self._read_publicly(client, path, received="0")
                link, payee = over_http(f"{client.base_url}/ilp", self._token()), Payee.of(resource)
                self._quote(link, payee)
                self._say(
                    f"The payer sends {_usd(_TOTAL)} by STREAM over HTTP, in packets of {_usd(_PACKET_MAX)}, "
                    f"{_IN_FLIGHT} at a time."
                )
                paying = payer.submit(
                    pay, link, payee, _TOTAL, packet_max=_PACKET_MAX, in_flight=_IN_FLIGHT, progress=progress
                )
                paying.add_done_callback(progress.finish)
                progress.halfway.wait()
                self._say(f"The service is killed with SIGKILL (process {pid}), with packets in flight.")
            progress.go_on.set()
            with service(self._folder, self._port) as pid:
                self._say(f"The service is back (process {pid}). The payer repeats the packets that got no reply.")
                totals = paying.result()
                self._show_totals(totals)
                self._same("ending", totals.ending, Ending.DONE)
                self._same("delivered", totals.delivered, _TOTAL)
                self._same("whether packets were repeated", totals.repeats > 0, True)
                self._read(client, path, received=str(_TOTAL), completed=True)
                self._compare(bank, path, totals)
                self._say("The payer tries to send 0.01 more.")
                more = pay(link, payee, 1)
                self._show_totals(more)
                self._same("ending", more.ending, Ending.CLOSED)

    def _token(self) -> str:
        """Return the token of the peer, which `init` has written."""
        return (self._folder / "peer-token.txt").read_text("utf-8").strip()

    def _quote(self, link: Link, payee: Payee) -> None:
        self._say("A payer that has the address and the secret gets a quote before any money moves.")
        print(shown(">", f"a packet of {_usd(_TOTAL)} without a fulfillment, to {payee.address}"))
        quoted = quote(link, payee, _TOTAL)
        print(
            shown(
                "<", f"{_usd(quoted.arrives)} would arrive, and the payment accepts {_usd(quoted.receive_max)} in all"
            )
        )
        self._same("the amount that would arrive", (quoted.arrives, quoted.asset), (_TOTAL, USD))

    def _show_totals(self, totals: SenderTotals) -> None:
        ending = [totals.ending.value if totals.ending else "", totals.reason]
        text = f"{_usd(totals.delivered)} delivered in {totals.packets} packets, {totals.repeats} of them repeated"
        print(shown("<", f"{': '.join(filter(None, ending))}: {text}"))

    def _compare(self, bank: "CoreBanking", path: str, totals: SenderTotals) -> None:
        self._say("The payer's ledger is compared with the payee's, which core banking reads from the file.")
        payee = bank.ledger(path.rpartition("/")[2])
        print(shown("<", f"payer: {_usd(totals.sent)} in {totals.packets} packets, {_usd(totals.unknown)} unknown"))
        print(shown("<", f"payee: {_usd(payee['received'])} in {payee['credits']} credits"))
        self._same("the amount unknown to the payer", totals.unknown, 0)
        self._same("the payee's ledger", (payee["received"], payee["credits"]), (totals.sent, totals.packets))

    def _pay_otherwise(self, client: "_Client", bank: "CoreBanking") -> str:
        payment = self._create(client)
        self._say("Core banking, another process on the same file, credits 10.00 and repeats the call.")
        first = self._credit(bank, payment, "wire-1", 1000, "credited")
        again = self._credit(bank, payment, "wire-1", 1000, "credited")
        self._same("the answer to the repeated call", again, first)
        self._say("Core banking credits the other 15.00.")
        self._credit(bank, payment, "wire-2", 1500, "credited")
        self._read(client, payment, received="2500", completed=True)
        self._say("Core banking tries to credit 0.01 more.")
        self._credit(bank, payment, "wire-3", 1, "payment_completed")
        return payment

    def _create(self, client: "_Client") -> str:
        self._say("A client creates an incoming payment of 25.00 USD.")
        answer = self._send(client, "POST", "/incoming-payments", _wanted(client, "USD"))
        self._same("status", answer.status, 201)
        self._same("completed", answer.body.get("completed"), False)
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), "0")
        self._same("methods", [method["type"] for method in answer.body.get("methods", [])], ["ilp"])
        if "id" not in answer.body:
            raise StoryEnds("The service created no payment.")
        return urlsplit(str(answer.body["id"])).path

    def _read(self, client: "_Client", path: str, *, received: str, completed: bool) -> dict[str, Any]:
        self._say("The client reads the payment with a signed request.")
        answer = self._send(client, "GET", path)
        self._same("status", answer.status, 200)
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), received)
        self._same("completed", answer.body.get("completed"), completed)
        self._same("methods", len(answer.body.get("methods", [])), 0 if completed else 1)
        return answer.body

    def _read_publicly(self, client: "_Client", path: str, *, received: str) -> None:
        self._say("A client reads the payment without a token and a signature.")
        answer = self._send(client, "GET", path, signed=False)
        self._same("status", answer.status, 200)
        self._same("members", sorted(answer.body), ["authServer", "receivedAmount"])
        self._same("receivedAmount", answer.body.get("receivedAmount", {}).get("value"), received)

    def _credit(self, bank: "CoreBanking", path: str, credit_id: str, value: int, outcome: str) -> dict[str, Any]:
        print(shown(">", f"credit {_usd(value)} as {credit_id}"))
        answer = bank(path.rpartition("/")[2], credit_id, value)
        print(shown("<", ": ".join(str(part) for part in answer.values())))
        self._same("outcome", answer.get("outcome"), outcome)
        return answer

    def _forge(self, forger: "_Client", path: str, auth_server: str) -> None:
        self._say("An attacker has the token but not the key, and signs with another key.")
        answer = self._send(forger, "GET", path)
        self._same("status", answer.status, 401)
        self._same("challenge", answer.challenge, f"GNAP as_uri={auth_server}")

    def _request_euros(self, client: "_Client") -> None:
        self._say("The client requests a payment in the wrong asset.")
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
        print(shown("<", f"{answer.status} {_summary(answer.body)}"))
        return answer

    def _same(self, name: str, actual: object, expected: object) -> None:
        self._checks += 1
        if actual != expected:
            self._wrong += 1
            print(f"     WRONG: {name} should be {expected!r}, but is {actual!r}")


# --- output -------------------------------------------------------------------------------


def shown(direction: str, text: str) -> str:
    """Return `text` in lines of limited width, marked as sent (`>`) or received (`<`)."""
    return textwrap.fill(text, _WIDTH_CHARS, initial_indent=f"     {direction} ", subsequent_indent=" " * 7)


class Progress:
    """Show the progress of a payment of `total` cents, and pause it halfway until `go_on` is set.

    A terminal shows one growing bar. Any other output gets a line for each tenth of the payment. As a context manager,
    it stops the payer at the end. After Ctrl-C, the payer would otherwise repeat its packets to the ended service.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._shown = 0  # tenths of the payment for which a line was printed
        self.halfway = threading.Event()
        self.go_on = threading.Event()
        self._has_ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        self.go_on.set()

    def __call__(self, totals: SenderTotals) -> None:
        """Show the amount delivered so far. Raise `StoryEnds` after the end of the context."""
        if self._has_ended:
            raise StoryEnds("The demo has ended.")
        done = totals.delivered / self._total
        bar = "#" * round(done * _BAR_CHARS)
        line = f"     [{bar:-<{_BAR_CHARS}}] {_usd(totals.delivered):>9}"
        if sys.stdout.isatty():
            print(f"\r{line}", end="\n" if totals.ending else "", flush=True)
        elif int(done * 10) > self._shown:
            print(line, flush=True)
        self._shown = max(self._shown, int(done * 10))
        if done >= 0.5 and not self.halfway.is_set():
            self.halfway.set()
            self.go_on.wait(START_S_MAX)

    def finish(self, _: object) -> None:
        """Wake a thread that waits for `halfway`, because the payment may have ended before that."""
        self.halfway.set()


def _summary(body: Mapping[str, Any]) -> str:
    """Return a short description of a body: an error, the public view, or the resource."""
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
        parts.append(
            f"can be paid by {', '.join(method['type'] for method in body['methods'])}"
            if body["methods"]
            else "cannot be paid"
        )
    if "authServer" in body:
        parts.append(f"grants at {body['authServer']}")
    return ", ".join(parts)


def _terms(body: Mapping[str, Any]) -> str:
    return f"{_amount(body['incomingAmount'])} into {body['walletAddress']}, expires {body['expiresAt']}"


def _amount(amount: Any) -> str:
    """Return an amount of a JSON body in major units, for example 25.00 for 2500 at scale 2."""
    try:
        return f"{decimal(int(amount['value']), amount['assetScale'])} {amount['assetCode']}"
    except (KeyError, TypeError, ValueError):
        return f"{amount!r}, which is not an amount"


def _usd(cents: int) -> str:
    return f"{decimal(cents, USD.scale)} {USD.code}"


# --- the client ------------------------------------------------------------------------------------


@frozen
class _Answer:
    status: int
    body: dict[str, Any]
    challenge: str | None


@frozen
class _Client:
    """An Open Payments client that signs its requests."""

    base_url: str
    token: str
    key: PrivateKey

    def send(self, method: str, path: str, body: dict[str, Any] | None = None, *, signed: bool = True) -> _Answer:
        """Send a request over HTTP, signed by default, and return the response."""
        content = b"" if body is None else json.dumps(body).encode("utf-8")
        headers: tuple[tuple[str, str], ...] = ()
        if signed:
            headers += (("authorization", f"GNAP {self.token}"),)
        if content:
            headers += (("content-type", "application/json"), ("content-length", str(len(content))))
        request = RequestMessage(method, f"{self.base_url}{path}", headers, content)
        if signed:
            request = sign(request, self.key, created=utc_now())
        address = urlsplit(self.base_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=START_S_MAX)
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
