"""Packages from npm for the tests, installed once into pytest's cache, in a folder with their versions in its name.

A test is skipped, with the reason, if Node.js is missing or npm cannot reach its registry. After any other failure of
the installation, the test is skipped too, but it fails where `CI` is set, because a skip in CI would go unnoticed.
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

# The messages of npm for a registry that is out of reach or refuses the package.
_UNREACHABLE: Final = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ERR_SOCKET_TIMEOUT|ENETUNREACH|EHOSTUNREACH|EPROTO"
    r"|CERT|E40[137]|E50\d|network request to|ENOTCACHED"
)
_INSTALL_S_MAX: Final = 180


def installed(
    versions: Mapping[str, str], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the folder with the installed packages. `versions` has the exact version of each package by name."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")
    name = "_".join(f"{package.rpartition('/')[2]}-{version}" for package, version in versions.items())
    cache = getattr(request.config, "cache", None)  # pytest can run without a cache
    folder = Path(cache.mkdir(name)) if cache else tmp_path_factory.mktemp("packages")
    if not (folder / "installed").exists():
        _install(versions, folder)
        (folder / "installed").touch()  # last, so that an interrupted installation is repeated
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
