"""The ports that `[authorization_server]` opens."""

import asyncio
import builtins
import re
import signal
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.clients.client_keys import AsyncHttpClientKeys
from incoming_payments.clients.introspection import AsyncHttpIntrospector
from incoming_payments.errors import ConfigurationError
from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.authorization import connect
from incoming_payments.server.config.access import AuthorizationServerTable
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.testing.authorization_server import AuthorizationServer
from kits.processes import COMMAND, HttpClient, code_of, free_port, run_command, serving

ISSUER: Final = "https://as.bank.example"
SERVER: Final = AuthorizationServerTable(
    url="https://as.bank.example/introspect", dialect="rfc9767", resource_server="incoming-payments"
)


def test_wrong_setting_of_the_introspector_names_the_setting() -> None:
    """A setting that the introspector refuses is an error with its name in the configuration."""
    server = AuthorizationServerTable(url="http://auth.bank.example/introspect", dialect="rfc9767")
    with pytest.raises(ConfigurationError, match=re.escape("authorization_server.url must be an https URL")) as caught:
        connect(server, ISSUER)
    assert caught.value.details["setting"] == "authorization_server.url"


def test_missing_extra_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without aiohttp, the error names the extra to install."""
    really_import = builtins.__import__

    def without_aiohttp(name: str, *arguments: Any, **options: Any) -> Any:
        if name.endswith("_aiohttp"):
            raise ImportError(name)
        return really_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_aiohttp)
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'incoming-payments[clients]'")):
        connect(SERVER, ISSUER)


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


def test_connections_have_both_ports() -> None:
    """Keys of clients are looked up unless `client_keys` is false."""
    both, introspection = connect(SERVER, ISSUER), connect(evolve(SERVER, client_keys=False), ISSUER)
    assert isinstance(both.introspector, AsyncHttpIntrospector)
    assert isinstance(both.client_keys, AsyncHttpClientKeys)
    assert introspection.client_keys is None
    asyncio.run(both.aclose())
    asyncio.run(introspection.aclose())
