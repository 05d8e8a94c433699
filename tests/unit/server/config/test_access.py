"""`[authorization_server]` and `[[token]]`: their settings and errors."""

from pathlib import Path
from typing import Final

import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.command import main
from incoming_payments.server.config.access import AuthorizationServerTable
from incoming_payments.server.config.setting import settings_of, toml
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN, SERVER_SECRET, SERVICE_JWK, SERVICE_KEY

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
    server = settings.given.authorization_server
    assert server is not None
    assert server.key is not None
    assert (server.url, server.dialect, server.issuer) == (URL, "rfc9767", None)
    assert (server.cache_s, server.timeout_s, server.client_keys) == (0, 3, True)
    assert (server.allow_http, server.allow_private_clients, settings.tokens) == (False, False, ())
    assert server == load_settings(folder / CONFIGURATION).given.authorization_server


def test_init_for_rafiki_writes_no_key(tmp_path: Path) -> None:
    """Rafiki takes unsigned requests over http, here on loopback."""
    folder = folder_of(tmp_path, "http://127.0.0.1:3007/", "rafiki")
    server = load_settings(folder / CONFIGURATION).given.authorization_server

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
    before = load_settings(folder / CONFIGURATION).given.authorization_server
    for setting in settings_of(AuthorizationServerTable):
        line = f"{setting.name} = {setting.written or toml(setting.default)}"
        if setting.line.startswith("# ") and setting.name not in {"key_file", "key_id"}:
            after = changed(folder, f"\n# {line}\n", f"\n{line}\n").given.authorization_server
            assert (after == before) == (setting.default is not None and setting.written is None), setting.name
            changed(folder, f"\n{line}\n", f"\n# {line}\n")


# --- errors ----------------------------------------------------------------------------------------

WRONG: Final = [
    ('dialect = "rfc9767"', 'dialect = "rfc7662"', "dialect must be 'rfc9767' or 'rafiki'"),
    ('key_id = "service-key-1"', "", "key_id is missing: give key_file and key_id together, or neither of them"),
    ('key_file = "service-key.pem"', "", "key_file is missing: give key_id and key_file together, or neither of them"),
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
    with pytest.raises(
        ConfigurationError,
        match=(
            "token and authorization_server exclude each other, because a listed token needs no introspection: "
            "remove one"
        ),
    ):
        changed(folder, "# [authorization_server]", f'[authorization_server]\nurl = "{URL}"\ndialect = "rafiki"')
