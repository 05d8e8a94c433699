"""Ed25519 with each of its two libraries: which one is used, and that both give the same results."""

import hashlib
import importlib.util
import sys
from base64 import urlsafe_b64encode
from typing import Final

import pytest
from cryptography.exceptions import InvalidSignature
from nacl import bindings as sodium

from incoming_payments.httpsig import ed25519 as module
from incoming_payments.httpsig import load_jwk
from kits.signed_requests import KEY

BACKENDS: Final = ("OpenSSL", "PyNaCl")
SCALAR: Final = 0x1234567890ABCDEF1234567890ABCDEF
POINT: Final = sodium.crypto_scalarmult_ed25519_base_noclamp(SCALAR.to_bytes(32, "little"))
IDENTITY: Final = (1).to_bytes(32, "little")
ORDER_8: Final = bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")
ORDER_2: Final = (2**255 - 20).to_bytes(32, "little")
# The y coordinates of all points whose order divides 8, without the sign of x
SMALL_ORDER_Y: Final = (
    0,
    1,
    2**255 - 20,
    int.from_bytes(ORDER_8, "little"),
    2**255 - 19 - int.from_bytes(ORDER_8, "little"),
)


@pytest.fixture(params=BACKENDS, autouse=True)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test with each library: keys that it loads use this one."""
    name: str = request.param
    monkeypatch.setattr(module, "BACKEND", name)
    return name


def _verify(point: bytes, signature: bytes, data: bytes) -> bool:
    x = urlsafe_b64encode(point).rstrip(b"=").decode()
    return load_jwk({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k", "x": x}).verify(signature, data)


def _signature(r: bytes, r_scalar: int, point: bytes, data: bytes) -> bytes:
    """Sign as in RFC 8032 §5.1.6 from step 5 on, with any R."""
    k = int.from_bytes(hashlib.sha512(r + point + data).digest(), "little")
    return r + ((r_scalar + k * SCALAR) % module.ORDER).to_bytes(32, "little")


def _point(scalar: int) -> bytes:
    return sodium.crypto_scalarmult_ed25519_base_noclamp(scalar.to_bytes(32, "little"))


def test_signature_verifies_with_each_library(backend: str) -> None:
    """A signature verifies with the selected library, and a loaded key equals a derived one."""
    key = load_jwk(KEY.public_jwk())
    assert key == KEY.public_key()
    assert hash(key) == hash(KEY.public_key())
    assert key.verify(KEY.sign(b"data"), b"data")
    assert not key.verify(KEY.sign(b"data"), b"Data")
    assert ("Sodium" in type(key._key).__name__) is (backend == "PyNaCl")


@pytest.mark.parametrize("data", [b"", b"data", bytes(1000)])
def test_computed_signature_verifies(data: bytes) -> None:
    """A signature by `_signature` verifies, so the tests below fail only for the part that they change."""
    assert _verify(POINT, _signature(_point(99), 99, POINT, data), data) is True


@pytest.mark.parametrize("torsion", [ORDER_8, ORDER_2])
def test_r_outside_the_prime_order_group_is_refused(torsion: bytes) -> None:
    """A signature that holds only in the cofactored equation is refused: RFC 8032 §5.1.7 permits both equations."""
    r = sodium.crypto_core_ed25519_add(_point(99), torsion)
    assert _verify(POINT, _signature(r, 99, POINT, b"data"), b"data") is False


def test_key_outside_the_prime_order_group_gives_one_result() -> None:
    """With a key that has a component of order 2, both libraries accept the same half of the messages."""
    point = sodium.crypto_core_ed25519_add(POINT, ORDER_2)
    messages = [bytes([number]) for number in range(32)]
    accepted = [_verify(point, _signature(_point(99), 99, point, data), data) for data in messages]
    even = [
        int.from_bytes(hashlib.sha512(_point(99) + point + data).digest(), "little") % module.ORDER % 2 == 0
        for data in messages
    ]
    assert accepted == even
    assert {True, False} == set(even)


class AcceptsAnything:
    """A key whose library accepts every signature, so that each refusal comes from the module under test."""

    def verify(self, signature: bytes, data: bytes) -> None:
        """Accept the signature."""


def _accepted(r: bytes, s: bytes) -> bool:
    try:
        module.verify(AcceptsAnything(), r + s, b"data")
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
def test_s_is_checked_without_the_library(s: int, expected: bool) -> None:
    """RFC 8032 §5.1.7: the module accepts S exactly when it is below the order."""
    assert _accepted(_point(99), s.to_bytes(32, "little")) is expected


@pytest.mark.parametrize("y", SMALL_ORDER_Y)
@pytest.mark.parametrize("sign", [0, 1 << 255])
def test_r_of_small_order_is_refused_without_the_library(y: int, sign: int) -> None:
    """The module refuses an R of small order itself, so that both libraries give the same result."""
    assert _accepted((y + sign).to_bytes(32, "little"), bytes(32)) is False


@pytest.mark.parametrize("octets", [31, 33, 64])
def test_length_is_checked_without_the_library(octets: int) -> None:
    """The module refuses an S of another length itself, because zeros after S do not change its value."""
    assert _accepted(_point(99), bytes(octets)) is False


@pytest.mark.parametrize(("missing", "expected"), [(None, "PyNaCl"), ("nacl.bindings", "OpenSSL")])
def test_choice_of_the_library(missing: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`BACKEND` is PyNaCl if PyNaCl can be imported, and OpenSSL otherwise."""
    if missing is not None:
        monkeypatch.setitem(sys.modules, missing, None)
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    another = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(another)
    assert expected == another.BACKEND
