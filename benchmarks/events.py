"""Measure the feed of events, in seven parts.

`webhooks` measures the events a second from the commit of a credit to an acknowledged webhook, with 1 and 16 receivers
on loopback. An event counts when all receivers have acknowledged it. 64 tasks make credits as fast as they can.
Credits of one payment are joined, as by default, or each has a webhook of its own (`single`). The delays are those of
single credits at half of that rate. The service, the receivers and the senders of credits share the processors.

`failing` compares the rate of 15 receivers beside one that answers 500 with their rate beside one that works. The
failing one has one attempt of each webhook, so it gets as many requests as the others. `beside_failing_ratio_of` also
has the ratio to the rate of the 15 alone.

`cost` compares a durable credit with 0, 1 and 16 registered consumers. The ratio is that of the worst kind of credit:
into one payment with 1 or 64 in flight, or into many payments with 64 in flight.

`claims` compares claims after a thousand past events with claims after many (`--past`). Each past event has an
acknowledged delivery. Ten million of them write 11 GB to the folder for temporary files, and the benchmark removes
them.

`audit` measures the audit of a copy of a database with `--credits` credits, 100 in each payment.

`quotas` compares creates and signed gets over HTTP with and without the quotas that processes share. The ratio is that
of the worst kind of request.

`upgrade` measures the first start with a database of version 1 with `--payments` payments.

    nox -s bench -- events [--json] [--only PART...] [--seconds S] [--turns N] [--past N] [--credits N] [--payments N]
"""

import argparse
import asyncio
import io
import logging
import multiprocessing
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

import _feed_cost
import _quota_cost
import _upgrade
from _flat import NAMES, medians, memory_mb
from _load import free_port, run_application, server
from _past import fill
from _report import finish, table
from _webhook_load import Load, Outcome, beside_failing, measure, receiver
from incoming_payments.audit import audit

RECEIVERS: Final = (1, 16)
CREDITS_EACH: Final = 100  # credits in each payment of the audited database

Figures = dict[str, object]


def measure_webhooks(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure the part `webhooks`."""
    port, outcomes = free_port(), dict[tuple[int, str], Outcome]()
    with server([__file__, "--receiver", str(port)], port):
        for count in RECEIVERS:
            joined = Load(receivers=count, seconds=options.seconds)
            outcomes[count, "joined"] = asyncio.run(measure(folder / f"joined-{count}.db", port, joined))
            single = Load(receivers=count, seconds=options.seconds, joins_credits=False)
            outcomes[count, "single"] = asyncio.run(measure(folder / f"single-{count}.db", port, single))
            rate = outcomes[count, "single"].rate / 2
            paced = Load(receivers=count, seconds=2 * options.seconds, rate=rate)
            outcomes[count, "at half the rate"] = asyncio.run(measure(folder / f"paced-{count}.db", port, paced))
    head = ["receivers, credits", "events/s", "webhooks/s", "credits/webhook", "us of processor", "p50 ms", "p99 ms"]
    rows = [
        [
            f"{count}, {kind}",
            f"{outcome.rate:,.0f}",
            f"{outcome.webhooks / outcome.seconds:,.0f}",
            f"{outcome.credits_per_webhook:.1f}",
            f"{outcome.processor_us:,.0f}",
            f"{outcome.delay_ms(0.5):,.1f}",
            f"{outcome.delay_ms(0.99):,.1f}",
        ]
        for (count, kind), outcome in outcomes.items()
    ]
    table("From a commit to the acknowledged webhook ('us of processor' is of the service, for a webhook)", head, rows)
    return {
        "events_per_s": {str(count): round(outcomes[count, "joined"].rate) for count in RECEIVERS},
        "single_events_per_s": {str(count): round(outcomes[count, "single"].rate) for count in RECEIVERS},
        "credits_per_webhook": {
            str(count): round(outcomes[count, "joined"].credits_per_webhook, 1) for count in RECEIVERS
        },
        "delay_p50_ms": _delays(outcomes, 0.5),
        "delay_p99_ms": _delays(outcomes, 0.99),
    }


def _delays(outcomes: dict[tuple[int, str], Outcome], share: float) -> dict[str, float]:
    return {str(count): round(outcomes[count, "at half the rate"].delay_ms(share), 1) for count in RECEIVERS}


def measure_failing(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure the part `failing`."""
    port = free_port()
    with server([__file__, "--receiver", str(port)], port):
        ratios = asyncio.run(beside_failing(folder, port, options.turns))
    return {
        "beside_failing_ratio": round(ratios["beside one that works"], 3),
        "beside_failing_ratio_of": {name: round(ratio, 3) for name, ratio in ratios.items()},
    }


def measure_cost(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure the part `cost`."""
    spent = asyncio.run(_feed_cost.measure_cost(folder, 20 * options.turns))
    rows = [[str(count), *(f"{median:.1f}" for median in medians(kinds))] for count, kinds in spent.items()]
    table("us of a durable credit", ["registered consumers", *NAMES], rows)
    ratios = _feed_cost.cost_ratios(spent)
    return {
        "credit_cost_ratio": {count: max(kinds.values()) for count, kinds in ratios.items()},
        "credit_cost_ratio_of": ratios,
    }


def measure_claims(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure the part `claims`."""
    spent = _feed_cost.measure_claims(folder, options.past, 4 * options.turns)
    rows = [[f"{events:,}", *(f"{median:.0f}" for median in medians([*of.values()]))] for events, of in spent.items()]
    head = ["past events", *_feed_cost.CLAIMS]
    table(f"us of a claim of {_feed_cost.CLAIMED} deliveries, and to settle one of them", head, rows)
    ratios = _feed_cost.flatness(spent)
    return {"flatness": max(ratios.values()), "flatness_of": ratios, "flatness_events": options.past}


def measure_audit(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure the part `audit`."""
    path = folder / "audited.db"
    fill(path, payments=max(1, options.credits // CREDITS_EACH), credits=CREDITS_EACH, is_delivered=False)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        credits_per_s, rss_mb = fresh.submit(_audit, path).result()
    return {
        "audit_credits_per_s": round(credits_per_s),
        "audit_rss_mb": round(rss_mb, 1),
        "audit_credits": options.credits,
    }


def _audit(path: Path) -> tuple[float, float]:
    """Return the credits a second of the audit, and the peak memory of this process in MB."""
    start = time.perf_counter()
    report = audit(path)
    assert report.is_sound, report.differences
    return report.counts.credits / (time.perf_counter() - start), memory_mb()


def measure_quotas(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure the part `quotas`."""
    spent = _quota_cost.measure_quotas(folder, 2 * options.turns)
    rows = [
        ["with quotas" if has else "without", *(f"{median:.0f}" for median in medians([*of.values()]))]
        for has, of in spent.items()
    ]
    table("us of processor of a request over HTTP", ["", *spent[True]], rows)
    ratios = {name: round(_feed_cost.median_ratio(times, spent[False][name]), 3) for name, times in spent[True].items()}
    return {"quota_cost_ratio": max(ratios.values()), "quota_cost_ratio_of": ratios}


def measure_upgrade(options: argparse.Namespace, folder: Path) -> Figures:
    """Measure the part `upgrade`."""
    return {**_upgrade.measure_upgrade(folder, options.payments)}


PARTS: Final = {
    "webhooks": measure_webhooks,
    "failing": measure_failing,
    "cost": measure_cost,
    "claims": measure_claims,
    "quotas": measure_quotas,
    "audit": measure_audit,
    "upgrade": measure_upgrade,
}
WANTED: Final = {
    "credit_cost_ratio": '"1": <= 1.1',
    "beside_failing_ratio": ">= 0.95",
    "flatness": "<= 1.3",
    "quota_cost_ratio": "<= 1.05",
    "audit_credits_per_s": "",
    "audit_rss_mb": "",
    "upgrade_s": "",
    "events_per_s": "",
    "credits_per_webhook": "",
    "delay_p99_ms": "",
}


def main() -> None:
    """Measure and report. With `--receiver`, run the receivers instead."""
    parser = argparse.ArgumentParser(description="Measure the feed of events.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run (all)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each load of credits takes (2)")
    parser.add_argument("--turns", type=int, default=20, help="the number of turns of each side (20)")
    parser.add_argument("--past", type=int, default=10**6, help="the number of past events (1000000)")
    parser.add_argument("--credits", type=int, default=200_000, help="the credits in the audited database (200000)")
    parser.add_argument("--payments", type=int, default=200_000, help="the payments in the upgraded database (200000)")
    parser.add_argument("--receiver", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receiver:
        run_application(options.receiver, receiver)
        return
    logging.basicConfig(handlers=[logging.StreamHandler(io.StringIO())])  # each failed attempt is logged
    figures: Figures = {}
    for part in options.only:
        with tempfile.TemporaryDirectory() as folder:
            figures |= PARTS[part](options, Path(folder))
    rows = [[name, str(figures[name]), wanted] for name, wanted in WANTED.items() if name in figures]
    table("Wanted", ["", "figure", "wanted"], rows)
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()
