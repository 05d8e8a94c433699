"""The steps of the tutorial, read from its page, and the terminals in which they run.

The page states its steps in these forms:

- A block `console` has commands for the first terminal. If the paragraph above it names the second terminal, its last
  command is a server in the second terminal.
- A block `text` or `json` is the output of the commands above it. `...` stands for any text within a line, and a line
  `...` for any number of lines.
- A block `py` is a file. The last code in the paragraph above the block is the name of the file.
- A paragraph that contains `Press Ctrl-C` stops the server in the second terminal.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from attrs import field, frozen

from kits.processes import ROOT

PAGE: Final = ROOT / "docs" / "tutorial.md"
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COLOR: Final = re.compile("\x1b\\[[0-9;]*m")
_END: Final = "end of the commands:"
_DEADLINE_S: Final = 60.0

Kind = Literal["run", "serve", "output", "file", "stop"]


@frozen
class Step:
    """One step of the page. `name` is the name of a file, and `line` is the line of the page."""

    kind: Kind
    text: str
    line: int
    name: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield the steps of a page in order."""
    end = 0
    for block in _BLOCK.finditer(page):
        prose, line = page[end : block.start()], page[: block.start()].count("\n") + 1
        end = block.end()
        if stops(prose):
            yield Step("stop", "", line)
        above = " ".join(prose.strip().rpartition("\n\n")[2].split())
        yield _step_of(block[1], block[2], above, line)
    if stops(page[end:]):
        yield Step("stop", "", page.count("\n"))


def stops(prose: str) -> bool:
    """Return whether a text tells the reader to stop the server."""
    return "Press Ctrl-C" in " ".join(prose.split())


def _step_of(language: str, text: str, above: str, line: int) -> Step:
    match language:
        case "console":
            return Step("serve" if "second terminal" in above else "run", text, line)
        case "text" | "json":
            return Step("output", text, line)
        case "py":
            return Step("file", text, line, name=re.findall(r"`([^`]+)`", above)[-1])
    raise AssertionError(f"line {line} of the page begins a block of an unknown language: {language}")


def programs() -> dict[str, str]:
    """Return the text of each Python file of the page by its name."""
    return {step.name: step.text for step in steps(PAGE.read_text("utf-8")) if step.kind == "file"}


def is_shown(shown: str, output: str) -> bool:
    """Return whether an output is the shown one, in which `...` stands for any text."""
    lines = [
        "(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + "\n"
        for line in shown.splitlines()
    ]
    printed = "".join(f"{line.rstrip()}\n" for line in _COLOR.sub("", output).splitlines())
    return re.fullmatch("".join(lines), printed) is not None


@contextmanager
def _ctrl_c_stops_children() -> Iterator[None]:
    """Start processes that SIGINT stops, even when this process ignores SIGINT as a background job does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@frozen
class Terminal:
    """A shell that keeps its folder and its variables between two commands, as a terminal does."""

    _shell: "subprocess.Popen[str]"
    _log: Path
    _begin: list[int] = field(factory=lambda: [0])  # where the output of the last commands begins in the log

    @classmethod
    def open(cls, folder: Path, log: Path) -> "Terminal":
        """Open a terminal in a folder, whose output goes to the file `log`."""
        settings = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        settings |= {"HOME": os.devnull, "CURL_HOME": os.devnull, "PYTHONUNBUFFERED": "1"}
        with log.open("wb") as output, _ctrl_c_stops_children():
            shell = subprocess.Popen(
                ["sh"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                text=True,
                cwd=folder,
                env=settings,
                start_new_session=True,
            )
        terminal = cls(shell, log)
        terminal._type("trap : INT\n")  # Ctrl-C stops the command, and not the shell
        return terminal

    def run(self, commands: str) -> str:
        """Run commands and return their output. The last command must succeed."""
        self.begin(commands)
        return self._finished("0")

    def begin(self, commands: str) -> None:
        """Begin to run commands."""
        self._begin[0] = len(self._text())
        self._type(f"{{\n{commands}}} </dev/null\nprintf '\\n{_END} %s\\n' $?\n")

    def printed(self) -> str:
        """Return the output of the last commands so far."""
        return self._text()[self._begin[0] :]

    def await_output(self, is_expected: Callable[[str], bool]) -> None:
        """Wait until the running commands have printed the expected output."""
        self._await(lambda: is_expected(self.printed()))

    def stop(self) -> None:
        """Stop the running command with Ctrl-C, which sends SIGINT to the processes of this terminal."""
        os.killpg(self._shell.pid, signal.SIGINT)
        self._finished(r"\d+")

    def close(self) -> None:
        """Kill the processes of this terminal."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def _finished(self, status: str) -> str:
        end = re.compile(rf"\n?\n{_END} (\d+)\n\Z")
        self._await(lambda: end.search(self.printed()) is not None)
        found = end.search(self.printed())
        assert found is not None
        assert re.fullmatch(status, found[1]), self.printed()
        return self.printed()[: found.start()]

    def _await(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not is_true():
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.02)

    def _text(self) -> str:
        return self._log.read_text("utf-8")

    def _type(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()
