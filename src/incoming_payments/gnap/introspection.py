"""What an access token stands for, and a source of that for development and tests. RFC 9767 §3.3."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from attrs import field, frozen

from incoming_payments.domain.payment import ClientId, client_id
from incoming_payments.errors import InvalidValue, TokenRefused
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import ACCESS_RIGHTS_MAX


def _frozen_jwk(jwk: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType(dict(jwk))


def _rights(rights: Iterable[AccessRight]) -> tuple[AccessRight, ...]:
    return tuple(rights)


@frozen
class AccessTokenInfo:
    """An active access token: whose it is, the key its requests must be signed with, and what it allows.

    `client` identifies the client for good, so that it can find its own payments again; Open Payments uses the URL
    of its wallet address. `jwk` is the client's public key, to which the token is bound (RFC 9635 §7.2). After
    `expires_at`, if there is one, the token is refused, whatever the introspector's cache says. Raises
    `InvalidValue`.
    """

    client: ClientId = field(converter=client_id)
    jwk: Mapping[str, object] = field(converter=_frozen_jwk, repr=False, hash=False)
    rights: tuple[AccessRight, ...] = field(converter=_rights)
    expires_at: datetime | None = field(default=None)

    @rights.validator
    def _bounded(self, _: object, rights: tuple[AccessRight, ...]) -> None:
        if len(rights) > ACCESS_RIGHTS_MAX:
            raise InvalidValue(f"a token carries at most {ACCESS_RIGHTS_MAX} rights", member="rights")

    @expires_at.validator
    def _aware(self, _: object, moment: datetime | None) -> None:
        if moment is not None and moment.tzinfo is None:
            raise InvalidValue("expires_at must carry a time zone, such as UTC", member="expires_at")

    def is_expired(self, now: datetime) -> bool:
        """Whether the token's time is over at `now`."""
        return self.expires_at is not None and now >= self.expires_at


def require_active(info: AccessTokenInfo | None, now: datetime) -> AccessTokenInfo:
    """`info`, if its token is active at `now`.

    Raises `TokenRefused` with the reason `invalid_token` when the authorization server does not know it, or
    `token_expired` when its time is over: clients have to tell the two apart, and both from a missing right.
    """
    if info is None:
        raise TokenRefused("invalid_token", "the access token is not active: ask for a new grant")
    if info.is_expired(now):
        raise TokenRefused("token_expired", "the access token has expired: rotate it or ask for a new grant")
    return info


class StaticIntrospector:
    """An introspector whose tokens come from configuration: for development, tests and demonstrations.

    Tokens are kept and looked up by their SHA-256 only. Raises `InvalidValue` when one token is listed twice.

    >>> StaticIntrospector([]).introspect(AccessToken("unknown")) is None
    True
    """

    def __init__(self, tokens: Iterable[tuple[AccessToken, AccessTokenInfo]]) -> None:
        self._by_digest: dict[bytes, AccessTokenInfo] = {}
        for token, info in tokens:
            if token.digest in self._by_digest:
                raise InvalidValue("an access token is listed twice", member="token")
            self._by_digest[token.digest] = info

    def introspect(self, token: AccessToken) -> AccessTokenInfo | None:
        """What the token stands for, or `None` when it is not listed."""
        return self._by_digest.get(token.digest)
