"""Killed at any moment: the ordinary tests' share of `nox -s crash`."""

from pathlib import Path
from typing import Final

from campaigns.crash.campaign import run_campaign
from campaigns.crash.check import Report

KILLS: Final = 20


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Every fulfilled packet is credited once, and all that `check` knows of holds, whenever the service is killed."""
    report = run_campaign(tmp_path, kills=KILLS, seed=20)

    assert report.violations == []
    assert_busy(report)


def assert_busy(report: Report) -> None:
    """There was something to be lost: packets, lost answers, other credits, full payments."""
    figures = report.figures
    assert figures.fulfilled > KILLS
    assert min(figures.repeated, figures.fulfilled_late, figures.booked, figures.creates, figures.completed) > 0
    assert figures.credits == figures.fulfilled + figures.booked
