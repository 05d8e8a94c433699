"""Keys: JWKs in and out, and what they sign and verify.

The algorithm belongs to the key (its JWK's `alg`), never to the message, so that no message can choose another one.
Everything about a key is checked when it is loaded, also what the library underneath would take.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final, NoReturn, Self

from attrs import field, frozen
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from incoming_payments.errors import MalformedKey
from incoming_payments.httpsig.algorithms import CURVES, SCHEMES, Algorithm
from incoming_payments.httpsig.ed25519 import SMALL_ORDER_Y, P, public_key
from incoming_payments.limits import (
    JWK_CHARS_MAX,
    KEY_ID_CHARS_MAX,
    KEYS_REMEMBERED_MAX,
    RSA_BITS_MAX,
    RSA_BITS_MIN,
    RSA_EXPONENT_MAX,
)

_BASE64URL: Final = re.compile(r"[A-Za-z0-9\-_]*")
_KID: Final = re.compile(rf"[ -~]{{1,{KEY_ID_CHARS_MAX}}}")  # what `keyid`, a String, can hold

# What a JWK's `alg` goes with: `kty`, `crv`
_ALGORITHMS: Final[Mapping[str, tuple[Algorithm, str, str | None]]] = {
    "EdDSA": (Algorithm.ED25519, "OKP", "Ed25519"),
    "Ed25519": (Algorithm.ED25519, "OKP", "Ed25519"),
    "ES256": (Algorithm.ES256, "EC", "P-256"),
    "ES384": (Algorithm.ES384, "EC", "P-384"),
    "PS256": (Algorithm.PS256, "RSA", None),
    "PS384": (Algorithm.PS384, "RSA", None),
    "PS512": (Algorithm.PS512, "RSA", None),
    "RS256": (Algorithm.RS256, "RSA", None),
}


# --- Ed25519: RFC 8032 §5.1 --------------------------------------------------------------------

_D: Final = -121665 * pow(121666, -1, P) % P


@lru_cache(maxsize=KEYS_REMEMBERED_MAX)  # it costs more than a signature, and a client's key comes with each request
def _check_ed25519(encoded: bytes) -> None:
    y = int.from_bytes(encoded, "little") & (2**255 - 1)  # without the sign of x
    if y >= P:
        _refuse("x", "is not the canonical encoding of a point")
    if y in SMALL_ORDER_Y:
        _refuse("x", "is a point of small order: anybody could sign for it")
    # x² = (y² - 1) / (dy² + 1) has a root when numerator times denominator has one: Euler's criterion.
    if pow((y * y - 1) * (_D * y * y + 1), (P - 1) // 2, P) != 1:
        _refuse("x", "is not a point on the curve")


# --- public keys -------------------------------------------------------------------------------


@frozen
class PublicKey:
    """A public key that is sound, with the one algorithm it is for. Made by `load_jwk`.

    `kid` is what a signature's `keyid` has to be.
    """

    kid: str
    algorithm: Algorithm
    _key: Any = field(repr=False, hash=False)

    @cached_property
    def _verify(self) -> Callable[[Any, bytes, bytes], None]:
        return SCHEMES[self.algorithm][0]

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` is this key's signature over `data`. Never raises for any bytes."""
        try:
            self._verify(self._key, signature, data)
        except InvalidSignature:
            return False
        return True


def load_jwk(jwk: Mapping[str, object] | str | bytes) -> PublicKey:
    """The public key in a JWK, as a mapping or as its JSON. RFC 7517, RFC 7518 §6, RFC 8037.

    `alg` and `kid` are required. Raises `MalformedKey`, and nothing else, for a key that is incomplete, not canonical,
    weak, private or symmetric, or meant for something else; `details["member"]` names the member at fault.

    >>> load_jwk('{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k",'
    ...          ' "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs"}')
    PublicKey(kid='k', algorithm=<Algorithm.ED25519: 'EdDSA'>)
    """
    members = _members(jwk)
    alg = members.get("alg")
    if members.get("kty") == "oct" or (isinstance(alg, str) and alg.startswith("HS")):
        _refuse("kty", "is a shared secret: whoever can check with it can sign with it. Use a key pair")
    for member in _PRIVATE:
        if member in members:
            text = f"a private key was given where a public one belongs ({member}): replace the pair, it is disclosed"
            raise MalformedKey(text, member=member, rule="private_key_disclosed")
    _check_use(members, "verify")
    return _load_public(members)


_PRIVATE: Final = ("d", "p", "q", "dp", "dq", "qi", "oth", "k")


def _load_public(members: Mapping[str, object]) -> PublicKey:
    alg = _text(members, "alg")
    if alg not in _ALGORITHMS:
        _refuse("alg", f"is one of {', '.join(_ALGORITHMS)}")
    algorithm, kty, crv = _ALGORITHMS[alg]
    if members.get("kty") != kty:
        _refuse("kty", f"is {kty} for the algorithm {alg}")
    if crv is not None and members.get("crv") != crv:
        _refuse("crv", f"is {crv} for the algorithm {alg}")
    return PublicKey(_kid(members), algorithm, _LOADERS[kty](members))


def _load_okp(members: Mapping[str, object]) -> object:
    encoded = _octets(members, "x", 32)
    _check_ed25519(encoded)
    return public_key(encoded)


def _load_ec(members: Mapping[str, object]) -> object:
    return _ec_numbers(members).public_key()


def _load_rsa(members: Mapping[str, object]) -> object:
    return _rsa_numbers(members).public_key()


_LOADERS: Final[Mapping[str, Callable[[Mapping[str, object]], object]]] = {
    "OKP": _load_okp,
    "EC": _load_ec,
    "RSA": _load_rsa,
}


def _ec_numbers(members: Mapping[str, object]) -> ec.EllipticCurvePublicNumbers:
    curve, octets = CURVES[_text(members, "crv")]
    # RFC 7518 §6.2.1.2: the full size of a coordinate, leading zeros included
    x, y = (int.from_bytes(_octets(members, member, octets)) for member in ("x", "y"))
    numbers = ec.EllipticCurvePublicNumbers(x, y, curve)
    try:
        numbers.public_key()
    except ValueError:
        _refuse("y", "is not on the curve at x")
    return numbers


def _rsa_numbers(members: Mapping[str, object]) -> rsa.RSAPublicNumbers:
    n, e = _unsigned(members, "n"), _unsigned(members, "e")
    if not RSA_BITS_MIN <= n.bit_length() <= RSA_BITS_MAX:
        _refuse("n", f"is from {RSA_BITS_MIN} to {RSA_BITS_MAX} bits long, not {n.bit_length()}")
    if n % 2 == 0:
        _refuse("n", "is even, so not a modulus")
    if not 3 <= e <= RSA_EXPONENT_MAX or e % 2 == 0:
        _refuse("e", f"is an odd number from 3 to {RSA_EXPONENT_MAX}; 65537 (AQAB) is usual")
    return rsa.RSAPublicNumbers(e, n)


# --- private keys ------------------------------------------------------------------------------


@frozen
class PrivateKey:
    """A private key and its `kid`, to sign with. No representation of it shows the key.

    >>> PrivateKey.generate_ed25519("key-1")
    PrivateKey(kid='key-1', algorithm=<Algorithm.ED25519: 'EdDSA'>)
    """

    kid: str
    algorithm: Algorithm
    _key: Any = field(repr=False, eq=False)

    @classmethod
    def generate_ed25519(cls, kid: str) -> Self:
        """A new Ed25519 key: the one thing here that draws randomness. Raises `MalformedKey` for a bad `kid`."""
        return cls(_kid({"kid": kid}), Algorithm.ED25519, ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(
        cls, pem: bytes, *, kid: str, algorithm: Algorithm | None = None, password: bytes | None = None
    ) -> Self:
        """The key in a PEM file. `algorithm` is needed only to have an RSA key sign otherwise than with PS512.

        Raises `MalformedKey` when it cannot be read, is of no kind used here, or does not go with `algorithm`.
        """
        try:
            key = serialization.load_pem_private_key(pem, password)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise MalformedKey("the PEM holds no private key that can be read with this password") from error
        possible = _algorithms_of(key)
        if (algorithm or next(iter(possible), None)) not in possible:
            _refuse("alg", "does not go with the kind of key in the PEM")
        made = cls(_kid({"kid": kid}), algorithm or possible[0], key)
        _load_public(made.public_jwk())  # a key that verifiers would refuse is of no use
        return made

    def sign(self, data: bytes) -> bytes:
        """The signature over `data`, in the form that RFC 9421 §3.3 gives it."""
        return SCHEMES[self.algorithm][1](self._key, data)

    def public_key(self) -> PublicKey:
        """The key that others verify with."""
        public = self._key.public_key()
        if isinstance(public, ed25519.Ed25519PublicKey):
            public = public_key(public.public_bytes_raw())
        return PublicKey(self.kid, self.algorithm, public)

    def public_jwk(self) -> dict[str, str]:
        """The public half as a JWK, to publish: what `load_jwk` reads."""
        names = {"kid": self.kid, "alg": self.algorithm.value}
        public = self._key.public_key()
        if isinstance(public, ed25519.Ed25519PublicKey):
            return {"kty": "OKP", "crv": "Ed25519", **names, "x": _base64url(public.public_bytes_raw())}
        if isinstance(public, ec.EllipticCurvePublicKey):
            crv = _ALGORITHMS[self.algorithm.value][2] or ""
            octets = CURVES[crv][1]
            point = public.public_numbers()
            x, y = (_base64url(number.to_bytes(octets)) for number in (point.x, point.y))
            return {"kty": "EC", "crv": crv, **names, "x": x, "y": y}
        numbers = public.public_numbers()
        n, e = (_base64url(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
        return {"kty": "RSA", **names, "n": n, "e": e}

    def to_pem(self) -> bytes:
        """The key as unencrypted PKCS #8 PEM: keep it where nobody else can read it."""
        pem: bytes = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return pem


def load_private_jwk(jwk: Mapping[str, object] | str | bytes) -> PrivateKey:
    """The private key in a JWK, as a mapping or as its JSON.

    What `load_jwk` asks of the public half holds here too, and the private half has to be that of the public one. An
    RSA key needs all of its members. Raises `MalformedKey`, and nothing else.
    """
    members = _members(jwk)
    _check_use(members, "sign")
    public = _load_public({name: value for name, value in members.items() if name not in _PRIVATE})
    try:
        key = _PRIVATE_LOADERS[public.algorithm.value[:2]](members)
    except ValueError as error:
        raise MalformedKey("the private members do not belong to the public ones", member="d") from error
    private = PrivateKey(public.kid, public.algorithm, key)
    if private.public_key() != public:
        _refuse("d", "does not belong to the public members")
    return private


def _load_private_okp(members: Mapping[str, object]) -> object:
    return ed25519.Ed25519PrivateKey.from_private_bytes(_octets(members, "d", 32))


def _load_private_ec(members: Mapping[str, object]) -> object:
    public = _ec_numbers(members)
    d = int.from_bytes(_octets(members, "d", CURVES[_text(members, "crv")][1]))
    return ec.EllipticCurvePrivateNumbers(d, public).private_key()


def _load_private_rsa(members: Mapping[str, object]) -> object:
    d, p, q, dp, dq, qi = (_unsigned(members, member) for member in ("d", "p", "q", "dp", "dq", "qi"))
    return rsa.RSAPrivateNumbers(p, q, d, dp, dq, qi, _rsa_numbers(members)).private_key()


_PRIVATE_LOADERS: Final[Mapping[str, Callable[[Mapping[str, object]], object]]] = {
    "Ed": _load_private_okp,
    "ES": _load_private_ec,
    "PS": _load_private_rsa,
    "RS": _load_private_rsa,
}


def _algorithms_of(key: object) -> tuple[Algorithm, ...]:
    """What a private key can be used for, the usual one first."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return (Algorithm.ED25519,)
    if isinstance(key, rsa.RSAPrivateKey):
        return (Algorithm.PS512, Algorithm.PS384, Algorithm.PS256, Algorithm.RS256)
    curve = getattr(getattr(key, "curve", None), "name", None)
    return {"secp256r1": (Algorithm.ES256,), "secp384r1": (Algorithm.ES384,)}.get(curve or "", ())


# --- members of a JWK --------------------------------------------------------------------------


def _members(jwk: object) -> Mapping[str, object]:
    if isinstance(jwk, Mapping):
        return jwk
    if not isinstance(jwk, str | bytes):
        raise MalformedKey("a JWK is a JSON object, or its text")
    if len(jwk) > JWK_CHARS_MAX:
        raise MalformedKey(f"the JWK is longer than {JWK_CHARS_MAX} characters")
    try:
        members = json.loads(jwk, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise MalformedKey("the JWK is not JSON") from error
    if not isinstance(members, dict):
        raise MalformedKey("the JWK is not a JSON object")
    return members


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):  # RFC 7517 §4: names are unique
        raise MalformedKey("the JWK has a member twice")
    return members


def _no_constant(_name: str) -> NoReturn:
    raise MalformedKey("the JWK has NaN or Infinity, which is not JSON")


def _check_use(members: Mapping[str, object], operation: str) -> None:
    if members.get("use", "sig") != "sig":
        _refuse("use", "is not sig, so this key is not for signatures (RFC 7517 §4.2)")
    operations = members.get("key_ops", [operation])
    if not isinstance(operations, list) or operation not in operations:
        _refuse("key_ops", f"does not list {operation} (RFC 7517 §4.3)")


def _kid(members: Mapping[str, object]) -> str:
    kid = _text(members, "kid")
    if not _KID.fullmatch(kid):
        _refuse("kid", f"is from 1 to {KEY_ID_CHARS_MAX} printable ASCII characters")
    return kid


def _text(members: Mapping[str, object], member: str) -> str:
    value = members.get(member)
    if type(value) is not str:
        _refuse(member, "is missing, or not a string")
    return value


def _octets(members: Mapping[str, object], member: str, octets: int) -> bytes:
    value = _base64url_octets(members, member)
    if len(value) != octets:
        _refuse(member, f"is {octets} bytes long, not {len(value)}")
    return value


def _unsigned(members: Mapping[str, object], member: str) -> int:
    value = _base64url_octets(members, member)
    if not value or value[0] == 0:
        _refuse(member, "is a positive number without leading zeros (RFC 7518 §2, Base64urlUInt)")
    return int.from_bytes(value)


def _base64url_octets(members: Mapping[str, object], member: str) -> bytes:
    text = _text(members, member)
    octets = b""
    if len(text) <= JWK_CHARS_MAX and _BASE64URL.fullmatch(text) and len(text) % 4 != 1:
        octets = urlsafe_b64decode(text + "==")
    if _base64url(octets) != text:
        _refuse(member, "is not base64url: no padding, no other alphabet, no bit set past the last byte (RFC 7515 §2)")
    return octets


def _base64url(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _refuse(member: str, text: str) -> NoReturn:
    raise MalformedKey(f"the JWK's {member} {text}", member=member)
