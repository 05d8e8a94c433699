"""The table `[[webhooks]]`: its settings, and the webhooks of `serve`."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import standardwebhooks

from incoming_payments.domain.events import EventKind
from incoming_payments.domain.feed import Consumer, Start
from incoming_payments.domain.payment import wallet_address_url
from incoming_payments.errors import ConfigurationError, StoreUnavailable
from incoming_payments.flows.machinery.ports import AsyncPorts
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.outbound.webhooks import WebhookEndpoint
from incoming_payments.server import background
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.service import AsyncIncomingPayments
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import SqliteStore
from kits.processes import Bank, await_lines
from kits.scripted_server import Exchange, ScriptedServer, scripted_server

SECRET, OTHER = ("whsec_" + text for text in ("c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0", "b3RoZXJzb3RoZXJzb3RoZXJzb3RoZXJz"))
TABLE = """
[[webhooks]]
name = "shop"
url = "{url}"
secret_files = ["new.txt", "old.txt"]
allow_private = true
timeout_s = 1
"""


def add(folder: Path, text: str) -> None:
    """Add `text` and the files of its secrets to the configuration in `folder`."""
    for name, secret in (("new.txt", SECRET), ("old.txt", OTHER)):
        (folder / name).write_text(secret + "\n", "utf-8")
        (folder / name).chmod(0o600)
    path = folder / CONFIGURATION
    path.write_text(path.read_text("utf-8") + text, "utf-8")


def loaded(folder: Path, more: str, text: str = TABLE) -> Settings:
    """Return the settings in `folder` with this table and `more` settings of it."""
    add(folder, text.format(url="http://127.0.0.1:1/hooks") + more)
    return load_settings(folder / CONFIGURATION)


def test_every_setting_is_loaded(folder: Path) -> None:
    """The endpoint has the settings of the table. No text shows a secret."""
    more = """
kinds = ["completed"]
wallet_addresses = ["https://bank.example/alice"]
joins_credits = false
credit_delay_s = 2
thin = true
down_after_s = 3
disable_after_s = 4
"""
    settings = loaded(folder, more)
    (endpoint,) = settings.webhooks
    consumer = endpoint.consumer
    assert (endpoint.name, endpoint.url, endpoint.thin, endpoint.timeout_s) == (
        "shop",
        "http://127.0.0.1:1/hooks",
        True,
        1,
    )
    assert consumer.kinds == frozenset({EventKind.COMPLETED})
    assert consumer.wallet_addresses == frozenset({wallet_address_url("https://bank.example/alice")})
    assert (consumer.joins_credits, consumer.credit_delay_s) == (False, 2)
    assert (consumer.down_after_s, consumer.disable_after_s) == (3, 4)
    assert len(endpoint.secrets) == 2
    assert SECRET[6:] not in repr(settings)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("new.txt", "client-key.jwk", "webhooks[0].secret_files[0] must be a string that begins with whsec_"),
        ("new.txt", "absent.txt", "webhooks[0].secret_files[0]"),
        ('["new.txt", "old.txt"]', "[]", "webhooks[0].secret_files must name 1 to 8 files, but names 0"),
        ("allow_private = true", "allow_private = false", "webhooks[0].url must be an https URL"),
        ('"shop"', '"My Shop"', "webhooks[0].name"),
        ("timeout_s = 1", "timeout_s = 31", "webhooks[0].timeout_s must be an integer from 1 to 30, not 31"),
        ("timeout_s = 1", 'kinds = ["paid"]', "webhooks[0].kinds[0] must be"),
        ("timeout_s = 1", f"timeout_s = 1\n{TABLE}", "webhooks[1].name holds the same value as webhooks[0].name"),
    ],
)
def test_wrong_settings_are_refused(folder: Path, old: str, new: str, says: str) -> None:
    """The error names the setting, and shows no secret."""
    with pytest.raises(ConfigurationError) as refused:
        loaded(folder, "", TABLE.replace(old, new))
    assert says in refused.value.description
    assert SECRET[6:] not in refused.value.description


@pytest.fixture
def receiver() -> Iterator[ScriptedServer]:
    """A receiver that answers 200. A test may replace its script."""
    with scripted_server(lambda exchange, _: exchange.answer(b"")) as server:
        yield server


def webhook(exchange: Exchange) -> Any:
    """Return the body of a request, whose signatures the official library accepts."""
    lines = exchange.head.split("\r\n")[1:]
    headers = dict(line.split(": ", 1) for line in lines)
    first, second = (standardwebhooks.Webhook(secret).verify(exchange.body, headers) for secret in (SECRET, OTHER))
    assert first == second
    return first


def await_requests(receiver: ScriptedServer, count: int, seconds: float = 30) -> None:
    """Wait until the receiver has got `count` requests."""
    deadline = time.monotonic() + seconds
    while len(receiver.requests) < count:
        assert time.monotonic() < deadline, receiver.requests
        time.sleep(0.02)


def workers_of(pid: int) -> list[int]:
    """Return the processes of the workers."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def test_workers_share_the_webhooks(bank: Bank, receiver: ScriptedServer) -> None:
    """Each event is sent once. The webhooks of killed workers are sent by others when the leases have ended.

    A lease ends 30 seconds after the longest attempt.
    """
    add(bank.folder, TABLE.format(url=receiver.url))
    bank.edit("# workers = 1", "workers = 2")
    with bank.serving() as process:
        await_lines(bank.log, "Application startup complete", 2)
        time.sleep(1)
        ids = [bank.client.create().json()["id"].rpartition("/")[2] for _ in range(6)]
        await_requests(receiver, 6)
        time.sleep(1)
        assert sorted(webhook(exchange)["data"]["paymentId"] for exchange in receiver.requests) == sorted(ids)

        killed: list[int] = []

        def kill(exchange: Exchange, _: int) -> None:
            receiver.script = lambda exchange, _: exchange.answer(b"")
            killed.extend(workers_of(process.pid))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            exchange.ended.wait(1)

        receiver.script = kill
        last = bank.client.create().json()["id"].rpartition("/")[2]
        await_requests(receiver, 8, seconds=90)
        first, second = receiver.requests[6:]
        assert first.body == second.body
        assert webhook(second)["data"]["paymentId"] == last
    assert len(killed) == 2
    assert "Traceback" not in bank.log.read_text("utf-8")


def test_receiver_that_hangs_does_not_delay_a_stop_for_long(bank: Bank, receiver: ScriptedServer) -> None:
    """The workers stop before the supervisor kills them. The webhook comes again after its lease."""
    receiver.script = lambda exchange, _: cast("None", exchange.ended.wait(60))
    add(bank.folder, TABLE.format(url=receiver.url).replace("timeout_s = 1", "timeout_s = 30"))
    bank.edit("# workers = 1", "workers = 2")
    with bank.serving() as process:
        await_lines(bank.log, "Application startup complete", 2)
        bank.client.create()
        await_requests(receiver, 1)
        process.terminate()
        assert process.wait(18) == 0
    log = bank.log.read_text("utf-8")
    assert "have not stopped" not in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("form", "begins"),
    [("text", "incoming-payments: warning: "), ("json", '"event": "configuration_warning"')],
)
def test_consumers_without_a_table_get_a_warning(bank: Bank, receiver: ScriptedServer, form: str, begins: str) -> None:
    """`serve` names the command that removes such a consumer."""
    add(bank.folder, TABLE.format(url=receiver.url))
    bank.edit('# format = "json"', f'format = "{form}"')
    with SqliteStore(bank.folder / "payments.sqlite3") as store:
        for name in ("shop", "old-shop"):
            store.feed.register(Consumer(name=name), Start.NOW, datetime.now(UTC))
    with bank.serving():
        await_lines(bank.log, "Application startup complete")
    lines = [line for line in bank.log.read_text("utf-8").splitlines() if "[[webhooks]]" in line]
    assert len(lines) == 1
    assert begins in lines[0]
    assert "incoming-payments remove-consumer old-shop --config " in lines[0]


def test_webhooks_start_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that does not answer at the start does not end the webhooks of the process."""
    monkeypatch.setattr(background, "_RESTART_S", 0.01)
    store = MemoryStore()
    feed, failures = store.feed, [StoreUnavailable("busy")]
    started, register = asyncio.Event(), feed.register

    def fail_once(*arguments: Any) -> bool:
        if failures:
            raise failures.pop()
        started.set()
        return register(*arguments)

    monkeypatch.setattr(type(feed), "register", lambda _, *arguments: fail_once(*arguments))
    policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.example")
    service = AsyncIncomingPayments(policy=policy, ports=AsyncPorts(store=store, feed=feed))
    endpoint = WebhookEndpoint(name="shop", url="https://shop.example/", secrets=[SECRET])

    async def run() -> None:
        task = asyncio.ensure_future(background.relaying(service, [endpoint])())
        async with asyncio.timeout(10):
            await started.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())
    assert "the webhooks could not be started, and are started later: busy" in caplog.text
