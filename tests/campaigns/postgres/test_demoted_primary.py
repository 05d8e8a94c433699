"""A store whose connections lead to a demoted primary finds the new primary."""

from collections.abc import Callable
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from incoming_payments.errors import StoreUnavailable
from incoming_payments.stores.postgres import PostgresStore, migrate
from incoming_payments.testing.steps import create, credit
from kits.postgres import async_view
from kits.postgres_cluster import Cluster
from kits.tcp_proxy import TcpProxy


@pytest.mark.parametrize("open_store", [PostgresStore, async_view])
def test_connections_to_a_demoted_primary_are_dropped(open_store: Callable[[str], Any]) -> None:
    """The address of the database still leads to the old primary for a while. It is a standby now, and read only."""
    with Cluster() as cluster, TcpProxy(cluster.primary.port) as proxy:
        migrate(cluster.conninfo)
        with open_store(make_conninfo(cluster.primary.conninfo, port=proxy.port)) as store:
            id = create(store)
            credit(store, id, "wire-1", 5)
            cluster.fail_over()
            cluster.rebuild()
            with pytest.raises(StoreUnavailable, match="read-only"):
                credit(store, id, "wire-2", 6)

            proxy.upstream = cluster.primary.port  # the open connections still lead to the old one

            assert credit(store, id, "wire-2", 6).received.value == 11
            assert credit(store, id, "wire-1", 5).received.value == 5
