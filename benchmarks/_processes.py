"""The processor time and the memory of a process with its children. Reads /proc, so it needs Linux."""

import os
from collections.abc import Iterator
from pathlib import Path


def family(pid: int) -> Iterator[int]:
    """Yield `pid` and the process ids of all of its descendants."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split():
        yield from family(int(child))


def processor_s(pid: int) -> float:
    """Return the seconds of processor that the process and its descendants have used."""
    return sum(_processor_s(member) for member in family(pid))


def ended_s(pid: int) -> float:
    """Return the seconds of processor that the ended children of the process have used."""
    return _seconds(pid, 13)


def _processor_s(pid: int) -> float:
    return _seconds(pid, 11)


def _seconds(pid: int, first: int) -> float:
    """Return the sum of two fields of /proc/PID/stat. The first one is `first` fields behind the name."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[first]) + int(fields[first + 1])) / os.sysconf("SC_CLK_TCK")


def threads_s(pid: int) -> float:
    """Return the seconds of processor that the current threads of one process have used, exact to a nanosecond."""
    return sum(int(file.read_text("ascii").split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def resident_mb(pid: int) -> float:
    """Return the resident memory of the process and its descendants in MB. Pages that they share count once.

    All members run the same program. So count pages of files once: those of the member that has most. Of anonymous
    memory, add the share of each member.
    """
    members = list(family(pid))
    own_mb = sum(_field_mb(member, "smaps_rollup", "Pss_Anon") for member in members)
    return own_mb + max(_field_mb(member, "status", "RssFile") for member in members)


def _field_mb(pid: int, file: str, name: str) -> float:
    text = Path(f"/proc/{pid}/{file}").read_text("ascii")
    return int(text.partition(f"\n{name}:")[2].split()[0]) * 1024 / 1e6
