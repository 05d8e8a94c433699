"""A short campaign over `serve` on PostgreSQL finds nothing."""

from pathlib import Path

from campaigns.postgres.served import FAILOVER, run_campaign


def test_serve_breaks_no_promise_when_workers_and_the_primary_are_killed(tmp_path: Path) -> None:
    figures, report = run_campaign(tmp_path, rounds=4, seed=2, kills=[FAILOVER, "all workers"])

    assert report.violations == []
    assert report.figures.fulfilled > 0
    assert report.figures.creates > 0
    assert set(figures.kills) == {FAILOVER, "all workers"}
