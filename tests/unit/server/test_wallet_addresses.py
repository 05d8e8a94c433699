"""`[wallet_addresses]`: its settings, their errors, the ports, and `serve` with a service for wallet addresses."""

import asyncio
import builtins
import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.declarations import WALLET_ADDRESSES
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.server.settings import Settings, load_settings
from incoming_payments.server.wallet_addresses import WalletAddressPorts, WalletAddressService
from kits.https_server import Peer, https_peer
from kits.processes import COMMAND, HttpClient, await_lines, code_of, free_port, run_command, serving, token_in

BASE: Final = "https://wallet.bank.example"
SERVICE: Final = WalletAddressService((BASE,), max_age_s=300, allow_private=False)


def configure(folder: Path, table: str, *, identifier: str = f"{BASE}/alice") -> None:
    """Replace the listed wallet address by `table`, and the identifier of the token's rights."""
    path = folder / CONFIGURATION
    text = path.read_text("utf-8")
    text, count = re.subn(r"(?ms)^\[\[?wallet_address(es)?\]\]?\n.*?\n\n", f"{table}\n\n", text)
    assert count == 1
    text, count = re.subn(r'identifier = ".*?"', f'identifier = "{identifier}"', text)
    assert count == 1
    path.write_text(text, "utf-8")


def loaded(folder: Path, settings: str, **options: str) -> Settings:
    """Return the settings in `folder` with these settings of `[wallet_addresses]`."""
    configure(folder, f"[wallet_addresses]\n{settings}", **options)
    return load_settings(folder / CONFIGURATION)


# --- settings --------------------------------------------------------------------------------------


def test_table_is_loaded(folder: Path) -> None:
    """Base URLs get their canonical spelling. The other settings have defaults."""
    settings = loaded(folder, 'base_urls = ["https://Wallet.bank.example/"]')
    assert settings.wallet_address_service == SERVICE
    assert list(settings.wallet_addresses) == []


def test_every_setting_is_loaded(folder: Path) -> None:
    """Each setting has its own place."""
    given = {"base_urls": '["http://10.0.0.7/a", "https://b.example"]', "max_age_s": "10"}
    given["allow_private"] = "true"
    settings = loaded(
        folder, "\n".join(f"{name} = {value}" for name, value in given.items()), identifier="https://b.example/x"
    )
    assert set(given) == set(WALLET_ADDRESSES.names)
    expected = WalletAddressService(("http://10.0.0.7/a", "https://b.example"), 10, allow_private=True)
    assert settings.wallet_address_service == expected


def test_table_of_init_can_be_uncommented(folder: Path) -> None:
    """`init` writes the table as a comment. It shows the defaults of the optional settings."""
    path = folder / CONFIGURATION
    [shown] = re.findall(r"(?ms)^# \[wallet_addresses\]\n.*?\n\n", path.read_text("utf-8"))
    service = loaded(folder, "\n".join(re.findall(r"(?m)^# (\w+ = .*)$", shown))).wallet_address_service
    assert service == WalletAddressService((BASE,), max_age_s=300, allow_private=True)


def test_peer_of_any_asset_gets_no_warning(folder: Path) -> None:
    """The assets of wallet addresses are unknown until they are read, so every peer may be able to pay."""
    assert loaded(folder, f'base_urls = ["{BASE}"]').warnings == ()


WRONG: Final = [
    ("", "base_urls", "is missing: give an array"),
    (
        f'base_urls = "{BASE}"',
        "base_urls",
        'must be an array, not a string: write it in brackets, such as base_urls = ["',
    ),
    (
        "base_urls = []",
        "base_urls",
        "must name at least one URL without a query, below which your wallet addresses lie",
    ),
    ("base_urls = [1]", "base_urls", "must be a list of str, not of int"),
    ('base_urls = ["wallet.bank.example"]', "base_urls", "must be an absolute http or https URL"),
    ('base_urls = ["https://x.example/?a=b"]', "base_urls", "must name at least one URL without a query"),
    ('base_urls = ["http://x.example"]', "base_urls", "must be https URLs, unless allow_private is true"),
    ('base_urls = ["https://x.example/a%2fb"]', "base_urls", "must be URLs without %2F, %5C, %25 and dot segments"),
    (f'base_urls = ["{BASE}"]\nmax_age_s = 9', "max_age_s", "must be an integer from 10 to 86400, not 9"),
    (f'base_urls = ["{BASE}"]\nallow_private = 1', "allow_private", "must be true or false, not an integer"),
    (f'base_urls = ["{BASE}"]\nallow_http = true', "allow_http", "is not a setting"),
]


@pytest.mark.parametrize(("table", "name", "says"), WRONG)
def test_error_names_the_setting(folder: Path, table: str, name: str, says: str) -> None:
    """A wrong setting is an error with the file and its name, before anything starts."""
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, table)
    assert caught.value.description.startswith(f"{folder / CONFIGURATION}: wallet_addresses.{name} {says}")
    assert caught.value.details["setting"] == f"wallet_addresses.{name}"


def test_listed_wallet_address_beside_the_table_is_refused(folder: Path) -> None:
    """A configuration has a list or a service, because the service could not close a listed wallet address."""
    listed = f'[[wallet_address]]\nurl = "{BASE}/alice"\nasset_code = "USD"\nasset_scale = 2\n'
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, f'base_urls = ["{BASE}"]\n{listed}')
    assert "wallet_address and wallet_addresses exclude each other: remove one" in caught.value.description
    assert caught.value.details["setting"] == "wallet_address"


@pytest.mark.parametrize("url", ["https://wallet.bank.example.evil/alice", f"{BASE}/..%2fadmin"])
def test_right_for_a_wallet_address_elsewhere_is_refused(folder: Path, url: str) -> None:
    """The identifier of a right must lie below a base URL, for every server that reads it."""
    with pytest.raises(ConfigurationError) as caught:
        loaded(folder, f'base_urls = ["{BASE}"]', identifier=url)
    assert caught.value.description.endswith(
        f"token[0].rights[0].identifier is not a wallet address of this configuration: {url}; use one below {BASE}"
    )


# --- the ports -------------------------------------------------------------------------------------


def test_same_settings_have_the_same_port() -> None:
    """A reload without a change keeps the cache. A change has a port of its own."""
    ports = WalletAddressPorts()
    same = WalletAddressService((BASE,), max_age_s=300, allow_private=False)
    other = WalletAddressService((BASE,), max_age_s=10, allow_private=False)
    assert ports.of(SERVICE) is ports.of(same)
    assert ports.of(SERVICE) is not ports.of(other)
    asyncio.run(ports.aclose())


def test_missing_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without aiohttp, the error names the extra to install."""
    really_import = builtins.__import__

    def without_aiohttp(name: str, *arguments: Any, **options: Any) -> Any:
        if name.endswith("_aiohttp"):
            raise ImportError(name)
        return really_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_aiohttp)
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'incoming-payments[clients]'")) as caught:
        WalletAddressPorts().of(SERVICE)
    assert caught.value.details["setting"] == "wallet_addresses"


# --- the process ---------------------------------------------------------------------------------


def publish(peer: Peer, name: str, **changes: object) -> str:
    """Publish the document of a wallet address, and return its URL."""
    url = peer.url(f"/{name}", scheme="http")
    document = {"id": url, "assetCode": "EUR", "assetScale": 3, "authServer": "https://auth.bank.example"}
    peer.publish({**document, **changes})
    return url


def http_table(peer: Peer, path: str = "") -> str:
    """Return a table for wallet addresses below `path` of `peer`."""
    return f'[wallet_addresses]\nbase_urls = ["{peer.url(path, scheme="http")}"]\nallow_private = true'


def test_serve_reads_wallet_addresses_and_reloads_the_table(tmp_path: Path) -> None:
    """A process creates payments for wallet addresses of a server on loopback. SIGHUP changes the server.

    An outage is 503 for an unknown wallet address only. A reload without a change keeps the known ones.
    """
    port, log, configuration = free_port(), tmp_path / "log", tmp_path / CONFIGURATION
    base_url = f"http://127.0.0.1:{port}"
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    text = configuration.read_text("utf-8")
    configuration.write_text(re.sub(r', identifier = ".*?"', "", text), "utf-8")
    client = HttpClient.of(tmp_path, base_url)

    def reload(process: Any, old: str, new: str, turn: int) -> None:
        configuration.write_text(configuration.read_text("utf-8").replace(old, new), "utf-8")
        process.send_signal(signal.SIGHUP)
        await_lines(log, "was read again", turn)

    with https_peer(tls=False) as first, https_peer(tls=False) as second:
        pattern = r"(?ms)^\[\[wallet_address\]\]\n.*?\n\n"
        text, count = re.subn(pattern, f"{http_table(first)}\n\n", configuration.read_text("utf-8"))
        assert count == 1
        configuration.write_text(text, "utf-8")
        with serving([*COMMAND, "serve", "--config", configuration], port, log) as process:
            created = client.create(walletAddress=(alice := publish(first, "alice")))
            assert created.status_code == 201
            assert created.json()["receivedAmount"] == {"value": "0", "assetCode": "EUR", "assetScale": 3}
            assert code_of(client.create(walletAddress=publish(first, "bob", active=False)))[1] == (
                "inactive_wallet_address"
            )
            elsewhere = publish(second, "alice")
            assert code_of(client.create(walletAddress=elsewhere)) == (400, "unknown_wallet_address")
            assert second.paths == []

            first.fail()
            reload(process, token_in(tmp_path), "NEW-TOKEN", 1)
            client = HttpClient(base_url, "NEW-TOKEN", client.key)
            assert client.create(walletAddress=alice).status_code == 201
            unknown = first.url("/carol", scheme="http")
            assert code_of(client.create(walletAddress=unknown)) == (503, "wallet_addresses_unavailable")
            assert first.paths == ["/alice", "/bob", "/carol"]

            reload(process, http_table(first), http_table(second), 2)
            assert client.create(walletAddress=elsewhere).status_code == 201
            assert code_of(client.create(walletAddress=alice)) == (400, "unknown_wallet_address")

            listed = f'[[wallet_address]]\nurl = "{alice}"\nasset_code = "USD"\nasset_scale = 2'
            reload(process, http_table(second), listed, 3)
            assert client.create(walletAddress=alice).json()["receivedAmount"]["assetCode"] == "USD"
            assert code_of(client.create(walletAddress=elsewhere)) == (400, "unknown_wallet_address")

            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert "Unclosed" not in log.read_text("utf-8")
    assert "needs a restart" not in log.read_text("utf-8")
