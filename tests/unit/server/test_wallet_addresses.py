"""The ports for `[wallet_addresses]`, and `serve` with a service for wallet addresses."""

import asyncio
import builtins
import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.config.wallet_addresses import WalletAddressesTable
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.server.wallet_addresses import WalletAddressPorts
from kits.https_server import Peer, https_peer
from kits.processes import COMMAND, HttpClient, await_lines, code_of, free_port, run_command, serving, token_in

BASE: Final = "https://wallet.bank.example"
SERVICE: Final = WalletAddressesTable(base_urls=(BASE,), max_age_s=300, allow_private=False)


# --- the ports -------------------------------------------------------------------------------------


def test_same_settings_have_the_same_port() -> None:
    """A reload without a change keeps the cache. A change has a port of its own."""
    ports = WalletAddressPorts()
    same = WalletAddressesTable(base_urls=(BASE,), max_age_s=300, allow_private=False)
    other = WalletAddressesTable(base_urls=(BASE,), max_age_s=10, allow_private=False)
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
