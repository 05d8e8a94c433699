"""The exploration visits all states of small scenarios, and finds code that is broken on purpose."""

from pathlib import Path
from typing import Final

import pytest

from campaigns.explore import campaign
from campaigns.explore.campaign import explore, explore_fault, text_of
from campaigns.explore.faults import FAULTS
from campaigns.explore.scenarios import SCENARIOS

# The least number of states, and some answers that clients must get. Without them, a search proves nothing.
EXPECTED: Final = {
    "packets": (2_000, {"first: fulfilled", "first: F08", "first: R00", "first: T00", "changed: F03"}),
    "expiry": (2_000, {"packet: fulfilled", "packet: F07", "wire: credited 100", "complete: PaymentExpired"}),
    "clocks": (5_000, {"packet: fulfilled", "packet: F07", "wire: PaymentCompleted", "sweep: found 1"}),
    "races": (2_000, {"packet: fulfilled", "packet: T00", "packet: F07", "wire: credited 100", "complete: completed"}),
    "approvals": (2_000, {"first: fulfilled", "first: F99", "second: F07", "wire: credited 100"}),
    "feed": (2_000, {"consume: handled a delivery", "consume: nothing is due"}),
    "creations": (400, {"create: StoreUnavailable"}),
}


def session(*arguments: str) -> tuple[int, list[str]]:
    """Return the exit status of the session and its output."""
    output: list[str] = []
    return campaign.main(arguments, output.append), output


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_state_of_a_small_scenario_breaks_a_promise(name: str) -> None:
    """The search visits at least the known number of states, and clients get the known answers."""
    states_min, answers = EXPECTED[name]
    report = explore(name, large=False)
    assert report.failure is None
    assert report.states >= states_min
    assert answers - report.answers == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_its_path_repeats_it(name: str) -> None:
    """The path ends at the broken promise."""
    report = explore_fault(name)
    assert report.failure is not None
    path = text_of(report.scenario, report.failure.path)
    status, output = session("--path", path, "--fault", name)
    assert (status, output[-1]) == (1, f"broken: {report.failure.text}")


def test_a_store_without_a_lock_has_the_shortest_path() -> None:
    """Two calls are both decided before one of them is saved."""
    report = explore_fault("the store has no lock")
    assert report.failure is not None
    assert report.failure.path == ("1+packet", "2+wire", "1", "2", "1", "2")


def test_a_path_is_printed_step_by_step() -> None:
    """The output has each choice, each event and each answer."""
    status, output = session("--small", "--path", "packets:1+first,1a,1+first,1,t")
    lines = [" ".join(line.split()) for line in output]
    assert (status, lines[0], lines[1]) == (
        0,
        "1 1+first process 1 receives first",
        "2 1a process 1, first: store.update happens, and the process dies after it",
    )
    assert lines[2].startswith("event 2: credited stream:")
    assert lines[4:] == [
        "4 1 process 1, first: store.update happens",
        "first is answered: fulfilled (total 100)",
        "5 t the time is 12:00:40",
        "no promise is broken",
    ]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("packets:2", "2 is not possible here; possible are 1+first, 1+second, 1+changed, t"),
        ("nothing:1", f"there is no scenario 'nothing'; there are {', '.join(SCENARIOS)}"),
    ],
)
def test_a_path_that_is_not_possible_is_refused(path: str, text: str) -> None:
    """The message lists what is possible."""
    assert session("--small", "--path", path) == (1, [f"broken: {text}"])


def test_the_session_prints_a_row_for_each_scenario() -> None:
    """The row has the number of states, and the last line has their sum."""
    status, (head, row, total) = session("--small", "--scenario", "creations")
    assert (status, head.split()[:3], row.split()[0]) == (0, ["scenario", "states", "steps"], "creations")
    assert total == f"{row.split()[1]} states in all, and no promise is broken"


def test_the_report_lists_each_fault() -> None:
    """The table of the report has the faults of this module."""
    text = (Path(__file__).parents[3] / "docs" / "reports" / "crash-and-simulation.md").read_text("utf-8")
    assert [name for name in FAULTS if f"| {name} |" not in text] == []
