"""The guarantees of a payment store, as a test suite for your own store. The suite needs pytest and Hypothesis.

```python
from incoming_payments.testing.contract import StoreContract

class TestMyStore(StoreContract):
    def make_store(self, directory):
        return MyStore(directory / "payments")

    def open_again(self, store, directory):  # open the store as another process would
        return MyStore(directory / "payments")

    def break_store(self, store, directory):  # break the store as a restart of the database server would
        store.connection.close()
```

The last two hooks are for tests with several processes, and with a database that fails. A store whose data belongs to
one object sets `memory_only = True` instead of these hooks. `incoming_payments.testing.crash` kills real processes.

Test an async store through a `SyncView`, which turns calls from several threads into concurrent tasks:

```python
class TestMyAsyncStore(StoreContract):
    def make_store(self, directory):
        async def open_store():
            return await MyAsyncStore.open(directory)
        return SyncView(open_store, MyAsyncStore.close)

    def open_again(self, store, directory):
        return self.make_store(directory)
```
"""

# ruff: noqa: S101 - a test suite asserts
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

try:
    import pytest
    from hypothesis import HealthCheck, settings
    from hypothesis.stateful import run_state_machine_as_test
except ImportError as error:
    raise ImportError(
        "the store contract suite needs pytest and Hypothesis: run pip install 'incoming-payments[testing]'"
    ) from error

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment
from incoming_payments.errors import (
    AmountOverflow,
    CreditIdReused,
    PaymentCompleted,
    PaymentExists,
    PaymentNotFound,
)
from incoming_payments.limits import CREDIT_ID_CHARS_MAX, UINT64_MAX
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._concurrency import ConcurrencyContract
from incoming_payments.testing._guarding import GuardContract
from incoming_payments.testing._keys import IdempotencyContract
from incoming_payments.testing._listing import ListingContract
from incoming_payments.testing._sharing import SharingContract
from incoming_payments.testing.machine import StoreMachine
from incoming_payments.testing.steps import PACKET_PEER, UNUSED_ID, create, credit, credit_packet
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address, crediting


class StoreContract(ConcurrencyContract, GuardContract, IdempotencyContract, ListingContract, SharingContract):
    """Subclass this class in a test module with a name that pytest collects, and override the hooks.

    Override `make_store`. Unless the store is `memory_only`, also override `open_again` and `break_store`.
    """

    machine_settings = settings(
        max_examples=30,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    # --- insert and load ---

    @pytest.mark.parametrize(
        "decision",
        [
            pytest.param(a_creation(), id="nothing optional"),
            pytest.param(
                a_creation(limit=UINT64_MAX, expires_in_s=0.000001, metadata='{"ref":"Ünïcødé 🪙 \\u0000"}'),
                id="everything",
            ),
            pytest.param(a_creation(metadata="{" + " " * 100_000 + "}"), id="large metadata"),
            pytest.param(a_creation(wallet_address=a_wallet_address(asset=Asset("!~", 255))), id="an unusual asset"),
            pytest.param(a_creation(id=UNUSED_ID, now=datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)), id="far in the past"),
            pytest.param(
                a_creation(now=datetime(9999, 12, 31, 23, 59, 59, 999_998, tzinfo=UTC), expires_in_s=0.000001),
                id="far in the future",
            ),
        ],
    )
    def test_load_returns_the_inserted_payment(self, store: PaymentStore, decision: Decision[IncomingPayment]) -> None:
        """The loaded payment is equal to the inserted payment, with all bits, microseconds and characters."""
        store.insert(decision)

        assert decision.answer == store.load(decision.answer.id)
        assert decision.events == tuple(store.events(decision.answer.id))

    def test_insert_refuses_an_existing_id(self, store: PaymentStore) -> None:
        """The insert raises `PaymentExists`, and the first payment does not change."""
        first = a_creation(limit=100)
        store.insert(first)

        with pytest.raises(PaymentExists):
            store.insert(a_creation(id=first.answer.id, limit=200))

        assert first.answer == store.load(first.answer.id)
        assert first.events == tuple(store.events(first.answer.id))

    def test_an_unknown_id_is_not_found(self, store: PaymentStore) -> None:
        """Each method raises `PaymentNotFound`, and `update` does not call the decision."""

        def decide(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[None]:
            raise AssertionError("update called the decision although the payment does not exist")

        create(store)
        for call in (store.load, store.events, partial(store.update, decide=decide)):
            with pytest.raises(PaymentNotFound):
                call(UNUSED_ID)

    # --- update ---

    def test_update_stores_payment_credit_and_events(self, store: PaymentStore) -> None:
        """The update returns the answer of the decision."""
        created = a_creation(limit=1000)
        id = create(store, created)
        expected = crediting("wire-1", 300)(created.answer, None)

        assert expected.answer == credit(store, id, "wire-1", 300)
        assert expected.payment == store.load(id)
        assert [*created.events, *expected.events] == list(store.events(id))

    def test_an_event_names_the_peer_that_sent_the_packet(self, store: PaymentStore) -> None:
        """No other event names a peer."""
        id = create(store, a_creation(limit=1000))
        credit(store, id, "wire-1", 300)
        credit_packet(store, id, 700)
        assert [event.peer for event in store.events(id)] == [None, None, PACKET_PEER, None]

    def test_a_decision_gets_the_latest_payment(self, store: PaymentStore) -> None:
        """The decision also gets the earlier credit with the same credit id, if there is one."""
        id = create(store)
        credited = credit(store, id, "wire-1", 300)
        seen: list[tuple[IncomingPayment, Credit | None]] = []

        def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[str]:
            seen[:] = [(payment, earlier)]
            return Decision("answer")

        for credit_id, expected in (("wire-1", credited), ("wire-2", None), (None, None)):
            assert store.update(id, decide, None if credit_id is None else CreditId(credit_id)) == "answer"
            assert [(store.load(id), expected)] == seen

    def test_a_decision_without_a_payment_changes_nothing(self, store: PaymentStore) -> None:
        """The update still returns the answer of the decision."""
        created = a_creation()
        id = create(store, created)

        assert store.update(id, lambda payment, _: Decision(payment.version)) == 1
        assert created.answer == store.load(id)
        assert list(created.events) == list(store.events(id))

    @pytest.mark.parametrize("error", [PaymentCompleted("refused"), RuntimeError("a bug")])
    def test_an_exception_of_a_decision_is_raised_and_stores_nothing(
        self, store: PaymentStore, error: Exception
    ) -> None:
        """The payment, its events and the credit id do not change, and the next update succeeds."""
        id = create(store)
        before = store.load(id), list(store.events(id))

        def decide(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[Credit]:
            raise error

        with pytest.raises(type(error)) as caught:
            store.update(id, decide, CreditId("wire-1"))

        assert error is caught.value
        assert before == (store.load(id), list(store.events(id)))
        assert credit(store, id, "wire-1", 5).received.value == 5

    def test_many_updates_of_one_payment_add_up(self, store: PaymentStore) -> None:
        """Each event has the next version and the total at its time."""
        id = create(store)
        for number in range(1, 21):
            credit(store, id, f"wire-{number}", number, NOW + timedelta(microseconds=number))

        events = store.events(id)
        assert store.load(id).received.value == 210
        assert list(range(1, 22)) == [event.version for event in events]
        assert [number * (number + 1) // 2 for number in range(21)] == [event.received.value for event in events]
        assert [NOW + timedelta(microseconds=number) for number in range(21)] == [event.at for event in events]

    # --- credits ---

    def test_a_duplicate_credit_id_is_credited_once(self, store: PaymentStore) -> None:
        """The duplicate gets the first answer, even if the payment was completed in the meantime."""
        id = create(store, a_creation(limit=1000))
        first = credit(store, id, "wire-1", 300)
        credit(store, id, "wire-2", 700, NOW + timedelta(seconds=1))
        before = store.load(id), list(store.events(id))

        assert first == credit(store, id, "wire-1", 300, NOW + timedelta(seconds=2))
        assert before == (store.load(id), list(store.events(id)))

    def test_a_duplicate_credit_id_with_another_amount_is_refused(self, store: PaymentStore) -> None:
        """The refusal is `CreditIdReused`, and nothing changes."""
        id = create(store)
        credit(store, id, "wire-1", 300)
        before = store.load(id), list(store.events(id))

        with pytest.raises(CreditIdReused):
            credit(store, id, "wire-1", 301)

        assert before == (store.load(id), list(store.events(id)))

    @pytest.mark.parametrize(
        ("one", "another"),
        [("a", "A"), ("1", "01"), ("1", "1.0"), ("a%", "a_"), ("'", '"'), ("~" * CREDIT_ID_CHARS_MAX, "~" * 199)],
    )
    def test_credit_ids_are_compared_exactly(self, store: PaymentStore, one: str, another: str) -> None:
        """Credit ids with different spellings are different credits."""
        id = create(store)

        credit(store, id, one, 1)
        credit(store, id, another, 2)

        assert store.load(id).received.value == 3
        assert [None, one, another] == [event.credit_id for event in store.events(id)]

    def test_a_credit_id_belongs_to_one_payment(self, store: PaymentStore) -> None:
        """Two payments can have a credit with the same id, and each has only its own events."""
        one, other = create(store), create(store)

        credit(store, one, "wire-1", 1)
        credit(store, other, "wire-1", 2)

        assert (store.load(one).received.value, store.load(other).received.value) == (1, 2)
        assert {one} == {event.payment_id for event in store.events(one)}

    def test_amounts_use_all_64_bits(self, store: PaymentStore) -> None:
        """The store accepts a total of 2**64 - 1, and refuses one more unit."""
        id = create(store)
        credit(store, id, "wire-1", 2**63)
        last = credit(store, id, "wire-2", 2**63 - 1)

        with pytest.raises(AmountOverflow):
            credit(store, id, "wire-3", 1)

        assert UINT64_MAX == last.received.value == store.load(id).received.value
        assert last == credit(store, id, "wire-2", 2**63 - 1)

    def test_a_credit_that_reaches_the_limit_completes_the_payment(self, store: PaymentStore) -> None:
        """The same update writes both events, and the next credit is refused."""
        id = create(store, a_creation(limit=500, expires_in_s=60))

        assert credit(store, id, "wire-1", 600).completes
        with pytest.raises(PaymentCompleted):
            credit(store, id, "wire-2", 1)

        expected = [EventKind.CREATED, EventKind.CREDITED, EventKind.COMPLETED]
        assert expected == [event.kind for event in store.events(id)]

    def test_a_payment_completed_by_its_client_stays_completed(self, store: PaymentStore) -> None:
        """The time of completion is stored to the microsecond, and a second completion changes nothing."""
        id = create(store)
        closed = store.update(id, partial(lifecycle.complete, now=NOW + timedelta(microseconds=1)))

        assert closed == store.load(id)
        assert closed == store.update(id, partial(lifecycle.complete, now=NOW + timedelta(days=1)))
        assert [event.kind for event in store.events(id)] == [EventKind.CREATED, EventKind.COMPLETED]

    # --- the sweep ---

    def test_find_expired_returns_the_earliest_expiry_first(self, store: PaymentStore) -> None:
        """The answer has at most `limit` payments. A payment that expires exactly at `now` is not among them."""
        late, early, now_exactly, _never, _later = (
            create(store, a_creation(expires_in_s=seconds)) for seconds in (20, 10, 30, None, 40)
        )
        now = NOW + timedelta(seconds=30)

        assert [early, late] == list(store.find_expired(now, 10))
        assert [early] == list(store.find_expired(now, 1))
        assert list(store.find_expired(now, 0)) == []
        assert [early, late, now_exactly] == list(store.find_expired(now + timedelta(microseconds=1), 10))

    def test_an_expiry_is_announced_once(self, store: PaymentStore) -> None:
        """After `expire`, `find_expired` no longer returns the payment."""
        id = create(store, a_creation(expires_in_s=10))
        now = NOW + timedelta(seconds=11)

        announced = store.update(id, partial(lifecycle.expire, now=now))

        assert announced == store.load(id)
        assert list(store.find_expired(now, 10)) == []
        assert store.events(id)[-1].kind == EventKind.EXPIRED

    def test_find_expired_omits_completed_payments(self, store: PaymentStore) -> None:
        """Completed payments never expire, so they would stay in every result and could displace all other payments."""
        for seconds in (1, 2):
            credit(store, create(store, a_creation(limit=5, expires_in_s=seconds)), "wire-1", 5)
            closed = create(store, a_creation(expires_in_s=seconds))
            store.update(closed, partial(lifecycle.complete, now=NOW))
        partly = create(store, a_creation(limit=5, expires_in_s=3))
        credit(store, partly, "wire-1", 4)

        assert [partly] == list(store.find_expired(NOW + timedelta(days=1), 1))

    # --- random histories ---

    def test_random_histories_match_the_model(self, tmp_path: Path) -> None:
        """The store and the model give the same answers to random sequences of calls."""
        numbers = count()

        def open_store() -> PaymentStore:
            directory = tmp_path / str(next(numbers))
            directory.mkdir()
            return self.make_store(directory)

        machine: Any = partial(StoreMachine, open_store, self.close_store)
        run_state_machine_as_test(machine, settings=self.machine_settings)
