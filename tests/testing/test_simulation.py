"""The service keeps its promises under the simulation, and the simulation finds stores and receivers that do not."""

import random
import secrets
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import pytest

import broken_flows
import simulation_session
from broken_stores import (
    Amnesiac,
    AnswersBeforeDurable,
    Backwards,
    Caching,
    CommitsHalf,
    Disorderly,
    Eager,
    Forgetful,
    Full,
    Inventive,
    LoadThenSave,
    LosesEvents,
    Overwriting,
    Shared,
    Sweeping,
    ToTheSecond,
)
from incoming_payments.domain.amount import Asset
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import StoreUnavailable
from incoming_payments.ports import Decide
from incoming_payments.stores.guard import check_update
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing._simulated_books import Book, Contradiction
from incoming_payments.testing._simulated_operations import Sweep
from incoming_payments.testing.simulation import KINDS, Flows, Report, SimulationFailed, StoreFactory, simulate
from simulation_session import Outcome, Run

STEPS: Final = 5_000
CAUGHT_WITHIN: Final = 3  # seeds, of so many steps each


def over(store: MemoryStore) -> StoreFactory:
    """The one store, for each process."""
    return lambda: store


# --- promises hold -----------------------------------------------------------------------------------


def test_no_promise_is_broken() -> None:
    """Over several seeds everything that a simulation is there to meet is met, and all books agree."""
    met: Counter[str] = Counter()
    for seed in range(8):
        met.update(simulate(seed, STEPS).met)
    assert set(KINDS) == set(met)


def test_no_promise_is_broken_by_a_fresh_seed() -> None:
    """Each run of the tests tries one that nobody has tried; a failure says which."""
    assert simulate(secrets.randbelow(2**32), STEPS).steps >= STEPS


@pytest.mark.parametrize("store", [SqliteStore, AsyncSqliteStore])
def test_no_promise_is_broken_on_disk(store: type[SqliteStore] | type[AsyncSqliteStore], tmp_path: Path) -> None:
    """The same over a real file, which each process opens for itself, and none that dies closes."""
    assert simulate(1, 1500, store_factory=lambda: store(tmp_path / "payments.db")).met["store took a batch"] > 0


def test_a_seed_is_one_run(tmp_path: Path) -> None:
    """The same seed does the same again, over any store that answers the same."""
    once, again = simulate(5, 1000), simulate(5, 1000)
    on_disk = simulate(5, 1000, store_factory=lambda: SqliteStore(tmp_path / "payments.db"))
    assert once == again == on_disk
    assert once.met == again.met == on_disk.met
    assert once.met != simulate(6, 1000).met


class Flaky(MemoryStore):
    """Has trouble of its own: says no before it does something, or afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self._dice = random.Random(1)

    def _trouble(self) -> None:
        if self._dice.random() < 0.2:
            raise StoreUnavailable("the connection was lost")

    def insert(self, decision: Decision[IncomingPayment]) -> None:
        """As any store, but for the trouble."""
        self._trouble()
        super().insert(decision)
        self._trouble()

    def load(self, id: PaymentId) -> IncomingPayment:
        """As any store, but for the trouble."""
        self._trouble()
        return super().load(id)

    def update(self, id: PaymentId, decide: Decide[Any], credit_id: CreditId | None = None) -> Any:
        """As any store, but for the trouble."""
        self._trouble()
        answer = super().update(id, decide, credit_id)
        self._trouble()
        return answer


def test_a_store_may_have_trouble_of_its_own() -> None:
    """What it says no to may have happened or not; it is looked up, and counts as what it is."""
    for seed in range(3):
        simulate(seed, STEPS, store_factory=over(Flaky()))


class Optimistic(MemoryStore):
    """Decides without a lock, and again when somebody else was faster."""

    def update(self, id: PaymentId, decide: Decide[Any], credit_id: CreditId | None = None) -> Any:
        """As databases do whose transactions may fail to serialise."""
        while True:
            before = self.load(id)
            earlier = None if credit_id is None else self._rows.get((id, credit_id))
            decision = decide(before, earlier)
            after = check_update(before, credit_id, earlier, decision)
            with self._lock:
                if self._payment(id) is before:
                    if after is not None:
                        self._write(after, decision)
                    return decision.answer


def test_a_store_may_decide_again() -> None:
    """Of two updates at once, one is decided on what the other has left."""
    met = sum((Counter(simulate(seed, STEPS, store_factory=over(Optimistic())).met) for seed in range(3)), Counter())
    assert met["store asked for two updates at once"] > 0


def test_a_store_may_not_have_trouble_for_ever() -> None:
    """One that never answers proves nothing."""

    class Down(MemoryStore):
        def load(self, id: PaymentId) -> IncomingPayment:
            raise StoreUnavailable(f"no connection, and nothing of {id}")

    with pytest.raises(SimulationFailed, match="had it 20 times in a row"):
        simulate(1, STEPS, store_factory=over(Down()))


# --- broken promises are found -----------------------------------------------------------------------


def first_failure(run: Callable[[int], Report]) -> SimulationFailed | None:
    """What goes wrong with the first seeds, if anything does."""
    for seed in range(CAUGHT_WITHIN):
        try:
            run(seed)
        except SimulationFailed as failure:
            return failure
    return None


BROKEN_STORES: Final[dict[str, Callable[[], StoreFactory]]] = {
    **{
        store.__name__: lambda store=store: over(store())  # type: ignore[misc]
        for store in (
            Forgetful,
            Disorderly,
            Sweeping,
            Overwriting,
            LoadThenSave,
            CommitsHalf,
            LosesEvents,
            ToTheSecond,
            Eager,
            Inventive,
            Amnesiac,
            Full,
            Backwards,
        )
    },
    "AnswersBeforeDurable": lambda: Shared(AnswersBeforeDurable).open,
    "Caching": lambda: Shared(Caching).open,
}


@pytest.mark.parametrize("name", BROKEN_STORES)
def test_a_broken_store_is_caught(name: str) -> None:
    """Within fifteen thousand steps, mostly within one."""
    assert first_failure(lambda seed: simulate(seed, STEPS, store_factory=BROKEN_STORES[name]())) is not None


@pytest.mark.parametrize("name", broken_flows.RECEIVERS)
def test_a_broken_receiver_is_caught(name: str) -> None:
    """Within fifteen thousand steps, mostly within one."""
    flows = Flows(receive_packet=broken_flows.RECEIVERS[name])
    assert first_failure(lambda seed: simulate(seed, STEPS, flows=flows)) is not None


def test_a_flow_without_expiry_is_caught() -> None:
    """Money that the host books is refused after the expiry, too."""
    flows = Flows(receive=broken_flows.receive_without_expiry)
    assert first_failure(lambda seed: simulate(seed, STEPS, flows=flows)) is not None


OTHER_FLOWS: Final[dict[str, tuple[Flows, str]]] = {
    "books what it likes": (
        Flows(get_payment=broken_flows.get_that_completes),
        "nothing: get(",
    ),
    "tells another amount": (Flows(receive=broken_flows.receive_that_doubles), "arrived by the host's"),
    "has a bug": (Flows(get_public_payment=broken_flows.get_with_a_bug), "ZeroDivisionError was raised"),
}


@pytest.mark.parametrize("name", OTHER_FLOWS)
def test_another_broken_flow_is_caught(name: str) -> None:
    """And told in words that fit."""
    flows, says = OTHER_FLOWS[name]
    failure = first_failure(lambda seed: simulate(seed, 1000, flows=flows))
    assert failure is not None
    assert says in str(failure)


def test_the_books_take_no_credit_id_twice() -> None:
    """Nor a credit without one; and what was booked is compared whole."""
    at = NOW
    book = Book(a_creation().answer.id, Asset("USD", 2), None, None, at, at)
    first, second = (book.judge_credit(name, 5, book.asset, at) for name in ("a", "b"))
    assert first.write is not None
    assert second.write is not None
    first.write("wire-1")
    for taken in (None, "wire-1"):
        with pytest.raises(Contradiction, match="under the credit id"):
            second.write(taken)
    with pytest.raises(Contradiction, match="the credit has to be"):
        book.compare_credit("a", None)


def test_operations_tell_what_they_are() -> None:
    """The trace is read by people."""
    assert str(Sweep(3)) == "announce_expired(limit=3)"


def test_a_failure_says_how_to_see_it_again() -> None:
    """The text names the seed and the step, ends with what led to it, and comes again to the letter."""
    failures = [first_failure(lambda seed: simulate(seed, STEPS, store_factory=over(Forgetful()))) for _ in range(2)]
    first, again = failures
    assert first is not None
    assert str(first) == str(again)
    assert f"in step {first.step} of simulate({first.seed}, ...)" in str(first)
    assert 0 < len(first.trace) <= 40
    assert first.trace[-1].startswith(f"{first.step}: ")


# --- the session -------------------------------------------------------------------------------------


def session(*arguments: str) -> tuple[int, str]:
    """The exit status of the session, and what it says."""
    said: list[str] = []
    return simulation_session.main(arguments, said.append), "\n".join(said)


def test_the_session_plays_many_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over each store; it says how often each kind happened, and how many steps there were."""
    kinds = ("created", "packet answered fulfilled")
    monkeypatch.setattr(simulation_session, "KINDS", kinds)
    monkeypatch.setattr(simulation_session, "SQLITE_STEPS", 1)
    monkeypatch.setattr(simulation_session, "RUN_STEPS", 300)
    status, said = session("--steps", "600", "--first", "1")
    lines = [line.split("  ")[-1].strip() for line in said.splitlines()]
    assert (status, lines[:2]) == (0, list(kinds))
    assert lines[2:5] == ["steps over memory", "steps over sqlite", "steps over async-sqlite"]
    assert lines[5].startswith("seconds for 4 seeds from 1 on, ")


def test_the_session_fails_when_something_was_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation that never meets what it is there for proves nothing."""
    monkeypatch.setattr(simulation_session, "KINDS", ("created", "a meteor"))
    monkeypatch.setattr(simulation_session, "RUN_STEPS", 300)
    status, said = session("--store", "memory", "--steps", "1", "--first", "1")
    assert (status, said.splitlines()[-1]) == (1, "never happened, and so was not tried: a meteor")


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_session_repeats_a_seed(store: str) -> None:
    """That is the command which a failure prints."""
    run = Run(store, 3, 100)
    assert run.command == f"nox -s simulate -- --store {store} --seed 3 --steps 100"
    status, said = session(*run.command.split(" -- ")[1].split())
    assert (status, said.partition(" ")[2]) == (0, "steps of seed 3 broke nothing")


def test_the_session_prints_what_repeats_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """And fails."""
    monkeypatch.setattr(simulation_session, "ProcessPoolExecutor", _Here)
    monkeypatch.setattr(simulation_session, "perform", lambda run: Outcome(run, 7, {}, "the books disagree"))
    status, said = session("--store", "memory", "--first", "9")
    repeat = "nox -s simulate -- --store memory --seed 9 --steps 5000"
    assert (status, said) == (1, f"the books disagree\n\nto see it again: {repeat}")


class _Here:
    """A pool without processes."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Run], Outcome], runs: list[Run], chunksize: int) -> list[Outcome]:
        """One after the other."""
        assert chunksize > 0
        return [function(run) for run in runs]

    def shutdown(self, **_: object) -> None:
        """Nothing is to be ended."""
