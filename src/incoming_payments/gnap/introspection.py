"""The facts about an access token that introspection returns, and a static source of them. RFC 9767 §3.3."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType

from attrs import field, frozen

from incoming_payments.domain.checks import all_of, name_of
from incoming_payments.domain.payment import ClientId, client_id
from incoming_payments.errors import InvalidValue, TokenRefused
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import ACCESS_RIGHTS_MAX


def _frozen_jwk(jwk: Mapping[str, object]) -> Mapping[str, object]:
    given: object = jwk
    if not isinstance(given, Mapping):
        text = f"jwk must be the members of a public JWK, such as key.public_jwk(), not {name_of(given)}"
        raise InvalidValue(text, member="jwk")
    return MappingProxyType(dict(jwk))


def _rights(rights: Iterable[AccessRight]) -> tuple[AccessRight, ...]:
    return all_of(AccessRight, rights, member="rights")


@frozen
class AccessTokenInfo:
    """An active access token: its client, the key that must sign its requests, and its rights.

    `client` identifies the client permanently, so that the client can find its own payments later. Open Payments uses
    the URL of the client's wallet address. `jwk` is the public key to which the token is bound (RFC 9635 §7.2). From
    `expires_at` on, if it is set, the token is refused, even if an introspector still has it in a cache.

    Raises `InvalidValue` for a malformed `client`, too many rights, or an `expires_at` without a time zone.
    """

    client: ClientId = field(converter=client_id)
    jwk: Mapping[str, object] = field(converter=_frozen_jwk, repr=False, hash=False)
    rights: tuple[AccessRight, ...] = field(converter=_rights)
    expires_at: datetime | None = field(default=None)

    @rights.validator
    def _bounded(self, _: object, rights: tuple[AccessRight, ...]) -> None:
        if len(rights) > ACCESS_RIGHTS_MAX:
            text = f"a token may have at most {ACCESS_RIGHTS_MAX} rights, not {len(rights)}"
            raise InvalidValue(text, member="rights")

    @expires_at.validator
    def _aware(self, _: object, expires_at: datetime | None) -> None:
        if expires_at is not None and (not isinstance(expires_at, datetime) or expires_at.tzinfo is None):
            raise InvalidValue("expires_at must be a datetime with a time zone, such as UTC", member="expires_at")


def require_active(info: AccessTokenInfo | None, now: datetime) -> AccessTokenInfo:
    """Return `info` if its token is active at `now`.

    Raises `TokenRefused` with the reason `invalid_token` when the authorization server does not know the token, and
    with `token_expired` when the token has expired, so that clients can handle the two cases differently.
    """
    if info is None:
        raise TokenRefused("invalid_token", "the access token is not active: request a new grant")
    if info.expires_at is not None and now >= info.expires_at:
        raise TokenRefused("token_expired", "the access token has expired: rotate it or request a new grant")
    return info


class StaticIntrospector:
    """An introspector with a fixed list of tokens, for development, tests and demonstrations.

    It keeps only the SHA-256 digests of the tokens. Raises `InvalidValue` when a token is listed twice.
    """

    def __init__(self, tokens: Iterable[tuple[AccessToken, AccessTokenInfo]]) -> None:
        self._by_digest: dict[bytes, AccessTokenInfo] = {}
        for token, info in all_of(tuple, tokens, member="tokens"):
            all_of(AccessToken, [token], member="tokens")
            all_of(AccessTokenInfo, [info], member="tokens")
            if token.digest in self._by_digest:
                raise InvalidValue("an access token is listed twice: list it once", member="token")
            self._by_digest[token.digest] = info

    def introspect(self, token: AccessToken) -> AccessTokenInfo | None:
        """Return the facts about the token, or `None` if it is not listed."""
        return self._by_digest.get(token.digest)
