"""Tests of `ServicePolicy`: each setting is checked on construction."""

from typing import Any, Final

import pytest

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import (
    AccessForbidden,
    IncomingPaymentsError,
    InvalidValue,
    PaymentNotFound,
    SignatureRefused,
    TokenRefused,
)
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.limits import (
    EXPIRY_S_MAX_DEFAULT,
    JSON_DEPTH_MAX,
    METADATA_BYTES_DEFAULT,
    METADATA_DEPTH_DEFAULT,
    URL_CHARS_MAX,
)
from kits.service_kit import AUTH_SERVER, BASE_URL, NOBODYS_ID


def a_policy(**changes: Any) -> ServicePolicy:
    """Build a policy with these changes."""
    return ServicePolicy(**{"base_url": BASE_URL, "auth_server": AUTH_SERVER, **changes})


def test_defaults() -> None:
    """By default the public view is on, identical requests are allowed, and the limits are those of `limits`."""
    policy = a_policy()
    assert (
        policy.public_get,
        policy.public_cors,
        policy.allow_identical,
        policy.expiry_s_max,
        policy.idempotency_key_s,
        policy.default_expiry_s,
        policy.metadata_bytes_max,
        policy.metadata_depth_max,
    ) == (True, True, True, EXPIRY_S_MAX_DEFAULT, 86_400, None, METADATA_BYTES_DEFAULT, METADATA_DEPTH_DEFAULT)
    assert (policy.trailing_slash, policy.wording) == (False, "plain")


@pytest.mark.parametrize(
    ("error", "matched"),
    [
        (TokenRefused("invalid_token", "not active"), "Invalid Token"),
        (TokenRefused("token_expired", "expired"), "Invalid Token"),
        (TokenRefused("insufficient_rights", "no right"), "Insufficient Grant"),
        (AccessForbidden("another wallet address"), "Insufficient Grant"),
        (SignatureRefused("signature_stale", "too old"), "Signature validation error: too old"),
        (TokenRefused("token_missing", "no token"), "no token"),
        (PaymentNotFound("no payment"), "no payment"),
    ],
)
def test_wording_changes_the_compared_descriptions(error: IncomingPaymentsError, matched: str) -> None:
    """The wording of Web Monetization changes only the descriptions that its extension compares."""
    assert a_policy().describe(error) == error.description
    assert a_policy(wording="web-monetization").describe(error) == matched


@pytest.mark.parametrize("wording", ["rafiki", "", None, 1])
def test_unknown_wording_is_refused(wording: object) -> None:
    """The message lists the known ones."""
    with pytest.raises(InvalidValue, match="wording must be plain or web-monetization") as caught:
        a_policy(wording=wording)
    assert caught.value.details["member"] == "wording"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://bank.example", "https://bank.example"),
        ("https://bank.example/", "https://bank.example"),
        ("HTTPS://Bank.Example:443/Op//", "https://bank.example/Op"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080/a/b", "http://[::1]:8080/a/b"),
    ],
)
def test_base_url_is_normalized(given: str, expected: str) -> None:
    """The base URL has one form, because payment ids and signature bases are built from it."""
    assert expected == a_policy(base_url=given).base_url


def test_base_url_leaves_100_characters_for_the_path_of_a_payment() -> None:
    """A payment's URL fits into a wallet's URL limit; one character more in `base_url` is refused."""
    longest = "https://bank.example/".ljust(URL_CHARS_MAX - 100, "x")
    assert a_policy(base_url=longest).base_url == longest
    with pytest.raises(InvalidValue):
        a_policy(base_url=longest + "x")


def test_payment_url_is_below_the_base_url() -> None:
    """The id of a payment is its URL, `{base_url}/incoming-payments/{id}`. Spec section 2.2."""
    url = a_policy(base_url="https://bank.example/op/").payment_url(PaymentId(NOBODYS_ID))
    assert f"https://bank.example/op/incoming-payments/{NOBODYS_ID}" == url


# The least and the greatest value.
BOUNDS: Final = {
    "expiry_s_max": (1, 100 * EXPIRY_S_MAX_DEFAULT),
    "idempotency_key_s": (1, 366 * 86_400),
    "default_expiry_s": (1, EXPIRY_S_MAX_DEFAULT),
    "metadata_bytes_max": (2, 32 * 1024),
    "metadata_depth_max": (1, JSON_DEPTH_MAX - 1),
}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("base_url", "bank.example"),
        ("base_url", "ftp://bank.example"),
        ("base_url", "https://user@bank.example"),
        ("base_url", "https://bank.example/op?tenant=1"),
        ("base_url", "https://bank.example/op#x"),
        ("base_url", "https://bank.example/../op"),
        ("base_url", "https://bank.example/" + "x" * 1950),
        ("base_url", None),
        ("auth_server", "https://auth.bank.example/\r\nX: y"),
        ("auth_server", 'https://auth.bank.example/"'),
        ("auth_server", "auth.bank.example"),
        ("auth_server", None),
        *((name, value) for name, (least, most) in BOUNDS.items() for value in (least - 1, most + 1, 60.0, True)),
    ],
)
def test_invalid_setting_is_named(setting: str, value: object) -> None:
    """An invalid setting is refused on construction, and the exception names the setting."""
    with pytest.raises(InvalidValue) as refused:
        a_policy(**{setting: value})
    assert setting == refused.value.details["member"]
    assert setting in str(refused.value)


@pytest.mark.parametrize("setting", BOUNDS)
def test_smallest_and_largest_settings_are_accepted(setting: str) -> None:
    """The smallest and the largest value of a setting are valid."""
    for value in BOUNDS[setting]:
        assert value == getattr(a_policy(**{setting: value}), setting)


def test_required_components_cannot_be_removed() -> None:
    """A policy can require more components than spec section 5, but not fewer."""
    more = SignaturePolicy(required=("@method", "@target-uri", "authorization", "content-type"))
    assert a_policy(signature=more).signature == more
    with pytest.raises(InvalidValue) as caught:
        a_policy(signature=SignaturePolicy(required=("@method", "content-type")))
    assert str(caught.value) == "signature must also require @target-uri, authorization"
    assert caught.value.details == {"member": "signature"}
