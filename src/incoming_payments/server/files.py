"""The files that a configuration names: secrets, tokens and keys."""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from incoming_payments.errors import InvalidValue
from incoming_payments.gnap.token import AccessToken
from incoming_payments.limits import SERVER_SECRET_BYTES_MIN

POSIX = os.name == "posix"  # on other systems, the mode of a file does not define the access of users

PRIVATE: Final = 0o077  # mode bits that a file with a secret must not have
PUBLIC: Final = 0o022  # mode bits that a file with a public key must not have: a user that can write it is the client
_FILE_NAME: Final = re.compile(r"[\w/-]{1,64}\.[a-z]{2,5}")  # the short extension tells it from a secret
_DENIED: Final[Mapping[int, str]] = {PRIVATE: "rwx", PUBLIC: "w"}


class Files:
    """The files in `folder`. `warnings` lists the files that other users can access.

    The methods raise `InvalidValue` for a file that cannot be read or used.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []

    def read(self, name: str, denied: int) -> bytes:
        """Return the content of a file. A file with one of the mode bits `denied` gets a warning."""
        path = self.folder / name
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:  # a ValueError: NUL in the name
            why = getattr(error, "strerror", None) or "no file has such a name"
            raise InvalidValue(f"{self._shown(name)} cannot be read: {why}") from None
        self.warn_of(path, denied)
        return content

    def warn_of(self, path: Path, denied: int) -> None:
        """Add a warning if the file has one of the mode bits `denied`."""
        mode = stat.S_IMODE(path.stat().st_mode)
        text = f"{path}: other users have access (mode {mode:04o}): chmod go-{_DENIED[denied]} it"
        if POSIX and mode & denied and text not in self.warnings:
            self.warnings.append(text)

    def _shown(self, name: str) -> str:
        """Return the path of a file for an error message, unless `name` may be a secret in the wrong place."""
        return str(self.folder / name) if _FILE_NAME.fullmatch(name) else "the file (with a name that is not shown)"

    def server_secret(self, name: str) -> bytes:
        """Return the server secret in a file of hexadecimal digits."""
        content = self.read(name, PRIVATE)
        try:
            secret = bytes.fromhex(content.decode("ascii"))
        except ValueError:  # other characters, or an odd number of digits
            secret = b""
        if len(secret) < SERVER_SECRET_BYTES_MIN:
            path = self.folder / name
            raise InvalidValue(f"{path} must hold {SERVER_SECRET_BYTES_MIN} bytes or more, in hexadecimal digits")
        return secret

    def peer_token(self, name: str) -> AccessToken:
        """Return the bearer token in a file."""
        content = self.read(name, PRIVATE)
        try:
            return AccessToken(content.decode("ascii").strip())
        except ValueError:  # other characters, or no token
            text = f"{self.folder / name} must hold a token: letters, digits and -._~+/ with perhaps = at the end"
            raise InvalidValue(text) from None
