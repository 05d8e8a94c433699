"""The guarantees of a payment store for lists."""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import Any

from incoming_payments.domain import lifecycle
from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import HOST, IncomingPayment, PaymentId, client_id
from incoming_payments.domain.transitions import State
from incoming_payments.limits import PAGE_PAYMENTS_MAX, UINT64_MAX
from incoming_payments.ports import PaymentStore
from incoming_payments.testing._hooks import StoreHooks
from incoming_payments.testing.steps import create, credit
from incoming_payments.testing.values import NOW, a_creation, a_wallet_address

_SECOND = timedelta(seconds=1)
_ALICE, _BOB = (a_wallet_address(f"https://bank.example/{name}") for name in ("alice", "bob"))


class ListingContract(StoreHooks):
    """The tests of `find_payments`."""

    def test_the_newest_payment_comes_first(self, store: PaymentStore) -> None:
        """The order is by time of creation, to the microsecond. The order of the inserts does not matter."""
        ids = {
            offset: create(store, a_creation(now=NOW + timedelta(microseconds=offset))) for offset in (2, 0, 10, 9, 1)
        }
        assert [ids[offset] for offset in (10, 9, 2, 1, 0)] == _ids(store)

    def test_payments_of_one_time_are_in_the_order_of_their_ids(self, store: PaymentStore) -> None:
        """Several processes create payments at the same time. No page may skip or repeat any of them."""
        texts = ("019b7a0c-1000-7000-8000-00000000000a", "019b7a0c-1000-7000-8000-000000000009")
        more = ("019b7a0c-1000-7000-9000-000000000000", "019b7a0c-0fff-7fff-bfff-ffffffffffff")
        ids = [create(store, a_creation(id=PaymentId(text))) for text in (*texts, *more)]
        assert sorted(ids, reverse=True) == _ids(store) == _walk(store, limit=1)

    def test_a_page_begins_beside_its_place(self, store: PaymentStore) -> None:
        """The page has the nearest payments on one side, without the payment of the place itself."""
        ids = [create(store, a_creation(now=NOW + number * _SECOND)) for number in range(6)][::-1]
        place = Place.of(store.load(ids[3]))
        assert ids[4:] == _ids(store, older_than=place)
        assert ids[4:5] == _ids(store, older_than=place, limit=1)
        assert ids[:3] == _ids(store, newer_than=place)
        assert ids[1:3] == _ids(store, newer_than=place, limit=2)

    def test_new_payments_do_not_move_the_pages(self, store: PaymentStore) -> None:
        """If new payments enter the list between two pages, no page skips or repeats a payment."""
        ids = [create(store, a_creation(now=NOW + number * _SECOND)) for number in range(10)][::-1]
        late = iter([timedelta(hours=hours) for hours in (1, -1, 2, -2)])

        def add() -> None:
            for _ in range(2):
                if (offset := next(late, None)) is not None:
                    create(store, a_creation(now=NOW + offset))

        walked = _walk(store, limit=3, between=add)
        assert ids == [id for id in walked if id in ids]
        assert len(set(walked)) == len(walked)

    def test_lists_are_of_one_wallet_address_and_one_client(self, store: PaymentStore) -> None:
        """The store compares wallet address and client exactly, alone and together. The host counts as a client."""
        wallets = (_ALICE, _BOB, a_wallet_address("https://bank.example/Alice"))
        clients = (client_id("https://shop.example/"), client_id("https://shop.example/b"), HOST)
        ids = {
            (wallet.url, client): [
                create(store, a_creation(wallet_address=wallet, client=client, now=NOW + number * _SECOND))
                for number in (2, 1)
            ]
            for wallet, client in product(wallets, clients)
        }
        for (url, client), expected in ids.items():
            assert (
                expected
                == _ids(store, wallet_address=url, client=client)
                == _walk(store, limit=1, wallet_address=url, client=client)
            )
            assert {id for key, found in ids.items() if key[0] == url for id in found} == set(
                _ids(store, wallet_address=url)
            )
            assert {id for key, found in ids.items() if key[1] == client for id in found} == set(
                _ids(store, client=client)
            )

    def test_lists_are_of_one_state(self, store: PaymentStore) -> None:
        """A list of a state has exactly the payments for which `state_of` returns that state."""
        payments = _in_all_states(store)
        for now in (NOW, NOW + 10 * _SECOND, NOW + timedelta(seconds=10, microseconds=1), NOW + timedelta(days=1)):
            for state in State:
                expected = [payment.id for payment in payments if lifecycle.state_of(payment, now) is state]
                assert expected == _ids(store, state=state, now=now) == _walk(store, limit=1, state=state, now=now)

    def test_lists_are_of_one_time_of_creation(self, store: PaymentStore) -> None:
        """The first time is inclusive, and the second time is exclusive. A place outside has no effect."""
        ids = [create(store, a_creation(now=NOW + number * _SECOND)) for number in range(6)]
        places = [None, *(Place.of(store.load(id)) for id in ids)]
        payments = [store.load(id) for id in ids]
        for first, end, place in product(range(7), range(7), places):
            filters: dict[str, Any] = {"created_from": NOW + first * _SECOND, "created_before": NOW + end * _SECOND}
            for side in ("older_than", "newer_than"):
                filters |= {"older_than": None, "newer_than": None, side: place}
                query = PaymentQuery(now=NOW, limit=2, **filters)
                assert query.page_of(payments) == list(store.find_payments(query))

    def test_the_largest_page(self, store: PaymentStore) -> None:
        """A page has as many payments as its limit, and the payments are complete."""
        ids = [create(store, a_creation(metadata='{"n":1}')) for _ in range(PAGE_PAYMENTS_MAX + 2)]
        query = PaymentQuery(now=NOW, limit=PAGE_PAYMENTS_MAX + 1, wallet_address=_ALICE.url)
        page = store.find_payments(query)
        assert [store.load(id) for id in sorted(ids, reverse=True)[:-1]] == list(page)


def _in_all_states(store: PaymentStore) -> list[IncomingPayment]:
    """Store payments in every state, near the boundaries of the state, and return them, the newest first."""
    for number, (limit, received, expires_in_s) in enumerate(
        product([None, 9, 10, 100, UINT64_MAX], [0, 9, 10, 99, 100, UINT64_MAX], [None, 10])
    ):
        at = NOW - number * _SECOND
        expiry = None if expires_in_s is None else expires_in_s + number
        id = create(store, a_creation(limit=limit, expires_in_s=expiry, now=at))
        if received:
            credit(store, id, "wire-1", received, at)
    for expiry in (None, 10):
        id = create(store, a_creation(expires_in_s=expiry))
        store.update(id, partial(lifecycle.complete, now=NOW))
    announced = create(store, a_creation(expires_in_s=1))
    store.update(announced, partial(lifecycle.expire, now=NOW + 2 * _SECOND))
    return list(store.find_payments(PaymentQuery(now=NOW, limit=PAGE_PAYMENTS_MAX)))


def _ids(store: PaymentStore, *, now: datetime = NOW, limit: int = 100, **filters: Any) -> list[PaymentId]:
    return [payment.id for payment in store.find_payments(PaymentQuery(now=now, limit=limit, **filters))]


def _walk(store: PaymentStore, *, limit: int, between: Any = lambda: None, **filters: Any) -> list[PaymentId]:
    """Return the ids on all pages, and check that the pages in the other direction have the same ids."""
    found: list[IncomingPayment] = []
    page: Sequence[IncomingPayment] = store.find_payments(PaymentQuery(**{"now": NOW, "limit": limit, **filters}))
    while page:
        found += page
        between()
        query = PaymentQuery(**{"now": NOW, "limit": limit, "older_than": Place.of(page[-1]), **filters})
        page = store.find_payments(query)
    back: list[IncomingPayment] = []
    page = found[-1:]
    while page:
        back = [*page, *back]
        query = PaymentQuery(**{"now": NOW, "limit": limit, "newer_than": Place.of(page[0]), **filters})
        page = store.find_payments(query)
    assert [payment.id for payment in found] == [payment.id for payment in back if payment in found]
    return [payment.id for payment in found]
