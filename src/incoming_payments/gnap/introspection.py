"""The facts about an access token, read from an introspection answer or from a static list. RFC 9767 §3.3."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn

from attrs import field, frozen

from incoming_payments.domain.checks import all_of, name_of
from incoming_payments.domain.payment import ClientId, client_id
from incoming_payments.errors import AuthorizationServerUnavailable, InvalidValue, TokenRefused
from incoming_payments.gnap.access import AccessRight, read_access
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import ACCESS_RIGHTS_MAX, INTROSPECTION_BYTES_MAX

# RFC 7638 §3.2: the members of the thumbprint of a key, in their order
_THUMBPRINT: Final = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}


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


def read_introspection(body: bytes) -> AccessTokenInfo | None:
    """Return the facts in `body`, the introspection answer of an authorization server, or `None` for `active: false`.

    The client is the first of `client`, `instance_id` and the thumbprint of the key (RFC 7638) that is a valid
    identifier. If `client` is an object, its `walletAddress` counts. `read_access` reads the rights.

    Raises `AuthorizationServerUnavailable` when `body` does not say whether, or until when, the token is active: it is
    too large, not a JSON object, or has a wrong `active` or `exp`. Raises `TokenRefused` with `key_unusable` unless the
    token is bound to a public key that `body` contains as a JWK, with the proof method `httpsig`.

    >>> read_introspection(b'{"active": false}')
    """
    if len(body) > INTROSPECTION_BYTES_MAX:
        _unreadable(f"is larger than {INTROSPECTION_BYTES_MAX} bytes")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        _unreadable("is not JSON")
    if not isinstance(answer, dict) or type(answer.get("active")) is not bool:
        _unreadable("must be a JSON object in which active is true or false")
    if not answer["active"]:
        return None
    jwk = _jwk(answer.get("key"))
    expires_at = _expiry(answer.get("exp"))
    return AccessTokenInfo(_client(answer, jwk), jwk, read_access(answer.get("access")), expires_at)


def _unreadable(why: str) -> NoReturn:
    raise AuthorizationServerUnavailable(f"the introspection answer of the authorization server {why} (RFC 9767 §3.3)")


def _jwk(key: object) -> dict[str, Any]:
    jwk = key.get("jwk") if isinstance(key, dict) and _proof(key) == "httpsig" else None
    if not isinstance(jwk, dict):
        text = "the access token must be bound to a JWK by value, with the proof method httpsig: request such a token"
        raise TokenRefused("key_unusable", f"{text} (RFC 9635 §7.1)")
    return jwk


def _proof(key: dict[str, Any]) -> object:
    proof = key.get("proof", "httpsig")
    return proof.get("method") if isinstance(proof, dict) else proof


def _expiry(exp: object) -> datetime | None:
    if exp is None:
        return None
    try:
        if type(exp) in (int, float):
            return datetime.fromtimestamp(exp, UTC)  # type: ignore[arg-type] # mypy does not narrow by `type`
    except (ValueError, OverflowError, OSError):
        pass
    _unreadable("must give exp as seconds since 1970, or leave it out")


def _client(answer: dict[str, Any], jwk: dict[str, Any]) -> ClientId:
    client = answer.get("client")
    if isinstance(client, dict):
        client = client.get("walletAddress")
    for name in (client, answer.get("instance_id")):
        try:
            return client_id(name)  # type: ignore[arg-type] # it refuses every other type
        except InvalidValue:
            pass  # absent, or not printable ASCII without spaces
    members = {name: str(jwk.get(name)) for name in _THUMBPRINT.get(str(jwk.get("kty")), sorted(jwk))}
    digest = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest()
    thumbprint = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return client_id(f"urn:ietf:params:oauth:jwk-thumbprint:sha-256:{thumbprint}")  # RFC 9278


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
