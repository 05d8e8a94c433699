"""Payments are found by a member of their metadata, which the database names."""

import asyncio
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import client_id
from incoming_payments.domain.reference import Reference
from incoming_payments.domain.transitions import State
from incoming_payments.errors import ConfigurationError
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore, _list, _reindex
from incoming_payments.testing import NOW, a_creation, a_wallet_address
from incoming_payments.testing.steps import create, credit
from kits.sqlite_jobs import rows

REFERENCES = ("INV-7", "INV-8", "x" * 255, "x" * 256, "")


def found(store: SqliteStore, text: str = "INV-7", member: str = "externalRef", **filters: Any) -> list[str]:
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
    path: Path, monkeypatch: pytest.MonkeyPatch, slice_payments: int
) -> None:
    """The reference is one filter among the others. Texts of another length are not indexed."""
    monkeypatch.setattr(_list, "STORE_SLICE_PAYMENTS_MAX", slice_payments)
    wallets = [a_wallet_address(f"https://bank.example/{name}") for name in ("alice", "bob")]
    clients = [client_id("https://shop.example/"), client_id("https://b.example/")]
    with SqliteStore(path, reference="externalRef") as store:
        assert store.reference == "externalRef"
        ids = [create(store), create(store, a_creation(metadata="{}"))]
        for number, (text, wallet, client) in enumerate(product(REFERENCES, wallets, clients)):
            at = NOW + timedelta(seconds=number)
            terms: dict[str, Any] = {"wallet_address": wallet, "client": client, "limit": 1, "now": at}
            ids.append(create(store, referring(text, **terms)))
            if number % 3 == 0:
                credit(store, ids[-1], "wire-1", 1, at)
        assert [len(found(store, text)) for text in ("INV-7", "INV-8", "x" * 255, "INV-9")] == [4, 4, 4, 0]
        assert rows(path, "SELECT count(*) FROM payments WHERE reference IS NOT NULL") == [(12,)]
        for url, owner, state in product((None, wallets[0].url), (None, clients[0]), (None, *State)):
            found(store, wallet_address=url, client=owner, state=state)
            found(store, wallet_address=url, client=owner, state=state, limit=1)
            for id in ids[3:6]:
                place = Place.of(store.load(id))
                found(store, wallet_address=url, state=state, older_than=place)
                found(store, wallet_address=url, state=state, newer_than=place)


def test_first_store_of_a_new_database_names_the_member(path: Path) -> None:
    """A store without the setting takes the member from the database. Another member is refused."""
    with SqliteStore(path) as store:
        assert store.reference is None
    with SqliteStore(path, reference="externalRef") as first, SqliteStore(path) as second:
        assert second.reference == "externalRef"
        id = create(second, referring("INV-7"))
        assert found(first) == found(second) == [id]
    with pytest.raises(ConfigurationError) as caught:
        SqliteStore(path, reference="invoice")
    assert caught.value.description == (
        f"{path} indexes the member externalRef of the metadata of its payments, and not invoice: correct the setting "
        "reference, or run `incoming-payments reindex`, or `SqliteStore(path).reindex(...)`"
    )
    assert caught.value.details == {"setting": "reference"}


def test_database_with_payments_needs_reindex(path: Path) -> None:
    """The payments that are stored already are not indexed."""
    with SqliteStore(path) as store:
        create(store, referring("INV-7"))
    with pytest.raises(
        ConfigurationError, match="indexes no member of the metadata of its payments, and not externalR"
    ):
        SqliteStore(path, reference="externalRef")


@pytest.mark.parametrize("name", ["", "x" * 256, "\ud800", 7])
def test_invalid_name_of_a_member_is_refused(path: Path, name: str) -> None:
    """The error names the setting."""
    with pytest.raises(ConfigurationError, match="reference must be a text of 1 to 255 characters"):
        SqliteStore(path, reference=name)
    with SqliteStore(path) as store, pytest.raises(ConfigurationError, match="reference must be a text"):
        store.reindex(name)


def test_reindex_works_in_batches_beside_other_processes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New payments get the new member at once. A store that was opened before cannot find payments by the old one."""
    monkeypatch.setattr(_reindex, "FEED_ROWS_MAX", 2)
    with SqliteStore(path, reference="a") as old, SqliteStore(path) as new:
        ids = [create(old, a_creation(metadata=f'{{"a":"INV-7","b":"INV-{number % 2}"}}')) for number in range(5)]
        new.reindex("b")
        assert new.reference == "b"
        ids.append(create(old, a_creation(metadata='{"a":"INV-7","b":"INV-0"}')))
        assert sorted(found(new, "INV-0", "b")) == sorted(ids[::2] + ids[5:])
        with pytest.raises(ConfigurationError, match="indexes the member b of the metadata of its payments, and not a"):
            found(old, member="a")
    with SqliteStore(path) as new:
        new.reindex(None)
        assert rows(path, "SELECT count(*) FROM payments WHERE reference IS NOT NULL") == [(0,)]
        assert new.reference is None

    async def index() -> None:
        async with AsyncSqliteStore(path) as store:
            await store.reindex("a")
            assert store.reference == "a"

    asyncio.run(index())
    with SqliteStore(path, reference="a") as store:
        assert len(found(store, member="a")) == 6


def test_interrupted_reindex_continues(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is complete, the database indexes no member. Another process can complete it."""
    monkeypatch.setattr(_reindex, "FEED_ROWS_MAX", 2)
    with SqliteStore(path) as store:
        ids = [create(store, referring("INV-7")) for _ in range(5)]
        store._write(lambda rows: _reindex.begin_reindex(rows, "externalRef"))
        assert not store._write(_reindex.reindex)
        with pytest.raises(ConfigurationError, match="indexes no member"):
            found(store)
        with pytest.raises(ConfigurationError, match="indexes no member"):
            SqliteStore(path, reference="externalRef")
        with SqliteStore(path) as other:
            assert other.reference is None
            other.reindex("externalRef")
        assert store._write(_reindex.reindex)
        assert sorted(found(store)) == sorted(ids)
