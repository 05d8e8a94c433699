"""Kill the primary again and again under load, promote its synchronous standby, and check what the clients were told.

    nox -s failover                          20 rounds
    nox -s failover -- --rounds N --seed S

Four worker processes have both servers in their connection string. In every second round the standby dies first. The
commits then wait for it, and PostgreSQL is told to cancel the waiting statements, or to end their connections. The
clients repeat their calls all the time. Then the primary is killed as well, and the standby is started and promoted.

At the end, no acknowledged credit may be lost or doubled, the books of the clients must agree with the database, and
the history of each payment must be linearizable. Reads between an interruption and the promotion are an exception: they
may see a credit that is not acknowledged, and that the standby does not have. The report counts them. Each event must
have arrived as `relays` says, and the audit must find no difference.
"""

import argparse
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from attrs import define, evolve, field

from campaigns.postgres.check import Report, Span, audited, check
from campaigns.postgres.records import Call, calls_of
from campaigns.postgres.relays import check_arrivals
from campaigns.postgres.workers import STORES, Workers, await_credits, print_report
from incoming_payments.stores.postgres import migrate
from kits.payment_model import Credit
from kits.postgres_cluster import Cluster, Server

KILL: Final = "kill the primary"
CANCEL: Final = "pg_cancel_backend"
TERMINATE: Final = "pg_terminate_backend"
ROUNDS: Final = (KILL, CANCEL, KILL, TERMINATE)
_INTERRUPTIONS: Final = 10  # statements or connections, in each round without a standby
_INTERRUPTIONS_S_MAX: Final = 60.0
_PAUSE_S_MAX: Final = 0.5


@define
class Figures:
    """What a campaign did."""

    interrupted: int = 0  # commits whose wait for the standby was cancelled or terminated
    interruptions: list[Span] = field(factory=list)
    arrivals: int = 0  # deliveries that reached their consumer, some of them twice
    promoted: list[float] = field(factory=list)  # the moments at which promotions began
    promotions_s: list[float] = field(factory=list)
    credits_s: list[float] = field(factory=list)  # from the begin of a promotion to the first acknowledged credit


def run_campaign(
    folder: Path, *, rounds: int, seed: int, stores: Sequence[str] = STORES, first: int = 0, loud: bool = False
) -> tuple[Figures, Report]:
    """Run `rounds` rounds, and return the figures and the report. `first` is the place of the first round in ROUNDS."""
    choose, figures = random.Random(seed), Figures()
    with Cluster() as cluster:
        migrate(cluster.conninfo)
        with Workers(folder, cluster.conninfo, stores) as workers:
            for number in range(first, first + rounds):
                kind = ROUNDS[number % len(ROUNDS)]
                await_credits(cluster.primary, workers)
                time.sleep(choose.uniform(0, _PAUSE_S_MAX))
                _fail_over(cluster, kind, figures)
                await_credits(cluster.primary, workers)
                cluster.rebuild()
                if loud:
                    print(f"{number + 1}. {kind}: promoted in {figures.promotions_s[-1]:.2f} s", flush=True)
            workers.end()
        figures.arrivals, wrong = check_arrivals(cluster.conninfo, folder)
        report = check(cluster.conninfo, folder, figures.interruptions)
        wrong = [*wrong, *audited(cluster.url)]
    calls = calls_of(folder)
    figures.credits_s = [_first_credit_s(calls, moment) for moment in figures.promoted]
    return figures, evolve(report, violations=[*report.violations, *wrong])


def _fail_over(cluster: Cluster, kind: str, figures: Figures) -> None:
    """Kill the primary, and promote the standby."""
    began = time.monotonic()
    if kind != KILL:
        cluster.standby.kill()
        figures.interrupted += interrupt(cluster.primary, kind)
    cluster.primary.kill()
    if kind != KILL:
        figures.interruptions.append((began, time.monotonic()))
        cluster.standby.start()
    figures.promoted.append(time.monotonic())
    figures.promotions_s.append(cluster.promote())


def interrupt(primary: Server, function: str) -> int:
    """Interrupt commits that wait for the standby, in the order in which they begin to wait, and return the number."""
    statement = f"SELECT {function}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"  # noqa: S608 - ours
    interrupted, deadline = 0, time.monotonic() + _INTERRUPTIONS_S_MAX
    while interrupted < _INTERRUPTIONS:
        assert time.monotonic() < deadline, f"only {interrupted} commits have waited for the standby"
        interrupted += len(primary.execute(statement))
        time.sleep(0.05)
    return interrupted


def _first_credit_s(calls: Sequence[Call], moment: float) -> float:
    """Return the seconds from `moment` to the first acknowledgement of a credit that was called after it."""
    returned = [
        call.returned for call in calls if isinstance(call.action, Credit) and call.is_settled and call.invoked > moment
    ]
    return min(at for at in returned if at is not None) - moment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign and print the report. The exit status is 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--store", help="the store of all workers, from `stores` (the real ones)")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}, {options.rounds} rounds", flush=True)
    stores = STORES if options.store is None else [options.store] * len(STORES)
    with tempfile.TemporaryDirectory(prefix="failover-") as folder:
        figures, report = run_campaign(Path(folder), rounds=options.rounds, seed=options.seed, stores=stores, loud=True)
    return print_report(
        {
            "payments": report.keys,
            "calls": report.calls,
            "longest history": report.longest_history,
            "acknowledged credits": report.credits_acknowledged,
            "by STREAM packets": report.packets_fulfilled,
            "unknown outcomes": report.unknown_outcomes,
            "arrivals at the consumer": figures.arrivals,
            "payments with reads ahead": report.reads_ahead,
            "interrupted commits": figures.interrupted,
            "promotion, median s": f"{statistics.median(figures.promotions_s):.2f}",
            "promotion, longest s": f"{max(figures.promotions_s):.2f}",
            "first credit, median s": f"{statistics.median(figures.credits_s):.2f}",
            "first credit, longest s": f"{max(figures.credits_s):.2f}",
        },
        report.violations,
    )


if __name__ == "__main__":
    sys.exit(main())
