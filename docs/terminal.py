"""Run the demo, and draw a part of what it prints as `_static/demo.svg`, for the README: `python docs/terminal.py`."""

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE: Final = Path(__file__).resolve().parent / "_static" / "demo.svg"
_STEPS: Final = {3, 7, 8, 9, 10, 11}  # all steps do not fit a screen
_STEP: Final = re.compile(r"^ ?(\d+)  .*(?:\n(?! ?\d+  ).+)*", re.MULTILINE)  # its heading, and the lines below
_FONTS: Final = re.compile(r"@font-face \{.*?\}|<!--.*?-->", re.DOTALL)  # rich loads fonts from another server


def shown(output: str) -> str:
    """Return the part of `output` that the picture shows: some steps, and the number of checks."""
    steps = [step[0] for step in _STEP.finditer(output) if int(step[1]) in _STEPS]
    return "\n\n".join(["$ incoming-payments demo", *steps, output.rstrip().splitlines()[-1]])


def picture(text: str) -> str:
    """Return the terminal with `text` as an SVG document, which loads nothing."""
    console = Console(record=True, file=io.StringIO(), width=max(map(len, text.splitlines())), color_system="truecolor")
    colored = Text(text)
    colored.highlight_regex(r"(?m)^ ?\d+  .*$|^\$.*$", "bold")
    colored.highlight_regex(r"(?m)^ +>.*$", "cyan")
    colored.highlight_regex(r"(?m)^ +<.*$|^\d+ of.*$|#+", "green")
    console.print(colored)
    return _FONTS.sub("", console.export_svg(title="", theme=MONOKAI, unique_id="demo"))


if __name__ == "__main__":
    command = [sys.executable, "-m", "incoming_payments.server.command", "demo"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - our own program
    PICTURE.write_text(picture(shown(done.stdout)), "utf-8")
