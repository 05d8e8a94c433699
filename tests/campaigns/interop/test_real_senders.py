"""Real senders: npm @interledger/pay and ilp-protocol-stream pay incoming payments of a real `serve`, over HTTP.

Signed HTTP requests create and read every payment. The amount that the sender reports as delivered is compared with
the amount that the payment has received.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen

from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN
from kits import node_packages
from kits.processes import COMMAND, HttpClient, free_port, run_command, serving

PAY_2: Final = "@interledger/pay 0.2.2"
PAY_4: Final = "@interledger/pay 0.4.0-alpha.9"
RAFIKI: Final = f"{PAY_4} as in Rafiki"
NEWEST: Final = f"{PAY_4} as in the newest Rafiki"
STREAM: Final = "ilp-protocol-stream 2.7.1"
SENDERS: Final = (PAY_2, PAY_4, RAFIKI, NEWEST, STREAM)
DELIVERERS: Final = (PAY_2, PAY_4, RAFIKI, NEWEST)  # these senders accept an amount to deliver
SCRIPT: Final = Path(__file__).with_name("real_senders.mjs")

CENTS: Final = 2500  # the incoming amount
EURO_TOKEN: Final = "a-token-of-a-peer-with-an-account-in-euros"
EURO_PEER: Final = """
[[peer]]
name = "euros"
asset_code = "EUR"
asset_scale = 2
token_files = ["euro-token.txt"]
"""
PACKETS_MAX: Final = 20  # of a sender that ends at once, after about ten probes; an endless loop would send thousands


# --- the service -----------------------------------------------------------------------------------


@frozen
class Payment:
    """An incoming payment, as in the response to its client."""

    url: str
    address: str
    secret: str


@frozen
class Service:
    """A running `serve`, a client of it, and the token of its peer in US dollars."""

    client: HttpClient
    token: str

    def create(self, cents: int | None = CENTS, expires_at: datetime | None = None) -> Payment:
        """Create a payment of `cents`, or of any amount."""
        members: dict[str, object] = {}
        if cents is not None:
            members["incomingAmount"] = {"value": str(cents), "assetCode": "USD", "assetScale": 2}
        if expires_at is not None:
            members["expiresAt"] = expires_at.isoformat().replace("+00:00", "Z")
        response = self.client.create(**members)
        assert response.status_code == 201, response.text
        created = response.json()
        [method] = created["methods"]
        return Payment(created["id"], method["ilpAddress"], method["sharedSecret"])

    def read(self, payment: Payment) -> tuple[int, bool]:
        """Return the received amount in cents, and whether the payment is completed."""
        found = self.client.get(payment.url).json()
        return int(found["receivedAmount"]["value"]), found["completed"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run a service with two peers: one account is in US dollars, the other in euros."""
    folder, port = tmp_path_factory.mktemp("service"), free_port()
    assert run_command("init", folder, "--port", str(port)).returncode == 0
    (folder / "euro-token.txt").write_text(EURO_TOKEN, "utf-8")
    with (folder / CONFIGURATION).open("a", encoding="utf-8") as configuration:
        configuration.write(EURO_PEER)
    token = (folder / PEER_TOKEN).read_text("utf-8").strip()
    with serving([*COMMAND, "serve", "--config", folder / CONFIGURATION], port, folder / "log"):
        yield Service(HttpClient.of(folder, f"http://127.0.0.1:{port}"), token)


# --- the senders -----------------------------------------------------------------------------------


@frozen
class Outcome:
    """The outcome of a payment.

    The sender reports how it ended (`None` for success), the amount `sent` in minor units of its own account, and the
    amount `delivered` in cents. Its connector counts the packets, and the cents that `arrived` in fulfilled ones.
    """

    error: str | None
    sent: int
    delivered: int
    packets: int
    arrived: int


class Sender:
    """A process in which one of the senders pays, one payment after the other."""

    def __init__(self, name: str, installed: Path, service: Service) -> None:
        self.name = name
        self._token = service.token
        command = ["node", str(SCRIPT), str(installed), name, f"{service.client.base_url}/ilp"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(self, payment: Payment, **terms: int | str) -> None:
        """Start to pay an `amount` of the account's minor units, or to `deliver` cents.

        `scale` is that of the sender's account. `most` is the largest packet that its connector accepts.
        `ilp-protocol-stream` sends the amount on each of `streams` streams.
        """
        job = {"address": payment.address, "secret": payment.secret, "token": self._token, **terms}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def finish(self) -> Outcome:
        """Wait for the end of the payment, and return its outcome."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.name} has ended; its output is above"
        return Outcome(**json.loads(line))

    def pay(self, payment: Payment, **terms: int | str) -> Outcome:
        """Pay, and return the outcome."""
        self.start(payment, **terms)
        return self.finish()

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


# npm has no later version than 0.4.0-alpha.9, and the newest Rafiki uses 0.4.0-alpha.12. That one differs in two rules:
# F99 with a close frame is a final refusal by the application, and F04 and F05 do not end a probe.
NEWEST_RULES: Final = {
    "return __1.PaymentError.ClosedByReceiver;": """
        __1.PaymentError.ApplicationError = 'ApplicationError'
        return reply.isReject() && reply.ilpReject.code === 'F99' ? 'ApplicationError' : 'ClosedByReceiver'
    """,
    "if (code[0] === 'T' ||": "if (code[0] === 'T' || code === 'F04' || code === 'F05' ||",
}


def with_newest_rules(installed: Path, folder: Path) -> Path:
    """Return a copy of the installed package in `folder`, with the failure rules of 0.4.0-alpha.12."""
    shutil.copytree(installed, folder, dirs_exist_ok=True, symlinks=True)
    path = folder / "node_modules" / "@interledger" / "pay" / "dist" / "src" / "controllers" / "failure.js"
    text = path.read_text("utf-8")
    for old, new in NEWEST_RULES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    return folder


@pytest.fixture(scope="module")
def senders(
    service: Service, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Sender]]:
    """Return all senders by name, each version installed in a folder of its own."""
    with ExitStack() as open:
        found = {}
        for name in SENDERS:
            package, version = name.split()[:2]
            folder = node_packages.installed({package: version}, request, tmp_path_factory)
            folder = with_newest_rules(folder, tmp_path_factory.mktemp("newest")) if name == NEWEST else folder
            found[name] = Sender(name, folder, service)
            open.callback(found[name].close)
        yield found


@pytest.fixture(params=SENDERS)
def sender(senders: Mapping[str, Sender], request: pytest.FixtureRequest) -> Sender:
    """Return each of the senders."""
    return senders[request.param]


# --- successful payments --------------------------------------------------------------------------

# The incoming amount in cents, the terms for the sender, and the amounts that it sends (in its own units) and delivers.
SUCCESSFUL: Final[Mapping[str, tuple[int | None, dict[str, int], tuple[int, int]]]] = {
    "in full": (CENTS, {"amount": 2500}, (2500, 2500)),
    "in part": (CENTS, {"amount": 999}, (999, 999)),
    "a little too much": (CENTS, {"amount": 2525}, (2525, 2525)),
    "any amount": (None, {"amount": 123_456_789}, (123_456_789, 123_456_789)),
    "in full, in packets": (250_000, {"amount": 250_000, "most": 9_999}, (250_000, 250_000)),
    "from a finer account": (CENTS, {"amount": 2_499_999_999, "scale": 8}, (2_499_999_999, 2499)),
    # Each packet is rounded down: seven deliver 333 each, and the last one 166.
    "from a finer account, in packets": (
        CENTS,
        {"amount": 2_500_000_000, "scale": 8, "most": 333_333_333},
        (2_500_000_000, 2497),
    ),
}


def accounts(outcome: Outcome) -> tuple[str | None, int, int, int]:
    """Return the error, the sent amount, and the delivered amount by the sender's report and by the packets."""
    return outcome.error, outcome.sent, outcome.delivered, outcome.arrived


@pytest.mark.parametrize("case", SUCCESSFUL)
def test_it_pays(service: Service, sender: Sender, case: str) -> None:
    """The sender sends the wanted amount, and the payment has received the amount that the sender reports."""
    cents, terms, (sent, delivered) = SUCCESSFUL[case]
    payment = service.create(cents)

    outcome = sender.pay(payment, **terms)

    assert (None, sent, delivered, delivered) == accounts(outcome)
    assert (delivered, cents is not None and delivered >= cents) == service.read(payment)


@pytest.mark.parametrize("name", DELIVERERS)
@pytest.mark.parametrize("account", [{}, {"scale": 8}, {"scale": 8, "most": 333_333_333}])
def test_it_delivers(service: Service, senders: Mapping[str, Sender], name: str, account: dict[str, int]) -> None:
    """A sender that gets an amount to deliver delivers exactly that, in spite of rounding on the way."""
    payment = service.create()

    outcome = senders[name].pay(payment, deliver=CENTS, **account)

    assert (None, outcome.sent, CENTS, CENTS) == accounts(outcome)
    assert service.read(payment) == (CENTS, True)


# --- refused payments -------------------------------------------------------------------------

# The errors of the senders for a payment that closes while they pay it, and for one that is closed before. The service
# replies with F07. With F99, the newest Rafiki would give the payment up.
ENDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "F07": {
        PAY_2: ("ConnectorError", "ConnectorError"),
        PAY_4: ("ClosedByReceiver", "ClosedByReceiver"),
        RAFIKI: ("ClosedByReceiver", "ClosedByReceiver"),
        NEWEST: ("ClosedByReceiver", "ClosedByReceiver"),
        STREAM: ("Stream was closed before the desired amount was sent", "Error connecting: Unable to establish"),
    },
    "F99": {
        PAY_2: ("ClosedByRecipient", "ClosedByRecipient"),
        PAY_4: ("ClosedByReceiver", "ClosedByReceiver"),
        RAFIKI: ("ClosedByReceiver", "ClosedByReceiver"),
        NEWEST: ("ApplicationError", "ApplicationError"),
        STREAM: ("Stream was closed before the desired amount was sent", "Stream was closed"),
    },
}
CLOSES: Final = {name: ends[0] for name, ends in ENDS["F07"].items()}
CLOSED: Final = {name: ends[1] for name, ends in ENDS["F07"].items()}
# The errors of the senders when the account has another asset.
NOT_CONNECTED: Final[Mapping[str, str]] = {
    PAY_2: "ConnectorError",
    PAY_4: "EstablishmentFailed",
    RAFIKI: "ConnectorError",
    NEWEST: "ConnectorError",
    STREAM: "Error connecting: Unable to establish connection",
}


def check_end(outcome: Outcome, error: str, delivered: int) -> None:
    """Check that the sender ended early with this error, and delivered this amount by its report and by the packets."""
    assert outcome.error is not None
    assert error == outcome.error[: len(error)]
    assert (delivered, delivered) == (outcome.delivered, outcome.arrived)
    assert outcome.packets <= PACKETS_MAX


@pytest.mark.parametrize(("first", "second"), [({}, {}), ({}, {"scale": 8}), ({"scale": 8}, {"scale": 8})])
def test_more_than_remains(service: Service, sender: Sender, first: dict[str, int], second: dict[str, int]) -> None:
    """A sender that sends more than remains delivers exactly the remainder, and ends at once."""
    payment = service.create()
    unit = 10 ** (second.get("scale", 2) - 2)
    assert sender.pay(payment, amount=1000 * 10 ** (first.get("scale", 2) - 2), **first).delivered == 1000

    outcome = sender.pay(payment, amount=2500 * unit, **second)

    check_end(outcome, CLOSES[sender.name], 1500)
    assert outcome.sent == 1500 * unit
    assert service.read(payment) == (CENTS, True)


def test_more_than_the_payment_is_for(service: Service, sender: Sender) -> None:
    """A sender of too much delivers exactly the incoming amount, or nothing if it asks first."""
    payment = service.create()
    delivers, completed = (0, False) if sender.name == PAY_2 else (CENTS, True)
    error = CLOSES[STREAM] if sender.name == STREAM else "IncompatibleReceiveMax"

    outcome = sender.pay(payment, amount=3000)

    check_end(outcome, error, delivers)
    assert (delivers, completed) == service.read(payment)


def test_more_than_the_payment_is_for_in_many_packets(service: Service, sender: Sender) -> None:
    """`pay` 0.4 ends at the first reply that shows a maximum below its own amount. Its report is exact all the same."""
    payment = service.create(1000)
    error = CLOSES[STREAM] if sender.name == STREAM else "IncompatibleReceiveMax"

    outcome = sender.pay(payment, amount=1500, most=150)

    check_end(outcome, error, outcome.delivered)
    delivers = {PAY_2: {0}, STREAM: {1000}}.get(sender.name, {150, 300, 450})  # `pay` 0.4 has packets in flight
    assert outcome.delivered in delivers
    assert (outcome.delivered, sender.name == STREAM) == service.read(payment)


def test_into_a_completed_payment(service: Service, sender: Sender) -> None:
    """A completed payment refuses the money, and the sender ends at once."""
    payment = service.create()
    assert sender.pay(payment, amount=CENTS).delivered == CENTS

    outcome = sender.pay(payment, amount=100)

    check_end(outcome, CLOSED[sender.name], 0)
    assert service.read(payment) == (CENTS, True)


@pytest.fixture(scope="module")
def expired(service: Service) -> Payment:
    """Return a payment that has expired by the clock of the service."""
    expires_at = datetime.now(UTC) + timedelta(seconds=1)
    payment = service.create(expires_at=expires_at)
    while datetime.now(UTC) <= expires_at:
        time.sleep(0.05)
    return payment


def test_into_an_expired_payment(service: Service, sender: Sender, expired: Payment) -> None:
    """An expired payment refuses the money, and the sender ends at once."""
    outcome = sender.pay(expired, amount=100)

    check_end(outcome, CLOSED[sender.name], 0)
    assert service.read(expired) == (0, False)


@pytest.mark.parametrize("code", ENDS)
def test_replies_of_closed_payments_with_each_code(
    service: Service, sender: Sender, expired: Payment, code: str
) -> None:
    """Both codes end each sender at once. `pytest -s` prints the table that docs/reports/senders.md shows."""
    payment = service.create()
    assert sender.pay(payment, amount=1000).delivered == 1000
    closes, closed = ENDS[code][sender.name]
    for case, target, amount, error, delivered in (
        ("completed meanwhile", payment, 2500, closes, 1500),
        ("completed before", payment, 100, closed, 0),
        ("expired", expired, 100, closed, 0),
    ):
        outcome = sender.pay(target, amount=amount, closed=code)
        assert outcome.error is not None
        print(f"| {sender.name} | {case} | {code} | {outcome.error[:52]} | {delivered} | {outcome.packets} |")
        check_end(outcome, error, delivered)


def test_over_an_account_in_another_asset(service: Service, sender: Sender) -> None:
    """The service refuses money in another asset, and the sender ends at once."""
    payment = service.create()

    outcome = sender.pay(payment, amount=100, token=EURO_TOKEN)

    check_end(outcome, NOT_CONNECTED[sender.name], 0)
    assert service.read(payment) == (0, False)


@pytest.mark.parametrize("each", [1250, 2000, 2500])
def test_several_streams_of_one_connection(service: Service, senders: Mapping[str, Sender], each: int) -> None:
    """All streams together fill the payment. Each stream that is left learns at once that it is closed."""
    payment = service.create()

    outcome = senders[STREAM].pay(payment, amount=each, streams=3)

    check_end(outcome, CLOSES[STREAM], CENTS)
    assert service.read(payment) == (CENTS, True)


# --- senders at the same time ---------------------------------------------------------------------------------


def all_at_once(senders: Mapping[str, Sender], payment: Payment, **terms: int) -> list[Outcome]:
    """Let all senders pay at the same time, and return their outcomes."""
    for sender in senders.values():
        sender.start(payment, **terms)
    return [sender.finish() for sender in senders.values()]


def test_several_at_once(service: Service, senders: Mapping[str, Sender]) -> None:
    """Senders that share a payment each deliver the amount that they report, and together complete it."""
    each = 250_000
    total = each * len(senders)
    payment = service.create(total)

    outcomes = all_at_once(senders, payment, amount=each, most=9_999)

    assert [(None, each, each, each)] * len(senders) == [accounts(outcome) for outcome in outcomes]
    assert (total, True) == service.read(payment)


def test_too_many_at_once(service: Service, senders: Mapping[str, Sender]) -> None:
    """When senders together send too much, each reports exactly its own delivered amount."""
    each, cents = 250_000, 400_000
    payment = service.create(cents)

    outcomes = all_at_once(senders, payment, amount=each, most=9_999)

    received, completed = service.read(payment)
    assert [outcome.arrived for outcome in outcomes] == [outcome.delivered for outcome in outcomes]
    assert received == sum(outcome.delivered for outcome in outcomes)
    assert completed
    assert cents <= received <= cents + cents // 100  # the tolerance of the last packet
