"""A private key for each algorithm, generated once, and a key that counts its uses."""

from collections.abc import Callable
from functools import cache
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519

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


@cache
def useless_keys() -> dict[str, bytes]:
    """Return files that are no usable private key, by name."""
    key = ed25519.Ed25519PrivateKey.generate()
    pkcs8, encoding = serialization.PrivateFormat.PKCS8, serialization.Encoding.PEM
    password = serialization.BestAvailableEncryption(b"secret")
    public = key.public_key().public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
    traditional = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        encoding, serialization.PrivateFormat.TraditionalOpenSSL, password
    )
    return {
        "encrypted.pem": key.private_bytes(encoding, pkcs8, password),
        "traditional.pem": traditional,
        "public.pem": public,
        "damaged.pem": pem(key).replace(b"M", b"!", 1),
        "x25519.pem": pem(x25519.X25519PrivateKey.generate()),
        "k1.pem": pem(ec.generate_private_key(ec.SECP256K1())),
        "weak.pem": pem(rsa.generate_private_key(public_exponent=65537, key_size=1024)),  # noqa: S505 - that is the point
    }


class CountedKey(PublicKey):
    """A key that counts how often it is used."""

    uses = 0

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Count the call, and verify the signature."""
        type(self).uses += 1
        return super().verify(signature, data)
