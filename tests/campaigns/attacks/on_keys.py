"""Attacks on the choice of the key and the algorithm. RFC 9421 §7.3."""

import hashlib
import hmac

from campaigns.attacks.rows import Family
from incoming_payments.httpsig import Algorithm, Code, RequestMessage
from kits.signed_requests import Scene


def keys(at: Scene) -> Family:
    """The choice of the key, RFC 9421 §7.3.4."""
    unknown = Code.KEY_UNKNOWN
    public = at.other.public_jwk()

    def named(keyid: str) -> RequestMessage:
        return at.get_with(f';keyid="{keyid}";created={at.now_s}')

    def by_other(more: str) -> RequestMessage:
        return at.get_by(at.other.sign, more)

    return {
        "no key is named": [
            ("keyid is missing", at.get_with(f";created={at.now_s}"), Code.KEY_ID_MISSING),
            ("keyid is empty", named(""), unknown),
        ],
        "the key of another client": [
            ("by its own name", at.forge(at.get(), at.lines(), f';keyid="{at.other.kid}";created={at.now_s}',
             by=at.other.sign), unknown),
            ("by the name of the token's key", by_other(""), Code.SIGNATURE_INVALID),
        ],
        "a key name that is nearly the client's own": [
            ("in another case", named(at.kid.upper()), unknown),
            ("a space after it", named(f"{at.kid} "), unknown),
            ("its beginning", named(at.kid[:-1]), unknown),
            ("more after it", named(f"{at.kid}#"), unknown),
            ("percent-encoded", named(at.kid.replace("-", "%2D")), unknown),
            ("a wildcard", named("*"), unknown),
        ],
        "a key name that points elsewhere": [
            ("at the attacker's address", named("https://evil.example/jwks.json#key-1"), unknown),
            ("at an internal address", named("http://169.254.169.254/latest/meta-data/"), unknown),
            ("in a file", named("../../etc/passwd"), unknown),
            ("in a database", named("' OR 1=1 --"), unknown),
            ("the key itself", named(public["x"]), unknown),
        ],
        "a key inside the request": [
            ("as a JWK", by_other(f';jwk="{public["x"]}"'), Code.SIGNATURE_INVALID),
            ("as a URL", by_other(';jku="https://evil.example/jwks.json"'), Code.SIGNATURE_INVALID),
            ("as a certificate", by_other(";x5c=:MIIB:"), Code.SIGNATURE_INVALID),
            ("as a field", at.forge(at.get(("Client-Cert", ":MIIB:")), at.lines(), by=at.other.sign),
             Code.SIGNATURE_INVALID),
        ],
    }  # fmt: skip


def algorithms(at: Scene) -> Family:
    """The choice of the algorithm, RFC 9421 §7.3.3 and §7.3.6."""
    mismatch, invalid = Code.ALGORITHM_MISMATCH, Code.SIGNATURE_INVALID
    public = at.key.public_jwk()["x"].encode()

    def with_alg(alg: str) -> RequestMessage:
        return at.get_with(at.params(f';alg="{alg}"'))

    def with_mac(base: bytes) -> bytes:
        return hmac.digest(public, base, hashlib.sha256)

    return {
        "HMAC with the public key as secret": [
            ("with its alg", at.get_by(with_mac, ';alg="hmac-sha256"'), mismatch),
            ("without alg", at.get_by(with_mac), invalid),
        ],
        "no algorithm": [
            ("none", at.get_by(lambda _: b"", ';alg="none"'), mismatch),
            ("empty", with_alg(""), mismatch),
        ],
        "the algorithm of another kind of key": [
            ("RSA", with_alg("rsa-pss-sha512"), mismatch),
            ("RSA with SHA-1, obsolete", with_alg("rsa-v1_5-sha1"), mismatch),
            ("ECDSA", at.get_by(at.by(Algorithm.ES256).key.sign, ';alg="ecdsa-p256-sha256"'), mismatch),
            ("ECDSA, without alg", at.get_by(at.by(Algorithm.ES256).key.sign), invalid),
        ],
        "another spelling of the algorithm": [
            ("the JOSE name", with_alg("EdDSA"), mismatch),
            ("in upper case", with_alg("ED25519"), mismatch),
            ("a space before it", with_alg(" ed25519"), mismatch),
            ("the draft's name for any", with_alg("hs2019"), mismatch),
        ],
    }  # fmt: skip
