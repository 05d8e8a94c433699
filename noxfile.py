"""The project's sessions. `nox` without arguments runs the session `tests`, as CI does.

nox                      format, lint, types, tests with coverage (also of docs and examples), the site, and the wheel
nox -s bench -- NAME     run benchmarks/NAME.py; with --json, the last line has the figures as one JSON object
nox -s cost              measure the processor time of hostile inputs, and how it grows with their size: [-- --help]
nox -s crash             kill the service 200 times while it is paid, and check its database: [-- --feed | --help]
nox -s demo              create and pay an incoming payment between real processes, one of which is killed
nox -s disk              let syncs fail at random, and check 1,000 disks after power cuts: [-- --images N --seed S]
nox -s docs              write the generated parts of the docs, and build them as a site in build/site
nox -s edge              measure an honest peer's rate behind nginx during attacks: [-- --seconds S --turns N]
nox -s evidence          check each promise of the docs, and write docs/evidence.md: [-- --long] [ROW...]
nox -s explore           visit every state of small scenarios, with each order and each crash: [-- --help]
nox -s failover          kill a PostgreSQL primary and promote its standby, 20 times: [-- --rounds N --seed S]
nox -s fuzz              fuzz the parsers, the verification and the service, a minute for each target: [-- --help]
nox -s interop           cross-check signatures with other implementations: [-- --rounds N --seed N]
nox -s mutants           measure how many small changes of the code the tests notice: [-- PACKAGE...]
nox -s openapi           check the answers to 10,000 requests against the OpenAPI document: [-- --cases N --seed S]
nox -s postgres          kill PostgreSQL and worker processes, 100 times: [-- --rounds N --seed S]
nox -s release           build the files of a release in dist, and check them on each Python that is here
nox -s served            kill serve on PostgreSQL, and its primary, 100 times: [-- --rounds N --seed S]
nox -s simulate          simulate the service for a million steps; `-- --seed S --steps N` runs one seed
nox -s syncs             kill workers of serve inside a sync, and cut the power, 200 times: [-- --rounds N --seed S]
"""

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nox
from nox.command import CommandFailed

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["tests"]
nox.options.error_on_missing_interpreters = True

PYPROJECT = nox.project.load_toml("pyproject.toml")
CHECKED = ["src", "tests", "examples", "benchmarks", "noxfile.py"]
TYPED = ["src", "tests", "examples", "benchmarks"]
BUILD_SITE = [
    *("sphinx-build", "--fail-on-warning", "--keep-going", "--quiet", "--fresh-env", "--jobs", "auto"),
    *("--doctree-dir", "build/doctrees", "docs", "build/site"),
]


def _install(session: nox.Session, *groups: str) -> None:
    session.install("-e", ".[serve]", *nox.project.dependency_groups(PYPROJECT, *groups))


@nox.session
def tests(session: nox.Session) -> None:
    """Check format, lint and types, run the tests with coverage, build the site of the docs, and check the wheel."""
    _install(session, "tests", "lint", "bench", "docs")
    session.run("ruff", "format", "--check", *CHECKED)
    session.run("ruff", "check", *CHECKED)
    session.run("coverage", "erase")
    shutil.rmtree("build/site", ignore_errors=True)
    pytest = ["coverage", "run", "-m", "pytest"]
    parts = [[*pytest, *session.posargs]] if session.posargs else [[*pytest, *part] for part in _parts_of_tests()]
    _run_side_by_side(session, [*parts, ["mypy", "--strict", *TYPED], BUILD_SITE])
    session.run("python", "docs/check_site.py", "build/site")
    session.run("coverage", "combine", "--quiet")
    session.run("coverage", "report")
    _check_wheel(session)


def _parts_of_tests() -> list[list[str]]:
    """Return parts of the tests that take minutes each, the longest first."""
    folders = [str(path) for path in (*Path("tests/campaigns").iterdir(), *Path("tests/unit").iterdir())]
    alone = [
        "tests/unit/server",
        "tests/unit/stores/sqlite",
        "tests/unit/stores/postgres",
        "tests/campaigns/crash",
        "tests/unit/outbound",
        "tests/campaigns/postgres",
        "tests/campaigns/cost",
    ]
    stores = [str(path) for path in Path("tests/unit/stores").glob("test_*.py")]
    others = [folder for folder in folders if folder not in {*alone, "tests/unit/stores"} and _has_tests(folder)]
    parts = [[alone[0]], [*stores, *others[::2]], others[1::2], *([folder] for folder in alone[1:])]
    parts += [[*map(str, Path("tests").glob("test_*.py"))], ["src", "tests/kits"]]
    return [sorted(part) for part in parts]


def _run_side_by_side(session: nox.Session, commands: list[list[str]]) -> None:
    """Run all commands, three at a time, because many tests wait. Print what each has printed when it ends."""
    env = {**os.environ, "PATH": os.pathsep.join([session.bin, os.environ["PATH"]])}

    def run(command: list[str]) -> bool:
        line = [str(Path(session.bin) / command[0]), *command[1:]]
        done = subprocess.run(line, capture_output=True, text=True, env=env, check=False)  # noqa: S603
        print(f"{' '.join(command)}:\n{done.stdout}{done.stderr}", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(3) as executor:
        if not all(list(executor.map(run, commands))):
            session.error("a command has failed")


def _has_tests(path: str) -> bool:
    return path.endswith(".py") or any(Path(path).glob("**/test_*.py"))


def _check_wheel(session: nox.Session) -> None:
    """Build the wheel, install it into a fresh environment, and use it there from another folder."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "wheel"))
    folder = Path(session.create_tmp()).resolve()
    shutil.rmtree(folder / "dist", ignore_errors=True)
    session.run("python", "-m", "build", "--wheel", "--outdir", str(folder / "dist"))
    [wheel] = (folder / "dist").glob("*.whl")
    _use_wheel(session, "python", wheel)


def _use_wheel(session: nox.Session, interpreter: str, wheel: Path) -> None:
    """Install the wheel into a fresh environment of this Python, and use it there from another folder."""
    folder = wheel.parent.parent
    shutil.rmtree(folder / "fresh", ignore_errors=True)
    session.run(interpreter, "-m", "venv", str(folder / "fresh"), external=True)
    python = str(folder / "fresh" / ("Scripts" if os.name == "nt" else "bin") / "python")
    session.run(python, "-m", "pip", "install", "--quiet", str(wheel), external=True)
    check = Path("tests/wheel_check.py").resolve()
    with session.chdir(folder):
        session.run(python, "-W", "error", "-I", str(check), external=True)


@nox.session
def release(session: nox.Session) -> None:
    """Build the files of a release in `dist`, check them, and use the wheel on each supported Python that is here."""
    session.install(*nox.project.dependency_groups(PYPROJECT, "wheel", "release"))
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build")  # the wheel is built from the source archive
    [wheel] = Path("dist").resolve().glob("*.whl")
    session.run("twine", "check", "--strict", *map(str, Path("dist").iterdir()))
    session.run("check-wheel-contents", str(wheel))
    for python in nox.project.python_versions(PYPROJECT):
        _use_release(session, python, wheel)


def _use_release(session: nox.Session, python: str, wheel: Path) -> None:
    interpreter = f"python{python}"
    try:
        session.run(interpreter, "--version", external=True, silent=True)
    except CommandFailed:
        session.warn(f"Python {python} is not here: only the wheels that it needs are looked up")
        target = [f"--python-version={python}", "--only-binary=:all:", "--dry-run", f"--target={session.create_tmp()}"]
        session.run("python", "-m", "pip", "install", "--quiet", *target, f"{wheel}[serve,postgres]", "psycopg[binary]")
    else:
        _use_wheel(session, interpreter, wheel)


@nox.session
def demo(session: nox.Session) -> None:
    """Create, read, pay and complete an incoming payment between three real processes, and kill one of them."""
    session.install(".[serve]")
    session.run("incoming-payments", "demo", silent=False)


@nox.session
def cost(session: nox.Session) -> None:
    """Compare the processor times of hostile inputs: `nox -s cost [-- --bodies N --pieces N --seed S]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.cost.campaign", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def crash(session: nox.Session) -> None:
    """Kill the service while it is paid, then check its database: `nox -s crash [-- --help]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.crash.campaign", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def disk(session: nox.Session) -> None:
    """Let syncs fail under the store, and check disks after power cuts: `nox -s disk [-- --images N --seed S]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.disk.campaign", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def docs(session: nox.Session) -> None:
    """Write the generated parts of the docs, and build the docs as a site. A test fails when a part is out of date."""
    session.install("-e", ".[otel,outbound,postgres,prometheus,serve,testing]")
    session.install(*nox.project.dependency_groups(PYPROJECT, "docs"))
    session.run("python", "docs/generate.py")
    _build_site(session)
    print("open build/site/index.html")


def _build_site(session: nox.Session) -> None:
    """Build the docs as a site with warnings as errors, and check every link within the site."""
    shutil.rmtree("build/site", ignore_errors=True)
    session.run(*BUILD_SITE)
    session.run("python", "docs/check_site.py", "build/site")


@nox.session
def bench(session: nox.Session) -> None:
    """Run `benchmarks/NAME.py`: `nox -s bench -- NAME [--json]`."""
    names = sorted(path.stem for path in Path("benchmarks").glob("[!_]*.py"))
    if not session.posargs or session.posargs[0] not in names:
        session.error(f"name a benchmark: nox -s bench -- {' | '.join(names)}")
    _install(session, "tests", "bench")
    name, *arguments = session.posargs
    session.run("python", f"benchmarks/{name}.py", *arguments)


@nox.session
def mutants(session: nox.Session) -> None:
    """Run mutation testing, for about an hour: `nox -s mutants [-- PACKAGE...]`; `-- --help` for more."""
    _install(session, "tests", "mutants")
    session.run("python", "tests/campaigns/mutation/run.py", *session.posargs)


@nox.session
def interop(session: nox.Session) -> None:
    """Cross-check signatures with other implementations: `nox -s interop [-- --rounds N] [--seed N]`."""
    parser = argparse.ArgumentParser(prog="nox -s interop --")
    parser.add_argument(
        "--rounds", type=int, default=20_000, help="cases for each implementation and direction (20000)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="the seed of the first case; the next case has the next seed (1)"
    )
    options = parser.parse_args(session.posargs)
    _install(session, "tests")
    env = {f"INCOMING_PAYMENTS_INTEROP_{name.upper()}": str(value) for name, value in vars(options).items()}
    session.run("python", "-m", "pytest", "-rA", "-vv", "tests/campaigns/interop/test_cross_checks.py", env=env)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzz with coverage guidance: `nox -s fuzz [-- --seconds N | --runs N] [--json] [TARGET...]`."""
    _install(session, "tests")
    if not _has_atheris(session):
        session.skip("atheris has no wheel for this platform and this Python")
    session.run("python", "-m", "campaigns.fuzz.run", *session.posargs, env={"PYTHONPATH": "tests"})


def _has_atheris(session: nox.Session) -> bool:
    """Install atheris, and return whether there is a wheel. A build from source needs a clang with libFuzzer."""
    try:
        session.install("--only-binary=atheris", *nox.project.dependency_groups(PYPROJECT, "fuzz"))
    except CommandFailed:
        return False
    return True


@nox.session
def edge(session: nox.Session) -> None:
    """Attack `serve` behind nginx, and print the rate of an honest peer: `nox -s edge [-- --seconds S --turns N]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.edge.campaign", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def evidence(session: nox.Session) -> None:
    """Run each command of docs/evidence.md, and write its result there: `nox -s evidence [-- --long] [ROW...]`."""
    _install(session, "tests", "bench", "mutants")
    session.install("nox")
    _has_atheris(session)  # the page says so if not
    session.run("python", "-m", "campaigns.evidence.campaign", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def explore(session: nox.Session) -> None:
    """Run the flows in every order, with a crash at every effect: `nox -s explore [-- --path PATH --faults]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.explore.campaign", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def failover(session: nox.Session) -> None:
    """Kill a PostgreSQL primary under load and promote its standby: `nox -s failover [-- --rounds N --seed S]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.postgres.failover", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def postgres(session: nox.Session) -> None:
    """Kill PostgreSQL and its clients under load, and cut connections: `nox -s postgres [-- --rounds N --seed S]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.postgres.crash", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def served(session: nox.Session) -> None:
    """Kill `serve` with four workers, and its PostgreSQL primary: `nox -s served [-- --rounds N --seed S]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.postgres.served", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def openapi(session: nox.Session) -> None:
    """Let schemathesis test `serve` with signed requests: `nox -s openapi [-- --cases N --seed S]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.openapi.campaign", *session.posargs, env={"PYTHONPATH": "tests"})


@nox.session
def simulate(session: nox.Session) -> None:
    """Simulate a million steps: `nox -s simulate [-- --steps N --seed S --store NAME]`."""
    session.install("-e", ".")
    session.run("python", "tests/campaigns/simulation/session.py", *session.posargs)


@nox.session
def syncs(session: nox.Session) -> None:
    """Kill workers of `serve` inside a sync, and cut the power: `nox -s syncs [-- --rounds N --seed S --workers N]`."""
    _install(session, "tests")
    session.run("python", "-m", "campaigns.crash.syncs", *session.posargs, env={"PYTHONPATH": "tests"})


if __name__ == "__main__":
    sys.exit("run this with nox: python -m pip install nox && python -m nox")
