"""Consumers of the feed that are killed at random get each event, and the check finds each kind of difference."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from campaigns.crash import webhooks
from campaigns.crash.arrivals import Arrival, Facts, violations_of
from campaigns.crash.feed import CONSUMERS
from campaigns.crash.service import environment

ROUNDS: Final = 4


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_each_event_arrives_although_all_processes_are_killed(tmp_path: Path) -> None:
    """The program compares the arrivals at consumers, one of them of webhooks, with the database, and audits it."""
    command = [sys.executable, "-m", "campaigns.crash.feed", str(tmp_path), "7", str(ROUNDS)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300)
    assert (run.returncode, run.stderr) == (0, ""), run.stdout
    lines = (line.rpartition(" ") for line in run.stdout.splitlines())
    figures = {name.strip(): int(figure) for name, _, figure in lines}
    assert figures["processes killed"] > figures["relays of webhooks killed"] > ROUNDS
    assert figures["arrivals at single"] > figures["duplicates at single"] > 0
    assert figures[f"arrivals at {webhooks.NAME}"] > figures[f"duplicates at {webhooks.NAME}"]
    assert figures["deliveries audited"] > figures["payments audited"] > 0


def facts(version: int) -> list[str | int | None]:
    """Return the facts of an event."""
    return ["created", 0, None] if version == 1 else ["credited", version - 1, f"wire-{version}"]


def arrival(first: int, last: int) -> Arrival:
    """Return the arrival of a delivery of the payment `p`."""
    return f"p_{first}_{last}", json.dumps({f"p_{version}": facts(version) for version in range(first, last + 1)})


STORED: Final = {f"p_{version}": facts(version) for version in range(1, 5)}
HONEST: Final = [arrival(1, 1), arrival(2, 3), arrival(2, 3), arrival(4, 4), arrival(1, 1)]
CHANGES: Final[dict[str, Callable[[list[Arrival]], list[Arrival]]]] = {
    "never arrived": lambda arrivals: arrivals[:3],
    "was invented": lambda arrivals: [*arrivals, arrival(5, 5)],
    "not in order": lambda arrivals: [*arrivals[3:], *arrivals[:3]],
    "has other bytes": lambda arrivals: [*arrivals, (arrivals[0][0], arrivals[0][1] + " ")],
    "two deliveries": lambda arrivals: [*arrivals, arrival(3, 3)],
}


def test_duplicates_in_order_are_no_violation() -> None:
    """A delivery may arrive again at any time."""
    assert list(violations_of(CONSUMERS[0], HONEST, STORED)) == []


@pytest.mark.parametrize("name", CHANGES)
def test_each_kind_of_difference_is_found(name: str) -> None:
    """The text names the event, the delivery or the payment."""
    [*found] = violations_of(CONSUMERS[0], CHANGES[name](HONEST), STORED)
    assert any(name in text for text in found), found


def test_an_excluded_event_is_found() -> None:
    """The filter of the consumer excludes credits."""
    found = list(violations_of(CONSUMERS[2], HONEST, STORED))
    assert [text for text in found if "is excluded" in text] == [f"the event is excluded: p_{n}" for n in (2, 3, 4)]


def webhook(total: str, credited: str) -> Arrival:
    """Return the arrival of a webhook of the credits with the versions 2 and 3."""
    data = {"paymentId": "p", "firstVersion": 2, "lastVersion": 3, "receivedAmount": {"value": total}}
    data |= {"creditCount": 2, "creditedAmount": {"value": credited}}
    return "p_2_3", json.dumps({"type": "payment.credited", "data": data})


@pytest.mark.parametrize(("total", "credited", "found"), [("2", "2", False), ("3", "2", True), ("2", "1", True)])
def test_a_webhook_with_a_wrong_amount_is_found(total: str, credited: str, found: bool) -> None:
    """The total and the sum of the credits follow from the stored events."""
    stored: dict[str, Facts] = {"p_2": ["credited", 1, "wire-0"], "p_3": ["credited", 2, "wire-1"]}
    texts = list(violations_of(CONSUMERS[0], [webhook(total, credited)], stored, read=webhooks.facts_in))
    assert bool(texts) is found, texts


def test_a_dead_letter_may_arrive_late() -> None:
    """No other delivery may."""
    arrivals = [arrival(1, 1), arrival(4, 4), arrival(2, 3)]
    assert list(violations_of(CONSUMERS[0], arrivals, STORED, late={"p_2_3"})) == []
    assert list(violations_of(CONSUMERS[0], arrivals, STORED, late={"p_1_1"})) != []
