"""The access token in the `Authorization` field, and the challenge that answers its absence. RFC 9635 §7.2 and §9.1."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.urls import header_safe_url
from incoming_payments.errors import InvalidValue, TokenRefused
from incoming_payments.limits import TOKEN_CHARS_MAX

_TOKEN68: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 9110 §11.2
_GNAP: Final = re.compile(r"gnap +", re.IGNORECASE)  # RFC 9110 §11.1: the scheme's case does not matter


@frozen
class AccessToken:
    """An access token. Its `repr` and `str` never show it, as it is a secret of the client's.

    Raises `InvalidValue` unless it is token68 (RFC 9110 §11.2) of bounded length.

    >>> AccessToken("OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1LT0")
    AccessToken(<hidden>)
    """

    value: str = field(repr=False)

    @value.validator
    def _token68(self, _: object, value: object) -> None:
        if not isinstance(value, str) or len(value) > TOKEN_CHARS_MAX or not _TOKEN68.fullmatch(value):
            raise InvalidValue(
                f"an access token is 1 to {TOKEN_CHARS_MAX} letters, digits and -._~+/ with perhaps = at the end",
                member="token",
            )

    def __repr__(self) -> str:
        return "AccessToken(<hidden>)"

    @property
    def digest(self) -> bytes:
        """SHA-256 of the token: look tokens up by this, so that comparing them tells nothing by its timing."""
        return hashlib.sha256(self.value.encode("ascii")).digest()


def parse_authorization(values: Sequence[str]) -> AccessToken:
    """The token in the values of a request's `Authorization` field lines.

    Raises `TokenRefused` with the code `token_missing` when there is none, and `invalid_token` when there are
    several, the scheme is not GNAP or the token is not token68.

    >>> parse_authorization(["GNAP OS9M2PMH"]).value
    'OS9M2PMH'
    """
    if not values:
        raise TokenRefused("token_missing", "send an access token: Authorization: GNAP <token>")
    if len(values) > 1:
        raise TokenRefused("invalid_token", "send one Authorization field, not several")
    scheme = _GNAP.match(values[0])
    if not scheme:
        raise TokenRefused("invalid_token", "Authorization must be of the form: GNAP <token>")
    try:
        return AccessToken(values[0][scheme.end() :])
    except InvalidValue as error:
        raise TokenRefused("invalid_token", error.description) from None


def challenge(auth_server: str) -> str:
    """The value of `WWW-Authenticate` that sends a client to `auth_server` for a grant.

    Contract section 5 gives its form, which RFC 9635 §9.1 shares, with no quotes: `GNAP as_uri=<URI>`. Raises
    `InvalidValue` when the URL cannot stand in it.

    >>> challenge("https://auth.bank.example")
    'GNAP as_uri=https://auth.bank.example'
    """
    return f"GNAP as_uri={header_safe_url(auth_server, member='authServer')}"
