"""`gnap.introspection`: the facts about a token, and its expiry."""

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.errors import AuthorizationServerUnavailable, InvalidValue, TokenRefused
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import (
    AccessTokenInfo,
    Dialect,
    StaticIntrospector,
    TokenQuery,
    read_introspection,
    require_active,
)
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import ANSWER_VALUES_MAX, INTROSPECTION_BYTES_MAX
from incoming_payments.testing import NOW
from kits.frozen_values import assert_frozen
from kits.odd_answers import an_answer, octets, of_rafiki

RIGHT = AccessRight(["read"])
JWK = {"kty": "OKP", "kid": "key-1"}


def info(expires_at: datetime | None = None) -> AccessTokenInfo:
    """Return the facts about a token of the shop."""
    return AccessTokenInfo("https://shop.example", JWK, [RIGHT], expires_at)


def test_info_copies_its_arguments() -> None:
    """Changes to the caller's dictionary or list do not change the value, and its `jwk` is read-only."""
    jwk, rights = dict(JWK), [RIGHT]
    built = AccessTokenInfo("https://shop.example", jwk, rights)
    jwk["kid"] = "key-2"
    rights.clear()
    assert built.jwk == JWK
    assert built.rights == (RIGHT,)
    with pytest.raises(TypeError):
        built.jwk["kid"] = "key-2"  # type: ignore[index] # on purpose


def test_info_is_immutable() -> None:
    """No attribute can be replaced."""
    assert_frozen(info())


def test_info_does_not_show_the_key() -> None:
    """The `repr` does not show the key, so a private key given by mistake does not reach a log."""
    assert "key-1" not in repr(info())


def test_info_refuses_an_empty_client() -> None:
    """A token needs an identifier of its client."""
    with pytest.raises(InvalidValue) as caught:
        AccessTokenInfo("", JWK, [RIGHT])
    assert caught.value.details == {"member": "client"}


def test_info_bounds_the_rights() -> None:
    """A token may have at most 64 rights, because each request checks all of them."""
    assert len(AccessTokenInfo("c", JWK, [RIGHT] * 64).rights) == 64
    with pytest.raises(InvalidValue) as caught:
        AccessTokenInfo("c", JWK, [RIGHT] * 65)
    assert str(caught.value) == "a token may have at most 64 rights, not 65"
    assert caught.value.details == {"member": "rights"}


def test_info_refuses_an_expiry_without_zone() -> None:
    """An `expires_at` without a time zone is refused here, because it could not be compared during a request."""
    with pytest.raises(InvalidValue) as caught:
        info(NOW.replace(tzinfo=None))
    assert str(caught.value) == "expires_at must be a datetime with a time zone, such as UTC"
    assert caught.value.details == {"member": "expires_at"}


@pytest.mark.parametrize(
    ("expires_at", "expired"),
    [
        (None, False),
        (NOW + timedelta(microseconds=1), False),
        (NOW, True),
        (NOW - timedelta(seconds=1), True),
        ((NOW + timedelta(seconds=1)).astimezone(timezone(timedelta(hours=5))), False),
    ],
)
def test_token_expires_at_its_time(expires_at: datetime | None, expired: bool) -> None:
    """A token expires exactly at `expires_at`. Without one it does not expire."""
    token = info(expires_at)
    if expired:
        with pytest.raises(TokenRefused):
            require_active(token, NOW)
    else:
        assert require_active(token, NOW) is token


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (None, "invalid_token", "the access token is not active: request a new grant"),
        (info(NOW), "token_expired", "the access token has expired: rotate the token, or request a new grant"),
    ],
)
def test_inactive_token_is_refused(found: AccessTokenInfo | None, reason: str, message: str) -> None:
    """An unknown token and an expired one are refused with different reasons."""
    with pytest.raises(TokenRefused) as caught:
        require_active(found, NOW)
    assert caught.value.code == reason
    assert str(caught.value) == message
    assert caught.value.details == {}


def test_static_introspector() -> None:
    """The introspector returns the facts about a listed token, and None for any other."""
    one, other = info(), info(NOW)
    introspector = StaticIntrospector([(AccessToken("one"), one), (AccessToken("other"), other)])
    assert introspector.introspect(TokenQuery(AccessToken("one"), "read")) is one
    assert introspector.introspect(TokenQuery(AccessToken("other"), "read")) is other
    assert introspector.introspect(TokenQuery(AccessToken("One"), "read")) is None


def test_static_introspector_keeps_no_token() -> None:
    """The introspector keeps the digests of the tokens, not the tokens."""
    introspector = StaticIntrospector([(AccessToken("one"), info())])
    assert list(introspector._by_digest) == [AccessToken("one").digest]


def test_static_introspector_refuses_a_token_listed_twice() -> None:
    """A token that is listed twice is refused, because its facts would be ambiguous."""
    with pytest.raises(InvalidValue) as caught:
        StaticIntrospector([(AccessToken("one"), info()), (AccessToken("one"), info(NOW))])
    assert str(caught.value) == "an access token is listed twice: list each token only once"
    assert caught.value.details == {"member": "token"}


def test_info_is_hashable() -> None:
    """Equal values have the same hash."""
    first, second = (AccessTokenInfo("https://shop.example", {"kid": "k"}, []) for _ in range(2))
    assert {first} == {second}


# --- answers of the authorization server ---------------------------------------------------------


def test_client_of_rafiki_without_a_wallet_address_is_its_key() -> None:
    """A client that is a key is identified by the thumbprint of the key, which also verifies its signatures."""
    info = read_introspection(octets(of_rafiki(client={"jwk": {**OKP, "kid": "k1"}})), dialect="rafiki")
    assert info is not None
    assert (info.client, info.jwk) == (OKP_CLIENT, {**OKP, "kid": "k1"})


@pytest.mark.parametrize("client", ["HTTPS://Shop.Example:443/a/", "https://shop.example/a"])
def test_client_url_has_one_spelling(client: str) -> None:
    """The URL of a client is compared in one spelling, so that the client finds its payments again."""
    assert read(client=client).client == "https://shop.example/a"
    assert read(client={"walletAddress": client}).client == "https://shop.example/a"


ISSUER = "https://auth.bank.example"


@pytest.mark.parametrize(
    ("changes", "dialect", "hint"),
    [
        (
            {"iss": f"{ISSUER}/"},
            "rfc9767",
            f"issuer is '{ISSUER}', and the introspection answer has the iss '{ISSUER}/': if this is",
        ),
        (
            {"aud": ["shop", "bänk"]},
            "rfc9767",
            "audience is 'bank', and the introspection answer has the aud ['shop', 'b\\xe4nk']: if this aud names",
        ),
        ({"key": ...}, "rfc9767", "the introspection answer has no key by value: let the authorization server send"),
        ({"key": "key-7"}, "rfc9767", "the introspection answer has no key by value: let"),
        (
            {"key": {"proof": "mtls", "jwk": {}}},
            "rfc9767",
            "the introspection answer has a key that has no JWK, or whose proof method is not httpsig: let",
        ),
        ({"key": ..., "client": ...}, "rafiki", "the introspection answer has neither a usable client or instance_id"),
    ],
)
def test_refusal_hints_at_the_setting(changes: dict[str, object], dialect: Dialect, hint: str) -> None:
    """The hint names the setting, the expected value and the one that came. A client does not get it."""
    body = octets(an_answer(**changes))
    with pytest.raises(TokenRefused) as caught:
        read_introspection(body, dialect=dialect, issuer=ISSUER, audience="bank")
    assert caught.value.hint.startswith(hint)
    assert not {"issuer", "audience"} & set(caught.value.description.split())
    assert caught.value.details == {}


def test_hint_is_printable_and_of_limited_length() -> None:
    """An authorization server cannot forge a line of the log, or fill the disk."""
    forged: list[dict[str, object]] = [{"iss": "\n\u2028" + 60_000 * "x"}, {"aud": 2000 * [4 * "\x00"]}]
    for changes in forged:
        body = octets(an_answer(**changes))
        with pytest.raises(TokenRefused) as caught:
            read_introspection(body, issuer=ISSUER, audience="bank")
        assert caught.value.hint.isascii()
        assert caught.value.hint.isprintable()
        assert len(caught.value.hint) < 1000


@pytest.mark.parametrize("body", [{"active": False}, '{"active": false}'], ids=["dict", "str"])
def test_answer_must_be_bytes(body: Any) -> None:
    """A JSON object that was read already could have lost a repeated member."""
    with pytest.raises(
        InvalidValue, match=r"body must be the bytes of the answer, such as response\.content"
    ) as caught:
        read_introspection(body)
    assert caught.value.details == {"member": "body"}


def test_answer_that_is_too_large_is_an_outage() -> None:
    """The time to read an answer is bounded, wherever its bytes come from."""
    with pytest.raises(AuthorizationServerUnavailable, match="is larger than"):
        read(flags=["x" * INTROSPECTION_BYTES_MAX])


@pytest.mark.parametrize("character", ["[", "{", ","])
def test_answer_with_too_many_values_is_an_outage(character: str) -> None:
    """The answer may hold a key that the client made. The service reads it before it checks the signature."""
    usual = sum(map(octets(an_answer(flags="")).count, (b"[", b"{", b",")))
    text = character * (ANSWER_VALUES_MAX - usual)
    assert read(flags=text) == read()
    with pytest.raises(AuthorizationServerUnavailable, match=f"more than {ANSWER_VALUES_MAX} opening brackets"):
        read(flags=text + character)


def test_rights_for_named_services_need_an_audience() -> None:
    """A token for named services is refused when this service has no name."""
    with pytest.raises(TokenRefused, match="for other services"):
        read(aud=["bank"])


@pytest.mark.parametrize(("seconds", "is_active"), [(59, True), (60, True), (61, False)])
def test_token_is_active_from_its_time_on(seconds: int, is_active: bool) -> None:
    """The clocks of two servers may differ by a minute."""
    token = evolve(info(), not_before=NOW + timedelta(seconds=seconds))
    if is_active:
        assert require_active(token, NOW) is token
    else:
        with pytest.raises(TokenRefused, match="not active yet") as caught:
            require_active(token, NOW)
        assert caught.value.code == "invalid_token"


def test_first_representable_time_is_no_error() -> None:
    """The year 1 as `nbf` has no time before it."""
    token = read(nbf=-62135596800)
    assert require_active(token, NOW) is token


def read(**changes: object) -> AccessTokenInfo:
    """Return the facts in an answer."""
    info = read_introspection(json.dumps(an_answer(**changes)).encode())
    assert info is not None
    return info


def test_answer_of_rfc_9767() -> None:
    """The facts are the client, the key, the rights and the expiry of the answer."""
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "kid": "k"}
    access = [{"type": "incoming-payment", "actions": ["read-all"], "identifier": "https://bank.example/alice/"}]
    info = read(client="https://shop.example", key={"proof": "httpsig", "jwk": jwk}, access=access, exp=1_893_456_000)
    assert info == AccessTokenInfo(
        "https://shop.example",
        jwk,
        [AccessRight(["read-all"], "https://bank.example/alice")],
        datetime(2030, 1, 1, tzinfo=UTC),
    )


# The key and the thumbprint of RFC 8037, appendix A.3
OKP = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
OKP_CLIENT = "urn:ietf:params:oauth:jwk-thumbprint:sha-256:kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"


@pytest.mark.parametrize(
    ("changes", "client"),
    [
        ({"client": "https://shop.example", "instance_id": "7C7C"}, "https://shop.example"),
        ({"client": {"walletAddress": "https://shop.example"}}, "https://shop.example"),
        ({"client": {"jwk": OKP}, "instance_id": "7C7C"}, "7C7C"),
        ({"client": "My Shop", "instance_id": "7C7C"}, "7C7C"),
        ({"client": ..., "instance_id": "7C7C"}, "7C7C"),
        ({"client": "My Shop", "instance_id": "an id"}, OKP_CLIENT),
        ({"client": ...}, OKP_CLIENT),
    ],
)
def test_client_of_an_answer(changes: dict[str, object], client: str) -> None:
    """The client is the first valid identifier of the answer, or else the thumbprint of its key (RFC 7638)."""
    assert read(key={"jwk": {**OKP, "kid": "k", "alg": "EdDSA"}}, **changes).client == client


def test_thumbprints_of_other_keys() -> None:
    """The thumbprint covers the members that RFC 7638 §3.2 names, and not the name of the key."""
    rsa = {"kty": "RSA", "n": "AQAB", "e": "AQAB"}
    text = b'{"e":"AQAB","kty":"RSA","n":"AQAB"}'
    expected = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    for kid in ("k1", "k2"):
        assert read(client=..., key={"jwk": {**rsa, "kid": kid}}).client.endswith(f":{expected}")
