"""Find other bytes that a client may have digested, and other forms of its `Content-Digest`."""

import hashlib
import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from typing import Any, Final

_HASHES: Final = {64: hashlib.sha512, 32: hashlib.sha256}  # the hash function for each length of a digest in bytes
# With the lookbehind, each name is tried only once. If each suffix of a name were tried too, a long name that has no
# value would take quadratic time.
_CLAIM: Final = re.compile(r"(?<![a-z0-9\-])([a-z0-9\-]*)=([:\"']?)([A-Za-z0-9+/_\-]{32,200}={0,2})([:\"']?)")
_CLAIMS_MAX: Final = 4  # the number of digests to try; usual requests have at most two
_COMPACT: Final = (",", ":")
# Ways to write JSON: a name, the options for `json.dumps`, and the replacements in its output.
_WRITERS: Final[tuple[tuple[str, dict[str, Any], tuple[tuple[str, str], ...]], ...]] = (
    ("compact JSON (JSON.stringify)", {"separators": _COMPACT, "ensure_ascii": False}, ()),
    ("JSON with a space after each comma and colon (json.dumps of Python)", {}, ()),
    ("JSON with a space after each comma and colon", {"ensure_ascii": False}, ()),
    ("compact JSON with \\u escapes", {"separators": _COMPACT}, ()),
    ("compact JSON with escaped slashes (json_encode of PHP)", {"separators": _COMPACT}, (("/", "\\/"),)),
    ("compact JSON with <, > and & escaped (json.Marshal of Go)", {"separators": _COMPACT, "ensure_ascii": False},
     (("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"))),
)  # fmt: skip


def claims(text: str) -> Iterator[tuple[bytes, str]]:
    """Yield the digests in the text of a field, each with its difference from the form of RFC 9530."""
    for name, before, value, after in _CLAIM.findall(text)[:_CLAIMS_MAX]:
        base64 = value.rstrip("=").replace("+", "-").replace("/", "_")
        digest = urlsafe_b64decode(base64 + "=" * (-len(base64) % 4)) if len(base64) % 4 != 1 else b""
        flaws = ["is not between colons"] if not before == after == ":" else []
        if len(value) % 4 or {"-", "_"} & set(value):
            flaws.append("is in base64url or has no padding")
        if re.fullmatch(r"[0-9a-fA-F]{64}(?:[0-9a-fA-F]{64})?", value):
            digest, flaws = bytes.fromhex(value), ["is in hexadecimal digits and not in base64"]
        if name != {64: "sha-512", 32: "sha-256"}.get(len(digest)):
            flaws.append("is the digest of another algorithm than the name says")
        if len(digest) in _HASHES:
            yield digest, " and ".join(flaws)


def is_digest_of(digest: bytes, body: bytes) -> bool:
    """Return whether `digest` is the sha-256 or sha-512 digest of `body`."""
    return bool(_HASHES[len(digest)](body).digest() == digest)


def other_bodies(body: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield bodies that the client may have digested instead of `body`, each with a description."""
    for text in ("", "undefined", "null", "{}"):
        yield text.encode(), f"the text {text}" if text else "an empty body"
    yield body + b"\n", "the body with a newline after it"
    yield body.strip(), "the body without the white space around it"
    yield body.replace(b"\r\n", b"\n"), "the body with LF in place of each CRLF"
    yield body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), "the body with CRLF in place of each LF"
    yield body.decode("latin-1").encode(), "the body encoded as UTF-8 twice"
    try:
        document = json.loads(body, parse_float=_js_number)
        for name, options, replaced in _WRITERS:
            for sort_keys in (False, True):
                text = json.dumps(document, sort_keys=sort_keys, **options)
                for old, new in replaced:
                    text = text.replace(old, new)
                yield text.encode("utf-8", "surrogatepass"), f"the body as {name}{', keys sorted' * sort_keys}"
    except (ValueError, RecursionError):  # the text is not JSON, or is nested too deeply
        return


def _js_number(text: str) -> float | int:
    number = float(text)
    # JavaScript writes larger numbers with an exponent
    return int(number) if number.is_integer() and abs(number) < 1e21 else number
