"""The receivers of `docs/webhooks.md`, in Python and Node, with the official libraries of Standard Webhooks."""

import base64
import os
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.outbound.webhooks import WebhookEndpoint, WebhookSender
from kits import node_packages
from kits.http_servers import serving_wsgi
from kits.processes import ROOT, free_port
from kits.webhook_kit import BEGIN, OTHER_SECRET, PAYMENT, SECRET, a_credit, a_delivery, an_endpoint

PACKAGE: Final = "standardwebhooks"
VERSION: Final = "1.1.1"
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str, name: str) -> str:
    """Return the code blocks of the page in `language` that contain `name`."""
    page = (ROOT / "docs" / "webhooks.md").read_text("utf-8")
    return "\n".join(text for found, text in BLOCK.findall(page) if found == language and name in text)


@contextmanager
def receiving_in_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run the Flask application of the page, and yield its URL."""
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {}
    exec(blocks("python", "flask.Flask"), namespace)  # noqa: S102 - our own documentation
    with serving_wsgi(namespace["receiver"]) as port:
        yield f"http://127.0.0.1:{port}/hooks"


@contextmanager
def receiving_in_node(folder: Path, installed: Path) -> Iterator[tuple[str, Path]]:
    """Run the program of the page with Node, and yield its URL and its output."""
    (folder / "receiver.mjs").write_text(blocks("js", "createServer"), "utf-8")
    (folder / "node_modules").symlink_to(installed / "node_modules")
    port, output = free_port(), folder / "output"
    environment = {**os.environ, "WEBHOOK_SECRET": SECRET, "PORT": str(port)}
    with output.open("wb") as out:
        node = subprocess.Popen(["node", "receiver.mjs"], cwd=folder, env=environment, stdout=out, stderr=out)
    try:
        yield f"http://127.0.0.1:{port}/", output
    finally:
        node.terminate()
        node.wait(10)


def send(endpoint: WebhookEndpoint, *versions: int) -> None:
    """Send a webhook for a credit of each version. Wait for a receiver that is starting."""
    sender = WebhookSender(endpoint)
    with closing(sender):
        for version in versions:
            deadline = time.monotonic() + 20
            while True:
                try:
                    sender(a_delivery(endpoint, a_credit(version, 100 * version, 100)))
                    break
                except IncomingPaymentsError as error:
                    if "cannot be reached" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


def test_flask_receiver_handles_each_webhook_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A duplicate is answered with success and changes nothing. A wrong signature and a malformed one get 400."""
    with receiving_in_python(tmp_path, monkeypatch) as url:
        send(an_endpoint(url, secrets=[OTHER_SECRET, SECRET]), 2, 3, 2, 3, 3)
        with pytest.raises(IncomingPaymentsError, match="status 400"):
            send(an_endpoint(url, secrets=[OTHER_SECRET]), 4)
        with pytest.raises(IncomingPaymentsError, match="status 400"):
            send(evolve(an_endpoint(url), secrets=["whsk_" + base64.b64encode(bytes(32)).decode()]), 4)
    with closing(sqlite3.connect(tmp_path / "receiver.sqlite3")) as database:
        assert database.execute("SELECT * FROM postings").fetchall() == [(PAYMENT, 100)] * 2


def test_node_receiver_handles_each_webhook_once(
    tmp_path: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The official library for Node accepts the webhooks of both secrets, and refuses another secret."""
    installed = node_packages.installed({PACKAGE: VERSION}, request, tmp_path_factory)
    with receiving_in_node(tmp_path, installed) as (url, output):
        send(an_endpoint(url, secrets=[OTHER_SECRET, SECRET]), 2, 3, 2)
        with pytest.raises(IncomingPaymentsError, match="status 400"):
            send(an_endpoint(url, secrets=[OTHER_SECRET]), 4)
        assert output.read_text("utf-8").splitlines() == [f"payment.credited {PAYMENT} 100"] * 2


def test_receiver_of_ed25519_accepts_only_its_key() -> None:
    """The function of the page accepts the signature of the private key for 5 minutes, and nothing else."""
    namespace: dict[str, Any] = {}
    exec(blocks("python", "ed25519"), namespace)  # noqa: S102 - our own documentation
    is_authentic, public = namespace["is_authentic"], namespace["public"]
    endpoint = an_endpoint(secrets=[SECRET, namespace["private"]])
    now = BEGIN.fromtimestamp(time.time(), BEGIN.tzinfo)
    request = endpoint.request(a_delivery(endpoint), now)
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    id, timestamp, signatures = (request.values(name)[0] for name in names)
    assert is_authentic(request.body, id, timestamp, signatures, public)
    for changed in (
        (request.body + b" ", id, timestamp, signatures, public),
        (request.body, id + "x", timestamp, signatures, public),
        (request.body, id, str(int(timestamp) - 1), signatures, public),
        (request.body, id, timestamp, signatures.split(" ")[0], public),
        (request.body, id, timestamp, "v1a,AAAA v1a,# v1a", public),
        (request.body, id, "now", signatures, public),
        (request.body, id, timestamp, signatures, "whpk_" + base64.b64encode(bytes(31) + b"\x58").decode()),
    ):
        assert not is_authentic(*changed)
    old = endpoint.request(a_delivery(endpoint), BEGIN)
    assert not is_authentic(old.body, *(old.values(name)[0] for name in names), public)
