"""`incoming-payments init`: write a configuration, keys and tokens for development."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from incoming_payments.errors import ConfigurationError
from incoming_payments.httpsig import PrivateKey
from incoming_payments.limits import SERVER_SECRET_BYTES_MIN
from incoming_payments.server.declarations import template

CONFIGURATION: Final = "incoming-payments.toml"
CLIENT_KEY: Final = "client-key.pem"
CLIENT_JWK: Final = "client-key.jwk"
SERVER_SECRET: Final = "server-secret.hex"  # noqa: S105 - the name of a file
PEER_TOKEN: Final = "peer-token.txt"  # noqa: S105 - the name of a file


def init(folder: Path, port: int) -> int:
    """Write the files for a service on `port` to `folder`, and return the exit status.

    Raises `ConfigurationError` when the port is out of range, a file exists, or a file cannot be written. Then no new
    file remains.
    """
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"--port must be from 1 to 65535, not {port}", setting="port")
    key = PrivateKey.generate_ed25519("client-key-1")
    configuration = template(
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        token=secrets.token_hex(32),  # never begins with a hyphen, which a command would take for an option
        jwk=CLIENT_JWK,
        secret=SERVER_SECRET,
        peer_token=PEER_TOKEN,
    )
    files = {
        SERVER_SECRET: secrets.token_hex(SERVER_SECRET_BYTES_MIN),
        PEER_TOKEN: secrets.token_hex(32),
        CLIENT_KEY: key.to_pem().decode("ascii"),
        CLIENT_JWK: json.dumps(key.public_jwk(), indent=2),
        CONFIGURATION: configuration,
    }
    _write_all(folder, files)
    print(f"Wrote {', '.join(files)} to {folder}.")
    print(f"Next: incoming-payments serve --config {folder / CONFIGURATION}")
    return 0


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    """Write new files, all or none of them."""
    written: list[Path] = []
    try:
        if folder.is_file():
            raise ConfigurationError(f"{folder} is a file: name a folder, which may be a new one")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in files:
            if (folder / name).exists():
                raise ConfigurationError(f"{folder / name} exists: choose another folder, or move the file away")
        for name, text in files.items():
            _write_private(folder / name, text.rstrip("\n") + "\n", written)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigurationError(f"{folder}: cannot be written: {error.strerror or error}") from None


def _write_private(path: Path, text: str, written: list[Path]) -> None:
    """Create a file for its owner only. Add the file to `written` as soon as it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    written.append(path)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
