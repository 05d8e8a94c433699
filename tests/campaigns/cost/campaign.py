"""Measure the processor time of hostile inputs: relative to a harmless body, and as inputs grow. Run by `nox -s cost`.

Compare ratios within one run, and not seconds: each figure is the least of several repeats of the same thread.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from campaigns.cost.bodies import (
    BODIES_MAX,
    COST_MAX,
    FRAMES,
    HEAD_BYTES,
    HEAD_NAMES,
    HEAD_WORDS,
    HOSTILE_WORDS,
    generated,
    harmless,
    refused_create,
    refused_list,
)
from campaigns.cost.measure import GROWTH_MAX, Reader, processor_s, repeated, worst_growth
from campaigns.cost.readers import READERS, fetched_documents

_PIECE_CHARS_SHOWN: Final = 44


def pieces_of(reader: Reader, seed: int, count: int) -> list[bytes]:
    """Return each word of `reader` and `count` pieces of two to four words, if they fit eight times into an input."""
    chosen = random.Random(seed)
    some = [b"".join(chosen.choices(reader.words, k=chosen.randint(2, 4))) for _ in range(count)]
    return [piece for piece in [*reader.words, *some] if len(piece) * 64 <= reader.bytes_max]


def costs_of(call: Callable[[bytes], object], bodies: Sequence[bytes], repeats: int) -> list[tuple[float, bytes]]:
    """Return the cost of each body relative to a harmless one, the highest cost first. Measure high costs again."""
    base_s = processor_s(call, [harmless()] * 5 * repeats)
    costs = sorted(((processor_s(call, [body] * repeats) / base_s, body) for body in bodies), reverse=True)
    return sorted(
        ((_cost_again(call, body, repeats) if cost > COST_MAX / 2 else cost, body) for cost, body in costs),
        reverse=True,
    )


def _cost_again(call: Callable[[bytes], object], body: bytes, repeats: int) -> float:
    """Return the least of three costs, each measured beside a harmless body: a busy machine changes its speed."""
    return min(
        processor_s(call, [body] * 5 * repeats) / processor_s(call, [harmless()] * 5 * repeats) for _ in range(3)
    )


def head_costs(repeats: int) -> list[tuple[float, str, bytes]]:
    """Return the cost of each long header field relative to a harmless body, the highest cost first."""
    base_s = processor_s(refused_create, [harmless()] * 5 * repeats)
    return sorted(
        (
            (
                processor_s(partial(refused_list, name), [repeated((b"", b""), word, HEAD_BYTES)] * repeats) / base_s,
                name,
                word,
            )
            for name in HEAD_NAMES
            for word in HEAD_WORDS
        ),
        reverse=True,
    )


def hostile_bodies(seed: int, count: int) -> list[bytes]:
    """Return the known hostile bodies of the limit's size, and `count` generated ones."""
    known = [repeated(frame, word, BODIES_MAX) for frame in FRAMES for word in HOSTILE_WORDS]
    return [*known, *generated(seed, count // 2)]


def main() -> int:
    """Print the most expensive bodies, and the growth of each reader. The status is 1 when one is over its limit."""
    parser = argparse.ArgumentParser(prog="nox -s cost --", description=__doc__)
    parser.add_argument("--bodies", type=int, default=2000, help="generated bodies (2000)")
    parser.add_argument("--pieces", type=int, default=60, help="generated pieces for each reader (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the generated inputs (1)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement; the least counts (3)")
    options = parser.parse_args()
    is_good = True
    bodies = hostile_bodies(options.seed, options.bodies)
    costs = costs_of(refused_create, bodies, options.repeats)
    print(
        f"{len(bodies):,} bodies of {BODIES_MAX:,} bytes from a stranger; a harmless one takes "
        f"{processor_s(refused_create, [harmless()] * 20) * 1000:.2f} ms; the most expensive, relative to it:"
    )
    for cost, body in costs[:5]:
        print(f"  {cost:6.2f}  {body[:_PIECE_CHARS_SHOWN]!r} ... {body[-12:]!r}")
    is_good &= costs[0][0] <= COST_MAX
    print(f"\nheader fields of {HEAD_BYTES:,} bytes, relative to the same body:")
    heads = head_costs(options.repeats)
    for cost, name, word in heads[:5]:
        print(f"  {cost:6.2f}  {name}: {word!r} ...")
    is_good &= heads[0][0] <= COST_MAX
    growths: dict[str, float] = {}
    print(f"\n{'reader':38} {'pieces':>6} {'growth':>7} {'ms':>8}  the piece with the greatest growth")
    with fetched_documents() as fetched:
        for reader in [*READERS, *fetched]:
            pieces = pieces_of(reader, options.seed, options.pieces)
            worst = worst_growth(reader, pieces, options.repeats)
            shown = f"{worst.piece[:_PIECE_CHARS_SHOWN]!r} after {worst.frame[0][-20:]!r}"
            print(
                f"{reader.name:38} {len(pieces):6} {worst.factor:7.1f} {worst.seconds[-1] * 1000:8.2f}  {shown}",
                flush=True,
            )
            growths[reader.name] = worst.factor
    is_good &= max(growths.values()) <= GROWTH_MAX
    print(f"\nthe most expensive of {len(bodies)} bodies: {costs[0][0]:.2f} times a harmless one")
    growth = max(growths.values())
    print(f"the greatest growth of {len(growths)} readers: 8 times the input took {growth:.1f} times as long")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
