"""Short failover campaigns find nothing in the stores, and find a store that acknowledges too early."""

from collections.abc import Iterator
from pathlib import Path

from campaigns.postgres.failover import CANCEL, ROUNDS, run_campaign
from campaigns.postgres.relays import EARLY


def test_a_failover_loses_and_doubles_no_acknowledged_credit(tmp_path: Path) -> None:
    """The primary is killed under load, then also after commits were cancelled that waited for the standby."""
    figures, report = run_campaign(tmp_path, rounds=2, seed=1)

    assert report.violations == []
    assert report.credits_acknowledged >= 80
    assert figures.arrivals >= 10
    assert report.unknown_outcomes > 0
    assert figures.interrupted >= 10
    assert max(figures.credits_s) < 30  # on a busy machine


def test_a_store_that_acknowledges_what_a_plain_read_finds_loses_credits(tmp_path: Path) -> None:
    expected = {"no acknowledged credit is lost", "the history is linearizable"}
    assert any(expected <= kinds for kinds in _kinds_found(tmp_path, "trusts_reads"))


def test_a_relay_that_sends_before_the_commit_is_found(tmp_path: Path) -> None:
    """A claim that the failover lost is made again, mostly with other events."""
    assert any(kinds == {"each event arrives as it was claimed"} for kinds in _kinds_found(tmp_path, EARLY))


def _kinds_found(folder: Path, store: str) -> Iterator[set[str]]:
    """Yield the promises that `store` breaks in each of some campaigns of one round, in which commits are cancelled."""
    for seed in range(1, 7):
        own = folder / str(seed)
        own.mkdir()
        _, report = run_campaign(own, rounds=1, seed=seed, stores=[store] * 2, first=ROUNDS.index(CANCEL))
        yield report.kinds
