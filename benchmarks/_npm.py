"""A Node program with packages from npm, to measure beside: asked by lines of JSON, and answering so."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Ask = Callable[[Mapping[str, Any]], Any]


@contextmanager
def node(script: Path, packages: Mapping[str, str]) -> Iterator[Ask | str]:
    """A running `script`, to be asked; or why there is none. `packages` are exact versions by name.

    They are installed once into the environment that this program runs in, outside of the project.
    """
    npm, executable = shutil.which("npm"), shutil.which("node")
    if npm is None or executable is None:
        yield "Node.js with npm is not installed"
        return
    name = "_".join(f"{package.rpartition('/')[2]}-{version}" for package, version in packages.items())
    folder = Path(sys.prefix) / name
    if why := _install(npm, folder, packages):
        yield why
        return
    with subprocess.Popen(
        [executable, str(script), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(question: Mapping[str, Any]) -> Any:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            return json.loads(stdout.readline())

        yield ask
        stdin.close()


def _install(npm: str, folder: Path, packages: Mapping[str, str]) -> str | None:
    """Install `packages` into `folder`, unless they are there; or why that cannot be."""
    if (folder / "installed").exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": dict(packages)}))
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    done = subprocess.run([npm, "install", *options], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"npm could not install {', '.join(packages)}: {done.stderr.strip().splitlines()[-1:]}"
    (folder / "installed").touch()  # only now: an installation that was broken off is begun again
    return None
