"""The session `evidence` runs commands, stores what they print, and shows it on the page."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve

from campaigns.evidence import needs
from campaigns.evidence.campaign import collect, main
from campaigns.evidence.page import FILE, Results, State, load, tables
from campaigns.evidence.promises import PROMISES, Form, Part, Promise, lines
from kits.processes import ROOT

GOOD: Final = Promise(
    name="good",
    part=Part.CONTRACT,
    text="The program counts",
    pages="[a page](a.md)",
    short="python -c 'print(\"seed 7\\nrounds     3\\nviolations 0\")'",
    long="python -c 'print(\"rounds    90\\nviolations 0\")'",
    tell=lines("^rounds .*$", "^violations .*$"),
)
STATUS_7: Final = evolve(GOOD, name="status", short="python -c 'raise SystemExit(7)'")
SILENT: Final = evolve(GOOD, name="silent", short="python -c 'print(\"rounds 3\")'")
SLOW: Final = evolve(GOOD, name="slow", short="python -c 'import time; time.sleep(60)'")


def collected(
    folder: Path, *promises: Promise, form: Form = Form.SHORT, seconds_max: float = 30
) -> tuple[int, Results]:
    """Run the commands of `promises`, and return the exit status and all stored results."""
    file = folder / "evidence.json"
    status = collect(promises, form, file=file, output=folder / "output", seconds_max=seconds_max, say=lambda _: None)
    return status, load(file)


def rows(promises: Sequence[Promise], results: Results) -> list[list[str]]:
    """Return the cells of each row in the tables."""
    shown = tables(promises, results).splitlines()
    return [line.strip("| ").split(" | ") for line in shown if line.startswith("| `")]


def ends(promises: Sequence[Promise], results: Results) -> list[str]:
    """Return what each row shows below its command, without the time."""
    return [re.sub(r"^\d+ s: ", "", row[2].partition("<br>")[2]) for row in rows(promises, results)]


def test_command_that_succeeds_shows_its_lines(tmp_path: Path) -> None:
    """The page has the promise, the command, the time, and the lines that tell the result, without extra spaces."""
    status, results = collected(tmp_path, GOOD)
    short, long = rows([GOOD], results)
    assert status == 0
    assert short[:2] == ["`good`", "The program counts ([a page](a.md))"]
    assert re.fullmatch(rf"`{re.escape(str(GOOD.short))}`<br>\d+ s: `rounds 3`, `violations 0`", short[2])
    assert long[2] == f"`{GOOD.long}`<br>not run yet"


@pytest.mark.parametrize(
    ("promise", "seconds_max", "shown"),
    [
        (STATUS_7, 30, "**failed**: exit status 7"),
        (SILENT, 30, "**failed**: its output has no line like ^violations .*$"),
        (SLOW, 0.5, "**failed**: stopped after 0 s"),
    ],
    ids=lambda value: value.name if isinstance(value, Promise) else "",
)
def test_command_that_fails_is_shown_and_ends_with_1(
    tmp_path: Path, promise: Promise, seconds_max: float, shown: str
) -> None:
    """The other rows are run all the same."""
    status, results = collected(tmp_path, promise, form=Form.SHORT, seconds_max=seconds_max)
    again, both = collected(tmp_path, GOOD)
    assert (status, again) == (1, 0)
    assert results[Form.SHORT][promise.name].state is State.FAILED
    assert ends([promise, GOOD], both)[:2] == [shown, "`rounds 3`, `violations 0`"]


def test_command_that_cannot_run_here_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program is no failure, and the command is not run."""
    monkeypatch.delenv("INCOMING_PAYMENTS_VECTORS", raising=False)
    status, results = collected(tmp_path, evolve(STATUS_7, needs=("vectors",)))
    assert status == 0
    assert ends([STATUS_7], results)[0] == "not run here: INCOMING_PAYMENTS_VECTORS is not set"


def test_short_run_keeps_the_long_results(tmp_path: Path) -> None:
    """Each form has its own results, and each run is named with its date, commit and machine."""
    collected(tmp_path, GOOD, form=Form.LONG)
    _, results = collected(tmp_path, GOOD)
    assert ends([GOOD], results) == ["`rounds 3`, `violations 0`", "`rounds 90`, `violations 0`"]
    long = results[Form.LONG]["good"]
    assert f"- {long.date}, commit `{long.commit}`, {long.machine}: 1 command, " in tables([GOOD], results)


def test_result_of_another_command_is_not_shown(tmp_path: Path) -> None:
    """When a row gets another command, its old result no longer belongs to it."""
    _, results = collected(tmp_path, GOOD)
    assert ends([evolve(GOOD, short=STATUS_7.short)], results)[0] == "not run yet"
    assert "| " not in tables([evolve(GOOD, short=None)], results).partition("## The long form")[0]


def test_page_is_made_from_the_stored_results() -> None:
    """The page has the tables of docs/evidence.json."""
    assert tables(PROMISES, load(FILE)) in (ROOT / "docs" / "evidence.md").read_text("utf-8")


def test_names_are_unique_and_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Two rows with one name would share a result. An unknown name is refused before a command is run."""
    names = [promise.name for promise in PROMISES]
    assert len(set(names)) == len(names)
    with pytest.raises(SystemExit):
        main(["no-such-row"])
    assert "unknown row no-such-row: choose from contract, " in capsys.readouterr().err


def test_commands_name_existing_files() -> None:
    """Each path in a command exists, and each need has a test."""
    words = [word for promise in PROMISES for form in Form for word in (promise.command(form) or "").split()]
    assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == []
    assert {need for promise in PROMISES for need in promise.needs} == set(needs.NEEDS)
