"""`gnap.token`: the access token of a request, and the challenge. Contract section 5."""

import hashlib

import pytest

from frozen_values import assert_frozen
from incoming_payments.errors import InvalidValue, TokenRefused
from incoming_payments.gnap.token import AccessToken, challenge, parse_authorization

TOKEN68 = "an access token is 1 to 4096 letters, digits and -._~+/ with perhaps = at the end"
SEVERAL = "send one Authorization field, not several"
FORM = "Authorization must be of the form: GNAP <token>"


@pytest.mark.parametrize("value", ["a", "azAZ09-._~+/", "YQ==", "a" * 4096])
def test_access_token(value: str) -> None:
    """An access token is token68 of at most 4096 characters."""
    assert AccessToken(value).value == value


@pytest.mark.parametrize(
    "value", [None, b"a", "", "=", "a=b", "a b", " a", "a\n", "a,b", '"a"', "\u00e9", "\0", "a" * 4097]
)
def test_access_token_refused(value: object) -> None:
    """Anything else is refused, without showing it."""
    with pytest.raises(InvalidValue) as caught:
        AccessToken(value)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == TOKEN68
    assert caught.value.details == {"member": "token"}


def test_access_token_is_never_shown() -> None:
    """No way of printing a token shows it."""
    token = AccessToken("OS9M2PMH")
    assert {repr(token), str(token), f"{token}", f"{token!r}"} == {"AccessToken(<hidden>)"}
    assert "OS9M2PMH" not in repr([token])


def test_access_token_does_not_change() -> None:
    """A token that has been checked stays the one that was checked."""
    assert_frozen(AccessToken("a"))


def test_digest_is_the_sha_256_of_the_token() -> None:
    """Tokens are looked up by their digest; it is the plain SHA-256, so hosts can compute it elsewhere."""
    assert AccessToken("abc").digest == hashlib.sha256(b"abc").digest()
    assert AccessToken("abc").digest != AccessToken("abd").digest


@pytest.mark.parametrize("value", ["GNAP OS9M2PMH==", "gnap OS9M2PMH==", "Gnap OS9M2PMH==", "GNAP    OS9M2PMH=="])
def test_contract_5_authorization(value: str) -> None:
    """`Authorization: GNAP <token>`: the scheme in any case, then at least one space. RFC 9110 §11."""
    assert parse_authorization([value]) == AccessToken("OS9M2PMH==")


@pytest.mark.parametrize(
    ("values", "reason", "message"),
    [
        pytest.param([], "token_missing", "send an access token: Authorization: GNAP <token>", id="none"),
        pytest.param(["GNAP a", "GNAP a"], "invalid_token", SEVERAL, id="twice the same"),
        pytest.param(["GNAP a", ""], "invalid_token", SEVERAL, id="a second that is empty"),
        pytest.param([""], "invalid_token", FORM, id="empty"),
        pytest.param(["GNAP"], "invalid_token", FORM, id="scheme alone"),
        pytest.param(["Bearer a"], "invalid_token", FORM, id="another scheme"),
        pytest.param(["GNAPa"], "invalid_token", FORM, id="no space"),
        pytest.param(["GNAP\ta"], "invalid_token", FORM, id="tab"),
        pytest.param([" GNAP a"], "invalid_token", FORM, id="leading space"),
        pytest.param(["x GNAP a"], "invalid_token", FORM, id="scheme later on"),
        pytest.param(["GNAP "], "invalid_token", TOKEN68, id="no token"),
        pytest.param(["GNAP a b"], "invalid_token", TOKEN68, id="two tokens"),
        pytest.param(["GNAP a, GNAP b"], "invalid_token", TOKEN68, id="joined"),
        pytest.param(["GNAP a\n"], "invalid_token", TOKEN68, id="newline"),
        pytest.param(["GNAP \u00e9"], "invalid_token", TOKEN68, id="not ASCII"),
        pytest.param(["GNAP undefined, x"], "invalid_token", TOKEN68, id="comma"),
        pytest.param(["GNAP " + "a" * 4097], "invalid_token", TOKEN68, id="too long"),
    ],
)
def test_authorization_refused(values: list[str], reason: str, message: str) -> None:
    """What carries no one readable token is refused, in this order: a missing token differs from a bad one."""
    with pytest.raises(TokenRefused) as caught:
        parse_authorization(values)
    assert caught.value.code == reason
    assert str(caught.value) == message
    assert caught.value.details == {}


def test_contract_5_www_authenticate() -> None:
    """The challenge has the contract's form: `GNAP as_uri=<URI>`, without quotes."""
    assert challenge("https://auth.bank.example/op?x=1") == "GNAP as_uri=https://auth.bank.example/op?x=1"


@pytest.mark.parametrize("url", ["auth.bank.example", "https://auth.example/a,b", "https://auth.example/\r\nX: y"])
def test_challenge_refuses_what_would_end_the_parameter(url: str) -> None:
    """No setting can put a second parameter or a second field into the response."""
    with pytest.raises(InvalidValue) as caught:
        challenge(url)
    assert caught.value.details == {"member": "authServer"}
