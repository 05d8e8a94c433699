"""Run a Node program with packages from npm, for a comparison. It reads and writes lines of JSON."""

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
    """Run `script`. Yield a function that sends it a line and returns the answer, or the reason why it cannot run.

    `packages` maps names to exact versions. They are installed once, into the environment of this program and outside
    the project.
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
    """Install `packages` into `folder` if they are missing. Return the reason if the installation fails."""
    if (folder / "installed").exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": dict(packages)}))
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    done = subprocess.run([npm, "install", *options], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"npm could not install {', '.join(packages)}: {done.stderr.strip().splitlines()[-1:]}"
    (folder / "installed").touch()  # last, so that an interrupted installation starts again
    return None
