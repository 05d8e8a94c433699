"""Disk errors under a running service. `serve` survives a full disk, and ends after a write that it cannot roll back.

No acknowledged credit is lost, and a refused packet is credited once when the sender repeats it.
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

from campaigns.crash.check import check
from campaigns.crash.payer import Payer
from campaigns.crash.records import NO_ANSWER
from campaigns.crash.service import Service
from kits.processes import HttpClient

_DISK: Final = "size=2m"


def run_as_root(*command: object) -> None:
    """Run a command that needs root. Skip the test, with the output of the command, where it is not possible."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"there is no {command[0]} here")
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{command[0]} is not possible here: {done.stderr.strip()}")


@contextmanager
def as_it_is(_: Path) -> Iterator[None]:
    """Use the disk of the tests."""
    yield


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a small disk in memory."""
    run_as_root("mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", folder)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)  # lazily, because a record may be open


@contextmanager
def full(service: Service) -> Iterator[None]:
    """Fill the disk to the last byte."""
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
    """Let no file of the process grow, its log included, as with an exhausted quota."""
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
    """Make the database and its log read-only, also for root and for a process that has them open."""
    files = [path for path in service.folder.glob(f"{service.database.name}*") if not path.name.endswith("-shm")]
    run_as_root("chattr", "+i", *files)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], check=True)


@frozen
class DiskError:
    """A disk error, and the needs of its test."""

    disk: Callable[[Path], AbstractContextManager[None]]
    strikes: Callable[[Service], AbstractContextManager[None]]
    needs_root: bool
    stops: bool  # the service, because SQLite cannot roll back the write


DISK_ERRORS: Final = {
    "full": DiskError(small_disk, full, needs_root=True, stops=False),
    "quota": DiskError(as_it_is, no_growth, needs_root=False, stops=True),
    "read-only": DiskError(as_it_is, read_only, needs_root=True, stops=True),
}


@pytest.fixture(params=DISK_ERRORS)
def disk_error(request: pytest.FixtureRequest) -> DiskError:
    """Return each disk error in turn."""
    disk_error = DISK_ERRORS[request.param]
    if disk_error.needs_root and os.geteuid() != 0:
        pytest.skip("only root can mount a small disk, or make a file read-only for a process that has it open")
    if not hasattr(resource, "prlimit"):
        pytest.skip("limits of another process can be set on Linux only")
    return disk_error


def test_disk_error_under_a_running_service(disk_error: DiskError, tmp_path: Path) -> None:
    """On a full disk, packets get T00 and reads succeed. Other disk errors end the service."""
    folder = tmp_path / "bank"
    folder.mkdir()
    with disk_error.disk(folder), Service(folder) as service:
        payer = Payer(service, limit=100)
        client = HttpClient.of(folder, f"http://127.0.0.1:{service.port}")
        first, second, third = (payer.packet(amount) for amount in (50, 30, 20))
        service.up()
        created = payer.create_another(client, "create-2")
        assert client.get(created.json()["id"]).status_code == 200
        assert payer.send(first) == "fulfilled"
        with disk_error.strikes(service):
            if disk_error.stops:
                assert payer.send(second) in {"T00", NO_ANSWER}
                assert service.wait() == 1  # without a reason in its log if no file can grow
            else:
                assert payer.send(second) == "T00"
                # A checkpoint may have freed space in the log since.
                for _ in range(3):
                    assert {payer.send(packet) for packet in (first, second, third)} <= {"T00", "fulfilled"}
                assert client.get(created.json()["id"]).status_code == 200
        if disk_error.stops:
            service.up()
        assert [payer.send(packet) for packet in (first, second, third)] == ["fulfilled"] * 3
        assert payer.create_another(client, "create-3").status_code == 201
        assert service.process.poll() is None
        service.stop()
        report = check(service.database, [payer.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed, report.figures.creates) == (3, 1, 3)


def test_process_killed_on_a_full_disk_loses_no_credit(tmp_path: Path) -> None:
    """No acknowledged credit is lost. A process started meanwhile runs, and serves again when there is space."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "bank"
    folder.mkdir()
    with small_disk(folder), Service(folder) as service:
        payer = Payer(service, limit=100)
        first, second = payer.packet(70), payer.packet(30)
        service.up()
        assert payer.send(first) == "fulfilled"
        with full(service):
            assert payer.send(second) == "T00"
            service.kill()
            service.up()
            # Recovery may have freed space in the log. If the database can be opened, credited packets are fulfilled.
            assert {payer.send(first), payer.send(second)} <= {"T00", "fulfilled"}
        assert [payer.send(packet) for packet in (first, second)] == ["fulfilled"] * 2
        service.stop()
        report = check(service.database, [payer.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed) == (2, 1)


def test_process_started_on_read_only_files_ends(tmp_path: Path) -> None:
    """A process started meanwhile ends with a message, because it cannot sync the log."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a file read-only for a process that has it open")
    with Service(tmp_path / "bank") as service:
        payer = Payer(service, limit=100)
        first, second = payer.packet(70), payer.packet(30)
        service.up()
        assert payer.send(first) == "fulfilled"
        with read_only(service):
            service.kill()
            service.start()
            assert service.wait() == 1
            assert "Operation not permitted" in service.log_text()
        service.up()
        assert [payer.send(packet) for packet in (first, second)] == ["fulfilled"] * 2
        service.stop()
        report = check(service.database, [payer.path])

    assert report.violations == []
    assert (report.figures.credits, report.figures.completed) == (2, 1)
