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


@pytest.mark.parametrize(
    ("store", "broken"),
    [("forgets_ids", "nothing is invented"), ("remembers_reads", "the history is linearizable")],
)
def test_a_store_that_breaks_a_promise_is_found(tmp_path: Path, store: str, broken: str) -> None:
    _, report = run_campaign(tmp_path, rounds=3, seed=2, stores=[store] * 2, kills=["server"])

    assert broken in report.kinds
