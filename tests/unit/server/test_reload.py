"""SIGHUP: the next requests use the new tokens, secrets and peers, and no request is lost."""

import logging
import re
import secrets
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.gnap import AccessToken, TokenQuery
from incoming_payments.hosts.asgi import Receive, Scope, Send
from incoming_payments.server.command import main
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.fixed_paths import Application
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN, SERVER_SECRET
from incoming_payments.server.reload import ReloadableApplication
from incoming_payments.testing.sender import Ending, Payee, over_http, pay
from kits.processes import Bank, HttpClient, await_lines, code_of, token_in

PEER: Final = '[[peer]]\nname = "second"\nasset_code = "USD"\nasset_scale = 2\ntoken_files = ["second.txt"]\n'


def edit(folder: Path, old: str, new: str) -> None:
    """Replace a text in the configuration."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def test_hangup_changes_tokens_secrets_and_peers_without_losing_a_request(bank: Bank) -> None:
    """A process under load reads a new token, a new secret and a new peer 10 times. Every request is answered."""
    old = bank.client
    new = HttpClient(bank.base_url, "NEW-TOKEN", old.key)
    (bank.folder / "second.txt").write_text(secrets.token_urlsafe(32))
    (bank.folder / "new.hex").write_text(secrets.token_hex(32))
    ended = threading.Event()
    statuses: list[int] = []

    def load() -> None:
        while not ended.is_set():
            statuses.append(HttpClient(bank.base_url, "TOKEN-OF-ALL", old.key).create().status_code)

    text = bank.configuration.read_text("utf-8")
    [token] = re.findall(r"(?s)\n(\[\[token\]\]\n.*?)(?=\n\n)", text)
    edit(bank.folder, token, f"{token}\n{token.replace(token_in(bank.folder), 'TOKEN-OF-ALL')}")
    with bank.serving() as process:
        before = Payee.of(old.create(incomingAmount={"value": "10", "assetCode": "USD", "assetScale": 2}).json())
        assert code_of(new.create()) == (401, "invalid_token")
        with ThreadPoolExecutor(2) as pool:
            loads = [pool.submit(load) for _ in range(2)]
            edit(bank.folder, token_in(bank.folder), "NEW-TOKEN")
            edit(bank.folder, f'["{SERVER_SECRET}"]', f'["new.hex", "{SERVER_SECRET}"]')
            edit(bank.folder, "\n[[peer]]\n", f"\n{PEER}[[peer]]\n")
            for turn in range(10):
                answered = len(statuses)
                process.send_signal(signal.SIGHUP)
                await_lines(bank.log, "was read again", turn + 1)
                while len(statuses) < answered + 2 and not any(future.done() for future in loads):
                    time.sleep(0.01)
            ended.set()
            for future in loads:
                future.result()
        assert code_of(old.create()) == (401, "invalid_token")
        created = new.create(incomingAmount={"value": "10", "assetCode": "USD", "assetScale": 2})
        assert created.status_code == 201
        after = Payee.of(created.json())
        # Both peers can pay the payments of both secrets.
        endings = [
            pay(over_http(f"{bank.base_url}/ilp", (bank.folder / name).read_text("ascii").strip()), payee, 5).ending
            for name in ("second.txt", PEER_TOKEN)
            for payee in (before, after)
        ]
    assert set(statuses) == {201}
    assert len(statuses) >= 20
    assert endings == [Ending.DONE] * 4


def test_broken_file_keeps_the_old_settings(bank: Bank) -> None:
    """The log names file and setting, the service goes on, and a repaired file is used."""
    client, token = bank.client, token_in(bank.folder)
    peer_token = (bank.folder / PEER_TOKEN).read_text("ascii")
    with bank.serving() as process:
        edit(bank.folder, token, "NEW-TOKEN")
        (bank.folder / PEER_TOKEN).write_text("short")
        process.send_signal(signal.SIGHUP)
        await_lines(bank.log, "the new configuration has an error")
        assert client.create().status_code == 201
        (bank.folder / PEER_TOKEN).write_text(peer_token)
        process.send_signal(signal.SIGHUP)
        await_lines(bank.log, "was read again")
        assert code_of(client.create()) == (401, "invalid_token")
    says = (
        "ERROR incoming_payments.server.reload configuration_refused: incoming payments: the new configuration has "
        f"an error, so the old settings stay: {bank.configuration}: peer[0].token_files[0]: "
        f"{bank.folder / PEER_TOKEN} must hold a token"
    )
    assert says in bank.log.read_text("utf-8")
    assert "NEW-TOKEN" not in bank.log.read_text("utf-8")


def application(folder: Path, used: list[Settings]) -> ReloadableApplication:
    """Return an application that records the settings with which it was built."""

    def build(settings: Settings) -> Application:
        used.append(settings)

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            """Do nothing."""

        return answer

    return ReloadableApplication(load_settings(folder / CONFIGURATION), build)


FIXED: Final = [
    ('database = "payments.sqlite3"', 'database = "other.sqlite3"', "database"),
    ("port = 9002", "port = 9003", "listen.port"),
    ('host = "127.0.0.1"', 'host = "localhost"', "listen.host"),
    ("# workers = 1", "workers = 2", "listen.workers"),
    ('# mount = ""', 'mount = "/x"', "listen.mount"),
    ("# health = true", "health = false", "listen.health"),
    ("# metrics_port = 9464", "metrics_port = 9464", "listen.metrics_port"),
    ("# explain_signatures = false", "explain_signatures = true", "log.explain_signatures"),
    ('# format = "json"', 'format = "json"', "log.format"),
    ("# access = true", "access = true", "log.access"),
    ("# unpaid_payments = 100", "unpaid_payments = 3", "quotas.unpaid_payments"),
    ("# public_get = true", "public_get = false", "limits.public_get"),
]


@pytest.mark.parametrize(("old", "new", "name"), FIXED)
def test_setting_that_needs_a_restart_stays(
    folder: Path, caplog: pytest.LogCaptureFixture, old: str, new: str, name: str
) -> None:
    """The log names the setting, and the others are used."""
    used: list[Settings] = []
    reloadable = application(folder, used)
    edit(folder, old, new)
    edit(folder, token_in(folder), "NEW-TOKEN")
    with caplog.at_level(logging.WARNING):
        reloadable.reload()

    text = f"incoming payments: {folder / CONFIGURATION}: {name} has changed, but the old value stays until a restart"
    assert text in caplog.messages
    before, after = used
    assert after.introspector.introspect(TokenQuery(AccessToken("NEW-TOKEN"), "read")) is not None
    assert before.policy == after.policy
    for field in ("database", "listen", "log", "limits", "quotas"):
        assert getattr(before.given, field) == getattr(after.given, field)


def test_changed_authorization_server_needs_a_restart(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An authorization server that a running service does not use is named in the log."""
    used: list[Settings] = []
    text = re.sub(r"(?s)\n\[\[token\]\]\n.*?\n\n", "\n\n", (folder / CONFIGURATION).read_text("utf-8"))
    (folder / CONFIGURATION).write_text(text)
    reloadable = application(folder, used)
    new = '\n[authorization_server]\nurl = "https://auth.bank.example/x"\ndialect = "rafiki"\n'
    edit(folder, "\n# [authorization_server]\n", new)
    reloadable.reload()
    assert "[authorization_server] has changed, but the old value stays until a restart" in caplog.text
    assert used[1].given.authorization_server is None


def test_removed_table_needs_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table that is no longer there is named as a table, and one setting of it by its name."""
    assert main(["init", str(tmp_path), "--authorization-server", "https://as.example/i"]) == 0
    used: list[Settings] = []
    reloadable = application(tmp_path, used)
    edit(tmp_path, "# cache_s = 0", "cache_s = 9")
    reloadable.reload()
    text = (tmp_path / CONFIGURATION).read_text("utf-8")
    (tmp_path / CONFIGURATION).write_text(re.sub(r"(?s)\n\[authorization_server\]\n.*?\n\n", "\n\n", text))
    reloadable.reload()
    needs = "has changed, but the old value stays"
    for name in ("authorization_server.cache_s", "[authorization_server]"):
        assert f"{name} {needs}" in caplog.text
    assert [settings.given.authorization_server for settings in used] == [used[0].given.authorization_server] * 3


def test_events_and_warnings_of_a_reload(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each line has its event. Warnings about files are repeated, because files change too."""
    reloadable = application(folder, [])
    (folder / SERVER_SECRET).chmod(0o644)
    with caplog.at_level(logging.INFO):
        reloadable.reload()
        edit(folder, "\n[ilp]\n", "\n[[[")
        reloadable.reload()
    found = [(record.levelname, record.__dict__["event"]) for record in caplog.records]
    assert found == [
        ("INFO", "configuration_read"),
        ("WARNING", "configuration_warning"),
        ("ERROR", "configuration_refused"),
    ]
    assert (
        f"{folder / SERVER_SECRET}: other users have access (mode 0644): run chmod go-rwx on it" in caplog.messages[1]
    )


def test_application_that_cannot_be_built_keeps_the_old_one(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the service itself, such as two peers with one token, is logged like an error of the file."""
    used: list[Settings] = []
    reloadable = application(folder, used)
    edit(folder, token_in(folder), "not a token")
    reloadable.reload()
    assert len(used) == 1
    assert "token[0].value" in caplog.text
    with pytest.raises(InvalidValue):
        AccessToken("not a token")
