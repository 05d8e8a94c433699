"""Fuzz each target in processes of its own, on all cores, and print the results.

    nox -s fuzz [-- [--seconds N | --runs N] [--jobs N] [--findings FOLDER] [--json] [TARGET...]]

Each target is fuzzed for `--seconds`, or run `--runs` times instead. A finding is an input for which a target raises,
takes too long or uses too much memory. Findings are printed and written to a folder, and then the exit status is 1.
With `--json`, the last line has the figures as one JSON object.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from campaigns.fuzz.targets import TARGETS

SECONDS: Final = 60
HANG_S: Final = 10  # for one input; the slowest inputs take some milliseconds
MEMORY_MB_MAX: Final = 1024  # for a process, which needs about 150
SHOWN_CHARS_MAX: Final = 2000
ENGINE: Final = (sys.executable, "-m", "campaigns.fuzz.engine")

_PROGRESS: Final = re.compile(r"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+)", re.MULTILINE)
_EXECUTED: Final = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_RATE: Final = re.compile(r"^stat::average_exec_per_sec:\s*(\d+)", re.MULTILINE)
_EXCEPTION: Final = re.compile(r"=== Uncaught Python exception: ===\n(.*?)\n==\d+==", re.DOTALL)


@frozen
class Crash:
    """A finding. It has no `path` when the engine itself failed. `kind` is libFuzzer's word."""

    kind: str
    why: str
    path: str | None = None
    input: str | None = None  # as a Python literal


@frozen
class Result:
    """The result for one target. `coverage` counts edges; `features` also says roughly how often each was passed."""

    target: str
    executions: int
    executions_per_s: int
    coverage: int
    features: int
    crashes: tuple[Crash, ...]


@frozen
class Budget:
    """How long to fuzz a target: a number of seconds, or of runs."""

    seconds: int = SECONDS
    runs: int | None = None

    def options(self, processes: int) -> list[str]:
        """Return the options of libFuzzer for the share of one process."""
        if self.runs is None:
            return [f"-max_total_time={self.seconds}"]
        return [f"-runs={-(-self.runs // processes)}"]


def fuzz(target: str, budget: Budget, findings: Path, *, processes: int = 1, engine: Sequence[str] = ENGINE) -> Result:
    """Fuzz `target` in one of `processes` processes, and move its findings to the folder `findings`."""
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target}-") as name:
        folder = Path(name)
        found = folder / "found"
        found.mkdir()
        limits = [f"-timeout={HANG_S}", f"-rss_limit_mb={MEMORY_MB_MAX}", f"-artifact_prefix={found}{os.sep}"]
        with (folder / "log").open("wb") as log:
            command = [*engine, target, name, *limits, *budget.options(processes)]
            status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        text = (folder / "log").read_text("utf-8", "replace")
        kept = [_move(path, findings / f"{target}-{path.name}") for path in sorted(found.iterdir())]
    return _result(target, status, text, [path for path in kept if not path.name.startswith(f"{target}-slow-unit-")])


def _move(path: Path, to: Path) -> Path:
    shutil.move(path, to)
    return to


def _result(target: str, status: int, log: str, kept: Sequence[Path]) -> Result:
    why = "\n".join(_EXCEPTION.findall(log)) or log[-SHOWN_CHARS_MAX:]
    crashes = [
        Crash(path.name.removeprefix(f"{target}-").partition("-")[0], why, str(path), repr(path.read_bytes()))
        for path in kept
    ]
    if status and not crashes:
        crashes = [Crash("engine", f"the engine ended with status {status}; the end of its output:\n{why}")]
    executions = _last(_EXECUTED, log)
    coverage, features = (_PROGRESS.findall(log) or [(0, 0)])[-1]
    # libFuzzer reports a rate of 0 in its first second
    return Result(target, executions, _last(_RATE, log) or executions, int(coverage), int(features), tuple(crashes))


def _last(pattern: re.Pattern[str], log: str) -> int:
    found = pattern.findall(log)
    return int(found[-1]) if found else 0


def merged(results: Sequence[Result]) -> Result:
    """Add the results of several processes on one target. The coverage is that of the best process."""
    return Result(
        results[0].target,
        sum(result.executions for result in results),
        sum(result.executions_per_s for result in results),
        max(result.coverage for result in results),
        max(result.features for result in results),
        tuple(crash for result in results for crash in result.crashes),
    )


def report(results: Sequence[Result], *, as_json: bool) -> int:
    """Print a table of the results, each finding in full, and the figures as JSON if wanted; return the exit status."""
    executions = sum(result.executions for result in results)
    crashes = sum(len(result.crashes) for result in results)
    print(f"{'target':18}{'executions':>14}{'a second':>10}{'coverage':>10}{'features':>10}{'crashes':>9}")
    for result in results:
        figures = f"{result.executions_per_s:>10,}{result.coverage:>10,}{result.features:>10,}"
        print(f"{result.target:18}{result.executions:>14,}{figures}{len(result.crashes):>9}")
    print(f"{'total':18}{executions:>14,}{'':30}{crashes:>9}")
    for result in results:
        for crash in result.crashes:
            print(f"\n{result.target}: {crash.kind}, {crash.path or 'no input was written'}\n{crash.why}")
            if crash.input is not None:
                print(crash.input[:SHOWN_CHARS_MAX])
    if as_json:
        total = {"executions": executions, "crashes": crashes}
        print(json.dumps({"targets": [asdict(result) for result in results], "total": total}))
    return 1 if crashes else 0


def main(arguments: Sequence[str]) -> int:
    """Run from the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", description="Fuzz the code that reads untrusted input.")
    how_much = parser.add_mutually_exclusive_group()
    how_much.add_argument("--seconds", type=int, default=SECONDS, help=f"for each target ({SECONDS})")
    how_much.add_argument("--runs", type=int, help="of each target, instead of seconds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (one a core)")
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="the folder for findings")
    parser.add_argument("--json", action="store_true", help="also one JSON object on the last line")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"from {', '.join(TARGETS)} (all of them)")
    given = parser.parse_args(arguments)
    names = given.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"unknown target {', '.join(sorted(unknown))}: choose from {', '.join(TARGETS)}")
    if find_spec("atheris") is None:
        parser.error("atheris is not installed: run `nox -s fuzz`, which installs it where it has a wheel")
    given.findings.mkdir(parents=True, exist_ok=True)
    budget = Budget(given.seconds, given.runs)
    return report(fuzz_all(names, budget, given.findings, jobs=given.jobs), as_json=given.json)


def fuzz_all(
    names: Sequence[str], budget: Budget, findings: Path, *, jobs: int, engine: Sequence[str] = ENGINE
) -> list[Result]:
    """Fuzz all targets, `jobs` processes at a time. With fewer targets than jobs, a target has several processes."""
    processes = max(1, jobs // len(names))
    with ThreadPoolExecutor(jobs) as pool:
        shares = [
            [pool.submit(fuzz, name, budget, findings, processes=processes, engine=engine) for _ in range(processes)]
            for name in names
        ]
        return [merged([share.result() for share in of_one]) for of_one in shares]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
