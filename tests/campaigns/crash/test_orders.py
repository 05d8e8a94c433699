"""Ten processes that create under one idempotency key, killed at random, leave one payment."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from campaigns.crash.orders import PROCESSES
from campaigns.crash.service import environment

ROUNDS: Final = 6


def test_processes_that_are_killed_leave_one_payment_for_each_key(tmp_path: Path) -> None:
    """The program compares all answers with the database. Some processes were killed, and some had answers."""
    command = [sys.executable, "-m", "campaigns.crash.orders", str(tmp_path), "11", str(ROUNDS)]
    run = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=240)
    assert (run.returncode, run.stderr) == (0, "")
    killed, answered = map(int, run.stdout.split())
    assert 0 < killed <= ROUNDS * PROCESSES
    assert answered > 0
