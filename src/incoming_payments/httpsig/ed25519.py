"""Ed25519 public keys, RFC 8032, on the faster of two libraries: the same answers from both.

With PyNaCl (libsodium; the extra `fast`) a verification takes about two thirds of the time that it takes with
cryptography (OpenSSL), which is always there. PyNaCl is used when it can be imported, and `BACKEND` says which it is.

    python -c "from incoming_payments.httpsig import ed25519; print(ed25519.BACKEND)"
"""

from typing import Final, Protocol

from attrs import frozen
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

try:
    from nacl.bindings import crypto_sign_open
    from nacl.exceptions import BadSignatureError
except ImportError:
    BACKEND = "OpenSSL"
else:
    BACKEND = "PyNaCl"

ORDER: Final = 2**252 + 27742317777372353535851937790883648493
P: Final = 2**255 - 19
_Y8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
# The y of the eight points of small order: 1, -1, 0 (orders 1, 2, 4) and two for order 8. Under such a key one
# signature fits many messages. RFC 8032 does not forbid them, and OpenSSL takes them.
SMALL_ORDER_Y: Final = frozenset({0, 1, P - 1, _Y8, P - _Y8})
_SMALL_ORDER: Final = frozenset((y + sign).to_bytes(32, "little") for y in SMALL_ORDER_Y for sign in (0, 1 << 255))


class Verifier(Protocol):
    """A public key of either library."""

    def verify(self, signature: bytes, data: bytes) -> None:
        """Raise `InvalidSignature` unless `signature`, of 64 bytes, is by this key over `data`."""
        ...


@frozen
class _SodiumKey:
    encoded: bytes

    def verify(self, signature: bytes, data: bytes) -> None:
        try:
            crypto_sign_open(signature + data, self.encoded)
        except BadSignatureError:
            raise InvalidSignature from None


def public_key(encoded: bytes) -> Verifier:
    """The key for the 32 bytes of a point, which has been checked: on the curve, canonical, not of small order."""
    return _SodiumKey(encoded) if BACKEND == "PyNaCl" else Ed25519PublicKey.from_public_bytes(encoded)


def verify(key: Verifier, signature: bytes, data: bytes) -> None:
    """Raise `InvalidSignature` unless `signature` is by `key` over `data`, in its one form."""
    # RFC 8032 §5.1.7: S >= L is refused, or each signature would have a second form. And so is an R of small order,
    # which no signer comes by: libsodium refuses it, OpenSSL does not.
    if len(signature) != 64 or signature[:32] in _SMALL_ORDER:
        raise InvalidSignature
    if int.from_bytes(signature[32:], "little") >= ORDER:
        raise InvalidSignature
    key.verify(signature, data)
