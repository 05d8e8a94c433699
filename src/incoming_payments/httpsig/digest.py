"""The `Content-Digest` field, RFC 9530: made for a body, and checked against one."""

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Final, Literal

from incoming_payments.errors import InvalidValue, MalformedField, SignatureRefused
from incoming_payments.httpsig.fields import parse_dictionary
from incoming_payments.httpsig.reasons import Reason

DigestAlgorithm = Literal["sha-256", "sha-512"]

# RFC 9530 §5: these are the active ones. md5, sha, unixsum and the other deprecated ones prove nothing.
_HASHES: Final = {"sha-512": hashlib.sha512, "sha-256": hashlib.sha256}


def content_digest(body: bytes, algorithm: DigestAlgorithm = "sha-512") -> str:
    """The value of a `Content-Digest` field for `body`. Raises `InvalidValue` for another algorithm. RFC 9530 §2.

    >>> content_digest(b"{}", "sha-256")
    'sha-256=:RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=:'
    """
    if algorithm not in _HASHES:
        raise InvalidValue(f"the digest algorithm is one of {', '.join(_HASHES)}", member="algorithm")
    return digest_text(algorithm, body)


def digest_text(algorithm: str, body: bytes) -> str:
    """Return the member of `Content-Digest` by an algorithm that is known to be active."""
    return f"{algorithm}=:{b2a_base64(_HASHES[algorithm](body).digest(), newline=False).decode()}:"


def verify_digest(header_values: Sequence[str], body: bytes) -> None:
    """Check `body`, the bytes as received, against the values of its `Content-Digest` field. RFC 9530 §2.

    Each sha-256 and sha-512 digest has to match, and there has to be one; digests by other algorithms are passed over.
    Raises `SignatureRefused` with the reason `DIGEST_MISSING`, `DIGEST_MALFORMED`, `DIGEST_UNSUPPORTED` or
    `DIGEST_MISMATCH`, and nothing else.

    >>> verify_digest(["sha-256=:RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=:"], b"{}")
    """
    if not header_values:
        raise SignatureRefused(Reason.DIGEST_MISSING, "a body needs a Content-Digest field")
    try:
        members = parse_dictionary(header_values, "Content-Digest")
    except MalformedField as error:
        raise SignatureRefused(Reason.DIGEST_MALFORMED, error.description, **error.details) from error
    known = [(name, members[name][0]) for name in _HASHES if name in members]
    if not known:
        raise SignatureRefused(Reason.DIGEST_UNSUPPORTED, "Content-Digest needs a sha-512 or a sha-256 digest")
    for name, claimed in known:
        digest = _HASHES[name](body).digest()
        if type(claimed) is not bytes or len(claimed) != len(digest):
            text = f"the {name} digest is a byte sequence of {len(digest)} bytes: {name}=:base64:"
            raise SignatureRefused(Reason.DIGEST_MALFORMED, text, algorithm=name)
        if not hmac.compare_digest(claimed, digest):
            text = f"the {name} digest is not that of the body received: digest the very bytes that are sent"
            raise SignatureRefused(Reason.DIGEST_MISMATCH, text, algorithm=name)
