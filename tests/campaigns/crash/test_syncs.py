"""Workers killed inside a sync: a short form of `campaigns.crash.syncs`."""

from pathlib import Path

from campaigns.crash.syncs import run_campaign
from campaigns.disk.faults import build


def test_no_answer_is_lost_when_workers_are_killed_inside_a_sync(tmp_path: Path) -> None:
    """Some of the syncs fail, and lose their pages. After power cuts, the disk has everything that was answered."""
    report = run_campaign(tmp_path, build(tmp_path), rounds=10, seed=3, workers=2)
    assert report.violations == []
    assert min(report.figures.fulfilled, report.figures.repeated, report.figures.creates) > 0
