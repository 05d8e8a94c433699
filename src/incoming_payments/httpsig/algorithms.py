"""The signature algorithms of RFC 9421 §3.3, with the keys that each algorithm needs.

Each algorithm has exactly one encoding of a signature, with a fixed length.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import frozen
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from incoming_payments.httpsig import ed25519


class Algorithm(enum.Enum):
    """A signature algorithm. The value is its JOSE name. `registered` is its name in RFC 9421 §6.2.2, or `None`."""

    ED25519 = "EdDSA"  # RFC 8037; `load_jwk` also accepts the name Ed25519 of RFC 9864
    ES256 = "ES256"  # RFC 7518
    ES384 = "ES384"
    PS256 = "PS256"
    PS384 = "PS384"
    PS512 = "PS512"
    RS256 = "RS256"

    @property
    def registered(self) -> str | None:
        """The only value that the `alg` parameter of a signature may have, or `None` if `alg` must be absent."""
        return SCHEMES[self].registered


@frozen
class Scheme:
    """The functions of an algorithm, and the `kty` and `crv` of its JWKs."""

    registered: str | None
    kty: str
    crv: str | None
    # a function of the key, the signature and the data, which raises `InvalidSignature`
    verify: Callable[[Any, bytes, bytes], None]
    sign: Callable[[Any, bytes], bytes]  # a function of the key and the data


# the curve for each `crv`, and the size of a coordinate in bytes
CURVES: Final[Mapping[str, tuple[ec.EllipticCurve, int]]] = {
    "P-256": (ec.SECP256R1(), 32),
    "P-384": (ec.SECP384R1(), 48),
}


def _ecdsa(registered: str, crv: str, hash_: hashes.HashAlgorithm) -> Scheme:
    """Return the scheme for ECDSA with signatures of the form r || s (RFC 9421 §3.3.4 and §3.3.5)."""
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

    return Scheme(registered, "EC", crv, verify, sign)


def _rsa(registered: str | None, pad: padding.AsymmetricPadding, hash_: hashes.HashAlgorithm) -> Scheme:
    """Return the scheme for RSA with the padding `pad` (RFC 9421 §3.3.1 and §3.3.2, RFC 7518 §3.5)."""
    return Scheme(
        registered,
        "RSA",
        None,
        lambda key, signature, data: key.verify(signature, data, pad, hash_),
        lambda key, data: key.sign(data, pad, hash_),
    )


def _pss(registered: str | None, hash_: hashes.HashAlgorithm) -> Scheme:
    return _rsa(registered, padding.PSS(padding.MGF1(hash_), salt_length=hash_.digest_size), hash_)


SCHEMES: Final[Mapping[Algorithm, Scheme]] = {
    Algorithm.ED25519: Scheme("ed25519", "OKP", "Ed25519", ed25519.verify, lambda key, data: key.sign(data)),
    Algorithm.ES256: _ecdsa("ecdsa-p256-sha256", "P-256", hashes.SHA256()),
    Algorithm.ES384: _ecdsa("ecdsa-p384-sha384", "P-384", hashes.SHA384()),
    Algorithm.PS256: _pss(None, hashes.SHA256()),
    Algorithm.PS384: _pss(None, hashes.SHA384()),
    Algorithm.PS512: _pss("rsa-pss-sha512", hashes.SHA512()),
    Algorithm.RS256: _rsa("rsa-v1_5-sha256", padding.PKCS1v15(), hashes.SHA256()),
}
