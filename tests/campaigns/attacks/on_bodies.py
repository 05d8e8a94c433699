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

    def says(text: str, *more: tuple[str, str]) -> RequestMessage:
        return at.post_covering(at.digested(*more, digest=text), "content-digest")

    def carries(other: bytes) -> RequestMessage:
        """A POST with another body than the digest was made for; its length is right, and not signed."""
        return at.post_covering(at.digested(body=other, digest=digest), "content-digest")

    def is_long(text: str) -> RequestMessage:
        return at.post_covering(put(at.digested(), "Content-Length", text), "content-digest", "content-length")

    return {
        "Content-Length lies": [
            ("it is less", is_long("5"), length, BODY_AS_LONG_AS_IT_SAYS),
            ("it is more", evolve(good, body=body[:-1]), length, ENDS_EARLY),
            ("zeros before it", is_long(f"0{len(body)}"), length),
            ("it is no number", is_long("x"), length, NO_SUCH_LENGTH),
            ("it is negative", is_long("-1"), length, NO_SUCH_LENGTH),
            ("a sign before it", is_long(f"+{len(body)}"), length, NO_SUCH_LENGTH),
            ("in hexadecimal digits", is_long(f"0x{len(body):x}"), length, NO_SUCH_LENGTH),
            ("a list of equal ones", is_long(f"{len(body)}, {len(body)}"), length, NO_SUCH_LENGTH),
        ],
        "a digest that cannot be read": [
            ("in hexadecimal digits", says("sha-256=abcdef"), malformed),
            ("as Digest had it", says("SHA-512=AAAA"), malformed),
            ("cut short", says("sha-512=:AQID:"), malformed),
            ("empty", says("sha-512=::"), malformed),
            ("more after it", says(f"{digest[:-1]}AAAA:"), malformed),
            ("under another name", says(content_digest(body, "sha-256").replace("256", "512")), malformed),
            ("bits past its end", says(digest.replace("==:", "=:")), malformed),
            ("a label alone", says("sha-512"), malformed),
            ("a string", says(digest.replace(":", '"')), malformed),
        ],
        "a digest repeated": [
            ("in another line, of nothing", says(digest, ("Content-Digest", content_digest(b""))), malformed),
            ("in one line, equal", says(f"{digest}, {digest}"), malformed),
        ],
        "a digest that proves nothing, RFC 9530 §5": [
            ("an MD5", says("md5=:mZFLkyvTelC5g8XnyQrpOw==:"), unsupported),
            ("a SHA-1", says("sha=:2jmj7l5rSw0yVb/vlWAYkK/YBwk=:"), unsupported),
            ("a checksum", says("crc32c=:AAAAAA==:"), unsupported),
            ("an unknown one", says("sha3-512=:AAAA:"), unsupported),
            ("the name in upper case", says(digest.replace("sha", "*sha")), unsupported),
            ("none", says(""), unsupported),
        ],
        "a digest of something else": [
            ("of another body", says(content_digest(b"{}")), mismatch),
            ("of nothing", says(content_digest(b"")), mismatch),
            ("of the body in base64", says(content_digest(b"eyJ3YWxsZXRBZGRyZXNzIjo=")), mismatch),
            ("on a GET without a body", at.get_covering(headers=[("Content-Digest", content_digest(b"x"))]), mismatch),
            ("zeros", says(f"sha-512=:{'A' * 86}==:"), mismatch),
        ],
        "one digest good, one wrong": [
            ("the wrong one by the weaker algorithm", says(f"{digest}, {content_digest(b'{}', 'sha-256')}"), mismatch),
            ("the wrong one by the stronger", says(f"{content_digest(b'{}')}, {content_digest(body, 'sha-256')}"),
             mismatch),
            ("in two lines", says(digest, ("Content-Digest", content_digest(b"{}", "sha-256"))), mismatch),
        ],
        "another body": [
            ("another wallet address", carries(body.replace(b"alice", b"bobby")), mismatch),
            ("the whole of it", carries(b"{}"), mismatch),
            ("taken away", evolve(put(good, "Content-Length", "0"), body=b""), mismatch),
        ],
        "an equivalent body in other bytes": [
            ("serialised anew", carries(body.replace(b":", b": ", 1)), mismatch),
            ("a member twice", carries(body[:-1] + b',"walletAddress":"x"}'), mismatch),
            ("a newline after it", carries(body + b"\n"), mismatch),
            ("a byte order mark before it", carries(b"\xef\xbb\xbf" + body), mismatch),
            ("an escaped letter", carries(body.replace(b"a", b"\\u0061", 1)), mismatch),
            ("in UTF-16", carries(body.decode().encode("utf-16")), mismatch),
            ("cut at a NUL", carries(body + b"\0x"), mismatch),
        ],
    }  # fmt: skip
