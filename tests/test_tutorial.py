"""The tutorial: each step runs as the page states it, and prints what the page shows.

`kits.tutorial` reads the page. `test_docs` checks the types of its programs.
"""

import random
import re
import socket
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Final

import pytest

from kits.processes import ROOT
from kits.shell import needs_curl
from kits.tutorial import PAGE, Terminal, is_shown, programs, steps

_INSTALL: Final = re.compile(r"^pip install (.+)$", re.MULTILINE)
_CREATE: Final = "python3 -m venv venv\n"


def lasting_port() -> int:
    """Return a free port below those of outgoing connections, so that it is still free when a later step uses it."""
    for port in random.sample(range(20000, 32000), 100):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("100 ports are in use")


def with_free_ports(page: str) -> str:
    """Return the page with free ports instead of 8080 and 8000."""
    ports = {"8080": str(lasting_port()), "8000": str(lasting_port())}
    return re.sub("8080|8000", lambda found: ports[found[0]], page)


def with_this_environment(page: str) -> str:
    """Return the page with the environment of the tests in place of a new virtual environment and its packages."""
    path = f"PATH={quote(str(Path(sys.executable).parent))}:$PATH"
    here = f"mkdir -p venv/bin; echo {quote(path)} > venv/bin/activate\n"
    assert page.count(_CREATE) == 1
    return _INSTALL.sub(":", page.replace(_CREATE, here))


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[tuple[Terminal, Terminal]]:
    """Open the two terminals of the reader in one folder."""
    (folder := tmp_path / "folder").mkdir()
    opened = tuple(Terminal.open(folder, tmp_path / f"log {number}") for number in (1, 2))
    yield opened[0], opened[1]
    for terminal in opened:
        terminal.close()


@needs_curl
def test_tutorial_runs_as_it_is_written(terminals: tuple[Terminal, Terminal]) -> None:
    """The commands of the page print what the page shows, with the files and servers of the page."""
    first, second = terminals
    used, output = first, ""
    for step in steps(with_this_environment(with_free_ports(PAGE.read_text("utf-8")))):
        match step.kind:
            case "run":
                used, output = first, first.run(step.text)
            case "serve":
                used = second
                second.begin(step.text)
            case "output" if used is second:
                second.await_output(partial(is_shown, step.text))
            case "output" if not is_shown(step.text, output):
                log = second.printed()
                pytest.fail(f"line {step.line} of the page does not show this output:\n{output}\nThe server:\n{log}")
            case "file":
                first.run(f"cat > {quote(step.name)} <<'END OF THE FILE'\n{step.text}END OF THE FILE\n")
            case "stop":
                second.stop()


def test_tutorial_has_steps_of_each_kind() -> None:
    """The page has servers that are started and stopped in turn, and each of its files has a name."""
    found = list(steps(PAGE.read_text("utf-8")))
    assert [step.kind for step in found if step.kind in {"serve", "stop"}] == ["serve", "stop"] * 3
    assert {"pay.py", "credit.py", "bank.py", "app.py", "fastapi_app.py"} <= set(programs())
    for step, following in pairwise(found):
        assert step.kind != "serve" or following.kind == "output", f"line {step.line} shows no output of the server"


def test_tutorial_installs_this_library_once() -> None:
    """One line of the page installs this library, with extras that exist."""
    [line] = [line for line in _INSTALL.findall(PAGE.read_text("utf-8")) if "incoming-payments" in line]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [extras] = re.findall(r"incoming-payments\[([^\]]+)\]", line)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize(
    ("shown", "output", "expected"),
    [
        ("a\nb\n", "a\nb", True),
        ("a\n", "a \n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\n", "a\nb\n", False),
        ("a...c\n", "abc\n", True),
        ("a...c\n", "a\nc\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nc\n", "c\n", True),
        ("...\nc\n", "c\nd\n", False),
    ],
)
def test_shown_output_is_compared(shown: str, output: str, *, expected: bool) -> None:
    """Only `...` stands for other text: within a line, or for any number of lines."""
    assert is_shown(shown, output) is expected
