"""Short crash campaigns find nothing in the stores, and find stores that break a promise."""

from pathlib import Path

import pytest

from campaigns.postgres.crash import run_campaign
from kits.postgres import READ_COMMITTED, SERIALIZABLE


@pytest.mark.parametrize("isolation", [READ_COMMITTED, SERIALIZABLE])
def test_kills_and_cut_connections_change_no_answer(tmp_path: Path, isolation: str) -> None:
    figures, report = run_campaign(tmp_path, rounds=5, seed=1, isolation=isolation)

    assert report.violations == []
    assert report.credits_acknowledged >= 50
    assert figures.kills.total() == 5
    assert figures.arrivals >= 10


def test_a_store_that_credits_under_another_id_is_found(tmp_path: Path) -> None:
    """Most of the lost answers are about a credit, and each of these is then credited twice. Few answers are lost."""
    stores, faults = ["forgets_ids"] * 2, ["cut after COMMIT"]

    def finds(seed: int) -> bool:
        folder = tmp_path / str(seed)
        folder.mkdir()
        _, report = run_campaign(folder, rounds=10, seed=seed, stores=stores, kills=["nothing"], faults=faults)
        return "nothing is invented" in report.kinds

    assert any(finds(seed) for seed in range(1, 7))


def test_a_store_that_reads_old_copies_is_found(tmp_path: Path) -> None:
    stores = ["remembers_reads"] * 2
    _, report = run_campaign(tmp_path, rounds=1, seed=1, stores=stores, kills=["nothing"], faults=["none"])

    assert report.kinds == {"the history is linearizable"}
