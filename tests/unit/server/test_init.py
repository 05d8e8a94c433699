"""`incoming-payments init`: the files that it writes, and those that it keeps."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import wallet_address_url
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, Action, TokenQuery
from incoming_payments.ilp import Peer
from incoming_payments.server.command import main
from incoming_payments.server.config.setting import toml
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.config.tables import TABLES
from incoming_payments.server.init import CLIENT_JWK, CLIENT_KEY, CONFIGURATION, PEER_TOKEN, SERVER_SECRET

FILES: Final = [SERVER_SECRET, PEER_TOKEN, CLIENT_KEY, CLIENT_JWK, CONFIGURATION]


def test_init_writes_the_files_for_serve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`init` creates the folder, writes configuration, secret, token and client key, and prints the next command."""
    folder = tmp_path / "deep" / "folder"
    status = main(["init", str(folder)])

    assert status == 0
    assert sorted(FILES) == sorted(path.name for path in folder.iterdir())
    written, then = capsys.readouterr().out.splitlines()
    assert f"Wrote {', '.join(FILES)} to {folder}." == written
    assert f"Next: incoming-payments serve --config {folder / CONFIGURATION}" == then


def test_init_for_a_postgresql_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration names the database. The output names the command that creates the tables, and no password."""
    assert main(["init", str(tmp_path), "--database-url", 'postgresql://bank:hunter2"@db.internal/bank']) == 0
    settings = load_settings(tmp_path / CONFIGURATION)
    assert str(settings.given.database) == "postgresql://bank@db.internal/bank"
    output = capsys.readouterr().out
    assert f"\nCreate the tables: incoming-payments migrate --config {tmp_path / CONFIGURATION}\n" in output
    assert "hunter2" not in output


@pytest.mark.parametrize("url", ["payments.sqlite3", "postgresql://bank:hunter2@[db/bank"])
def test_init_for_a_wrong_url_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str) -> None:
    """The error names the option, and shows no password."""
    assert main(["init", str(tmp_path / "new"), "--database-url", url]) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "incoming-payments: --database-url is not a URL of PostgreSQL: write for example postgresql"
    )
    assert "hunter2" not in error
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_files_of_init_are_private(folder: Path) -> None:
    """Only the owner can enter the folder, or read a file with a key, a secret or a token."""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [0o600] * len(FILES) == [stat.S_IMODE((folder / name).stat().st_mode) for name in FILES]


def test_configuration_of_init_can_be_loaded(folder: Path) -> None:
    """The configuration loads unchanged. It has an address, one wallet address, and a token for the client's key."""
    settings = load_settings(folder / CONFIGURATION)

    base_url = "http://127.0.0.1:9002"
    [token] = re.findall(r'^value = "(.+)"$', (folder / CONFIGURATION).read_text("utf-8"), re.MULTILINE)
    jwk = json.loads((folder / CLIENT_JWK).read_text("utf-8"))
    actions = [action for action in Action if not action.endswith("-all")]
    right = AccessRight(actions, wallet_address_url(f"{base_url}/alice"))
    expected = AccessTokenInfo(f"{base_url}/a-client", jwk, [right])
    assert (base_url, f"{base_url}/auth") == (settings.policy.base_url, settings.policy.auth_server)
    assert (folder / "payments.sqlite3", 9002, None) == (
        settings.given.database,
        settings.given.listen.port,
        settings.given.listen.mount,
    )
    assert settings.wallet_addresses.find(wallet_address_url(f"{base_url}/alice")) is not None
    assert expected == settings.introspector.introspect(TokenQuery(AccessToken(token), "read"))
    peer_token = (folder / PEER_TOKEN).read_text("ascii").strip()
    assert settings.packets is not None
    assert settings.packets.path == "/ilp"
    assert settings.packets.peer_of([f"Bearer {peer_token}"]) == Peer("test.bank.connector", Asset("USD", 2))


def test_secrets_of_init_are_new_each_time(folder: Path, tmp_path: Path) -> None:
    """Each call makes a new key, a new secret and a new token."""
    main(["init", str(tmp_path / "other"), "--port", "9002"])

    same = [name for name in FILES if (folder / name).read_bytes() == (tmp_path / "other" / name).read_bytes()]
    assert same == []


OPTIONAL: Final = {
    f"# {setting.name} = {setting.written or toml(setting.default)}": setting
    for table in TABLES
    for setting in table.settings
    # `events.port` needs a table for a consumer, and the other tables here are comments.
    if table.name not in {"rights", "authorization_server", "wallet_addresses", "webhooks", "consumer", "events"}
    and setting.line.startswith("# ")
}


def test_each_optional_setting_can_be_uncommented(folder: Path) -> None:
    """Each setting that the configuration shows as a comment is accepted without its `#`, alone and with all others."""
    path = folder / CONFIGURATION
    (folder / "database-password.txt").write_text("a password", "utf-8")
    text = path.read_text("utf-8")
    lines = list(OPTIONAL)
    assert lines
    for chosen in [[line] for line in lines] + [lines]:
        changed = text
        for line in chosen:
            assert changed.count(f"\n{line}\n") == 1
            changed = changed.replace(f"\n{line}\n", f"\n{line.removeprefix('# ')}\n")
        path.write_text(changed, "utf-8")
        load_settings(path)


def test_optional_settings_show_their_defaults(folder: Path) -> None:
    """Removing the `#` in front of a setting with a default changes nothing."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    before = load_settings(path)
    for line, setting in OPTIONAL.items():
        if setting.default is not None or setting.name in {"mount", "ilp_address"}:
            text = text.replace(f"\n{line}\n", f"\n{line.removeprefix('# ')}\n")
    path.write_text(text, "utf-8")
    after = load_settings(path)

    assert (before.policy, before.packets) == (after.policy, after.packets)
    # The path of `base_url`, which is the default, is empty.
    assert (
        before.given.listen.mount,
        after.given.listen.mount,
        urlsplit(before.policy.base_url).path,
    ) == (None, "", "")
    assert (before.given.log.explain_signatures, after.given.log.explain_signatures) == (False, False)


@pytest.mark.parametrize("name", FILES)
def test_init_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """When one of the files exists, it stays unchanged, and no other file is written."""
    (tmp_path / name).write_text("precious", "utf-8")

    assert main(["init", str(tmp_path)]) == 1
    assert [name] == [path.name for path in tmp_path.iterdir()]
    assert (tmp_path / name).read_text("utf-8") == "precious"
    says = f"incoming-payments: {tmp_path / name} exists: choose another folder, or move this file away\n"
    assert says == capsys.readouterr().err


def test_failed_init_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the third file cannot be written, the first two are removed."""
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
    says = "cannot be written (No space left on device): choose another folder, or allow writes to it"
    assert f"incoming-payments: {tmp_path} {says}\n" == capsys.readouterr().err


def test_init_with_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error says that a folder is needed."""
    (tmp_path / "file").touch()
    assert main(["init", str(tmp_path / "file")]) == 1
    says = f"incoming-payments: {tmp_path / 'file'} is a file: give the path of a folder\n"
    assert capsys.readouterr().err == says


def test_init_below_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error for a path below a file names the path."""
    (tmp_path / "file").write_text("", "utf-8")

    assert main(["init", str(tmp_path / "file" / "folder")]) == 1
    says = "cannot be written (Not a directory): choose another folder, or allow writes to it"
    assert f"incoming-payments: {tmp_path / 'file' / 'folder'} {says}\n" == capsys.readouterr().err


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_init_with_a_port_out_of_range_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], port: int
) -> None:
    """A port out of range is refused before anything is written."""
    assert main(["init", str(tmp_path / "folder"), f"--port={port}"]) == 1
    assert f"incoming-payments: --port must be from 1 to 65535, not {port}\n" == capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


def test_init_with_a_dialect_alone_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dialect without an authorization server is a mistake, which a token for development would hide."""
    assert main(["init", str(tmp_path / "new"), "--dialect", "rafiki"]) == 1
    assert "--dialect needs --authorization-server: give the introspection endpoint" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
