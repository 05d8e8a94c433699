"""Credit payments on a disk with random sync failures, and check the disk as power cuts may leave it.

    python -m campaigns.disk.campaign [--images N] [--runs N] [--seed S]

Each run lets one or two processes credit a payment, starts them again when they stop, and logs their writes and syncs.
Then it rebuilds the disk as a power cut may leave it at a random point. No credit may be missing that was acknowledged
before that point.
"""

import argparse
import random
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from attrs import define, field

from campaigns.disk.faults import RANDOM, FaultyDisk, build
from campaigns.disk.rebuild import SYNC_FAILED, WRITE, Record, Rest, read_log, rebuild

DATABASE: Final = "payments.db"
PROBABILITY: Final = 5  # of a sync that fails, in 1/256: about 2 %
CREDITS: Final = 120  # of each process
RESTARTS: Final = 6


@define
class Report:
    """The figures of a campaign."""

    images: int = 0
    acknowledged: int = 0
    failed_syncs: int = 0
    restarts: int = 0
    missing: list[str] = field(factory=list)


def run_campaign(folder: Path, library: Path, *, images: int, runs: int, seed: int) -> Report:
    """Make `runs` runs, and check `images` images of their disks."""
    report = Report()
    for run in range(runs):
        rng = random.Random(f"{seed}-{run}")
        disk = FaultyDisk(folder / f"disk-{seed}-{run}", library)
        report.restarts += _credit(disk, processes=1 + run % 2)
        records = read_log(disk.log)
        report.failed_syncs += sum(record.kind == SYNC_FAILED for record in records)
        report.acknowledged += len(_acknowledged(records))
        for image in range(images * run // runs, images * (run + 1) // runs):
            rest = list(Rest)[image % 3]
            cut = rng.randrange(len(records) // 20, len(records) + 1)
            name = f"seed {seed}, run {run}, image {image}: cut {cut} of {len(records)}, {rest.value}"
            report.missing += _check(records[:cut], rest, rng, folder / "image", name)
            report.images += 1
    return report


def _credit(disk: FaultyDisk, *, processes: int) -> int:
    """Let processes credit a payment, start them again when all have ended, and return the number of starts."""
    database = disk.folder / DATABASE
    assert disk.run("worker", database, "first", 0, 1, logged=True) == (0, [])
    disk.set(RANDOM, PROBABILITY)
    restarts = 0
    for turn in range(RESTARTS):
        workers = [
            disk.start("worker", database, f"w{n}", turn * CREDITS, CREDITS, logged=True) for n in range(processes)
        ]
        for worker in workers:
            _, errors = worker.communicate(timeout=300)
            assert worker.returncode in (0, 3), errors
        restarts += 1
    return restarts


def _acknowledged(records: Sequence[Record]) -> list[str]:
    lines = b"".join(record.data for record in records if record.name == "acknowledged" and record.kind == WRITE)
    return lines.decode().split()


def _check(records: Sequence[Record], rest: Rest, rng: random.Random, folder: Path, name: str) -> list[str]:
    """Write the image that `records` leave, open it by SQLite, and compare it with the acknowledged credits."""
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for file, content in rebuild(records, rest=rest, rng=rng).items():
        (folder / file).write_bytes(content)
    try:
        with closing(sqlite3.connect(folder / DATABASE)) as connection:
            problems = connection.execute("PRAGMA integrity_check").fetchall()
            # A power cut before the schema was written leaves no table, and nothing is acknowledged yet.
            has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'credits'").fetchone()
            rows = connection.execute("SELECT credit_id FROM credits") if has_table else ()
            there = {credit for (credit,) in rows}
    except sqlite3.Error as error:
        return [f"{name}: {error}"]
    lost = set(_acknowledged(records)) - there
    found = [] if problems == [("ok",)] else [f"{name}: {problems}"]
    return found + ([f"{name}: {len(lost)} credits are missing"] if lost else [])


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="nox -s disk --")
    parser.add_argument("--images", type=int, default=1000, help="number of disks to rebuild and check (1000)")
    parser.add_argument("--runs", type=int, default=20, help="number of runs that write them (20)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the cuts and sectors (1)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        report = run_campaign(Path(folder), library, images=options.images, runs=options.runs, seed=options.seed)
    for line in report.missing:
        print(line)
    print(
        f"{report.images} images, {report.acknowledged} acknowledged credits, {report.failed_syncs} failed syncs, "
        f"{report.restarts} starts, {len(report.missing)} images with missing credits"
    )
    return 1 if report.missing else 0


if __name__ == "__main__":
    sys.exit(main())
