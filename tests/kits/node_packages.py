"""Packages from npm for the tests, installed once into pytest's cache, in a folder named after their versions.

Tests are skipped, saying why, where Node.js is missing, or where npm cannot reach its registry. Any other failure of
the installation is skipped on a developer's machine as well, but fails where `CI` is set, as nobody would notice there.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

# How npm says that the registry is out of reach, or that this machine may not have the package from it.
_UNREACHABLE: Final = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ERR_SOCKET_TIMEOUT|ENETUNREACH|EHOSTUNREACH|EPROTO"
    r"|CERT|E40[137]|E50\d|network request to|ENOTCACHED"
)
_INSTALL_S_MAX: Final = 180


def installed(
    versions: Mapping[str, str], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The folder in which the packages are installed: `versions` are exact, by the names of the packages."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")
    name = "_".join(f"{package.rpartition('/')[2]}-{version}" for package, version in versions.items())
    cache = getattr(request.config, "cache", None)  # pytest may be told to have none
    folder = Path(cache.mkdir(name)) if cache else tmp_path_factory.mktemp("packages")
    if not (folder / "installed").exists():
        _install(versions, folder)
        (folder / "installed").touch()  # only now: an installation that was broken off is begun again
    return folder


def _install(versions: Mapping[str, str], folder: Path) -> None:
    names = " and ".join(f"{package}@{version}" for package, version in versions.items())
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": dict(versions)}), "utf-8")
    npm = str(shutil.which("npm"))
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    try:
        done = subprocess.run(
            [npm, "install", *options], cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S_MAX
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm could not install {names} within {_INSTALL_S_MAX} seconds")
    if done.returncode:
        why = f"npm could not install {names}: {done.stderr.strip()[-2000:]}"
        if os.environ.get("CI") and not _UNREACHABLE.search(done.stderr):
            pytest.fail(why)
        pytest.skip(why)
