"""Payments are found by a member of their metadata, which the database names."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import psycopg
import pytest

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import client_id
from incoming_payments.domain.reference import Reference
from incoming_payments.domain.transitions import State
from incoming_payments.errors import ConfigurationError
from incoming_payments.stores.postgres import AsyncPostgresStore, PostgresStore, _list, _reindex
from incoming_payments.testing import NOW, SyncView, a_creation, a_wallet_address
from incoming_payments.testing.steps import create, credit
from kits.postgres import async_view, execute

REFERENCES = ("INV-7", "INV-8", "x" * 255, "x" * 256, "")


def found(store: PostgresStore, text: str = "INV-7", member: str = "externalRef", **filters: Any) -> list[str]:
    """Return the ids of the payments with this reference."""
    query = PaymentQuery(**{"now": NOW, "limit": 100, "reference": Reference(member, text), **filters})
    page = list(store.find_payments(query))
    every = store.find_payments(PaymentQuery(now=NOW, limit=101))
    assert page == query.page_of(every)
    return [payment.id for payment in page]


def referring(text: str, member: str = "externalRef", **terms: Any) -> Any:
    """Return the creation of a payment with this reference."""
    return a_creation(metadata=f'{{"{member}":"{text}"}}', **terms)


@pytest.mark.parametrize("slice_payments", [1, 2000])
def test_payments_are_found_with_every_other_filter(
    database: str, monkeypatch: pytest.MonkeyPatch, slice_payments: int
) -> None:
    """The reference is one filter among the others. Texts of another length are not indexed."""
    monkeypatch.setattr(_list, "STORE_SLICE_PAYMENTS_MAX", slice_payments)
    wallets = [a_wallet_address(f"https://bank.example/{name}") for name in ("alice", "bob")]
    clients = [client_id("https://shop.example/"), client_id("https://b.example/")]
    with PostgresStore(database, reference="externalRef") as store:
        assert store.reference == "externalRef"
        ids = [create(store), create(store, a_creation(metadata="{}"))]
        for number, (text, wallet, client) in enumerate(product(REFERENCES, wallets, clients)):
            at = NOW + timedelta(seconds=number)
            terms: dict[str, Any] = {"wallet_address": wallet, "client": client, "limit": 1, "now": at}
            ids.append(create(store, referring(text, **terms)))
            if number % 3 == 0:
                credit(store, ids[-1], "wire-1", 1, at)
        assert [len(found(store, text)) for text in ("INV-7", "INV-8", "x" * 255, "INV-9")] == [4, 4, 4, 0]
        assert execute(database, "SELECT count(*) FROM incoming_payments.payments WHERE reference IS NOT NULL") == [
            (12,)
        ]
        for url, owner, state in product((None, wallets[0].url), (None, clients[0]), (None, *State)):
            found(store, wallet_address=url, client=owner, state=state)
            found(store, wallet_address=url, client=owner, state=state, limit=1)
            for id in ids[3:6]:
                place = Place.of(store.load(id))
                found(store, wallet_address=url, state=state, older_than=place)
                found(store, wallet_address=url, state=state, newer_than=place)


def test_first_store_of_a_new_database_names_the_member(database: str) -> None:
    """A store without the setting takes the member from the database. Another member is refused."""
    with PostgresStore(database) as store:
        assert store.reference is None
    with PostgresStore(database, reference="externalRef") as first, PostgresStore(database) as second:
        assert second.reference == "externalRef"
        id = create(second, referring("INV-7"))
        assert found(first) == found(second) == [id]
    with pytest.raises(ConfigurationError) as caught:
        PostgresStore(database, reference="invoice")
    assert caught.value.description == (
        "the database indexes the member externalRef of the metadata of its payments, and not invoice: correct the "
        "setting reference, or run `incoming-payments reindex`, or call `PostgresStore(conninfo).reindex(...)`"
    )
    assert caught.value.details == {"setting": "reference"}


def test_database_with_payments_needs_reindex(database: str) -> None:
    """The payments that are stored already are not indexed."""
    with PostgresStore(database) as store:
        create(store, referring("INV-7"))
    with pytest.raises(
        ConfigurationError, match="indexes no member of the metadata of its payments, and not externalR"
    ):
        PostgresStore(database, reference="externalRef")


@pytest.mark.parametrize("name", ["", "x" * 256, 7])
def test_invalid_name_of_a_member_is_refused(database: str, name: str) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigurationError, match="reference must be a text of 1 to 255 characters"):
        PostgresStore(database, reference=name)
    with PostgresStore(database) as store, pytest.raises(ConfigurationError, match="reference must be a text"):
        store.reindex(name)


def test_reindex_works_in_batches_beside_other_processes(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """New payments get the new member at once. A store that was opened before cannot find payments by the old one."""
    monkeypatch.setattr(_reindex, "FEED_ROWS_MAX", 2)
    with PostgresStore(database, reference="a") as old, PostgresStore(database) as new:
        ids = [create(old, a_creation(metadata=f'{{"a":"INV-7","b":"INV-{number % 2}"}}')) for number in range(5)]
        new.reindex("b")
        assert new.reference == "b"
        ids.append(create(old, a_creation(metadata='{"a":"INV-7","b":"INV-0"}')))
        assert sorted(found(new, "INV-0", "b")) == sorted(ids[::2] + ids[5:])
        with pytest.raises(ConfigurationError, match="indexes the member b of the metadata of its payments, and not a"):
            found(old, member="a")
    with PostgresStore(database) as new:
        new.reindex(None)
        assert execute(database, "SELECT count(*) FROM incoming_payments.payments WHERE reference IS NOT NULL") == [
            (0,)
        ]
        assert new.reference is None

    async def index() -> None:
        async with AsyncPostgresStore(database) as store:
            await store.reindex("a")
            assert store.reference == "a"

    asyncio.run(index())
    with PostgresStore(database, reference="a") as store:
        assert len(found(store, member="a")) == 6


def test_interrupted_reindex_continues(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is complete, the database indexes no member. Another process can complete it."""
    monkeypatch.setattr(_reindex, "FEED_ROWS_MAX", 2)
    with PostgresStore(database) as store:
        ids = [create(store, referring("INV-7")) for _ in range(5)]
        store._engine.run(_reindex.begin_reindex("externalRef"))
        assert not store._engine.run(_reindex.reindex())
        with pytest.raises(ConfigurationError, match="indexes no member"):
            found(store)
        with pytest.raises(ConfigurationError, match="indexes no member"):
            PostgresStore(database, reference="externalRef")
        with PostgresStore(database) as other:
            assert other.reference is None
            other.reindex("externalRef")
        assert store._engine.run(_reindex.reindex())
        assert sorted(found(store)) == sorted(ids)


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_reindex_waits_for_transactions_that_began_before(database: str, open_store: Any) -> None:
    """Such a transaction may insert a payment with its reference in the old member."""
    with PostgresStore(database, reference="a") as old, ThreadPoolExecutor(1) as executor:
        create(old, a_creation(metadata='{"b":"INV-7"}'))
        with psycopg.connect(database) as earlier:
            earlier.execute("SELECT 1")
            with open_store(database) as store:
                reindex = store.reindex if isinstance(store, PostgresStore) else partial(reindexed, store)
                done = executor.submit(reindex, "b")
                time.sleep(0.2)
                assert not done.done()
                earlier.rollback()
                done.result()
    with PostgresStore(database, reference="b") as store:
        assert len(found(store, member="b")) == 1


def reindexed(view: SyncView, member: str) -> None:
    """Call `reindex` of the async store."""
    assert isinstance(view.store, AsyncPostgresStore)
    view.run(view.store.reindex(member))


def test_an_async_store_checks_the_reference_at_its_first_call(database: str) -> None:
    """Each call raises the error, and opens no connections that stay."""
    with PostgresStore(database, reference="a"), async_view(database, reference="b") as view:
        assert isinstance(view.store, AsyncPostgresStore)
        assert view.store.reference == "b"
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="indexes the member a of the metadata"):
                create(view)
    with async_view(database) as view:
        create(view)
        assert isinstance(view.store, AsyncPostgresStore)
        assert view.store.reference == "a"
