"""`serve` and the operator commands on PostgreSQL."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from incoming_payments.domain.feed import Consumer, Failed, Start, consumer_name
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import CreditId, payment_id
from incoming_payments.domain.reference import Reference
from incoming_payments.server.command import main
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.stores.postgres import PostgresStore, migrate
from incoming_payments.testing import a_creation, crediting
from kits.postgres import OwnServer, empty_database, url_of
from kits.processes import Bank, await_lines, await_true, code_of, free_port, unsigned
from kits.scripted_server import ScriptedServer, scripted_server

NOW: Final = datetime.now(UTC)


@pytest.fixture
def database() -> str:
    """Return the connection string of a database with empty tables."""
    return empty_database()


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    """A server that the test may kill, with tables."""
    with OwnServer() as server:
        migrate(server.url)
        yield server


# --- the operator commands ---


def test_operator_commands_work_on_postgresql(
    tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command reads or changes the PostgreSQL database, as it does with a SQLite file."""
    config = str(tmp_path / CONFIGURATION)
    assert main(["init", str(tmp_path), "--database-url", url_of(database)]) == 0
    with PostgresStore(database) as store:
        store.feed.register(Consumer(name="ledger", joins_credits=False), Start.BEGINNING, NOW)
        created = a_creation(limit=900, metadata='{"externalRef":"INV-7"}', now=NOW)
        store.insert(created)
        store.update(created.answer.id, crediting("wire-1", 450, now=NOW), CreditId("wire-1"))
        claimed = store.feed.claim(
            consumer_name("ledger"), lambda _: b"payload", now=NOW, until=NOW + timedelta(minutes=1), limit=9
        )
        for delivery in claimed:
            store.feed.settle(delivery, Failed(error="boom", retry_at=NOW, is_last=True), NOW)

    def run(*arguments: str) -> Any:
        capsys.readouterr()
        assert main([*arguments, "--config", config, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert [row["id"] for row in run("list")] == [created.answer.id]
    shown = run("show", created.answer.id)
    assert [row["creditId"] for row in shown["credits"]] == ["wire-1"]
    assert len(run("dead-letters")) == len(claimed) > 0
    assert run("redeliver", "ledger", "--all")["redelivered"] == len(claimed)
    assert run("disable-consumer", "ledger")["state"] == "disabled"
    assert [row["state"] for row in run("consumers")] == ["disabled"]
    assert run("enable-consumer", "ledger", "--skip")["state"] == "enabled"
    assert run("remove-consumer", "ledger")["state"] == "removed"
    assert run("check-config")["isValid"]
    path = tmp_path / CONFIGURATION
    path.write_text(path.read_text("utf-8").replace('# reference = "ext', 'reference = "ext'), "utf-8")
    assert main(["serve", "--config", config]) == 1
    assert f"{config}: reference: the database indexes no member of the metadata" in capsys.readouterr().err
    assert main(["reindex", "--config", config]) == 0
    with PostgresStore(database, reference="externalRef") as store:
        query = PaymentQuery(now=NOW, limit=9, reference=Reference("externalRef", "INV-7"))
        assert len(store.find_payments(query)) == 1


def test_backup_is_for_files(tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the programs of PostgreSQL."""
    assert main(["init", str(tmp_path), "--database-url", url_of(database)]) == 0
    assert main(["backup", str(tmp_path / "copy"), "--config", str(tmp_path / CONFIGURATION)]) == 1
    assert "is not a SQLite file: back up the server with pg_dump or pg_basebackup\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "list", "migrate"])
def test_commands_report_a_server_that_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """The error has the reason, and no password."""
    url = "postgresql://bank:hunter2@127.0.0.1:1/bank"
    assert main(["init", str(tmp_path), "--database-url", url]) == 0
    assert main([command, "--config", str(tmp_path / CONFIGURATION)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("incoming-payments: PostgreSQL is unavailable (connection ")
    assert "Connection refused" in error
    assert error.endswith("check the host, the database, the role and its password, or repeat the call later")
    assert "hunter2" not in error


# --- serve ---

CONSUMERS: Final = """
[[webhooks]]
name = "shop"
url = "{url}"
secret_files = ["webhook.txt"]
allow_private = true
[[consumer]]
name = "ledger"
token_files = ["ledger.txt"]
start = "beginning"
"""


def on_postgresql(folder: Path, database: str, *, workers: int) -> Bank:
    """Return a folder of `init` for this database and number of workers."""
    bank = Bank.init(folder, "--database-url", url_of(database))
    bank.edit("# workers = 1", f"workers = {workers}")
    return bank


def claim(port: int) -> list[Any]:
    """Return the deliveries that the consumer claims."""
    headers = {"Authorization": "Bearer LEDGER-TOKEN-0001"}
    answer = unsigned("POST", f"http://127.0.0.1:{port}/events/claim", headers=headers, json={"limit": 100})
    found: list[Any] = answer.json().get("deliveries", [])  # an error until the consumer is registered
    return found


def test_workers_share_the_database(tmp_path: Path, database: str) -> None:
    """The workers create, read and complete payments, share quotas, sweep, send webhooks, and offer the feed."""
    bank, port = on_postgresql(tmp_path, database, workers=2), free_port()
    (tmp_path / "webhook.txt").write_text("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0\n", "utf-8")
    (tmp_path / "ledger.txt").write_text("LEDGER-TOKEN-0001\n", "utf-8")
    for old, new in [
        ("# unpaid_payments = 100", "unpaid_payments = 3"),
        ("# interval_s = 15", "interval_s = 1"),
        ("# port = 8081", f"port = {port}"),
    ]:
        bank.edit(old, new)
    with scripted_server(lambda exchange, _: exchange.answer(b"")) as receiver:
        with bank.configuration.open("a", encoding="utf-8") as file:
            file.write(CONSUMERS.format(url=receiver.url))
        with bank.serving() as process:
            await_lines(bank.log, "Application startup complete", 2)
            client = bank.client
            soon = datetime.now(UTC) + timedelta(seconds=1)
            assert client.create(expiresAt=soon.isoformat().replace("+00:00", "Z")).status_code == 201
            payment = client.order("key-1").json()["id"]
            assert client.order("key-1").json()["id"] == payment
            assert client.complete(payment).status_code == 200
            assert (client.get(payment).status_code, client.list().status_code) == (200, 200)
            nonce = [client.send("GET", payment.removeprefix(bank.base_url), nonce="n") for _ in range(3)]
            assert [answer.status_code for answer in nonce] == [200, 401, 401]
            created = [client.create() for _ in range(5)]  # the payment above counts until it expires
            refused = [code_of(answer) for answer in created if answer.status_code != 201]
            assert set(refused) == {(429, "too_many_unpaid_payments")}
            await_true(lambda: {"created", "completed", "expired"} <= kinds_of(receiver))
            await_true(lambda: bool(claim(port)))
            assert unsigned("GET", f"{bank.base_url}/readyz").status_code == 200
        assert process.returncode == 0
    log = bank.log.read_text("utf-8")
    assert "Payments are stored in postgresql://" in log
    assert "Traceback" not in log


def kinds_of(receiver: ScriptedServer) -> set[str]:
    """Return the last part of the types of the webhooks that have arrived."""
    return {exchange.json()["type"].rpartition(".")[2] for exchange in receiver.requests}


def test_serve_continues_after_the_loss_of_the_server(tmp_path: Path, own_server: OwnServer) -> None:
    """While the server is down, clients have to retry, and the service is not ready. The process continues."""
    bank = on_postgresql(tmp_path, own_server.url, workers=1)
    with bank.serving() as process:
        await_lines(bank.log, "Application startup complete")
        client, ready = bank.client, f"{bank.base_url}/readyz"
        payment = client.create().json()["id"]
        own_server.kill()
        assert code_of(client.create()) == (503, "store_unavailable")
        await_true(lambda: unsigned("GET", ready).status_code == 503)
        assert unsigned("GET", f"{bank.base_url}/healthz").status_code == 200
        own_server.start()
        await_true(lambda: unsigned("GET", ready).status_code == 200)
        assert client.get(payment).status_code == 200
        assert client.create().status_code == 201
    assert process.returncode == 0


# The first worker that completes a payment hangs while the payment is locked. The limits are shorter than usual.
HANGING: Final = """
import os, sys, time
import incoming_payments.server.workers as workers
from incoming_payments.domain import lifecycle
from incoming_payments.server.command import main
from incoming_payments.stores.postgres import _session

workers.WORKER_SILENT_S_MAX = 6
_session.STORE_STATEMENT_S_MAX = 2
complete = lifecycle.complete

def hang_once(*payment, **options):
    if os.path.exists("MARK"):
        os.unlink("MARK")
        time.sleep(600)
    return complete(*payment, **options)

lifecycle.complete = hang_once
sys.exit(main(sys.argv[1:]))
"""


def test_hanging_worker_does_not_keep_its_locks(tmp_path: Path, database: str) -> None:
    """The server frees its locks before the supervisor replaces the worker. The other worker continues."""
    bank, mark = on_postgresql(tmp_path, database, workers=2), tmp_path / "hang"
    command = [sys.executable, "-c", HANGING.replace("MARK", str(mark))]
    with bank.serving(command) as process, ThreadPoolExecutor() as threads, PostgresStore(database) as store:
        await_lines(bank.log, "Application startup complete", 2)
        client = bank.client
        url = client.create().json()["id"]
        mark.touch()
        hanging = threads.submit(client.complete, url)
        await_true(lambda: not mark.exists())
        begin_s = time.monotonic()
        created = [threads.submit(client.create) for _ in range(16)]
        store.update(payment_id(url.rpartition("/")[2]), crediting("wire-1", 5), CreditId("wire-1"))
        locked_s = time.monotonic() - begin_s
        await_true(lambda: any(answer.done() for answer in created))
        assert bank.log.read_text("utf-8").count("Application startup complete") == 2  # it is not replaced yet
        await_lines(bank.log, "Application startup complete", 3)
        assert [answer.result().status_code for answer in created] == [201] * 16
        assert isinstance(hanging.exception(), httpx.TransportError)
        assert client.complete(url).json()["receivedAmount"]["value"] == "5"
    assert process.returncode == 0
    assert locked_s < 5
    assert bank.log.read_text("utf-8").count("has sent no heartbeat for 6 seconds") == 1
