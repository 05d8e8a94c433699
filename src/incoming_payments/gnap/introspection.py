"""The facts about an access token, from an introspection answer (RFC 9767 §3.3) or from a static list."""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn

from attrs import Attribute, field, frozen

from incoming_payments.domain.checks import all_of, instance, name_of
from incoming_payments.domain.payment import ClientId, WalletAddressUrl, client_id
from incoming_payments.domain.urls import canonical_url
from incoming_payments.errors import AuthorizationServerUnavailable, InvalidValue, TokenRefused
from incoming_payments.gnap.access import AccessRight, Action, read_access
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import (
    ACCESS_RIGHTS_MAX,
    CLOCK_SKEW_S_DEFAULT,
    EXPLAIN_VALUE_CHARS_MAX,
    INTROSPECTION_BYTES_MAX,
)
from incoming_payments.wire.strict import read_object

Dialect = Literal["rfc9767", "rafiki"]

# the members of the thumbprint of a key, in order (RFC 7638 §3.2)
_THUMBPRINT: Final = {"EC": ("crv", "kty", "x", "y"), "OKP": ("crv", "kty", "x"), "RSA": ("e", "kty", "n")}


@frozen
class TokenQuery:
    """A question to the authorization server: whether `token` is active and allows `action` on `wallet_address`.

    For a create or list request, the client names the wallet address, which this service may not host. `wallet_address`
    is `None` when the request names no wallet address, or is about a payment that does not exist.
    """

    token: AccessToken = field(validator=instance(AccessToken))
    action: Action = field(converter=Action)
    wallet_address: WalletAddressUrl | None = None


def _frozen_jwk(jwk: Mapping[str, object] | None) -> Mapping[str, object] | None:
    given: object = jwk
    if given is None:
        return None
    if not isinstance(given, Mapping):
        text = f"jwk must be a mapping with the members of a public JWK, such as key.public_jwk(), not {name_of(given)}"
        raise InvalidValue(text, member="jwk")
    return MappingProxyType(dict(given))


def _rights(rights: Iterable[AccessRight]) -> tuple[AccessRight, ...]:
    return all_of(AccessRight, rights, member="rights")


@frozen
class AccessTokenInfo:
    """An active access token: its client, the key that must sign its requests, and its rights.

    `client` identifies the client permanently, so that the client can find its own payments later. Open Payments uses
    the URL of the client's wallet address. `jwk` is the public key to which the token is bound (RFC 9635 §7.2), or
    `None` if the authorization server does not give the key. From `expires_at` on, the service refuses the token, even
    if an introspector still has the token in a cache. The service also refuses the token before `not_before`.

    Raises `InvalidValue` for a malformed `client`, too many rights, or a time without a time zone.
    """

    client: ClientId = field(converter=client_id)
    jwk: Mapping[str, object] | None = field(converter=_frozen_jwk, repr=False, hash=False)
    rights: tuple[AccessRight, ...] = field(converter=_rights)
    expires_at: datetime | None = field(default=None)
    not_before: datetime | None = field(default=None)

    @rights.validator
    def _bounded(self, _: object, rights: tuple[AccessRight, ...]) -> None:
        if len(rights) > ACCESS_RIGHTS_MAX:
            text = f"a token may have at most {ACCESS_RIGHTS_MAX} rights, not {len(rights)}"
            raise InvalidValue(text, member="rights")

    @expires_at.validator
    @not_before.validator
    def _aware(self, attribute: "Attribute[object]", time: datetime | None) -> None:
        if time is not None and (not isinstance(time, datetime) or time.tzinfo is None):
            text = f"{attribute.name} must be a datetime with a time zone, such as UTC"
            raise InvalidValue(text, member=attribute.name)


def require_active(info: AccessTokenInfo | None, now: datetime) -> AccessTokenInfo:
    """Return `info` if its token is active at `now`.

    Raises `TokenRefused` with the reason `invalid_token` when the authorization server does not know the token, and
    with `token_expired` when the token has expired, so that clients can handle the two cases differently. Clocks may
    differ, so a token is accepted up to `limits.CLOCK_SKEW_S_DEFAULT` seconds before its `not_before`.
    """
    if info is None:
        raise TokenRefused("invalid_token", "the access token is not active: request a new grant")
    if info.expires_at is not None and now >= info.expires_at:
        raise TokenRefused("token_expired", "the access token has expired: rotate the token, or request a new grant")
    if info.not_before is not None and now + _SKEW < info.not_before:
        raise TokenRefused("invalid_token", "the access token is not active yet: use the token later")
    return info


_SKEW: Final = timedelta(seconds=CLOCK_SKEW_S_DEFAULT)


def read_introspection(
    body: bytes, *, dialect: Dialect = "rfc9767", issuer: str | None = None, audience: str | None = None
) -> AccessTokenInfo | None:
    """Return the facts in `body`, the introspection answer of an authorization server, or `None` for `active: false`.

    The identifier of the client is the first valid one of `client`, `instance_id` and the thumbprint of the key (RFC
    7638). If `client` is an object, its `walletAddress` is used. A URL is converted to the canonical spelling of wallet
    addresses. `read_access` reads the rights. In the dialect `rafiki`, the key may be in `key`, or in the `jwk` of the
    `client`. If both are missing, the `jwk` of the result is `None`.

    Raises `AuthorizationServerUnavailable` when `body` is too large, is not a JSON object, has a member twice, or has
    an `active`, `exp`, `nbf`, `iss` or `aud` of the wrong form. Raises `TokenRefused` with `key_unusable` when the
    token is not bound to a public key, given by value, for HTTP message signatures. Raises `TokenRefused` with
    `invalid_token` when `issuer` is given and `iss` differs from it, or when `aud` does not name `audience`. The `hint`
    of a `TokenRefused` names the setting that may be wrong, and shows a part of the answer. Raises `InvalidValue` when
    `body` is not bytes.

    >>> read_introspection(b'{"active": false}')
    """
    given: object = body
    if not isinstance(given, bytes):
        text = f"body must be the bytes of the answer, such as response.content, not {name_of(given)}"
        raise InvalidValue(text, member="body")
    if len(body) > INTROSPECTION_BYTES_MAX:
        _unreadable(f"is larger than {INTROSPECTION_BYTES_MAX} bytes")
    try:
        answer = read_object(body)
    except ValueError as error:
        _unreadable(str(error))
    if type(answer.get("active")) is not bool:
        _unreadable("must have the member active, with the value true or false")
    if not answer["active"]:
        return None
    _check_parties(answer, issuer, audience)
    jwk = _client_jwk(answer) if dialect == "rafiki" and answer.get("key") is None else _jwk(answer.get("key"))
    expires_at, not_before = (_time(answer, name) for name in ("exp", "nbf"))
    return AccessTokenInfo(_client(answer, jwk), jwk, read_access(answer.get("access")), expires_at, not_before)


def _unreadable(why: str) -> NoReturn:
    raise AuthorizationServerUnavailable(f"the introspection answer of the authorization server {why} (RFC 9767 §3.3)")


def _shown(value: object) -> str:
    """Return a value of the answer or a setting as printable ASCII of bounded length."""
    return ascii(value)[:EXPLAIN_VALUE_CHARS_MAX]


def _check_parties(answer: dict[str, Any], issuer: str | None, audience: str | None) -> None:
    if issuer is not None and answer.get("iss") != issuer:
        if not isinstance(answer.get("iss"), str):
            _unreadable('must have the member iss, unless the authorization server is Rafiki and dialect is "rafiki"')
        text = "another authorization server issued the access token: request a new grant"
        hint = f"issuer is {_shown(issuer)}, and the introspection answer has the iss {_shown(answer['iss'])}"
        raise TokenRefused(
            "invalid_token", text, hint=f"{hint}: if this is your authorization server, set issuer to this iss"
        )
    aud = answer.get("aud")
    names = [aud] if isinstance(aud, str) else aud
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        _unreadable("must have a string or an array of strings as aud, or no aud")
    if audience not in names:
        text = "the access token is for other services: request a grant for this service"
        hint = f"audience is {_shown(audience)}, and the introspection answer has the aud {_shown(aud)}"
        raise TokenRefused(
            "invalid_token", text, hint=f"{hint}: if this aud names this service, set audience to that name"
        )


def _jwk(key: object) -> dict[str, Any]:
    jwk = key.get("jwk") if isinstance(key, dict) and _proof(key) == "httpsig" else None
    if not isinstance(jwk, dict):
        text = "the authorization server gives no JWK with the proof method httpsig as the key of the access token"
        found = (
            "a key that has no JWK, or whose proof method is not httpsig"
            if isinstance(key, dict)
            else "no key by value"
        )
        hint = f"the introspection answer has {found}: let the authorization server send the "
        hint += 'key of the token by value, or set dialect to "rafiki" if the authorization server is Rafiki'
        raise TokenRefused("key_unusable", f"{text} (RFC 9635 §7.1)", hint=hint)
    return jwk


def _client_jwk(answer: dict[str, Any]) -> dict[str, Any] | None:
    client = answer.get("client")
    jwk = client.get("jwk") if isinstance(client, dict) else None
    return jwk if isinstance(jwk, dict) else None


def _proof(key: dict[str, Any]) -> object:
    proof = key.get("proof", "httpsig")
    return proof.get("method") if isinstance(proof, dict) else proof


def _time(answer: dict[str, Any], name: str) -> datetime | None:
    seconds = answer.get(name)
    if seconds is None:
        return None
    try:
        if type(seconds) in (int, float):
            return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        pass
    _unreadable(f"must give {name} as seconds since 1970, or leave it out")


def _client(answer: dict[str, Any], jwk: dict[str, Any] | None) -> ClientId:
    client = answer.get("client")
    if isinstance(client, dict):
        client = client.get("walletAddress")
    for name in (client, answer.get("instance_id")):
        try:
            return client_id(_one_spelling(name))
        except InvalidValue:
            pass  # the identifier is absent, or is not printable ASCII without spaces
    if jwk is None:
        text = "the access token has neither a client nor a key: request a new grant"
        hint = (
            "the introspection answer has neither a usable client or instance_id nor a key: configure the "
            "authorization server so that it names the client"
        )
        raise TokenRefused("key_unusable", text, hint=hint)
    members = {name: str(jwk.get(name)) for name in _THUMBPRINT.get(str(jwk.get("kty")), sorted(jwk))}
    digest = hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest()
    thumbprint = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    # the URI form of a thumbprint (RFC 9278)
    return client_id(f"urn:ietf:params:oauth:jwk-thumbprint:sha-256:{thumbprint}")


def _one_spelling(name: Any) -> Any:
    """Return the canonical spelling of `name` if it is a wallet address, so that a client keeps its payments."""
    try:
        return canonical_url(name, member="client")
    except InvalidValue:
        return name


class StaticIntrospector:
    """An introspector with a fixed list of tokens, for development, tests and demonstrations.

    The introspector keeps only the SHA-256 digests of the tokens. Raises `InvalidValue` when a token is listed twice.
    """

    def __init__(self, tokens: Iterable[tuple[AccessToken, AccessTokenInfo]]) -> None:
        self._by_digest: dict[bytes, AccessTokenInfo] = {}
        for token, info in all_of(tuple, tokens, member="tokens"):
            all_of(AccessToken, [token], member="tokens")
            all_of(AccessTokenInfo, [info], member="tokens")
            if token.digest in self._by_digest:
                raise InvalidValue("an access token is listed twice: list each token only once", member="token")
            self._by_digest[token.digest] = info

    def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Return the facts about the token, or `None` if the token is not listed."""
        return self._by_digest.get(query.token.digest)
