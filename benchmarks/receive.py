"""What it costs to take ILP packets.

`packets_vs_node`: from the bytes of a Prepare to those of its Fulfill, on one core: decoded, decrypted, decided,
credited in a memory store with events, fulfilled and encoded, through the flow and its driver; beside npm
`@interledger/stream-receiver` (`createReply` and `accept`, between the codecs of `ilp-packet`), which keeps no books.
Both take the same STREAM packets, each addressed to itself, in turns in one run; the best turn counts, as other work
on the machine only slows. `decided_vs_node` is the same without driver and store: the pure decisions on a payment at
hand.

    nox -s bench -- receive [--json] [--turns N]
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from _npm import node
from _report import finish, table
from incoming_payments import Asset, DerivedMethods, Peer, Ports, Receiver, receive_packet, run
from incoming_payments.ilp.packet import PacketType, Prepare, encode
from incoming_payments.ilp.receive import Arrival, open_packet
from incoming_payments.ilp.stream import StreamKeys, StreamMoney, StreamPacket, condition_of
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import a_creation

PACKAGES: Final = {"@interledger/stream-receiver": "0.2.2", "ilp-packet": "3.1.3", "ilp-protocol-stream": "2.7.1"}
PAYMENTS: Final = 16
PACKETS: Final = 96  # so few that a turn may pass undisturbed
AMOUNT: Final = 100
NOW: Final = datetime.now(UTC)
METHODS: Final = DerivedMethods("test.bank", [os.urandom(32)])
RECEIVER: Final = Receiver(METHODS)
PEER: Final = Peer("test.bank.connector", Asset("USD", 2))
CREATED: Final = [a_creation(limit=10**12, now=NOW) for _ in range(PAYMENTS)]


def clock() -> datetime:
    """The one moment of the run: to read the real clock is the host's part."""
    return NOW


def packets() -> list[bytes]:
    """Packets as senders make them in the middle of a payment: one frame, for the money."""
    made = []
    senders = [METHODS.derive(created.answer.id) for created in CREATED]
    keys = [StreamKeys(sender.shared_secret) for sender in senders]
    for number in range(PACKETS):
        place, sequence = number % PAYMENTS, number // PAYMENTS + 1
        request = StreamPacket(PacketType.PREPARE, sequence, AMOUNT, [StreamMoney(1, 1)])
        data = keys[place].seal(request, nonce=os.urandom(12))
        condition = condition_of(keys[place].fulfillment(data))
        made.append(encode(Prepare(AMOUNT, NOW + timedelta(hours=1), condition, senders[place].ilp_address, data)))
    return made


def take(packets: Sequence[bytes]) -> float:
    """The seconds of one packet, taken into a store with nothing received."""
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
    """The seconds of one packet without driver and store."""
    payments = {created.answer.id: created.answer for created in CREATED}
    start = time.perf_counter()
    for packet in packets:
        arrival = open_packet(packet, peer=PEER, receiver=RECEIVER, nonce=os.urandom(12), now=NOW)
        assert isinstance(arrival, Arrival)
        decided = arrival.decide(arrival.credit_id, clock)(payments[arrival.payment_id], None)
        payments[arrival.payment_id] = decided.answer
        assert encode(arrival.fulfilled(decided.answer, NOW))[0] == PacketType.FULFILL
    return (time.perf_counter() - start) / len(packets)


def measure(turns: int) -> tuple[dict[str, float], str | None]:
    """The seconds of one packet by each, in turns; and why Node is missing, if it is."""
    made = packets()
    actions: dict[str, Callable[[], float]] = {"received": lambda: take(made), "decided": lambda: decide(made)}
    with node(Path(__file__).with_name("_receive.mjs"), PACKAGES) as other:
        if not isinstance(other, str):
            asked = other({"payments": PAYMENTS, "packets": PACKETS, "amount": AMOUNT})
            assert asked == {"made": PACKETS}
            actions["Node"] = lambda: float(other({"turn": True})["seconds"])
        times = dict.fromkeys(actions, float("inf"))
        for _ in range(turns):
            for name, action in actions.items():
                times[name] = min(times[name], action())
    return times, other if isinstance(other, str) else None


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="what it costs to take ILP packets")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--turns", type=int, default=1000, help="how often each of them takes all packets (1000)")
    options = parser.parse_args()
    times, missing = measure(options.turns)
    rows = [[name, f"{seconds * 1e6:.1f}", f"{1 / seconds:,.0f}"] for name, seconds in times.items()]
    table(f"{PACKETS} packets into {PAYMENTS} payments, bytes to bytes", ["", "us", "per second"], rows)
    theirs = times.get("Node")
    figures = {
        "packets_vs_node": theirs and round(theirs / times["received"], 3),
        "decided_vs_node": theirs and round(theirs / times["decided"], 3),
        **{f"us {name}": round(seconds * 1e6, 2) for name, seconds in times.items()},
    }
    table("Ratios", ["", "figure", "wanted"], [["packets_vs_node", str(figures["packets_vs_node"]), ">= 2"]])
    if missing:
        print(f"\npackets_vs_node is missing: {missing}")
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()
