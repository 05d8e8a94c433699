"""`incoming-payments init`: write a configuration, keys and tokens for development."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from incoming_payments.domain.urls import canonical_url
from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.gnap import Dialect
from incoming_payments.httpsig import PrivateKey
from incoming_payments.limits import PORT_MAX, SERVER_SECRET_BYTES_MIN
from incoming_payments.server.config.advice import is_loopback
from incoming_payments.server.config.postgres import postgres_database
from incoming_payments.server.config.setting import toml
from incoming_payments.server.config.template import template
from incoming_payments.stores._connection_text import may_be_connection_string

CONFIGURATION: Final = "incoming-payments.toml"
CLIENT_KEY: Final = "client-key.pem"
CLIENT_JWK: Final = "client-key.jwk"
SERVER_SECRET: Final = "server-secret.hex"  # noqa: S105 - the name of a file
SERVICE_KEY: Final = "service-key.pem"
SERVICE_JWK: Final = "service-key.jwk"
_SERVICE_KEY_ID: Final = "service-key-1"
PEER_TOKEN: Final = "peer-token.txt"  # noqa: S105 - the name of a file


def init(
    folder: Path,
    port: int,
    introspection: str | None = None,
    dialect: Dialect | None = None,
    database_url: str | None = None,
) -> int:
    """Write the files for a service on `port` to `folder`, and return the exit status.

    `introspection` is the introspection endpoint of the authorization server, with `rfc9767` as its default dialect. If
    it is `None`, the service gets a token for development. `database_url` is the URL of a PostgreSQL database. If it is
    `None`, the service gets a SQLite file.

    Raises `ConfigurationError` when the port is out of range, the folder is a connection string, the endpoint or the
    database is not a URL, a dialect is given without an endpoint, a file exists, or a file cannot be written. In
    each case, no new file remains.
    """
    if not 1 <= port <= PORT_MAX:
        raise ConfigurationError(f"--port must be from 1 to {PORT_MAX}, not {port}", setting="port")
    if may_be_connection_string(str(folder)):
        text = "a connection string is in the place of the folder: give the folder, and the URL with --database-url"
        raise ConfigurationError(text, setting="folder")
    if dialect is not None and introspection is None:
        text = "--dialect needs --authorization-server: give the introspection endpoint too, or leave out --dialect"
        raise ConfigurationError(text, setting="dialect")
    dialect = dialect or "rfc9767"
    base_url = f"http://127.0.0.1:{port}"
    secret_files = {
        SERVER_SECRET: secrets.token_hex(SERVER_SECRET_BYTES_MIN),
        PEER_TOKEN: secrets.token_hex(32),
    }
    grants, active = (f"{base_url}/auth", set()) if introspection is None else _of_endpoint(introspection, dialect)
    has_key = introspection is None or dialect == "rfc9767"
    name = "client-key" if introspection is None else "service-key"
    configuration = template(
        has_authorization_server=introspection is not None,
        active=active,
        base_url=base_url,
        auth_server=grants,
        port=port,
        token=secrets.token_hex(32) if introspection is None else "example",
        introspection=introspection or f"{base_url}/auth/introspect",
        dialect=dialect,
        database=toml(_database(database_url)),
        jwk=CLIENT_JWK,
        service_key=SERVICE_KEY,
        service_key_id=_SERVICE_KEY_ID,
        secret=SERVER_SECRET,
        peer_token=PEER_TOKEN,
    )
    key = PrivateKey.generate_ed25519(f"{name}-1")
    keys = {f"{name}.pem": key.to_pem().decode("ascii"), f"{name}.jwk": json.dumps(key.public_jwk(), indent=2)}
    files = {**secret_files, **(keys if has_key else {}), CONFIGURATION: configuration}
    _write_all(folder, files)
    print(f"Wrote {', '.join(files)} to {folder}.")
    if introspection is not None:
        print(f"Check auth_server, which is {grants}, and the wallet addresses in {folder / CONFIGURATION}.")
    if introspection is not None and has_key:
        print(f"Register the key of this service, {folder / SERVICE_JWK}, at the authorization server.")
    if database_url is not None:
        print(f"Create the tables: incoming-payments migrate --config {folder / CONFIGURATION}")
    print(f"Next: incoming-payments serve --config {folder / CONFIGURATION}")
    return 0


def _database(url: str | None) -> str:
    """Return the value of the setting `database`. Raises `ConfigurationError` when `url` is no URL of PostgreSQL."""
    if url is None:
        return "payments.sqlite3"
    try:
        postgres_database(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"--database-url {error.description}", setting="database-url") from None
    return url


def _of_endpoint(introspection: str, dialect: Dialect) -> tuple[str, set[str]]:
    """Return the probable grant endpoint, and the optional settings that the introspection endpoint needs."""
    try:
        canonical_url(introspection, member="--authorization-server")
    except InvalidValue as error:
        raise ConfigurationError(error.description, setting="authorization-server") from None
    parts = urlsplit(introspection)
    active = {"key_file", "key_id"} if dialect == "rfc9767" else set()
    if parts.scheme == "http":
        active.add("allow_http")
    if is_loopback(str(parts.hostname)):
        active.add("allow_private_clients")
    return f"{parts.scheme}://{parts.netloc}", active


def _write_all(folder: Path, files: Mapping[str, str]) -> None:
    """Write all of the new files, or none."""
    written: list[Path] = []
    try:
        if folder.is_file():
            raise ConfigurationError(f"{folder} is a file: give the path of a folder")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in files:
            if (folder / name).exists():
                raise ConfigurationError(f"{folder / name} exists: choose another folder, or move this file away")
        for name, text in files.items():
            _write_private(folder / name, text.rstrip("\n") + "\n", written)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise ConfigurationError(
            f"{folder} cannot be written ({error.strerror or error}): choose another folder, or allow writes to it"
        ) from None


def _write_private(path: Path, text: str, written: list[Path]) -> None:
    """Create a file for its owner only. Add the file to `written` as soon as it exists."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    written.append(path)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
