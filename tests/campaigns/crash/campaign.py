"""Kill the service, again and again, while it is paid; then see whether the books agree.

    nox -s crash                          200 kills
    nox -s crash -- --kills N --seed S    as it was, when S failed: who is killed when, and who sends what

`serve`, as users run it, is killed with SIGKILL at random moments and started again, while other processes send it
STREAM packets, ask for payments and book money on its file. Now and then one of these is killed with it. Nothing that
the clients do stops for a kill: they repeat what was not answered. At the end they come to rest, and `check` compares
what they have written down with the file. The moments depend on the machine, and not on the seed alone.
"""

import argparse
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from attrs import asdict

from campaigns.crash.books import Answered, notes_in
from campaigns.crash.check import Report, check
from campaigns.crash.clients import CREATED, REST
from campaigns.crash.service import Service, start

SENDERS: Final = 2
_REST_S_MAX: Final = 120.0
_SERVING_S_MAX: Final = 0.3  # how long the service lives after it listens
_STARTING_S_MAX: Final = 0.5  # and how long when it is killed without regard to whether it listens yet


class Client:
    """A client process, and its book, with which it is started again."""

    def __init__(self, role: str, name: str, folder: Path, seed: int) -> None:
        self.book = folder / f"{name}.book"
        self._arguments = (role, folder, self.book, seed)
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start it, unless it runs."""
        if self._process is None or self._process.poll() is not None:
            assert self._process is None or self._process.returncode < 0, self._log.read_text("utf-8")
            self._process = start("clients", *self._arguments, log=self._log)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Wait until it has brought to its end what was under way. It has to end well."""
        assert self._process is not None
        status = self._process.wait(_REST_S_MAX)
        assert status == 0, self._log.read_text("utf-8")


def run_campaign(folder: Path, *, kills: int, seed: int, spoilt_by: Sequence[str] = (), loud: bool = False) -> Report:
    """Kill the service `kills` times; what the check says afterwards."""
    choose = random.Random(seed)
    with ExitStack() as stack:
        service = stack.enter_context(Service(folder))
        senders = [Client("sender", f"sender-{number}", folder, seed + number) for number in range(SENDERS)]
        banking = Client("banking", "banking-1", folder, seed)
        clients = [Client("creator", CREATED.removesuffix(".book"), folder, seed), banking, *senders]
        for client in clients:
            stack.callback(client.kill)
        service.start(*spoilt_by)
        for client in clients:
            client.run()
        _await_money(service, senders)
        service.kill()
        for turn in range(1, kills):
            service.start(*spoilt_by)
            for client in clients:
                client.run()
            if choose.random() < 0.85:
                assert service.listens(), service.said()
                time.sleep(choose.uniform(0, _SERVING_S_MAX))
            else:
                time.sleep(choose.uniform(0, _STARTING_S_MAX))
            for victim in _who_else(choose, banking, senders):
                victim.kill()
            service.kill()
            if loud and (turn + 1) % 50 == 0:
                print(f"{turn + 1} kills", flush=True)
        service.up(*spoilt_by)
        for client in clients:
            client.run()
        (folder / REST).touch()
        for client in clients:
            client.end()
        service.stop()
    return check(service.database, [client.book for client in clients])


def _await_money(service: Service, senders: Sequence[Client]) -> None:
    """All clients are at work: each sender has been answered."""
    deadline = time.monotonic() + _REST_S_MAX
    while not all(any(isinstance(note, Answered) for note in notes_in(sender.book)) for sender in senders):
        assert time.monotonic() < deadline, service.said()
        time.sleep(0.05)


def _who_else(choose: random.Random, banking: Client, senders: Sequence[Client]) -> Iterator[Client]:
    """Who dies with the service. Without core banking nobody has the file open, and its log has to be recovered."""
    if choose.random() < 0.3:
        yield banking
    if choose.random() < 0.1:
        yield choose.choice(senders)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print what came out; 0 when every promise held."""
    parser = argparse.ArgumentParser(description="Kill the service while it is paid, and check the books.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--spoilt-by", default="", help="what crash.deadly does to it, to see it caught")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.kills} kills", flush=True)
    spoilt_by = tuple(filter(None, options.spoilt_by.split(",")))
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        report = run_campaign(Path(folder), kills=options.kills, seed=options.seed, spoilt_by=spoilt_by, loud=True)
    for name, figure in asdict(report.figures).items():
        print(f"{name:<16}{figure:>9}")
    print(f"{'violations':<16}{len(report.violations):>9}")
    for kind, what in report.violations[:50]:
        print(f"  {kind}: {what}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
