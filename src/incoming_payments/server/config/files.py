"""Read the files of `serve`: its configuration, and the secrets, tokens and keys that the configuration names."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NewType

from attrs import field, frozen

from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import CONFIGURATION_BYTES_MAX, PEER_TOKEN_CHARS_MIN, SERVER_SECRET_BYTES_MIN
from incoming_payments.server.config.postgres import DatabasePassword, PostgresDatabase, postgres_database
from incoming_payments.stores._connection_text import is_url, may_be_connection_string

POSIX = os.name == "posix"  # on other systems, the mode of a file does not define the access of users

PRIVATE: Final = 0o077  # mode bits that a file with a secret must not have
PUBLIC: Final = 0o022  # mode bits that a file with a public key must not have, because other users could change the key
_OTHERS: Final = stat.S_IROTH | stat.S_IWOTH
# the bits of a folder like /tmp, in which users can replace only their own files
_STICKY: Final = stat.S_IWOTH | stat.S_ISVTX
# a file name with an extension, which cannot be a secret
_EXTENSION: Final = re.compile(r".{1,255}\.(?:[a-z][a-z0-9]{0,7}|[A-Z][A-Z0-9]{0,7})")
_DENIED: Final[Mapping[int, str]] = {PRIVATE: "rwx", PUBLIC: "w"}
ServerSecret = NewType("ServerSecret", bytes)  # the content of a file of `secret_files`
PeerToken = NewType("PeerToken", AccessToken)  # the content of a file of `token_files`


@frozen
class WebhookSecretText:
    """The content of a file with the secret of a webhook."""

    value: str = field(repr=False)


_NOT_BLOCKING: Final = getattr(os, "O_NONBLOCK", 0)  # opening a FIFO must not block until it has a writer


@frozen
class Pem:
    """The content of a file with a private key."""

    path: Path
    content: bytes = field(repr=False)


def read_bounded(path: Path, *, if_missing: str) -> bytes:
    """Return the content of a regular file of at most `limits.CONFIGURATION_BYTES_MAX` bytes.

    A file of another kind could block the process for ever. Raises `ConfigurationError` with a description whose
    subject is the file. `if_missing` is the advice for a file that does not exist.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NOT_BLOCKING)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigurationError("is not a regular file: give the path of a regular file")
            content = file.read(CONFIGURATION_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigurationError(f"does not exist: {if_missing}") from None
    except IsADirectoryError:
        raise ConfigurationError("is a folder: give the path of a file") from None
    except (OSError, ValueError) as error:  # a ValueError means NUL in the name
        why = getattr(error, "strerror", None) or "no file can have this name"
        raise ConfigurationError(
            f"cannot be read ({why}): correct the path, or let this process read the file"
        ) from None
    if len(content) > CONFIGURATION_BYTES_MAX:
        raise ConfigurationError(f"is larger than {CONFIGURATION_BYTES_MAX} bytes: give a smaller file")
    return content


class Files:
    """The files in `folder`. `warnings` lists the files and folders that other users can access.

    A method raises `InvalidValue` for a file that cannot be read or used, unless its docstring names another error.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []

    def read(self, name: str, denied: int, *, secret_chars_min: int = PEER_TOKEN_CHARS_MIN) -> bytes:
        """Return the content of a file. A file with one of the mode bits `denied` gets a warning.

        The error for a missing file shows its name only if the name is shorter than `secret_chars_min`.
        """
        path = self.folder / name
        hint = " (serve does not expand ~: write the whole path)" if name.startswith("~") else ""
        try:
            content = read_bounded(path, if_missing=f"correct the name{hint}, or add the file")
        except ConfigurationError as error:
            raise InvalidValue(f"{self._shown(name, secret_chars_min)} {error.description}") from None
        self.warn_of(path, denied)
        return content

    def warn_of(self, path: Path, denied: int) -> None:
        """Add a warning if the file has one of the mode bits `denied`, or if its owner is another user than root."""
        found = path.stat()
        mode = stat.S_IMODE(found.st_mode)
        if mode & denied:
            self._warn(f"{path}: other users have access (mode {mode:04o}): run chmod go-{_DENIED[denied]} on it")
        if POSIX and found.st_uid not in {0, os.geteuid()}:
            self._warn(f"{path} belongs to another user (uid {found.st_uid}), who can change the file: run chown on it")

    def warn_of_database(self, path: Path) -> None:
        """Add a warning if every user can read or write the database, or replace the files in its folder.

        A group may have access, because other programs of your company may use the database.
        """
        if path.exists() and (mode := stat.S_IMODE(path.stat().st_mode)) & _OTHERS:
            self._warn(f"{path}: every user can read or change payments (mode {mode:04o}): run chmod o-rwx on it")
        self.warn_of_folder(path.parent)

    def warn_of_folder(self, path: Path) -> None:
        """Add a warning if every user can replace the files in the folder."""
        if path.is_dir() and (mode := stat.S_IMODE(path.stat().st_mode)) & _STICKY == stat.S_IWOTH:
            self._warn(
                f"{path}: every user can replace the files in this folder (mode {mode:04o}): run chmod o-w on it"
            )

    def _warn(self, text: str) -> None:
        if POSIX and text not in self.warnings:
            self.warnings.append(text)

    def _shown(self, name: str, secret_chars_min: int) -> str:
        """Return the path of a file for an error message. If `name` may be a misplaced secret, hide the path."""
        path = self.folder / name
        is_name = name.isprintable() and (
            len(name) < secret_chars_min  # the name is shorter than any secret
            or _EXTENSION.fullmatch(name)
            or os.path.exists(path)
            or (os.path.dirname(name).strip("/") and os.path.isdir(path.parent))
        )
        return str(path) if is_name else "the file (its name is hidden, because the name may be a secret)"

    def pem(self, name: str) -> Pem:
        """Return the content of a file with a private key."""
        return Pem(self.folder / name, self.read(name, PRIVATE))

    def database(self, name: str) -> Path | PostgresDatabase:
        """Return the path of a SQLite file, which may not exist yet, or a database on a PostgreSQL server.

        Raises `ConfigurationError`.
        """
        if is_url(name):
            return postgres_database(name)
        if not name or "\0" in name:
            raise ConfigurationError("must not be empty, and must not contain NUL")
        if name == ":memory:":
            text = (
                'is ":memory:", but payments must survive a restart: give the name of a file, such as '
                '"payments.sqlite3"'
            )
            raise ConfigurationError(text)
        if may_be_connection_string(name) or name.startswith("file:"):
            text = (
                'must be the name of a SQLite file, such as "payments.sqlite3", or a URL such as '
                '"postgresql://user@host/database"'
            )
            raise ConfigurationError(text)
        if name[0] in "~$":
            raise ConfigurationError(f"begins with {name[0]}, which serve does not expand: write the whole path or URL")
        path = self.folder / name
        if name.endswith("/") or os.path.isdir(path):
            raise ConfigurationError(f"is the folder {path}: give the name of a file in this folder")
        self.warn_of_database(path)
        return path

    def server_secret(self, name: str) -> ServerSecret:
        """Return the server secret in a file of hexadecimal digits."""
        content = self.read(name, PRIVATE)
        try:
            secret = bytes.fromhex(content.decode("ascii"))
        except ValueError:  # not ASCII, not hexadecimal, or an odd number of digits
            found = "other characters, or an odd number of digits"
        else:
            found = f"{len(secret)} bytes"
            if len(secret) >= SERVER_SECRET_BYTES_MIN:
                return ServerSecret(secret)
        need = f"{SERVER_SECRET_BYTES_MIN} bytes or more, in hexadecimal digits"
        how = f"`openssl rand -hex {SERVER_SECRET_BYTES_MIN}` writes a new secret"
        raise InvalidValue(f"{self.folder / name} must hold {need}, but holds {found}: {how}")

    def webhook_secret(self, name: str) -> WebhookSecretText:
        """Return the secret in a file, of which `WebhookEndpoint` checks the form."""
        return WebhookSecretText(self.read(name, PRIVATE).decode("ascii", "replace").strip())

    def password(self, name: str) -> DatabasePassword:
        """Return the password in a file, without its line end."""
        content = self.read(name, PRIVATE, secret_chars_min=1)
        try:
            password = content.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            password = ""
        if not password or is_url(password) or {"\0", "\n"} & set(password):
            raise InvalidValue(f"{self.folder / name} must hold only the password of the role: one line in UTF-8")
        return DatabasePassword(password)

    def peer_token(self, name: str) -> PeerToken:
        """Return the bearer token in a file."""
        content = self.read(name, PRIVATE)
        how = "`openssl rand -hex 32` writes a new token"
        try:
            token = AccessToken(content.decode("ascii").strip())
        except ValueError:  # the content is not ASCII, or is not a valid token
            need = (
                "only a token: letters, digits and -._~+/, then optional = characters, and no `Bearer` before the token"
            )
            raise InvalidValue(f"{self.folder / name} must hold {need}: {how}") from None
        if len(token.value) < PEER_TOKEN_CHARS_MIN:
            need = f"a token of {PEER_TOKEN_CHARS_MIN} characters or more, not {len(token.value)}"
            raise InvalidValue(f"{self.folder / name} must hold {need}: {how}")
        return PeerToken(token)
