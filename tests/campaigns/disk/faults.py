"""A disk that fails on demand: it builds `faulty_disk.c`, and starts processes with that library."""

import fcntl
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
HEALTHY, DEAD, RANDOM, KILLING, KILLING_IN_DATABASE, HOLDING, LOSING_DATABASE = range(7)  # the modes
FATES: Final = {"not synced": 1, "failed": 2, "failed, evicted": 3, "synced": 4}  # of a sync that kills its process
_PAGES: Final = 1 << 16  # of each file, in faulty_disk.c
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

    def __init__(self, folder: Path, library: Path, *, platter: bool = False) -> None:
        self.folder = folder
        self.log = folder.with_name(f"{folder.name}.log")
        self._control = folder.with_name(f"{folder.name}.control")
        self._library = library
        self._platter = folder.with_name(f"{folder.name}.platter") if platter else None
        folder.mkdir(exist_ok=True)
        if self._platter is not None:
            self._platter.mkdir()
            (self._platter / "dirty").write_bytes(bytes(2 * _PAGES))
        self.set(HEALTHY)

    def set(self, mode: int, probability: int = 0, fate: int = 0, survived: int = 0) -> None:
        """Set the mode of the disk. `probability` is that of a sync that fails or kills, in 1/256.

        `fate` is one of `FATES`, or 0 for a random one. Each process survives its first `survived` syncs.
        """
        # Write in place, because processes have the file mapped.
        with self._control.open("r+b" if self._control.exists() else "wb") as control:
            control.write(bytes((mode, probability, fate, survived)))

    @property
    def holds_a_write(self) -> bool:
        """Whether the mode `HOLDING` has held a write to the database."""
        return self._control.with_name(f"{self._control.name}.held").exists()

    def cut_power(self, database: Path) -> None:
        """Leave in the files what the platter holds. Wait until no process has the database open."""
        assert self._platter is not None
        with Path(f"{database}-lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
        for name, path in (("database", database), ("wal", Path(f"{database}-wal"))):
            content = (self._platter / name).read_bytes() if (self._platter / name).exists() else b""
            path.write_bytes(content)
        Path(f"{database}-shm").unlink(missing_ok=True)
        with (self._platter / "dirty").open("r+b") as dirty:
            dirty.write(bytes(2 * _PAGES))

    def environment(self, *, logged: bool = False) -> dict[str, str]:
        """Return the environment of a process on this disk."""
        ours = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}
        log = {"FAULTY_DISK_LOG": str(self.log)} if logged else {}
        platter = {} if self._platter is None else {"FAULTY_DISK_PLATTER": str(self._platter)}
        return {
            **ours,
            **log,
            **platter,
            "PYTHONUNBUFFERED": "1",
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
