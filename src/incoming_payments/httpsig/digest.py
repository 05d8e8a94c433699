"""Write and verify the `Content-Digest` field of RFC 9530."""

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Final, Literal

from incoming_payments.errors import InvalidValue, MalformedField, SignatureRefused
from incoming_payments.httpsig.codes import Code
from incoming_payments.httpsig.fields import parse_dictionary

DigestAlgorithm = Literal["sha-256", "sha-512"]

# The active algorithms (RFC 9530 §5). The deprecated algorithms (md5, sha, unixsum and others) prove nothing.
_HASHES: Final = {"sha-512": hashlib.sha512, "sha-256": hashlib.sha256}


def content_digest(body: bytes, algorithm: DigestAlgorithm = "sha-512") -> str:
    """Return the value of a `Content-Digest` field for `body`. RFC 9530 §2.

    Raises `InvalidValue` for any other algorithm.

    >>> content_digest(b"{}", "sha-256")
    'sha-256=:RBNvo1WzZ4oRRq0W9+hknpT7T8If536DEMBg9hyq/4o=:'
    """
    if algorithm not in _HASHES:
        raise InvalidValue(f"algorithm must be {' or '.join(_HASHES)}, not {algorithm!r}", member="algorithm")
    return f"{algorithm}=:{b2a_base64(_HASHES[algorithm](body).digest(), newline=False).decode()}:"


def verify_digest(header_values: Sequence[str], body: bytes) -> None:
    """Verify that `body`, the bytes as received, matches the `Content-Digest` field (RFC 9530 §2).

    `header_values` are the field's values, one for each line received. At least one sha-256 or sha-512 digest must be
    present, and all such digests must match. Digests by other algorithms are ignored.

    Raises `SignatureRefused` with the code `DIGEST_MISSING`, `DIGEST_MALFORMED`, `DIGEST_UNSUPPORTED` or
    `DIGEST_MISMATCH`, and no other exception.
    """
    if not header_values:
        text = "the request has a body but no Content-Digest: add the field (RFC 9530 §2)"
        raise SignatureRefused(Code.DIGEST_MISSING, text)
    try:
        members = parse_dictionary(header_values, "Content-Digest")
    except MalformedField as error:
        raise SignatureRefused(Code.DIGEST_MALFORMED, error.description, **error.details) from error
    known = [(name, members[name][0]) for name in _HASHES if name in members]
    if not known:
        text = "Content-Digest has neither a sha-512 nor a sha-256 digest: add one of them (RFC 9530 §5)"
        raise SignatureRefused(Code.DIGEST_UNSUPPORTED, text)
    for name, claimed in known:
        digest = _HASHES[name](body).digest()
        if type(claimed) is not bytes or len(claimed) != len(digest):
            text = (
                f"the {name} digest in Content-Digest is not a byte sequence of {len(digest)} bytes: write "
                f"{name}=:BASE64: (RFC 9530 §2)"
            )
            raise SignatureRefused(Code.DIGEST_MALFORMED, text, algorithm=name)
        if not hmac.compare_digest(claimed, digest):
            text = (
                f"the {name} digest in Content-Digest does not match the received body: compute the digest over "
                "the exact bytes that you send (RFC 9530 §2)"
            )
            raise SignatureRefused(Code.DIGEST_MISMATCH, text, algorithm=name)
