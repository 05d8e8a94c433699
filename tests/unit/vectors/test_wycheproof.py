"""Wycheproof: valid and forged signatures that libraries have judged wrongly in the past.

The tests read the cases from the folder that the environment variable INCOMING_PAYMENTS_VECTORS names. Its subfolder
`wycheproof` has files of `testvectors_v1` of https://github.com/C2SP/wycheproof.
"""

import json
import os
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.errors import MalformedKey
from incoming_payments.httpsig import ed25519, load_jwk

FOLDER = os.environ.get("INCOMING_PAYMENTS_VECTORS")
SUITE = Path(FOLDER or ".") / "wycheproof"

pytestmark = pytest.mark.skipif(
    FOLDER is None,
    reason="set INCOMING_PAYMENTS_VECTORS to a folder that holds wycheproof, "
    "files of testvectors_v1 of https://github.com/C2SP/wycheproof",
)

# The algorithm of each file, as the `alg` of a JWK
FILES: Final = {
    "ecdsa_secp256r1_sha256_p1363_test.json": "ES256",
    "ecdsa_secp384r1_sha384_p1363_test.json": "ES384",
    "ed25519_test.json": "EdDSA",
    "rsa_pss_2048_sha256_mgf1_32_test.json": "PS256",
    "rsa_pss_2048_sha384_mgf1_48_test.json": "PS384",
    "rsa_pss_4096_sha512_mgf1_64_test.json": "PS512",
    "rsa_signature_2048_sha256_test.json": "RS256",
}

# "acceptable" leaves the decision to the verifier. There is one such case: a DigestInfo without the NULL of RFC 8017
# §9.2. It would be a second encoding of a signature, so it is refused.
EXPECTED: Final = {"valid": True, "invalid": False, "acceptable": False}


@pytest.fixture(params=["OpenSSL", "PyNaCl"], autouse=True)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both libraries for Ed25519."""
    monkeypatch.setattr(ed25519, "BACKEND", request.param)


def _base64url(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _jwk(alg: str, key: Any) -> dict[str, str]:
    """Return a key of the suite as a JWK, converted from its hex form without a cryptographic library."""
    names = {"kid": "wycheproof", "alg": alg}
    if alg == "EdDSA":
        return {**names, "kty": "OKP", "crv": "Ed25519", "x": _base64url(bytes.fromhex(key["pk"]))}
    if alg.startswith("ES"):
        point = bytes.fromhex(key["uncompressed"])[1:]
        half = len(point) // 2
        x, y = _base64url(point[:half]), _base64url(point[half:])
        return {**names, "kty": "EC", "crv": {"ES256": "P-256", "ES384": "P-384"}[alg], "x": x, "y": y}
    # The hex is a signed DER integer, with a zero byte before a high bit. A JWK has no such byte.
    n, e = (_base64url(bytes.fromhex(key[member]).lstrip(b"\0")) for member in ("modulus", "publicExponent"))
    return {**names, "kty": "RSA", "n": n, "e": e}


def _verify(alg: str, key: Any, signature: bytes, message: bytes) -> bool:
    try:
        return load_jwk(_jwk(alg, key)).verify(signature, message)
    except MalformedKey:
        return False


def _results(alg: str, suite: Any) -> Iterator[tuple[int, bool, bool]]:
    """Yield the number of each case, its expected result and its actual result."""
    for group in suite["testGroups"]:
        for case in group["tests"]:
            signature, message = bytes.fromhex(case["sig"]), bytes.fromhex(case["msg"])
            yield case["tcId"], EXPECTED[case["result"]], _verify(alg, group["publicKey"], signature, message)


@pytest.mark.parametrize("name", FILES)
def test_wycheproof(name: str) -> None:
    """Every valid signature is accepted, and every other one is refused, or its key is."""
    suite = json.loads((SUITE / name).read_text())
    results = list(_results(FILES[name], suite))
    assert [number for number, expected, actual in results if expected is not actual] == []
    assert sorted(number for number, _, _ in results) == list(range(1, suite["numberOfTests"] + 1))


def test_every_file_is_read() -> None:
    """The folder has exactly the files of the table."""
    assert sorted(path.name for path in SUITE.glob("*.json")) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_key_with_a_valid_signature_is_accepted(name: str) -> None:
    """Each key with a valid signature loads, so no signature is refused only because its key does not load."""
    suite = json.loads((SUITE / name).read_text())
    good = [group for group in suite["testGroups"] if any(case["result"] == "valid" for case in group["tests"])]
    assert {load_jwk(_jwk(FILES[name], group["publicKey"])).kid for group in good} == {"wycheproof"}
