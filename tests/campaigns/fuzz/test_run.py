"""The fuzz runner: its results for an engine that finds nothing, that finds inputs, and that fails."""

import json
import sys
from pathlib import Path

import pytest

from campaigns.fuzz import run
from campaigns.fuzz.run import Budget, Crash, Result
from campaigns.fuzz.targets import TARGETS

# Takes the arguments of the real engine, and prints the lines of libFuzzer.
ENGINE = """
import sys
from pathlib import Path

target, folder, *options = sys.argv[1:]
given = dict(option.lstrip("-").split("=", 1) for option in options)
print("#2\\tINITED cov: 7 ft: 9 corp: 1/4b exec/s: 0 rss: 80Mb")
print("#1000\\tDONE   cov: 12 ft: 34 corp: 2/9b lim: 4 exec/s: 500 rss: 81Mb")
if target == "fails":
    sys.exit("the engine failed")
if target == "crashes":
    Path(given["artifact_prefix"] + "slow-unit-1").write_bytes(b"slow")
    Path(given["artifact_prefix"] + "crash-2").write_bytes(b"bad\\0")
    Path(given["artifact_prefix"] + "timeout-3").write_bytes(b"endless")
    print("\\n === Uncaught Python exception: ===\\nLookupError\\n\\n==7== ERROR: libFuzzer: fuzz target exited")
print("stat::number_of_executed_units: " + given.get("runs", "1000"))
print("stat::average_exec_per_sec:     500")
sys.exit(77 if target == "crashes" else 0)
"""


@pytest.fixture
def engine(tmp_path: Path) -> list[str]:
    """Return the command of an engine that takes no time."""
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    return [sys.executable, str(script)]


@pytest.fixture
def findings(tmp_path: Path) -> Path:
    """Return the folder for findings."""
    folder = tmp_path / "findings"
    folder.mkdir()
    return folder


def test_nothing_found(engine: list[str], findings: Path) -> None:
    """The figures are the last ones in the log, and no finding is written."""
    result = run.fuzz("good", Budget(), findings, engine=engine)
    assert result == Result("good", 1000, 500, 12, 34, ())
    assert list(findings.iterdir()) == []


def test_findings_are_kept(engine: list[str], findings: Path) -> None:
    """Each bad or endless input is kept and shown as a Python literal. A slow input is no finding."""
    result = run.fuzz("crashes", Budget(), findings, engine=engine)
    crash, timeout = findings / "crashes-crash-2", findings / "crashes-timeout-3"
    assert result.crashes == (
        Crash("crash", "LookupError\n", str(crash), r"b'bad\x00'"),
        Crash("timeout", "LookupError\n", str(timeout), "b'endless'"),
    )
    assert (crash.read_bytes(), timeout.read_bytes()) == (b"bad\0", b"endless")


def test_failed_engine_is_a_finding(engine: list[str], findings: Path) -> None:
    """The target does not pass when its engine fails."""
    [crash] = run.fuzz("fails", Budget(), findings, engine=engine).crashes
    assert (crash.kind, crash.path) == ("engine", None)
    assert "status 1" in crash.why
    assert "the engine failed" in crash.why


@pytest.mark.parametrize(
    ("budget", "processes", "expected"),
    [
        (Budget(), 1, ["-max_total_time=60"]),
        (Budget(seconds=5), 4, ["-max_total_time=5"]),
        (Budget(runs=1000), 1, ["-runs=1000"]),
        (Budget(runs=1000), 3, ["-runs=334"]),
    ],
)
def test_budget(budget: Budget, processes: int, expected: list[str]) -> None:
    """Processes on one target share the runs, and each has the whole time."""
    assert budget.options(processes) == expected


def test_all_cores_are_used(engine: list[str], findings: Path) -> None:
    """With fewer targets than jobs, a target has several processes, and their results are added."""
    results = run.fuzz_all(["good", "fails"], Budget(runs=900), findings, jobs=4, engine=engine)
    assert [(result.target, result.executions, result.coverage) for result in results] == [
        ("good", 900, 12),
        ("fails", 0, 12),
    ]
    assert [len(result.crashes) for result in results] == [0, 2]


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each target and the total, then each finding with its reason and input, then JSON."""
    crash = Crash("crash", "LookupError", "findings/verify-crash-1", "b'x'")
    results = [Result("jwk", 1000, 500, 12, 34, ()), Result("verify", 2000, 300, 56, 78, (crash,))]
    assert run.report(results, as_json=True) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["jwk", "1,000"], ["verify", "2,000"], ["total", "3,000"]]
    assert lines[5:8] == ["verify: crash, findings/verify-crash-1", "LookupError", "b'x'"]
    figures = json.loads(lines[-1])
    assert [target["executions"] for target in figures["targets"]] == [1000, 2000]
    assert figures["total"] == {"executions": 3000, "crashes": 1}
    assert run.report(results[:1], as_json=False) == 0


def test_unknown_targets_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown target is refused before anything runs, with the list of targets."""
    with pytest.raises(SystemExit) as caught:
        run.main(["jwk", "nonsense"])
    assert caught.value.code == 2
    assert f"unknown target nonsense: choose from {', '.join(TARGETS)}" in capsys.readouterr().err
