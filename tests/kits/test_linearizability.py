"""The checker of histories accepts every linearizable history, and finds the ones that are not."""

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from kits import linearizability
from kits.linearizability import Operation, Undecided
from kits.payment_model import (
    COMPLETED,
    NOT_FOUND,
    REUSED,
    Action,
    Complete,
    Create,
    Credit,
    Get,
    Packet,
    PaymentModel,
    State,
    View,
    find_payment_violation,
)

ACTIONS: Final = st.one_of(
    st.builds(Create, st.sampled_from("pq"), st.sampled_from([None, 12])),
    st.builds(Credit, st.sampled_from("pq"), st.sampled_from("abcd"), st.integers(1, 5)),
    st.builds(Packet, st.sampled_from("pq"), st.sampled_from("abcd"), st.integers(1, 5), st.just(1)),
    st.builds(Complete, st.sampled_from("pq")),
    st.builds(Get, st.sampled_from("pq")),
)
ANSWERS: Final = st.one_of(
    st.sampled_from(["p", "q", NOT_FOUND, COMPLETED, REUSED]),
    st.integers(1, 8),
    st.builds(View, st.integers(0, 8), st.booleans()),
)


def apply(state: State, action: Action) -> tuple[State, Any]:
    """Return the state of a sequential payment after `action`, and the answer."""
    applied = PaymentModel().apply(state, action)
    assert applied is not None
    return applied


def run(actions: Sequence[Action]) -> list[Operation]:
    """Return the history of a sequential run. Operation n happens at the moment 10 * n."""
    state, history = State(), []
    for number, action in enumerate(actions):
        state, answer = apply(state, action)
        history.append(Operation(f"client-{number}", action, 10 * number, 10 * number, answer))
    return history


def history_of(*rows: tuple[Action, float, float | None, Any]) -> list[Operation]:
    """Return a history on a payment `p` that exists. Each row has an action, two times and an answer."""
    created = Operation("creator", Create("p"), 0, 0, "p")
    return [created, *(Operation(f"client-{number}", *row) for number, row in enumerate(rows))]


def credit(id: str, amount: int = 5) -> Credit:
    """Return the action to credit the payment `p`."""
    return Credit("p", id, amount)


def is_linearizable(history: Sequence[Operation]) -> bool:
    """Return the same as the checker, by trying each order of each choice of operations."""
    known = [operation for operation in history if operation.returned is not None]
    unknown = [operation for operation in history if operation.returned is None]
    return any(
        _explains(order)
        for count in range(len(unknown) + 1)
        for happened in itertools.combinations(unknown, count)
        for order in itertools.permutations([*known, *happened])
    )


def _explains(order: Sequence[Operation]) -> bool:
    for first, second in itertools.combinations(order, 2):
        if second.returned is not None and second.returned < first.invoked:
            return False
    state = State()
    for operation in order:
        state, answer = apply(state, operation.action)
        if operation.returned is not None and answer != operation.answer:
            return False
    return True


@given(st.lists(ACTIONS, max_size=40), st.data())
def test_overlapping_and_unknown_outcomes_of_a_sequential_run_are_accepted(
    actions: Sequence[Action], data: st.DataObject
) -> None:
    delays = st.integers(0, 60)
    history = []
    for operation in run(actions):
        moment = operation.invoked
        known = evolve(operation, invoked=moment - data.draw(delays), returned=moment + data.draw(delays))
        history.append(data.draw(st.sampled_from([known, known, known, evolve(known, returned=None, answer=None)])))
        if data.draw(st.booleans()):  # an operation that never happens
            history.append(Operation("lost", data.draw(ACTIONS), moment))

    assert find_payment_violation(history) is None


@settings(max_examples=300)
@given(st.data())
def test_the_checker_agrees_with_the_definition(data: st.DataObject) -> None:
    actions = data.draw(st.lists(ACTIONS, min_size=1, max_size=5))
    history = []
    for operation in run(actions):
        invoked = int(operation.invoked) - data.draw(st.integers(0, 25))
        returned = data.draw(st.one_of(st.none(), st.integers(invoked, invoked + 40)))
        answer = data.draw(st.one_of(st.just(operation.answer), ANSWERS))
        history.append(evolve(operation, invoked=invoked, returned=returned, answer=answer))

    assert (find_payment_violation(history) is None) == is_linearizable(history)


VIOLATIONS: Final = {
    "lost credit": history_of((credit("a"), 1, 2, 5), (Get("p"), 3, 4, View(0, is_completed=False))),
    "lost first credit": history_of((credit("a"), 1, 2, 5), (credit("b"), 3, 4, 5)),
    "doubled credit": history_of((credit("a"), 1, 2, 5), (Get("p"), 3, 4, View(10, is_completed=False))),
    "credit doubled by its repetition": history_of((credit("a"), 1, None, None), (credit("a"), 3, 4, 10)),
    "another answer to the repetition": history_of(
        (credit("a"), 1, 2, 5), (credit("b"), 3, 4, 10), (credit("a"), 5, 6, 10)
    ),
    "stale read after an acknowledged credit": history_of(
        (credit("a"), 1, 2, 5), (credit("b"), 3, 4, 10), (Get("p"), 5, 6, View(5, is_completed=False))
    ),
    "credit that vanished after it was acknowledged": history_of(
        (credit("a"), 1, 2, 5),
        (Get("p"), 3, 4, View(5, is_completed=False)),
        (Get("p"), 5, 6, View(0, is_completed=False)),
        (credit("a"), 7, 8, 5),
    ),
    "get that goes back": history_of(
        (credit("a"), 1, None, None),
        (Get("p"), 3, 4, View(5, is_completed=False)),
        (Get("p"), 5, 6, View(0, is_completed=False)),
    ),
    "payment that vanished": history_of((Get("p"), 3, 4, NOT_FOUND)),
    "second payment under the key": history_of((Create("q"), 3, 4, "q")),
    "old total in the answer to a packet": history_of(
        (Packet("p", "a", 5, 1), 1, 2, 5), (credit("b"), 3, 4, 10), (Packet("p", "a", 5, 1), 5, 6, 5)
    ),
    "two credits that both come first": history_of((credit("a"), 1, 9, 5), (credit("b"), 1, 9, 5)),
    "credit after the completion": history_of(
        (Complete("p"), 1, 2, View(0, is_completed=True)), (credit("a"), 3, 4, 5)
    ),
    "completion that vanished": history_of(
        (Complete("p"), 1, 2, View(0, is_completed=True)), (Get("p"), 3, 4, View(0, is_completed=False))
    ),
    "refusal as if the payment were completed": history_of((credit("a"), 1, 2, COMPLETED)),
    "reused credit id that is accepted": history_of((credit("a"), 1, 2, 5), (credit("a", 6), 3, 4, 5)),
    "credit that was never sent": history_of((Get("p"), 1, 2, View(5, is_completed=False))),
    "unknown credit that happened before its call": history_of(
        (Get("p"), 1, 2, View(5, is_completed=False)), (credit("a"), 3, None, None)
    ),
}


@pytest.mark.parametrize("history", VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_history_that_is_not_linearizable_is_found(history: Sequence[Operation]) -> None:
    assert find_payment_violation(history) is not None
    assert not is_linearizable(history)


ALLOWED: Final = {
    "an unknown credit happens later": history_of(
        (credit("a"), 1, None, None),
        (Get("p"), 3, 4, View(0, is_completed=False)),
        (Get("p"), 5, 6, View(5, is_completed=False)),
    ),
    "an unknown credit and its repetition": history_of((credit("a"), 1, None, None), (credit("a"), 3, 4, 5)),
    "an unknown credit happens after its repetition was sent": history_of(
        (credit("a"), 1, None, None), (credit("b"), 2, 3, 5), (credit("a"), 4, 5, 10)
    ),
    "a read during a credit sees the old total": history_of(
        (credit("a"), 1, 9, 5), (Get("p"), 3, 4, View(0, is_completed=False))
    ),
    "an unknown completion refuses a credit": history_of(
        (Complete("p"), 1, None, None), (credit("a"), 3, 4, COMPLETED)
    ),
}


@pytest.mark.parametrize("history", ALLOWED.values(), ids=ALLOWED)
def test_an_unknown_or_overlapping_operation_may_happen_at_each_moment(history: Sequence[Operation]) -> None:
    assert find_payment_violation(history) is None


def busy_history(clients: int, credits: int) -> list[Operation]:
    """Return a linearizable history of `clients` with long overlaps, and repetitions of unknown outcomes."""
    rng = random.Random(1)
    actions: list[Action] = [Create("p")]
    for number in range(credits):
        actions += [Credit("p", f"c{number}", rng.randint(1, 10**6)), Get("p")]
    history = []
    for operation in run(actions):
        moment, window = operation.invoked, 10 * clients / 2
        known = evolve(operation, invoked=moment - rng.uniform(0, window), returned=moment + rng.uniform(0, window))
        is_lost = rng.random() < 0.2
        history.append(evolve(known, returned=None) if is_lost else known)
        if is_lost and isinstance(known.action, Credit):  # it is repeated, and acknowledged with the same total
            repeated = known.invoked + rng.uniform(0, window)
            history.append(evolve(known, invoked=repeated, returned=moment + window + 1))
        if rng.random() < 0.05:  # a worker dies with a call that never happens
            history.append(Operation("dead", Credit("p", f"d{moment}", rng.randint(1, 10**6)), moment))
    return history


def test_a_history_of_some_hundred_operations_takes_seconds() -> None:
    history = busy_history(clients=8, credits=200)
    began = time.process_time()

    assert find_payment_violation(history) is None
    assert time.process_time() - began < 20


LAST_GETS: Final[dict[str, Callable[[View], View]]] = {
    "a lost unit": lambda view: evolve(view, total=view.total - 1),
    "an invented unit": lambda view: evolve(view, total=view.total + 1),
}


@pytest.mark.parametrize("change", LAST_GETS.values(), ids=LAST_GETS)
def test_a_wrong_total_is_found_in_a_long_history(change: Callable[[View], View]) -> None:
    history = busy_history(clients=8, credits=100)
    index = max(
        range(len(history)),
        key=lambda index: history[index].invoked if isinstance(history[index].answer, View) else -1,
    )
    last = history[index]
    history[index] = evolve(last, returned=last.invoked + 100, answer=change(last.answer))

    violation = find_payment_violation(history)

    assert violation is not None
    assert last.client in str(violation)


def test_a_violation_names_the_operations_that_do_not_fit() -> None:
    violation = find_payment_violation(VIOLATIONS["lost credit"])

    assert str(violation) == (
        "no order explains the answers; after 2 operations the state is "
        "State(payment='p', limit=None, total=5, is_closed=False, credits=1)\n"
        "  before: creator: Create(payment='p', limit=None) at 0 -> p at 0\n"
        "  before: client-0: Credit(payment='p', id='a', amount=5) at 1 -> 5 at 2\n"
        "  does not fit: client-1: Get(payment='p') at 3 -> View(total=0, is_completed=False) at 4"
    )


def test_a_search_that_would_take_too_long_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linearizability, "STATES_MAX", 10)

    with pytest.raises(Undecided):
        find_payment_violation(busy_history(clients=8, credits=10))
