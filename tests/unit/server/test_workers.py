"""The worker processes of `serve`: start, stop and replacement, and payments through the loss of a worker."""

import os
import re
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Final

import httpx
import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.server.init import SERVER_SECRET
from incoming_payments.server.workers import run_workers
from incoming_payments.stores.sqlite import SqliteStore
from kits.processes import COMMAND, Bank, HttpClient, await_lines, code_of, free_port, is_running, run_command, unsigned

# Each worker prints its number and its process id, and stops on SIGTERM.
PROGRAM: Final = """
    import os, signal, socket, sys, time
    from incoming_payments.server.workers import run_workers

    def say(line):
        os.write(1, f"{line}\\n".encode())  # the whole line at once

    settings, stopped = ["old"], []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(0))
    signal.signal(signal.SIGHUP, lambda *_: say(f"worker {os.getpid()} reloads"))

    def work(number, _, beat):
        say(f"worker {number} is {os.getpid()} with {settings[-1]} settings")
        while not stopped:
            beat()
            if os.path.exists(f"hang-{os.getpid()}"):
                time.sleep(600)
            time.sleep(0.01)
            if os.path.exists(f"end-{os.getpid()}"):
                return 3
        return 0

    BEFORE
    listeners = [(socket.create_server(("127.0.0.1", 0)),) for _ in range(COUNT)]
    sys.exit(run_workers(listeners, work, lambda: settings.append("new")))
"""
STARTED: Final = r"worker (\d) is (\d+) with (\w+) settings\n"


class Supervised:
    """A program with workers."""

    def __init__(self, process: "Popen[bytes]", log: Path) -> None:
        self.process = process
        self.log = log

    def workers(self, count: int = 2) -> list[tuple[int, int, str]]:
        """Return number, process id and settings of each started worker, once `count` have started."""
        await_lines(self.log, STARTED, count)
        return [(int(number), int(pid), used) for number, pid, used in re.findall(STARTED, self.log.read_text("utf-8"))]


@contextmanager
def supervised(folder: Path, before: str = "", *, count: int = 2) -> Iterator[Supervised]:
    """Run `PROGRAM` in `folder` with `count` workers, and with the statement `before` before they start."""
    log = folder / "log"
    with log.open("wb") as output:
        program = textwrap.dedent(PROGRAM).replace("BEFORE", before).replace("COUNT", str(count))
        process = Popen([sys.executable, "-c", program], cwd=folder, stdout=output, stderr=output)
    try:
        yield Supervised(process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            assert ended(process) is not None


def ended(process: "Popen[bytes]") -> int | None:
    """Return the exit status, or `None` after killing a program that does not end by itself."""
    try:
        return process.wait(10)
    except TimeoutExpired:
        for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text("ascii").split():
            os.kill(int(pid), signal.SIGKILL)
        process.kill()
        process.wait()
        return None


def await_end(pid: int) -> None:
    """Wait until the process has ended."""
    deadline = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_single_worker_runs_in_the_calling_process() -> None:
    """Nothing is supervised, and the exit status is that of the worker."""
    seen: list[tuple[int, tuple[socket.socket, ...], int]] = []

    def work(number: int, own: tuple[socket.socket, ...], beat: Callable[[], None]) -> int:
        beat()
        seen.append((number, own, os.getpid()))
        return 7

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert run_workers([(listener,)], work, lambda: None) == 7
        assert seen == [(0, (listener,), os.getpid())]


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
    ("number", "how"), [(signal.SIGKILL, r"was killed by signal 9 \(Killed\)"), (signal.SIGTERM, "was stopped")]
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
    line = rf"incoming payments: worker {lost} \(process {pid}\) {how}: a new worker replaces it\n"
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
        for further in (signal.SIGTERM, signal.SIGHUP):  # further signals change nothing
            program.process.send_signal(further)
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


FAILING_FORK: Final = """
real, turns = os.fork, iter([True, False, True])
def fork():
    if next(turns):
        return real()
    raise BlockingIOError(11, "Resource temporarily unavailable")
os.fork = fork
"""


def test_worker_that_cannot_be_started_stops_the_service(tmp_path: Path) -> None:
    """When the system refuses a process, no further one is started, and the service ends with status 1."""
    with supervised(tmp_path, FAILING_FORK, count=3) as program:
        assert ended(program.process) == 1
    why = "(Resource temporarily unavailable), so the service stops: allow the service more processes or memory"
    assert f"incoming payments: worker 1 could not be started {why}\n" in program.log.read_text("utf-8")
    assert "worker 2" not in program.log.read_text("utf-8")


@pytest.mark.parametrize("is_lost", [False, True])
def test_program_that_inherits_an_ignored_signal(tmp_path: Path, is_lost: bool) -> None:
    """A program may inherit an ignored SIGCHLD. Even so, workers are replaced, and the service stops."""
    with supervised(tmp_path, "signal.signal(signal.SIGCHLD, signal.SIG_IGN)") as program:
        workers = program.workers()
        if is_lost:
            os.kill(workers[0][1], signal.SIGKILL)
            program.workers(3)
        program.process.terminate()
        assert ended(program.process) == 0


def test_stop_does_not_wait_for_replacements(tmp_path: Path) -> None:
    """All lost workers are replaced together, and not after the service was stopped."""
    with supervised(tmp_path, count=6) as program:
        workers = program.workers(6)
        program.process.send_signal(signal.SIGSTOP)
        for _, pid, _ in workers:
            os.kill(pid, signal.SIGKILL)
        program.process.send_signal(signal.SIGCONT)
        await_lines(program.log, "a new worker replaces it", 6)
        program.process.terminate()
        assert ended(program.process) == 0
        assert len(program.workers()) == 6


def test_interrupt_of_the_whole_group_is_no_loss(tmp_path: Path) -> None:
    """Ctrl-C ends all processes at once. The supervisor replaces none of them, also during a pause."""
    with supervised(tmp_path, "signal.signal(signal.SIGINT, lambda *_: stopped.append(0))") as program:
        (_, first, _), (_, second, _) = sorted(program.workers())
        os.kill(first, signal.SIGKILL)
        await_lines(program.log, "a new worker replaces it")
        program.process.send_signal(signal.SIGSTOP)
        os.kill(second, signal.SIGINT)
        await_end(second)
        program.process.send_signal(signal.SIGINT)
        program.process.send_signal(signal.SIGCONT)
        assert ended(program.process) == 0
        assert program.log.read_text("utf-8").count("a new worker replaces it") == 1


def test_timer_of_a_replacement_kills_no_worker_that_stops(tmp_path: Path) -> None:
    """The timer of a replacement may end at the time of Ctrl-C. Even so, the workers have time to stop."""
    slowly = "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), stopped.append(0)))"
    with supervised(tmp_path, slowly) as program:
        program.workers()
        program.process.send_signal(signal.SIGSTOP)
        for number in (signal.SIGALRM, signal.SIGINT):
            program.process.send_signal(number)
        program.process.send_signal(signal.SIGCONT)
        assert ended(program.process) == 0


def test_worker_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    """The time for a stop is bounded. The status is 1."""
    with supervised(tmp_path, "import incoming_payments.server.workers as w; w._STOP_S_MAX = 1") as program:
        (_, first, _), (_, second, _) = program.workers()
        os.kill(second, signal.SIGSTOP)
        program.process.terminate()
        assert ended(program.process) == 1
        assert [is_running(pid) for pid in (first, second)] == [False, False]
    text = r"incoming payments: workers [01, ]+ have not stopped after 1 seconds, so the service kills them\n"
    assert len(re.findall(text, program.log.read_text("utf-8"))) == 1


# --- workers that hang ---

SILENT: Final = "import incoming_payments.server.workers as w; w.WORKER_SILENT_S_MAX = 3"


@pytest.mark.parametrize("is_stopped", [True, False])
def test_worker_that_hangs_is_replaced(tmp_path: Path, is_stopped: bool) -> None:
    """A worker that is stopped, or does not return from a call, still gets connections. So it is killed."""
    with supervised(tmp_path, SILENT) as program:
        (lost, pid, _), (_, other, _) = program.workers()
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        else:
            (tmp_path / f"hang-{pid}").touch()
        *_, (successor, new_pid, _) = program.workers(3)
        assert successor == lost
        assert [is_running(each) for each in (pid, other, new_pid)] == [False, True, True]
        program.process.terminate()
        assert ended(program.process) == 0
    text = rf"worker {lost} \(process {pid}\) has sent no heartbeat for 3 seconds, so the service kills it\n"
    assert len(re.findall(text, program.log.read_text("utf-8"))) == 1


def test_suspended_machine_loses_no_worker(tmp_path: Path) -> None:
    """After a suspension of all processes, for longer than a worker may be silent, the workers go on."""
    with supervised(tmp_path, SILENT) as program:
        workers = program.workers()
        everything = [*(pid for _, pid, _ in workers), program.process.pid]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in everything:
                os.kill(pid, number)
            time.sleep(4)
        assert program.workers() == workers
        assert all(map(is_running, everything))
        assert "heartbeat" not in program.log.read_text("utf-8")


# --- the service ---


@contextmanager
def service(
    folder: Path, settings: str = "workers = 2", *, command: Sequence[str] = COMMAND
) -> Iterator[tuple["Popen[bytes]", HttpClient]]:
    """Run `serve` with `settings` in `[listen]`, by default two workers."""
    bank = Bank.init(folder)
    bank.edit("# workers = 1", settings)
    with bank.serving(command) as process:
        await_lines(bank.log, "Application startup complete", 2)
        yield process, bank.client


def is_free(port: int) -> bool:
    """Return whether a server can listen on the port."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError):
        return False
    return True


def started(folder: Path) -> list[int]:
    """Return the process ids of the workers that have started."""
    return [int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", (folder / "log").read_text("utf-8"))]


def test_payments_survive_the_loss_of_workers(tmp_path: Path) -> None:
    """While a worker is killed, requests fail or are answered. Each payment of an answer can be read afterwards."""

    created: list[str] = []

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
            answered = [id for future in waiting if (id := future.result()) is not None]
            assert [client.get(id).status_code for id in answered] == [200] * len(answered)
            assert len(answered) > 20
            created += answered
        assert [unsigned("GET", f"{client.base_url}/readyz").status_code for _ in range(8)] == [200] * 8
        process.terminate()
        assert process.wait(30) == 0
    with SqliteStore(tmp_path / "payments.sqlite3") as store:
        for id in created:
            store.load(PaymentId(id.rpartition("/")[2]))


def test_nonce_is_accepted_by_one_worker_only(tmp_path: Path) -> None:
    """All workers share the used nonces. Each request has a connection of its own, so both workers get some."""
    with service(tmp_path) as (_, client):
        body = {"walletAddress": f"{client.base_url}/alice"}
        answers = [client.send("POST", "/incoming-payments", body, nonce="n") for _ in range(12)]
    assert answers[0].status_code == 201
    assert [code_of(answer) for answer in answers[1:]] == [(401, "nonce_used")] * 11


def test_each_worker_serves_its_own_metrics(tmp_path: Path) -> None:
    """The first worker has the port of the setting, and the second the next one. Their counts add up."""
    port = free_port()
    while not is_free(port + 1):
        port = free_port()
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


def test_configuration_that_would_block_keeps_no_worker_from_stopping(tmp_path: Path) -> None:
    """After SIGHUP, a secret that is a FIFO is refused. The supervisor and the workers still take signals."""
    with service(tmp_path) as (process, client):
        (tmp_path / SERVER_SECRET).unlink()
        os.mkfifo(tmp_path / SERVER_SECRET)
        process.send_signal(signal.SIGHUP)
        await_lines(tmp_path / "log", f"{SERVER_SECRET} is not a regular file", 3)
        assert client.create().status_code == 201
        os.kill(started(tmp_path)[0], signal.SIGKILL)
        await_lines(tmp_path / "log", "Application startup complete", 3)
        process.terminate()
        assert process.wait(30) == 0


def test_stopped_worker_of_the_service_is_replaced(tmp_path: Path) -> None:
    """The event loop of each worker gives signs of life. The connections that waited for a lost worker are served."""
    code = (
        "import sys, incoming_payments.server.workers as workers\n"
        "from incoming_payments.server.command import main\n"
        "workers.WORKER_SILENT_S_MAX = 5\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    with service(tmp_path, command=[sys.executable, "-c", code]) as (_, client):
        first, second = started(tmp_path)
        os.kill(first, signal.SIGSTOP)
        assert [client.create().status_code for _ in range(8)] == [201] * 8
        await_lines(tmp_path / "log", "Application startup complete", 3)
        assert [is_running(pid) for pid in (first, second)] == [False, True]
        assert (tmp_path / "log").read_text("utf-8").count("heartbeat") == 1


def slow_uploads(port: int) -> list[socket.socket]:
    """Send requests without the end of their bodies, on so many connections that each worker waits for some."""
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
    for connection in slow:
        connection.sendall(b"POST /incoming-payments HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    time.sleep(0.5)
    return slow


def await_refusal(port: int) -> None:
    """Wait until the port refuses connections."""
    deadline = time.monotonic() + 5  # shorter than the bound of a body
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except ConnectionRefusedError:
            return
        time.sleep(0.05)
    raise AssertionError("the port still accepts connections")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stopping_service_refuses_connections(tmp_path: Path, number: signal.Signals) -> None:
    """While workers finish their requests, a proxy can go elsewhere at once, and another service can start."""
    with service(tmp_path) as (process, client):
        port = int(client.base_url.rpartition(":")[2])
        slow = slow_uploads(port)
        process.send_signal(number)
        await_refusal(port)
        assert any(is_running(pid) for pid in started(tmp_path))
        for connection in slow:
            connection.close()
        for pid in started(tmp_path):
            await_end(pid)


def test_signal_before_the_workers_start(bank: Bank) -> None:
    """A SIGTERM that arrives while the service still starts stops it, as with one worker."""
    bank.edit("# workers = 1", "workers = 2")
    code = (
        "import gc, os, signal, sys\n"
        "from incoming_payments.server.command import main\n"
        "gc.freeze = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"sys.exit(main(['serve', '--config', {str(bank.configuration)!r}]))\n"
    )
    with bank.log.open("wb") as output:
        process = Popen([sys.executable, "-c", code], stdout=output, stderr=output)
    assert ended(process) == 0
    assert "a new worker replaces it" not in bank.log.read_text("utf-8")


def test_metrics_port_in_use_creates_no_database(bank: Bank) -> None:
    """A metrics port that is taken is reported before the database exists, and before the service announces itself."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bank.edit("# workers = 1", f"workers = 2\nmetrics_port = {taken.getsockname()[1] - 1}")
        done = run_command("serve", "--config", bank.configuration)
    assert (done.returncode, done.stdout) == (1, "")
    assert "listen.metrics_port: cannot listen on 127.0.0.1 port" in done.stderr
    assert not list(bank.folder.glob("payments.sqlite3*"))
