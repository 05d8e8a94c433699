"""Attacks on the body and its digest. RFC 9421 §7.2.8, RFC 9530 §6."""

from attrs import evolve

from campaigns.attacks.rows import BODY_AS_LONG_AS_IT_SAYS, ENDS_EARLY, NO_SUCH_LENGTH, Family
from incoming_payments.httpsig import Code, RequestMessage, content_digest
from kits.signed_requests import Scene, put


def bodies(at: Scene) -> Family:
    """The body and its digest."""
    body, digest = at.body, content_digest(at.body)
    good = at.signed_post()
    malformed, unsupported, mismatch = Code.DIGEST_MALFORMED, Code.DIGEST_UNSUPPORTED, Code.DIGEST_MISMATCH
    length = Code.CONTENT_LENGTH_MISMATCH

    def with_digest(text: str, *more: tuple[str, str]) -> RequestMessage:
        return at.post_covering(at.digested(*more, digest=text), "content-digest")

    def carries(other: bytes) -> RequestMessage:
        """Return a POST with another body than that of the digest. Its length is right, and not signed."""
        return at.post_covering(at.digested(body=other, digest=digest), "content-digest")

    def is_long(text: str) -> RequestMessage:
        return at.post_covering(put(at.digested(), "Content-Length", text), "content-digest", "content-length")

    return {
        "a wrong Content-Length": [
            ("too small", is_long("5"), length, BODY_AS_LONG_AS_IT_SAYS),
            ("too large", evolve(good, body=body[:-1]), length, ENDS_EARLY),
            ("zeros before it", is_long(f"0{len(body)}"), length),
            ("not a number", is_long("x"), length, NO_SUCH_LENGTH),
            ("negative", is_long("-1"), length, NO_SUCH_LENGTH),
            ("a sign before it", is_long(f"+{len(body)}"), length, NO_SUCH_LENGTH),
            ("in hexadecimal digits", is_long(f"0x{len(body):x}"), length, NO_SUCH_LENGTH),
            ("a list of equal ones", is_long(f"{len(body)}, {len(body)}"), length, NO_SUCH_LENGTH),
        ],
        "a digest that cannot be parsed": [
            ("in hexadecimal digits", with_digest("sha-256=abcdef"), malformed),
            ("in the form of the obsolete Digest field", with_digest("SHA-512=AAAA"), malformed),
            ("cut short", with_digest("sha-512=:AQID:"), malformed),
            ("empty", with_digest("sha-512=::"), malformed),
            ("more bytes after it", with_digest(f"{digest[:-1]}AAAA:"), malformed),
            ("under another name", with_digest(content_digest(body, "sha-256").replace("256", "512")), malformed),
            ("bits past its end", with_digest(digest.replace("==:", "=:")), malformed),
            ("a label alone", with_digest("sha-512"), malformed),
            ("a string", with_digest(digest.replace(":", '"')), malformed),
        ],
        "a digest repeated": [
            ("in another line, of nothing", with_digest(digest, ("Content-Digest", content_digest(b""))), malformed),
            ("in one line, equal", with_digest(f"{digest}, {digest}"), malformed),
        ],
        "a digest that proves nothing, RFC 9530 §5": [
            ("an MD5", with_digest("md5=:mZFLkyvTelC5g8XnyQrpOw==:"), unsupported),
            ("a SHA-1", with_digest("sha=:2jmj7l5rSw0yVb/vlWAYkK/YBwk=:"), unsupported),
            ("a checksum", with_digest("crc32c=:AAAAAA==:"), unsupported),
            ("an unknown one", with_digest("sha3-512=:AAAA:"), unsupported),
            ("the name in upper case", with_digest(digest.replace("sha", "*sha")), unsupported),
            ("none", with_digest(""), unsupported),
        ],
        "a digest of other bytes": [
            ("of another body", with_digest(content_digest(b"{}")), mismatch),
            ("of nothing", with_digest(content_digest(b"")), mismatch),
            ("of the body in base64", with_digest(content_digest(b"eyJ3YWxsZXRBZGRyZXNzIjo=")), mismatch),
            ("on a GET without a body", at.get_covering(headers=[("Content-Digest", content_digest(b"x"))]), mismatch),
            ("zeros", with_digest(f"sha-512=:{'A' * 86}==:"), mismatch),
        ],
        "one digest good, one wrong": [
            ("the wrong one by the weaker algorithm", with_digest(f"{digest}, {content_digest(b'{}', 'sha-256')}"),
             mismatch),
            ("the wrong one by the stronger",
             with_digest(f"{content_digest(b'{}')}, {content_digest(body, 'sha-256')}"), mismatch),
            ("in two lines", with_digest(digest, ("Content-Digest", content_digest(b"{}", "sha-256"))), mismatch),
        ],
        "another body": [
            ("another wallet address", carries(body.replace(b"alice", b"bobby")), mismatch),
            ("all of it", carries(b"{}"), mismatch),
            ("removed", evolve(put(good, "Content-Length", "0"), body=b""), mismatch),
        ],
        "an equivalent body in other bytes": [
            ("reserialized", carries(body.replace(b":", b": ", 1)), mismatch),
            ("a member twice", carries(body[:-1] + b',"walletAddress":"x"}'), mismatch),
            ("a newline after it", carries(body + b"\n"), mismatch),
            ("a byte order mark before it", carries(b"\xef\xbb\xbf" + body), mismatch),
            ("an escaped letter", carries(body.replace(b"a", b"\\u0061", 1)), mismatch),
            ("in UTF-16", carries(body.decode().encode("utf-16")), mismatch),
            ("cut at a NUL", carries(body + b"\0x"), mismatch),
        ],
    }  # fmt: skip
