"""Trouble with the disk under a service that runs: refused for now, nothing lost, and service back by itself."""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest
from attrs import frozen

from crash.check import check
from crash.scene import Scene
from crash.service import Service
from processes import HttpClient, code_of

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
    """What may happen to a disk, and what a test needs for it."""

    disk: Callable[[Path], AbstractContextManager[None]]
    strikes: Callable[[Service], AbstractContextManager[None]]
    needs_root: bool


TROUBLES: Final = {
    "full": Trouble(small_disk, full, needs_root=True),
    "quota": Trouble(as_it_is, no_growth, needs_root=False),
    "read-only": Trouble(as_it_is, read_only, needs_root=True),
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
    """T00 for what brings money, and 503 for who asks for a payment; what is there can be read. Then all goes on."""
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
            for _ in range(3):
                assert [scene.send(asked) for asked in (second, third)] == ["T00", "T00"]
            # It is booked already. Whether the store can say so depends on what it finds when it opens the file anew.
            assert scene.send(first) in {"fulfilled", "T00"}
            assert code_of(scene.ask(client, "create-3")) == (503, "store_unavailable")
            assert client.get(created.json()["id"]).status_code == 200
        assert [scene.send(asked) for asked in (first, second, third)] == ["fulfilled"] * 3
        assert scene.ask(client, "create-3").status_code == 201
        assert service.process.poll() is None
        service.stop()
        report = check(service.database, [scene.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed, report.figures.creates) == (3, 1, 3)


def test_killed_while_the_disk_is_in_trouble(trouble: Trouble, tmp_path: Path) -> None:
    """Nothing that was answered is lost. A process that is started meanwhile runs, and serves when the disk does."""
    if trouble.strikes is no_growth:
        pytest.skip("the limit ends with the process")
    folder = tmp_path / "bank"
    folder.mkdir()
    with trouble.disk(folder), Service(folder) as service:
        scene = Scene(service, limit=100)
        first, second = scene.packet(70), scene.packet(30)
        service.up()
        assert scene.send(first) == "fulfilled"
        with trouble.strikes(service):
            assert scene.send(second) == "T00"
            service.kill()
            service.up()
            # To recover the log may have made room in it; what is booked is fulfilled if the file can be opened.
            assert {scene.send(first), scene.send(second)} <= {"T00", "fulfilled"}
        assert [scene.send(asked) for asked in (first, second)] == ["fulfilled"] * 2
        service.stop()
        report = check(service.database, [scene.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed) == (2, 1)
