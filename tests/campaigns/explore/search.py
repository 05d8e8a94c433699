"""The search through all states of a scenario, breadth first, so that a failure has the shortest path."""

import itertools
import time
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

from attrs import define, field, frozen

from campaigns.explore.rules import check, check_end
from campaigns.explore.world import Broken, State, World


@frozen
class Failure:
    """The promise that is broken after `path`, the shortest one that breaks a promise."""

    path: tuple[str, ...]
    text: str


@frozen(kw_only=True)
class Report:
    """The result of a search: the numbers of distinct states, steps between them, ends, and schedules."""

    scenario: str
    states: int
    steps: int
    ends: int
    schedules: int
    longest: int
    seconds: float
    answers: frozenset[str]  # each answer that a client has got, with the name of its request
    failure: Failure | None = None


@define
class _Keys:
    """The identity of states. Each part of a state gets a number, and equal parts get the same number."""

    _numbers: dict[object, int] = field(factory=dict)

    def of(self, state: State, *, is_symmetric: bool) -> bytes:
        rows = sorted(self._number((key, _hashable(row))) for key, row in state.rows.items())
        calls = [self._number(call and call.place) for call in state.calls]
        others = (state.crashes, state.failures, state.moment)
        parts = [state.sent, state.answers, others, state.handled, state.settled, state.rulings]
        if is_symmetric:
            calls.sort()
        return array("L", [*calls, *map(self._number, parts), *rows]).tobytes()

    def _number(self, part: object) -> int:
        return self._numbers.setdefault(part, len(self._numbers))


def _hashable(row: object) -> object:
    return tuple(sorted(row.items())) if isinstance(row, dict) else row


class Search:
    """The states of one `World` that were found, and how each was reached first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._keys = _Keys()
        self._found: dict[bytes, int] = {}
        self._reached: list[tuple[int, str]] = []
        self._depths = array("L")
        self._following: list[array[int]] = []
        self._ends = 0
        self._answers: set[str] = set()

    def run(self) -> Report:
        """Visit all states, and stop at the first broken promise."""
        begun = time.monotonic()
        failure = self._visit()
        return Report(
            scenario=self._world.setup.name,
            states=len(self._reached),
            steps=sum(map(len, self._following)),
            ends=self._ends,
            schedules=0 if failure else self._schedules(),
            longest=max(self._depths),
            answers=frozenset(self._answers),
            seconds=time.monotonic() - begun,
            failure=failure,
        )

    def _visit(self) -> Failure | None:
        world = self._world
        first = world.initial()
        self._add(first, -1, "")
        waiting = deque([(0, first)])
        while waiting:
            number, state = waiting.popleft()
            choices = world.choices(state)
            if not choices:
                self._ends += 1
                if text := broken_at_end(world, state):
                    return Failure(self._path(number), text)
            for choice in choices:
                try:
                    following = world.follow(state, choice)
                    check(world, state, following)
                except Broken as broken:
                    return Failure((*self._path(number), choice), str(broken))
                other, is_new = self._add(following, number, choice)
                self._following[number].append(other)
                if is_new:
                    self._note(following)
                    waiting.append((other, following))
        return None

    def _add(self, state: State, before: int, choice: str) -> tuple[int, bool]:
        """Return the number of `state`, and whether the state is new."""
        key = self._keys.of(state, is_symmetric=self._world.is_symmetric)
        number = self._found.setdefault(key, len(self._reached))
        is_new = number == len(self._reached)
        if is_new:
            self._reached.append((before, choice))
            self._depths.append(0 if before < 0 else self._depths[before] + 1)
            self._following.append(array("L"))
        return number, is_new

    def _note(self, state: State) -> None:
        for request, answers in zip(self._world.setup.requests, state.answers, strict=True):
            self._answers.update(f"{request.name}: {answer.text}" for answer in answers)

    def _path(self, number: int) -> tuple[str, ...]:
        path: list[str] = []
        while number:
            number, choice = self._reached[number]
            path.append(choice)
        return tuple(reversed(path))

    def _schedules(self) -> int:
        """Return the number of different paths from the first state to an end. Each choice uses up something."""
        arriving = [0] * len(self._following)
        for following in self._following:
            for other in following:
                arriving[other] += 1
        paths = [1] + [0] * (len(arriving) - 1)
        ready, total = [0], 0
        while ready:
            number = ready.pop()
            if not self._following[number]:
                total += paths[number]
            for other in self._following[number]:
                paths[other] += paths[number]
                arriving[other] -= 1
                if not arriving[other]:
                    ready.append(other)
        return total


def broken_at_end(world: World, state: State) -> str:
    """Return the promise that is broken when every client repeats its request after the end, or an empty text."""
    states = world.finish(state)
    try:
        for before, after in itertools.pairwise(states):
            check(world, before, after)
        check_end(world.setup, states[-1])
    except Broken as broken:
        return f"at the end, {broken}"
    return ""


def replay(world: World, path: Sequence[str]) -> Any:
    """Yield each choice of `path` with the state before and after it. Raise `Broken` at a broken promise."""
    state = world.initial()
    for choice in path:
        if choice not in world.choices(state):
            raise Broken(f"{choice} is not possible here; possible are {', '.join(world.choices(state))}")
        following = world.follow(state, choice)
        yield choice, state, following
        check(world, state, following)
        state = following
    if not world.choices(state) and (text := broken_at_end(world, state)):
        raise Broken(text)
