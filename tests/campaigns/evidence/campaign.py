"""Run the command of each promise in docs/evidence.md, and write the results into that page.

    nox -s evidence                  the short form of each command
    nox -s evidence -- --long        the long form
    nox -s evidence -- ROW...        only these rows

A command runs as a reader would type it, with two differences: nox uses the packages of this session instead of those
of another virtual environment, and pytest is that of this session. The output of each command goes to a file in
build/evidence. The results go to docs/evidence.json after each command, and the page is made from that file at the end.
The results of the other form, and of other rows, stay.

The exit status is 1 if a command has failed, and 0 if some were not run because the machine lacks something.
"""

import argparse
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from campaigns.evidence.needs import missing
from campaigns.evidence.page import FILE, Result, State, load, save
from campaigns.evidence.promises import LONG_S_MAX, PROMISES, SHORT_S_MAX, Form, Promise
from kits.processes import ROOT

OUTPUT: Final = ROOT / "build" / "evidence"
_SHOWN_LINES: Final = 40  # of the output of a command that failed
_END_S_MAX: Final = 20.0  # from the interrupt of a command to its end
_PROGRAMS: Final = {
    "nox": [sys.executable, "-m", "nox", "--no-venv", "--no-install"],
    "pytest": [sys.executable, "-m", "pytest"],
    "python": [sys.executable],
}
_PAGES: Final = ":(exclude)docs/evidence.*"

Say = Callable[[str], None]


def collect(
    promises: Sequence[Promise],
    form: Form,
    *,
    file: Path,
    output: Path = OUTPUT,
    seconds_max: float | None = None,
    say: Say = print,
) -> int:
    """Run the commands of a form, write each result to `file`, and return the exit status."""
    limit_s = seconds_max or (SHORT_S_MAX if form is Form.SHORT else LONG_S_MAX)
    output.mkdir(parents=True, exist_ok=True)
    commit, machine, status = _commit(), _machine(), 0
    for promise in promises:
        if (command := promise.command(form)) is None:
            continue
        say(f"{promise.name}: {command}")
        log = output / f"{form}-{promise.name}.txt"
        began = time.monotonic()
        state, printed = _outcome(promise, command, log, limit_s)
        seconds = time.monotonic() - began
        say(f"    {state} in {seconds:.0f} s: {', '.join(printed)}")
        if state is State.FAILED:
            status = 1
            say("\n".join(log.read_text("utf-8", "replace").splitlines()[-_SHOWN_LINES:]))
        results = load(file)
        results[form][promise.name] = Result(
            command=command,
            state=state,
            seconds=round(seconds, 1),
            printed=printed,
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            commit=commit,
            machine=machine,
        )
        save(results, file)
    return status


def _outcome(promise: Promise, command: str, log: Path, limit_s: float) -> tuple[State, tuple[str, ...]]:
    """Run a command, and return how it ended, with the lines that tell the result."""
    if lacking := missing(promise.needs):
        return State.MISSING, lacking
    ended = _run(command, log, limit_s)
    if ended is None:
        return State.FAILED, (f"stopped after {limit_s:.0f} s",)
    if ended != 0:
        return State.FAILED, (f"exit status {ended}",)
    try:
        return State.PASSED, promise.tell(log.read_text("utf-8", "replace"))
    except LookupError as error:
        return State.FAILED, (str(error),)


def _run(command: str, log: Path, limit_s: float) -> int | None:
    """Run a command in a process group of its own, and return its exit status, or `None` if it took too long."""
    program, *arguments = shlex.split(command)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*_PROGRAMS[program], *arguments], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the group of a process that still runs. First interrupt it, so that it stops what it has started."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S_MAX)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _commit() -> str:
    """Return the commit of the working tree, and whether there are other changes than those of this program."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    return f"{commit or 'unknown'}{' with changes' if _git('status', '--porcelain', '--', '.', _PAGES) else ''}"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def _machine() -> str:
    """Return the processors, their load before the first command, Python, and the operating system."""
    system = platform.system()
    with suppress(OSError):
        system = platform.freedesktop_os_release()["PRETTY_NAME"]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{os.cpu_count()} processors (load {os.getloadavg()[0]:.1f} at the start), {python}, {system}"


def main(arguments: Sequence[str]) -> int:
    """Run from the command line, write the page, and return the exit status."""
    names = [promise.name for promise in PROMISES]
    parser = argparse.ArgumentParser(prog="nox -s evidence --", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--long", action="store_true", help="run the long form of each command, for some hours")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"from {', '.join(names)} (all of them)")
    options = parser.parse_args(arguments)
    if unknown := set(options.rows) - set(names):
        parser.error(f"unknown row {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    chosen = [promise for promise in PROMISES if promise.name in (options.rows or names)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the command ends too
    try:
        return collect(chosen, Form.LONG if options.long else Form.SHORT, file=FILE)
    finally:
        subprocess.run([sys.executable, ROOT / "docs" / "generate.py"], check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
