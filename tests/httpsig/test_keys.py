"""Keys: what is loaded, and what is refused."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa, x25519

from characters import DIGITS, LOWER, PRINTABLE, UPPER, taken
from frozen_values import assert_frozen
from incoming_payments.errors import MalformedKey
from incoming_payments.httpsig import Algorithm, PrivateKey, keys, load_jwk, load_private_jwk
from incoming_payments.httpsig import ed25519 as backends
from incoming_payments.limits import JWK_CHARS_MAX, KEY_ID_CHARS_MAX, KEYS_REMEMBERED_MAX
from signed_requests import KEY, OTHER
from signing_keys import pem, private, rsa_key

P = 2**255 - 19


def b64(octets: bytes) -> str:
    """Unpadded base64url."""
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def uint(number: int) -> str:
    """A Base64urlUInt of RFC 7518."""
    return b64(number.to_bytes((number.bit_length() + 7) // 8))


ED = KEY.public_jwk()
EC = private(Algorithm.ES256).public_jwk()
RSA = private(Algorithm.PS512).public_jwk()


# --- what works --------------------------------------------------------------------------------


def test_json_and_mapping() -> None:
    """A JWK comes as JSON text, JSON bytes or a mapping; members that nobody knows are passed over: RFC 7517 §4."""
    for jwk in (ED, json.dumps(ED), json.dumps(ED).encode(), {**ED, "x5t": 1, "use": "sig", "key_ops": ["verify"]}):
        assert load_jwk(jwk) == KEY.public_key()


def test_each_character_of_a_kid() -> None:
    """Printable ASCII, which a String of RFC 9651 can hold, and as much of it as `keyid` may have."""
    assert taken(lambda c: load_jwk({**ED, "kid": c}), MalformedKey) == set(PRINTABLE)
    assert taken(lambda c: load_jwk({**ED, "kid": f"a{c}b"}), MalformedKey) == set(PRINTABLE)
    assert load_jwk({**ED, "kid": "k" * KEY_ID_CHARS_MAX}).kid == "k" * KEY_ID_CHARS_MAX


def test_each_character_of_base64url() -> None:
    """RFC 4648 §5: a modulus in which all of them are is read."""
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
def test_up_to_the_limits(jwk: dict[str, object] | str) -> None:
    """What is just within each limit is read."""
    assert load_jwk(jwk).kid == "key-1"


@pytest.mark.parametrize("jwk", [ED, EC, RSA], ids=["Ed25519", "EC", "RSA"])
def test_equal_keys_are_one(jwk: dict[str, str]) -> None:
    """Whatever the library underneath makes of its own."""
    assert len({load_jwk(jwk), load_jwk(jwk)}) == 1


def test_a_member_of_another_kind_of_key() -> None:
    """An RSA key has no curve, so that one beside it is a member that nobody knows."""
    assert load_jwk({**RSA, "crv": "P-256"}) == load_jwk(RSA)


def test_keys_do_not_change() -> None:
    """A key that was checked stays the one that was checked."""
    assert_frozen(KEY, KEY.public_key())


def test_what_is_remembered_is_bounded() -> None:
    """Nobody fills our memory by sending many keys."""
    assert keys._check_ed25519.cache_parameters()["maxsize"] == KEYS_REMEMBERED_MAX


def test_ed25519_by_its_own_name() -> None:
    """RFC 9864 names the algorithm Ed25519, RFC 8037 EdDSA: both are read, the older is written."""
    assert load_jwk({**ED, "alg": "Ed25519"}) == KEY.public_key()
    assert ED["alg"] == "EdDSA"


# --- JWKs refused ------------------------------------------------------------------------------


@pytest.fixture(params=["OpenSSL", "PyNaCl"], autouse=True)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds on each library for Ed25519."""
    monkeypatch.setattr(backends, "BACKEND", request.param)


# The eight points of small order, and the encodings of some of them that are not canonical
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
def test_points_that_are_no_key(encoded: str) -> None:
    """Points of small order and encodings that are not canonical are refused on load: OpenSSL does not."""
    octets = bytes.fromhex(encoded)
    ed25519.Ed25519PublicKey.from_public_bytes(octets)  # see
    with pytest.raises(MalformedKey) as caught:
        load_jwk({**ED, "x": b64(octets)})
    assert caught.value.details["member"] == "x"


@pytest.mark.parametrize("y", range(2, 60))
def test_a_point_is_on_the_curve_or_refused(y: int) -> None:
    """RFC 8032 §5.1.3: there is an x for it when x² = (y² - 1) / (dy² + 1) is a square."""
    d = -121665 * pow(121666, -1, P) % P
    square = (y * y - 1) * pow(d * y * y + 1, -1, P) % P
    jwk = {**ED, "x": b64(y.to_bytes(32, "little"))}
    if pow(square, (P - 1) // 2, P) == 1:
        assert load_jwk(jwk).kid == "key-1"
    else:
        with pytest.raises(MalformedKey, match="curve") as caught:
            load_jwk(jwk)
        assert caught.value.details == {"member": "x"}


def test_the_points_of_order_eight_are_those() -> None:
    """Doubling such a point gives y = 0, which is 2y² + dy⁴ = 1 on this curve."""
    d = -121665 * pow(121666, -1, P) % P
    for encoded in SMALL_ORDER[4:]:
        y = int.from_bytes(bytes.fromhex(encoded), "little") & (2**255 - 1)
        assert (2 * y * y + d * pow(y, 4, P)) % P == 1


def test_what_a_point_of_small_order_would_do() -> None:
    """With the identity as key OpenSSL takes one constant signature for every message."""
    identity = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(SMALL_ORDER[0]))
    for message in (b"pay me", b"pay me more"):
        identity.verify(bytes.fromhex(SMALL_ORDER[0]) + bytes(32), message)


@pytest.mark.parametrize(
    ("jwk", "member"),
    [
        # what it is
        ({**ED, "kty": "oct", "k": "AQID"}, "kty"),
        ({"kty": "oct", "alg": "HS256", "k": "AQID", "kid": "key-1"}, "kty"),
        ({**RSA, "alg": "HS256"}, "kty"),
        # what cannot be shown as text
        *(({**ED, member: 10**5000}, member) for member in ("kty", "alg", "crv", "kid", "x", "use", "key_ops")),
        # private
        *(({**ED, member: "AQID"}, member) for member in ("d", "p", "q", "dp", "dq", "qi", "oth", "k")),
        ({**ED, "d": None}, "d"),
        # what it is for
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
def test_jwk_refused(jwk: dict[str, object], member: str) -> None:
    """One row a rule, and the refusal names the member at fault."""
    with pytest.raises(MalformedKey) as caught:
        load_jwk(jwk)
    assert caught.value.details["member"] == member


@pytest.mark.parametrize(
    ("jwk", "says"),
    [
        (None, "a JSON object, or its text"),
        ([1], "a JSON object, or its text"),
        ("", "not JSON"),
        ("{", "not JSON"),
        (b"\xff", "not JSON"),
        ('{"kid": 1' + "0" * 5000 + "}", "not JSON"),
        ("[" * 5000, "not JSON"),
        ('{"a":' * 1500, "not JSON"),
        ("[]", "not a JSON object"),
        ("null", "not a JSON object"),
        ('"x"', "not a JSON object"),
        ('{"kid": "a", "kid": "a"}', "twice"),
        ('{"x5c": {"a": 1, "a": 2}}', "twice"),
        ('{"exp": NaN}', "NaN"),
        ('{"exp": -Infinity}', "NaN"),
        ('{"exp": 1e400}', "alg"),
        ('{"kid": "\\ud800"}', "alg"),
        (json.dumps({**ED, "kid": "\ud800"}), "kid"),
        (" " * (JWK_CHARS_MAX + 1), "longer"),
    ],
)
def test_jwk_that_is_no_jwk(jwk: str | bytes, says: str) -> None:
    """JSON that is not, or not only one thing."""
    with pytest.raises(MalformedKey, match=says):
        load_jwk(jwk)


def test_a_disclosed_key_is_flagged() -> None:
    """A private key where a public one belongs has a code of its own, so that a host can raise the alarm."""
    with pytest.raises(MalformedKey, match="disclosed") as caught:
        load_jwk({**ED, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"})
    assert caught.value.details == {"member": "d", "rule": "private_key_disclosed"}
    assert "nWGx" not in caught.value.description


def test_exponent_three() -> None:
    """Odd exponents from 3 on are used in the wild and are sound with proper padding."""
    assert load_jwk({**RSA, "e": "Aw"}).algorithm is Algorithm.PS512


# --- private keys ------------------------------------------------------------------------------


def private_jwk(algorithm: Algorithm) -> dict[str, Any]:
    """A private JWK for `algorithm`, made without the library's help."""
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
def test_private_jwk(algorithm: Algorithm) -> None:
    """A private JWK signs for its public half."""
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
def test_private_jwk_refused(jwk: dict[str, object], member: str) -> None:
    """The private half has to be there, complete, and that of the public half."""
    with pytest.raises(MalformedKey) as caught:
        load_private_jwk(jwk)
    assert caught.value.details["member"] == member


@pytest.mark.parametrize("algorithm", Algorithm)
def test_pem(algorithm: Algorithm) -> None:
    """A key survives being written to a PEM file."""
    key = private(algorithm)
    assert PrivateKey.from_pem(key.to_pem(), kid="key-1", algorithm=algorithm).public_jwk() == key.public_jwk()


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (Algorithm.ED25519, Algorithm.ED25519),
        (Algorithm.ES256, Algorithm.ES256),
        (Algorithm.ES384, Algorithm.ES384),
        (Algorithm.RS256, Algorithm.PS512),
    ],
)
def test_pem_tells_its_algorithm(algorithm: Algorithm, expected: Algorithm) -> None:
    """The kind of key decides, and an RSA key signs with PS512 when nothing else is said."""
    assert PrivateKey.from_pem(private(algorithm).to_pem(), kid="k").algorithm is expected


@pytest.mark.parametrize("algorithm", [Algorithm.PS256, Algorithm.PS384, Algorithm.PS512, Algorithm.RS256])
def test_pem_of_an_rsa_key_for(algorithm: Algorithm) -> None:
    """An RSA key signs by the algorithm that it is read for."""
    assert PrivateKey.from_pem(pem(rsa_key()), kid="k", algorithm=algorithm).algorithm is algorithm


@pytest.mark.parametrize(
    ("key", "algorithm"), [(KEY, Algorithm.ES256), (private(Algorithm.ES256), Algorithm.ES384), (KEY, Algorithm.PS512)]
)
def test_pem_of_a_key_for_something_else(key: PrivateKey, algorithm: Algorithm) -> None:
    """The kind of key does not go with the algorithm, and the refusal says so."""
    with pytest.raises(MalformedKey) as caught:
        PrivateKey.from_pem(key.to_pem(), kid="k", algorithm=algorithm)
    assert caught.value.details == {"member": "alg"}


def test_a_key_that_is_read_twice() -> None:
    """It is the same, by its `kid` and algorithm; another `kid` makes it another."""
    assert PrivateKey.from_pem(KEY.to_pem(), kid="key-1") == KEY
    assert PrivateKey.from_pem(KEY.to_pem(), kid="key-2") != KEY


# PKCS #8 with a key of the kind 1.2.3.4
UNKNOWN_KIND = b"-----BEGIN PRIVATE KEY-----\nMBgCAQAwBQYDKgMEBAwECmFhYWFhYWFhYWE=\n-----END PRIVATE KEY-----\n"


def test_pem_with_a_password() -> None:
    """An encrypted PEM needs its password."""
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
def test_pem_refused(encoded: bytes, algorithm: Algorithm | None) -> None:
    """What is no key, or a key of a kind that is not used here."""
    with pytest.raises(MalformedKey):
        PrivateKey.from_pem(encoded, kid="k", algorithm=algorithm)


def test_pem_of_a_weak_key() -> None:
    """A key that verifiers would refuse is refused for signing."""
    with pytest.raises(MalformedKey, match="2048"):
        PrivateKey.from_pem(pem(rsa.generate_private_key(65537, 1024)), kid="k")  # noqa: S505 - weak on purpose


def test_generated_keys() -> None:
    """Each is another, with the `kid` asked for, which has to be one."""
    one, two = (PrivateKey.generate_ed25519("key 1") for _ in range(2))
    assert one.public_jwk()["x"] != two.public_jwk()["x"]
    assert one.kid == "key 1"
    with pytest.raises(MalformedKey, match="kid"):
        PrivateKey.generate_ed25519("")


def test_no_key_is_shown() -> None:
    """No representation has the private key in it."""
    for key in (KEY, private(Algorithm.PS512), KEY.public_key()):
        assert repr(key).count("=") == 2
