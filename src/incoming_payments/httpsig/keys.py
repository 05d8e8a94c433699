"""Read and write keys as JWK or PEM, and sign and verify with them.

The `alg` of the JWK decides the algorithm, so a message cannot choose another algorithm. The functions that load a key
check it completely, because the libraries that verify signatures accept some weak keys.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NoReturn, Self

from attrs import field, frozen
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from incoming_payments import limits
from incoming_payments.errors import MalformedKey
from incoming_payments.httpsig.algorithms import CURVES, SCHEMES, Algorithm, Scheme
from incoming_payments.httpsig.ed25519 import SMALL_ORDER_Y, D, P, public_key
from incoming_payments.wire.strict import read_object

_BASE64URL: Final = re.compile(r"[A-Za-z0-9\-_]*")
# a String, which is printable ASCII (RFC 9651 §3.3.3)
_KID: Final = re.compile(rf"[ -~]{{1,{limits.KEY_ID_CHARS_MAX}}}")

_ALGORITHMS: Final = {algorithm.value: algorithm for algorithm in Algorithm} | {"Ed25519": Algorithm.ED25519}


@frozen
class PublicKey:
    """A checked public key, with the only algorithm that may use the key.

    The `keyid` of a signature must equal `kid`.
    """

    kid: str
    algorithm: Algorithm
    _key: Any = field(repr=False, hash=False)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.algorithm, Algorithm):
            raise MalformedKey("algorithm must be an Algorithm: use load_jwk to load the key", member="alg")

    def verify(self, signature: bytes, data: bytes) -> bool:
        """Return whether `signature` is a valid signature of `data` by this key. The arguments may be any bytes."""
        try:
            SCHEMES[self.algorithm].verify(self._key, signature, data)
        except InvalidSignature:
            return False
        return True


def load_jwk(jwk: Mapping[str, object] | str | bytes) -> PublicKey:
    """Return the public key in a JWK (RFC 7517, RFC 7518 §6, RFC 8037). `jwk` is a mapping or JSON text.

    Raises `MalformedKey`, and no other exception, when the key is incomplete, not canonical, weak, private, symmetric
    or for another use. `alg` and `kid` are required. `details["member"]` is the name of the wrong member.

    >>> load_jwk('{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "kid": "k",'
    ...          ' "x": "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs"}')
    PublicKey(kid='k', algorithm=<Algorithm.ED25519: 'EdDSA'>)
    """
    members = _members(jwk)
    alg = members.get("alg")
    if members.get("kty") == "oct" or (isinstance(alg, str) and alg.startswith("HS")):
        _refuse("kty", "or alg is for a shared secret, with which each verifier could sign: use a key pair")
    if private := [member for member in _PRIVATE if member in members]:
        text = (
            f"the JWK has the private member {private[0]}, but must hold only a public key: the private key "
            "is no longer secret, so generate a new key pair"
        )
        raise MalformedKey(text, member=private[0], rule="private_key_disclosed")
    _check_use(members, "verify")
    return _load_public(members)


_PRIVATE: Final = ("d", "p", "q", "dp", "dq", "qi", "oth", "k")


def _load_public(members: Mapping[str, object]) -> PublicKey:
    alg = _text(members, "alg")
    if alg not in _ALGORITHMS:
        _refuse("alg", f"must be one of {', '.join(_ALGORITHMS)}")
    algorithm = _ALGORITHMS[alg]
    scheme = SCHEMES[algorithm]
    if members.get("kty") != scheme.kty:
        _refuse("kty", f"must be {scheme.kty} for the algorithm {alg}")
    if scheme.crv is not None and members.get("crv") != scheme.crv:
        _refuse("crv", f"must be {scheme.crv} for the algorithm {alg}")
    return PublicKey(_kid(members), algorithm, _public_key(members, scheme))


def _public_key(members: Mapping[str, object], scheme: Scheme) -> object:
    if scheme.kty == "OKP":
        encoded = _octets(members, "x", 32)
        _check_ed25519(encoded)
        return public_key(encoded)
    if scheme.crv is not None:
        return _ec_numbers(members, scheme.crv).public_key()
    return _rsa_numbers(members).public_key()


# cached, because a check takes longer than a verification, and each request loads its key again
@lru_cache(maxsize=limits.KEYS_REMEMBERED_MAX)
def _check_ed25519(encoded: bytes) -> None:
    y = int.from_bytes(encoded, "little") & (2**255 - 1)  # the highest bit is the sign of x
    if y >= P:
        _refuse("x", "is not a canonical encoding of a point (RFC 8032 §5.1.3): export the key again")
    if y in SMALL_ORDER_Y:
        _refuse("x", "is a point of small order, for which signatures can be forged: generate another key")
    # x² = (y² - 1) / (dy² + 1) has a root exactly when numerator times denominator has a root. This is Euler's
    # criterion.
    if pow((y * y - 1) * (D * y * y + 1), (P - 1) // 2, P) != 1:
        _refuse("x", "is not a point on the curve Ed25519 (RFC 8032 §5.1.3): export the key again")


def _ec_numbers(members: Mapping[str, object], crv: str) -> ec.EllipticCurvePublicNumbers:
    curve, octets = CURVES[crv]
    # A coordinate has its full size, with leading zeros (RFC 7518 §6.2.1.2).
    x, y = (int.from_bytes(_octets(members, member, octets)) for member in ("x", "y"))
    numbers = ec.EllipticCurvePublicNumbers(x, y, curve)
    try:
        numbers.public_key()
    except ValueError:
        _refuse("y", "and x are not a point on the curve (RFC 7518 §6.2.1): export the key again")
    return numbers


def _rsa_numbers(members: Mapping[str, object]) -> rsa.RSAPublicNumbers:
    n, e = _unsigned(members, "n"), _unsigned(members, "e")
    if not limits.RSA_BITS_MIN <= n.bit_length() <= limits.RSA_BITS_MAX:
        _refuse("n", f"must have {limits.RSA_BITS_MIN} to {limits.RSA_BITS_MAX} bits, not {n.bit_length()}")
    if n % 2 == 0:
        _refuse("n", "is even, but the modulus of an RSA key is odd: export the key again")
    if not 3 <= e <= limits.RSA_EXPONENT_MAX or e % 2 == 0:
        _refuse("e", f"must be an odd number from 3 to {limits.RSA_EXPONENT_MAX}, usually 65537 (AQAB)")
    return rsa.RSAPublicNumbers(e, n)


@frozen
class PrivateKey:
    """A private key for signing, and its `kid`. The `repr` does not show the key."""

    kid: str
    algorithm: Algorithm
    _key: Any = field(repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        if self.algorithm not in _algorithms_of(self._key):
            text = (
                "the private key is not of a supported kind (Ed25519, EC P-256, EC P-384 or RSA), "
                "or does not fit the algorithm: use another key or algorithm"
            )
            raise MalformedKey(text, member="alg")

    @classmethod
    def generate_ed25519(cls, kid: str) -> Self:
        """Generate an Ed25519 key from the system's randomness. Raises `MalformedKey` for an invalid `kid`."""
        return cls(_kid({"kid": kid}), Algorithm.ED25519, ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(
        cls, pem: bytes, *, kid: str, algorithm: Algorithm | None = None, password: bytes | None = None
    ) -> Self:
        """Return the key in a PEM file. For an RSA key, the default of `algorithm` is PS512.

        Raises `MalformedKey` when the file cannot be read, or the key is not supported or does not fit `algorithm`.
        """
        try:
            key = serialization.load_pem_private_key(pem, password)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            text = "the PEM cannot be read as a private key: check the file, and the password if the key is encrypted"
            raise MalformedKey(text) from error
        private = cls(_kid({"kid": kid}), algorithm or next(iter(_algorithms_of(key)), Algorithm.ED25519), key)
        private.public_key()  # refuse a key that verifiers would refuse
        return private

    def sign(self, data: bytes) -> bytes:
        """Return the signature over `data`, encoded as in RFC 9421 §3.3."""
        return SCHEMES[self.algorithm].sign(self._key, data)

    def public_key(self) -> PublicKey:
        """Return the public key, which verifies signatures. Raises `MalformedKey` for a weak key."""
        return _load_public(self.public_jwk())

    def public_jwk(self) -> dict[str, str]:
        """Return the public key as a JWK to publish, which `load_jwk` can read."""
        names = {"kid": self.kid, "alg": self.algorithm.value}
        public = self._key.public_key()
        if isinstance(public, ed25519.Ed25519PublicKey):
            return {"kty": "OKP", "crv": "Ed25519", **names, "x": _base64url(public.public_bytes_raw())}
        if isinstance(public, ec.EllipticCurvePublicKey):
            crv = SCHEMES[self.algorithm].crv or ""
            point = public.public_numbers()
            x, y = (_base64url(number.to_bytes(CURVES[crv][1])) for number in (point.x, point.y))
            return {"kty": "EC", "crv": crv, **names, "x": x, "y": y}
        numbers = public.public_numbers()
        n, e = (_base64url(number.to_bytes((number.bit_length() + 7) // 8)) for number in (numbers.n, numbers.e))
        return {"kty": "RSA", **names, "n": n, "e": e}

    def to_pem(self) -> bytes:
        """Return the key as unencrypted PKCS #8 PEM. Protect a file with this text from other users."""
        pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pem: bytes = self._key.private_bytes(serialization.Encoding.PEM, pkcs8, plain)
        return pem


def load_private_jwk(jwk: Mapping[str, object] | str | bytes) -> PrivateKey:
    """Return the private key in a JWK. `jwk` is a mapping or JSON text.

    The public members must satisfy `load_jwk`, and the private members must belong to the public members. An RSA key
    needs all the private members of RFC 7518 §6.3.2 except `oth`. Raises `MalformedKey`, and no other exception.
    """
    members = _members(jwk)
    _check_use(members, "sign")
    public = _load_public({name: value for name, value in members.items() if name not in _PRIVATE})
    try:
        key = _private_key(members, SCHEMES[public.algorithm])
    except ValueError as error:
        text = "the JWK's private members do not belong to its public members: export the key pair again"
        raise MalformedKey(text, member="d") from error
    private = PrivateKey(public.kid, public.algorithm, key)
    if private.public_key() != public:
        _refuse("d", "does not belong to the public members: export the key pair again")
    return private


def _private_key(members: Mapping[str, object], scheme: Scheme) -> object:
    if scheme.kty == "OKP":
        return ed25519.Ed25519PrivateKey.from_private_bytes(_octets(members, "d", 32))
    if scheme.crv is not None:
        d = int.from_bytes(_octets(members, "d", CURVES[scheme.crv][1]))
        return ec.EllipticCurvePrivateNumbers(d, _ec_numbers(members, scheme.crv)).private_key()
    d, p, q, dp, dq, qi = (_unsigned(members, member) for member in ("d", "p", "q", "dp", "dq", "qi"))
    return rsa.RSAPrivateNumbers(p, q, d, dp, dq, qi, _rsa_numbers(members)).private_key()


def _algorithms_of(key: object) -> tuple[Algorithm, ...]:
    """Return the algorithms of a private key, with the default algorithm first."""
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return (Algorithm.ED25519,)
    if isinstance(key, rsa.RSAPrivateKey):
        return (Algorithm.PS512, Algorithm.PS384, Algorithm.PS256, Algorithm.RS256)
    curve = getattr(getattr(key, "curve", None), "name", None)
    return {"secp256r1": (Algorithm.ES256,), "secp384r1": (Algorithm.ES384,)}.get(curve or "", ())


def _members(jwk: object) -> Mapping[str, object]:
    if isinstance(jwk, Mapping):
        return jwk
    if not isinstance(jwk, str | bytes):
        raise MalformedKey(f"a JWK must be a mapping or JSON text, not {type(jwk).__name__}")
    if len(jwk) > limits.JWK_CHARS_MAX:
        raise MalformedKey(f"the JWK is longer than {limits.JWK_CHARS_MAX} characters: leave out unneeded members")
    try:
        return read_object(jwk.encode("utf-8", "surrogatepass") if isinstance(jwk, str) else jwk)
    except ValueError as error:
        raise MalformedKey(f"the JWK {error}") from error


def _check_use(members: Mapping[str, object], operation: str) -> None:
    if members.get("use", "sig") != "sig":
        _refuse("use", "is not sig, so the key is not for signatures: use a signing key (RFC 7517 §4.2)")
    operations = members.get("key_ops", [operation])
    if not isinstance(operations, list) or operation not in operations:
        _refuse("key_ops", f"does not list {operation}: add {operation}, or leave out key_ops (RFC 7517 §4.3)")


def _kid(members: Mapping[str, object]) -> str:
    kid = _text(members, "kid")
    if not _KID.fullmatch(kid):
        _refuse("kid", f"must be 1 to {limits.KEY_ID_CHARS_MAX} printable ASCII characters")
    return kid


def _text(members: Mapping[str, object], member: str) -> str:
    value = members.get(member)
    if type(value) is not str:
        _refuse(member, "must be a string, but is missing or of another type")
    return value


def _octets(members: Mapping[str, object], member: str, octets: int) -> bytes:
    value = _base64url_octets(members, member)
    if len(value) != octets:
        _refuse(member, f"must be {octets} bytes long, not {len(value)}")
    return value


def _unsigned(members: Mapping[str, object], member: str) -> int:
    value = _base64url_octets(members, member)
    if not value or value[0] == 0:
        _refuse(member, "must be a positive number without leading zeros (RFC 7518 §2, Base64urlUInt)")
    return int.from_bytes(value)


def _base64url_octets(members: Mapping[str, object], member: str) -> bytes:
    text = _text(members, member)
    octets = b""
    if len(text) <= limits.JWK_CHARS_MAX and _BASE64URL.fullmatch(text) and len(text) % 4 != 1:
        octets = urlsafe_b64decode(text + "==")
    if _base64url(octets) != text:
        _refuse(member, "is not base64url: write no padding, and set no bits after the last byte (RFC 7515 §2)")
    return octets


def _base64url(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _refuse(member: str, text: str) -> NoReturn:
    raise MalformedKey(f"the JWK's {member} {text}", member=member)
