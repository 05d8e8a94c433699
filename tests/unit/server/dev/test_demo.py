"""The demo: a whole payment between real processes, and its output when a step fails."""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.dev import _demo_processes as processes
from incoming_payments.server.dev import demo
from incoming_payments.server.dev._demo_processes import StoryEnds
from incoming_payments.testing.sender import Ending, SenderTotals
from kits.processes import free_port, run_command
from kits.scripted_server import scripted_server

# The steps that the demo prints, as patterns.
STEPS: Final = [
    r"The authorization server issues a token that is bound to the key of a client\.",
    r"The service starts on a fresh SQLite file \(process \d+\)\.",
    r"A client creates an incoming payment of 25\.00 USD\.",
    r"The client reads the payment with a signed request\.",
    r"A client reads the payment without a token and a signature\.",
    r"A payer that has the address and the secret gets a quote before any money moves\.",
    r"The payer sends 25\.00 USD by STREAM over HTTP, in packets of 0\.10 USD, 8 at a time\.",
    r"The service is killed with SIGKILL \(process \d+\), with packets in flight\.",
    r"The service is back \(process \d+\)\. The payer repeats the packets that got no reply\.",
    r"The client reads the payment with a signed request\.",
    r"The payer's ledger is compared with the payee's, which core banking reads from the file\.",
    r"The payer tries to send 0\.01 more\.",
    r"A client creates an incoming payment of 25\.00 USD\.",
    r"Core banking, another process on the same file, credits 10\.00 and repeats the call\.",
    r"Core banking credits the other 15\.00\.",
    r"The client reads the payment with a signed request\.",
    r"Core banking tries to credit 0\.01 more\.",
    r"An attacker has the token but not the key, and signs with another key\.",
    r"The client requests a payment in the wrong asset\.",
    r"The authorization server fails\. The client reads the payment\.",
    r"The client reads the payment with a signed request\.",
    r"The authorization server revokes the token\. The client reads the payment once more\.",
]
CREATED: Final = r"201 received 0\.00 USD of 25\.00 USD, not completed, expires [-0-9TZ:]+, can be paid by ilp"
COMPLETED: Final = r"200 received 25\.00 USD of 25\.00 USD, completed, expires [-0-9TZ:]+, cannot be paid"
ANSWERS: Final = [
    r"a token with the rights create and read",
    CREATED,
    r"200 received 0\.00 USD of 25\.00 USD, not completed, expires [-0-9TZ:]+, can be paid by ilp",
    r"200 received 0\.00 USD, grants at http://127\.0\.0\.1:\d+",
    r"25\.00 USD would arrive, and the payment accepts 25\.00 USD in all",
    r"done: 25\.00 USD delivered in 250 packets, [1-9]\d* of them repeated",
    COMPLETED,
    r"payer: 25\.00 USD in 250 packets, 0\.00 USD unknown",
    r"payee: 25\.00 USD in 250 credits",
    r"closed: the payment is completed: 0\.00 USD delivered in 0 packets, 0 of them repeated",
    CREATED,
    r"credited: received 10\.00 USD in all",
    r"credited: received 10\.00 USD in all",
    r"credited: received 25\.00 USD in all, which completes it",
    COMPLETED,
    r"payment_completed: the payment is completed .+",
    r"401 signature_invalid: .+",
    r"400 asset_mismatch: .+",
    r"503 authorization_server_unavailable: .+",
    COMPLETED,
    r"401 invalid_token: .+",
]


# --- the steps -------------------------------------------------------------------------------------


def test_every_step_of_the_demo_holds() -> None:
    """The demo runs between real processes, prints each step with its messages, and exits with status 0."""
    done = run_command("demo")

    assert (done.returncode, done.stderr) == (0, "")
    steps = re.findall(r"^ *\d+  (.+)$", done.stdout, re.MULTILINE)
    answers = re.findall(r"^ +< (.+)$", done.stdout, re.MULTILINE)
    assert [True] * len(STEPS) == [bool(re.fullmatch(*pair)) for pair in zip(STEPS, steps, strict=True)]
    assert [True] * len(ANSWERS) == [bool(re.fullmatch(*pair)) for pair in zip(ANSWERS, answers, strict=True)]
    assert [25 * tenth / 10 for tenth in range(1, 11)] == bars(done.stdout)
    assert done.stdout.splitlines()[-1] == "47 of 47 checks held."
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)  # it is no terminal


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Let SIGINT end child processes. A shell ignores SIGINT for programs that it starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("line", ["grants", "packets in flight"])
def test_ctrl_c_ends_the_demo(line: str) -> None:
    """Ctrl-C ends the demo and its processes within seconds, without a traceback, also in the middle of the payment."""
    command = [sys.executable, "-m", "incoming_payments", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as run:
        assert run.stdout is not None
        while line not in run.stdout.readline():
            assert run.poll() is None
        os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=20)
    assert (run.returncode, errors) == (130, "")


def bars(text: str) -> list[float]:
    """Return the amounts beside the bars. Each bar has the right length."""
    found = re.findall(r"^     \[(#*)(-*)\] +(\d+\.\d\d) USD$", text, re.MULTILINE)
    assert [round(60 * float(amount) / 25) for *_, amount in found] == [len(done) for done, _, _ in found]
    assert {60} == {len(done + left) for done, left, _ in found}
    return [float(amount) for *_, amount in found]


class Terminal(io.StringIO):
    """A terminal that keeps its output."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_progress_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, each packet redraws the bar in the same line. The line ends when the payment ends."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    progress = demo.Progress(1000)
    progress.go_on.set()
    progress(SenderTotals(1000, delivered=10))
    progress(SenderTotals(1000, delivered=600))
    progress(SenderTotals(1000, delivered=1000, ending=Ending.DONE))

    lines = [f"{'#' * done}{'-' * (60 - done)}" for done in (1, 36, 60)]
    assert terminal.getvalue() == "".join(
        f"\r     [{line}] {usd:>5} USD{end}"
        for line, usd, end in zip(lines, ("0.10", "6.00", "10.00"), ("", "", "\n"), strict=True)
    )


def test_progress_ends_a_payer_that_is_left() -> None:
    """After Ctrl-C, the payer does not wait for the service."""
    with demo.Progress(1000) as progress:
        progress(SenderTotals(1000, delivered=10))
    assert progress.go_on.is_set()
    with pytest.raises(StoryEnds):
        progress(SenderTotals(1000, delivered=20))


def test_refused_payer_ends_the_demo(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """When the service refuses the payer's packets, the demo prints the refusal and exits with status 1."""
    run = processes.run_command

    def change_token(command: str, folder: str, *more: str) -> None:
        run(command, folder, *more)
        monkeypatch.setattr(demo._Story, "_token", lambda _: "another-token-than-that")

    monkeypatch.setattr(demo, "run_command", change_token)

    assert demo.main() == 1
    output = capfd.readouterr()
    assert "refuses packets from this sender: status 401" in output.err
    assert "Traceback" not in output.err


def test_failed_checks_are_reported(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A failed check is printed, the demo continues, and the exit status is 1."""
    wanted = demo._wanted

    def too_much(client: Any, asset_code: str) -> dict[str, Any]:
        body = wanted(client, asset_code)
        return {**body, "incomingAmount": {**body["incomingAmount"], "value": "2600"}}

    monkeypatch.setattr(demo, "_wanted", too_much)

    assert demo.main() == 1
    output = capfd.readouterr().out
    wrong = [line.strip() for line in output.splitlines() if "WRONG" in line]
    assert wrong == [
        "WRONG: completed should be True, but is False",
        "WRONG: methods should be 0, but is 1",
        f"WRONG: ending should be {Ending.CLOSED!r}, but is {Ending.DONE!r}",
        "WRONG: completed should be True, but is False",
        "WRONG: methods should be 0, but is 1",
        "WRONG: outcome should be 'payment_completed', but is 'credited'",
        "WRONG: receivedAmount should be '2500', but is '2501'",
        "WRONG: completed should be True, but is False",
        "WRONG: methods should be 0, but is 1",
    ]
    assert output.splitlines()[-1] == "38 of 47 checks held. Something is wrong."


def test_service_that_does_not_start_ends_the_demo(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """When the service ends at once, the demo prints its log, and exits with status 1 and no traceback."""
    run = processes.run_command

    def break_settings(command: str, folder: str, *more: str) -> None:
        run(command, folder, *more)
        with (Path(folder) / "incoming-payments.toml").open("a", encoding="utf-8") as file:
            file.write("colour = 'blue'\n")

    monkeypatch.setattr(demo, "run_command", break_settings)

    assert demo.main() == 1
    output = capfd.readouterr()
    assert " 2  " not in output.out
    assert "The service did not start:\n" in output.err
    assert "colour is not a setting" in output.err
    assert "Traceback" not in output.err


def test_error_of_a_command_is_passed_on(tmp_path: Path) -> None:
    """The error of a failed command is passed on."""
    with pytest.raises(StoryEnds, match="incoming-payments: --port must be from 1 to 65535, not 0"):
        processes.run_command("init", str(tmp_path), "--port", "0")


def test_service_that_does_not_listen_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for a service that does not listen has a time limit."""
    monkeypatch.setattr(processes, "START_S_MAX", 0.1)
    log = tmp_path / "log"
    log.write_text("busy with something else", "utf-8")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(StoryEnds, match="did not listen within 0 seconds:\nbusy with something else"):
            processes._await_port(process, free_port(), log)
        process.communicate(b"\n")
    assert process.returncode == 0


# --- wrong responses ---------------------------------------------------------


def a_client(base_url: str) -> demo._Client:
    """Return a client of the service at `base_url`."""
    return demo._Client(base_url, "TOKEN", PrivateKey.generate_ed25519("key-1"))


def test_refused_creation_ends_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """When the service refuses to create the payment, every failed check is printed before the demo ends."""
    refusal = {"error": {"code": "invalid_token", "description": "the access token is not active"}}
    with (
        scripted_server(lambda exchange, _: exchange.answer(refusal, 401)) as server,
        pytest.raises(StoryEnds, match="The service created no payment"),
    ):
        demo._Story(tmp_path)._create(a_client(server.url.removesuffix("/introspect")))
    output = capsys.readouterr().out
    assert "     < 401 invalid_token: the access token is not active\n" in output
    assert "     WRONG: status should be 201, but is 401\n" in output
    assert output.count("WRONG") == 4


@pytest.mark.parametrize("content", [b"", b"<html>"])
def test_response_that_is_not_json_is_reported(content: bytes) -> None:
    """The error for an unreadable response names the request."""
    with (
        scripted_server(lambda exchange, _: exchange.answer(content, 502)) as server,
        pytest.raises(StoryEnds, match=r"did not answer GET /incoming-payments/1 with JSON: JSONDecodeError"),
    ):
        a_client(server.url.removesuffix("/introspect")).send("GET", "/incoming-payments/1")


def test_missing_response_is_reported() -> None:
    """The error for a missing service names the request."""
    with pytest.raises(StoryEnds, match=r"did not answer GET /incoming-payments/1 with JSON: ConnectionRefused"):
        a_client(f"http://127.0.0.1:{free_port()}").send("GET", "/incoming-payments/1")


@pytest.mark.parametrize(
    ("body", "output"),
    [
        ({"receivedAmount": {"value": "5", "assetCode": "JPY", "assetScale": 0}}, "received 5 JPY"),
        ({"receivedAmount": {"value": "5", "assetCode": "XRP", "assetScale": 9}}, "received 0.000000005 XRP"),
        ({}, "received None, which is not an amount"),
        ({"receivedAmount": {"value": "x", "assetScale": 0}}, "received {'value': 'x', 'assetScale': 0}, which is not"),
        ({"error": {}}, "None: None"),
    ],
)
def test_summary_of_a_response(body: dict[str, Any], output: str) -> None:
    """Amounts are shown in major units; an incomplete response is shown as it is."""
    assert demo._summary(body).startswith(output)


# --- core banking ----------------------------------------------------------------------------------


def test_failure_of_core_banking_ends_the_demo(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The demo ends, and leaves no process, when the core banking process dies during a call or before it."""
    with processes.core_banking(tmp_path / "payments.sqlite3") as bank:
        with pytest.raises(StoryEnds, match="The core banking process has ended"):
            bank("an id with spaces", "wire-1", 1)
        bank._process.wait()
        with pytest.raises(StoryEnds, match="The core banking process has ended"):
            bank("id", "wire-1", 1)
    assert bank._process.returncode == 1
    assert "Traceback" in capfd.readouterr().err
