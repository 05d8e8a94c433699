"""Lists in the SQLite store: each query begins at its place in an index, so that every page costs the same."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.domain.listing import PaymentQuery, Place
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId, WalletAddressUrl
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.stores.sqlite._list import page
from incoming_payments.stores.sqlite._rows import Rows
from incoming_payments.testing import NOW

WALLET: dict[str, Any] = {"wallet_address": WalletAddressUrl("https://bank.example/alice")}
CLIENT: dict[str, Any] = {"client": ClientId("https://shop.example/")}
PLACE = Place(NOW, PaymentId("019b76da-a800-7000-8000-000000000000"))
OLDER: dict[str, Any] = {"older_than": PLACE}
NEWER: dict[str, Any] = {"newer_than": PLACE}
TIMES: dict[str, Any] = {"created_from": NOW - timedelta(days=1), "created_before": NOW + timedelta(days=1)}
BELOW, ABOVE = "(created_at,id)<(?,?)", "(created_at,id)>(?,?)"


class Planned(Rows):
    """Keeps the plan of a query, and finds nothing."""

    plan = ""

    def select(self, clauses: str, values: Any) -> list[IncomingPayment]:
        """Keep the plan."""
        values = [5 if not isinstance(value, str) else value for value in values]
        steps = self.connection.execute(f"EXPLAIN QUERY PLAN SELECT id, version {clauses}", values).fetchall()
        self.plan = "; ".join(step[3] for step in steps)
        return []


@pytest.mark.parametrize(
    ("filters", "plan"),
    [
        ({}, "SCAN payments USING INDEX payments_created"),
        (OLDER, f"SEARCH payments USING INDEX payments_created ({BELOW})"),
        (WALLET, "SEARCH payments USING INDEX payments_of_wallet (wallet_address=?)"),
        (WALLET | OLDER, f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND {BELOW})"),
        (WALLET | NEWER, f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND {ABOVE})"),
        (
            WALLET | CLIENT | OLDER,
            f"SEARCH payments USING INDEX payments_of_client (wallet_address=? AND client=? AND {BELOW})",
        ),
        (
            WALLET | CLIENT | NEWER,
            f"SEARCH payments USING INDEX payments_of_client (wallet_address=? AND client=? AND {ABOVE})",
        ),
        (
            WALLET | OLDER | TIMES,
            f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND created_at>? AND {BELOW})",
        ),
        (
            WALLET | NEWER | TIMES,
            f"SEARCH payments USING INDEX payments_of_wallet (wallet_address=? AND {ABOVE} AND created_at<?)",
        ),
        (CLIENT | OLDER | {"state": "expired"}, f"SEARCH payments USING INDEX payments_created ({BELOW})"),
    ],
)
def test_query_begins_at_its_place(tmp_path: Path, filters: dict[str, Any], plan: str) -> None:
    """Nothing is sorted, and no row is read that the page passes over."""
    SqliteStore(tmp_path / "payments.db").close()
    with closing(sqlite3.connect(tmp_path / "payments.db")) as connection:
        rows = Planned(connection)
        page(rows, PaymentQuery(now=NOW, limit=20, **filters))
        assert rows.plan == plan
