"""Bearer tokens (RFC 6750) of the machines that this service trusts. Only digests of the tokens are stored."""

import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Generic, TypeVar

from attrs import field, frozen

from incoming_payments.domain.checks import all_of
from incoming_payments.errors import HttpRefused, InvalidValue
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import PEER_TOKEN_CHARS_MIN, PEER_TOKENS_MAX

T = TypeVar("T")

_BEARER: Final = re.compile(r"bearer +([a-z0-9\-._~+/]+=*)", re.IGNORECASE)  # RFC 6750 §2.1
_LOOKUP_BYTES: Final = 16  # The first half of a digest selects the holder. The rest is compared in constant time.


def digests_of(tokens: Iterable[AccessToken], holder: str) -> tuple[bytes, ...]:
    """Return the digests of the tokens of one `holder`, such as a peer.

    Raises `InvalidValue` unless there are 1 to 8 tokens of at least 16 characters.
    """
    tokens = all_of(AccessToken, tokens, member="tokens")
    if not 1 <= len(tokens) <= PEER_TOKENS_MAX:
        text = f"a {holder} must have 1 to {PEER_TOKENS_MAX} tokens: add or remove tokens"
        raise InvalidValue(text, member="tokens")
    if any(len(token.value) < PEER_TOKEN_CHARS_MIN for token in tokens):
        text = f"a {holder} token must be at least {PEER_TOKEN_CHARS_MIN} random characters"
        raise InvalidValue(text, member="tokens")
    return tuple(token.digest for token in tokens)


@frozen
class BearerTokens(Generic[T]):
    """The holders of tokens, by the digests of their tokens."""

    _holders: Mapping[bytes, tuple[bytes, T]] = field(repr=False)

    @classmethod
    def of(cls, digests: Sequence[tuple[bytes, T]], *, member: str) -> "BearerTokens[T]":
        """Return the holders of `digests`. Raises `InvalidValue` when a digest is listed twice."""
        holders = {digest[:_LOOKUP_BYTES]: (digest[_LOOKUP_BYTES:], holder) for digest, holder in digests}
        if len(holders) < len(digests):
            raise InvalidValue("a token is listed twice: list each token only once", member=member)
        return cls(holders)

    def holder_of(self, values: Sequence[str], *, unknown: str) -> T:
        """Return the holder of the token in `values`, the values of the `Authorization` field lines.

        Raises `HttpRefused` with 401 when there is no bearer token, or, with the description `unknown`, when the token
        has no holder.
        """
        if not values:
            raise _unauthorized("token_missing", "send the header field Authorization: Bearer <token>")
        bearer = _BEARER.fullmatch(values[0])
        if bearer is None or len(values) > 1:
            raise _unauthorized("invalid_token", "send exactly one header field Authorization: Bearer <token>")
        digest = sha256(bearer[1].encode("ascii")).digest()
        found = self._holders.get(digest[:_LOOKUP_BYTES])
        if found is None or not hmac.compare_digest(found[0], digest[_LOOKUP_BYTES:]):
            raise _unauthorized("invalid_token", unknown)
        return found[1]


def _unauthorized(code: str, description: str) -> HttpRefused:
    return HttpRefused(401, code, description, headers=(("WWW-Authenticate", "Bearer"),))
