"""What a payment store promises, as a test suite that others run against their own.

It needs pytest and Hypothesis.

```python
from incoming_payments.testing.contract import StoreContract

class TestMyStore(StoreContract):
    def make_store(self, directory):
        return MyStore(directory / "payments")
```

An async store is measured through a `SyncView`, whose calls from several threads are concurrent tasks to it:

```python
class TestMyAsyncStore(StoreContract):
    def make_store(self, directory):
        async def open_store():
            return await MyAsyncStore.open(directory)
        return SyncView(open_store, MyAsyncStore.close)
```
"""

# ruff: noqa: S101 - a test suite asserts
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

try:
    import pytest
    from hypothesis import HealthCheck, settings
    from hypothesis.stateful import run_state_machine_as_test
except ImportError as error:
    raise ImportError("the store contract suite needs pytest and Hypothesis: pip install pytest hypothesis") from error

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Asset
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import (
    AmountOverflow,
    CreditIdReused,
    PaymentCompleted,
    PaymentExists,
    PaymentNotFound,
)
from incoming_payments.limits import CREDIT_ID_CHARS_MAX, UINT64_MAX
from incoming_payments.ports import PaymentStore
from incoming_payments.testing.machine import StoreMachine
from incoming_payments.testing.steps import PACKET_PEER, book, book_packet, check_books, create, together
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address, crediting

T = TypeVar("T")

UNKNOWN = PaymentId("019b7a0c-ffff-7000-8000-000000000000")
DAY_S = 24 * 3600.0


class StoreContract:
    """Subclass it in a test module, give it a name that pytest collects, and override `make_store`."""

    machine_settings = settings(
        max_examples=30,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    threads = 8  # how many callers at once

    def make_store(self, directory: Path) -> PaymentStore:
        """A store with nothing in it. `directory` is its own, and empty."""
        raise NotImplementedError("override make_store(directory) to give the store under test")

    def close_store(self, store: PaymentStore) -> None:
        """End a store that `make_store` gave: calls its `close`, if it has one."""
        close = getattr(store, "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[PaymentStore]:
        """A store for one test."""
        store = self.make_store(tmp_path)
        yield store
        self.close_store(store)

    # --- insert and load ---

    @pytest.mark.parametrize(
        "decision",
        [
            pytest.param(a_creation(), id="nothing optional"),
            pytest.param(
                a_creation(limit=UINT64_MAX, expires_in_s=0.000001, metadata='{"ref":"Ünïcødé 🪙 \\u0000"}'),
                id="everything",
            ),
            pytest.param(a_creation(metadata="{" + " " * 100_000 + "}"), id="much metadata"),
            pytest.param(a_creation(wallet_address=a_wallet_address(asset=Asset("!~", 255))), id="an odd asset"),
            pytest.param(a_creation(id=UNKNOWN, now=datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC)), id="long ago"),
            pytest.param(
                a_creation(now=datetime(9999, 12, 31, 23, 59, 59, 999_998, tzinfo=UTC), expires_in_s=0.000001),
                id="far off",
            ),
        ],
    )
    def test_load_returns_what_was_inserted(self, store: PaymentStore, decision: Decision[IncomingPayment]) -> None:
        """Every member comes back equal: all 64 bits, all microseconds, every character."""
        store.insert(decision)

        assert decision.answer == store.load(decision.answer.id)
        assert decision.events == tuple(store.events(decision.answer.id))

    def test_insert_refuses_an_id_that_is_taken(self, store: PaymentStore) -> None:
        """The first payment stays as it is."""
        first = a_creation(limit=100)
        store.insert(first)

        with pytest.raises(PaymentExists):
            store.insert(a_creation(id=first.answer.id, limit=200))

        assert first.answer == store.load(first.answer.id)
        assert first.events == tuple(store.events(first.answer.id))

    def test_what_was_never_inserted_is_not_found(self, store: PaymentStore) -> None:
        """By no method, and an update does not even ask for the decision."""

        def decide(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[None]:
            raise AssertionError("there is nothing to decide on")

        create(store)
        for ask in (store.load, store.events, partial(store.update, decide=decide)):
            with pytest.raises(PaymentNotFound):
                ask(UNKNOWN)

    # --- update ---

    def test_an_update_stores_payment_credit_and_events(self, store: PaymentStore) -> None:
        """And returns what the decision answers."""
        created = a_creation(limit=1000)
        id = create(store, created)
        expected = crediting("wire-1", 300)(created.answer, None)

        assert expected.answer == book(store, id, "wire-1", 300)
        assert expected.payment == store.load(id)
        assert [*created.events, *expected.events] == list(store.events(id))

    def test_an_event_names_the_peer_that_brought_a_packet(self, store: PaymentStore) -> None:
        """And no other event names one: it says who owes the money."""
        id = create(store, a_creation(limit=1000))
        book(store, id, "wire-1", 300)
        book_packet(store, id, 700)
        assert [event.peer for event in store.events(id)] == [None, None, PACKET_PEER, None]

    def test_a_decision_sees_the_payment_as_the_last_one_left_it(self, store: PaymentStore) -> None:
        """And the credit booked under the credit id asked for, if there is one."""
        id = create(store)
        booked = book(store, id, "wire-1", 300)
        seen: list[tuple[IncomingPayment, Credit | None]] = []

        def decide(payment: IncomingPayment, earlier: Credit | None) -> Decision[str]:
            seen[:] = [(payment, earlier)]
            return Decision("looked")

        for credit_id, expected in (("wire-1", booked), ("wire-2", None), (None, None)):
            assert store.update(id, decide, None if credit_id is None else CreditId(credit_id)) == "looked"
            assert [(store.load(id), expected)] == seen

    def test_a_decision_that_stores_nothing_changes_nothing(self, store: PaymentStore) -> None:
        """Its answer is returned all the same."""
        created = a_creation()
        id = create(store, created)

        assert store.update(id, lambda payment, _: Decision(payment.version)) == 1
        assert created.answer == store.load(id)
        assert list(created.events) == list(store.events(id))

    @pytest.mark.parametrize("error", [PaymentCompleted("no"), RuntimeError("a bug")])
    def test_what_a_decision_raises_reaches_the_caller_and_leaves_nothing(
        self, store: PaymentStore, error: Exception
    ) -> None:
        """Not the payment, nor an event, nor the credit id; and the store works on."""
        id = create(store)
        before = store.load(id), list(store.events(id))

        def decide(_payment: IncomingPayment, _earlier: Credit | None) -> Decision[Credit]:
            raise error

        with pytest.raises(type(error)) as caught:
            store.update(id, decide, CreditId("wire-1"))

        assert error is caught.value
        assert before == (store.load(id), list(store.events(id)))
        assert book(store, id, "wire-1", 5).received.value == 5

    def test_many_updates_of_one_payment_add_up(self, store: PaymentStore) -> None:
        """Each event has the next version and the total by then."""
        id = create(store)
        for number in range(1, 21):
            book(store, id, f"wire-{number}", number, NOW + timedelta(microseconds=number))

        events = store.events(id)
        assert store.load(id).received.value == 210
        assert list(range(1, 22)) == [event.version for event in events]
        assert [number * (number + 1) // 2 for number in range(21)] == [event.received.value for event in events]
        assert [NOW + timedelta(microseconds=number) for number in range(21)] == [event.at for event in events]

    # --- credits ---

    def test_a_credit_id_repeated_is_answered_and_booked_once(self, store: PaymentStore) -> None:
        """With the very answer of the first time, also when the payment is completed by now."""
        id = create(store, a_creation(limit=1000))
        first = book(store, id, "wire-1", 300)
        book(store, id, "wire-2", 700, NOW + timedelta(seconds=1))
        before = store.load(id), list(store.events(id))

        assert first == book(store, id, "wire-1", 300, NOW + timedelta(seconds=2))
        assert before == (store.load(id), list(store.events(id)))

    def test_a_credit_id_with_another_amount_is_refused(self, store: PaymentStore) -> None:
        """That is a mistake and not a repeat; nothing changes."""
        id = create(store)
        book(store, id, "wire-1", 300)
        before = store.load(id), list(store.events(id))

        with pytest.raises(CreditIdReused):
            book(store, id, "wire-1", 301)

        assert before == (store.load(id), list(store.events(id)))

    @pytest.mark.parametrize(
        ("one", "other"),
        [("a", "A"), ("1", "01"), ("1", "1.0"), ("a%", "a_"), ("'", '"'), ("~" * CREDIT_ID_CHARS_MAX, "~" * 199)],
    )
    def test_credit_ids_are_compared_to_the_letter(self, store: PaymentStore, one: str, other: str) -> None:
        """Two spellings are two credits."""
        id = create(store)

        book(store, id, one, 1)
        book(store, id, other, 2)

        assert store.load(id).received.value == 3
        assert [None, one, other] == [event.credit_id for event in store.events(id)]

    def test_a_credit_id_belongs_to_its_payment(self, store: PaymentStore) -> None:
        """Two payments may book under the same id, and their events do not mix."""
        one, other = create(store), create(store)

        book(store, one, "wire-1", 1)
        book(store, other, "wire-1", 2)

        assert (store.load(one).received.value, store.load(other).received.value) == (1, 2)
        assert {one} == {event.payment_id for event in store.events(one)}

    def test_amounts_use_all_64_bits(self, store: PaymentStore) -> None:
        """Up to 2**64 - 1 to the unit, and not one further."""
        id = create(store)
        book(store, id, "wire-1", 2**63)
        last = book(store, id, "wire-2", 2**63 - 1)

        with pytest.raises(AmountOverflow):
            book(store, id, "wire-3", 1)

        assert UINT64_MAX == last.received.value == store.load(id).received.value
        assert last == book(store, id, "wire-2", 2**63 - 1)

    def test_a_credit_that_fills_the_payment_completes_it(self, store: PaymentStore) -> None:
        """In the same step, with both events; the next one is refused."""
        id = create(store, a_creation(limit=500, expires_in_s=60))

        assert book(store, id, "wire-1", 600).completes
        with pytest.raises(PaymentCompleted):
            book(store, id, "wire-2", 1)

        expected = [EventKind.CREATED, EventKind.CREDITED, EventKind.COMPLETED]
        assert expected == [event.kind for event in store.events(id)]

    def test_a_payment_completed_by_hand_stays_completed(self, store: PaymentStore) -> None:
        """When it was closed comes back to the microsecond, and closing again changes nothing."""
        id = create(store)
        closed = store.update(id, partial(lifecycle.complete, now=NOW + timedelta(microseconds=1)))

        assert closed == store.load(id)
        assert closed == store.update(id, partial(lifecycle.complete, now=NOW + timedelta(days=1)))
        assert [event.kind for event in store.events(id)] == [EventKind.CREATED, EventKind.COMPLETED]

    # --- the sweep ---

    def test_find_expired_names_the_longest_expired_first(self, store: PaymentStore) -> None:
        """At most as many as asked for, and none whose moment has only come: `expires_at` itself still accepts."""
        late, early, now_exactly, _never, _later = (
            create(store, a_creation(expires_in_s=seconds)) for seconds in (20, 10, 30, None, 40)
        )
        now = NOW + timedelta(seconds=30)

        assert [early, late] == list(store.find_expired(now, 10))
        assert [early] == list(store.find_expired(now, 1))
        assert list(store.find_expired(now, 0)) == []
        assert [early, late, now_exactly] == list(store.find_expired(now + timedelta(microseconds=1), 10))

    def test_an_expiry_is_announced_once(self, store: PaymentStore) -> None:
        """After `expire` the payment is not found again."""
        id = create(store, a_creation(expires_in_s=10))
        now = NOW + timedelta(seconds=11)

        announced = store.update(id, partial(lifecycle.expire, now=now))

        assert announced == store.load(id)
        assert list(store.find_expired(now, 10)) == []
        assert store.events(id)[-1].kind == EventKind.EXPIRED

    def test_completed_payments_do_not_stand_in_the_way_of_the_sweep(self, store: PaymentStore) -> None:
        """They never expire, so a sweep that named them would name them for ever, and may reach nothing else."""
        for seconds in (1, 2):
            book(store, create(store, a_creation(limit=5, expires_in_s=seconds)), "wire-1", 5)
            closed = create(store, a_creation(expires_in_s=seconds))
            store.update(closed, partial(lifecycle.complete, now=NOW))
        partly = create(store, a_creation(limit=5, expires_in_s=3))
        book(store, partly, "wire-1", 4)

        assert [partly] == list(store.find_expired(NOW + timedelta(seconds=DAY_S), 1))

    # --- many at once ---

    def test_concurrent_credits_lose_nothing_and_double_nothing(self, store: PaymentStore) -> None:
        """Every caller books the same credits in an order of its own: each is booked once and answered alike."""
        id = create(store)
        values = {f"wire-{number}": number for number in range(1, 21)}

        def caller(seed: int) -> dict[str, Credit]:
            order = list(values)
            random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
            return {credit_id: book(store, id, credit_id, values[credit_id]) for credit_id in order}

        answers = together([partial(caller, seed) for seed in range(self.threads)])

        assert all(answers[0] == answer for answer in answers)
        assert store.load(id).received.value == sum(values.values())
        check_books(store, id, answers[0].values())

    def test_concurrent_credits_complete_a_payment_once(self, store: PaymentStore) -> None:
        """Credits are taken until it is full, one completes it, and all the others are refused."""
        id = create(store, a_creation(limit=50))

        def caller(number: int) -> list[Credit]:
            taken = []
            for turn in range(10):
                try:
                    taken.append(book(store, id, f"wire-{number}-{turn}", 1))
                except PaymentCompleted:
                    continue
            return taken

        answers = together([partial(caller, number) for number in range(self.threads)])

        credits = {credit.id: credit for taken in answers for credit in taken}
        assert store.load(id).received.value == len(credits) == 50
        assert [credit.completes for credit in credits.values()].count(True) == 1
        check_books(store, id, credits.values())

    def test_concurrent_inserts_of_one_id_let_one_through(self, store: PaymentStore) -> None:
        """And it is that one which is stored."""
        decisions = [a_creation(id=UNKNOWN, limit=number + 1) for number in range(self.threads)]

        def caller(decision: Decision[IncomingPayment]) -> IncomingPayment | None:
            try:
                store.insert(decision)
            except PaymentExists:
                return None
            return decision.answer

        stored = [answer for answer in together([partial(caller, one) for one in decisions]) if answer is not None]

        assert [store.load(UNKNOWN)] == stored

    def test_concurrent_callers_get_what_is_theirs(self, store: PaymentStore) -> None:
        """Refused or not, each on a payment of its own, with one that fails all the time among them."""

        def caller(number: int) -> PaymentId:
            id = create(store, a_creation(limit=UINT64_MAX))
            for turn in range(10):
                assert book(store, id, f"wire-{turn}", number + 1).received.value == (turn + 1) * (number + 1)
                with pytest.raises(PaymentNotFound):
                    book(store, UNKNOWN, "wire-1", 1)
            return id

        for number, id in enumerate(together([partial(caller, number) for number in range(self.threads)])):
            assert store.load(id).received.value == 10 * (number + 1)

    # --- anything at all ---

    def test_any_history_ends_as_in_the_model(self, tmp_path: Path) -> None:
        """Random histories of creations, credits, repeats, completions, sweeps and clocks give the model's answers."""
        numbers = count()

        def open_store() -> PaymentStore:
            directory = tmp_path / str(next(numbers))
            directory.mkdir()
            return self.make_store(directory)

        machine: Any = partial(StoreMachine, open_store, self.close_store)
        run_state_machine_as_test(machine, settings=self.machine_settings)
