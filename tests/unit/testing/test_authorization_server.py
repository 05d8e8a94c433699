"""The authorization server for tests: its answers, its faults, and its lines as a process."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NoReturn

import httpx
import pytest

from incoming_payments.domain.payment import wallet_address_url
from incoming_payments.errors import AuthorizationServerUnavailable
from incoming_payments.gnap import AccessToken, TokenQuery
from incoming_payments.httpsig import PrivateKey
from incoming_payments.outbound.introspection import HttpIntrospector
from incoming_payments.testing import authorization_server
from incoming_payments.testing.authorization_server import AuthorizationServer

KEY: Final = PrivateKey.generate_ed25519("client-key-1")
SERVICE_KEY: Final = PrivateKey.generate_ed25519("service-key-1")
ALICE: Final = wallet_address_url("https://bank.example/alice")
BOB: Final = wallet_address_url("https://bank.example/bob")
QUERY: Final = TokenQuery(AccessToken("T"), "create", ALICE)


def introspector(server: AuthorizationServer, dialect: str = "rfc9767", **options: Any) -> HttpIntrospector:
    """Return the client of `server`."""
    if dialect == "rfc9767":
        options = {"issuer": server.base_url, "resource_server": "bank", **options}
    return HttpIntrospector(server.url, dialect=dialect, allow_http=True, **options)  # type: ignore[arg-type] # a text


def test_token_is_active_until_it_is_revoked() -> None:
    """In the dialect of RFC 9767, the answer has the key, the client, the right and the expiry of the token."""
    with AuthorizationServer() as server:
        client = introspector(server)
        assert client.introspect(QUERY) is None
        server.issue("T", actions=["create"], client="https://shop.example", jwk=KEY.public_jwk(), expires_s=3600)
        info = client.introspect(QUERY)
        assert info is not None
        assert (info.client, info.jwk) == ("https://shop.example", KEY.public_jwk())
        assert info.expires_at is not None
        assert info.rights[0].identifier is None
        server.revoke("T")
        server.revoke("T")
        assert client.introspect(QUERY) is None
        client.close()
    assert server.requests == ["/introspect"] * 3


def test_token_expires() -> None:
    """A token past its lifetime is inactive."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    with AuthorizationServer(clock=lambda: now) as server:
        server.issue("T", actions=["create"], jwk=KEY.public_jwk(), expires_s=60)
        client = introspector(server, clock=lambda: now)
        assert client.introspect(QUERY) is not None
        now += timedelta(seconds=60)
        assert client.introspect(QUERY) is None
        client.close()


def test_dialect_of_rafiki() -> None:
    """The answer has only the access in the request, with the wallet address or the key of the client."""
    with AuthorizationServer(dialect="rafiki") as server:
        client = introspector(server, "rafiki")
        server.issue("T", actions=["create"], identifier=QUERY.wallet_address, client=server.publish("shop", []))
        info = client.introspect(QUERY)
        assert info is not None
        assert (info.client, info.jwk) == (f"{server.base_url}/shop", None)
        assert info.rights[0].identifier == QUERY.wallet_address
        assert client.introspect(TokenQuery(QUERY.token, "read", QUERY.wallet_address)) is None
        assert client.introspect(TokenQuery(QUERY.token, "create", BOB)) is None
        server.issue("T", actions=["create"], jwk=KEY.public_jwk())
        info = client.introspect(QUERY)
        assert info is not None
        assert info.jwk == KEY.public_jwk()
        client.close()
        assert httpx.post(server.url, json={"access_token": "T"}, trust_env=False).json()["access"] == []


def test_signed_requests_only() -> None:
    """With a key of the service, another request is refused with `invalid_resource_server`."""
    with AuthorizationServer(service_jwk=SERVICE_KEY.public_jwk(), issuer="https://as.example") as server:
        server.issue("T", actions=["create"], jwk=KEY.public_jwk())
        signed = introspector(server, key=SERVICE_KEY, issuer="https://as.example")
        assert signed.introspect(QUERY) is not None
        for key in (None, KEY):
            client = introspector(server, key=key)
            with pytest.raises(AuthorizationServerUnavailable, match="400 invalid_resource_server"):
                client.introspect(QUERY)
            client.close()
        signed.close()


def test_key_set_of_a_client() -> None:
    """The keys of a client are at its wallet address, and each `publish` replaces them."""
    with AuthorizationServer() as server:
        wallet_address = server.publish("shop", [KEY.public_jwk()])
        assert httpx.get(f"{wallet_address}/jwks.json", trust_env=False).json() == {"keys": [KEY.public_jwk()]}
        server.publish("shop", [])
        assert httpx.get(f"{wallet_address}/jwks.json", trust_env=False).json() == {"keys": []}
        assert httpx.get(f"{server.base_url}/other", trust_env=False).status_code == 404


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b"{}"])
def test_invalid_request(body: bytes) -> None:
    """A request without a token is answered with `invalid_request`."""
    with AuthorizationServer() as server:
        answer = httpx.post(server.url, content=body, trust_env=False)
    assert (answer.status_code, answer.json()) == (400, {"error": "invalid_request"})


FAULTS: Final[list[tuple[authorization_server.Fault, str]]] = [
    ("delay", "did not answer within 0."),
    ("error", "answered 500"),
    ("garbage", "is not JSON"),
    ("huge", "is larger than 65536 bytes"),
    ("redirect", "answered 307"),
    ("close", "cannot be reached"),
]


@pytest.mark.parametrize(("fault", "says"), FAULTS)
def test_fault_lasts_until_it_is_cleared(fault: authorization_server.Fault, says: str) -> None:
    """Each fault fails an introspection. Afterwards the server answers as before."""
    with AuthorizationServer() as server:
        server.issue("T", actions=["create"], jwk=KEY.public_jwk())
        client = introspector(server, timeout_s=0.3)
        server.fail(fault, seconds=0.5)
        with pytest.raises(AuthorizationServerUnavailable, match=says):
            client.introspect(QUERY)
        server.fail(None)
        assert client.introspect(QUERY) is not None
        client.close()


def test_delay_of_unknown_tokens_spares_active_tokens() -> None:
    """The delay fails the introspection of an unknown token only."""
    with AuthorizationServer() as server:
        client = introspector(server, timeout_s=0.3)
        server.fail("delay_unknown", seconds=30)
        with pytest.raises(AuthorizationServerUnavailable, match=r"did not answer within 0\.\d+ s"):
            client.introspect(QUERY)
        server.issue("T", actions=["create"], jwk=KEY.public_jwk())
        assert client.introspect(QUERY) is not None
        client.close()


def test_redirect_leads_to_a_correct_answer() -> None:
    """A client that follows the redirect would accept the token, so a test sees whether it does."""
    with AuthorizationServer() as server:
        server.issue("T", actions=["create"])
        server.fail("redirect")
        content = json.dumps({"access_token": "T"})
        answer = httpx.post(server.url, content=content, follow_redirects=True, trust_env=False)
    assert answer.json()["active"] is True
    assert server.requests == ["/introspect", "/moved/introspect"]


def test_unknown_fault_is_refused() -> None:
    """A misspelt fault would let a test pass without a fault."""
    with AuthorizationServer() as server, pytest.raises(ValueError, match="fault must be one of delay, error"):
        server.fail("delays")  # type: ignore[arg-type] # wrong on purpose


def test_lines_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process writes its URL, does each line of its input, and ends with its input."""
    (tmp_path / "service.jwk").write_text(json.dumps(SERVICE_KEY.public_jwk()))
    lines = [
        {"do": "issue", "token": "T", "actions": ["create"]},
        {"do": "publish", "name": "shop", "jwks": []},
        {"do": "requests"},
        {"do": "fail", "fault": None},
        {"do": "revoke", "token": "T"},
    ]
    monkeypatch.setattr(sys, "stdin", iter([json.dumps(line) for line in lines]))
    assert authorization_server.main(["--service-jwk", str(tmp_path / "service.jwk")]) == 0
    url, *answers = capsys.readouterr().out.splitlines()
    assert answers == ["null", f'"{url}/shop"', "0", "null", "null"]
    monkeypatch.setattr(sys, "stdin", iter([]))
    assert authorization_server.main(["--dialect", "rafiki"]) == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("revoke T", "Expecting value"),
        ("[]", "is not a valid command"),
        ('"revoke"', "is not a valid command"),
        ('{"do": "renew"}', "'renew'"),
        ('{"do": "issue"}', "missing 1 required positional argument: 'token'"),
        ('{"do": "fail", "fault": "bang"}', "fault must be one of delay"),
    ],
)
def test_wrong_line_ends_the_process_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, reason: str
) -> None:
    """A line that is not a command ends the process. The message has the line, the reason and a valid command."""
    monkeypatch.setattr(sys, "stdin", iter([line]))
    assert authorization_server.main([]) == 1
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith(f"authorization server: {line!r} is not a valid command (")
    assert reason in error
    assert error.endswith('write lines such as {"do": "issue", "token": "T", "actions": ["create"], "jwk": {...}}')


def test_missing_key_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the file, and there is no traceback."""
    assert authorization_server.main(["--service-jwk", str(tmp_path / "absent.jwk")]) == 1
    [error] = capsys.readouterr().err.splitlines()
    assert "absent.jwk" in error


def test_ctrl_c_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends the process with the status that shells expect, and without a traceback."""

    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(AuthorizationServer, "run", interrupted)
    assert authorization_server.main([]) == 130
