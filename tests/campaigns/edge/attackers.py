"""Run attackers as a process."""

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from campaigns.edge.proxy import TIMEOUT_S, Edge
from kits.processes import ROOT


@contextmanager
def attacked(edge: Edge, name: str, *, processors: Collection[int] = ()) -> Iterator[None]:
    """Attack `edge` from other addresses of loopback while the body runs. The attack has its full strength.

    The attackers run on `processors` only, if there are any.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE_PROCESS")}
    process = subprocess.Popen(
        [sys.executable, "-m", "campaigns.edge.attack", name, str(edge.port), edge.peer_token],
        env={**environment, "PYTHONPATH": str(ROOT / "tests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # asyncio warns of each write to a closed connection
    )
    if processors:
        os.sched_setaffinity(process.pid, processors)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None, "the attackers have given up"
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
