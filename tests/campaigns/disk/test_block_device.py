"""`serve` on a real block device that fails: ext4 on a loop device, whose backing store has no space left.

The device has 64 MiB and its backing file system 6 MiB. While that is full, the kernel cannot write new blocks: `fsync`
fails once, and succeeds when it is repeated.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

from campaigns.crash.check import check
from campaigns.crash.payer import Payer
from campaigns.crash.service import Service
from campaigns.crash.test_disk import run_as_root


@frozen
class Device:
    """A block device, mounted at `folder`."""

    folder: Path
    _name: str
    _ballast: Path

    def mount(self) -> None:
        """Mount the device."""
        run_as_root("mount", self._name, self.folder)

    def unmount(self) -> None:
        """Unmount the device, so that the kernel drops its cache."""
        subprocess.run(["umount", self.folder], check=True)

    def fail(self) -> None:
        """Fill the backing store, so that no new block can be written."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def recover(self) -> None:
        """Free the backing store, so that blocks can be written again."""
        self._ballast.unlink()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """Return a device that works."""
    if os.geteuid() != 0:
        pytest.skip("only root can make and mount a block device")
    backing, folder = tmp_path / "backing", tmp_path / "disk"
    backing.mkdir()
    folder.mkdir()
    image = backing / "image"
    run_as_root("mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", backing)
    try:
        with image.open("wb") as file:
            file.truncate(64 * 1024 * 1024)
        run_as_root("mkfs.ext4", "-q", "-O", "^has_journal", image)
        run_as_root("losetup", "-f", image)
        found = subprocess.run(["losetup", "-j", image], capture_output=True, text=True, check=True)
        name = found.stdout.partition(":")[0]
        try:
            made = Device(folder, name, backing / "ballast")
            made.mount()
            yield made
            subprocess.run(["umount", "-l", folder], check=True)
        finally:
            subprocess.run(["losetup", "-d", name], check=True)
    finally:
        subprocess.run(["umount", "-l", backing], check=True)


def test_serve_on_a_block_device_that_fails(device: Device, tmp_path: Path) -> None:
    """`serve` ends, and starts only when it can sync the log. All acknowledged credits survive a new mount."""
    with Service(tmp_path / "bank") as service:
        # Only the database is on this device: the log of the service and the record of the payer must be writable.
        service.database.symlink_to(device.folder / "payments.sqlite3")
        payer = Payer(service, limit=1000)
        service.up()
        packets = [payer.packet(1)]
        assert payer.send(packets[0]) == "fulfilled"
        device.fail()
        # The backing store already holds some blocks of the log, so a few more commits succeed.
        while len(packets) < 400:
            packets.append(payer.packet(1))
            if payer.send(packets[-1]) != "fulfilled":
                break
        assert len(packets) < 400
        assert service.wait() == 1
        for _ in range(2):
            device.fail()
            service.start()
            if service.listens():  # the device had space for the whole log
                service.kill()
            else:
                assert service.wait() == 1
        device.recover()
        service.up()
        assert {payer.send(packet) for packet in packets} == {"fulfilled"}
        service.kill()
        device.unmount()
        device.mount()
        report = check(service.database, [payer.path])
    assert report.violations == []
    assert report.figures.credits == len(packets)
