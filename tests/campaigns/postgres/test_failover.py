"""Short failover campaigns find nothing in the stores, and find a store that acknowledges too early."""

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
    stores = ["trusts_reads"] * 2
    _, report = run_campaign(tmp_path, rounds=1, seed=1, stores=stores, first=ROUNDS.index(CANCEL))

    assert report.kinds >= {"no acknowledged credit is lost", "the history is linearizable"}


def test_a_relay_that_sends_before_the_commit_is_found(tmp_path: Path) -> None:
    """After the failover lost a claim, a relay claims again, mostly with other events."""
    stores, first = [EARLY] * 2, ROUNDS.index(CANCEL)

    def finds(seed: int) -> bool:
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, report = run_campaign(folder, rounds=1, seed=seed, stores=stores, first=first)
        return report.kinds == {"each event arrives as it was claimed"}

    assert any(finds(seed) for seed in range(1, 6))
