"""Kill PostgreSQL and the workers at random under load, cut and delay their connections, and check every answer.

    nox -s postgres                          100 rounds
    nox -s postgres -- --rounds N --seed S
    nox -s postgres -- --isolation serializable

Four worker processes reach PostgreSQL through a TCP proxy. In each round, the server or workers are killed, or the
connections of the server are ended. Before that, the proxy may delay the connections, refuse new ones, or cut one after
a number of bytes, or in the middle of its COMMIT.

At the end, no acknowledged credit may be lost or doubled, the books of the clients must agree with the database, and
the history of each payment must be linearizable. Each event must have arrived as `relays` says, and the audit must find
no difference.
"""

import argparse
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import define, evolve, field
from psycopg.conninfo import make_conninfo

from campaigns.postgres.check import Report, audited, check
from campaigns.postgres.relays import check_arrivals
from campaigns.postgres.workers import STORES, Workers, await_credits, print_report
from incoming_payments.stores.postgres import migrate
from kits.postgres import READ_COMMITTED, SERIALIZABLE
from kits.postgres_cluster import Server, running_server
from kits.tcp_proxy import Moment, TcpProxy

# A round chooses one of each: the processes that it kills, and the fault of the proxy before that.
KILLS: Final = ("server", "server", "worker", "worker", "all workers", "all", "backends")
FAULTS: Final = ("none", "cut all", "cut after bytes", "cut before COMMIT", "cut after COMMIT", "delay", "refuse")
_COMMIT: Final = b"COMMIT\0"
_BYTES_MAX: Final = 20_000
_DELAY_S_MAX: Final = 0.05
_PAUSE_S_MAX: Final = 0.4
_CREDITS: Final = 10  # in each round, so that the clients are at work


@define
class Figures:
    """What a campaign did."""

    kills: Counter[str] = field(factory=Counter)
    faults: Counter[str] = field(factory=Counter)
    cuts: int = 0  # connections that were cut at a number of bytes, or at COMMIT
    arrivals: int = 0  # deliveries that reached their consumer, some of them twice


def run_campaign(
    folder: Path,
    *,
    rounds: int,
    seed: int,
    stores: Sequence[str] = STORES,
    kills: Sequence[str] = KILLS,
    faults: Sequence[str] = FAULTS,
    isolation: str = READ_COMMITTED,
    loud: bool = False,
) -> tuple[Figures, Report]:
    """Run `rounds` rounds, each with one of `faults` and of `kills`, and return the figures and the report."""
    choose, figures = random.Random(seed), Figures()
    with running_server() as server, TcpProxy(server.port) as proxy:
        server.set("default_transaction_isolation", isolation)
        migrate(server.conninfo)
        with Workers(folder, make_conninfo(server.conninfo, port=proxy.port), stores) as workers:
            for number in range(rounds):
                await_credits(server, workers, _CREDITS)
                fault = choose.choice(faults)
                figures.faults[fault] += 1
                inject(proxy, fault, choose)
                time.sleep(choose.uniform(0, _PAUSE_S_MAX))
                victim = choose.choice(kills)
                figures.kills[victim] += 1
                kill(server, workers, victim, choose)
                time.sleep(choose.uniform(0, _PAUSE_S_MAX))
                proxy.delay(0)
                proxy.admit()
                if not server.is_running:
                    server.start()
                workers.start()
                if loud and (number + 1) % 10 == 0:
                    print(f"{number + 1} rounds", flush=True)
            await_credits(server, workers, _CREDITS)
            workers.end()
        figures.cuts = proxy.cuts
        figures.arrivals, wrong = check_arrivals(server.conninfo, folder)
        report = check(server.conninfo, folder)
        return figures, evolve(report, violations=[*report.violations, *wrong, *audited(server.url)])


def inject(proxy: TcpProxy, fault: str, choose: random.Random) -> None:
    """Let the proxy do `fault`."""
    if fault == "cut all":
        proxy.cut_all()
    elif fault == "cut after bytes":
        proxy.cut_after(choose.randrange(_BYTES_MAX))
    elif fault == "cut before COMMIT":
        proxy.cut_at(_COMMIT, Moment.BEFORE_REQUEST)
    elif fault == "cut after COMMIT":
        proxy.cut_at(_COMMIT, Moment.BEFORE_ANSWER)
    elif fault == "delay":
        proxy.delay(choose.uniform(0, _DELAY_S_MAX))
    elif fault == "refuse":
        proxy.refuse()
        proxy.cut_all()


def kill(server: Server, workers: Workers, victim: str, choose: random.Random) -> None:
    """Kill the processes that `victim` names."""
    if victim in ("server", "all"):
        server.kill()
    if victim in ("all workers", "all"):
        workers.kill(*workers.names)
    elif victim == "worker":
        workers.kill(choose.choice(workers.names))
    elif victim == "backends":
        ours = "pg_terminate_backend(pid)"
        query = f"SELECT {ours} FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"  # noqa: S608
        server.execute(query)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print the report. The exit status is 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--store", help="the store of all workers, from `stores` (the real ones)")
    parser.add_argument("--isolation", choices=[READ_COMMITTED, SERIALIZABLE], default=READ_COMMITTED)
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.rounds} rounds", flush=True)
    stores = STORES if options.store is None else [options.store] * len(STORES)
    with tempfile.TemporaryDirectory(prefix="postgres-crash-") as folder:
        figures, report = run_campaign(
            Path(folder),
            rounds=options.rounds,
            seed=options.seed,
            stores=stores,
            isolation=options.isolation,
            loud=True,
        )
    return print_report(
        {
            "payments": report.keys,
            "calls": report.calls,
            "longest history": report.longest_history,
            "acknowledged credits": report.credits_acknowledged,
            "by STREAM packets": report.packets_fulfilled,
            "unknown outcomes": report.unknown_outcomes,
            "arrivals at the consumer": figures.arrivals,
            "cut connections": figures.cuts,
            **{f"killed: {name}": count for name, count in sorted(figures.kills.items())},
            **{f"proxy: {name}": count for name, count in sorted(figures.faults.items())},
        },
        report.violations,
    )


if __name__ == "__main__":
    sys.exit(main())
