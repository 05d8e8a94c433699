"""Measure the rate of an honest peer or client through nginx, attacked and unattacked. Run by `nox -s edge`.

For each attack the peer sends packets for some seconds, unattacked and attacked in turns. During the attack with
unknown tokens a client creates payments instead, because peers have no access tokens. The authorization server then
answers unknown tokens slowly, and the token of the client at once. Compare the ratio of the two rates and not the
rates. The attackers have the last processor of the machine for themselves, because real attackers use other machines.
The peer, the client, nginx, `serve` and the authorization server share the other processors in all turns.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from campaigns.edge.attack import ATTACKS, UNKNOWN_TOKENS
from campaigns.edge.attackers import attacked
from campaigns.edge.honest import connector, create, create_over, kept_connection
from campaigns.edge.proxy import NGINX, Edge, edge, introspecting_edge
from incoming_payments.ilp.packet import Fulfill
from kits.peers import sender_for

IN_FLIGHT: Final = 4


def packets_a_second(edge: Edge, seconds: float) -> float:
    """Return the rate of durably fulfilled packets on some kept connections. Every packet must be fulfilled."""
    payment = create(edge)
    until = time.monotonic() + seconds

    def pay(_: int) -> int:
        sender, count = sender_for(payment), 0
        with connector(edge) as peer:
            while time.monotonic() < until:
                reply = peer.pay(sender, 1).reply
                assert isinstance(reply, Fulfill), reply
                count += 1
        return count

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return sum(pool.map(pay, range(IN_FLIGHT))) / seconds


def creates_a_second(edge: Edge, seconds: float) -> float:
    """Return the rate of created payments on some kept connections. Every request must succeed."""
    until = time.monotonic() + seconds

    def send(_: int) -> int:
        count = 0
        with kept_connection(edge) as connection:
            while time.monotonic() < until:
                create_over(edge, connection)
                count += 1
        return count

    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return sum(pool.map(send, range(IN_FLIGHT))) / seconds


def main() -> int:
    """Print the rates and their ratio for each attack. The exit status is 1 when nginx is missing."""
    parser = argparse.ArgumentParser(prog="nox -s edge --", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (5)")
    parser.add_argument("--turns", type=int, default=3, help="of each attack, with and without (3)")
    options = parser.parse_args()
    if NGINX is None:
        print("nginx is not installed: apt-get install nginx", file=sys.stderr)
        return 1
    processors = sorted(os.sched_getaffinity(0))
    attackers = processors[1:][-1:]  # none on a machine with one processor
    os.sched_setaffinity(0, set(processors) - set(attackers))  # the processes that this one starts inherit it
    ratios: dict[str, float] = {}
    print(f"{'attack':32} {'requests/s alone':>16} {'attacked':>10} {'ratio':>7}")
    with (
        tempfile.TemporaryDirectory() as folder,
        edge(Path(folder, "static")) as static,
        introspecting_edge(Path(folder, "introspecting")) as introspecting,
    ):
        for name in ATTACKS:
            is_for_clients = name == UNKNOWN_TOKENS
            running, rate = (introspecting, creates_a_second) if is_for_clients else (static, packets_a_second)
            rates: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(2 * options.turns):
                is_attacked = turn % 2 == 1
                with attacked(running, name, processors=attackers) if is_attacked else nullcontext():
                    rates[is_attacked].append(rate(running, options.seconds))
            alone, left = (statistics.median(rates[key]) for key in (False, True))
            print(f"{name:32} {alone:16,.0f} {left:10,.0f} {left / alone:7.2f}", flush=True)
            ratios[name] = left / alone
    lowest = min(ratios, key=lambda name: ratios[name])
    print(f"the lowest ratio of {len(ratios)} attacks is {ratios[lowest]:.2f}: {lowest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
