"""The session: which tests a module has, when it fails, and that the list of survivors is about mutants that exist."""

import subprocess
import sys

import pytest

from mutation import run

TOKEN = run.Module("gnap/token.py")
KEYS = [f"gnap/token.py::{name}" for name in TOKEN.mutants]
ALL_KILLED = dict.fromkeys(TOKEN.mutants, run.KILLED)
FIRST = TOKEN.mutants[0]


def test_the_tests_of_a_module() -> None:
    """Its own file and its doctests, then what else is about the folder."""
    own, others = TOKEN.tests
    assert own == ["tests/gnap/test_token.py", "src/incoming_payments/gnap/token.py"]
    assert others == []
    assert run.Module("httpsig/keys.py").tests[1] == list(run.TESTS["httpsig"])
    assert run.Module("httpsig/__init__.py").name == "incoming_payments.httpsig"


@pytest.mark.parametrize("listed", [True, False])
def test_a_survivor_has_to_be_listed(listed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is not makes the session fail, by its name."""
    code = run.report([TOKEN], {TOKEN.path: {**ALL_KILLED, FIRST: run.SURVIVED}}, {KEYS[0]: "why"} if listed else {})
    assert code == (0 if listed else 1)
    assert (KEYS[0] in capsys.readouterr().out) is not listed


@pytest.mark.parametrize("name", [KEYS[0], "gnap/token.py::gone"])
def test_an_entry_has_to_survive(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is killed now, or that no module has, is reported, so that the list cannot grow old."""
    assert run.report([TOKEN], {TOKEN.path: ALL_KILLED}, {name: "why"}) == 1
    assert name in capsys.readouterr().out


def test_enough_have_to_be_killed(capsys: pytest.CaptureFixture[str]) -> None:
    """A list of reasons does not replace tests."""
    outcomes = {name: run.SURVIVED if index % 10 == 0 else run.KILLED for index, name in enumerate(TOKEN.mutants)}
    assert run.report([TOKEN], {TOKEN.path: outcomes}, dict.fromkeys(KEYS[::10], "why")) == 1
    assert "95 % wanted" in capsys.readouterr().out


def test_the_survivors_that_are_listed_exist() -> None:
    """Each is a mutant of its module as it is now, and has a reason."""
    listed = run.listed()
    for path in {key.partition("::")[0] for key in listed}:
        names = {f"{path}::{name}" for name in run.Module(path).mutants}
        assert {key for key in listed if key.startswith(f"{path}::")} - names == set()
    assert min(map(len, listed.values())) > 20


def test_what_is_known_is_kept_for_as_long_as_it_holds() -> None:
    """An outcome for other sources or tests does not count; of those that were killed only when it is asked for."""
    known = dict.fromkeys(TOKEN.mutants[2:], run.KILLED) | {TOKEN.mutants[1]: run.SURVIVED}
    now = run.State({TOKEN.path: TOKEN.digest}, {TOKEN.path: dict(known)})
    assert now.todo(TOKEN, survivors=False) == now.todo(TOKEN, survivors=True) == [0]
    before = run.State({TOKEN.path: "another"}, {TOKEN.path: dict(known)})
    assert before.todo(TOKEN, survivors=True) == [0, 1]
    assert before.todo(TOKEN, survivors=False) == list(range(len(KEYS)))


def test_a_folder_that_is_none() -> None:
    """A mistyped name is told, and nothing is run."""
    done = subprocess.run([sys.executable, run.__file__, "gnop"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "gnop is no folder" in done.stderr
