"""The worker processes of `serve`: start, stop and replacement, and payments through the loss of a worker."""

import os
import re
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Final

import httpx
import pytest

from incoming_payments.server.init import CONFIGURATION
from incoming_payments.server.workers import run_workers
from incoming_payments.stores.sqlite import SqliteStore
from kits.processes import (
    COMMAND,
    HttpClient,
    await_lines,
    code_of,
    free_port,
    is_running,
    run_command,
    serving,
    unsigned,
)

# Each worker prints its number and its process id, and stops on SIGTERM.
PROGRAM: Final = """
    import os, signal, sys, time
    from incoming_payments.server.workers import run_workers

    def say(line):
        os.write(1, f"{line}\\n".encode())  # the whole line at once

    settings, stopped = ["old"], []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(0))
    signal.signal(signal.SIGHUP, lambda *_: say(f"worker {os.getpid()} reloads"))

    def work(number):
        say(f"worker {number} is {os.getpid()} with {settings[-1]} settings")
        while not stopped:
            time.sleep(0.01)
            if os.path.exists(f"end-{os.getpid()}"):
                return 3
        return 0

    BEFORE
    sys.exit(run_workers(2, work, lambda: settings.append("new")))
"""
STARTED: Final = r"worker (\d) is (\d+) with (\w+) settings\n"


class Supervised:
    """A program with two workers."""

    def __init__(self, process: "Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log = log

    def workers(self, count: int = 2) -> list[tuple[int, int, str]]:
        """Return number, process id and settings of each started worker, once `count` have started."""
        await_lines(self.log, STARTED, count)
        return [(int(number), int(pid), used) for number, pid, used in re.findall(STARTED, self.log.read_text("utf-8"))]


@contextmanager
def supervised(folder: Path, before: str = "") -> Iterator[Supervised]:
    """Run `PROGRAM` in `folder`, with the statement `before` before its last one."""
    log = folder / "log"
    with log.open("wb") as output:
        program = textwrap.dedent(PROGRAM).replace("BEFORE", before)
        process = Popen([sys.executable, "-c", program], cwd=folder, stdout=output, stderr=output)
    try:
        yield Supervised(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(30)


def await_end(pid: int) -> None:
    """Wait until the process has ended."""
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_single_worker_runs_in_the_calling_process() -> None:
    """Nothing is supervised, and the exit status is that of the worker."""
    seen: list[tuple[int, int]] = []

    def work(number: int) -> int:
        seen.append((number, os.getpid()))
        return 7

    assert run_workers(1, work, lambda: None) == 7
    assert seen == [(0, os.getpid())]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_all_workers(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM or Ctrl-C stops the workers, and then the supervisor with status 0."""
    with supervised(tmp_path) as program:
        workers = program.workers()
        program.process.send_signal(number)
        assert program.process.wait(30) == 0
        assert [is_running(pid) for _, pid, _ in workers] == [False, False]
    assert sorted(number for number, _, _ in workers) == [0, 1]


@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGKILL, r"was killed by signal 9 \(Killed\)"), (signal.SIGTERM, "ended")]
)
def test_lost_worker_is_replaced(tmp_path: Path, number: signal.Signals, how: str) -> None:
    """The log names the lost worker. The new one has the same number, and the others go on."""
    with supervised(tmp_path) as program:
        (_, _, _), (lost, pid, _) = program.workers()
        os.kill(pid, number)
        *others, (successor, new_pid, _) = program.workers(3)
        assert (successor, len(others)) == (lost, 2)
        assert [is_running(each) for each in (others[0][1], pid, new_pid)] == [True, False, True]
        program.process.terminate()
        assert program.process.wait(30) == 0
    line = rf"incoming payments: worker {lost} \(process {pid}\) {how}: another takes its place\n"
    assert len(re.findall(line, program.log.read_text("utf-8"))) == 1


def test_two_workers_that_are_lost_at_once_are_replaced(tmp_path: Path) -> None:
    """The system may report both ends by one signal."""
    with supervised(tmp_path) as program:
        workers = program.workers()
        program.process.send_signal(signal.SIGSTOP)
        for _, pid, _ in workers:
            os.kill(pid, signal.SIGKILL)
        program.process.send_signal(signal.SIGCONT)
        assert sorted(number for number, _, _ in program.workers(4)) == [0, 0, 1, 1]


def test_failed_worker_stops_the_others(tmp_path: Path) -> None:
    """A worker that ends with an error has written it, for example that the disk failed. The status is 1."""
    with supervised(tmp_path) as program:
        (_, failing, _), (_, other, _) = program.workers()
        (tmp_path / f"end-{failing}").touch()
        assert program.process.wait(30) == 1
        assert not is_running(other)
    line = rf"incoming payments: worker \d \(process {failing}\) ended with status 3, so the service stops\n"
    assert len(re.findall(line, program.log.read_text("utf-8"))) == 1


def test_worker_killed_while_stopping_is_not_replaced(tmp_path: Path) -> None:
    """The exit status is 1, because requests of the worker may be unfinished."""
    with supervised(tmp_path) as program:
        (_, first, _), (_, second, _) = program.workers()
        os.kill(second, signal.SIGSTOP)
        program.process.terminate()
        await_end(first)
        program.process.terminate()  # a second signal changes nothing
        os.kill(second, signal.SIGKILL)
        assert program.process.wait(30) == 1
    assert len(program.workers()) == 2


def test_workers_stop_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    """Otherwise a worker would keep the port, and no new supervisor could start."""
    with supervised(tmp_path) as program:
        workers = program.workers()
        program.process.kill()
        for _, pid, _ in workers:
            await_end(pid)


def test_hangup_reaches_all_workers_and_later_ones(tmp_path: Path) -> None:
    """SIGHUP goes to each worker. A worker that starts later has the new settings from its first request on."""
    with supervised(tmp_path) as program:
        workers = program.workers()
        program.process.send_signal(signal.SIGHUP)
        for _, pid, _ in workers:
            await_lines(program.log, f"worker {pid} reloads")
        os.kill(workers[0][1], signal.SIGKILL)
        assert [settings for _, _, settings in program.workers(3)] == ["old", "old", "new"]


def test_worker_that_cannot_be_started_stops_the_service(tmp_path: Path) -> None:
    """When the system refuses another process, the service ends with status 1, so that systemd can restart it."""
    forks = "real, turns = os.fork, iter([True, False])"
    fork = "os.fork = lambda: real() if next(turns) else os.open('/none/none', 0)"
    with supervised(tmp_path, f"{forks}; {fork}") as program:
        assert program.process.wait(30) == 1
    why = "(No such file or directory), so the service stops: allow it more processes or memory"
    assert f"incoming payments: worker 1 could not be started {why}\n" in program.log.read_text("utf-8")


# --- the service ---


@contextmanager
def service(folder: Path, settings: str = "workers = 2") -> Iterator[tuple["Popen[bytes]", HttpClient]]:
    """Run `serve` with `settings` in `[listen]`, by default two workers."""
    port = free_port()
    assert run_command("init", folder, "--port", str(port)).returncode == 0
    path = folder / CONFIGURATION
    path.write_text(path.read_text("utf-8").replace("# workers = 1", settings), "utf-8")
    with serving([*COMMAND, "serve", "--config", path], port, folder / "log") as process:
        await_lines(folder / "log", "Application startup complete", 2)
        yield process, HttpClient.of(folder, f"http://127.0.0.1:{port}")


def started(folder: Path) -> list[int]:
    """Return the process ids of the workers that have started."""
    return [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", (folder / "log").read_text("utf-8"))]


def test_payments_survive_the_loss_of_workers(tmp_path: Path) -> None:
    """While a worker is killed, requests fail or are answered. Each payment that was created can be read afterwards."""

    def create(client: HttpClient) -> str | None:
        try:
            response = client.create()
        except httpx.TransportError:
            return None  # the connection ended with the worker
        assert response.status_code == 201
        return str(response.json()["id"])

    with service(tmp_path) as (process, client), ThreadPoolExecutor(8) as threads:
        for count in (3, 4):
            waiting = [threads.submit(create, client) for _ in range(40)]
            while not any(future.done() for future in waiting):
                time.sleep(0.01)
            os.kill(started(tmp_path)[-1], signal.SIGKILL)
            await_lines(tmp_path / "log", "Application startup complete", count)
            created = [id for future in waiting if (id := future.result()) is not None]
            assert [client.get(id).status_code for id in created] == [200] * len(created)
            assert len(created) > 20
        assert [unsigned("GET", f"{client.base_url}/readyz").status_code for _ in range(8)] == [200] * 8
        process.terminate()
        assert process.wait(30) == 0
    names = {file.name for file in tmp_path.glob("payments.sqlite3*")}
    assert names <= {"payments.sqlite3", "payments.sqlite3-lock", "payments.sqlite3-wal", "payments.sqlite3-shm"}
    with SqliteStore(tmp_path / "payments.sqlite3"):
        pass  # the file opens again


def test_nonce_is_accepted_by_one_worker_only(tmp_path: Path) -> None:
    """All workers share the used nonces. Each request has a connection of its own, so both workers get some."""
    with service(tmp_path) as (_, client):
        body = {"walletAddress": f"{client.base_url}/alice"}
        answers = [client.send("POST", "/incoming-payments", body, nonce="n") for _ in range(12)]
    assert answers[0].status_code == 201
    assert [code_of(answer) for answer in answers[1:]] == [(401, "nonce_used")] * 11


def test_each_worker_serves_its_own_metrics(tmp_path: Path) -> None:
    """The first worker has the port of the setting, and the second the next one. Their counts add up."""
    port = next(port for port in iter(free_port, 0) if port < 65535)
    with service(tmp_path, f"workers = 2\nmetrics_port = {port}") as (_, client):
        for _ in range(20):
            assert client.create().status_code == 201
        texts = [unsigned("GET", f"http://127.0.0.1:{port + worker}/metrics").text for worker in range(2)]
    pattern = r"incoming_payments_store_batch_size_sum (\d+)"
    counts = [int(found) for text in texts for found in re.findall(pattern, text)]
    assert len(counts) == 2
    assert sum(counts) == 20


def test_all_workers_end_when_the_store_stops(tmp_path: Path) -> None:
    """The worker that notices the missing file writes the reason, and the service ends with status 1."""
    with service(tmp_path) as (process, client):
        (tmp_path / "payments.sqlite3-lock").unlink()
        assert code_of(client.create()) == (503, "store_stopped")
        assert process.wait(30) == 1
        assert [is_running(pid) for pid in started(tmp_path)] == [False, False]
    assert "payments.sqlite3-lock was removed or replaced" in (tmp_path / "log").read_text("utf-8")


def test_workers_read_the_configuration_again(tmp_path: Path) -> None:
    """After SIGHUP, all workers refuse the old token, and so does a worker that starts later."""
    with service(tmp_path) as (process, client):
        assert client.create().status_code == 201
        path = tmp_path / CONFIGURATION
        path.write_text(path.read_text("utf-8").replace(client.token, "A-NEW-TOKEN-0000000000"), "utf-8")
        process.send_signal(signal.SIGHUP)
        await_lines(tmp_path / "log", "was read again", 3)
        assert {code_of(client.create()) for _ in range(8)} == {(401, "invalid_token")}
        os.kill(started(tmp_path)[0], signal.SIGKILL)
        await_lines(tmp_path / "log", "Application startup complete", 3)
        assert {code_of(client.create()) for _ in range(8)} == {(401, "invalid_token")}
