"""Ed25519 public keys (RFC 8032). The faster of two libraries verifies signatures, and both give the same result.

This module uses PyNaCl (libsodium, the extra `fast`) if it can be imported. If not, it uses cryptography (OpenSSL),
which is always installed. A verification by PyNaCl takes about a third less time. `BACKEND` names the library.

    python -c "from incoming_payments.httpsig import ed25519; print(ed25519.BACKEND)"
"""

from typing import Any, Final

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
# the highest byte of `ORDER`; a number with a smaller highest byte is less than `ORDER`
_ORDER_TOP: Final = ORDER >> 248
P: Final = 2**255 - 19
D: Final = -121665 * pow(121666, -1, P) % P
_Y8: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
# The y coordinates of the eight points of small order: 1, -1 and 0 for orders 1, 2 and 4, and two for order 8. If a key
# is such a point, one signature is valid for many messages. RFC 8032 does not forbid these points, and OpenSSL accepts
# them.
SMALL_ORDER_Y: Final = frozenset({0, 1, P - 1, _Y8, P - _Y8})
_SMALL_ORDER: Final = frozenset((y + sign).to_bytes(32, "little") for y in SMALL_ORDER_Y for sign in (0, 1 << 255))


@frozen
class _SodiumKey:
    encoded: bytes

    def verify(self, signature: bytes, data: bytes) -> None:
        try:
            crypto_sign_open(signature + data, self.encoded)
        except BadSignatureError:
            raise InvalidSignature from None


def public_key(encoded: bytes) -> Ed25519PublicKey | _SodiumKey:
    """Return the key for the 32 bytes of a point that is on the curve, canonical and not of small order."""
    return _SodiumKey(encoded) if BACKEND == "PyNaCl" else Ed25519PublicKey.from_public_bytes(encoded)


def verify(key: Any, signature: bytes, data: bytes) -> None:
    """Raise `InvalidSignature` unless `signature` is the signature of `data` by `key`, in canonical encoding."""
    # Refuse an R of small order, which an honest signer never produces. libsodium refuses such an R, and OpenSSL does
    # not. Also refuse S >= L (RFC 8032 §5.1.7), because each signature would otherwise have a second encoding.
    if len(signature) != 64 or signature[:32] in _SMALL_ORDER:
        raise InvalidSignature
    if signature[63] >= _ORDER_TOP and int.from_bytes(signature[32:], "little") >= ORDER:
        raise InvalidSignature
    key.verify(signature, data)
