"""Kill workers inside a sync, on a disk that loses what a failed sync has not written, and cut the power.

    python -m campaigns.crash.syncs [--rounds N] [--seed S] [--workers N]        with PYTHONPATH=tests

In each round, a worker of `serve` dies in a sync of the log or the database: before the sync, after it, or after a sync
that fails. A failed sync leaves the pages clean, and may evict them. The supervisor replaces the worker. In half of the
rounds, all other workers are killed as well, so the next one recovers the log. A reader keeps an older state of the
database for a part of the round, so that checkpoints copy a part of the log. If a worker then dies in the next one, the
store stops, and the service with it: it is started again. Every few rounds the power is cut: the next service finds
only what was synced. At the end, `check` compares the records of the clients with the disk.
"""

import argparse
import os
import random
import secrets
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from attrs import asdict

from campaigns.crash.campaign import SENDERS, Client
from campaigns.crash.check import Report, check
from campaigns.crash.clients import CREATED, END
from campaigns.crash.service import Service
from campaigns.disk.faults import HEALTHY, KILLING, KILLING_IN_DATABASE, FaultyDisk, build

T = TypeVar("T")

_FAULTS: Final = (KILLING, 6), (KILLING_IN_DATABASE, 64)  # with the probability of a sync that kills, in 1/256
_POWER_CUT_EVERY: Final = 5  # rounds
_READ_S_MAX: Final = 0.5
_ROUND_S_MAX: Final = 120.0
UNFINISHED: Final = "a process was killed while it brought the database to the disk"  # why the store may stop


def run_campaign(folder: Path, library: Path, *, rounds: int, seed: int, workers: int, loud: bool = False) -> Report:
    """Kill a worker inside a sync `rounds` times, and return the report of the check."""
    choose = random.Random(seed)
    disk = FaultyDisk(folder / "bank", library, platter=True)
    environment = disk.environment()
    with ExitStack() as stack:
        service = stack.enter_context(Service(disk.folder, workers=workers, environment=environment))
        clients = [Client("sender", f"sender-{n}", disk.folder, seed + n) for n in range(SENDERS)]
        clients.append(Client("creator", CREATED.removesuffix(".record"), disk.folder, seed))
        # The banking client writes to the database itself, so it uses this disk and may die inside a sync as well.
        banking = Client("banking", "banking-1", disk.folder, seed, environment)
        for client in (*clients, banking):
            stack.callback(client.kill)
        for number in range(1, rounds + 1):
            before = _all_workers(service, workers, disk, banking)  # so the supervisor syncs no more
            for client in clients:
                client.run()
            if number // _POWER_CUT_EVERY % 2:  # in the other rounds, the last worker is the last process with the file
                banking.run()
            with _reader(service.database):
                time.sleep(choose.uniform(0, _READ_S_MAX))
            disk.set(*choose.choice(_FAULTS))
            _await(service, partial(_has_lost, service, before))
            if choose.random() < 0.5:
                _kill_workers(service)
            time.sleep(choose.uniform(0, 1.5))  # the supervisor replaces a worker after a second
            if number % _POWER_CUT_EVERY == 0:
                banking.kill()
                service.kill(if_alive=True)
                disk.set(HEALTHY)
                disk.cut_power(service.database)
            if loud and number % 20 == 0:
                print(f"{number} rounds", flush=True)
        disk.set(HEALTHY)
        _all_workers(service, workers, disk, banking)
        for client in (*clients, banking):
            client.run()
        (disk.folder / END).touch()
        for client in (*clients, banking):
            client.end()
        service.kill()
        disk.cut_power(service.database)
    return check(service.database, [client.record for client in (*clients, banking)])


def _all_workers(service: Service, count: int, disk: FaultyDisk, banking: Client) -> set[int]:
    """Wait until the service has `count` workers, and return their process ids. Start a service that has stopped."""
    found: set[int] = set()
    while len(found) < count:
        if not service.is_running:
            disk.set(HEALTHY)
            banking.kill()  # the store cannot be opened before every process has closed it
            service.up()
        found = _await(service, partial(_workers, service, count)) or set()
    return found


def _workers(service: Service, count: int) -> set[int] | None:
    found = set(service.workers())
    return found if len(found) == count else None


def _has_lost(service: Service, before: set[int]) -> bool:
    """Return whether one of the workers in `before` has ended."""
    return not before <= set(service.workers())


@contextmanager
def _reader(database: Path) -> Iterator[None]:
    """Keep the present state of the database readable."""
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield


def _kill_workers(service: Service) -> None:
    for pid in service.workers():
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


def _await(service: Service, look: Callable[[], T | None]) -> T | None:
    """Return the first true answer of `look`, or `None` if the service stops because a checkpoint was not finished."""
    deadline = time.monotonic() + _ROUND_S_MAX
    while not (found := look()):
        if not service.is_running:
            assert UNFINISHED in service.log_text(), service.log_text()[-2000:]
            return None
        assert time.monotonic() < deadline, service.log_text()[-2000:]
        time.sleep(0.01)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print the report. The exit status is 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.rounds} rounds, {options.workers} workers", flush=True)
    with tempfile.TemporaryDirectory(prefix="syncs-") as folder:
        report = run_campaign(
            Path(folder),
            build(Path(folder)),
            rounds=options.rounds,
            seed=options.seed,
            workers=options.workers,
            loud=True,
        )
    for name, figure in asdict(report.figures).items():
        print(f"{name:<16}{figure:>9}")
    print(f"{'violations':<16}{len(report.violations):>9}")
    for kind, detail in report.violations[:50]:
        print(f"  {kind}: {detail}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
