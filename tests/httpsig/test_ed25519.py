"""Ed25519 on each of its two libraries: chosen by what is installed, and the same answers."""

import hashlib
import importlib.util
import sys
from base64 import urlsafe_b64encode
from typing import Final

import pytest
from cryptography.exceptions import InvalidSignature
from nacl import bindings as sodium

from frozen_values import assert_frozen
from incoming_payments.httpsig import ed25519 as module
from incoming_payments.httpsig import load_jwk
from signed_requests import KEY

BACKENDS: Final = ("OpenSSL", "PyNaCl")
SCALAR: Final = 0x1234567890ABCDEF1234567890ABCDEF
POINT: Final = sodium.crypto_scalarmult_ed25519_base_noclamp(SCALAR.to_bytes(32, "little"))
IDENTITY: Final = (1).to_bytes(32, "little")
ORDER_8: Final = bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")
ORDER_2: Final = (2**255 - 20).to_bytes(32, "little")
# All points whose order divides 8, by their y, without the sign of x
SMALL_ORDER_Y: Final = (
    0,
    1,
    2**255 - 20,
    int.from_bytes(ORDER_8, "little"),
    2**255 - 19 - int.from_bytes(ORDER_8, "little"),
)


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Keys made within the test use this library."""
    name: str = request.param
    monkeypatch.setattr(module, "BACKEND", name)
    return name


def _verify(point: bytes, signature: bytes, data: bytes) -> bool:
    x = urlsafe_b64encode(point).rstrip(b"=").decode()
    return load_jwk({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k", "x": x}).verify(signature, data)


def _signature(r: bytes, r_scalar: int, point: bytes, data: bytes) -> bytes:
    """RFC 8032 §5.1.6 from its fifth step on, with any R that is wanted."""
    k = int.from_bytes(hashlib.sha512(r + point + data).digest(), "little")
    return r + ((r_scalar + k * SCALAR) % module.ORDER).to_bytes(32, "little")


def _point(scalar: int) -> bytes:
    return sodium.crypto_scalarmult_ed25519_base_noclamp(scalar.to_bytes(32, "little"))


def test_what_is_signed_verifies(backend: str) -> None:
    """By a key that was loaded and by one derived, which are equal, on the library that was asked for."""
    key = load_jwk(KEY.public_jwk())
    assert key == KEY.public_key()
    assert hash(key) == hash(KEY.public_key())
    assert key.verify(KEY.sign(b"data"), b"data")
    assert not key.verify(KEY.sign(b"data"), b"Data")
    assert ("Sodium" in type(key._key).__name__) is (backend == "PyNaCl")


@pytest.mark.parametrize("data", [b"", b"data", bytes(1000)])
def test_a_signature_made_by_hand_verifies(data: bytes) -> None:
    """So that what is refused below is refused for what is wrong with it."""
    assert _verify(POINT, _signature(_point(99), 99, POINT, data), data) is True


@pytest.mark.parametrize("y", SMALL_ORDER_Y)
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_an_r_of_small_order(y: int, sign: int) -> None:
    """OpenSSL would take the identity as R; we do not, as libsodium does not."""
    r = (y + sign).to_bytes(32, "little")
    assert _verify(POINT, _signature(r, 0, POINT, b"data"), b"data") is False


def test_keys_do_not_change(backend: str) -> None:
    """A point that was checked stays the one that was checked."""
    if backend == "PyNaCl":
        assert_frozen(module._SodiumKey(POINT))


def test_the_points_of_small_order() -> None:
    """They are these, and they are kept: what is refused does not depend on what the library underneath refuses."""
    assert frozenset(SMALL_ORDER_Y) == module.SMALL_ORDER_Y
    encoded = {(y + sign).to_bytes(32, "little") for y in SMALL_ORDER_Y for sign in (0, 1 << 255)}
    assert encoded == module._SMALL_ORDER
    assert module.P == 2**255 - 19
    assert module.ORDER == 2**252 + 27742317777372353535851937790883648493


@pytest.mark.parametrize("torsion", [ORDER_8, ORDER_2])
def test_an_r_outside_of_the_group(torsion: bytes) -> None:
    """What only a verifier that multiplies by the cofactor takes is refused: RFC 8032 §5.1.7 leaves the choice."""
    r = sodium.crypto_core_ed25519_add(_point(99), torsion)
    assert _verify(POINT, _signature(r, 99, POINT, b"data"), b"data") is False


def test_a_key_outside_of_the_group() -> None:
    """A key with a part of small order is answered alike for each of many messages: half of them fit."""
    point = sodium.crypto_core_ed25519_add(POINT, ORDER_2)
    messages = [bytes([number]) for number in range(32)]
    taken = [_verify(point, _signature(_point(99), 99, point, data), data) for data in messages]
    even = [
        int.from_bytes(hashlib.sha512(_point(99) + point + data).digest(), "little") % module.ORDER % 2 == 0
        for data in messages
    ]
    assert taken == even
    assert {True, False} == set(even)


@pytest.mark.parametrize("added", [module.ORDER, 2 * module.ORDER])
def test_a_second_form_of_s(added: int) -> None:
    """S plus a multiple of the order is the same number to the curve, and refused."""
    signature = _signature(_point(99), 99, POINT, b"data")
    s = int.from_bytes(signature[32:], "little") + added
    assert _verify(POINT, signature[:32] + s.to_bytes(32, "little"), b"data") is False


class TakesAnything:
    """A library that checks nothing, so that what is refused is refused here."""

    def verify(self, signature: bytes, data: bytes) -> None:
        """It is fine."""


def _taken(r: bytes, s: bytes) -> bool:
    try:
        module.verify(TakesAnything(), r + s, b"data")
    except InvalidSignature:
        return False
    return True


@pytest.mark.parametrize(
    ("s", "expected"),
    [
        (0, True),
        (2**252 - 1, True),
        (2**252, True),
        (module.ORDER - 1, True),
        (module.ORDER, False),
        (module.ORDER + 1, False),
        (2**253 - 1, False),
        (2**253, False),
        (2**256 - 1, False),
    ],
)
def test_s_is_below_the_order_whatever_the_library_says(s: int, expected: bool) -> None:
    """RFC 8032 §5.1.7, to the number."""
    assert _taken(_point(99), s.to_bytes(32, "little")) is expected


@pytest.mark.parametrize("y", SMALL_ORDER_Y)
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_an_r_of_small_order_whatever_the_library_says(y: int, sign: int) -> None:
    """It is refused here, so that both libraries give one answer."""
    assert _taken((y + sign).to_bytes(32, "little"), bytes(32)) is False


@pytest.mark.parametrize("octets", [31, 33, 64])
def test_the_length_whatever_the_library_says(octets: int) -> None:
    """Zeros after S would not change the number."""
    assert _taken(_point(99), bytes(octets)) is False


@pytest.mark.parametrize("length", [0, 1, 32, 63, 65, 128])
def test_signatures_of_another_length(length: int) -> None:
    """64 bytes, and not one less or more, whatever is signed."""
    signature = (_signature(_point(99), 99, POINT, b"\0") + bytes(64))[:length]
    assert _verify(POINT, signature, b"\0") is False


@pytest.mark.parametrize(("missing", "expected"), [(None, "PyNaCl"), ("nacl.bindings", "OpenSSL")])
def test_the_choice(missing: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyNaCl when it can be imported, and OpenSSL when it cannot; the module says which."""
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    assert expected == another.BACKEND
