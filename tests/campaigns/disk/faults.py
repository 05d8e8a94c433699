"""A disk that fails on demand: it builds `faulty_disk.c`, and starts processes with that library."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from kits.processes import ROOT

SOURCE: Final = Path(__file__).with_name("faulty_disk.c")
HEALTHY, DEAD, RANDOM = 0, 1, 2  # the modes
STOPPED: Final = 3  # the exit status of a worker that got `StoreStopped`


def build(folder: Path) -> Path:
    """Compile the library into `folder`. Skip the test where that is impossible."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("a disk that fails needs Linux, a C compiler and LD_PRELOAD")
    library = folder / "faulty_disk.so"
    command = [compiler, "-O1", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return library


class FaultyDisk:
    """The disk that holds `folder`, for processes started with its `environment`."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log")
        self._control = folder.with_name(f"{folder.name}.control")
        self._library = library
        folder.mkdir(exist_ok=True)
        self.set(HEALTHY)

    def set(self, mode: int, probability: int = 0) -> None:
        """Set the mode of the disk. `probability` is that of a failing sync, in 1/256."""
        # Write in place, because processes have the file mapped.
        with self._control.open("r+b" if self._control.exists() else "wb") as control:
            control.write(bytes((mode, probability, 0, 0)))

    def environment(self, *, logged: bool = False) -> dict[str, str]:
        """Return the environment of a process on this disk."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
        log = {"FAULTY_DISK_LOG": str(self.log)} if logged else {}
        return {
            **ours,
            **log,
            "LD_PRELOAD": str(self._library),
            "FAULTY_DISK_FOLDER": str(self.folder.resolve()),
            "FAULTY_DISK_CONTROL": str(self._control),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), ours.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }

    def start(self, module: str, *arguments: object, logged: bool = False) -> "subprocess.Popen[str]":
        """Start a module of this folder on the disk."""
        return subprocess.Popen(
            [sys.executable, "-m", f"campaigns.disk.{module}", *map(str, arguments)],
            env=self.environment(logged=logged),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, module: str, *arguments: object, logged: bool = False) -> tuple[int, Sequence[str]]:
        """Run a module of this folder to its end, and return its exit status and the lines that it prints."""
        with self.start(module, *arguments, logged=logged) as process:
            output, errors = process.communicate(timeout=120)
        assert process.returncode in (0, STOPPED), errors
        return process.returncode, output.splitlines()
