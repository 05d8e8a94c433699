"""Keys: which ones load, and which ones are refused."""

import json
import re
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa, x25519

from incoming_payments.errors import MalformedKey
from incoming_payments.httpsig import Algorithm, PrivateKey, load_jwk, load_private_jwk
from incoming_payments.httpsig import ed25519 as backends
from incoming_payments.limits import JWK_CHARS_MAX, KEY_ID_CHARS_MAX
from kits.characters import DIGITS, LOWER, PRINTABLE, UPPER, accepted_characters
from kits.signed_requests import KEY, OTHER
from kits.signing_keys import pem, private, rsa_key

P = 2**255 - 19


def b64(octets: bytes) -> str:
    """Encode as base64url without padding."""
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def uint(number: int) -> str:
    """Encode as a Base64urlUInt of RFC 7518."""
    return b64(number.to_bytes((number.bit_length() + 7) // 8))


ED = KEY.public_jwk()
EC = private(Algorithm.ES256).public_jwk()
RSA = private(Algorithm.PS512).public_jwk()


# --- JWKs accepted -----------------------------------------------------------------------------


def test_jwk_as_json_or_mapping() -> None:
    """A JWK may be JSON text, JSON bytes or a mapping. Unknown members are ignored: RFC 7517 §4."""
    for jwk in (ED, json.dumps(ED), json.dumps(ED).encode(), {**ED, "x5t": 1, "use": "sig", "key_ops": ["verify"]}):
        assert load_jwk(jwk) == KEY.public_key()


def test_characters_of_a_kid() -> None:
    """A `kid` is printable ASCII, as a String of RFC 9651, and may be as long as a `keyid`."""
    assert accepted_characters(lambda c: load_jwk({**ED, "kid": c}), MalformedKey) == set(PRINTABLE)
    assert accepted_characters(lambda c: load_jwk({**ED, "kid": f"a{c}b"}), MalformedKey) == set(PRINTABLE)
    assert load_jwk({**ED, "kid": "k" * KEY_ID_CHARS_MAX}).kid == "k" * KEY_ID_CHARS_MAX


def test_characters_of_base64url() -> None:
    """RFC 4648 §5: a modulus that contains each character of the alphabet loads."""
    alphabet = UPPER + LOWER + DIGITS + "-_"
    assert load_jwk({**RSA, "n": f"_{(alphabet * 6)[:340]}Q"}).kid == "key-1"


@pytest.mark.parametrize(
    "jwk",
    [
        {**RSA, "n": uint(2**2047 + 1)},
        {**RSA, "n": uint(2**8191 + 1)},
        {**RSA, "e": uint(3)},
        {**RSA, "e": uint(2**32 - 1)},
        json.dumps(ED).rjust(JWK_CHARS_MAX),
    ],
    ids=["2048 bits", "8192 bits", "least exponent", "largest exponent", "longest text"],
)
def test_key_at_a_limit_is_accepted(jwk: dict[str, object] | str) -> None:
    """A key that just reaches a limit loads."""
    assert load_jwk(jwk).kid == "key-1"


@pytest.mark.parametrize("jwk", [ED, EC, RSA], ids=["Ed25519", "EC", "RSA"])
def test_equal_keys_are_equal_values(jwk: dict[str, str]) -> None:
    """Two keys from one JWK are equal and have the same hash."""
    assert len({load_jwk(jwk), load_jwk(jwk)}) == 1


def test_crv_of_an_rsa_key_is_ignored() -> None:
    """An RSA key has no curve, so its `crv` is an unknown member."""
    assert load_jwk({**RSA, "crv": "P-256"}) == load_jwk(RSA)


def test_both_names_of_ed25519_are_accepted() -> None:
    """RFC 9864 names the algorithm Ed25519 and RFC 8037 EdDSA: both load, and a JWK is written with EdDSA."""
    assert load_jwk({**ED, "alg": "Ed25519"}) == KEY.public_key()
    assert ED["alg"] == "EdDSA"


# --- JWKs refused ------------------------------------------------------------------------------


@pytest.fixture(params=["OpenSSL", "PyNaCl"], autouse=True)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both libraries for Ed25519."""
    monkeypatch.setattr(backends, "BACKEND", request.param)


# The eight points of small order, and encodings of points that are not canonical
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
NOT_CANONICAL = [
    "0100000000000000000000000000000000000000000000000000000000000080",  # x = 0 with a sign
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    *((P + offset | sign << 255).to_bytes(32, "little").hex() for offset in range(19) for sign in (0, 1)),
]


@pytest.mark.parametrize("encoded", SMALL_ORDER + NOT_CANONICAL)
def test_weak_or_non_canonical_point_is_refused(encoded: str) -> None:
    """A point of small order or with a non-canonical encoding does not load, although OpenSSL accepts it."""
    octets = bytes.fromhex(encoded)
    ed25519.Ed25519PublicKey.from_public_bytes(octets)  # OpenSSL accepts it
    with pytest.raises(MalformedKey) as caught:
        load_jwk({**ED, "x": b64(octets)})
    assert caught.value.details["member"] == "x"


@pytest.mark.parametrize("y", range(2, 60))
def test_point_outside_the_curve_is_refused(y: int) -> None:
    """RFC 8032 §5.1.3: a point with this y exists exactly when x² = (y² - 1) / (dy² + 1) is a square."""
    d = -121665 * pow(121666, -1, P) % P
    square = (y * y - 1) * pow(d * y * y + 1, -1, P) % P
    jwk = {**ED, "x": b64(y.to_bytes(32, "little"))}
    if pow(square, (P - 1) // 2, P) == 1:
        assert load_jwk(jwk).kid == "key-1"
    else:
        with pytest.raises(MalformedKey, match="curve") as caught:
            load_jwk(jwk)
        assert caught.value.details == {"member": "x"}


@pytest.mark.parametrize(
    ("jwk", "member"),
    [
        # shared secrets
        ({**ED, "kty": "oct", "k": "AQID"}, "kty"),
        ({"kty": "oct", "alg": "HS256", "k": "AQID", "kid": "key-1"}, "kty"),
        ({**RSA, "alg": "HS256"}, "kty"),
        # numbers that cannot be converted to text
        *(({**ED, member: 10**5000}, member) for member in ("kty", "alg", "crv", "kid", "x", "use", "key_ops")),
        # private keys
        *(({**ED, member: "AQID"}, member) for member in ("d", "p", "q", "dp", "dq", "qi", "oth", "k")),
        ({**ED, "d": None}, "d"),
        # use and key_ops
        ({**ED, "use": "enc"}, "use"),
        ({**ED, "use": None}, "use"),
        ({**ED, "key_ops": ["sign"]}, "key_ops"),
        ({**ED, "key_ops": []}, "key_ops"),
        ({**ED, "key_ops": "verify"}, "key_ops"),
        ({**ED, "key_ops": None}, "key_ops"),
        # alg, kty, crv
        ({name: value for name, value in ED.items() if name != "alg"}, "alg"),
        ({**ED, "alg": "none"}, "alg"),
        ({**ED, "alg": "eddsa"}, "alg"),
        ({**ED, "alg": "Ed448"}, "alg"),
        ({**EC, "alg": "ES512"}, "alg"),
        ({**RSA, "alg": "RS1"}, "alg"),
        ({**ED, "alg": ["EdDSA"]}, "alg"),
        ({}, "alg"),
        ({**ED, "alg": "ES256"}, "kty"),
        ({**ED, "alg": "PS256"}, "kty"),
        ({**RSA, "alg": "ES256"}, "kty"),
        ({**EC, "alg": "RS256"}, "kty"),
        ({**EC, "alg": "EdDSA"}, "kty"),
        ({**ED, "kty": None}, "kty"),
        ({**ED, "crv": "Ed448"}, "crv"),
        ({**ED, "crv": "X25519"}, "crv"),
        ({**EC, "crv": "P-384"}, "crv"),
        ({**EC, "crv": "secp256k1"}, "crv"),
        ({**EC, "alg": "ES384"}, "crv"),
        # kid
        ({**ED, "kid": None}, "kid"),
        ({**ED, "kid": ""}, "kid"),
        ({**ED, "kid": 1}, "kid"),
        ({**ED, "kid": "é"}, "kid"),
        ({**ED, "kid": "a\n"}, "kid"),
        ({**ED, "kid": "k" * (KEY_ID_CHARS_MAX + 1)}, "kid"),
        # base64url and lengths
        ({**ED, "x": None}, "x"),
        ({**ED, "x": 5}, "x"),
        ({**ED, "x": ""}, "x"),
        ({**ED, "x": ED["x"] + "="}, "x"),
        ({**ED, "x": ED["x"][:-1] + "p"}, "x"),  # bits past the last byte
        ({**ED, "x": ED["x"].replace("_", "/")}, "x"),
        ({**ED, "x": ED["x"][:-1]}, "x"),
        ({**ED, "x": ED["x"][:-2]}, "x"),
        ({**ED, "x": ED["x"] + "A"}, "x"),
        ({**ED, "x": ED["x"] + "\n"}, "x"),
        ({**ED, "x": " " + ED["x"]}, "x"),
        ({**ED, "x": "é" * 43}, "x"),
        ({**ED, "x": b64(bytes(33))}, "x"),
        ({**ED, "x": "A" * (JWK_CHARS_MAX + 1)}, "x"),
        ({**ED, "x": b64((2).to_bytes(32, "little"))}, "x"),  # not on the curve
        # points on P-256
        ({**EC, "x": b64(bytes(31))}, "x"),
        ({**EC, "y": b64(bytes(33))}, "y"),
        ({**EC, "y": None}, "y"),
        ({**EC, "y": EC["x"]}, "y"),
        ({**EC, "x": b64(bytes(32)), "y": b64(bytes(32))}, "y"),
        ({**EC, "x": b64(b"\xff" * 32)}, "y"),
        # RSA
        ({**RSA, "n": uint(2**2046 + 1)}, "n"),
        ({**RSA, "n": uint(2**8192 + 1)}, "n"),
        ({**RSA, "n": uint(2**2047)}, "n"),
        ({**RSA, "n": "AA" + RSA["n"]}, "n"),
        ({**RSA, "n": None}, "n"),
        ({**RSA, "e": ""}, "e"),
        ({**RSA, "e": "AAEAAQ"}, "e"),
        ({**RSA, "e": uint(1)}, "e"),
        ({**RSA, "e": uint(2)}, "e"),
        ({**RSA, "e": uint(65536)}, "e"),
        ({**RSA, "e": uint(2**32 + 1)}, "e"),
    ],
)
def test_jwk_is_refused(jwk: dict[str, object], member: str) -> None:
    """A malformed or weak JWK is refused, and the refusal names the member at fault. One row for each rule."""
    with pytest.raises(MalformedKey) as caught:
        load_jwk(jwk)
    assert caught.value.details["member"] == member
    assert_describes_a_key(caught.value)


def assert_describes_a_key(refused: MalformedKey) -> None:
    """Check that a description says in lower case what is wrong with the JWK, and cites RFCs in upper case."""
    assert re.match(r"the JWK('s [\w ]+)? (is|are|has|have|must|do|does|cannot|needs|names) [a-z]", refused.description)
    assert "rfc" not in refused.description


@pytest.mark.parametrize(
    ("jwk", "says"),
    [
        (None, "must be a mapping or JSON text, not NoneType"),
        ([1], "must be a mapping or JSON text, not list"),
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff", "not JSON"),
        ("\ud800", "not JSON"),
        ("{}".encode("utf-16"), "not JSON"),
        ('{"kid": 1' + "0" * 5000 + "}", "too many digits"),
        ("[" * 2000 + "]" * 2000, "nested more than 32 deep"),
        ('{"a":' * 1500, "nested more than 32 deep"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('"x"', "not a JSON object"),
        ('{"kid": "a", "kid": "a"}', "has the member kid twice"),
        ('{"x5c": {"a": 1, "a": 2}}', "has the member a twice"),
        ('{"exp": NaN}', "has NaN, which is not JSON"),
        ('{"exp": -Infinity}', "has -Infinity, which is not JSON"),
        ('{"exp": 1e400}', "alg"),
        ('{"kid": "\\ud800"}', "alg"),
        (json.dumps({**ED, "kid": "\ud800"}), "kid"),
        (" " * (JWK_CHARS_MAX + 1), "longer"),
    ],
)
def test_malformed_json_is_refused(jwk: str | bytes, says: str) -> None:
    """A JWK must be JSON, an object, within the limit, and have each member once."""
    with pytest.raises(MalformedKey, match=says):
        load_jwk(jwk)


def test_disclosed_private_key_has_its_own_rule() -> None:
    """A private key in place of a public one is refused with its own rule, so that a host can raise an alarm."""
    with pytest.raises(MalformedKey, match="no longer secret") as caught:
        load_jwk({**ED, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"})
    assert caught.value.details == {"member": "d", "rule": "private_key_disclosed"}
    assert "nWGx" not in caught.value.description


# --- private keys ------------------------------------------------------------------------------


def private_jwk(algorithm: Algorithm) -> dict[str, Any]:
    """Return a private JWK for `algorithm`, computed with `cryptography` alone."""
    key = private(algorithm)
    loaded = serialization.load_pem_private_key(key.to_pem(), None)
    if isinstance(loaded, ed25519.Ed25519PrivateKey):
        return {**key.public_jwk(), "d": b64(loaded.private_bytes_raw())}
    if isinstance(loaded, ec.EllipticCurvePrivateKey):
        return {**key.public_jwk(), "d": b64(loaded.private_numbers().private_value.to_bytes(loaded.key_size // 8))}
    assert isinstance(loaded, rsa.RSAPrivateKey)
    n = loaded.private_numbers()
    names = {"d": n.d, "p": n.p, "q": n.q, "dp": n.dmp1, "dq": n.dmq1, "qi": n.iqmp}
    return {**key.public_jwk(), **{name: uint(value) for name, value in names.items()}}


@pytest.mark.parametrize("algorithm", Algorithm)
def test_private_jwk_signs(algorithm: Algorithm) -> None:
    """A signature by a private JWK verifies with its public key."""
    key = load_private_jwk(json.dumps({**private_jwk(algorithm), "use": "sig", "key_ops": ["sign"]}))
    assert key.public_jwk() == private(algorithm).public_jwk()
    assert key.public_key().verify(key.sign(b"data"), b"data")


ED_PRIVATE = private_jwk(Algorithm.ED25519)
EC_PRIVATE = private_jwk(Algorithm.ES256)
RSA_PRIVATE = private_jwk(Algorithm.PS512)


@pytest.mark.parametrize(
    ("jwk", "member"),
    [
        (ED, "d"),
        (EC, "d"),
        (RSA, "d"),
        ({**ED_PRIVATE, "key_ops": ["verify"]}, "key_ops"),
        ({**ED_PRIVATE, "alg": "none"}, "alg"),
        ({**ED_PRIVATE, "d": b64(bytes(31))}, "d"),
        ({**ED_PRIVATE, "x": OTHER.public_jwk()["x"]}, "d"),
        ({**EC_PRIVATE, "d": b64(bytes(32))}, "d"),
        ({**EC_PRIVATE, "d": b64((5).to_bytes(32))}, "d"),
        ({**EC_PRIVATE, "d": b64(b"\xff" * 32)}, "d"),
        ({**RSA_PRIVATE, "qi": None}, "qi"),
        ({**RSA_PRIVATE, "d": uint(5)}, "d"),
        ({**RSA_PRIVATE, "p": RSA_PRIVATE["q"]}, "d"),
    ],
)
def test_private_jwk_is_refused(jwk: dict[str, object], member: str) -> None:
    """The private members of a JWK must be present, complete, and belong to the public members."""
    with pytest.raises(MalformedKey) as caught:
        load_private_jwk(jwk)
    assert caught.value.details["member"] == member
    assert_describes_a_key(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (Algorithm.ED25519, Algorithm.ED25519),
        (Algorithm.ES256, Algorithm.ES256),
        (Algorithm.ES384, Algorithm.ES384),
        (Algorithm.RS256, Algorithm.PS512),
    ],
)
def test_pem_decides_the_algorithm(algorithm: Algorithm, expected: Algorithm) -> None:
    """The kind of key in a PEM decides the algorithm, which is PS512 for an RSA key."""
    assert PrivateKey.from_pem(private(algorithm).to_pem(), kid="k").algorithm is expected


@pytest.mark.parametrize("algorithm", [Algorithm.PS256, Algorithm.PS384, Algorithm.PS512, Algorithm.RS256])
def test_algorithm_of_an_rsa_key_can_be_chosen(algorithm: Algorithm) -> None:
    """An RSA key signs with the algorithm that the caller chooses."""
    assert PrivateKey.from_pem(pem(rsa_key()), kid="k", algorithm=algorithm).algorithm is algorithm


def test_private_keys_compare_by_kid_and_algorithm() -> None:
    """A key that is read again is equal. With another `kid`, it differs."""
    assert PrivateKey.from_pem(KEY.to_pem(), kid="key-1") == KEY
    assert PrivateKey.from_pem(KEY.to_pem(), kid="key-2") != KEY


# PKCS #8 with a key of the kind 1.2.3.4
UNKNOWN_KIND = b"-----BEGIN PRIVATE KEY-----\nMBgCAQAwBQYDKgMEBAwECmFhYWFhYWFhYWE=\n-----END PRIVATE KEY-----\n"


def test_encrypted_pem_needs_its_password() -> None:
    """An encrypted PEM loads with its password, and with no other."""
    key = ed25519.Ed25519PrivateKey.generate()
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"pw")
    )
    assert PrivateKey.from_pem(encrypted, kid="k", password=b"pw").algorithm is Algorithm.ED25519
    for password in (None, b"other"):
        with pytest.raises(MalformedKey, match="PEM"):
            PrivateKey.from_pem(encrypted, kid="k", password=password)


@pytest.mark.parametrize(
    ("encoded", "algorithm"),
    [
        (b"", None),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", None),
        (UNKNOWN_KIND, None),
        (KEY.to_pem(), Algorithm.ES256),
        (private(Algorithm.ES256).to_pem(), Algorithm.ES384),
        (private(Algorithm.PS512).to_pem(), Algorithm.ED25519),
        (pem(ec.generate_private_key(ec.SECP521R1())), None),
        (pem(ec.generate_private_key(ec.SECP256K1())), Algorithm.ES256),
        (pem(ed448.Ed448PrivateKey.generate()), None),
        (pem(x25519.X25519PrivateKey.generate()), None),
    ],
)
def test_pem_is_refused(encoded: bytes, algorithm: Algorithm | None) -> None:
    """A PEM without a key, or with a key of an unsupported kind, is refused."""
    with pytest.raises(MalformedKey):
        PrivateKey.from_pem(encoded, kid="k", algorithm=algorithm)


def test_pem_with_a_weak_key_is_refused() -> None:
    """A key that verifiers would refuse does not load for signing."""
    with pytest.raises(MalformedKey, match="2048"):
        PrivateKey.from_pem(pem(rsa.generate_private_key(65537, 1024)), kid="k")  # noqa: S505 - weak on purpose


def test_generated_keys_differ() -> None:
    """Each generated key is new, with the requested `kid`. An empty `kid` is refused."""
    one, two = (PrivateKey.generate_ed25519("key 1") for _ in range(2))
    assert one.public_jwk()["x"] != two.public_jwk()["x"]
    assert one.kid == "key 1"
    with pytest.raises(MalformedKey, match="kid"):
        PrivateKey.generate_ed25519("")


def test_repr_does_not_show_the_key() -> None:
    """The `repr` of a key shows its `kid` and algorithm only."""
    for key in (KEY, private(Algorithm.PS512), KEY.public_key()):
        assert repr(key).count("=") == 2
