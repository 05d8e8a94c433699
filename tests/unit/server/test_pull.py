"""The feed over HTTP in `serve`: its port, its consumers, and clients that share a consumer or are killed."""

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, Final, cast

import httpx
import pytest
from jsonschema import Draft202012Validator

from incoming_payments.domain.feed import Consumer, ConsumerName
from incoming_payments.endpoints.openapi import pull_document
from incoming_payments.endpoints.pull import PullConsumer, PullPolicy
from incoming_payments.errors import StoreUnavailable
from incoming_payments.flows.machinery.ports import AsyncPorts
from incoming_payments.gnap import AccessToken
from incoming_payments.limits import LOGGED_A_MINUTE_MAX, PULL_BODY_BYTES_MAX
from incoming_payments.server import pull
from incoming_payments.server.fixed_paths import Application
from incoming_payments.server.init import PEER_TOKEN
from incoming_payments.server.pull import pulling, registering
from incoming_payments.service import AsyncIncomingPayments
from incoming_payments.stores.memory import MemoryStore
from kits.fake_ports import Raising
from kits.processes import ROOT, Bank, await_lines, code_of, free_port, run_command, unsigned
from kits.raw_http import answers, exchange
from kits.service_kit import Service
from kits.shell import needs_curl, sh

TOKEN: Final = "LEDGER-TOKEN-0001"
PUSH_TOKEN: Final = "PUSH-TOKEN-000001"
CONSUMERS: Final = """
[[consumer]]
name = "ledger"
token_files = ["ledger-token.txt"]
start = "beginning"
[[consumer]]
name = "push"
token_files = ["push-token.txt"]
kinds = ["credited"]
"""


class Puller:
    """A client of the feed on `port` of loopback."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.headers = {"Authorization": f"Bearer {token}"}

    def post(self, path: str, **members: object) -> httpx.Response:
        """Send a request."""
        return unsigned("POST", f"{self.url}/events/{path}", headers=self.headers, json=members)

    def claim(self, **members: int) -> list[dict[str, Any]]:
        """Return the claimed deliveries."""
        response = self.post("claim", **members)
        assert response.status_code == 200, response.text
        deliveries: list[dict[str, Any]] = response.json()["deliveries"]
        return deliveries

    def acknowledge(self, delivery: dict[str, Any]) -> int:
        """Return the status of an acknowledgement."""
        return self.post("acknowledge", lease=delivery["lease"]).status_code

    def handle(self, expected: int, handled: list[str]) -> None:
        """Claim and acknowledge until `expected` deliveries are in `handled`, to which other clients add too."""
        deadline = time.monotonic() + 60
        while len(handled) < expected:
            assert time.monotonic() < deadline, len(handled)
            for delivery in self.claim(limit=3):
                assert self.acknowledge(delivery) == 200
                handled.append(delivery["id"])
            time.sleep(0.02)

    def ready(self) -> "Puller":
        """Return the client when `serve` has registered its consumer."""
        deadline = time.monotonic() + 30
        while self.post("claim", limit=1).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return self


@contextmanager
def serving_events(bank: Bank, *, workers: int = 1) -> Iterator[int]:
    """Run `serve` with consumers, and yield the port of the events."""
    port = free_port()
    (bank.folder / "ledger-token.txt").write_text(TOKEN, "ascii")
    (bank.folder / "push-token.txt").write_text(PUSH_TOKEN, "ascii")
    bank.edit("# workers = 1", f"workers = {workers}")
    bank.edit("# port = 8081", f"port = {port}")
    with bank.configuration.open("a", encoding="utf-8") as file:
        file.write(CONSUMERS)
    with bank.serving():
        await_lines(bank.log, "Application startup complete", workers)
        yield port


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_share_a_consumer(bank: Bank, workers: int) -> None:
    """Each delivery goes to one of two clients, also when several workers answer. Old payments are claimed too."""
    with bank.serving():
        urls = [bank.client.create().json()["id"]]
    with serving_events(bank, workers=workers) as port:
        ledgers = [Puller(port), Puller(port)]
        Puller(port, PUSH_TOKEN).ready()
        urls += [bank.client.create().json()["id"] for _ in range(20)]
        handled: list[str] = []
        with ThreadPoolExecutor() as threads:
            for done in [threads.submit(ledger.handle, len(urls), handled) for ledger in ledgers]:
                done.result()
        assert sorted(handled) == sorted(f"{url.rpartition('/')[2]}_1_1" for url in urls)
        assert [puller.claim() for puller in (*ledgers, Puller(port, PUSH_TOKEN))] == [[], [], []]
    log = bank.log.read_text("utf-8")
    assert f"Consumers claim events on 127.0.0.1 port {port}.\n" in log
    assert "Traceback" not in log


def test_killed_client_loses_nothing(bank: Bank) -> None:
    """When its lease has ended, another client gets the delivery, and the lease of the killed one is lost."""
    program = (
        "import json, sys, time, urllib.request as r\n"
        "q = r.Request(sys.argv[1], b'{\"leaseSeconds\": 10}', json.loads(sys.argv[2]))\n"
        "print(r.build_opener(r.ProxyHandler({})).open(q).read().decode(), flush=True)\n"
        "time.sleep(600)\n"
    )
    with serving_events(bank) as port:
        ledger = Puller(port).ready()
        url = bank.client.create().json()["id"]
        headers = httpx.Headers({**ledger.headers, "Content-Type": "application/json"})
        arguments = [f"{ledger.url}/events/claim", str(dict(headers)).replace("'", '"')]
        with subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            line = client.stdout.readline()
            client.kill()
        [lost] = httpx.Response(200, text=line).json()["deliveries"]
        assert ledger.claim() == []
        deadline = time.monotonic() + 30
        while not (found := ledger.claim()):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        [again] = found
        assert (again["id"], again["attempt"]) == (lost["id"], 2) == (f"{url.rpartition('/')[2]}_1_1", 2)
        assert code_of(ledger.post("acknowledge", lease=lost["lease"])) == (409, "lease_lost")
        assert ledger.acknowledge(again) == 200


def test_each_port_has_its_own_paths_and_tokens(bank: Bank) -> None:
    """No token is valid on the other port, refusals are bounded, and the log has no token."""
    bank.edit("# access = true", "access = true")
    with serving_events(bank) as port:
        ledger = Puller(port).ready()
        peer = Puller(port, (bank.folder / PEER_TOKEN).read_text("utf-8").strip())
        assert code_of(peer.post("claim")) == (401, "invalid_token")
        assert code_of(Puller(port, f"{TOKEN}x").post("claim")) == (401, "invalid_token")
        assert unsigned("POST", f"{ledger.url}/events/claim", json={}).headers["WWW-Authenticate"] == "Bearer"
        assert code_of(Puller(bank.port).post("claim")) == (404, "not_found")
        for path in ("/incoming-payments", "/ilp", "/healthz", "/events"):
            assert code_of(unsigned("GET", f"{ledger.url}{path}")) == (404, "not_found")
        assert unsigned("GET", f"{ledger.url}/openapi.json").json() == pull_document()
        # the header field Host does not choose the port
        start = f"POST /events/claim HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        claim = f"{start}Authorization: Bearer {TOKEN}\r\n"
        body = "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        assert [status for status, _ in answers(exchange(bank.port, (claim + body).encode()))] == [404]
        large = claim.encode() + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % 10**9
        assert [status for status, _ in answers(exchange(port, large + bytes(2 * PULL_BODY_BYTES_MAX)))] == [413]
    log = bank.log.read_text("utf-8")
    assert [secret for secret in (TOKEN, PUSH_TOKEN) if secret in log] == []
    assert "Traceback" not in log


def test_used_port_is_named(bank: Bank) -> None:
    """The error names the setting, before a database is created."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        bank.edit("# port = 8081", f"port = {port}")
        (bank.folder / "ledger-token.txt").write_text(TOKEN, "ascii")
        (bank.folder / "push-token.txt").write_text(PUSH_TOKEN, "ascii")
        with bank.configuration.open("a", encoding="utf-8") as file:
            file.write(CONSUMERS)
        done = run_command("serve", "--config", bank.configuration)
    assert done.returncode == 1
    assert f"events.port: cannot listen on 127.0.0.1 port {port}: " in done.stderr
    assert not (bank.folder / "payments.sqlite3").exists()


@needs_curl
def test_commands_of_the_documentation(bank: Bank) -> None:
    """The commands of `docs/pull.md` claim, acknowledge and fail. The answer there is one that the schema accepts."""
    page = (ROOT / "docs" / "pull.md").read_text("utf-8")
    blocks = [(kind, text) for kind, text in re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL)]
    [answer] = [json.loads(text) for kind, text in blocks if kind == "json"]
    document = pull_document()
    Draft202012Validator({**document, "$ref": "#/components/schemas/claimed"}).validate(answer)
    [shown] = [delivery["lease"] for delivery in answer["deliveries"]]
    claim, acknowledge, fail = [text for kind, text in blocks if kind == "console" and "curl" in text]
    with serving_events(bank) as port:
        Puller(port).ready()
        for settle in (acknowledge, fail):
            bank.client.create()
            done = sh(claim.replace("8081", str(port)), bank.folder)
            [delivery] = json.loads(done.stdout)["deliveries"]
            command = settle.replace("8081", str(port)).replace(shown, delivery["lease"])
            assert json.loads(sh(command, bank.folder).stdout) == {}


# --- the parts -----------------------------------------------------------------------------------------

LEDGER: Final = PullConsumer(consumer=Consumer(name=ConsumerName("ledger")), tokens=[AccessToken(TOKEN)])
POLICY: Final = PullPolicy(consumers=[LEDGER])


def a_service(feed: object) -> AsyncIncomingPayments:
    """Return a service with this feed."""
    ports = AsyncPorts(store=MemoryStore(), feed=cast("Any", feed))
    return AsyncIncomingPayments(policy=Service().policy, ports=ports)


def status_of(application: Application) -> int:
    """Return the status of the response to a claim."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {TOKEN}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/events/claim", "raw_path": b"/events/claim"}
    asyncio.run(cast("Any", application({**scope, "query_string": b"", "headers": headers}, receive, send)))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("error", "status", "event"),
    [(StoreUnavailable("locked"), 503, "store_unavailable"), (RuntimeError("broken"), 500, "request_failed")],
)
def test_failures_are_logged(caplog: pytest.LogCaptureFixture, error: Exception, status: int, event: str) -> None:
    """An outage gets 503, and a defect 500."""
    assert status_of(pulling(POLICY, a_service(Raising(error)))) == status
    [line] = caplog.records
    assert line.__dict__["event"] == event


class Batches:
    """A feed that registers in batches. The first call fails."""

    def __init__(self) -> None:
        self.answers: list[bool | Exception] = [StoreUnavailable("the disk is full"), False, False, True]
        self.calls: list[object] = []

    async def register(self, consumer: Consumer, start: object, _: object) -> bool:
        """Return the next answer."""
        self.calls.append((consumer, start))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(MemoryStore().feed, name)


class Refusing(Batches):
    """A feed that never registers the consumer `ledger`. `is_enough` is set after 30 calls."""

    def __init__(self) -> None:
        super().__init__()
        self.is_enough = asyncio.Event()

    async def register(self, consumer: Consumer, start: object, now: object) -> bool:
        """Register the other consumers at once."""
        if len(self.calls) == 30:
            self.is_enough.set()
        self.answers = [StoreUnavailable("no") if consumer.name == "ledger" else True]
        return await super().register(consumer, start, now)


def test_consumer_that_cannot_be_registered_holds_back_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has a limited number of lines about it."""
    monkeypatch.setattr(pull, "RELAY_TROUBLE_S_MIN", 0.001)
    feed = Refusing()
    push = PullConsumer(consumer=Consumer(name="push"), tokens=[AccessToken(PUSH_TOKEN)])
    policy = PullPolicy(consumers=[LEDGER, push])

    async def register() -> None:
        task = asyncio.ensure_future(registering(policy, a_service(feed))())
        async with asyncio.timeout(10):
            await feed.is_enough.wait()
        task.cancel()
        await asyncio.wait([task])

    with caplog.at_level(logging.WARNING):
        asyncio.run(register())
    assert feed.calls.count((push.consumer, push.start)) == 1
    assert len(caplog.records) == LOGGED_A_MINUTE_MAX


def test_consumers_are_registered_in_batches(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged, and the task tries again until the registration is complete."""
    feed = Batches()
    with caplog.at_level(logging.WARNING):
        asyncio.run(cast("Any", registering(POLICY, a_service(feed))()))
    assert feed.calls == [(LEDGER.consumer, LEDGER.start)] * 4
    [line] = caplog.records
    assert line.__dict__["event"] == "consumer_unregistered"
    assert "consumer ledger is not registered yet: the disk is full" in line.getMessage()
