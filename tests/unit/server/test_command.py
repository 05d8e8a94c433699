"""The command line: its help, its version, and its exit statuses."""

import importlib
import importlib.metadata
import subprocess
import sys
from contextlib import suppress

import pytest

from incoming_payments.server.command import main
from incoming_payments.server.dev import demo


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], ["init", "serve", "backup", "audit", "sign", "demo"]),
        (["init", "--help"], ["folder", "--port"]),
        (["serve", "--help"], ["--config"]),
        (["backup", "--help"], ["target", "--config", "--audit"]),
        (["audit", "--help"], ["database", "--json"]),
        (["sign", "--help"], ["METHOD", "URL", "--data", "--header", "--config", "--key-id", "--token", "--cover"]),
        (["demo", "--help"], ["usage: incoming-payments demo"]),
    ],
)
def test_help_shows_every_command_and_option(
    capsys: pytest.CaptureFixture[str], arguments: list[str], shown: list[str]
) -> None:
    """`--help` shows every command and option, and exits with status 0."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert [text for text in shown if text not in output] == []


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` prints the version of the distribution."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert f"incoming-payments {importlib.metadata.version('incoming-payments')}\n" == capsys.readouterr().out


def test_python_m_runs_the_command() -> None:
    """`python -m incoming_payments` is the command, with its exit status, and importing the module runs nothing."""
    run = [sys.executable, "-m", "incoming_payments"]
    assert subprocess.check_output([*run, "--version"], text=True, timeout=60).startswith("incoming-payments ")
    assert subprocess.run([*run, "serve", "--config", "absent"], capture_output=True, timeout=60).returncode == 1
    importlib.import_module("incoming_payments.__main__")


@pytest.mark.parametrize("arguments", [[], ["sereve"], ["init"], ["init", "x", "--port", "http"], ["serve", "x"]])
def test_wrong_usage_exits_with_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Wrong arguments exit with status 2, and print the usage."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: incoming-payments")


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--database-url", "postgresql://bank:hunter2@db/bank"],
        ["serve", "--config", "postgresql://bank:hunter2@db/bank"],
        ["serve", "--config", "postgresql+psycopg://bank:hun@ter2/hunter2@db/bank"],
        ["serve", "host=db password=hunter2"],
        ["init", "postgresql://bank:hunter2@db/bank"],
        ["migrate", "postgresql://bank:hunter2@db/bank"],
    ],
)
def test_a_connection_string_in_the_wrong_place_shows_no_password(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """No usage error and no other error shows it."""
    with suppress(SystemExit):
        assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.count("incoming-payments: ") == 1
    assert "hun" not in error
    assert "ter2" not in error


def test_ctrl_c_exits_with_status_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with the status that shells expect, and without a traceback."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "main", interrupted)
    assert main(["demo"]) == 130
