"""Every statement that a store can send respects the rules for distributed databases that speak PostgreSQL's protocol.

`STATEMENTS` lists them, because a statement is made only by `statement`, at the top of a module.
"""

import ast
import re
from pathlib import Path
from typing import Final

import pytest

from incoming_payments.stores import postgres
from incoming_payments.stores.postgres._schema import CREATE_VERSIONS, VERSIONS
from incoming_payments.stores.postgres._steps import STATEMENTS

SOURCE: Final = Path(postgres.__file__).parent
TEXTS: Final = [" ".join(statement.text.decode().split()) for statement in STATEMENTS]
STEPS: Final = [
    *(" ".join(step.split()) for step in CREATE_VERSIONS),
    *(" ".join(step.split()) for version in VERSIONS for step in (*version.before, *version.after)),
]
# What no statement of a store may use: each pattern with the reason.
FORBIDDEN: Final = {
    r"\bsequence\b|\bserial\b|\bnextval\b|\bidentity\b": "the order of numbers is not the order of commits",
    r"\btrigger\b|\bfunction\b|\bprocedure\b|\bDO \$": "Aurora DSQL has no triggers",
    r"\bsavepoint\b": "Aurora DSQL has no savepoints",
    r"\badvisory\b": "distributed databases do not lock for all nodes",
    r"\blisten\b|\bnotify\b": "NOTIFY takes a global lock at commit",
    r"\btemp\b|\btemporary\b|\bunlogged\b": "a pooler may use another session",
    r"\btruncate\b": "Aurora DSQL has no TRUNCATE",
    r"\bcollate\b": "Aurora DSQL has no COLLATE",
    r"\block table\b": "it stops all other writers",
    r"\bset session\b|^set (?!local)": "a pooler may use another session",
    r"\bprepare transaction\b|\bcommit prepared\b": "an open transaction would stay after a crash",
    r"\bnow\(\)|\bcurrent_timestamp\b": "the clock of the service decides",
}
TABLES_OF_MONEY: Final = ("payments", "credits", "events")


@pytest.mark.parametrize("pattern", FORBIDDEN)
def test_statements_use_no_forbidden_feature(pattern: str) -> None:
    """The statements run on any database with transactions and row locks."""
    assert [text for text in TEXTS if re.search(pattern, text, re.IGNORECASE)] == []


@pytest.mark.parametrize("pattern", [pattern for pattern in FORBIDDEN if "collate" not in pattern])
def test_tables_use_no_forbidden_feature(pattern: str) -> None:
    """Only `COLLATE` is allowed: the docs say how the tables differ for a database without it."""
    assert [step for step in STEPS if re.search(pattern, step, re.IGNORECASE)] == []


def test_collations_are_of_one_kind() -> None:
    """Each text in an index has the collation C, and nothing else has a collation."""
    collations = {found for step in STEPS for found in re.findall(r'COLLATE "?(\w+)', step)}
    assert collations <= {"C"}


def test_statements_name_the_schema_of_each_table() -> None:
    """A `search_path` has no effect."""
    tables = {
        found
        for step in STEPS
        for found in re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?incoming_payments\.(\w+)", step)
    }
    for text in TEXTS:
        for table in tables:
            named = re.findall(rf"(?:FROM|INTO|UPDATE|JOIN) (\S*\b{table}\b)", text)
            assert set(named) <= {f"incoming_payments.{table}"}, text


def writes(text: str) -> set[str]:
    """Return the tables of money that a statement changes."""
    changed = re.findall(r"(?:INSERT INTO|UPDATE|DELETE FROM) incoming_payments\.(\w+)", text)
    return set(changed) & set(TABLES_OF_MONEY)


def test_each_change_of_money_names_one_payment_by_its_primary_key() -> None:
    """A statement that changes an amount, or adds a credit or an event, is about one payment."""
    changing = [text for text in TEXTS if writes(text) and "received_amount" in text]
    assert len(changing) == 2  # a new payment, and a changed one
    for text in changing:
        updates = re.findall(r"UPDATE incoming_payments\.payments SET .*? WHERE (.*?) RETURNING id", text)
        assert updates in ([], ["id = $8 AND version = $9"])
        assert all(source == "payment" for source in re.findall(r"SELECT payment\.id, added\.\* FROM (\w+)", text))
    for text in TEXTS:
        assert "DELETE" not in text or not writes(text)


def test_the_other_changes_of_payments_are_known() -> None:
    """They change metadata, and no money."""
    others = [text for text in TEXTS if writes(text) and "received_amount" not in text]
    assert {re.findall(r"SET (.*?) (?:WHERE|FROM)", text)[0] for text in others} == {
        "metadata = NULL, reference = NULL",
        "reference = digests.digest",
    }


def test_every_statement_is_declared_at_the_top_of_a_module() -> None:
    """No function makes a statement, so `STATEMENTS` is complete when the package is imported."""
    for path in SOURCE.glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name not in MAKERS:
                called = {
                    node.func.id
                    for node in ast.walk(function)
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
                }
                assert not called & {"statement", "Statement"}, f"{path.name}: {function.name}"


MAKERS: Final = {"statement", "_page", "_slice"}  # called only at the top of a module


def test_only_migrations_execute_text() -> None:
    """All other modules send statements through `Wire`."""
    executing = {
        path.name
        for path in SOURCE.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"execute", "executemany", "cursor"}
    }
    assert executing == {"_migrations.py"}
