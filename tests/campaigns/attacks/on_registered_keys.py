"""Attacks by the key that a client registers, each with a signature that a careless verifier would accept."""

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from campaigns.attacks.rows import BadKey, title
from incoming_payments.httpsig import Algorithm, PrivateKey
from incoming_payments.httpsig.ed25519 import P
from kits.signed_requests import KEY
from kits.signing_keys import private

Sign = Callable[[bytes], bytes]
Family = dict[str, list[tuple[str, dict[str, object], Sign]]]

KID: Final = "key-1"


def _b64(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _uint(number: int) -> str:
    return _b64(number.to_bytes((number.bit_length() + 7) // 8))


@cache
def _weak_rsa() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 1024)  # noqa: S505 - the small size is the attack


def _pkcs1(base: bytes, octets: int) -> int:
    """Return the padded digest of `base`, which an RSA signature equals under the public exponent. RFC 8017 §9.2."""
    info = bytes.fromhex("3031300d060960864801650304020105000420") + hashlib.sha256(base).digest()
    return int.from_bytes(b"\0\1" + b"\xff" * (octets - 3 - len(info)) + b"\0" + info)


def _jwk(key: PrivateKey, **members: object) -> dict[str, object]:
    """Return the JWK of `key` with other members. None removes a member."""
    return {name: value for name, value in {**key.public_jwk(), **members}.items() if value is not None}


def weak_keys() -> Family:
    """Weak keys, for which a stranger can sign."""
    identity = (1).to_bytes(32, "little")
    rs256 = private(Algorithm.RS256)
    modulus = rs256._key.public_key().public_numbers().n
    weak = _weak_rsa()

    def constant(_: bytes) -> bytes:
        return identity + bytes(32)  # valid for every message under the identity

    def small_order(y: int, sign: int = 0) -> dict[str, object]:
        return _jwk(KEY, x=_b64((y | sign << 255).to_bytes(32, "little")))

    def by_weak(base: bytes) -> bytes:
        return weak.sign(base, padding.PKCS1v15(), hashes.SHA256())

    def numbers(n: int, e: int) -> dict[str, object]:
        return _jwk(rs256, n=_uint(n), e=_uint(e))

    return {
        "an Ed25519 key of small order": [
            ("the identity", small_order(1), constant),
            ("of order 2", small_order(P - 1), constant),
            ("of order 4", small_order(0), constant),
            ("of order 8", small_order(0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7), constant),
            ("the identity, in a second encoding", small_order(1, 1), constant),
            ("the identity, in a third", small_order(P + 1), constant),
        ],
        "an RSA key that is too small": [
            ("1024 bits", numbers(weak.public_key().public_numbers().n, 65537), by_weak),
            ("a modulus with the factor 2", numbers(2 * modulus, 65537), lambda _: b"\1" * 256),
            ("a modulus of one", numbers(1, 65537), lambda _: b"\0"),
        ],
        "an RSA key with an unusable exponent": [
            ("one: a signature equals the signed number", numbers(modulus, 1),
             lambda base: _pkcs1(base, 256).to_bytes(256)),
            ("even", numbers(modulus, 2), lambda _: b"\1" * 256),
            ("huge: each verification would take minutes", numbers(modulus, 2**2000 + 1), rs256.sign),
        ],
        "a key that is too large": [
            ("RSA of 16384 bits", numbers(modulus << 14_336 | 1, 65537), lambda _: b"\1" * 2048),
        ],
    }  # fmt: skip


def false_keys() -> Family:
    """Malformed keys."""
    es256, ps512 = private(Algorithm.ES256), private(Algorithm.PS512)
    point = es256.public_jwk()
    zeros = _b64(bytes(32))

    def anything(_: bytes) -> bytes:
        return bytes([1]) * 64

    return {
        "a point that is not on the curve": [
            ("P-256", _jwk(es256, y=point["x"]), anything),
            ("P-256, at infinity", _jwk(es256, x=zeros, y=zeros), anything),
            ("P-256, past the prime", _jwk(es256, x=_b64(b"\xff" * 32)), anything),
            ("Ed25519", _jwk(KEY, x=_b64((2).to_bytes(32, "little"))), anything),
            ("Ed25519, not canonical", _jwk(KEY, x=_b64((P + 3).to_bytes(32, "little"))), anything),
        ],
        "a value of the key in the wrong form": [
            ("padded", _jwk(KEY, x=KEY.public_jwk()["x"] + "="), KEY.sign),
            ("bits past its end", _jwk(KEY, x=KEY.public_jwk()["x"][:-1] + "p"), KEY.sign),
            ("too short", _jwk(KEY, x=_b64(bytes(31))), anything),
            ("zeros before it", _jwk(ps512, n="AA" + ps512.public_jwk()["n"]), ps512.sign),
            ("a number for a string", _jwk(KEY, x=1), anything),
        ],
        "no key id": [
            ("missing", _jwk(KEY, kid=None), KEY.sign),
            ("empty", _jwk(KEY, kid=""), KEY.sign),
            ("a newline in it", _jwk(KEY, kid="key-1\n"), KEY.sign),
            ("a number", _jwk(KEY, kid=1), KEY.sign),
        ],
        "no key": [("an empty object", {}, anything)],
    }  # fmt: skip


def misused_keys() -> Family:
    """Keys for another purpose, RFC 9421 §7.3.4."""
    es256, ps512 = private(Algorithm.ES256), private(Algorithm.PS512)
    secret = b"a secret that both have"
    p384 = ec.generate_private_key(ec.SECP384R1()).public_key().public_numbers()

    def with_mac(base: bytes) -> bytes:
        return hmac.digest(secret, base, hashlib.sha256)

    return {
        "a shared secret": [
            ("HS256", {"kty": "oct", "alg": "HS256", "kid": KID, "k": _b64(secret)}, with_mac),
            ("under another algorithm", {"kty": "oct", "alg": "EdDSA", "kid": KID, "k": _b64(secret)}, with_mac),
            ("HS256 with a public key for it", _jwk(ps512, alg="HS256"), with_mac),
        ],
        "no algorithm, or an unknown one": [
            ("missing", _jwk(KEY, alg=None), KEY.sign),
            ("none", _jwk(KEY, alg="none"), lambda _: b""),
            ("in another case", _jwk(KEY, alg="eddsa"), KEY.sign),
            ("SHA-1", _jwk(ps512, alg="RS1"), ps512.sign),
        ],
        "algorithm and kind of key disagree": [
            ("ES256 and RSA", _jwk(ps512, alg="ES256"), ps512.sign),
            ("PS512 and EC", _jwk(es256, alg="PS512"), es256.sign),
            ("EdDSA and EC", _jwk(es256, alg="EdDSA"), es256.sign),
            ("ES256 and OKP", _jwk(KEY, alg="ES256"), KEY.sign),
            ("no kind at all", _jwk(KEY, kty=None), KEY.sign),
        ],
        "algorithm and curve disagree": [
            ("ES384 and P-256", _jwk(es256, alg="ES384"), es256.sign),
            ("ES256 and P-384", _jwk(es256, crv="P-384", x=_b64(p384.x.to_bytes(48)), y=_b64(p384.y.to_bytes(48))),
             es256.sign),
            ("ES256 and secp256k1", _jwk(es256, crv="secp256k1"), es256.sign),
            ("EdDSA and X25519, for encryption", _jwk(KEY, crv="X25519"), KEY.sign),
            ("EdDSA and Ed448", _jwk(KEY, crv="Ed448"), KEY.sign),
        ],
        "a private key, which is now disclosed": [
            ("of Ed25519", _jwk(KEY, d="nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"), KEY.sign),
            ("of RSA, in part", _jwk(ps512, p="AQID"), ps512.sign),
            ("as null", {**KEY.public_jwk(), "d": None}, KEY.sign),
        ],
        "a key for other uses": [
            ("encryption", _jwk(KEY, use="enc"), KEY.sign),
            ("signing, and not verifying", _jwk(KEY, key_ops=["sign"]), KEY.sign),
            ("nothing", _jwk(KEY, key_ops=[]), KEY.sign),
        ],
    }  # fmt: skip


FAMILIES: Final[tuple[Callable[[], Family], ...]] = (weak_keys, false_keys, misused_keys)


def bad_keys() -> Iterator[BadKey]:
    """Yield every key that no token may be bound to."""
    for family in FAMILIES:
        for kind, rows in family().items():
            for name, jwk, sign in rows:
                yield BadKey(title(family), kind, name, jwk, sign)
