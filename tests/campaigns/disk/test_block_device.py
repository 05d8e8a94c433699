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
from campaigns.crash.scene import Scene
from campaigns.crash.service import Service
from campaigns.crash.test_disk import run_as_root


@frozen
class Device:
    """A block device that is mounted at `folder`."""

    folder: Path
    _name: str
    _ballast: Path

    def mount(self) -> None:
        """Mount it."""
        run_as_root("mount", self._name, self.folder)

    def unmount(self) -> None:
        """Unmount it: the kernel forgets what it has in memory."""
        subprocess.run(["umount", self.folder], check=True)

    def fail(self) -> None:
        """From now on no new block can be written."""
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def recover(self) -> None:
        """Blocks can be written again."""
        self._ballast.unlink()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Device]:
    """A device that works."""
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
    """It ends, and starts only when the log can be synced. Everything acknowledged is there after a new mount."""
    with Service(tmp_path / "bank") as service:
        # Only the database is on that device: the service's log and the test's own notes have to be written.
        service.database.symlink_to(device.folder / "payments.sqlite3")
        scene = Scene(service, limit=1000)
        service.up()
        packets = [scene.packet(1)]
        assert scene.send(packets[0]) == "fulfilled"
        device.fail()
        # Some blocks of the log have their place in the backing store already, so a few more commits succeed.
        while len(packets) < 400:
            packets.append(scene.packet(1))
            if scene.send(packets[-1]) != "fulfilled":
                break
        assert len(packets) < 400
        assert service.wait() == 1
        for _ in range(2):
            device.fail()
            service.start()
            if service.listens():  # the device could take the whole log after all
                service.kill()
            else:
                assert service.wait() == 1
        device.recover()
        service.up()
        assert {scene.send(packet) for packet in packets} == {"fulfilled"}
        service.kill()
        device.unmount()
        device.mount()
        report = check(service.database, [scene.path])
    assert report.violations == []
    assert report.figures.credits == len(packets)
