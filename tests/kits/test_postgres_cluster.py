"""The cluster behaves like a primary with a synchronous standby, also when its processes are killed."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kits.postgres_cluster import Cluster
from kits.processes import is_running


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a cluster with an empty table. Each test leaves both servers running."""
    with Cluster() as cluster:
        cluster.primary.execute("CREATE TABLE numbers (number integer)")
        yield cluster


def insert(cluster: Cluster, number: int) -> None:
    """Insert and commit `number` on the server that accepts writes."""
    with psycopg.connect(cluster.conninfo, connect_timeout=5) as connection:
        connection.execute("INSERT INTO numbers VALUES (%s)", (number,))


def numbers(cluster: Cluster) -> list[int]:
    """Return the numbers on the primary."""
    return [number for (number,) in cluster.primary.execute("SELECT number FROM numbers ORDER BY number")]


def test_a_commit_waits_while_the_standby_is_absent(cluster: Cluster) -> None:
    insert(cluster, 1)
    cluster.standby.stop()
    thread = threading.Thread(target=insert, args=(cluster, 2))
    thread.start()
    cluster.primary.await_result("SELECT bool_or(wait_event = 'SyncRep') FROM pg_stat_activity")
    thread.join(0.5)
    assert thread.is_alive()

    cluster.standby.start()

    thread.join(30)
    assert not thread.is_alive()
    assert numbers(cluster) == [1, 2]


def test_a_promoted_standby_has_all_commits_and_accepts_writes(cluster: Cluster) -> None:
    before = numbers(cluster)
    insert(cluster, 3)
    old = cluster.primary

    promotion_s = cluster.fail_over()

    assert not old.is_running
    assert promotion_s < 30
    insert(cluster, 4)
    assert numbers(cluster) == [*before, 3, 4]
    began = time.monotonic()
    cluster.rebuild()
    print(f"promoted in {promotion_s:.2f} s, and rebuilt the other server in {time.monotonic() - began:.2f} s")
    insert(cluster, 5)
    assert cluster.standby.execute("SELECT max(number) FROM numbers") == [(5,)]


def test_killed_servers_start_again_with_all_commits(cluster: Cluster) -> None:
    before = numbers(cluster)
    insert(cluster, 6)

    cluster.primary.kill()
    cluster.standby.kill()
    with pytest.raises(psycopg.OperationalError):
        insert(cluster, 7)
    cluster.primary.start()
    cluster.standby.start()
    cluster.await_standby()

    insert(cluster, 8)
    assert numbers(cluster) == [*before, 6, 8]


def test_the_end_of_the_context_stops_the_servers_and_removes_their_files() -> None:
    folders: list[Path] = []
    pids: list[int] = []

    def fail() -> None:
        with Cluster() as cluster:
            folders.append(cluster.folder)
            pids.extend([cluster.primary.process.pid, cluster.standby.process.pid])
            cluster.standby.kill()
            raise KeyError("the test has failed")

    with pytest.raises(KeyError):
        fail()

    assert not any(map(is_running, pids))
    assert not folders[0].exists()
