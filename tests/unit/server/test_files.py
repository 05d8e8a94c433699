"""The files of a configuration. `test_settings.py` tests their errors and warnings with a whole configuration."""

import os
from pathlib import Path

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.server.files import PRIVATE, PUBLIC, Files


def test_secrets_and_tokens_are_read(tmp_path: Path) -> None:
    """White space around the content of a file is ignored."""
    (tmp_path / "secret").write_text("5f" * 32 + "\n", "ascii")
    (tmp_path / "token").write_text(" a-token-of-a-peer\r\n", "ascii")
    files = Files(tmp_path)
    assert files.server_secret("secret") == b"_" * 32
    assert files.peer_token("token").value == "a-token-of-a-peer"


@pytest.mark.parametrize("secret", ["5f" * 32, "a.token.of-a-peer", "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl", "{}\n.jwk"])
def test_secret_instead_of_a_file_name_is_not_shown(tmp_path: Path, secret: str) -> None:
    """The error about a missing file shows a name only if the name cannot be a secret in the wrong place."""
    with pytest.raises(InvalidValue) as refused:
        Files(tmp_path).server_secret(secret)
    message = "the file (with a name that is not shown) cannot be read: No such file or directory"
    assert refused.value.description == message


def test_name_of_a_missing_file_is_shown(tmp_path: Path) -> None:
    """A name with a short extension is the name of a file."""
    with pytest.raises(InvalidValue) as refused:
        Files(tmp_path).server_secret("keys/secret.hex")
    assert refused.value.description == f"{tmp_path / 'keys/secret.hex'} cannot be read: No such file or directory"


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such modes")
def test_each_file_has_one_warning(tmp_path: Path) -> None:
    """A file that is used twice gets one warning. A public key that others can read gets none."""
    path = tmp_path / "file"
    path.write_text("", "ascii")
    path.chmod(0o644)
    files = Files(tmp_path)
    files.read("file", PUBLIC)
    assert files.warnings == []
    files.read("file", PRIVATE)
    files.read("file", PRIVATE)
    assert files.warnings == [f"{path}: other users have access (mode 0644): chmod go-rwx it"]
