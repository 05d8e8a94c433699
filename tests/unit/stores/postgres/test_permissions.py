"""The rights on the page about permissions are enough for each role, and none is too much for the service."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from incoming_payments.domain.payment import CreditId
from incoming_payments.errors import StoreUnusable
from incoming_payments.server.command import main
from incoming_payments.stores.postgres import PostgresStore
from incoming_payments.stores.postgres._steps import STATEMENTS
from incoming_payments.testing import a_creation, crediting
from kits.postgres import execute, server_url, url_of

ROOT: Final = Path(__file__).resolve().parents[4]
ROLES: Final = ("bank_owner", "bank_audit", "bank")
NOT_EXPLAINED: Final = (b"BEGIN", b"COMMIT", b"SET")


def blocks() -> list[str]:
    """Return the SQL of the page, with names that other tests do not use."""
    page = (ROOT / "docs/permissions.md").read_text("utf-8")
    return [re.sub(r"\bbank(?=\b|_)", f"bank_{os.getpid()}", sql) for sql in re.findall(r"(?s)```sql\n(.*?)```", page)]


def as_role(name: str) -> str:
    """Return the connection string of a role of the page."""
    own = name.replace("bank", f"bank_{os.getpid()}")
    return make_conninfo(server_url(), dbname=f"bank_{os.getpid()}", user=own, password="secret")


@pytest.fixture(scope="module")
def rights() -> Iterator[None]:
    """Follow the page: create the roles and the database, migrate, and grant the rights."""
    creation, grants = blocks()
    try:
        for statement in creation.replace("LOGIN", "LOGIN PASSWORD 'secret'").split(";"):
            execute(server_url(), statement)
        assert main(["migrate", "--database-url", url_of(as_role("bank_owner"))]) == 0
        execute(as_role("bank_owner"), grants)
        yield
    finally:
        execute(server_url(), f"DROP DATABASE IF EXISTS bank_{os.getpid()} WITH (FORCE)")
        for role in ROLES:
            execute(server_url(), f"DROP ROLE IF EXISTS {role.replace('bank', f'bank_{os.getpid()}')}")


def refused(role: str) -> int:
    """Return the number of statements that the role may not run. EXPLAIN checks the rights, and runs nothing."""
    count = 0
    with psycopg.connect(as_role(role), autocommit=True) as connection:
        for statement in STATEMENTS:
            if not statement.text.startswith(NOT_EXPLAINED):
                try:
                    connection.execute(b"EXPLAIN (GENERIC_PLAN) " + statement.text)
                except psycopg.errors.InsufficientPrivilege:
                    count += 1
    return count


@pytest.mark.usefixtures("rights")
def test_the_service_may_run_every_statement() -> None:
    """The audit may run only those that change and lock nothing."""
    assert refused("bank") == 0
    assert 0 < refused("bank_audit") < len(STATEMENTS)


@pytest.mark.usefixtures("rights")
def test_service_needs_each_of_its_rights() -> None:
    """If one right is taken away, PostgreSQL refuses a statement of the store."""
    owner, service = as_role("bank_owner"), f"bank_{os.getpid()}"
    held = execute(
        owner,
        "SELECT privilege_type, table_name, grantee FROM information_schema.role_table_grants "
        "WHERE table_schema = 'incoming_payments'",
    )
    of_service = [row[:2] for row in held if row[2] == service]
    assert len(of_service) > 30
    for right, table in of_service:
        execute(owner, f"REVOKE {right} ON incoming_payments.{table} FROM {service}")
        assert refused("bank") > 0, (right, table)
        execute(owner, f"GRANT {right} ON incoming_payments.{table} TO {service}")


@pytest.mark.usefixtures("rights")
def test_role_without_a_right_gets_an_error() -> None:
    """The service works with its role. The role of the audit reads, and cannot create a payment."""
    created = a_creation(limit=500)
    with PostgresStore(as_role("bank"), reference="externalRef") as store:
        store.insert(created)
        store.update(created.answer.id, crediting("wire-1", 5), CreditId("wire-1"))
        store.reindex("invoice")
    with PostgresStore(as_role("bank_audit")) as store:
        assert store.load(created.answer.id).received.value == 5
        with pytest.raises(StoreUnusable, match=r"permission denied for table .*the rights of the role"):
            store.insert(a_creation())
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        execute(as_role("bank"), "DELETE FROM incoming_payments.payments")


@pytest.mark.usefixtures("rights")
def test_reindex_waits_for_the_transactions_of_other_roles() -> None:
    """PostgreSQL hides from the role of the service when these began, but not that they run."""
    with (
        PostgresStore(as_role("bank")) as store,
        ThreadPoolExecutor() as threads,
        psycopg.connect(as_role("bank_owner")) as other,
    ):
        other.execute("SELECT 1")
        reindexing = threads.submit(store.reindex, "other")
        with pytest.raises(TimeoutError):
            reindexing.result(0.5)
        other.rollback()
        reindexing.result(10)
