"""The output and the log of `serve`: as text, as JSON, and on a full disk."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from incoming_payments.server.init import SERVER_SECRET
from kits.processes import COMMAND, Bank, HttpClient, await_lines, is_running


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    """Return the process ids of the workers."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split()]


def await_service(client: HttpClient) -> None:
    """Wait until the service creates a payment."""
    deadline = time.monotonic() + 30
    while True:
        try:
            assert client.create().status_code == 201
        except httpx.ConnectError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return


@contextmanager
def redirected(bank: Bank, redirection: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `serve` from a shell that redirects its output. Stop it at the end, and assert the exit status 0."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, "serve", "--config", str(bank.configuration)]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        status = process.wait(30)
    assert status == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_service_goes_on_when_the_disk_of_its_log_is_full(bank: Bank, form: str) -> None:
    """A disk without space costs the log lines only. A worker is replaced, and its exit is no failure."""
    bank.edit("# workers = 1", "workers = 2")
    bank.edit('# format = "json"', f'format = "{form}"')
    (bank.folder / SERVER_SECRET).chmod(0o644)  # causes a warning
    client = bank.client
    with redirected(bank, ">/dev/full 2>&1") as process:
        await_service(client)
        lost, other = children(process)
        os.kill(lost, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while lost in children(process) or len(children(process)) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert is_running(other)
        await_service(client)


def test_service_runs_without_standard_output_and_error(bank: Bank) -> None:
    """A program may start the service with both closed."""
    with redirected(bank, ">&- 2>&-"):
        await_service(bank.client)


JSON_TIME: Final = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def test_json_lines(bank: Bank) -> None:
    """Each line on standard error is a JSON object with its time in UTC and the process id, also a warning at start."""
    bank.edit('# format = "json"', 'format = "json"')
    (bank.folder / SERVER_SECRET).chmod(0o644)
    with bank.serving() as process:
        bank.edit("asset_scale = 2", "asset_scale = 2.0")
        process.send_signal(signal.SIGHUP)
        await_lines(bank.log, "configuration_refused")
    lines = bank.log.read_text("utf-8").splitlines()
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    printed = [line for line in lines if not line.startswith("{")]
    assert [line.split()[0] for line in printed] == ["Serving", "Peers", "Payments"]  # on standard output
    for each in found:
        assert list(each)[:6] == ["time", "level", "process", "logger", "event", "message"]
        assert each["process"] == process.pid
        assert JSON_TIME.fullmatch(each["time"])
        assert datetime.now(UTC) - datetime.fromisoformat(each["time"]) < timedelta(hours=1)
    events = [(each["level"], each["event"]) for each in found if each["event"]]
    assert events == [
        ("WARNING", "configuration_warning"),
        ("INFO", "database_created"),
        ("ERROR", "configuration_refused"),
    ]
    assert (found[0]["logger"], "mode 0644" in found[0]["message"]) == ("incoming_payments.server.serve", True)
    assert any(each["logger"] == "uvicorn.error" and each["event"] is None for each in found)


def test_tracebacks_and_mistakes_of_the_code_are_logged() -> None:
    """A traceback is a member of the JSON object. A line with wrong arguments is reported and stops nothing."""
    code = """
        import logging, sys
        from incoming_payments.server.output import log_to_stderr
        log_to_stderr(sys.argv[1])
        try:
            raise RuntimeError("gone")
        except RuntimeError:
            logging.exception("failed with %s", "ü")
        logging.warning("%d", "no number")
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    logs = [subprocess.run([*program, form], capture_output=True, text=True, check=True) for form in ("text", "json")]
    for done in logs:
        assert "RuntimeError: gone" in done.stderr
        assert "--- Logging error ---" in done.stderr
    line = json.loads(logs[-1].stderr.splitlines()[0])
    assert line["message"] == "failed with ü"
    assert line["exception"].startswith("Traceback (most recent call last):\n")
