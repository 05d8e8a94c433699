"""Measure the cost of receiving money by ILP packets, in four parts.

`node` measures the time from the bytes of a Prepare to the bytes of its Fulfill, on one core. Our side decodes and
decrypts the packet, decides about the payment, fulfills and encodes. npm `@interledger/stream-receiver` (`createReply`
and `accept`, between the codecs of `ilp-packet`) does the same without the decision, because it knows no payments.
`booked_vs_node` compares more work with the same Node program: our side also runs the flow and its driver, and stores
credits and events in memory. All sides receive packets of the same kind, in turns in one run. No packet is repeated in
a turn, and a turn is long enough to include garbage collection. The best turn counts, because other work on the machine
can only slow it down.

`http` is a short run of `packets.py`: packets a second through `serve`.

`durable` measures credits and whole packets on SQLite, with 1 and 64 in flight, beside a raw `sqlite3` loop
(`_durable.py`).

`flat` compares the time for a durable credit, and the memory, with a thousand and with ten million credits in the file
(`_flat.py`). It writes 3.3 GB to the folder for temporary files, and removes them.

    nox -s bench -- receive [--json] [--only PART...] [--turns N] [--credits N] [--http-packets N]
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import _durable
import _flat
import packets as over_http
from _npm import node
from _prepares import prepares
from _report import finish, table
from incoming_payments import Asset, DerivedMethods, Peer, Ports, Receiver
from incoming_payments.domain.approval import Approver
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp.packet import PacketType, encode
from incoming_payments.ilp.receive import Arrival, open_packet
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import a_creation

PACKAGES: Final = {"@interledger/stream-receiver": "0.2.2", "ilp-packet": "3.1.3", "ilp-protocol-stream": "2.7.1"}
PAYMENTS: Final = 16
PACKETS: Final = 10_000
AMOUNT: Final = 100
DURABLE_TURNS: Final = 20
NOW: Final = datetime.now(UTC)
METHODS: Final = DerivedMethods("test.bank", [os.urandom(32)])
RECEIVER: Final = Receiver(METHODS)
PEER: Final = Peer("test.bank.connector", Asset("USD", 2))
CREATED: Final = [a_creation(limit=10**12, now=NOW) for _ in range(PAYMENTS)]


def clock() -> datetime:
    """Return the one time of the run. Reading the real clock is not part of the measurement."""
    return NOW


def packets() -> list[bytes]:
    """Return packets as senders make them in the middle of a payment, with one frame for the money."""
    ids = [created.answer.id for created in CREATED]
    return prepares(METHODS, ids, PACKETS, amount=AMOUNT, now=NOW)


def receive(packets: Sequence[bytes]) -> float:
    """Return the seconds of one packet, with a new store in memory."""
    store = MemoryStore()
    for created in CREATED:
        store.insert(created)
    ports = Ports(store=store)
    start = time.perf_counter()
    for packet in packets:
        reply = run(receive_packet(packet, peer=PEER, receiver=RECEIVER, clock=clock), ports)
        assert reply[0] == PacketType.FULFILL
    spent = time.perf_counter() - start
    assert sum(store.load(created.answer.id).received.value for created in CREATED) == PACKETS * AMOUNT
    return spent / len(packets)


def decide(packets: Sequence[bytes]) -> float:
    """Return the seconds of one packet without driver and store."""
    payments = {created.answer.id: created.answer for created in CREATED}
    start = time.perf_counter()
    for packet in packets:
        arrival = open_packet(packet, peer=PEER, receiver=RECEIVER, nonce=os.urandom(12), now=NOW)
        assert isinstance(arrival, Arrival)
        decide = arrival.decide(arrival.credit_id, clock, arrival.approved_by(Approver.NO_PORT))
        decided = decide(payments[arrival.payment_id], None)
        payments[arrival.payment_id] = decided.answer
        assert encode(arrival.fulfilled(decided.answer, NOW))[0] == PacketType.FULFILL
    return (time.perf_counter() - start) / len(packets)


def measure(turns: int) -> tuple[dict[str, float], str | None]:
    """Return the seconds of one packet for each side, and the reason if Node is missing."""
    made = packets()
    actions: dict[str, Callable[[], float]] = {"decided": lambda: decide(made), "credited": lambda: receive(made)}
    with node(Path(__file__).with_name("_receive.mjs"), PACKAGES) as other:
        if not isinstance(other, str):
            answer = other({"payments": PAYMENTS, "packets": PACKETS, "amount": AMOUNT})
            assert answer == {"made": PACKETS}
            actions["Node"] = lambda: float(other({"turn": True})["seconds"])
        times = dict.fromkeys(actions, float("inf"))
        for _ in range(turns):
            for name, action in actions.items():
                times[name] = min(times[name], action())
    return times, other if isinstance(other, str) else None


def measure_node(options: argparse.Namespace) -> dict[str, object]:
    """Measure the part `node`."""
    times, missing = measure(options.turns)
    rows = [[name, f"{seconds * 1e6:.1f}", f"{1 / seconds:,.0f}"] for name, seconds in times.items()]
    table(f"{PACKETS} packets into {PAYMENTS} payments, bytes to bytes", ["", "us", "per second"], rows)
    if missing:
        print(f"\npackets_vs_node is missing: {missing}")
    theirs = times.get("Node")
    return {
        "packets_vs_node": theirs and round(theirs / times["decided"], 3),
        "booked_vs_node": theirs and round(theirs / times["credited"], 3),
        **{f"us {name}": round(seconds * 1e6, 2) for name, seconds in times.items()},
    }


def measure_durable(_options: argparse.Namespace) -> dict[str, object]:
    """Measure the part `durable`."""
    with tempfile.TemporaryDirectory() as folder:
        rates = asyncio.run(_durable.measure(Path(folder), DURABLE_TURNS))
    rows = [[name, f"{1e6 / rate:.1f}", f"{rate:,.0f}"] for name, rate in _durable.medians(rates).items()]
    table("Durable, on SQLite", ["in flight, or to a commit", "us", "per second"], rows)
    return _durable.figures_of(rates)


def measure_http(options: argparse.Namespace) -> dict[str, object]:
    """Measure the part `http`."""
    with tempfile.TemporaryDirectory() as folder:
        measured = over_http.measure(Path(folder), options.http_packets)
    over_http.show(measured)
    return over_http.figures_of(measured)


def measure_flat(options: argparse.Namespace) -> dict[str, object]:
    """Measure the part `flat`."""
    with tempfile.TemporaryDirectory() as folder:
        spent, memory = _flat.measure(Path(folder), options.credits)
    rows = [
        [f"{size:,}", *(f"{median:.1f}" for median in _flat.medians(kinds)), f"{memory[size]:.1f}"]
        for size, kinds in spent.items()
    ]
    table("us of a durable credit", ["credits in the file", *_flat.NAMES, "memory in MB"], rows)
    return _flat.figures_of(spent, memory)


# In this order, because a disk is slow for some time after many writes.
PARTS: Final = {"node": measure_node, "http": measure_http, "durable": measure_durable, "flat": measure_flat}
WANTED: Final = {
    "packets_vs_node": ">= 2",
    "durable_1_vs_raw": ">= 0.4",
    "durable_64_vs_raw": ">= 0.4",
    "flatness": "<= 1.3",
    "vs_rafiki_16": ">= 50",
}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure the cost of receiving money by ILP packets.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts to run (all)")
    parser.add_argument("--turns", type=int, default=8, help="the number of turns of each side (8)")
    parser.add_argument(
        "--credits", type=int, default=10**7, help="the number of credits in the largest file (10000000)"
    )
    parser.add_argument(
        "--http-packets", type=int, default=3000, help="the number of packets for each row over HTTP (3000)"
    )
    options = parser.parse_args()
    figures: dict[str, object] = {}
    for part in options.only:
        figures |= PARTS[part](options)
    rows = [[name, str(figures[name]), wanted] for name, wanted in WANTED.items() if name in figures]
    table("Wanted", ["", "figure", "wanted"], rows)
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()
