"""Read the public key of a client from the JWK file that a configuration names. Each error names the change to make."""

import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from incoming_payments.errors import InvalidValue, MalformedKey
from incoming_payments.httpsig import load_jwk
from incoming_payments.httpsig.algorithms import SCHEMES
from incoming_payments.server.config.files import PUBLIC, Files

_PEM: Final = (b"-----BEGIN", b"Bag Attributes", b"ssh-", b"ecdsa-")
_HOW: Final = "incoming_payments.httpsig.PrivateKey.from_pem(PEM, kid=KEY_ID).public_jwk() returns this JWK"


@frozen
class ClientKey:
    """The JWK in the file at `path`."""

    path: Path
    jwk: Mapping[str, object]


def read_client_key(files: Files, name: str) -> ClientKey:
    """Return the key in the file `name`. Raises `InvalidValue` with the path, the fault and the change to make."""
    content = files.read(name, PUBLIC).removeprefix(BOM_UTF8)  # some editors write a byte order mark
    path = files.folder / name
    if content.lstrip().startswith(_PEM):
        raise InvalidValue(f"{path} {_pem(path)}")
    jwk = _object(content, path)
    try:
        load_jwk(content)
    except MalformedKey as error:
        why = _hint(jwk, error.details.get("member")) or f"cannot be used: {error.description}"
        raise InvalidValue(f"{path} {why}") from None
    return ClientKey(path, jwk)


def _pem(path: Path) -> str:
    beside = path.with_suffix(".jwk")
    how = f"give {beside.name}, which is in the same folder" if beside != path and beside.exists() else _HOW
    return f"holds PEM or an SSH key, but must hold the client's public key as a JWK (JSON): {how}"


def _object(content: bytes, path: Path) -> dict[str, Any]:
    try:
        jwk = json.loads(content)
    except json.JSONDecodeError as error:
        raise InvalidValue(
            f"{path} is not valid JSON at line {error.lineno} column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError):  # the content is not UTF-8, or is nested too deeply
        raise InvalidValue(f"{path} is not JSON: give a file with the client's public key as a JWK") from None
    if not isinstance(jwk, dict) or "keys" in jwk:
        raise InvalidValue(
            f"{path} must hold one JWK, which is a JSON object: write a single key, and not a list of keys"
        )
    return jwk


def _hint(jwk: Mapping[str, object], member: object) -> str | None:
    """Return advice about a wrong kind of key, `alg` or `kid`, or `None` for another fault."""
    if member == "kid" and "kid" not in jwk:
        return 'has no "kid": add "kid": "client-key-1", or the key id that the client\'s signatures give as keyid'
    if member not in ("alg", "kty", "crv") or jwk.get("kty") == "oct":
        return None
    kind = _kind(jwk.get("kty"), jwk.get("crv"))
    if kind not in _ALGORITHMS:
        return f"has {kind}, which is not a supported kind of key: use {'; or '.join(_ALGORITHMS)}"
    found = f'has "alg": {_shown(jwk["alg"])}: write' if "alg" in jwk else 'has no "alg": add'
    return f'{found} "alg": {" or ".join(_ALGORITHMS[kind])}'


def _kind(kty: object, crv: object) -> str:
    """Return the text that names the kind of a key, from its members `kty` and `crv`."""
    parts = [("kty", kty)] if kty == "RSA" else [("kty", kty), ("crv", crv)]
    return " and ".join(f'no "{name}"' if value is None else f'"{name}": {_shown(value)}' for name, value in parts)


def _shown(value: object) -> str:
    return json.dumps(value)[:40]


_ALGORITHMS: Final[dict[str, list[str]]] = {}  # the values of `alg` for each kind of key
for _algorithm, _scheme in SCHEMES.items():
    _ALGORITHMS.setdefault(_kind(_scheme.kty, _scheme.crv), []).append(_shown(_algorithm.value))
