"""The `incoming-payments` command: what `init` writes, how `serve` starts and ends, and what it says when it cannot."""

import asyncio
import errno
import gc
import importlib.metadata
import json
import logging
import os
import re
import signal
import socket
import stat
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import uvicorn

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import wallet_address_url
from incoming_payments.errors import ConfigurationError
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo
from incoming_payments.hosts import command, demo, http_connection
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.command import CLIENT_JWK, CLIENT_KEY, CONFIGURATION, PEER_TOKEN, SERVER_SECRET, main
from incoming_payments.hosts.settings import Settings, load_settings
from incoming_payments.httpsig import PrivateKey, load_jwk
from incoming_payments.ilp import Peer
from incoming_payments.limits import KEEP_ALIVE_S_MAX, LOGGED_A_MINUTE_MAX
from incoming_payments.stores.sqlite import AsyncSqliteStore
from processes import COMMAND, HttpClient, code_of, free_port, run_command, serving, token_in, unsigned
from raw_http import answers, exchange

FILES: Final = [SERVER_SECRET, PEER_TOKEN, CLIENT_KEY, CLIENT_JWK, CONFIGURATION]


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder that `init` has filled."""
    folder = tmp_path / "my bank"
    assert main(["init", str(folder), "--port", "9002"]) == 0
    capsys.readouterr()
    return folder


# --- init ----------------------------------------------------------------------------------------


def test_init_writes_what_serve_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`init` makes the folder and writes configuration, secret and client key into it, and says what to do next."""
    folder = tmp_path / "deep" / "folder"
    status = main(["init", str(folder)])

    assert status == 0
    assert sorted(FILES) == sorted(path.name for path in folder.iterdir())
    written, then = capsys.readouterr().out.splitlines()
    assert f"Wrote {', '.join(FILES)} to {folder}." == written
    assert f"Next: incoming-payments serve --config {folder / CONFIGURATION}" == then


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_what_init_writes_is_private(folder: Path) -> None:
    """Nobody but the owner can enter the folder, or read a file that holds a key, a secret or a token."""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [0o600] * len(FILES) == [stat.S_IMODE((folder / name).stat().st_mode) for name in FILES]


def test_what_init_writes_can_be_loaded(folder: Path) -> None:
    """The configuration is good as it is: the address, one wallet address, and a token for the key beside it."""
    settings = load_settings(folder / CONFIGURATION)

    base_url = "http://127.0.0.1:9002"
    [token] = re.findall(r'^value = "(.+)"$', (folder / CONFIGURATION).read_text("utf-8"), re.MULTILINE)
    jwk = json.loads((folder / CLIENT_JWK).read_text("utf-8"))
    expected = AccessTokenInfo(
        f"{base_url}/a-client", jwk, [AccessRight(["create", "read"], wallet_address_url(f"{base_url}/alice"))]
    )
    assert (base_url, f"{base_url}/auth") == (settings.policy.base_url, settings.policy.auth_server)
    assert (folder / "payments.sqlite3", 9002, "") == (settings.database, settings.port, settings.mount)
    assert settings.wallet_addresses.find(wallet_address_url(f"{base_url}/alice")) is not None
    assert expected == settings.introspector.introspect(AccessToken(token))
    peer_token = (folder / PEER_TOKEN).read_text("ascii").strip()
    assert settings.packets is not None
    assert settings.packets.path == "/ilp"
    assert settings.packets.peer_of([f"Bearer {peer_token}"]) == Peer("test.bank.connector", Asset("USD", 2))


def test_the_keys_belong_together(folder: Path) -> None:
    """What the private key signs, the public one verifies."""
    public = load_jwk((folder / CLIENT_JWK).read_bytes())
    private = PrivateKey.from_pem((folder / CLIENT_KEY).read_bytes(), kid=public.kid)

    assert public.verify(private.sign(b"data"), b"data")


def test_two_services_share_no_secret(folder: Path, tmp_path: Path) -> None:
    """Key, secret and token are new each time."""
    main(["init", str(tmp_path / "other"), "--port", "9002"])

    same = [name for name in FILES if (folder / name).read_bytes() == (tmp_path / "other" / name).read_bytes()]
    assert same == []


def commented_out(text: str) -> list[str]:
    """The settings that a configuration shows as comments."""
    return re.findall(r"^# (\w+ = .+)$", text, re.MULTILINE)


def test_each_commented_setting_can_be_uncommented(folder: Path) -> None:
    """Each setting that the configuration shows as a comment is accepted once the `#` is gone, and all of them are."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    lines = commented_out(text)
    assert len(lines) == 17
    for chosen in [[line] for line in lines] + [lines]:
        changed = text
        for line in chosen:
            assert changed.count(f"# {line}\n") == 1
            changed = changed.replace(f"# {line}\n", f"{line}\n")
        path.write_text(changed, "utf-8")
        load_settings(path)


def test_commented_limits_show_the_defaults(folder: Path) -> None:
    """Uncommenting a limit, a path or an address changes nothing, as the value that is shown is the one without it."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    before = load_settings(path)
    head, limits = text.split("[limits]")
    for name in ("mount", "path", "ilp_address"):
        head = head.replace(f"# {name} =", f"{name} =")
    path.write_text(head + "[limits]" + limits.replace("\n# ", "\n"), "utf-8")
    after = load_settings(path)

    assert (before.policy, before.mount, before.packets) == (after.policy, after.mount, after.packets)
    assert (before.explain_signatures, after.explain_signatures) == (False, False)


@pytest.mark.parametrize("name", FILES)
def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """When one of the files is there already, it stays as it is, and none of the others is written."""
    (tmp_path / name).write_text("precious", "utf-8")

    assert main(["init", str(tmp_path)]) == 1
    assert [name] == [path.name for path in tmp_path.iterdir()]
    assert (tmp_path / name).read_text("utf-8") == "precious"
    says = f"incoming-payments: {tmp_path / name} is there already: choose another folder, or move it away\n"
    assert says == capsys.readouterr().err


def test_init_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the third file cannot be written, the first two are taken away again."""
    really_open, seen = os.open, list[str]()

    def fill_up(path: Any, *arguments: Any, **options: Any) -> int:
        seen.append(Path(path).name)
        if len(seen) == 3:
            raise OSError(28, "No space left on device")
        return really_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", fill_up)

    assert main(["init", str(tmp_path)]) == 1
    assert FILES[:3] == seen
    assert list(tmp_path.iterdir()) == []
    assert f"incoming-payments: {tmp_path}: cannot be written: No space left on device\n" == capsys.readouterr().err


def test_init_where_no_folder_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A path below a file is refused with the path."""
    (tmp_path / "file").write_text("", "utf-8")

    assert main(["init", str(tmp_path / "file" / "folder")]) == 1
    says = f"incoming-payments: {tmp_path / 'file' / 'folder'}: cannot be written: Not a directory\n"
    assert says == capsys.readouterr().err


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_init_with_a_port_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], port: int) -> None:
    """A port out of range is refused before anything is written."""
    assert main(["init", str(tmp_path / "folder"), f"--port={port}"]) == 1
    assert f"incoming-payments: --port must be from 1 to 65535, not {port}\n" == capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


# --- serve ---------------------------------------------------------------------------------------


def flood(port: int) -> bool:
    """Whether a client that sends requests ahead of their answers, and takes none, is cut off before 64 MB."""
    requests = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 40_000
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        try:
            for _ in range(64):
                client.sendall(requests)
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_answers_and_stops_when_told(tmp_path: Path, number: signal.Signals) -> None:
    """A real process serves what `init` wrote; SIGTERM or Ctrl-C end it with status 0 and the database closed."""
    port = free_port()
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    base_url, log = f"http://127.0.0.1:{port}", tmp_path / "log"

    with serving([*COMMAND, "serve", "--config", tmp_path / CONFIGURATION], port, log) as process:
        client = HttpClient.of(tmp_path, base_url)
        created = client.create(incomingAmount={"value": "2500", "assetCode": "USD", "assetScale": 2})
        assert created.status_code == 201
        payment = created.json()
        read = client.get(payment["id"])
        public = unsigned("GET", payment["id"])
        nothing = unsigned("GET", base_url)
        flooded = flood(port)
        still = unsigned("GET", payment["id"])
        process.send_signal(number)
        status = process.wait(30)

    assert (200, payment) == (read.status_code, read.json())
    assert {"receivedAmount": payment["receivedAmount"], "authServer": f"{base_url}/auth"} == public.json()
    assert code_of(nothing) == (404, "not_found")
    assert (flooded, still.status_code) == (True, 200)
    assert status == 0
    # SQLite removes its log when the last connection is closed in good order.
    assert [tmp_path / "payments.sqlite3"] == list(tmp_path.glob("payments.sqlite3*"))
    said = log.read_text("utf-8")
    assert f"Serving {base_url}/incoming-payments on 127.0.0.1 port {port},\n" in said
    assert "Traceback" not in said


def test_serve_remembers_nonces_in_the_database(tmp_path: Path) -> None:
    """So that the next process knows those of the one before it."""
    port = free_port()
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    base_url = f"http://127.0.0.1:{port}"
    client = HttpClient.of(tmp_path, base_url)
    body = {"walletAddress": f"{base_url}/alice"}

    answers = []
    for turn in range(2):
        with serving([*COMMAND, "serve", "--config", tmp_path / CONFIGURATION], port, tmp_path / f"log-{turn}"):
            answers += [client.send("POST", "/incoming-payments", body, nonce="n") for _ in range(2)]

    assert answers[0].status_code == 201
    assert [code_of(answer) for answer in answers[1:]] == [(401, "nonce_used")] * 3


def test_serve_explains_refused_signatures_when_told(tmp_path: Path) -> None:
    """With the setting the log says why, and no token; the client is told the same as without it."""
    port = free_port()
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    path = tmp_path / CONFIGURATION
    text = path.read_text("utf-8")
    answers, logs = [], []
    for turn, log_setting in enumerate(("# explain_signatures = false", "explain_signatures = true")):
        path.write_text(text.replace("# explain_signatures = false", log_setting), "utf-8")
        log = tmp_path / f"log-{turn}"
        with serving([*COMMAND, "serve", "--config", path], port, log):
            # It calls itself by another name, and sends that in Host: what a wrong base_url comes from.
            client = HttpClient.of(tmp_path, f"http://localhost:{port}")
            answers.append(client.create())
        logs.append(log.read_text("utf-8"))

    assert [code_of(answer) for answer in answers] == [(401, "signature_invalid")] * 2
    assert answers[0].content == answers[1].content
    assert "proved" not in logs[0]
    assert logs[1].count("incoming payments: signature refused, signature_invalid: ") == 1
    said = f"  proved: the client signed http://localhost:{port}/incoming-payments: another host than the service"
    assert said in logs[1]
    assert '    "authorization": GNAP <redacted, 43 characters>\n' in logs[1]
    assert [log for log in logs if token_in(tmp_path)[:8] in log] == []


def test_strangers_cannot_fill_the_log(tmp_path: Path) -> None:
    """What is not HTTP leaves so many lines in the log of `serve`, and no trace; another protocol leaves none."""
    port = free_port()
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    start = f"POST /ilp HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
    upgrade = start + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n"
    chunk = start + b"Transfer-Encoding: chunked\r\n\r\nffff\r\n" + bytes(65535) + b"\r\n"
    nonsense = start + b"Content-Length: x\r\n\r\n"

    with serving([*COMMAND, "serve", "--config", tmp_path / CONFIGURATION], port, tmp_path / "log"):
        for sent, status in ((upgrade, 415), (chunk + b"zz\r\n", 415), (nonsense, 400)):
            for _ in range(2 * LOGGED_A_MINUTE_MAX):
                assert [answer[0] for answer in answers(exchange(port, sent))] == [status]

    log = (tmp_path / "log").read_text("utf-8")
    assert log.count("WARNING") == log.count("incoming payments: a connection was refused: ") == LOGGED_A_MINUTE_MAX
    assert "Traceback" not in log
    assert token_in(tmp_path) not in log


def test_serve_below_a_path(tmp_path: Path) -> None:
    """A service whose base URL has a path answers there."""
    port = free_port()
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    base_url, path = f"http://127.0.0.1:{port}/op", tmp_path / CONFIGURATION
    text = path.read_text("utf-8")
    path.write_text(text.replace(f"http://127.0.0.1:{port}", base_url), "utf-8")

    with serving([*COMMAND, "serve", "--config", path], port, tmp_path / "log"):
        created = HttpClient.of(tmp_path, base_url).create()
        above = unsigned("GET", f"http://127.0.0.1:{port}/incoming-payments")

    assert created.status_code == 201
    assert created.json()["id"].startswith(f"{base_url}/incoming-payments/")
    assert code_of(above) == (405, "method_not_allowed")


def test_serve_on_a_port_in_use(folder: Path) -> None:
    """When somebody listens there already, that is said in one line, before a database is made."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = folder / CONFIGURATION
        path.write_text(path.read_text("utf-8").replace("port = 9002", f"port = {port}"), "utf-8")
        done = run_command("serve", "--config", path)

    says = f"incoming-payments: listen: cannot listen on 127.0.0.1 port {port}: {os.strerror(errno.EADDRINUSE)}\n"
    assert (1, "", says) == (done.returncode, done.stdout, done.stderr)
    assert not (folder / "payments.sqlite3").exists()


def test_serve_without_uvicorn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without what only `serve` needs, it says what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)

    assert main(["serve", "--config", str(folder / CONFIGURATION)]) == 1
    says = "incoming-payments: serve needs uvicorn and httptools: pip install 'incoming-payments[serve]'\n"
    assert says == capsys.readouterr().err


def test_serve_bounds_its_connections(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server runs with bounds for connections, for those that wait, and for silence, and speaks HTTP only."""
    made: list[uvicorn.Config] = []

    class Unstarted(uvicorn.Server):
        def run(self, sockets: list[socket.socket] | None = None) -> None:
            assert sockets
            assert gc.get_freeze_count() > 0  # no garbage collection looks through the modules
            made.append(self.config)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(uvicorn, "Server", Unstarted)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    monkeypatch.setattr(command, "room", lambda: (12, 3))
    path = folder / CONFIGURATION
    path.write_text(path.read_text("utf-8").replace("port = 9002", f"port = {free_port()}"), "utf-8")
    stores: list[AsyncSqliteStore] = []
    really_build = command.build

    def build(settings: Settings, store: AsyncSqliteStore) -> AsgiApplication:
        stores.append(store)
        return really_build(settings, store)

    monkeypatch.setattr(command, "build", build)
    try:
        assert main(["serve", "--config", str(path)]) == 0
    finally:
        gc.unfreeze()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for store in stores:
            asyncio.run(store.close())

    [config] = made
    assert isinstance(config.http, type)
    assert issubclass(config.http, http_connection.HttpConnection)
    assert (config.http.connections_max, config.backlog, config.timeout_keep_alive) == (12, 3, KEEP_ALIVE_S_MAX)
    assert (config.ws, config.loop) == ("none", "asyncio")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_serve_warns_of_files_that_others_can_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file with a secret that is open to others is said in one line on stderr, and the server starts."""
    (folder / SERVER_SECRET).chmod(0o644)
    path = folder / CONFIGURATION
    text = path.read_text("utf-8").replace('host = "127.0.0.1"', 'host = "no.such.host.invalid"')
    path.write_text(text, "utf-8")

    assert main(["serve", "--config", str(path)]) == 1
    warning, refusal = capsys.readouterr().err.splitlines()
    says = f"{folder / SERVER_SECRET}: other users have access (mode 0644): chmod go-rwx it"
    assert f"incoming-payments: warning: {says}" == warning
    assert refusal.startswith("incoming-payments: listen: cannot listen on no.such.host.invalid")


def test_serve_with_a_wrong_configuration(folder: Path) -> None:
    """A wrong setting ends the process with status 1 and one line on stderr that names file and setting."""
    path = folder / CONFIGURATION
    path.write_text(path.read_text("utf-8").replace("asset_scale = 2", "asset_scale = 2.0"), "utf-8")

    done = run_command("serve", "--config", path)
    says = f"incoming-payments: {path}: wallet_address[0].asset_scale must be an integer\n"
    assert (1, "", says) == (done.returncode, done.stdout, done.stderr)


def test_serve_without_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`serve` alone looks for `incoming-payments.toml` where it is called, and says how to get one."""
    monkeypatch.chdir(tmp_path)

    assert main(["serve"]) == 1
    says = "incoming-payments.toml: there is no such file: `incoming-payments init FOLDER` writes one\n"
    assert f"incoming-payments: {says}" == capsys.readouterr().err


def test_serve_with_a_database_that_cannot_be(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A database in a folder that is not there is refused in one line."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8").replace("port = 9002", f"port = {free_port()}")
    path.write_text(text.replace("payments.sqlite3", "none/payments.sqlite3"), "utf-8")

    assert main(["serve", "--config", str(path)]) == 1
    says = f"incoming-payments: the directory {folder / 'none'} does not exist: create it for the database\n"
    assert says == capsys.readouterr().err


@pytest.mark.parametrize("host", ["no.such.host.invalid", f"{'a' * 64}.example"])
def test_serve_on_a_host_that_is_none(host: str) -> None:
    """A host name that does not resolve, or cannot be one, is refused by name."""
    with pytest.raises(ConfigurationError, match=f"listen: cannot listen on {host} port 9002: ") as refused:
        command.open_listener(host, 9002)
    assert refused.value.details == {"setting": "listen"}


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_serve_on_ipv6() -> None:
    """A host with colons is an IPv6 address."""
    try:
        listener = command.open_listener("::1", free_port())
    except ConfigurationError as refused:
        pytest.skip(f"this machine has no IPv6: {refused.description}")
    with listener:
        assert listener.family == socket.AF_INET6


# --- the command itself --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--help"], ["init", "serve", "sign", "demo"]),
        (["init", "--help"], ["folder", "--port"]),
        (["serve", "--help"], ["--config"]),
        (["sign", "--help"], ["METHOD", "URL", "--data", "--header", "--config", "--key-id", "--token", "--cover"]),
        (["demo", "--help"], ["usage: incoming-payments demo"]),
    ],
)
def test_help(capsys: pytest.CaptureFixture[str], arguments: list[str], shown: list[str]) -> None:
    """`--help` tells of every command and option."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert [text for text in shown if text not in said] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` tells the version of the distribution."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert f"incoming-payments {importlib.metadata.version('incoming-payments')}\n" == capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["sereve"], ["init"], ["init", "x", "--port", "http"], ["serve", "x"]])
def test_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Arguments that make no sense end with status 2 and the usage."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: incoming-payments")


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with the status that shells expect, and without a trace."""

    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "main", interrupted)
    assert main(["demo"]) == 130
