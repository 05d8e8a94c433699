"""The guarantees of an `Erasure` port, as a test suite for your own port. The suite needs pytest.

```python
from incoming_payments.testing.erasure import ErasureContract

class TestMyErasure(ErasureContract):
    def make(self, directory):
        store = MyStore(directory)
        return store, MyErasure(store)
```

The suite cannot read the files of your database. Test in your own way that the metadata is also gone from indexes, from
unused space and from logs.
"""

# ruff: noqa: S101 - a test suite asserts
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

try:
    import pytest
except ImportError as error:
    raise ImportError("the erasure contract needs pytest: run pip install 'incoming-payments[testing]'") from error

from incoming_payments.domain import lifecycle
from incoming_payments.domain.lifecycle import without_metadata
from incoming_payments.domain.listing import PaymentQuery
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import PaymentNotFound
from incoming_payments.ports import Erasure, PaymentStore
from incoming_payments.testing.steps import UNUSED_ID, create, credit
from incoming_payments.testing.values import NOW, a_creation

_SECOND = timedelta(seconds=1)
_METADATA = '{"externalRef":"INV-7"}'
_MANY = 250


class ErasureContract:
    """Subclass this class in a test module with a name that pytest collects, and override `make`."""

    def make(self, directory: Path) -> tuple[PaymentStore, Erasure]:
        """Return an empty store and its port. `directory` is empty, and no other store uses it."""
        raise NotImplementedError("make is missing: override make, and return the store and the port to test")

    def close(self, store: PaymentStore) -> None:
        """Close a store that `make` returned. By default, call its `close` method, if it has one."""
        close = getattr(store, "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def both(self, tmp_path: Path) -> Iterator[tuple[PaymentStore, Erasure]]:
        """Yield a store and its port for one test."""
        both = self.make(tmp_path)
        yield both
        self.close(both[0])

    def test_only_the_metadata_is_erased(self, both: tuple[PaymentStore, Erasure]) -> None:
        """The payment keeps its other terms, its progress and its events. Other payments keep their metadata."""
        store, erasure = both
        id, other = _create(store, limit=5), _create(store)
        credit(store, id, "wire-1", 2)
        before, events = store.load(id), store.events(id)
        erased = without_metadata(before)
        assert erased == erasure.erase(id) == store.load(id)
        assert events == store.events(id)
        assert store.load(other).terms.metadata == _METADATA
        assert {id: None, other: _METADATA} == {
            payment.id: payment.terms.metadata for payment in store.find_payments(PaymentQuery(now=NOW, limit=9))
        }
        assert erased == erasure.erase(id)

    def test_an_unknown_payment_is_not_found(self, both: tuple[PaymentStore, Erasure]) -> None:
        """The port raises the error of the store."""
        with pytest.raises(PaymentNotFound):
            both[1].erase(UNUSED_ID)

    def test_a_payment_without_metadata_still_receives(self, both: tuple[PaymentStore, Erasure]) -> None:
        """Its credits, its completion and its idempotency key work as before."""
        store, erasure = both
        created = a_creation(key="key", metadata=_METADATA, limit=5)
        keyed = created.keyed
        assert keyed is not None
        store.insert(created)
        id = created.answer.id
        erasure.erase(id)
        assert credit(store, id, "wire-1", 5).completes
        assert store.load(id).terms.metadata is None
        assert keyed == store.find_creation(keyed.client, keyed.key, NOW)

    def test_ended_payments_lose_their_metadata(self, both: tuple[PaymentStore, Erasure]) -> None:
        """A payment ends by a credit, by its client, or by its expiry once that is announced."""
        store, erasure = both
        full, closed, expired = _create(store, limit=5), _create(store), _create(store, expires_in_s=1)
        late, unannounced, waiting = _create(store, limit=5), _create(store, expires_in_s=1), _create(store, limit=5)
        credit(store, full, "wire-1", 5)
        store.update(closed, partial(lifecycle.complete, now=NOW))
        store.update(expired, partial(lifecycle.expire, now=NOW + 9 * _SECOND))
        credit(store, late, "wire-1", 5, now=NOW + 2 * _SECOND)
        credit(store, waiting, "wire-1", 4)
        every = [full, closed, expired, late, unannounced, waiting]
        assert erasure.erase_ended(NOW)
        assert every == _with_metadata(store, every)
        assert erasure.erase_ended(NOW + 2 * _SECOND)
        assert [late, unannounced, waiting] == _with_metadata(store, every)
        assert erasure.erase_ended(NOW + timedelta(days=9))
        assert [unannounced, waiting] == _with_metadata(store, every)

    def test_batches_reach_every_ended_payment(self, both: tuple[PaymentStore, Erasure]) -> None:
        """The port is called until it answers that no payment is left."""
        store, erasure = both
        ids = [_create(store) for _ in range(_MANY)]
        for id in ids:
            store.update(id, partial(lifecycle.complete, now=NOW))
        while not erasure.erase_ended(NOW + _SECOND):
            pass
        assert not _with_metadata(store, ids)


def _create(store: PaymentStore, **terms: Any) -> PaymentId:
    return create(store, a_creation(metadata=_METADATA, **terms))


def _with_metadata(store: PaymentStore, ids: list[PaymentId]) -> list[PaymentId]:
    return [id for id in ids if store.load(id).terms.metadata is not None]
