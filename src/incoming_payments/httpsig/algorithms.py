"""The signature algorithms of RFC 9421 §3.3: how each one signs and verifies.

Each algorithm has exactly one encoding of a signature, with a fixed length.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from incoming_payments.httpsig import ed25519


class Algorithm(enum.Enum):
    """A signature algorithm. The value is its JOSE name, and `registered` its name in RFC 9421 §6.2.2, if any.

    >>> Algorithm.PS512.registered
    'rsa-pss-sha512'
    """

    ED25519 = "EdDSA"  # RFC 8037; `load_jwk` also accepts Ed25519, its name in RFC 9864
    ES256 = "ES256"  # RFC 7518
    ES384 = "ES384"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    RS256 = "RS256"

    @property
    def registered(self) -> str | None:
        """The only value that the `alg` parameter of a signature may have; None if `alg` must be absent."""
        return _REGISTERED.get(self)


_REGISTERED: Final = {
    Algorithm.ED25519: "ed25519",
    Algorithm.ES256: "ecdsa-p256-sha256",
    Algorithm.ES384: "ecdsa-p384-sha384",
    Algorithm.PS512: "rsa-pss-sha512",
    Algorithm.RS256: "rsa-v1_5-sha256",
}

# How to verify and how to sign. Verifying raises `InvalidSignature` when the signature is wrong.
Scheme = tuple[Callable[[Any, bytes, bytes], None], Callable[[Any, bytes], bytes]]


# --- ECDSA: RFC 9421 §3.3.4 and §3.3.5; a signature is r || s ----------------------------------

CURVES: Final[Mapping[str, tuple[ec.EllipticCurve, int]]] = {
    "P-256": (ec.SECP256R1(), 32),
    "P-384": (ec.SECP384R1(), 48),
}


def _ecdsa(crv: str, hash_: hashes.HashAlgorithm) -> Scheme:
    octets = CURVES[crv][1]
    ecdsa = ec.ECDSA(hash_)

    def verify(key: Any, signature: bytes, data: bytes) -> None:
        if len(signature) != 2 * octets:
            raise InvalidSignature
        r, s = int.from_bytes(signature[:octets]), int.from_bytes(signature[octets:])
        key.verify(encode_dss_signature(r, s), data, ecdsa)

    def sign(key: Any, data: bytes) -> bytes:
        r, s = decode_dss_signature(key.sign(data, ecdsa))
        return r.to_bytes(octets) + s.to_bytes(octets)

    return verify, sign


# --- RSA: RFC 9421 §3.3.1 and §3.3.2, RFC 7518 §3.5 ---------------------------------------------


def _rsa(pad: padding.AsymmetricPadding, hash_: hashes.HashAlgorithm) -> Scheme:
    def verify(key: Any, signature: bytes, data: bytes) -> None:
        key.verify(signature, data, pad, hash_)

    def sign(key: Any, data: bytes) -> bytes:
        signature: bytes = key.sign(data, pad, hash_)
        return signature

    return verify, sign


def _pss(hash_: hashes.HashAlgorithm) -> Scheme:
    return _rsa(padding.PSS(padding.MGF1(hash_), salt_length=hash_.digest_size), hash_)


SCHEMES: Final[Mapping[Algorithm, Scheme]] = {
    Algorithm.ED25519: (ed25519.verify, lambda key, data: key.sign(data)),
    Algorithm.ES256: _ecdsa("P-256", hashes.SHA256()),
    Algorithm.ES384: _ecdsa("P-384", hashes.SHA384()),
    Algorithm.PS256: _pss(hashes.SHA256()),
    Algorithm.PS384: _pss(hashes.SHA384()),
    Algorithm.PS512: _pss(hashes.SHA512()),
    Algorithm.RS256: _rsa(padding.PKCS1v15(), hashes.SHA256()),
}
