"""Helpers of the benchmarks: measure a rate, and print a table for readers or JSON for programs."""

import json
import time
from collections.abc import Callable, Mapping, Sequence


def rate(action: Callable[[], object], *, seconds: float, count: int = 1) -> float:
    """Return the rate of `action` a second; each run counts as `count`.

    The rate is the best of three, because other work on the machine can only slow the action down.
    """
    action()
    best = 0.0
    for _ in range(3):
        done = 0
        start = time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds / 3:
            action()
            done += count
        best = max(best, done / spent)
    return best


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with the first column aligned to the left, and the others to the right."""
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    print(f"\n{title}\n")
    for row in [head, ["-" * width for width in widths], *rows]:
        cells = [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells))


def finish(figures: Mapping[str, object], *, as_json: bool) -> None:
    """Print the figures as one JSON object on the last line if `as_json` is set."""
    if as_json:
        print(json.dumps(figures))
