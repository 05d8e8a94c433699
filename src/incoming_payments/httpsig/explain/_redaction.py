"""Format the parts of a client's request that a report may show: escaped, bounded, and without secrets.

A report shows only the fields of an allowlist, so it hides unknown fields. It also hides every value that contains a
piece of a secret. The secrets are the credentials (`Authorization`, `Cookie`) and the signatures.
"""

import re
from typing import Final
from urllib.parse import unquote

from incoming_payments.httpsig.base import Component, Parameters
from incoming_payments.httpsig.message import RequestMessage
from incoming_payments.limits import EXPLAIN_VALUE_CHARS_MAX, SECRET_PIECE_CHARS_MIN

_SECRET_FIELDS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_SHOWN_FIELDS: Final = frozenset({"accept", "content-encoding", "content-length", "content-type", "date", "host"})
_SHOWN_PARAMETERS: Final = frozenset({"alg", "created", "expires", "keyid", "tag"})
_SCHEME: Final = re.compile(r"(GNAP|Bearer|Basic|DPoP) +", re.IGNORECASE)
_LONG: Final = re.compile(r"[A-Za-z0-9+/_\-]{40,}={0,2}")  # the form of a signature in the field `Signature`


class Redactor:
    """Format parts of one request for a report, and hide the secrets in them. Its methods never raise an exception."""

    def __init__(self, request: RequestMessage) -> None:
        secrets = [value for name in _SECRET_FIELDS for value in request.values(name)]
        secrets += [octets for value in request.values("signature") for octets in _LONG.findall(value)]
        self._pieces = {piece for secret in secrets for piece in _pieces(secret.lower())}

    def mask(self, text: str) -> str:
        """Return `text`, or only its length if `text` contains a secret, even in another case or percent-encoded."""
        spellings = (text.lower(), unquote(text, "latin-1").lower()) if self._pieces else ()
        found = any(piece in self._pieces for spelling in spellings for piece in _pieces(spelling))
        return hidden(text) if found else text

    def show(self, text: str, chars_max: int = EXPLAIN_VALUE_CHARS_MAX) -> str:
        """Return untrusted `text` as printable ASCII of bounded length, without secrets."""
        shown = ascii(self.mask(text[:chars_max]))[1:-1]
        if len(text) <= chars_max and len(shown) <= 2 * chars_max:
            return shown
        return f"{shown[: 2 * chars_max]}... ({len(text)} characters)"

    def quote(self, text: str) -> str:
        """Return `text` in double quotes."""
        return f'"{self.show(text)}"'

    def value(self, component: Component, value: str) -> str:
        """Return the value of a covered component."""
        name = component.name
        if component.parameters:
            return hidden(value)
        if name.startswith("@"):
            return self.uri(value)
        if name in _SHOWN_FIELDS:
            return self.show(value)
        if name in _SECRET_FIELDS and (scheme := _SCHEME.match(value)):
            return f"{scheme[1]} {hidden(value[scheme.end() :])}"
        return hidden(value)

    def uri(self, uri: str) -> str:
        """Return a URI, a part of a URI, or a method, with the names of the query parameters, but without values."""
        path, mark, query = uri.partition("?")
        if len(query) > EXPLAIN_VALUE_CHARS_MAX:
            return f"{self.show(path)}?{hidden(query)}"
        pairs = [pair.partition("=") for pair in query.split("&")] if query else []
        shown = [f"{self.show(name)}={hidden(value)}" if sign else hidden(name) for name, sign, value in pairs]
        return f"{self.show(path)}{mark}{'&'.join(shown)}"

    def identifier(self, component: Component) -> str:
        """Return a component identifier."""
        return self.quote(component.name) + self.parameters(component.parameters, shown=None)

    def parameters(self, parameters: Parameters, shown: frozenset[str] | None = _SHOWN_PARAMETERS) -> str:
        """Return `parameters`, with values only for the names in `shown`, or with all values if `shown` is None."""
        text = ""
        for name, value in parameters:
            written = self.show(str(value)) if shown is None or name in shown else hidden(str(value))
            written = f'"{written}"' if type(value) is str else written
            text += f";{self.show(name)}" if value is True else f";{self.show(name)}={written}"
        return text


def hidden(value: str) -> str:
    """Return the replacement for a hidden value."""
    return f"<redacted, {len(value)} character{'' if len(value) == 1 else 's'}>"


def _pieces(text: str) -> list[str]:
    return [text[at : at + SECRET_PIECE_CHARS_MIN] for at in range(len(text) - SECRET_PIECE_CHARS_MIN + 1)]
