"""The access token in `Authorization` (RFC 9635 §7.2), and the challenge in `WWW-Authenticate` (§9.1)."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.urls import header_safe_url
from incoming_payments.errors import InvalidValue, TokenRefused
from incoming_payments.limits import TOKEN_CHARS_MAX

_TOKEN68: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")  # RFC 9110 §11.2
_GNAP: Final = re.compile(r"gnap +", re.IGNORECASE)  # the scheme, which is case-insensitive (RFC 9110 §11.1)


@frozen
class AccessToken:
    """An access token. The `repr` and `str` do not show the value, because the value is the client's secret.

    Raises `InvalidValue` unless the value is token68 (RFC 9110 §11.2) of at most `limits.TOKEN_CHARS_MAX` characters.

    >>> AccessToken("OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1LT0")
    AccessToken(<hidden>)
    """

    value: str = field(repr=False)

    @value.validator
    def _token68(self, _: object, value: object) -> None:
        if not isinstance(value, str) or len(value) > TOKEN_CHARS_MAX or not _TOKEN68.fullmatch(value):
            text = f"the access token must be 1 to {TOKEN_CHARS_MAX} letters, digits and -._~+/, with = only at the end"
            raise InvalidValue(f"{text} (RFC 9110 §11.2)", member="token")

    def __repr__(self) -> str:
        return "AccessToken(<hidden>)"

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the token. Look up tokens by this digest, so that response times reveal no token."""
        return hashlib.sha256(self.value.encode("ascii")).digest()


def parse_authorization(values: Sequence[str]) -> AccessToken:
    """Return the access token of a request. `values` are the values of the `Authorization` field lines.

    Raises `TokenRefused` with the code `token_missing` when `values` is empty. The code is `invalid_token` when
    there are several values, the scheme is not GNAP or the token is not token68.

    >>> parse_authorization(["GNAP OS9M2PMH"]).value
    'OS9M2PMH'
    """
    if not values:
        raise TokenRefused("token_missing", "the request has no access token: send Authorization: GNAP <token>")
    if len(values) > 1:
        raise TokenRefused("invalid_token", "the request has several Authorization fields: send only one")
    scheme = _GNAP.match(values[0])
    if not scheme:
        raise TokenRefused("invalid_token", "Authorization must have the form: GNAP <token> (RFC 9635 §7.2)")
    try:
        return AccessToken(values[0][scheme.end() :])
    except InvalidValue as error:
        raise TokenRefused("invalid_token", error.description) from None


def challenge(auth_server: str) -> str:
    """Return the value of `WWW-Authenticate`, which names the authorization server that issues grants.

    The form is `GNAP as_uri=<URI>`, without quotes (spec section 5 and RFC 9635 §9.1). Raises `InvalidValue` when the
    URL has a character that is not possible in this form.

    >>> challenge("https://auth.bank.example")
    'GNAP as_uri=https://auth.bank.example'
    """
    return f"GNAP as_uri={header_safe_url(auth_server, member='authServer')}"
