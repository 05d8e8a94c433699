"""Processor time of a call, and inputs that repeat one piece."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from attrs import frozen

SIZES: Final = (8, 4, 2, 1)  # the sizes of one input are its limit divided by these
NUMBER: Final = b"<nnnn>"  # in a piece, it stands for another number in each repetition
GROWTH_MAX: Final = 20.0  # the time at the limit, relative to an eighth: 8 for linear time, and 64 for quadratic time


@frozen
class Reader:
    """A part that reads bytes from outside. `read` returns also when the part refuses its input.

    Inputs have at most `bytes_max` bytes. They repeat one piece, made from the `words`, between the two ends of one of
    the `frames`.
    """

    name: str
    read: Callable[[bytes], object]
    words: Sequence[bytes]
    bytes_max: int
    frames: Sequence[tuple[bytes, bytes]] = ((b"", b""),)


@frozen
class Growth:
    """The processor times of one reader for one repeated piece, by growing size."""

    frame: tuple[bytes, bytes]
    piece: bytes
    seconds: tuple[float, ...]

    @property
    def factor(self) -> float:
        """The time for the longest input, relative to the time for the shortest."""
        return self.seconds[-1] / self.seconds[0]


def processor_s(call: Callable[[bytes], object], inputs: Sequence[bytes]) -> float:
    """Return the least processor time for one of `inputs`, which differ so that no cache knows them.

    All threads count, because some readers work in a thread of their own.
    """
    least = float("inf")
    for given in inputs:
        begin_s = time.process_time()
        call(given)
        least = min(least, time.process_time() - begin_s)
    return least


@contextmanager
def untraced() -> Iterator[None]:
    """Pause the measurement of coverage in this thread, because it slows code in Python, but not code in C."""
    trace = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(trace)


def repeated(frame: tuple[bytes, bytes], piece: bytes, size: int, fewer: int = 0) -> bytes:
    """Return `piece` repeated between the ends of `frame`, in at most `size` bytes, or some pieces `fewer`."""
    before, after = frame
    count = (size - len(before) - len(after)) // len(piece) - fewer
    if NUMBER not in piece:
        return before + piece * count + after
    return before + b"".join([piece.replace(NUMBER, b"%06d" % number) for number in range(count)]) + after


def growth(reader: Reader, frame: tuple[bytes, bytes], piece: bytes, repeats: int) -> Growth:
    """Measure `reader` at each of the sizes."""
    seconds = []
    for share in SIZES:
        inputs = [repeated(frame, piece, reader.bytes_max // share, number) for number in range(repeats)]
        seconds.append(processor_s(reader.read, inputs))
    return Growth(frame, piece, tuple(seconds))


def worst_growth(reader: Reader, pieces: Sequence[bytes], repeats: int) -> Growth:
    """Return the greatest growth over all frames and `pieces`. Measure a great one again, with more repeats."""
    found = [growth(reader, frame, piece, repeats) for frame in reader.frames for piece in pieces]
    worst = max(found, key=lambda one: one.factor)
    if worst.factor > GROWTH_MAX / 2:
        again = growth(reader, worst.frame, worst.piece, 5 * repeats)
        worst = min(worst, again, key=lambda one: one.factor)
    return worst
