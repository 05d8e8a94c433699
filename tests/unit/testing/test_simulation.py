"""The library keeps its promises in the simulation, and the simulation detects stores and flows that do not."""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from secrets import randbelow
from typing import Any, Final
from unittest.mock import Mock

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.idempotency import KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import PaymentExists, PaymentNotFound, StoreUnavailable
from incoming_payments.flows.machinery.effects import InsertPayment
from incoming_payments.ports import Decide
from incoming_payments.stores.guard import check_update
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.memory_feed import MemoryFeed
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.simulation import KINDS, Flows, Report, SimulationFailed, StoreFactory, commits, simulate
from incoming_payments.testing.simulation.clients import Create, List
from incoming_payments.testing.simulation.host import Sweep
from incoming_payments.testing.simulation.ledger import Expected, Ledger, Mismatch
from kits import broken_feeds, broken_flows
from kits.broken_stores import (
    AltersEvents,
    AnswersBeforeDurable,
    CachesPayments,
    CommitsPartly,
    Connection,
    DecidesBeforeLoading,
    EventsNewestFirst,
    FindsCompletedPayments,
    FindsLastExpiredFirst,
    ForgetsKeys,
    IgnoresEarlierCredits,
    InventsPayments,
    ListsAllStates,
    LoadsThenSaves,
    LosesKeys,
    LosesPayments,
    OverwritesOnInsert,
    RejectsNewIds,
    SharedStore,
    TruncatesTimes,
)

STEPS: Final = 5_000
SEEDS_MAX: Final = 3  # seeds within which a broken promise must be detected


def over(store: MemoryStore) -> StoreFactory:
    """Return a factory that gives `store` to each process."""
    return lambda: store


# --- promises hold -----------------------------------------------------------------------------------


def test_all_situations_occur_and_no_promise_is_broken() -> None:
    """Ten seeds go through every situation in `KINDS`, and the totals agree."""
    met: Counter[str] = Counter()
    for seed in range(16, 26):
        met.update(simulate(seed, STEPS).met)
    assert set(KINDS) == set(met)


def test_a_random_seed_breaks_no_promise() -> None:
    """Each test run uses a new seed. A failure prints the seed."""
    assert simulate(randbelow(2**32), STEPS).steps >= STEPS


@pytest.mark.parametrize("store", [SqliteStore, AsyncSqliteStore])
def test_no_promise_is_broken_on_disk(store: type[SqliteStore] | type[AsyncSqliteStore], tmp_path: Path) -> None:
    """Each process opens the same SQLite file, and a process that crashes does not close it."""
    report = simulate(1, 1500, store_factory=lambda: store(tmp_path / "payments.db"))
    assert report.met["store committed a batch"] > 0


def test_a_seed_is_repeatable(tmp_path: Path) -> None:
    """The same seed gives the same run, over any store that gives the same answers."""
    once, again = simulate(5, 1000), simulate(5, 1000)
    on_disk = simulate(5, 1000, store_factory=lambda: SqliteStore(tmp_path / "payments.db"))
    assert once == again == on_disk
    assert once.met == again.met == on_disk.met
    assert once.met != simulate(6, 1000).met


def test_a_short_run_registers_both_consumers_at_its_end() -> None:
    """Each event arrives, although the second consumer begins after the last step."""
    for steps in (5, 100):
        assert simulate(1, steps).met["delivery arrived"] > 0


def test_a_store_without_a_feed_has_no_consumers() -> None:
    """The simulation runs without deliveries."""
    met = simulate(1, STEPS, store_factory=SharedStore(Connection).open).met
    assert met["created"] > 0
    assert "delivery arrived" not in met


class Unreliable(MemoryStore):
    """Raises `StoreUnavailable` by itself, before or after it has done its work."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(1)

    def _fail_sometimes(self) -> None:
        if self._random.random() < 0.2:
            raise StoreUnavailable("the connection was lost")

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert, or fail before or after it."""
        self._fail_sometimes()
        answer = super().insert(decision)
        self._fail_sometimes()
        return answer

    def load(self, id: PaymentId) -> IncomingPayment:
        """Load, or fail."""
        self._fail_sometimes()
        return super().load(id)

    def update(self, id: PaymentId, decide: Decide[Any], credit_id: CreditId | None = None) -> Any:
        """Update, or fail before or after it."""
        self._fail_sometimes()
        answer = super().update(id, decide, credit_id)
        self._fail_sometimes()
        return answer


def test_a_store_may_be_unavailable_at_times() -> None:
    """After an error the simulation looks up whether the store has committed."""
    for seed in range(3):
        simulate(seed, STEPS, store_factory=over(Unreliable()))


class Optimistic(MemoryStore):
    """Decides without a lock, and again if another update has committed in between."""

    def update(self, id: PaymentId, decide: Decide[Any], credit_id: CreditId | None = None) -> Any:
        """Retry the decision until no other update interferes."""
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


def test_a_store_may_retry_a_decision() -> None:
    """Of two concurrent updates, the second is decided on the result of the first."""
    met = sum((Counter(simulate(seed, STEPS, store_factory=over(Optimistic())).met) for seed in range(3)), Counter())
    assert met["two concurrent updates of one payment"] > 0


def test_a_store_that_is_never_available_fails_the_simulation() -> None:
    """The simulation gives up after 20 attempts."""

    class Down(MemoryStore):
        def load(self, id: PaymentId) -> IncomingPayment:
            raise StoreUnavailable(f"no connection to load {id}")

    with pytest.raises(SimulationFailed, match="the store was unavailable 20 times in a row"):
        simulate(1, STEPS, store_factory=over(Down()))


# --- broken promises are detected --------------------------------------------------------------------


def first_failure(run: Callable[[int], Report]) -> SimulationFailed | None:
    """Return the failure of the first seed that fails, or `None`."""
    for seed in range(SEEDS_MAX):
        try:
            run(seed)
        except SimulationFailed as failure:
            return failure
    return None


BROKEN_STORES: Final[dict[str, Callable[[], StoreFactory]]] = {
    **{
        store.__name__: lambda store=store: over(store())  # type: ignore[misc]
        for store in (
            IgnoresEarlierCredits,
            EventsNewestFirst,
            FindsCompletedPayments,
            OverwritesOnInsert,
            LoadsThenSaves,
            CommitsPartly,
            AltersEvents,
            TruncatesTimes,
            DecidesBeforeLoading,
            InventsPayments,
            LosesPayments,
            RejectsNewIds,
            FindsLastExpiredFirst,
            ForgetsKeys,
            LosesKeys,
            ListsAllStates,
        )
    },
    "AnswersBeforeDurable": lambda: SharedStore(AnswersBeforeDurable).open,
    "CachesPayments": lambda: SharedStore(CachesPayments).open,
}


@pytest.mark.parametrize("name", BROKEN_STORES)
def test_a_broken_store_is_detected(name: str) -> None:
    """The simulation fails within 15,000 steps."""
    assert first_failure(lambda seed: simulate(seed, STEPS, store_factory=BROKEN_STORES[name]())) is not None


BROKEN_FEEDS: Final[dict[type[MemoryFeed], str]] = {
    broken_feeds.AcknowledgesAtClaim: "never arrived|accepted two results|arrived after version",
    broken_feeds.GivesTwoLeases: "",
    broken_feeds.LetsOldHoldersSettle: "accepted two results",
    broken_feeds.HidesLaterEvents: "never arrived",
    broken_feeds.SendsExcludedEvents: "",
    broken_feeds.GrowsRanges: "",
    broken_feeds.RendersAgain: "with other bytes",
    broken_feeds.LosesEventsOfOpenStreams: "never arrived|arrived after version",
    broken_feeds.OpensStreamsTwice: "arrived after version",
    broken_feeds.LosesRetries: "",
    broken_feeds.BlocksBehindDeadLetters: "never arrived",
    broken_feeds.MovesStreamsBack: "",
}


@pytest.mark.parametrize("feed", BROKEN_FEEDS)
def test_a_broken_feed_is_detected(feed: type[MemoryFeed]) -> None:
    """The simulation fails within 15,000 steps, and the failure names the difference that was found."""
    store = broken_feeds.memory_store(feed)
    failure = first_failure(lambda seed: simulate(seed, STEPS, store_factory=over(store())))
    assert failure is not None
    assert re.search(BROKEN_FEEDS[feed], str(failure).partition("\n")[0])


APPROVAL: Final = r"should be '(packet needs the )?approval .*', but (it did not refuse|the store answered)"
EXPIRED: Final = r"the update should be 'complete refused: expired', but the store answered"
# Flows with a fault, and a pattern that the failure has.
BROKEN_FLOWS: Final[dict[str, tuple[Flows, str]]] = {
    **{f"receiver {name}": (Flows(receive_packet=flow), "") for name, flow in broken_flows.RECEIVERS.items()},
    **{f"approval {name}": (Flows(receive_packet=flow), APPROVAL) for name, flow in broken_flows.APPROVALS.items()},
    "payment without approval": (
        Flows(create_payment=broken_flows.create_without_approval),
        "the host has not approved create",
    ),
    "key that is not stored": (
        Flows(create_payment=broken_flows.create_without_its_key),
        "has two payments|the store answers",
    ),
    "another fingerprint": (
        Flows(create_payment=broken_flows.create_with_another_fingerprint),
        "the key was not used for another request",
    ),
    "latest state": (
        Flows(create_payment=broken_flows.create_that_returns_the_latest_state),
        "another answer|a new payment has received money, or is completed",
    ),
    "credit after the expiry": (Flows(receive=broken_flows.receive_without_expiry), ""),
    "completion after the expiry": (Flows(complete_payment=broken_flows.complete_without_expiry), EXPIRED),
    "read that changes the payment": (Flows(get_payment=broken_flows.get_that_completes), r"no update: get\("),
    "payment that is listed twice": (Flows(list_payments=broken_flows.list_the_last_twice), "page"),
    "page of the host in the wrong order": (
        Flows(list_for_host=broken_flows.list_in_reverse),
        "the page is not in the order of creation",
    ),
    "wrong amount in the answer": (Flows(receive=broken_flows.receive_that_doubles), "the host has recorded"),
    "unexpected exception": (
        Flows(get_public_payment=broken_flows.get_with_a_bug),
        "a flow or the store raised ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("name", BROKEN_FLOWS)
def test_a_broken_flow_is_detected(name: str) -> None:
    """The simulation fails within 15,000 steps, and the failure names the difference that was found."""
    flows, pattern = BROKEN_FLOWS[name]
    failure = first_failure(lambda seed: simulate(seed, STEPS, flows=flows))
    assert failure is not None
    assert re.search(pattern, str(failure))


def test_a_credit_after_the_expiry_is_detected_in_a_transaction_that_is_rolled_back() -> None:
    """The store keeps nothing of such a transaction. The decision alone shows the mistake, in some of the seeds."""
    flows = Flows(receive=broken_flows.receive_without_expiry)

    def failure(seed: int) -> str:
        with pytest.raises(SimulationFailed) as failed:
            simulate(seed, STEPS, flows=flows)
        return str(failed.value)

    assert any("but it did not refuse" in failure(seed) for seed in range(100))


def test_the_ledger_accepts_a_credit_id_once() -> None:
    """A credit without an id and a credit with a used id are mismatches, and so is a credit that is not found."""
    ledger = Ledger(a_creation().answer.id, Asset("USD", 2), None, None, NOW, NOW)
    first, second = (ledger.expect_credit(key, 5, ledger.asset, NOW) for key in ("a", "b"))
    assert first.record is not None
    assert second.record is not None
    first.record("wire-1")
    for credit_id in (None, "wire-1"):
        with pytest.raises(Mismatch, match="which is missing or already used"):
            second.record(credit_id)
    with pytest.raises(Mismatch, match="the credit should be"):
        ledger.compare_credit("a", None)


def test_a_sweep_has_a_readable_form() -> None:
    """The trace of a failure prints operations as calls."""
    assert str(Sweep(3)) == "announce_expired(limit=3)"
    assert str(List(2, None, backwards=False, state="expired")) == "list(2 after None, state=expired)"


def test_a_failure_can_be_repeated() -> None:
    """The text names the seed and the step, ends with the last events, and is the same at each repetition."""
    failures = [
        first_failure(lambda seed: simulate(seed, STEPS, store_factory=over(IgnoresEarlierCredits()))) for _ in range(2)
    ]
    first, again = failures
    assert first is not None
    assert str(first) == str(again)
    assert f"in step {first.step} of simulate({first.seed}, ...)" in str(first)
    assert 0 < len(first.trace) <= 40
    assert first.trace[-1].startswith(f"{first.step}: ")


def test_second_payment_with_one_id_is_detected() -> None:
    """Few simulations meet such a store, so this test gives its answer to the check."""
    created = a_creation()
    state = Mock(ledgers={created.answer.id: Mock()}, keys={})
    caller = Mock(wait=lambda _: None)  # the store has inserted the payment
    task = Mock(effect=InsertPayment(created), operation=Mock(spec=Create, idempotency_key=None))
    with pytest.raises(Mismatch, match="a second payment with the id"):
        commits.Commits(state, caller, []).commit(task)


@pytest.mark.parametrize("outcome", ["an answer", PaymentExists("another refusal")])
def test_another_outcome_than_the_required_refusal_is_detected(outcome: object) -> None:
    """Few simulations meet such a store, so this test gives its answer to the check."""
    with pytest.raises(Mismatch, match="the update should be 'no such payment', but the store"):
        commits._required_error(Expected("no such payment", PaymentNotFound), outcome)
