"""The erasure of metadata.

The text is gone from every query when the call returns. PostgreSQL keeps the old version of the row until VACUUM
removes it, and copies of the row in its log until the log is removed (docs/erasure.md).
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from incoming_payments.domain.lifecycle import without_metadata
from incoming_payments.domain.payment import IncomingPayment, PaymentId
from incoming_payments.limits import ERASED_PAYMENTS_MAX
from incoming_payments.stores._rows import micros
from incoming_payments.stores.postgres._engine import AsyncEngine, Engine
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Steps, at_once, statement
from incoming_payments.stores.postgres._values import LOCK_PAYMENT, checked_id, payment_in

_ERASE: Final = statement("UPDATE incoming_payments.payments SET metadata = NULL, reference = NULL WHERE id = %s")
_SELECT_ENDED: Final = statement(
    "SELECT id FROM incoming_payments.payments WHERE ended_at < %s AND metadata IS NOT NULL "
    "ORDER BY ended_at, id LIMIT %s"
)


class PostgresErasure:
    """The `Erasure` port in the database of `store`. The port keeps the store open. Raises the errors of the store."""

    async_class = "the erasure of an AsyncPostgresStore"

    def __init__(self, store: object, engine: Engine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    def erase(self, id: PaymentId) -> IncomingPayment:
        """See `Erasure.erase`."""
        return self._engine.run(_erasure(id))

    def erase_ended(self, before: datetime) -> bool:
        """See `Erasure.erase_ended`. Each payment has a transaction of its own."""
        ids = self._engine.run(_ended(before))
        for id in ids:
            self._engine.run(_erasure(id))
        return len(ids) < ERASED_PAYMENTS_MAX


class AsyncPostgresErasure:
    """`PostgresErasure` for asyncio, in the database of an `AsyncPostgresStore`."""

    def __init__(self, store: object, engine: AsyncEngine) -> None:
        self._store = store  # the engine is closed with the store
        self._engine = engine

    async def erase(self, id: PaymentId) -> IncomingPayment:
        """Await the result of `PostgresErasure.erase`."""
        return await self._engine.run(_erasure(id))

    async def erase_ended(self, before: datetime) -> bool:
        """Await the result of `PostgresErasure.erase_ended`."""
        ids = await self._engine.run(_ended(before))
        for id in ids:
            await self._engine.run(_erasure(id))
        return len(ids) < ERASED_PAYMENTS_MAX


def _erasure(id: PaymentId) -> Operation[IncomingPayment]:
    checked_id(id)
    return lambda: _erase(id)


def _erase(id: PaymentId) -> Steps[IncomingPayment]:
    [locked] = yield [Query(LOCK_PAYMENT, (id,))]
    payment = payment_in(id, locked)
    has_metadata = payment.terms.metadata is not None
    queries = [Query(_ERASE, (id,))] if has_metadata else []
    return Ending(queries, lambda _: without_metadata(payment), writes=has_metadata)


def _ended(before: datetime) -> Operation[Sequence[PaymentId]]:
    query = Query(_SELECT_ENDED, (micros(before), ERASED_PAYMENTS_MAX))
    return lambda: at_once(Ending([query], lambda results: [id for (id,) in results[0].rows], writes=False))
