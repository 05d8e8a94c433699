"""The files of a configuration. `test_settings.py` tests their errors and warnings with a whole configuration."""

import os
from pathlib import Path

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.server.config.files import PRIVATE, PUBLIC, Files


@pytest.mark.parametrize("secret", ["5f" * 32, "a.token.of-a-peer", "eyJhbGciOi.eyJzdWIiOi.c2lnbmF0dXJl", "{}\n.jwk"])
def test_secret_instead_of_a_file_name_is_not_shown(tmp_path: Path, secret: str) -> None:
    """The error about a missing file shows a name only if the name cannot be a secret in the wrong place."""
    with pytest.raises(InvalidValue) as refused:
        Files(tmp_path).server_secret(secret)
    message = "the file (its name is hidden, because the name may be a secret) does not exist: correct the name"
    assert refused.value.description == f"{message}, or add the file"


@pytest.mark.parametrize(
    "name",
    [
        "keys/secret.hex",
        "Secrets Of 2026/server.secret.HEX",
        "/etc/bank.d/keys/server.p12",
        "~/.secrets/server.jwks.json",
        "server-secret",
        "folder/5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f",
        "../5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f5f",
    ],
)
def test_name_of_a_missing_file_is_shown(tmp_path: Path, name: str) -> None:
    """A name with an extension, in an existing folder, or shorter than any secret is the name of a file."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidValue) as refused:
        Files(tmp_path).server_secret(name)
    hint = " (serve does not expand ~: write the whole path)" if name.startswith("~") else ""
    says = f"{tmp_path / name} does not exist: correct the name{hint}, or add the file"
    assert refused.value.description == says


@pytest.mark.parametrize("name", ["", "a-folder-with-a-long-name"])
def test_folder_in_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """The error shows the folder, because a folder that exists is no secret."""
    (tmp_path / "a-folder-with-a-long-name").mkdir()
    with pytest.raises(InvalidValue) as refused:
        Files(tmp_path).server_secret(name)
    assert refused.value.description == f"{tmp_path / name} is a folder: give the path of a file"


def test_other_errors_of_the_operating_system_are_passed_on(tmp_path: Path) -> None:
    """The error has the reason of the operating system."""
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValue) as refused:
        Files(tmp_path).server_secret("file/secret.hex")
    says = "cannot be read (Not a directory): correct the path, or let this process read the file"
    assert refused.value.description == f"{tmp_path / 'file/secret.hex'} {says}"


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
    assert files.warnings == [f"{path}: other users have access (mode 0644): run chmod go-rwx on it"]
