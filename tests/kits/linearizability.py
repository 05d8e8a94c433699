"""Check whether a history of concurrent operations on one object is linearizable.

A history is linearizable if each operation can be given one moment between its call and its return, such that a
sequential object, called at these moments, gives the same answers (Herlihy and Wing, "Linearizability", 1990).

The search is the algorithm of Wing and Gong ("Testing and verifying concurrent objects", 1993). It puts the operations
in order, one after the other, and goes back when an answer does not fit. It remembers the visited pairs of placed
operations and state, as Lowe proposed ("Testing for linearizability", 2017), and as Porcupine and Knossos do.

An operation without an answer may have happened at any moment after its call, or never. The search places it only where
it changes the state. An operation with an answer is placed at once where its answer fits and the state stays the same.
The two laws of a `Model` make this complete.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import frozen

S = TypeVar("S", bound=Hashable)

STATES_MAX: Final = 200_000  # visited states of one history, some seconds; a correct history has few for each operation


@frozen
class Operation:
    """A call of `client`. The times are of one clock.

    `returned` is `None` if the outcome is unknown. `answer` has no meaning then.
    """

    client: str
    action: Any
    invoked: float
    returned: float | None = None
    answer: Any = None


class Model(Protocol[S]):
    """A sequential object, with two laws.

    An action that has changed the state never changes it again. An action that gives an answer without a change of the
    state never changes it in a later state where it gives the same answer.
    """

    @property
    def initial(self) -> S:
        """The state before all operations."""

    def apply(self, state: S, action: Any) -> tuple[S, Any] | None:
        """Return the state after `action`, and the answer. Return the same object if the state does not change.

        `None` says that no history with the known answers goes on with this action.
        """

    def is_hopeless(self, state: S, operation: Operation) -> bool:
        """Return whether neither this state, nor any later one, can give the answer of `operation`.

        The search is complete if this is always false, and faster if this is true where it can be.
        """


class Undecided(Exception):
    """The search visited too many states. Check a shorter history, or one with fewer unknown outcomes."""


@frozen
class Violation(Generic[S]):
    """The place where the search could place no further operation: the longest order that it has found.

    At least one of `stuck` has a wrong answer, or an operation of `order` has one.
    """

    order: Sequence[Operation]
    state: S
    stuck: Sequence[Operation]

    def __str__(self) -> str:
        """Describe the last operations and those that do not fit."""
        lines = [f"no order explains the answers; after {len(self.order)} operations the state is {self.state}"]
        lines += [f"  before: {_text(operation)}" for operation in self.order[-5:]]
        lines += [f"  does not fit: {_text(operation)}" for operation in self.stuck]
        return "\n".join(lines)


def find_violation(model: Model[S], history: Sequence[Operation]) -> Violation[S] | None:
    """Return `None` if `history` is linearizable, else the place where the search got stuck. Raises `Undecided`."""
    search = _Search(model, history)
    everything = (1 << len(search.known)) - 1
    stack: list[tuple[int, S, _Path]] = [(0, model.initial, None)]
    seen: set[tuple[int, S]] = {(0, model.initial)}
    longest: tuple[int, S, _Path] = stack[0]
    while stack:
        done, state, path = stack.pop()
        if done == everything:
            return None
        if done.bit_count() > longest[0].bit_count():
            longest = done, state, path
        for step in search.steps(done, state):
            if step[:2] not in seen:
                seen.add(step[:2])
                stack.append((*step[:2], (step[2], path)))
        if len(seen) > STATES_MAX:
            raise Undecided(f"{len(seen)} states of a history of {len(history)} operations")
    done, state, path = longest
    stuck = [search.known[index] for index in search.frontier(done)[0]]
    return Violation(_operations(path), state, stuck)


_Path = tuple[Operation, "_Path"] | None  # the last placed operation, and those before it


class _Search(Generic[S]):
    """The operations of a history. A bit mask tells which operations with an answer are placed."""

    def __init__(self, model: Model[S], history: Sequence[Operation]) -> None:
        self._model = model
        in_order = sorted(history, key=lambda operation: operation.invoked)
        self.known = [operation for operation in in_order if operation.returned is not None]
        self._unknown = [operation for operation in in_order if operation.returned is None]

    def frontier(self, done: int) -> tuple[list[int], float]:
        """Return the operations that may come next, and the moment before which the next operation happens.

        An operation may come next if no other one returned before its call.
        """
        found, first_return = [], float("inf")
        index = (~done & (done + 1)).bit_length() - 1  # the first operation that is not placed
        while index < len(self.known) and self.known[index].invoked <= first_return:
            if not done >> index & 1:
                returned = self.known[index].returned
                assert returned is not None
                found.append(index)
                first_return = min(first_return, returned)
            index += 1
        return found, first_return

    def steps(self, done: int, state: S) -> Iterator[tuple[int, S, Operation]]:
        """Yield what may follow: the mask and the state afterwards, and the placed operation.

        The operations with an answer come last, so that the search tries them first.
        """
        candidates, first_return = self.frontier(done)
        if any(self._model.is_hopeless(state, self.known[index]) for index in candidates):
            return
        fitting = []
        for index in candidates:
            operation = self.known[index]
            applied = self._model.apply(state, operation.action)
            if applied is not None and applied[1] == operation.answer:
                fitting.append((done | 1 << index, applied[0], operation))
                if applied[0] is state:
                    yield fitting[-1]
                    return
        for operation in self._unknown:
            if operation.invoked > first_return:
                break
            applied = self._model.apply(state, operation.action)
            if applied is not None and applied[0] is not state:
                yield done, applied[0], operation
        yield from reversed(fitting)


def _operations(path: _Path) -> list[Operation]:
    found = []
    while path is not None:
        operation, path = path
        found.append(operation)
    return found[::-1]


def _text(operation: Operation) -> str:
    end = "unknown" if operation.returned is None else f"{operation.answer} at {operation.returned}"
    return f"{operation.client}: {operation.action} at {operation.invoked} -> {end}"
