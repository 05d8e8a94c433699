"""Trouble with the disk under a service that runs. A full disk passes by itself; after a lost write `serve` ends.

Nothing that was acknowledged is lost, and what was refused is credited once when it is repeated.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen

from campaigns.crash.books import UNHEARD
from campaigns.crash.check import check
from campaigns.crash.scene import Scene
from campaigns.crash.service import Service
from kits.processes import HttpClient

_DISK: Final = "size=2m"


def run_as_root(*command: object) -> None:
    """Run a command that only root may; the test is skipped, with what it said, where even root may not."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"there is no {command[0]} here")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()}")


@contextmanager
def as_it_is(_: Path) -> Iterator[None]:
    """The disk that tests use."""
    yield


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A small disk of its own, in memory."""
    run_as_root("mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)  # lazily: a book may be open


@contextmanager
def full(service: Service) -> Iterator[None]:
    """Somebody fills the disk, to the last byte."""
    ballast = service.folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def no_growth(service: Service) -> Iterator[None]:
    """No file of the process may grow, as with a quota that is used up; its log neither."""
    pid = service.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # the service has ended
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)


@contextmanager
def read_only(service: Service) -> Iterator[None]:
    """The file and its log may not be written, by root neither, nor by who has them open."""
    files = [path for path in service.folder.glob(f"{service.database.name}*") if not path.name.endswith("-shm")]
    run_as_root("chattr", "+i", *files)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], check=True)


@frozen
class Trouble:
    """Something that happens to a disk, and what a test of it needs."""

    disk: Callable[[Path], AbstractContextManager[None]]
    strikes: Callable[[Service], AbstractContextManager[None]]
    needs_root: bool
    stops: bool  # whether a write fails that SQLite cannot roll back


TROUBLES: Final = {
    "full": Trouble(small_disk, full, needs_root=True, stops=False),
    "quota": Trouble(as_it_is, no_growth, needs_root=False, stops=True),
    "read-only": Trouble(as_it_is, read_only, needs_root=True, stops=True),
}


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest) -> Trouble:
    """One after the other."""
    trouble = TROUBLES[request.param]
    if trouble.needs_root and os.geteuid() != 0:
        pytest.skip("only root can mount a small disk, or make a file read-only for a process that has it open")
    if not hasattr(resource, "prlimit"):
        pytest.skip("limits of another process can be set on Linux only")
    return trouble


def test_trouble_with_the_disk(trouble: Trouble, tmp_path: Path) -> None:
    """A full disk means T00 for packets, and reads go on. Other troubles end the service."""
    folder = tmp_path / "bank"
    folder.mkdir()
    with trouble.disk(folder), Service(folder) as service:
        scene = Scene(service, limit=100)
        client = HttpClient.of(folder, f"http://127.0.0.1:{service.port}")
        first, second, third = (scene.packet(amount) for amount in (50, 30, 20))
        service.up()
        created = scene.ask(client, "create-2")
        assert client.get(created.json()["id"]).status_code == 200
        assert scene.send(first) == "fulfilled"
        with trouble.strikes(service):
            if trouble.stops:
                assert scene.send(second) in {"T00", UNHEARD}
                assert service.wait() == 1  # where no file can grow, its log cannot say why
            else:
                assert scene.send(second) == "T00"
                # A checkpoint may have made room in the log since.
                for _ in range(3):
                    assert {scene.send(packet) for packet in (first, second, third)} <= {"T00", "fulfilled"}
                assert client.get(created.json()["id"]).status_code == 200
        if trouble.stops:
            service.up()
        assert [scene.send(packet) for packet in (first, second, third)] == ["fulfilled"] * 3
        assert scene.ask(client, "create-3").status_code == 201
        assert service.process.poll() is None
        service.stop()
        report = check(service.database, [scene.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed, report.figures.creates) == (3, 1, 3)


def test_killed_while_the_disk_is_full(tmp_path: Path) -> None:
    """Nothing that was answered is lost. A process that is started meanwhile runs, and serves when there is space."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "bank"
    folder.mkdir()
    with small_disk(folder), Service(folder) as service:
        scene = Scene(service, limit=100)
        first, second = scene.packet(70), scene.packet(30)
        service.up()
        assert scene.send(first) == "fulfilled"
        with full(service):
            assert scene.send(second) == "T00"
            service.kill()
            service.up()
            # To recover the log may have made room in it; what is credited is fulfilled if the file can be opened.
            assert {scene.send(first), scene.send(second)} <= {"T00", "fulfilled"}
        assert [scene.send(packet) for packet in (first, second)] == ["fulfilled"] * 2
        service.stop()
        report = check(service.database, [scene.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed) == (2, 1)


def test_killed_while_the_files_are_read_only(tmp_path: Path) -> None:
    """A process that is started meanwhile ends with a message: it cannot bring the log to the disk."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file read-only for a process that has it open")
    with Service(tmp_path / "bank") as service:
        scene = Scene(service, limit=100)
        first, second = scene.packet(70), scene.packet(30)
        service.up()
        assert scene.send(first) == "fulfilled"
        with read_only(service):
            service.kill()
            service.start()
            assert service.wait() == 1
            assert "Operation not permitted" in service.said()
        service.up()
        assert [scene.send(packet) for packet in (first, second)] == ["fulfilled"] * 2
        service.stop()
        report = check(service.database, [scene.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed) == (2, 1)
