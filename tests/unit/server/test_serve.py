"""`incoming-payments serve`: start, responses, stop, and the errors that keep it from starting."""

import errno
import os
import re
import signal
import socket
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest

from incoming_payments.errors import StoreStopped
from incoming_payments.httpsig import RequestMessage, sign
from incoming_payments.limits import LOGGED_A_MINUTE_MAX
from incoming_payments.server import serve
from incoming_payments.server.command import main
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN, SERVER_SECRET
from kits.processes import Bank, HttpClient, await_lines, code_of, free_port, run_command, token_in, unsigned
from kits.raw_http import answers, as_bytes, exchange


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_on_a_signal(bank: Bank, number: signal.Signals) -> None:
    """A real process serves the folder of `init`. SIGTERM or Ctrl-C ends it with status 0 and a closed database."""
    with bank.serving() as process:
        client = bank.client
        created = client.create(incomingAmount={"value": "2500", "assetCode": "USD", "assetScale": 2})
        assert created.status_code == 201
        payment = created.json()
        read = client.get(payment["id"])
        listed, completed = client.list(), client.complete(client.create().json()["id"])
        public = unsigned("GET", payment["id"])
        nothing = unsigned("GET", bank.base_url)
        process.send_signal(number)
        status = process.wait(30)

    assert (200, payment) == (read.status_code, read.json())
    assert (listed.status_code, completed.status_code) == (200, 200)  # the token of `init` has these rights too
    assert {"receivedAmount": payment["receivedAmount"], "authServer": f"{bank.base_url}/auth"} == public.json()
    assert code_of(nothing) == (404, "not_found")
    assert status == 0
    # SQLite removes its log when the last connection is closed in good order.
    assert {file.name for file in bank.folder.glob("payments.sqlite3*")} == {
        "payments.sqlite3",
        "payments.sqlite3-lock",
    }
    output = bank.log.read_text("utf-8")
    assert f"Serving {bank.base_url}/incoming-payments on 127.0.0.1 port {bank.port}.\n" in output
    assert "Traceback" not in output


def test_quotas_of_the_configuration(bank: Bank) -> None:
    """`[quotas]` limits the clients of all workers together, and SIGHUP does not give a client a new quota."""
    bank.edit("# unpaid_payments = 100", "unpaid_payments = 2")
    bank.edit("# workers = 1", "workers = 2")
    with bank.serving() as process:
        assert [bank.client.create().status_code for _ in range(2)] == [201, 201]
        process.send_signal(signal.SIGHUP)
        await_lines(bank.log, "was read again", count=3)
        refused = bank.client.create()
        assert code_of(refused) == (429, "too_many_unpaid_payments")
        # A worker that has not seen the payments of the other one asks for a retry after a second.
        assert refused.headers["Retry-After"] in {"1", "3600"}


def test_trailing_slash_of_the_configuration(bank: Bank) -> None:
    """With `trailing_slash`, `serve` accepts targets with one slash at the end, and signatures over them."""
    statuses = []
    for line in ("# trailing_slash = false", "trailing_slash = true"):
        bank.edit("# trailing_slash = false", line)
        with bank.serving():
            client = bank.client
            url = client.create().json()["id"]
            answers = [
                client.get(f"{url}/"),
                client.send("POST", "/incoming-payments/", {"walletAddress": f"{bank.base_url}/alice"}),
            ]
            answers += [unsigned("GET", f"{url}/"), client.send("POST", f"{url.removeprefix(bank.base_url)}/complete/")]
            statuses.append([answer.status_code for answer in answers])
    assert statuses == [[404, 404, 404, 404], [200, 201, 200, 200]]


def test_explain_signatures_logs_the_reason(bank: Bank) -> None:
    """With `explain_signatures`, the log has the reason and no token. The response stays the same."""
    answers, logs = [], []
    for setting in ("# explain_signatures = false", "explain_signatures = true"):
        bank.edit("# explain_signatures = false", setting)
        with bank.serving():
            # The client uses another host name than base_url.
            answers.append(HttpClient.of(bank.folder, f"http://localhost:{bank.port}").create())
        logs.append(bank.log.read_text("utf-8"))

    assert [code_of(answer) for answer in answers] == [(401, "signature_invalid")] * 2
    assert answers[0].content == answers[1].content
    assert "proved" not in logs[0]
    assert logs[1].count("incoming payments: signature refused, signature_invalid: ") == 1
    signed = f"http://localhost:{bank.port}/incoming-payments"
    assert f"  proved: the client signed {signed}: another host than the service" in logs[1]
    assert '    "authorization": GNAP <redacted, 64 characters>\n' in logs[1]
    assert [log for log in logs if token_in(bank.folder)[:8] in log] == []


def test_serve_ends_when_its_store_stops(bank: Bank) -> None:
    """It ends with status 1 and the reason, so that a supervisor restarts it or raises the alarm."""
    client = bank.client
    with bank.serving() as process:
        await_lines(bank.log, "Application startup complete")
        (bank.folder / "payments.sqlite3-lock").unlink()
        response = client.send("POST", "/incoming-payments", {"walletAddress": f"{bank.base_url}/alice"})
        assert code_of(response) == (503, "store_stopped")
        assert process.wait(30) == 1
    assert "payments.sqlite3-lock was removed or replaced" in bank.log.read_text("utf-8").splitlines()[-1]


def test_exit_status_is_zero_unless_the_store_has_stopped() -> None:
    """The command prints a raised error and exits with 1."""
    assert serve.exit_status([]) == 0
    with pytest.raises(StoreStopped, match="the disk failed"):
        serve.exit_status([StoreStopped("the disk failed")])


def test_clients_cannot_fill_the_log(bank: Bank) -> None:
    """Requests that are not HTTP, or request another protocol, leave a limited number of lines and no traceback."""
    start = f"POST /ilp HTTP/1.1\r\nHost: 127.0.0.1:{bank.port}\r\n".encode()
    upgrade = start + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n"
    nonsense = start + b"Content-Length: x\r\n\r\n"

    with bank.serving():
        for sent, status in ((upgrade, 415), (nonsense, 400)):
            for _ in range(2 * LOGGED_A_MINUTE_MAX):
                assert [answer[0] for answer in answers(exchange(bank.port, sent))] == [status]

    log = bank.log.read_text("utf-8")
    lines = Counter(re.findall(r"WARNING (.+)", log))
    assert lines["uvicorn.error -: Invalid HTTP request received."] == LOGGED_A_MINUTE_MAX
    assert set(lines.values()) == {LOGGED_A_MINUTE_MAX}
    assert "Traceback" not in log
    assert token_in(bank.folder) not in log


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t "])
def test_white_space_behind_a_token_is_no_part_of_it(bank: Bank, space: bytes) -> None:
    """Clients and peers are authenticated although the parser leaves the white space there. RFC 9110 §5.5."""
    url, peer_token = bank.base_url, (bank.folder / PEER_TOKEN).read_text("utf-8").strip()
    with bank.serving():
        client = bank.client
        headers = (("authorization", f"GNAP {client.token}"),)
        payment = RequestMessage("GET", client.create().json()["id"], headers)
        get = sign(payment, client.key, created=datetime.now(UTC))
        packet_headers = (("authorization", f"Bearer {peer_token}"), ("content-type", "application/octet-stream"))
        packet = RequestMessage("POST", f"{url}/ilp", packet_headers, b"no packet")

        for request, token in ((get, client.token), (packet, peer_token)):
            sent = as_bytes(request, url).replace(token.encode(), token.encode() + space)
            assert [status for status, _ in answers(exchange(bank.port, sent))] == [200]


def test_serve_below_a_path(bank: Bank) -> None:
    """A service whose base URL has a path answers there. Without peers, it announces no packets."""
    base_url = f"{bank.base_url}/op"
    before, _, after = bank.configuration.read_text("utf-8").replace(bank.base_url, base_url).partition("[[peer]]")
    bank.configuration.write_text(before + after[after.index("[log]") :], "utf-8")
    with bank.serving():
        created = HttpClient.of(bank.folder, base_url).create()
        above = unsigned("GET", f"{bank.base_url}/incoming-payments")

    assert created.status_code == 201
    assert created.json()["id"].startswith(f"{base_url}/incoming-payments/")
    assert code_of(above) == (401, "token_missing")
    assert "ILP packets" not in bank.log.read_text("utf-8")


def test_wrong_mount_is_explained_in_the_log(bank: Bank) -> None:
    """The log names the path that arrived and the one that was expected, at a limited rate."""
    bank.edit(f'base_url = "{bank.base_url}"', f'base_url = "{bank.base_url}/op"')
    logs = []
    for old, mount in (('# mount = ""', 'mount = "/proxied"'), ('mount = "/proxied"', "# mount is left out")):
        bank.edit(old, mount)
        with bank.serving():
            statuses = {unsigned("GET", f"{bank.base_url}/op/incoming-payments").status_code for _ in range(12)}
        logs.append((statuses, bank.log.read_text("utf-8")))
    (wrong, hints), (right, none) = logs
    assert (wrong, right) == ({404}, {401})
    found = [line for line in hints.splitlines() if "'/op/incoming-payments'" in line]
    assert len(found) == LOGGED_A_MINUTE_MAX
    assert all("'/proxied/incoming-payments'" in line for line in found)
    assert "WARNING" not in none


def test_serve_on_a_port_in_use(folder: Path) -> None:
    """A port in use is reported in one line, before a database is created."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = folder / CONFIGURATION
        path.write_text(path.read_text("utf-8").replace("9002", f"{port}"), "utf-8")
        done = run_command("serve", "--config", path)

    why = os.strerror(errno.EADDRINUSE)
    how = "stop the program that listens there, or give another port; if base_url contains the port, change it too"
    says = f"incoming-payments: {path}: listen.port: cannot listen on 127.0.0.1 port {port}: {why}; {how}\n"
    assert (1, "", says) == (done.returncode, done.stdout, done.stderr)
    assert not (folder / "payments.sqlite3").exists()


@pytest.mark.parametrize("library", ["uvicorn", "httptools"])
def test_serve_without_its_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], library: str
) -> None:
    """Without uvicorn or its parser, `serve` names the packages to install."""
    monkeypatch.setitem(sys.modules, library, None)

    assert main(["serve", "--config", str(folder / CONFIGURATION)]) == 1
    says = "incoming-payments: serve needs uvicorn and httptools: run pip install 'incoming-payments[serve]'\n"
    assert says == capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_files_that_others_can_read_get_a_warning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file with a secret that others can read gets one line on stderr, and the server starts."""
    (folder / SERVER_SECRET).chmod(0o644)
    path = folder / CONFIGURATION
    text = path.read_text("utf-8").replace('host = "127.0.0.1"', 'host = "no.such.host.invalid"')
    path.write_text(text, "utf-8")

    assert main(["serve", "--config", str(path)]) == 1
    warning, _, refusal = capsys.readouterr().err.splitlines()
    says = f"{folder / SERVER_SECRET}: other users have access (mode 0644): run chmod go-rwx on it"
    assert f"incoming-payments: warning: {says}" == warning
    assert refusal.startswith(f"incoming-payments: {path}: listen.host: cannot listen on no.such.host.invalid")


def test_serve_without_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without `--config`, `serve` reads `incoming-payments.toml` in the current folder. The error names `init`."""
    monkeypatch.chdir(tmp_path)

    assert main(["serve"]) == 1
    how = "give another file with --config, or create it with `incoming-payments init FOLDER`"
    says = f"incoming-payments.toml does not exist: {how}\n"
    assert f"incoming-payments: {says}" == capsys.readouterr().err


def test_database_in_a_missing_folder_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A database in a missing folder is refused in one line."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8").replace("9002", f"{free_port()}")
    path.write_text(text.replace("payments.sqlite3", "none/payments.sqlite3"), "utf-8")

    assert main(["serve", "--config", str(path)]) == 1
    why = f"the directory {folder / 'none'} does not exist: create it for the database"
    says = f"incoming-payments: {path}: database: {why}\n"
    assert says == capsys.readouterr().err
