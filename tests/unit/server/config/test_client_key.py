"""The public key of a client in a JWK file. `test_settings.py` tests that the errors name the setting."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.httpsig import PrivateKey
from incoming_payments.server.config.client_key import read_client_key
from incoming_payments.server.config.files import Files

KEY: Final = PrivateKey.generate_ed25519("client-key-1")
JWK: Final = KEY.public_jwk()
KINDS: Final = (
    'which is not a supported kind of key: use "kty": "OKP" and "crv": "Ed25519"; or "kty": "EC" and "crv": "P-256"; '
    'or "kty": "EC" and "crv": "P-384"; or "kty": "RSA"'
)
PEM: Final = "holds PEM or an SSH key, but must hold the client's public key as a JWK (JSON): "
FROM_PEM: Final = f"{PEM}incoming_payments.httpsig.PrivateKey.from_pem(PEM, kid=KEY_ID).public_jwk() returns this JWK"
LIST: Final = "must hold one JWK, which is a JSON object: write a single key, and not a list of keys"
RSA_ALG: Final = '"alg": "PS256" or "PS384" or "PS512" or "RS256"'


def without(name: str, **members: object) -> dict[str, object]:
    """Return a JWK without one member, with the others in `members`."""
    return {key: value for key, value in {**JWK, **members}.items() if key != name}


# the content of the file, as bytes or as a value for JSON; the message
REFUSED: Final[list[tuple[Any, str]]] = [
    (without("alg"), 'has no "alg": add "alg": "EdDSA"'),
    (without("alg", kty="EC", crv="P-256"), 'has no "alg": add "alg": "ES256"'),
    (without("alg", kty="EC", crv="P-384"), 'has no "alg": add "alg": "ES384"'),
    (without("alg", kty="RSA"), f'has no "alg": add {RSA_ALG}'),
    ({**JWK, "alg": "ES256"}, 'has "alg": "ES256": write "alg": "EdDSA"'),
    ({**JWK, "alg": "ed25519"}, 'has "alg": "ed25519": write "alg": "EdDSA"'),
    ({**JWK, "alg": "HS256"}, 'has "alg": "HS256": write "alg": "EdDSA"'),
    ({**JWK, "alg": None}, 'has "alg": null: write "alg": "EdDSA"'),
    ({**JWK, "kty": "okp"}, f'has "kty": "okp" and "crv": "Ed25519", {KINDS}'),
    (without("alg", kty="XYZ"), f'has "kty": "XYZ" and "crv": "Ed25519", {KINDS}'),
    ({**JWK, "crv": "X25519"}, f'has "kty": "OKP" and "crv": "X25519", {KINDS}'),
    ({**JWK, "kty": "EC", "crv": "secp256k1"}, f'has "kty": "EC" and "crv": "secp256k1", {KINDS}'),
    ({**JWK, "crv": ["Ed25519"]}, f'has "kty": "OKP" and "crv": ["Ed25519"], {KINDS}'),
    (without("crv"), f'has "kty": "OKP" and no "crv", {KINDS}'),
    (
        without("kid"),
        'has no "kid": add "kid": "client-key-1", or the key id that the client\'s signatures give as keyid',
    ),
    ({**JWK, "kid": ""}, "cannot be used: the JWK's kid must be 1 to 256 printable ASCII characters"),
    ({**JWK, "kty": "oct", "k": "AA"}, "cannot be used: the JWK's kty or alg is for a shared secret"),
    ({**JWK, "d": "AA"}, "cannot be used: the JWK has the private member d"),
    ({"keys": [JWK]}, LIST),
    ([JWK], LIST),
    ("JWK", LIST),
    (KEY.to_pem(), FROM_PEM),
    (b"\xef\xbb\xbf\n-----BEGIN PUBLIC KEY-----", FROM_PEM),
    (b"ssh-ed25519 AAAA me@example", FROM_PEM),
    (b"", "is not valid JSON at line 1 column 1: Expecting value"),
    (b'\n{kty: "OKP"}', "is not valid JSON at line 2 column 2: "),
    (b"{\xff", "is not JSON: give a file with the client's public key as a JWK"),
    (b"[" * 100_000, "is not JSON: give a file with the client's public key as a JWK"),
]


@pytest.mark.parametrize(("content", "says"), REFUSED)
def test_unusable_key_is_refused(tmp_path: Path, content: Any, says: str) -> None:
    """The error names the file and the fault, and shows what to write instead."""
    path = tmp_path / "client.key"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(InvalidValue) as refused:
        read_client_key(Files(tmp_path), path.name)
    assert refused.value.description.startswith(f"{path} {says}")


def test_jwk_beside_a_pem_is_suggested(tmp_path: Path) -> None:
    """`init` writes both files, and `jwk_file` names the one that ends in .jwk."""
    (tmp_path / "client.pem").write_bytes(KEY.to_pem())
    (tmp_path / "client.jwk").write_text(json.dumps(JWK), "ascii")
    with pytest.raises(InvalidValue) as refused:
        read_client_key(Files(tmp_path), "client.pem")
    assert refused.value.description == f"{tmp_path / 'client.pem'} {PEM}give client.jwk, which is in the same folder"


def test_key_of_the_advice_is_accepted(tmp_path: Path) -> None:
    """The JWK that the error about PEM describes is a key that the file may hold."""
    jwk = PrivateKey.from_pem(KEY.to_pem(), kid="client-key-1").public_jwk()
    (tmp_path / "client.jwk").write_text(json.dumps(jwk), "utf-8-sig")
    assert read_client_key(Files(tmp_path), "client.jwk").jwk == JWK
