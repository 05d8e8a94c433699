"""Which other bytes a client may have made its `Content-Digest` of, and in which other form it may have written it."""

import codecs
import hashlib
import json
import re
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from incoming_payments.limits import BODY_BYTES_MAX

Variant = tuple[bytes, str]  # other bytes, and what they are

_HASHES: Final[Mapping[int, tuple[str, Callable[..., Any]]]] = {  # by the length of the digest in bytes
    64: ("sha-512", hashlib.sha512),
    32: ("sha-256", hashlib.sha256),
}
_CLAIM: Final = re.compile(r"([A-Za-z0-9\-]{1,16})=([:\"']?)([A-Za-z0-9+/_\-]{1,200}={0,2})([:\"']?)")
_CLAIMS_MAX: Final = 4  # two are usual at most
_OPENINGS_MAX: Final = 1000  # brackets in a body that is serialised anew: indenting deep JSON makes it large
_INDENTED_BYTES_MAX: Final = 8 * 1024
_INDENTED_OPENINGS_MAX: Final = 64
_JS_INTEGERS_MAX: Final = 1e21  # from here on JavaScript writes an exponent


@frozen
class Claim:
    """A digest as a client wrote it, read in one of the ways in which it may have been meant."""

    name: str
    octets: bytes
    flaw: str  # how its form differs from what it should be; empty when it does not

    @property
    def flaws(self) -> str:
        """All that is wrong with how it was written, in words that follow "the digest"."""
        algorithm = _HASHES[len(self.octets)][0]
        wrong_name = f"is a {algorithm} under the name {self.name}" if self.name != algorithm else ""
        return ", and ".join(filter(None, (self.flaw, wrong_name)))

    def matches(self, body: bytes) -> bool:
        """Whether it is the digest of `body`."""
        digest: bytes = _HASHES[len(self.octets)][1](body).digest()
        return digest == self.octets


def match(claimed: Sequence[Claim], variants: Iterable[Variant]) -> tuple[Claim, str] | None:
    """The first variant that a digest is of, each hashed once however many digests there are."""
    lengths = {len(claim.octets) for claim in claimed}
    for body, said in variants if lengths else ():
        digests = {_HASHES[length][1](body).digest() for length in lengths}
        for claim in claimed:
            if claim.octets in digests:
                return claim, said
    return None


def claims(text: str) -> list[Claim]:
    """The digests in the value of a field, whatever their form, that are as long as one by sha-256 or sha-512."""
    found = []
    for name, before, value, after in _CLAIM.findall(text)[:_CLAIMS_MAX]:
        bare = "" if before == after == ":" else "is not between colons"
        for read, flaw in _READINGS:
            try:
                octets = read(value)
            except ValueError:
                continue
            if len(octets) in _HASHES:
                found.append(Claim(name, octets, " and ".join(filter(None, (bare, flaw)))))
    return found


def _base64(text: str) -> bytes:
    return b64decode(text, validate=True)


def _base64url(text: str) -> bytes:
    if not {"-", "_"} & set(text) and len(text) % 4 == 0:
        raise ValueError("that is base64 as well")
    return urlsafe_b64decode(text.rstrip("=") + "==")


_READINGS: Final[tuple[tuple[Callable[[str], bytes], str], ...]] = (
    (_base64, ""),
    (bytes.fromhex, "is in hexadecimal digits and not in base64"),
    (lambda text: bytes.fromhex(_base64(text).decode("ascii")), "is base64 of the hexadecimal digits"),
    (lambda text: _base64(_base64(text).decode("ascii")), "is base64 of base64"),
    (_base64url, "is in base64url, or without padding"),
)


# --- other bodies ------------------------------------------------------------------------------


def nothing(_body: bytes) -> Iterator[Variant]:
    """A body that the client did not have when it made the digest."""
    yield b"", "an empty body"
    for text in ("undefined", "null", "{}", '""', "[object Object]"):
        yield text.encode(), f"the text {text}"


def other_bytes(body: bytes) -> Iterator[Variant]:
    """The same text, in other bytes."""
    yield body + b"\n", "the body with a newline after it"
    yield body + b"\r\n", "the body with a line end after it"
    yield body.strip(), "the body without the white space around it"
    yield body.replace(b"\r\n", b"\n"), "the body with LF for each CRLF"
    yield body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), "the body with CRLF for each LF"
    yield codecs.BOM_UTF8 + body, "the body with a byte order mark before it"
    yield body.removeprefix(codecs.BOM_UTF8), "the body without the byte order mark before it"
    yield body.decode("latin-1").encode(), "the body encoded as UTF-8 twice"
    yield b64encode(body), "the body in base64"
    try:
        text = body.decode()
        yield json.dumps(text, ensure_ascii=False).encode(), "the body as a JSON string: serialised twice"
        yield text.encode("latin-1"), "the body encoded as latin-1"
    except UnicodeError:
        return


def _js_number(text: str) -> float | int:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _JS_INTEGERS_MAX else number


_ESCAPED_BY_GO: Final = (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"))
_COMPACT: Final = (",", ":")
# What it is called, the options of `json.dumps`, and what is replaced in the text.
_WRITERS: Final[tuple[tuple[str, dict[str, Any], tuple[tuple[str, str], ...]], ...]] = (
    ("compact JSON (JSON.stringify)", {"separators": _COMPACT, "ensure_ascii": False}, ()),
    ("JSON with a space after each comma and colon (json.dumps of Python)", {}, ()),
    ("JSON with a space after each comma and colon", {"ensure_ascii": False}, ()),
    ("compact JSON with \\u escapes", {"separators": _COMPACT}, ()),
    ("compact JSON with escaped slashes (json_encode of PHP)", {"separators": _COMPACT}, (("/", "\\/"),)),
    ("compact JSON with <, > and & escaped (json.Marshal of Go)", {"separators": _COMPACT, "ensure_ascii": False},
     _ESCAPED_BY_GO),
    ("JSON indented by 2", {"indent": 2, "ensure_ascii": False}, ()),
    ("JSON indented by 4", {"indent": 4, "ensure_ascii": False}, ()),
)  # fmt: skip
_ORDERS: Final = ((False, ""), (True, ", keys sorted"))
_ENDINGS: Final = (("", ""), ("\n", ", with a newline after it"))


def other_json(body: bytes) -> Iterator[Variant]:
    """The same JSON as other serialisers write it."""
    openings = body.count(b"[") + body.count(b"{")
    if len(body) > BODY_BYTES_MAX or openings > _OPENINGS_MAX:
        return
    can_indent = len(body) <= _INDENTED_BYTES_MAX and openings <= _INDENTED_OPENINGS_MAX
    try:
        document = json.loads(body, parse_float=_js_number)
        for sort_keys, order in _ORDERS:
            for name, options, replaced in _WRITERS:
                if can_indent or "indent" not in options:
                    text = json.dumps(document, sort_keys=sort_keys, **options)
                    for old, new in replaced:
                        text = text.replace(old, new)
                    for ending, ended in _ENDINGS:
                        yield f"{text}{ending}".encode("utf-8", "surrogatepass"), f"the body as {name}{order}{ended}"
    except (ValueError, RecursionError):  # no JSON, or deeper than anybody writes it
        return
