"""Kills at random times: the part of `nox -s crash` that runs with the other tests."""

import sys
from pathlib import Path
from typing import Final

import pytest

from campaigns.crash.campaign import run_campaign
from campaigns.crash.check import Report

KILLS: Final = 20


def test_no_promise_breaks_when_the_service_is_killed_at_random(tmp_path: Path) -> None:
    """Each fulfilled packet is credited once, and `check` finds no broken promise."""
    report = run_campaign(tmp_path, kills=KILLS, seed=20)

    assert report.violations == []
    assert_busy(report)


@pytest.mark.skipif(sys.platform != "linux", reason="the workers are found in /proc")
def test_no_promise_breaks_when_workers_are_killed_at_random(tmp_path: Path) -> None:
    """Most kills hit one of two workers, and the other goes on."""
    report = run_campaign(tmp_path, kills=KILLS, seed=22, workers=2)

    assert report.violations == []
    figures = report.figures
    assert min(figures.fulfilled - KILLS, figures.repeated, figures.calls_credited, figures.creates) > 0
    assert figures.credits == figures.fulfilled + figures.calls_credited
    assert "a new worker replaces it" in (tmp_path / "service.log").read_text("utf-8")


def test_no_promise_breaks_while_the_host_approves(tmp_path: Path) -> None:
    """The host approves each payment and packet, and is pending, broken or too late at times."""
    report = run_campaign(tmp_path, kills=8, seed=21, faults=["unsteady_approval"])

    assert report.violations == []
    assert report.figures.fulfilled > 0
    records = "".join(path.read_text("utf-8") for path in tmp_path.glob("*.record"))
    assert all(answer in records for answer in ("T99", "T00"))
    assert report.figures.credits == report.figures.fulfilled + report.figures.calls_credited


def assert_busy(report: Report) -> None:
    """Check that kills could have lost something: packets, unanswered requests, other credits, full payments."""
    figures = report.figures
    assert figures.fulfilled > KILLS
    ends = figures.completed + figures.closed  # a slow machine ends few payments, and closes perhaps none of them
    assert min(figures.repeated, figures.fulfilled_late, figures.calls_credited, figures.creates, ends) > 0
    assert figures.credits == figures.fulfilled + figures.calls_credited
