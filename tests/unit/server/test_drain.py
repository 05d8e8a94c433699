"""The drain after SIGTERM, and a rolling restart of two instances without a failed request."""

import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Final, Self

import httpx
import pytest

from incoming_payments.httpsig import RequestMessage
from incoming_payments.stores.postgres import migrate
from incoming_payments.stores.postgres._schema import VERSIONS, Version
from kits.postgres import execute, new_database, url_of
from kits.processes import Bank, HttpClient, await_lines, await_true, unsigned


@pytest.mark.parametrize("workers", [1, 2])
def test_a_draining_service_still_answers(bank: Bank, workers: int) -> None:
    """It is not ready, and closes each connection after its response. A second SIGTERM ends the drain."""
    bank.edit("# workers = 1", f"workers = {workers}")
    bank.edit("# drain_s = 0", "drain_s = 60")
    with bank.serving() as process, httpx.Client(trust_env=False, base_url=bank.base_url) as kept:
        await_lines(bank.log, "Application startup complete", workers)
        assert "connection" not in kept.get("/readyz").headers
        process.terminate()
        await_true(lambda: [unsigned("GET", f"{bank.base_url}/readyz").status_code for _ in range(4)] == [503] * 4)
        for path, status in (("/healthz", 200), ("/readyz", 503), ("/nothing", 404)):
            answer = kept.get(path)
            assert (answer.status_code, answer.headers["connection"]) == (status, "close")
        assert bank.client.create().status_code == 201
        process.terminate()
        assert process.wait(30) == 0


def test_ctrl_c_ends_without_a_drain(bank: Bank) -> None:
    """A developer does not wait."""
    bank.edit("# drain_s = 0", "drain_s = 60")
    with bank.serving() as process:
        await_lines(bank.log, "Application startup complete")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


# --- a rolling restart ---

SECOND: Final = Version(
    2,
    before=("ALTER TABLE incoming_payments.payments ADD COLUMN note text",),
    after=("ALTER TABLE incoming_payments.payments ALTER COLUMN note SET DEFAULT ''",),
)
# The program of the second version, which refuses a database of the first.
NEXT: Final = """
import sys
import incoming_payments.stores.postgres._migrations as migrations
from incoming_payments.server.command import main
migrations.VERSION = 2
sys.exit(main(sys.argv[1:]))
"""


class Balancer:
    """A proxy in this process: it asks each instance whether it is ready, and sends requests to those that are.

    Like a proxy, it keeps connections open, and never repeats a request.
    """

    def __init__(self, banks: list[Bank]) -> None:
        limits = httpx.Limits(max_keepalive_connections=8)
        self._instances = [
            httpx.Client(trust_env=False, timeout=30, base_url=bank.base_url, limits=limits) for bank in banks
        ]
        self._ready: list[httpx.Client] = []
        self._turns = cycle(range(1000))
        self._is_ended = threading.Event()
        self._threads = ThreadPoolExecutor()
        self.answers = Counter[object]()

    def _check(self) -> None:
        while not self._is_ended.wait(0.1):
            self._ready = [instance for instance in self._instances if self._is_ready(instance)]

    @staticmethod
    def _is_ready(instance: httpx.Client) -> bool:
        try:
            return instance.get("/readyz", timeout=1).status_code == 200
        except httpx.TransportError:
            return False

    def await_ready(self, count: int) -> None:
        """Wait until so many instances are ready."""
        await_true(lambda: len(self._ready) == count)

    def send(self, request: RequestMessage) -> httpx.Response:
        """Send a request to one of the instances that were ready a moment ago."""
        ready = self._ready
        instance = ready[next(self._turns) % len(ready)]
        path = request.target_uri.partition("/incoming-payments")[2]
        headers, url = list(request.headers), f"/incoming-payments{path}"
        return instance.request(request.method, url, headers=headers, content=request.body)

    def begin_load(self, client: HttpClient, threads: int) -> None:
        """Create and read payments in so many threads until the end, and count the answers."""
        for _ in range(threads):
            self._threads.submit(self._load, client)

    def _load(self, client: HttpClient) -> None:
        body = {"walletAddress": f"{client.base_url}/alice"}
        while not self._is_ended.is_set():
            try:
                created = self.send(client.signed("POST", "/incoming-payments", body))
                self.answers[created.status_code] += 1
                path = created.json()["id"].removeprefix(client.base_url)
                self.answers[self.send(client.signed("GET", path)).status_code] += 1
            except Exception as error:  # noqa: BLE001 - a failed request
                self.answers[repr(error)] += 1
            time.sleep(0.01)

    def __enter__(self) -> Self:
        self._threads.submit(self._check)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._threads.shutdown()
        for instance in self._instances:
            instance.close()


def test_a_rolling_restart_fails_no_request(tmp_path: Path) -> None:
    """Two instances on PostgreSQL are replaced under load, between the two steps of a migration."""
    database = new_database("rolling")
    migrate(database)
    first = Bank.init(tmp_path / "first", "--database-url", url_of(database))
    first.edit("# drain_s = 0", "drain_s = 1")
    first.edit("# workers = 1", "workers = 2")
    banks = [first, first.beside(tmp_path / "second")]
    with ExitStack() as stack:
        processes = [stack.enter_context(bank.serving()) for bank in banks]
        with Balancer(banks) as balancer:
            balancer.await_ready(2)
            balancer.begin_load(first.client, threads=2)
            migrate(database, "before", [*VERSIONS, SECOND])
            for process, bank in zip(processes, banks, strict=True):
                process.terminate()
                assert process.wait(30) == 0
                balancer.await_ready(1)
                stack.enter_context(bank.serving([sys.executable, "-c", NEXT]))
                balancer.await_ready(2)
            migrate(database, "after", [*VERSIONS, SECOND])
            time.sleep(0.5)
    assert set(balancer.answers) == {200, 201}
    assert execute(database, "SELECT count(*) FROM incoming_payments.payments") == [(balancer.answers[201],)]
