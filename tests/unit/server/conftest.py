"""Fixtures for the tests of the program."""

from pathlib import Path

import pytest

from incoming_payments.server.command import main


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Return a folder that `init` has filled."""
    folder = tmp_path / "my bank"
    assert main(["init", str(folder), "--port", "9002"]) == 0
    capsys.readouterr()
    return folder
