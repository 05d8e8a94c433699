"""Algorithms: what a signature by each looks like, and what is none."""

from itertools import count

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from incoming_payments.httpsig import Algorithm, load_jwk
from incoming_payments.httpsig.ed25519 import ORDER
from signed_requests import KEY
from signing_keys import private, rsa_key

P_256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@pytest.mark.parametrize("algorithm", Algorithm)
def test_sign_and_verify(algorithm: Algorithm) -> None:
    """What a key signs, its public JWK verifies, and nothing else."""
    key = private(algorithm)
    public = load_jwk(key.public_jwk())
    signature = key.sign(b"data")
    assert public.verify(signature, b"data")
    assert not public.verify(signature, b"Data")
    assert not public.verify(bytes([signature[0] ^ 1]) + signature[1:], b"data")
    assert public == key.public_key()
    assert (public.kid, public.algorithm) == ("key-1", algorithm)
    assert {public: 1}[key.public_key()] == 1


@pytest.mark.parametrize("algorithm", Algorithm)
def test_signatures_of_another_length(algorithm: Algorithm) -> None:
    """A signature has one length, RFC 9421 §3.3: not one byte less or more, and not none."""
    key = private(algorithm)
    public, signature = key.public_key(), key.sign(b"data")
    for other in (
        b"",
        signature[:-1],
        signature + b"\0",
        b"\0" + signature,
        signature * 2,
        signature[: len(signature) // 2],
    ):
        assert not public.verify(other, b"data")


@pytest.mark.parametrize("algorithm", Algorithm)
def test_one_algorithm_a_key(algorithm: Algorithm) -> None:
    """A signature by the same RSA key with another algorithm does not verify: the JWK's `alg` decides."""
    public = private(algorithm).public_key()
    for other in (Algorithm.PS256, Algorithm.PS384, Algorithm.PS512, Algorithm.RS256):
        assert public.verify(private(other).sign(b"data"), b"data") is (other is algorithm)


RSA = {
    Algorithm.PS256: (padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256()),
    Algorithm.PS384: (padding.PSS(padding.MGF1(hashes.SHA384()), 48), hashes.SHA384()),
    Algorithm.PS512: (padding.PSS(padding.MGF1(hashes.SHA512()), 64), hashes.SHA512()),
    Algorithm.RS256: (padding.PKCS1v15(), hashes.SHA256()),
}


@pytest.mark.parametrize("algorithm", RSA)
def test_rsa_is_what_rfc_7518_says(algorithm: Algorithm) -> None:
    """§3.3 and §3.5: the hash, and for PSS the same in MGF1, with a salt as long as its digest. Made without ours."""
    pad, hash_ = RSA[algorithm]
    signature = rsa_key().sign(b"data", pad, hash_)
    assert private(algorithm).public_key().verify(signature, b"data")
    rsa_key().public_key().verify(private(algorithm).sign(b"data"), b"data", pad, hash_)


@pytest.mark.parametrize(
    ("algorithm", "hash_", "octets"), [(Algorithm.ES256, hashes.SHA256(), 32), (Algorithm.ES384, hashes.SHA384(), 48)]
)
def test_ecdsa_is_what_rfc_9421_says(algorithm: Algorithm, hash_: hashes.HashAlgorithm, octets: int) -> None:
    """§3.3.4 and §3.3.5: r and s in full length, one after the other. Made without ours, with leading zeros too."""
    key = serialization.load_pem_private_key(private(algorithm).to_pem(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for data in (bytes([number]) for number in range(20)):
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hash_)))
        assert private(algorithm).public_key().verify(r.to_bytes(octets) + s.to_bytes(octets), data)
        assert len(private(algorithm).sign(data)) == 2 * octets


@pytest.mark.parametrize(("algorithm", "octets"), [(Algorithm.ES256, 32), (Algorithm.ES384, 48)])
def test_ecdsa_numbers_have_one_length(algorithm: Algorithm, octets: int) -> None:
    """The same s with a zero before it, or without the zero it begins with, is another form of a good signature."""
    key = private(algorithm)
    signatures = (key.sign(b"data") for _ in count())
    signature = next(signature for signature in signatures if signature[octets] == 0)
    r, s = signature[:octets], signature[octets:]
    assert key.public_key().verify(signature, b"data")
    assert not key.public_key().verify(r + b"\0" + s, b"data")
    assert not key.public_key().verify(r + s[1:], b"data")


def test_registered_names() -> None:
    """RFC 9421 §6.2.2; PS256 and PS384 have none."""
    assert {algorithm.value: algorithm.registered for algorithm in Algorithm} == {
        "EdDSA": "ed25519",
        "ES256": "ecdsa-p256-sha256",
        "ES384": "ecdsa-p384-sha384",
        "PS256": None,
        "PS384": None,
        "PS512": "rsa-pss-sha512",
        "RS256": "rsa-v1_5-sha256",
    }


def test_s_below_the_order() -> None:
    """RFC 8032 §5.1.7: S + L would verify by the equation and is refused, so that no signature has a second form."""
    signature = KEY.sign(b"data")
    malleated = signature[:32] + (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")
    assert not KEY.public_key().verify(malleated, b"data")


@pytest.mark.parametrize(
    ("r", "s"), [(0, 1), (1, 0), (0, 0), (P_256_ORDER, 1), (1, P_256_ORDER), (2**256 - 1, 2**256 - 1)]
)
def test_ecdsa_outside_of_the_order(r: int, s: int) -> None:
    """r and s out of range are no signature."""
    assert not private(Algorithm.ES256).public_key().verify(r.to_bytes(32) + s.to_bytes(32), b"data")
