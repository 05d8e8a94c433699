"""What of a client's request may stand in a log: secrets taken out, everything else escaped and bounded.

Fields are shown by an allowlist, so that a field which nobody thought of is hidden. Besides, whatever the client put
into a field for secrets is masked wherever else it may have put it.
"""

import re
import string
from collections.abc import Sequence
from typing import Final

from http_sf.types import BareItemType

from incoming_payments.httpsig.base import REQUEST_COMPONENTS, SF_KEY, Component, Parameters
from incoming_payments.httpsig.message import Request
from incoming_payments.limits import EXPLAIN_VALUE_CHARS_MAX

PIECE_CHARS: Final = 8  # no piece of a secret that is as long as this is ever shown

_SECRET_FIELDS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})
_SHOWN_FIELDS: Final = frozenset({"accept", "content-encoding", "content-length", "content-type", "date", "host"})
_SHOWN_PARAMETERS: Final = ("alg", "created", "expires", "keyid", "tag")
_SCHEME: Final = re.compile(r"(GNAP|Bearer|Basic|DPoP) +", re.IGNORECASE)
_DIGEST: Final = re.compile(r"([A-Za-z0-9\-]{1,16})=:([A-Za-z0-9+/=]*):")
_UNSHOWABLE: Final = re.compile(r"[^ -\[\]-~]")  # a backslash too, as it begins what stands for the others
_MASKS: Final = "*#"  # two, as one may itself be in the secret
_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)  # `lower` may change the length
_OCTET: Final = re.compile(r"%[0-9A-Fa-f]{2}")

# A Signature-Input that cannot be read: parameters that are shown; others, to the semicolon behind them; single words.
_UNREAD: Final = re.compile(
    rf"(?:^|(?<=[;,\s]))(?P<shown>(?:{'|'.join(_SHOWN_PARAMETERS)})=(?:\"[^\"]*\"|[^\"'=;,\s()]*))(?=[;,\s)]|$)"
    r"|(?P<name>[^\s\"'();,=]+)\s*=\s*(?!\()(?:\"[^\"]*\"?|'[^']*'?|[^;\"'])+"
    r"|(?P<word>\"[^\"]*\"?|'[^']*'?|[^\s\"'();,=]+)",
    re.IGNORECASE,
)
_WORDS: Final = REQUEST_COMPONENTS | {
    "(request-target)", "algorithm", "authorization", "content-digest", "content-length", "content-type", "signature",
    "undefined",
}  # fmt: skip
_LONG: Final = re.compile(r"[A-Za-z0-9+/_\-]{40,}={0,2}")  # it may be a signature in the wrong field


class Redactor:
    """Shows pieces of one request. Raises nothing, whatever they are."""

    def __init__(self, request: Request) -> None:
        secrets = [value for name in _SECRET_FIELDS for value in request.values(name)]
        self._pieces = {
            secret[at : at + PIECE_CHARS].translate(_LOWER)
            for secret in secrets
            for at in range(len(secret) - PIECE_CHARS + 1)
        }

    def mask(self, text: str) -> str:
        """`text` without any piece of a secret, in capitals or small letters, percent-encoded or not."""
        for mask in _MASKS:
            if not (hidden := self._found(text)):
                return text
            text = "".join([mask if place in hidden else character for place, character in enumerate(text)])
        return "" if self._found(text) else text

    def _found(self, text: str) -> set[int]:
        """The places in `text` that are part of a piece of a secret."""
        if not self._pieces:
            return set()
        lower = text.translate(_LOWER)
        places = range(len(text) + 1)
        found = self._spans(lower, places)
        if "%" in text:
            starts = [place for octet in _OCTET.finditer(text) for place in (octet.start() + 1, octet.start() + 2)]
            decoded = _OCTET.sub(lambda octet: chr(int(octet[0][1:], 16)), text).translate(_LOWER)
            found |= self._spans(decoded, sorted({*places}.difference(starts)))
        return found

    def _spans(self, text: str, places: Sequence[int]) -> set[int]:
        """Where the pieces in `text` are, when its characters stand at `places`, and it ends at the last of them."""
        found: set[int] = set()
        for at in range(len(text) - PIECE_CHARS + 1):
            if text[at : at + PIECE_CHARS] in self._pieces:
                found.update(range(places[at], places[at + PIECE_CHARS]))
        return found

    def show(self, text: str, chars_max: int = EXPLAIN_VALUE_CHARS_MAX) -> str:
        """`text` from outside as printable ASCII of bounded length, with no secret in it.

        >>> Redactor(Request("GET", "", (("Authorization", "GNAP 0123456789"),))).show("x\\n0123456789")
        'x\\\\x0a**********'
        """
        # A piece that begins before the cut ends within this, percent-encoded too.
        shown = _UNSHOWABLE.sub(_escaped, self.mask(text[: chars_max + 3 * PIECE_CHARS])[:chars_max])
        if len(text) <= chars_max and len(shown) <= 2 * chars_max:
            return shown
        return f"{shown[: 2 * chars_max]}... ({len(text)} characters)"

    def quote(self, text: str) -> str:
        """`text` in double quotes."""
        return f'"{self.show(text)}"'

    def value(self, component: Component, value: str) -> str:
        """The value of a covered component.

        >>> redactor = Redactor(Request("GET", "", ()))
        >>> redactor.value(Component("authorization"), "GNAP OS9M2PMH")
        'GNAP <redacted, 8 characters>'
        >>> redactor.value(Component("@target-uri"), "https://ase.example/pay?token=OS9M2PMH")
        'https://ase.example/pay?token=<redacted, 8 characters>'
        """
        name = component.name
        if component.parameters:
            return hidden(value)
        if name.startswith("@"):
            return self.uri(value)
        if name in _SHOWN_FIELDS:
            return self.show(value)
        if name == "content-digest" and (digests := _DIGEST.findall(value)) and len(digests) <= 2:
            # The digest of a body that can be guessed tells whether the guess is right.
            return ", ".join([f"{self.show(algorithm)}=:{hidden(octets)}:" for algorithm, octets in digests])
        if name in _SECRET_FIELDS and (scheme := _SCHEME.match(value)):
            return f"{scheme[1]} {hidden(value[scheme.end() :])}"
        return hidden(value)

    def uri(self, uri: str) -> str:
        """A URI, or a part of one, or a method: the values of the query are hidden, and its names are not."""
        path, mark, query = uri.partition("?")
        if len(query) > EXPLAIN_VALUE_CHARS_MAX:
            return f"{self.show(path)}?{hidden(query)}"
        pairs = [pair.partition("=") for pair in query.split("&")] if query else []
        shown = [f"{self.show(name)}={hidden(value)}" if sign else hidden(name) for name, sign, value in pairs]
        return f"{self.show(path)}{mark}{'&'.join(shown)}"

    def identifier(self, component: Component) -> str:
        """A component identifier."""
        return self.quote(component.name) + "".join([self._parameter(*pair) for pair in component.parameters])

    def parameters(self, parameters: Parameters) -> str:
        """The parameters of a signature. Those that RFC 9421 does not define are hidden, and so is `nonce`."""
        return "".join(
            [
                self._parameter(name, value) if name in _SHOWN_PARAMETERS else f";{self.show(name)}={_hidden(value)}"
                for name, value in parameters
            ]
        )

    def unread(self, text: str) -> str:
        """A `Signature-Input` that cannot be read, without what would be hidden if it could.

        Where a value ends is not known in it: what is no name that clients write, and as long as a piece, is hidden.

        >>> Redactor(Request("GET", "", ())).unread('sig1=(@path "x");nonce ="OS9M";keyid="k" PMHKUR64')
        'sig1=(@path "x");nonce=<redacted>;keyid="k" <redacted>'
        """
        return self.show(_LONG.sub("<redacted>", _UNREAD.sub(_of_unread, text[: 2 * EXPLAIN_VALUE_CHARS_MAX])))

    def _parameter(self, name: str, value: BareItemType) -> str:
        if value is True and SF_KEY.fullmatch(name):
            return f";{self.show(name)}"
        return f";{self.show(name)}={self.quote(value) if type(value) is str else self.show(str(value))}"


def hidden(value: str) -> str:
    """What stands for a value that is not shown.

    >>> hidden("OS9M2PMH")
    '<redacted, 8 characters>'
    """
    return f"<redacted, {len(value)} character{'' if len(value) == 1 else 's'}>"


def _hidden(value: BareItemType) -> str:
    return f'"{hidden(value)}"' if type(value) is str else "<redacted>"


def _of_unread(match: re.Match[str]) -> str:
    if match["shown"]:
        return match[0]
    word = match["name"] or match["word"]
    if len(word.strip("\"'")) >= PIECE_CHARS and word.strip("\"'").lower() not in _WORDS:
        word = "<redacted>"
    return f"{word}=<redacted>" if match["name"] else word


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return "\\\\" if code == 0x5C else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
