"""A private key for each algorithm, generated once, and a key that counts its uses."""

from collections.abc import Callable
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from incoming_payments.httpsig import Algorithm, PrivateKey, PublicKey


@cache
def rsa_key() -> rsa.RSAPrivateKey:
    """Return one RSA key for all tests, because generating it is slow."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: Any) -> bytes:
    """Return `key` as PEM."""
    pkcs8 = serialization.PrivateFormat.PKCS8
    encoded: bytes = key.private_bytes(serialization.Encoding.PEM, pkcs8, serialization.NoEncryption())
    return encoded


@cache
def private(algorithm: Algorithm) -> PrivateKey:
    """Return the private key for `algorithm`."""
    kinds: dict[str, Callable[[], Any]] = {
        "Ed": ed25519.Ed25519PrivateKey.generate,
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
    }
    kind = kinds.get(algorithm.value) or kinds.get(algorithm.value[:2]) or rsa_key
    return PrivateKey.from_pem(pem(kind()), kid="key-1", algorithm=algorithm)


class CountedKey(PublicKey):
    """A key that counts how often it is used."""

    uses = 0

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Count the call, and verify the signature."""
        type(self).uses += 1
        return super().verify(signature, data)
