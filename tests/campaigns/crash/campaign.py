"""Kill the service at random times while it is paid, then compare the records of its clients with the database.

    nox -s crash                          200 kills
    nox -s crash -- --kills N --seed S    the choices of seed S again: which processes are killed, and the requests
    nox -s crash -- --workers N           the service has N worker processes, and most kills hit one of them
    nox -s crash -- --feed                kill the consumers of the feed and the relays of webhooks instead (`feed`)

`serve`, as users run it, is killed with SIGKILL and started again. Meanwhile other processes send it STREAM packets,
create payments over HTTP, and credit money in its database. Some kills hit one of these clients as well. The clients
repeat each request without a final answer. At the end they finish their requests, and `check` compares their records
with the database. The exact time of a kill depends on the machine as well as on the seed.
"""

import argparse
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from attrs import asdict

from campaigns.crash import feed
from campaigns.crash.check import Report, check
from campaigns.crash.clients import CREATED, END
from campaigns.crash.records import COMPLETE, RETRIED, Entry, ReceivedAnswer, entries_in
from campaigns.crash.service import Service, start

SENDERS: Final = 2
_COMPLETED_MIN: Final = 5  # answers to complete requests, also on a machine so busy that each life has few requests
_END_S_MAX: Final = 120.0
_SERVING_S_MAX: Final = 0.3  # from listening to the kill
_ONE_WORKER: Final = 0.8  # the share of kills that hit one worker, if there are any, and not all processes
_STARTING_S_MAX: Final = 0.5  # from the start to a kill that does not wait until the service listens


class Client:
    """A client process. When it is started again, it continues with the same record."""

    def __init__(
        self, role: str, name: str, folder: Path, seed: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self._environment = environment
        self.record = folder / f"{name}.record"
        self._arguments = (role, folder, self.record, seed)
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start the process if it is not running."""
        if self._process is None or self._process.poll() is not None:
            assert self._process is None or self._process.returncode < 0, self._log.read_text("utf-8")
            self._process = start("clients", *self._arguments, log=self._log, env=self._environment)

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Wait until the process has finished its requests, and check that it succeeded."""
        assert self._process is not None
        status = self._process.wait(_END_S_MAX)
        assert status == 0, self._log.read_text("utf-8")


def run_campaign(
    folder: Path, *, kills: int, seed: int, workers: int = 1, faults: Sequence[str] = (), loud: bool = False
) -> Report:
    """Kill the service, or one of its workers, `kills` times, and return the report of the check."""
    choose = random.Random(seed)
    with ExitStack() as stack:
        service = stack.enter_context(Service(folder, workers=workers))
        senders = [Client("sender", f"sender-{number}", folder, seed + number) for number in range(SENDERS)]
        banking = Client("banking", "banking-1", folder, seed)
        creator = Client("creator", CREATED.removesuffix(".record"), folder, seed)
        clients = [creator, banking, *senders]
        for client in clients:
            stack.callback(client.kill)
        service.start(*faults)
        for client in clients:
            client.run()
        _await_money(service, senders)
        service.kill()
        for turn in range(1, kills):
            if service.process.poll() is not None:
                service.start(*faults)
            for client in clients:
                client.run()
            _sleep(service, choose)
            for victim in _other_victims(choose, banking, senders):
                victim.kill()
            _kill(service, choose)
            if loud and (turn + 1) % 50 == 0:
                print(f"{turn + 1} kills", flush=True)
        service.up(*faults)
        for client in clients:
            client.run()
        _await_completions(service, creator)
        (folder / END).touch()
        for client in clients:
            client.end()
        service.stop()
    return check(service.database, [client.record for client in clients])


def _sleep(service: Service, choose: random.Random) -> None:
    """Sleep until the next kill."""
    if choose.random() < 0.85:
        assert service.listens(), service.log_text()
        time.sleep(choose.uniform(0, _SERVING_S_MAX))
    else:
        time.sleep(choose.uniform(0, _STARTING_S_MAX))


def _kill(service: Service, choose: random.Random) -> None:
    """Kill all processes of the service, or one of its workers."""
    workers = service.workers()
    if workers and choose.random() < _ONE_WORKER:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(choose.choice(workers), signal.SIGKILL)
    else:
        service.kill()


def _await_money(service: Service, senders: Sequence[Client]) -> None:
    """Wait until each sender has received an answer, so all clients are at work."""
    deadline = time.monotonic() + _END_S_MAX
    while not all(any(isinstance(entry, ReceivedAnswer) for entry in entries_in(sender.record)) for sender in senders):
        assert time.monotonic() < deadline, service.log_text()
        time.sleep(0.05)


def _await_completions(service: Service, creator: Client) -> None:
    """Wait until enough complete requests have an answer."""
    deadline = time.monotonic() + _END_S_MAX
    while sum(_is_completed(entry) for entry in entries_in(creator.record)) < _COMPLETED_MIN:
        assert time.monotonic() < deadline, service.log_text()
        time.sleep(0.05)


def _is_completed(entry: Entry) -> bool:
    return isinstance(entry, ReceivedAnswer) and entry.key.startswith(COMPLETE) and entry.answer not in RETRIED


def _other_victims(choose: random.Random, banking: Client, senders: Sequence[Client]) -> Iterator[Client]:
    """Yield the clients that are killed together with the service.

    While the banking client is dead, no process has the database open, so the next one recovers its log.
    """
    if choose.random() < 0.3:
        yield banking
    if choose.random() < 0.1:
        yield choose.choice(senders)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print the report. The exit status is 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--workers", type=int, default=1, help="worker processes of the service (1)")
    parser.add_argument("--faults", default="", help="faults to inject, from crash.faults: NAME,...")
    parser.add_argument("--feed", action="store_true", help="run --kills rounds of `crash.feed` instead")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.kills} kills", flush=True)
    faults = tuple(filter(None, options.faults.split(",")))
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        if options.feed:
            return feed.main(folder, options.seed, options.kills)
        report = run_campaign(
            Path(folder), kills=options.kills, seed=options.seed, workers=options.workers, faults=faults, loud=True
        )
    for name, figure in asdict(report.figures).items():
        print(f"{name:<16}{figure:>9}")
    print(f"{'violations':<16}{len(report.violations):>9}")
    for kind, detail in report.violations[:50]:
        print(f"  {kind}: {detail}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
