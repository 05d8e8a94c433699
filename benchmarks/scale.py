"""Measure the store on PostgreSQL with many payments, with many processes, and with many credits into one payment.

The benchmark starts a PostgreSQL server of its own, and fills databases with 1,000 payments, 100,000 and `--payments`.
Each payment has three credits, their events and a delivery. Ten million payments take 30 GB in the folder for temporary
files (`TMPDIR`), which the benchmark removes.

`flatness` has the highest median time of each operation in these databases, divided by the lowest. `bytes_per_payment`
includes all indexes and the events that are not `credited`, and `bytes_per_credit` includes the `credited` events.

`payment` is the cost of a payment from its creation to its delivery: the processor time of one process and of
PostgreSQL, the bytes of its log and of its growth, and the share of updates that write to no index (HOT).

`workers` sends packets over HTTP to 1, 2 and 4 worker processes, which use the largest database. It has the processor
time of the workers, of PostgreSQL and of the load generator for each packet. `hot_credits_per_s` is the rate of 1, 2
and 4 processes that credit one payment. Both stand beside the commits a second of pgbench in the same run: one UPDATE,
with as many connections as the workers have, and one row for the hot payment.

    nox -s bench -- scale [--json] [--payments N] [--turns N] [--rounds N] [--packets N] [--seconds S] [--in-flight N]
"""

import argparse
import signal
import sys
import time
from typing import Final

from _postgres import FILLING, own_server
from _report import finish, table
from _scale_fill import CREDITS, OPEN_EACH, Filled, fill
from _scale_latency import OPERATIONS, flatness, measure, measure_lives, medians
from _scale_load import Cost, rounds, run_worker

SIZES: Final = (1_000, 100_000)
WANTED: Final = 1.5  # the largest flatness


def bytes_each(filled: Filled) -> dict[str, float]:
    """Return the bytes for each payment, credit and delivery, with their indexes."""
    sizes, payments = filled.sizes(), filled.payments
    credits = payments * CREDITS
    others = 2 * payments - payments // OPEN_EACH  # the events `created` and `completed`
    event = sizes["events"] / (credits + others)
    return {
        "bytes_per_payment": round(sizes["payments"] / payments + event * others / payments),
        "bytes_per_credit": round(sizes["credits"] / credits + event),
        "bytes_per_delivery": round(sizes["deliveries"] / payments),
        "database_gb": round(sum(sizes.values()) / 1e9, 2),
    }


def show_latency(median: dict[str, dict[int, float]]) -> None:
    """Print the table of the operations."""
    sizes = list(median[OPERATIONS[0]])
    flat = flatness(median)
    rows = [[name, *(f"{of[size]:,.0f}" for size in sizes), f"{flat[name]:.2f}"] for name, of in median.items()]
    title = f"Median us of a call (claim: 8 deliveries; sweep: for each of 8 payments). Wanted: flat within {WANTED}"
    table(title, ["payments", *(f"{size:,}" for size in sizes), "flatness"], rows)


def show_costs(title: str, unit: str, costs: dict[int, Cost]) -> None:
    """Print the table of a load."""
    head = [
        "processes",
        f"{unit}/s",
        "library us",
        "postgres us",
        "load us",
        "cores",
        "log bytes",
        "bare commits/s",
        "ratio",
    ]
    rows = [
        [
            str(processes),
            f"{cost.rate:,.0f}",
            f"{cost.library_us:,.0f}",
            f"{cost.postgres_us:,.0f}",
            f"{cost.load_us:,.0f}",
            f"{cost.cores:.2f}",
            f"{cost.log_bytes:,.0f}",
            f"{cost.bare:,.0f}",
            f"{cost.rate / cost.bare:.2f}",
        ]
        for processes, cost in costs.items()
    ]
    table(title, head, rows)


def run(options: argparse.Namespace) -> dict[str, object]:
    """Fill, measure, and print the tables. Return the figures."""
    with own_server() as server:
        server.start(FILLING)
        begin_s = time.perf_counter()
        sizes = [size for size in SIZES if size < options.payments] + [options.payments]
        databases = [fill(server, size) for size in sizes]
        server.stop()
        fill_s = time.perf_counter() - begin_s
        server.start({})
        figures: dict[str, object] = {"payments": options.payments, "fill_s": round(fill_s)}
        figures |= bytes_each(databases[-1])
        table("Disk", ["", "figure"], [[name, str(value)] for name, value in figures.items()])
        median = medians(measure(databases, options.turns))
        show_latency(median)
        lives = measure_lives(databases[-1], 5 * options.turns)
        table("A payment: create, 3 credits, 1 delivery", ["", "figure"], [[k, str(v)] for k, v in lives.items()])
        sync_ms = server.sync_ms()
        workers, hot = rounds(
            databases[-1],
            options.rounds,
            packets=options.packets,
            seconds=options.seconds,
            hot_in_flight=options.in_flight,
        )
        show_costs("Packets over HTTP into 200 payments", "packets", workers)
        show_costs("Credits into one payment", "credits", hot)
        print(f"\ncredits of a commit: {', '.join(f'{cost.per_commit:.1f}' for cost in hot.values())}")
        print(f"a sync of the disk: {sync_ms:.2f} ms")
    return figures | {
        "flatness": flatness(median),
        "us": {name: {str(size): round(us) for size, us in of.items()} for name, of in median.items()},
        "payment": lives,
        "workers": {str(processes): cost.figures("packets") for processes, cost in workers.items()},
        "hot_credits_per_s": {str(processes): round(cost.rate) for processes, cost in hot.items()},
        "hot": {
            str(processes): cost.figures("credits") | {"credits_per_commit": round(cost.per_commit, 1)}
            for processes, cost in hot.items()
        },
        "sync_ms": round(sync_ms, 3),
    }


def main() -> None:
    """Measure and report. With `--worker`, run one worker process instead."""
    parser = argparse.ArgumentParser(description="Measure the store on PostgreSQL with many payments and processes.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--payments", type=int, default=10**7, help="in the largest database (10000000)")
    parser.add_argument("--turns", type=int, default=40, help="the number of turns of each database (40)")
    parser.add_argument("--rounds", type=int, default=3, help="the number of rounds of each load (3)")
    parser.add_argument("--packets", type=int, default=4000, help="the packets of each round (4000)")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long the other loads take (4)")
    parser.add_argument("--in-flight", type=int, default=128, help="credits of each process into one payment (128)")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_worker(int(options.worker[0]), options.worker[1])
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the files are removed
    finish(run(options), as_json=options.json)


if __name__ == "__main__":
    main()
