"""`gnap.token`: the access token of a request, and the challenge. Spec section 5."""

import hashlib

import pytest

from incoming_payments.errors import InvalidValue, TokenRefused
from incoming_payments.gnap.token import AccessToken, challenge, parse_authorization
from kits.frozen_values import assert_frozen

MISSING = "the request has no access token: send Authorization: GNAP <token>"
TOKEN68 = "the access token must be 1 to 4096 letters, digits and -._~+/, with = only at the end (RFC 9110 §11.2)"
SEVERAL = "the request has several Authorization fields: send only one"
FORM = "Authorization must have the form: GNAP <token> (RFC 9635 §7.2)"


@pytest.mark.parametrize("value", ["a", "azAZ09-._~+/", "YQ==", "a" * 4096])
def test_access_token_is_accepted(value: str) -> None:
    """A token68 of at most 4096 characters is an access token."""
    assert AccessToken(value).value == value


@pytest.mark.parametrize(
    "value", [None, b"a", "", "=", "a=b", "a b", " a", "a\n", "a,b", '"a"', "\u00e9", "\0", "a" * 4097]
)
def test_malformed_access_token_is_refused(value: object) -> None:
    """Any other value is refused, and the message does not show it."""
    with pytest.raises(InvalidValue) as caught:
        AccessToken(value)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == TOKEN68
    assert caught.value.details == {"member": "token"}


def test_access_token_is_never_shown() -> None:
    """No text form of a token shows its value."""
    token = AccessToken("OS9M2PMH")
    assert {repr(token), str(token), f"{token}", f"{token!r}"} == {"AccessToken(<hidden>)"}
    assert "OS9M2PMH" not in repr([token])


def test_access_token_is_immutable() -> None:
    """A token cannot be changed after it was checked."""
    assert_frozen(AccessToken("a"))


def test_digest_is_the_sha_256_of_the_token() -> None:
    """The digest of a token is its plain SHA-256, so that a host can compute it, too."""
    assert AccessToken("abc").digest == hashlib.sha256(b"abc").digest()
    assert AccessToken("abc").digest != AccessToken("abd").digest


@pytest.mark.parametrize("value", ["GNAP OS9M2PMH==", "gnap OS9M2PMH==", "Gnap OS9M2PMH==", "GNAP    OS9M2PMH=="])
def test_authorization_is_parsed(value: str) -> None:
    """Spec section 5: `Authorization: GNAP <token>`, with the scheme in any case and one or more spaces."""
    assert parse_authorization([value]) == AccessToken("OS9M2PMH==")


@pytest.mark.parametrize(
    ("values", "reason", "message"),
    [
        pytest.param([], "token_missing", MISSING, id="none"),
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
def test_authorization_is_refused(values: list[str], reason: str, message: str) -> None:
    """A missing token is refused as `token_missing`, and several or malformed tokens as `invalid_token`."""
    with pytest.raises(TokenRefused) as caught:
        parse_authorization(values)
    assert caught.value.code == reason
    assert str(caught.value) == message
    assert caught.value.details == {}


def test_challenge_has_the_form_of_the_spec() -> None:
    """Spec section 5: the challenge is `GNAP as_uri=<URI>`, without quotes."""
    assert challenge("https://auth.bank.example/op?x=1") == "GNAP as_uri=https://auth.bank.example/op?x=1"


@pytest.mark.parametrize("url", ["auth.bank.example", "https://auth.example/a,b", "https://auth.example/\r\nX: y"])
def test_challenge_refuses_a_url_that_would_end_the_parameter(url: str) -> None:
    """A URL that would add a second parameter or a second field to the response is refused."""
    with pytest.raises(InvalidValue) as caught:
        challenge(url)
    assert caught.value.details == {"member": "authServer"}
