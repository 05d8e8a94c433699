"""Webhooks in the crash campaign of the feed: a relay that sends them, and a receiver that often fails.

The receiver writes a webhook to a file, with a sync, before it answers 200. At times it answers 500, hangs, answers
after the timeout and the end of the lease, or answers and dies. The clock of a relay may be slow. Its leases then end
early for other relays, so that it gets answers for leases that have ended.
"""

import json
import logging
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from standardwebhooks.webhooks import Webhook

from campaigns.crash.arrivals import Facts, Record
from incoming_payments import DerivedMethods, IncomingPayments, Ports, ServicePolicy
from incoming_payments.domain.feed import Start
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.outbound.webhooks import WebhookEndpoint, WebhookSender
from incoming_payments.ports import DeliveryAttempted, Observation
from incoming_payments.stores.sqlite import SqliteStore

NAME: Final = "hooks"
BEHIND: Final = timedelta(seconds=0.58)  # of a slow clock
_LEASE_S: Final = 0.6
_ATTEMPT_S: Final = 0.5
_TIMEOUT_S: Final = 0.3
_PATIENCE_S: Final = 60.0
_SECRET: Final = "whsec_" + "c2VjcmV0" * 4
_RETRY: Final = RetryPolicy(attempts=4, first_s=0.05, factor=2)


def listen() -> socket.socket:
    """Return a listening socket. It outlives the receivers, so the connections of a killed receiver wait for others."""
    return socket.create_server(("127.0.0.1", 0), backlog=128)


def endpoint_at(listener: socket.socket) -> WebhookEndpoint:
    """Return the endpoint of the receivers."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/hooks"
    return WebhookEndpoint(
        name=NAME, url=url, secrets=[_SECRET], allow_private=True, timeout_s=_TIMEOUT_S, credit_delay_s=0.05
    )


def service_on(store: SqliteStore, **options: Any) -> IncomingPayments:
    """Return a service on `store`."""
    policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    ports = Ports(store=store, methods=DerivedMethods("test.bank", [bytes(32)]), feed=store.feed)
    return IncomingPayments(policy=policy, ports=ports, **options)


class Outcomes:
    """An observer that writes the outcomes of the attempts to a file."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / "outcomes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def observe(self, observation: Observation) -> None:
        """Write the outcome."""
        if isinstance(observation, DeliveryAttempted):
            os.write(self._file, f"{observation.outcome}\n".encode())


def outcomes_in(folder: Path) -> dict[str, int]:
    """Return how often each outcome was reported."""
    return Counter(f"outcome {word}" for word in (folder / "outcomes").read_text("utf-8").split())


def relay(folder: Path, listener: socket.socket, behind: timedelta, store: SqliteStore) -> None:
    """Send webhooks for ever, with a clock that is `behind`.

    The lease is shorter than that of `webhooks`, so that the next relay need not wait.
    """
    logging.disable()  # each failure is logged
    endpoint = endpoint_at(listener)
    with closing(WebhookSender(endpoint)) as sender:
        service_on(store, observer=Outcomes(folder), clock=lambda: datetime.now(UTC) - behind).relay(
            endpoint.consumer,
            sender,
            render=endpoint.render,
            retry=_RETRY,
            attempt_s=_ATTEMPT_S,
            lease_s=_LEASE_S,
            poll_s=0.02,
            start=Start.BEGINNING,
        ).run()


class _Server(ThreadingHTTPServer):
    """A server on a socket that other processes share."""

    def __init__(self, listener: socket.socket, record: Record, choose: random.Random) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.record, self.choose = listener, record, choose

    def handle_error(self, *arguments: Any) -> None:
        """Print an error, unless the client has gone."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(*arguments)


class _Handler(BaseHTTPRequestHandler):
    """Answers one webhook after the other on a connection."""

    server: _Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Verify a webhook, and answer it or fail."""
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        if not size or len(body) < size:  # the relay was killed while it sent the request
            self.close_connection = True
            return
        Webhook(_SECRET).verify(body, dict(self.headers.items()))
        roll = self.server.choose.random()
        if roll < 0.08:
            self._answer(500)
        elif roll < 0.1:
            time.sleep(2 * _TIMEOUT_S)
            self.close_connection = True
        else:
            self.server.record.note(self.headers["webhook-id"], body)
            if roll < 0.13:
                time.sleep(_LEASE_S + 0.1)
            self._answer(200)
            if 0.99 < roll < 1:
                os.kill(os.getpid(), signal.SIGKILL)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no line."""


def receive(folder: Path, listener: socket.socket, choose: random.Random | None) -> None:
    """Receive webhooks for ever."""
    _Server(listener, Record(folder, NAME), choose or random.Random(os.getpid())).serve_forever()


def await_one(folder: Path) -> None:
    """Wait until another webhook has arrived."""
    file = folder / f"{NAME}.arrivals"
    size, end_s = file.stat().st_size, time.monotonic() + _PATIENCE_S
    while file.stat().st_size == size:
        assert time.monotonic() < end_s, "no webhook arrives"
        time.sleep(0.005)


def facts_in(body: str) -> dict[str, Facts]:
    """Return the facts of the events in the body of a webhook, whose credits are of one minor unit each.

    The payment gets the credits `wire-0`, `wire-1` and so on. So the total tells the id of a credit.
    """
    message = json.loads(body)
    kind, data = message["type"].removeprefix("payment."), message["data"]
    first, last, total = data["firstVersion"], data["lastVersion"], int(data["receivedAmount"]["value"])
    count = last - first + 1
    if kind == "credited" and (data["creditCount"], int(data["creditedAmount"]["value"])) != (count, count):
        kind = "credits with another sum"
    facts: dict[str, Facts] = {}
    for version in range(first, last + 1):
        received = total - (last - version)
        credit = f"wire-{received - 1}" if kind == "credited" else None
        facts[f"{data['paymentId']}_{version}"] = [kind, received, credit]
    return facts
