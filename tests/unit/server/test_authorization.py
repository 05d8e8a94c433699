"""`[authorization_server]`: its settings, their errors, and the ports that they open."""

import asyncio
import builtins
import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.clients.client_keys import AsyncHttpClientKeys
from incoming_payments.clients.introspection import AsyncHttpIntrospector
from incoming_payments.errors import ConfigurationError
from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.authorization import connect
from incoming_payments.server.command import main
from incoming_payments.server.declarations import AUTHORIZATION_SERVER
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN, SERVER_SECRET, SERVICE_JWK, SERVICE_KEY
from incoming_payments.server.setting import toml
from incoming_payments.server.settings import Settings, load_settings
from incoming_payments.testing.authorization_server import AuthorizationServer
from kits.processes import COMMAND, HttpClient, code_of, free_port, run_command, serving

URL: Final = "https://as.bank.example/introspect"


def folder_of(tmp_path: Path, url: str = URL, dialect: str = "rfc9767") -> Path:
    """Return a folder that `init` has filled for the authorization server at `url`."""
    folder = tmp_path / "bank"
    assert main(["init", str(folder), "--authorization-server", url, "--dialect", dialect]) == 0
    return folder


def changed(folder: Path, old: str, new: str) -> Settings:
    """Return the settings in `folder` after one change of the configuration."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    return load_settings(path)


# --- init ------------------------------------------------------------------------------------------


def test_init_writes_the_table_with_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the dialect of RFC 9767 the service signs with a new key, of which `init` writes the public half too."""
    folder = folder_of(tmp_path)
    settings = load_settings(folder / CONFIGURATION)

    files = [SERVER_SECRET, PEER_TOKEN, SERVICE_KEY, SERVICE_JWK, CONFIGURATION]
    assert sorted(files) == sorted(path.name for path in folder.iterdir())
    assert capsys.readouterr().out.splitlines() == [
        f"Wrote {', '.join(files)} to {folder}.",
        f"Check auth_server, which is https://as.bank.example, and the wallet addresses in {folder / CONFIGURATION}.",
        f"Register the key of this service, {folder / SERVICE_JWK}, at the authorization server.",
        f"Next: incoming-payments serve --config {folder / CONFIGURATION}",
    ]
    server = settings.authorization_server
    assert server is not None
    assert server.key is not None
    assert (server.url, server.dialect, server.issuer) == (URL, "rfc9767", "https://as.bank.example")
    assert (server.cache_s, server.timeout_s, server.client_keys) == (0, 3, True)
    assert (server.allow_http, server.allow_private_clients, settings.tokens) == (False, False, ())
    assert server == load_settings(folder / CONFIGURATION).authorization_server
    asyncio.run(connect(server).aclose())


def test_init_for_rafiki_writes_no_key(tmp_path: Path) -> None:
    """Rafiki takes unsigned requests over http, here on loopback."""
    folder = folder_of(tmp_path, "http://127.0.0.1:3007/", "rafiki")
    server = load_settings(folder / CONFIGURATION).authorization_server

    assert not (folder / SERVICE_KEY).exists()
    assert server is not None
    assert (server.key, server.issuer) == (None, None)
    assert (server.allow_http, server.allow_private_clients) == (True, True)


def test_init_without_a_url_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the option, and no file is written."""
    assert main(["init", str(tmp_path / "bank"), "--authorization-server", "auth.bank.example"]) == 1
    assert "incoming-payments: --authorization-server must" in capsys.readouterr().err
    assert not (tmp_path / "bank").exists()


def test_each_optional_setting_can_be_uncommented(tmp_path: Path) -> None:
    """Each setting that the table shows as a comment is accepted without its `#`."""
    folder = folder_of(tmp_path)
    before = load_settings(folder / CONFIGURATION).authorization_server
    for setting in AUTHORIZATION_SERVER.settings:
        line = f"{setting.name} = {setting.written or toml(setting.default)}"
        if setting.line.startswith("# ") and setting.name not in {"key_file", "key_id"}:
            after = changed(folder, f"\n# {line}\n", f"\n{line}\n").authorization_server
            assert (after == before) == (setting.default is not None and setting.written is None), setting.name
            changed(folder, f"\n{line}\n", f"\n# {line}\n")


# --- errors ----------------------------------------------------------------------------------------

WRONG: Final = [
    ('dialect = "rfc9767"', 'dialect = "rfc7662"', "dialect must be 'rfc9767' or 'rafiki'"),
    ('key_id = "service-key-1"', "", "key_id is missing: give key_file and key_id together, or none of them"),
    ('key_file = "service-key.pem"', "", "key_file is missing: give key_id and key_file together, or none of them"),
    ('key_id = "service-key-1"', 'key_id = ""', "key_id must be 1 to 256 printable ASCII characters"),
    ("service-key.pem", "no-key.pem", "key_file: FOLDER/no-key.pem does not exist: correct the name, or add the file"),
    ("service-key.pem", "service-key.jwk", "key_file: FOLDER/service-key.jwk cannot be used: the PEM cannot be read"),
    ("# cache_s = 0", "cache_s = 301", "cache_s must be an integer from 0 to 300, not 301"),
    ("# timeout_s = 3", "timeout_s = 0", "timeout_s must be an integer from 1 to 30, not 0"),
]


@pytest.mark.parametrize(("old", "new", "says"), WRONG)
def test_error_names_the_setting(tmp_path: Path, old: str, new: str, says: str) -> None:
    """A wrong setting is an error with its name, before anything starts."""
    folder = folder_of(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        changed(folder, old, new)
    expected = f"{folder / CONFIGURATION}: authorization_server.{says.replace('FOLDER', str(folder))}"
    assert caught.value.description.startswith(expected)


def test_token_beside_an_authorization_server_is_refused(folder: Path) -> None:
    """A listed token would be accepted without the authorization server, so a configuration has only one of them."""
    with pytest.raises(ConfigurationError, match="token and authorization_server exclude each other: remove one"):
        changed(folder, "# [authorization_server]", f'[authorization_server]\nurl = "{URL}"\ndialect = "rafiki"')


def test_wrong_setting_of_the_introspector_names_the_setting(tmp_path: Path) -> None:
    """A setting that the introspector refuses is an error with its name in the configuration."""
    folder = folder_of(tmp_path)
    server = changed(folder, f'url = "{URL}"', 'url = "http://auth.bank.example/introspect"').authorization_server
    assert server is not None
    with pytest.raises(ConfigurationError, match=re.escape("authorization_server.url must be an https URL")) as caught:
        connect(server)
    assert caught.value.details["setting"] == "authorization_server.url"


def test_missing_extra_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without aiohttp, the error names the extra to install."""
    server = load_settings(folder_of(tmp_path) / CONFIGURATION).authorization_server
    really_import = builtins.__import__

    def without_aiohttp(name: str, *arguments: Any, **options: Any) -> Any:
        if name.endswith("_aiohttp"):
            raise ImportError(name)
        return really_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_aiohttp)
    assert server is not None
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'incoming-payments[clients]'")):
        connect(server)


# --- the process ---------------------------------------------------------------------------------


def test_serve_introspects_and_closes_its_connections(tmp_path: Path) -> None:
    """A process accepts a token of its authorization server, and ends in good order with open connections."""
    port, key = free_port(), PrivateKey.generate_ed25519("key-1")
    with AuthorizationServer() as server:
        folder = tmp_path / "bank"
        assert run_command("init", folder, "--port", str(port), "--authorization-server", server.url).returncode == 0
        server.issue("TOKEN", actions=["create"], jwk=key.public_jwk())
        client = HttpClient(f"http://127.0.0.1:{port}", "TOKEN", key)
        with serving([*COMMAND, "serve", "--config", folder / CONFIGURATION], port, tmp_path / "log") as process:
            assert client.create().status_code == 201
            server.fail("error")
            assert code_of(client.create()) == (503, "authorization_server_unavailable")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert "Unclosed" not in (tmp_path / "log").read_text("utf-8")


# --- the ports -------------------------------------------------------------------------------------


def test_connections_have_both_ports(tmp_path: Path) -> None:
    """The introspector has the settings of the table. Keys of clients are looked up unless `client_keys` is false."""
    folder = folder_of(tmp_path)
    server = load_settings(folder / CONFIGURATION).authorization_server
    without = changed(folder, "# client_keys = true", "client_keys = false").authorization_server
    assert server is not None
    assert without is not None
    both, introspection = connect(server), connect(without)

    assert isinstance(both.introspector, AsyncHttpIntrospector)
    assert isinstance(both.client_keys, AsyncHttpClientKeys)
    assert introspection.client_keys is None
    asyncio.run(both.aclose())
    asyncio.run(introspection.aclose())
