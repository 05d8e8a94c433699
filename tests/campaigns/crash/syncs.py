"""Kill workers inside a sync, on a disk that loses what a failed sync has not written, and cut the power.

    python -m campaigns.crash.syncs [--rounds N] [--seed S] [--workers N]        with PYTHONPATH=tests

In each round, a worker of `serve` dies in a sync of the log or the database: before the sync, after it, or after a sync
that fails. A failed sync leaves the pages clean, and may evict them. The supervisor replaces the worker. In half of the
rounds, all other workers are killed as well, so the next one recovers the log. Every few rounds the power is cut: the
next service finds only what was synced. At the end, `check` compares the records of the clients with the disk.
"""

import argparse
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from attrs import asdict

from campaigns.crash.campaign import SENDERS, Client
from campaigns.crash.check import Report, check
from campaigns.crash.clients import CREATED, END
from campaigns.crash.service import Service
from campaigns.disk.faults import HEALTHY, KILLING, FaultyDisk, build

_PROBABILITY: Final = 6  # of a sync that kills, in 1/256
_POWER_CUT_EVERY: Final = 5  # rounds
_ROUND_S_MAX: Final = 120.0


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
            service.up()
            for client in clients:
                client.run()
            if number // _POWER_CUT_EVERY % 2:  # in the other rounds, the last worker is the last process with the file
                banking.run()
            before = _all_workers(service, workers)  # so the supervisor has opened the database, and syncs no more
            disk.set(KILLING, _PROBABILITY)
            _await(service, partial(_has_lost, service, before))
            if choose.random() < 0.5:
                _kill_workers(service)
            time.sleep(choose.uniform(0, 1.5))  # the supervisor replaces a worker after a second
            if number % _POWER_CUT_EVERY == 0:
                banking.kill()
                service.kill()
                disk.set(HEALTHY)
                disk.cut_power(service.database)
            if loud and number % 20 == 0:
                print(f"{number} rounds", flush=True)
        disk.set(HEALTHY)
        service.up()
        for client in (*clients, banking):
            client.run()
        (disk.folder / END).touch()
        for client in (*clients, banking):
            client.end()
        service.kill()
        disk.cut_power(service.database)
    return check(service.database, [client.record for client in (*clients, banking)])


def _all_workers(service: Service, count: int) -> set[int]:
    """Wait until the service has `count` workers, and return their process ids."""
    found: set[int] = set()

    def look() -> bool:
        found.clear()
        found.update(service.workers())
        return len(found) == count

    _await(service, look)
    return found


def _kill_workers(service: Service) -> None:
    for pid in service.workers():
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGKILL)


def _has_lost(service: Service, before: set[int]) -> bool:
    """Return whether one of the workers in `before` has ended."""
    return not before <= set(service.workers())


def _await(service: Service, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _ROUND_S_MAX
    while not done():
        assert service.process.poll() is None, service.log_text()[-2000:]
        assert time.monotonic() < deadline, service.log_text()[-2000:]
        time.sleep(0.01)


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
