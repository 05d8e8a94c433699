"""Kill the workers of `serve`, its PostgreSQL primary and its connections, and check what all clients were told.

    nox -s served                            100 rounds
    nox -s served -- --rounds N --seed S

`serve` has four workers, and a primary and its synchronous standby in the URL of its database. STREAM senders pay over
HTTP, and a client creates, lists and completes payments by signed requests. Every few rounds, the primary is killed
with SIGKILL and the standby is promoted. All clients repeat a request until it has a final answer.

At the end, `campaigns.crash.check` compares the records of all clients with the database, and the audit must find no
difference.
"""

import argparse
import os
import random
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psycopg
from attrs import asdict, define, evolve, field
from psycopg.rows import dict_row

from campaigns.crash.campaign import SENDERS, Client
from campaigns.crash.check import Report, Tables, check_tables
from campaigns.crash.clients import CREATED, END
from campaigns.crash.records import Reader, ReceivedAnswer
from campaigns.crash.service import Service
from campaigns.postgres.check import audited
from campaigns.postgres.workers import print_report
from incoming_payments.stores.postgres import migrate
from kits.postgres_cluster import Cluster

WORKERS: Final = 4
# A round does one of these.
FAILOVER: Final = "failover"
KILLS: Final = ("worker", "worker", "all workers", "service", "backends", "server", FAILOVER)
_PAUSE_S_MAX: Final = 0.5
_PATIENCE_S: Final = 120.0
_TABLES: Final = (
    """
    SELECT id::text, version, received_amount::text, incoming_amount::text, closed_at, expires_at, metadata AS text
    FROM incoming_payments.payments
    """,
    """
    SELECT payment_id::text, credit_id, amount::text, received_amount::text, completes, at
    FROM incoming_payments.credits
    """,
    """
    SELECT payment_id::text, version, kind, received_amount::text, credit_id FROM incoming_payments.events
    ORDER BY version
    """,
)


@define
class Figures:
    """The figures of a campaign."""

    kills: Counter[str] = field(factory=Counter)
    fulfills_s: list[float] = field(factory=list)  # from the start of a promotion to the first Fulfill


def run_campaign(
    folder: Path, *, rounds: int, seed: int, kills: Sequence[str] = KILLS, loud: bool = False
) -> tuple[Figures, Report]:
    """Run `rounds` rounds, and return the figures and the report."""
    choose, figures = random.Random(seed), Figures()
    with Cluster() as cluster, ExitStack() as stack:
        migrate(cluster.conninfo)
        service = stack.enter_context(Service(folder, workers=WORKERS, database_url=cluster.url))
        clients = [Client("sender", f"sender-{number}", folder, seed + number) for number in range(SENDERS)]
        clients.append(Client("creator", CREATED.removesuffix(".record"), folder, seed))
        for client in clients:
            stack.callback(client.kill)
        money = Money(clients, service)
        for number in range(rounds):
            service.up()
            for client in clients:
                client.run()
            money.await_fulfill()
            time.sleep(choose.uniform(0, _PAUSE_S_MAX))
            victim = choose.choice(kills)
            figures.kills[victim] += 1
            _kill(service, cluster, victim, choose)
            if victim == FAILOVER:
                began = time.monotonic()
                cluster.promote()
                money.await_fulfill()
                figures.fulfills_s.append(time.monotonic() - began)
                cluster.rebuild()
            if loud and (number + 1) % 10 == 0:
                print(f"{number + 1} rounds", flush=True)
        service.up()
        (folder / END).touch()
        for client in clients:
            client.end()
        service.stop()
        report = check_tables(read_tables(cluster.conninfo), [client.record for client in clients])
        return figures, evolve(report, violations=[*report.violations, *audited(cluster.url)])


def _kill(service: Service, cluster: Cluster, victim: str, choose: random.Random) -> None:
    """Kill the processes or connections that `victim` names."""
    if victim == "service":
        service.kill()
    elif victim in ("worker", "all workers"):
        workers = service.workers()  # for a second there are none, when a round before this one has killed all
        for pid in choose.sample(workers, min(1, len(workers))) if victim == "worker" else workers:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
    elif victim == "backends":
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name <> '' AND usename = "
        cluster.primary.execute(f"{query}'postgres' AND backend_type = 'client backend' AND pid <> pg_backend_pid()")
    else:
        cluster.primary.kill()
        if victim == "server":
            cluster.primary.start()
            cluster.await_standby()


class Money:
    """The packets that were fulfilled, as the senders note them."""

    def __init__(self, clients: Sequence[Client], service: Service) -> None:
        self._readers = [Reader(client.record) for client in clients]
        self._service = service

    def await_fulfill(self) -> None:
        """Wait until another packet has been fulfilled."""
        self._count()
        deadline = time.monotonic() + _PATIENCE_S
        while not self._count():
            assert time.monotonic() < deadline, self._service.log_text()[-4000:]
            time.sleep(0.01)

    def _count(self) -> int:
        """Return the number of packets that were fulfilled since the last call."""
        entries = [entry for reader in self._readers for entry in reader.new_entries()]
        return sum(isinstance(entry, ReceivedAnswer) and entry.answer == "fulfilled" for entry in entries)


def read_tables(conninfo: str) -> Tables:
    """Read the tables in one snapshot."""
    with psycopg.connect(conninfo, row_factory=dict_row) as connection:
        connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        payments, credits, events = (connection.execute(query).fetchall() for query in _TABLES)
    return payments, credits, events


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print the report. The exit status is 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--kills", nargs="+", choices=sorted({*KILLS}), default=KILLS, help="what the rounds do")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory(prefix="served-") as folder:
        figures, report = run_campaign(
            Path(folder), rounds=options.rounds, seed=options.seed, kills=options.kills, loud=True
        )
    seconds = figures.fulfills_s or [0.0]
    return print_report(
        {
            **asdict(report.figures),
            "first Fulfill, median s": f"{statistics.median(seconds):.2f}",
            "first Fulfill, longest s": f"{max(seconds):.2f}",
            **{f"killed: {name}": count for name, count in sorted(figures.kills.items())},
        },
        report.violations,
    )


if __name__ == "__main__":
    sys.exit(main())
