"""The metadata of payments is erased from the tables, and from the index of the references."""

from datetime import datetime
from pathlib import Path

from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.domain.reference import Reference
from incoming_payments.ports import Erasure, PaymentStore
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore
from incoming_payments.testing import NOW, SyncView, a_creation
from incoming_payments.testing.erasure import ErasureContract
from incoming_payments.testing.steps import create
from kits.postgres import async_view, empty_database, execute


class TestPostgresErasure(ErasureContract):
    """The contract suite against `PostgresErasure`."""

    def make(self, directory: Path) -> tuple[PaymentStore, Erasure]:  # noqa: ARG002 - part of the hook
        """Return a store in an empty database, and its port."""
        store = PostgresStore(empty_database())
        return store, store.erasure


class TestAsyncPostgresErasure(ErasureContract):
    """The contract suite against `AsyncPostgresErasure`."""

    def make(self, directory: Path) -> tuple[PaymentStore, Erasure]:  # noqa: ARG002 - part of the hook
        """Return a view of a store in an empty database, and of its port."""
        view = async_view(empty_database())
        return view, SyncErasure(view)


class SyncErasure:
    """An `Erasure` port that calls that of the async store in `view`."""

    def __init__(self, view: SyncView) -> None:
        assert isinstance(view.store, AsyncPostgresStore)
        self._view, self._erasure = view, view.store.erasure

    def erase(self, id: PaymentId) -> IncomingPayment:
        """Call `erase` of the async port."""
        return self._view.run(self._erasure.erase(id))

    def erase_ended(self, before: datetime) -> bool:
        """Call `erase_ended` of the async port."""
        return self._view.run(self._erasure.erase_ended(before))


def test_a_reference_is_erased_with_the_metadata(database: str) -> None:
    """The payment is no longer found by its reference, and no column holds the digest."""
    with PostgresStore(database, reference="externalRef") as store:
        id = create(store, a_creation(metadata='{"externalRef":"INV-7"}'))
        query = PaymentQuery(now=NOW, limit=9, reference=Reference("externalRef", "INV-7"))
        assert [id] == [payment.id for payment in store.find_payments(query)]
        store.erasure.erase(id)
        assert store.find_payments(query) == []
    rows = execute(database, "SELECT metadata, reference FROM incoming_payments.payments")
    assert rows == [(None, None)]
