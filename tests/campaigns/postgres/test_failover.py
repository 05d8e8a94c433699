"""Short failover campaigns find nothing in the stores, and find a store that acknowledges too early."""

from pathlib import Path

from campaigns.postgres.failover import CANCEL, ROUNDS, TERMINATE, run_campaign


def test_a_failover_loses_and_doubles_no_acknowledged_credit(tmp_path: Path) -> None:
    """The primary is killed under load, then also after commits were cancelled that waited for the standby."""
    figures, report = run_campaign(tmp_path, rounds=2, seed=1)

    assert report.violations == []
    assert report.credits_acknowledged >= 80
    assert report.unknown_outcomes > 0
    assert figures.interrupted >= 10
    assert max(figures.credits_s) < 30  # on a busy machine


def test_connections_that_end_in_the_wait_for_the_standby_lose_no_acknowledged_credit(tmp_path: Path) -> None:
    figures, report = run_campaign(tmp_path, rounds=1, seed=1, first=ROUNDS.index(TERMINATE))

    assert report.violations == []
    assert figures.interrupted >= 10


def test_a_store_that_acknowledges_what_a_plain_read_finds_loses_credits(tmp_path: Path) -> None:
    stores = ["trusts_reads"] * 2
    _, report = run_campaign(tmp_path, rounds=1, seed=1, stores=stores, first=ROUNDS.index(CANCEL))

    assert report.kinds >= {"no acknowledged credit is lost", "the history is linearizable"}
