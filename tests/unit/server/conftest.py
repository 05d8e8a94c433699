"""Fixtures for the tests of the program."""

from pathlib import Path

import pytest

from incoming_payments.server.command import main
from kits.processes import Bank


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a folder that `init` has filled."""
    folder = tmp_path / "my bank"
    assert main(["init", str(folder), "--port", "9002"]) == 0
    capsys.readouterr()
    return folder


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    """Return a folder that `init` has filled for a service on a free port."""
    return Bank.init(tmp_path)
