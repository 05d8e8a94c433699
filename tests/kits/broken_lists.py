"""A store with one fault in its lists, so that tests can prove that the contract suite detects it."""

from collections.abc import Callable, Sequence
from typing import Final, Self

from attrs import evolve

from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import IncomingPayment
from incoming_payments.testing import NOW
from kits.reference_store import ReferenceStore

Change = Callable[[PaymentQuery, list[IncomingPayment]], Sequence[IncomingPayment]]


class ListsWrongly(ReferenceStore):
    """Answers another query, or answers the query from other payments."""

    change: Change

    @classmethod
    def by(cls, change: Change) -> type[Self]:
        """Return the store that answers by `change`."""
        return type(cls.__name__, (cls,), {"change": staticmethod(change)})

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Answer wrongly."""
        every = PaymentQuery(now=query.now, limit=101)
        return self.change(query, list(super().find_payments(every)))


def _in_whole_seconds(payment: IncomingPayment) -> tuple[object, str]:
    return payment.created_at.replace(microsecond=0), payment.id


# Wrong answers to queries, and the name of the test that finds each.
WRONG_LISTS: Final[list[tuple[Change, str]]] = [
    (lambda query, every: query.page_of(every)[::-1], "the_newest_payment_comes_first"),
    (
        lambda query, every: sorted(query.page_of(every), key=_in_whole_seconds, reverse=True),
        "the_newest_payment_comes_first",
    ),
    (
        lambda query, every: sorted(query.page_of(every), key=lambda one: one.created_at, reverse=True)[::-1],
        "payments_of_one_time_are_in_the_order_of_their_ids",
    ),
    (
        lambda query, every: evolve(query, older_than=None, newer_than=None).page_of(every),
        "a_page_begins_beside_its_place",
    ),
    (
        lambda query, every: (
            query.page_of(every) if query.newer_than is None else evolve(query, limit=101).page_of(every)[: query.limit]
        ),
        "a_page_begins_beside_its_place",
    ),
    (
        lambda query, every: evolve(query, client=None).page_of(every),
        "lists_are_of_one_wallet_address_and_one_client",
    ),
    (
        lambda query, every: evolve(query, wallet_address=None).page_of(every),
        "lists_are_of_one_wallet_address_and_one_client",
    ),
    (lambda query, every: evolve(query, state=None).page_of(every), "lists_are_of_one_state"),
    (lambda query, every: evolve(query, now=NOW).page_of(every), "lists_are_of_one_state"),
    (lambda query, every: evolve(query, created_from=None).page_of(every), "lists_are_of_one_time_of_creation"),
    (lambda query, every: evolve(query, created_before=None).page_of(every), "lists_are_of_one_time_of_creation"),
    (lambda query, every: query.page_of(every)[:100], "the_largest_page"),
]
