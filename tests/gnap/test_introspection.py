"""`gnap.introspection`: what a token stands for, and when it does no more."""

from datetime import datetime, timedelta, timezone

import pytest

from frozen_values import assert_frozen
from incoming_payments.errors import InvalidValue, TokenRefused
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import AccessTokenInfo, StaticIntrospector, require_active
from incoming_payments.gnap.token import AccessToken
from incoming_payments.testing import NOW

RIGHT = AccessRight(["read"])
JWK = {"kty": "OKP", "kid": "key-1"}


def info(expires_at: datetime | None = None) -> AccessTokenInfo:
    """What a token of the shop's stands for."""
    return AccessTokenInfo("https://shop.example", JWK, [RIGHT], expires_at)


def test_info_keeps_what_it_was_given() -> None:
    """Later changes to the caller's own dictionary or list change nothing here, and nothing here can be changed."""
    jwk, rights = dict(JWK), [RIGHT]
    built = AccessTokenInfo("https://shop.example", jwk, rights)
    jwk["kid"] = "key-2"
    rights.clear()
    assert built.jwk == JWK
    assert built.rights == (RIGHT,)
    with pytest.raises(TypeError):
        built.jwk["kid"] = "key-2"  # type: ignore[index] # on purpose


def test_info_does_not_change() -> None:
    """Neither can another value be put in the place of one."""
    assert_frozen(info())


def test_info_does_not_show_the_key() -> None:
    """A key that should not have been there, such as a private one, does not reach a log."""
    assert "key-1" not in repr(info())


def test_info_refuses_what_is_no_client() -> None:
    """A client has an identifier."""
    with pytest.raises(InvalidValue) as caught:
        AccessTokenInfo("", JWK, [RIGHT])
    assert caught.value.details == {"member": "client"}


def test_info_bounds_the_rights() -> None:
    """A token carries at most 64 rights, as each request looks at all of them."""
    assert len(AccessTokenInfo("c", JWK, [RIGHT] * 64).rights) == 64
    with pytest.raises(InvalidValue) as caught:
        AccessTokenInfo("c", JWK, [RIGHT] * 65)
    assert str(caught.value) == "a token carries at most 64 rights"
    assert caught.value.details == {"member": "rights"}


def test_info_refuses_a_naive_expiry() -> None:
    """A moment without a time zone would fail when it is compared, while a request waits."""
    with pytest.raises(InvalidValue) as caught:
        info(NOW.replace(tzinfo=None))
    assert str(caught.value) == "expires_at must carry a time zone, such as UTC"
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
def test_is_expired(expires_at: datetime | None, expired: bool) -> None:
    """A token is good until its time, and no more from that moment on; without one it does not expire."""
    assert info(expires_at).is_expired(NOW) is expired


def test_require_active() -> None:
    """What stands for an active token is given back."""
    active = info(NOW + timedelta(seconds=1))
    assert require_active(active, NOW) is active


@pytest.mark.parametrize(
    ("found", "reason", "message"),
    [
        (None, "invalid_token", "the access token is not active: ask for a new grant"),
        (info(NOW), "token_expired", "the access token has expired: rotate it or ask for a new grant"),
    ],
)
def test_require_active_refused(found: AccessTokenInfo | None, reason: str, message: str) -> None:
    """A client can tell a token that nobody knows from one that is over."""
    with pytest.raises(TokenRefused) as caught:
        require_active(found, NOW)
    assert caught.value.code == reason
    assert str(caught.value) == message
    assert caught.value.details == {}


def test_static_introspector() -> None:
    """A token that is listed stands for what it was listed with, any other for nothing."""
    one, other = info(), info(NOW)
    introspector = StaticIntrospector([(AccessToken("one"), one), (AccessToken("other"), other)])
    assert introspector.introspect(AccessToken("one")) is one
    assert introspector.introspect(AccessToken("other")) is other
    assert introspector.introspect(AccessToken("One")) is None


def test_static_introspector_keeps_no_token() -> None:
    """Its memory holds digests only."""
    introspector = StaticIntrospector([(AccessToken("one"), info())])
    assert list(introspector._by_digest) == [AccessToken("one").digest]


def test_static_introspector_refuses_a_token_listed_twice() -> None:
    """Which of two meanings a token has is not for chance to say."""
    with pytest.raises(InvalidValue) as caught:
        StaticIntrospector([(AccessToken("one"), info()), (AccessToken("one"), info(NOW))])
    assert str(caught.value) == "an access token is listed twice"
    assert caught.value.details == {"member": "token"}


def test_info_is_hashable_as_values_are() -> None:
    """Equal ones are one in a set."""
    first, second = (AccessTokenInfo("https://shop.example", {"kid": "k"}, []) for _ in range(2))
    assert {first} == {second}
