"""The ports of `serve` to an authorization server and to a service for wallet addresses."""

import asyncio
import builtins
import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.errors import ConfigurationError
from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.config.access import AuthorizationServerTable
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.config.tables import Configuration
from incoming_payments.server.config.wallet_addresses import WalletAddressesTable
from incoming_payments.server.connections import Connections
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.testing.authorization_server import AuthorizationServer
from kits.https_server import Peer, https_peer
from kits.processes import Bank, HttpClient, await_lines, code_of, token_in

SERVER: Final = AuthorizationServerTable(
    url="https://as.bank.example/introspect", dialect="rfc9767", resource_server="incoming-payments"
)
SERVICE: Final = WalletAddressesTable(base_urls=("https://wallet.bank.example",))


@pytest.fixture
def given(folder: Path) -> Configuration:
    """Return the configuration of `init`."""
    return load_settings(folder / CONFIGURATION).given


def test_wrong_setting_names_the_setting(given: Configuration) -> None:
    """A setting that the introspector refuses is an error with its name in the configuration."""
    server = AuthorizationServerTable(url="http://auth.bank.example/introspect", dialect="rfc9767")
    with pytest.raises(ConfigurationError, match=re.escape("authorization_server.url must be an https URL")) as caught:
        Connections(evolve(given, authorization_server=server))
    assert caught.value.details["setting"] == "authorization_server.url"


@pytest.mark.parametrize("table", [{"authorization_server": SERVER}, {"wallet_addresses": SERVICE}])
def test_missing_extra_is_an_error(
    given: Configuration, monkeypatch: pytest.MonkeyPatch, table: dict[str, Any]
) -> None:
    """Without aiohttp, the error names the extra to install."""
    really_import = builtins.__import__

    def without_aiohttp(name: str, *arguments: Any, **options: Any) -> Any:
        if name.endswith("_aiohttp"):
            raise ImportError(name)
        return really_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_aiohttp)
    [name] = table
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'incoming-payments[outbound]'")) as caught:
        Connections(evolve(given, **table))
    assert caught.value.details["setting"] == name


def test_keys_of_clients_are_optional(given: Configuration) -> None:
    """Keys of clients are looked up unless `client_keys` is false. Tokens in the configuration need no port."""
    both = Connections(evolve(given, authorization_server=SERVER))
    introspection = Connections(evolve(given, authorization_server=evolve(SERVER, client_keys=False)))
    found = [(each.introspector is None, each.client_keys is None) for each in (both, introspection)]
    assert found == [(False, False), (False, True)]
    for each in (both, introspection):
        asyncio.run(each.aclose())


# --- the process ---------------------------------------------------------------------------------


def test_serve_introspects_and_closes_its_connections(tmp_path: Path) -> None:
    """A process accepts a token of its authorization server, and ends in good order with open connections."""
    key = PrivateKey.generate_ed25519("key-1")
    with AuthorizationServer() as server:
        bank = Bank.init(tmp_path, "--authorization-server", server.url)
        server.issue("TOKEN", actions=["create"], jwk=key.public_jwk())
        client = HttpClient(bank.base_url, "TOKEN", key)
        with bank.serving() as process:
            assert client.create().status_code == 201
            server.fail("error")
            assert code_of(client.create()) == (503, "authorization_server_unavailable")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
    assert "Unclosed" not in bank.log.read_text("utf-8")


def publish(peer: Peer, name: str, **changes: object) -> str:
    """Publish the document of a wallet address, and return its URL."""
    url = peer.url(f"/{name}", scheme="http")
    document = {"id": url, "assetCode": "EUR", "assetScale": 3, "authServer": "https://auth.bank.example"}
    peer.publish({**document, **changes})
    return url


def http_table(peer: Peer, path: str = "") -> str:
    """Return a table for wallet addresses below `path` of `peer`."""
    return f'[wallet_addresses]\nbase_urls = ["{peer.url(path, scheme="http")}"]\nallow_private = true'


def test_serve_reads_wallet_addresses_and_reloads_the_table(bank: Bank) -> None:
    """A process creates payments for wallet addresses of a server on loopback. SIGHUP changes the server.

    An outage is 503 for an unknown wallet address only. A reload without a change keeps the known ones.
    """
    text = bank.configuration.read_text("utf-8")
    bank.configuration.write_text(re.sub(r', identifier = ".*?"', "", text), "utf-8")
    client = bank.client

    def reload(process: Any, old: str, new: str, turn: int) -> None:
        bank.edit(old, new)
        process.send_signal(signal.SIGHUP)
        await_lines(bank.log, "was read again", turn)

    with https_peer(tls=False) as first, https_peer(tls=False) as second:
        pattern = r"(?ms)^\[\[wallet_address\]\]\n.*?\n\n"
        [listed] = re.findall(pattern, bank.configuration.read_text("utf-8"))
        bank.edit(listed, f"{http_table(first)}\n\n")
        with bank.serving() as process:
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
            reload(process, token_in(bank.folder), "NEW-TOKEN", 1)
            client = HttpClient(bank.base_url, "NEW-TOKEN", client.key)
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
    assert "Unclosed" not in bank.log.read_text("utf-8")
    assert "needs a restart" not in bank.log.read_text("utf-8")
