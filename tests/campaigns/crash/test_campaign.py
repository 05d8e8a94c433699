"""Kills at random times: the part of `nox -s crash` that runs with the other tests."""

from pathlib import Path
from typing import Final

from campaigns.crash.campaign import run_campaign
from campaigns.crash.check import Report

KILLS: Final = 20


def test_no_promise_breaks_when_the_service_is_killed_at_random(tmp_path: Path) -> None:
    """Each fulfilled packet is credited once, and `check` finds no broken promise."""
    report = run_campaign(tmp_path, kills=KILLS, seed=20)

    assert report.violations == []
    assert_busy(report)


def assert_busy(report: Report) -> None:
    """Check that kills could have lost something: packets, unanswered requests, other credits, full payments."""
    figures = report.figures
    assert figures.fulfilled > KILLS
    assert min(figures.repeated, figures.fulfilled_late, figures.calls_credited, figures.creates, figures.completed) > 0
    assert figures.closed > 0
    assert figures.credits == figures.fulfilled + figures.calls_credited
