"""Algorithms: the encoding of a signature by each of them, and malformed signatures."""

from itertools import count

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from incoming_payments.httpsig import Algorithm, load_jwk
from kits.signing_keys import private, rsa_key

P_256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@pytest.mark.parametrize("algorithm", Algorithm)
def test_public_jwk_verifies_only_what_the_key_signed(algorithm: Algorithm) -> None:
    """The public JWK of a key verifies its signature, but not a changed signature or other data."""
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
def test_signature_of_another_length_is_refused(algorithm: Algorithm) -> None:
    """A signature has one length, RFC 9421 §3.3: it may not be shorter, longer or empty."""
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
def test_rsa_key_verifies_only_its_own_algorithm(algorithm: Algorithm) -> None:
    """A signature by the same RSA key with another algorithm is refused, because the JWK's `alg` decides."""
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
def test_rsa_agrees_with_rfc_7518(algorithm: Algorithm) -> None:
    """A signature made directly with `cryptography` verifies, and the reverse, with the parameters of §3.3 and §3.5.

    For RSA-PSS, MGF1 uses the same hash, and the salt is as long as the digest.
    """
    pad, hash_ = RSA[algorithm]
    signature = rsa_key().sign(b"data", pad, hash_)
    assert private(algorithm).public_key().verify(signature, b"data")
    rsa_key().public_key().verify(private(algorithm).sign(b"data"), b"data", pad, hash_)


@pytest.mark.parametrize(
    ("algorithm", "hash_", "octets"), [(Algorithm.ES256, hashes.SHA256(), 32), (Algorithm.ES384, hashes.SHA384(), 48)]
)
def test_ecdsa_agrees_with_rfc_9421(algorithm: Algorithm, hash_: hashes.HashAlgorithm, octets: int) -> None:
    """A signature made directly with `cryptography` verifies as r || s in full length: §3.3.4 and §3.3.5."""
    key = serialization.load_pem_private_key(private(algorithm).to_pem(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for data in (bytes([number]) for number in range(20)):
        r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hash_)))
        assert private(algorithm).public_key().verify(r.to_bytes(octets) + s.to_bytes(octets), data)
        assert len(private(algorithm).sign(data)) == 2 * octets


@pytest.mark.parametrize(("algorithm", "octets"), [(Algorithm.ES256, 32), (Algorithm.ES384, 48)])
def test_ecdsa_number_of_another_length_is_refused(algorithm: Algorithm, octets: int) -> None:
    """A valid signature is refused when its s has an additional leading zero, or lacks its own leading zero."""
    key = private(algorithm)
    signatures = (key.sign(b"data") for _ in count())
    signature = next(signature for signature in signatures if signature[octets] == 0)
    r, s = signature[:octets], signature[octets:]
    assert key.public_key().verify(signature, b"data")
    assert not key.public_key().verify(r + b"\0" + s, b"data")
    assert not key.public_key().verify(r + s[1:], b"data")


def test_registered_names() -> None:
    """Each algorithm has its name from RFC 9421 §6.2.2. PS256 and PS384 have none."""
    assert {algorithm.value: algorithm.registered for algorithm in Algorithm} == {
        "EdDSA": "ed25519",
        "ES256": "ecdsa-p256-sha256",
        "ES384": "ecdsa-p384-sha384",
        "PS256": None,
        "PS384": None,
        "PS512": "rsa-pss-sha512",
        "RS256": "rsa-v1_5-sha256",
    }


@pytest.mark.parametrize(
    ("r", "s"), [(0, 1), (1, 0), (0, 0), (P_256_ORDER, 1), (1, P_256_ORDER), (2**256 - 1, 2**256 - 1)]
)
def test_ecdsa_number_out_of_range_is_refused(r: int, s: int) -> None:
    """A signature with r or s outside 1 to n - 1 is refused."""
    assert not private(Algorithm.ES256).public_key().verify(r.to_bytes(32) + s.to_bytes(32), b"data")
