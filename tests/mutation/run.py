"""Mutation testing: is there a test for each thing that the code does? `nox -s mutants [-- FOLDER_OR_FILE...]`.

Each mutant, a module with one small change (`operators.py`), is run against the tests that belong to it (`TESTS`),
until the first fails: then it is killed. One that survives is a missing test, dead code, or the same program written
differently. The last kind is listed in `survivors.toml` with the reason; any other makes the session fail, and so does
an entry that is killed or that no module has any more.

    nox -s mutants                                  all of FOLDERS
    nox -s mutants -- gnap httpsig/keys.py          a folder and a module
    nox -s mutants -- --survivors httpsig           only those that survived last time; for working on tests
    nox -s mutants -- --list gnap                   the mutants, without running them

A run can be stopped at any time: begun again it goes on where it was, with what has not changed since.

Why not a tool from the shelf, on the modules of `httpsig` and `gnap`:

- mutmut 3.8 mutates only within functions, and of those none with a decorator but `staticmethod` and `classmethod`: no
  validator of an attrs class, no property, no enum, no table of constants, no limit used in a default, no regular
  expression. Those are what these modules are made of: of `codes.py` it makes no mutant at all.
- cosmic-ray 8 changes operators, numbers and names, but no string, statement, call, default that is not a number, or
  entry of a table: 27 mutants of `digest.py`. It starts an interpreter a mutant, and edits the files in place.

How it works: the parent imports what the tests need of other people's, and nothing of the project's. Each mutant gets a
fork of it, in which the one module is compiled from the changed tree when it is imported, and pytest runs. So a
constant that other modules import is changed for them too. Whoever takes ten times the processor time of the unchanged
run, or hangs, counts as killed, in a column of its own. Hypothesis is deterministic here, and shrinks nothing.
"""

import argparse
import ast
import gc
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import sys
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

from attrs import define, field, frozen

ROOT: Final = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from mutation.operators import Mutant, mutants  # noqa: E402

PACKAGE: Final = "incoming_payments"
SOURCE: Final = ROOT / "src" / PACKAGE
SURVIVORS: Final = Path(__file__).with_name("survivors.toml")
STATE: Final = ROOT / ".mutants.json"
LOG: Final = STATE.with_suffix(".log")
IMPORTS: Final = STATE.with_suffix(".imports")

FOLDERS: Final = ("domain", "gnap", "httpsig", "ilp")
# Left out unless they are asked for by name: they explain a refusal to the host's log, and decide nothing.
EXPLAIN: Final = {
    f"httpsig/explain/{name}.py" for name in ("__init__", "_bodies", "_case", "_hypotheses", "_redaction", "_trials")
}
# The tests of a module are its own file and its doctests, then these, which are about its folder as a whole. Those of
# its neighbours do not count: what only they notice is not tested where one would look for it.
TESTS: Final = {
    "gnap": (),
    "httpsig": ("tests/vectors/test_rfc9421.py", "tests/property/test_httpsig.py"),
    "ilp": ("tests/property/test_ilp.py",),
    "domain": ("tests/property/test_domain.py",),
}
ALSO: Final = {
    "httpsig/verify.py": ("tests/httpsig/test_shapes.py",),  # what a policy's shapes do is told there
    "ilp/receive.py": ("tests/flows/test_receive_packet.py",),  # what a sender is told of a payment in a store
}
KILLED_MIN: Final = 0.95  # of all mutants, listed survivors included
SLOWER_MAX: Final = 10  # times the processor time of the unchanged run, then it is taken for a loop without end
WAIT_S_MAX: Final = 3600  # of the clock, for one that waits for ever: many times what a busy machine makes of a run
EXAMPLES_MAX: Final = 25  # of one property
MEMORY_BYTES_MAX: Final = 4 * 2**30

KILLED, SURVIVED, TIMEOUT = "killed", "survived", "timeout"
_OK, _FAILED, _INTERRUPTED, _INTERNAL = 0, 1, 2, 3  # pytest's exit codes
_NOT_APPLIED: Final = 77


# --- one mutant ------------------------------------------------------------------------------------


@frozen
class Module:
    """A module of the package, by its path below it."""

    path: str  # httpsig/keys.py

    @property
    def name(self) -> str:
        return ".".join([PACKAGE, *Path(self.path).with_suffix("").parts]).removesuffix(".__init__")

    @property
    def source(self) -> str:
        return (SOURCE / self.path).read_text("utf-8")

    @property
    def tests(self) -> tuple[list[str], list[str]]:
        """Its own test file and its doctests, which are the likeliest to fail; and the others that belong to it."""
        folder, _, name = self.path.partition("/")
        own = [f"tests/{folder}/test_{name}", f"src/{PACKAGE}/{self.path}"]
        return [path for path in own if (ROOT / path).exists()], [*ALSO.get(self.path, ()), *TESTS[folder]]

    @property
    def digest(self) -> str:
        """Of everything that can change the outcome of one of its mutants."""
        own, others = self.tests
        paths = {*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").glob("*.py"), *Path(__file__).parent.glob("*.py")}
        digest = hashlib.sha256(sys.version.encode())
        for path in sorted({*paths, *(ROOT / test for test in own + others), ROOT / "pyproject.toml"}):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()

    @property
    def mutants(self) -> list[str]:
        """The names of its mutants."""
        return [mutant.name for mutant in mutants(ast.parse(self.source))]


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module of the package from another tree than its file holds."""

    def __init__(self, module: Module, tree: ast.Module) -> None:
        self.name = module.name
        self.path = str(SOURCE / module.path)
        self.code: CodeType = compile(ast.fix_missing_locations(tree), self.path, "exec")
        self.done = False

    def pytest_configure(self) -> None:
        """As a plugin of pytest: before its own importer, which rewrites assertions in whatever it is told to test."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Fewer examples for the property tests: what they would find by chance is worth a test of its own."""
        from hypothesis import settings

        for item in items:
            function: Any = getattr(item, "obj", None)
            if hasattr(function, "hypothesis"):
                given = function._hypothesis_internal_use_settings
                few = settings(given, max_examples=min(given.max_examples, EXAMPLES_MAX))
                function._hypothesis_internal_use_settings = few

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        is_package = self.path.endswith("__init__.py")
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=self.path, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [str(Path(self.path).parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        self.done = True
        exec(self.code, module.__dict__)  # noqa: S102


def _run_tests(module: Module, mutant: Mutant | None, tree: ast.Module, cpu_s_max: float) -> int:
    """In a process of its own: the exit code of pytest with `mutant` in place."""
    import pytest

    gc.disable()  # the process is gone before it would pay
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s_max) + 1, int(cpu_s_max) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    if mutant is not None:
        mutant.edit.apply()
    try:
        mutated = Mutated(module, tree)
    except (SyntaxError, ValueError, TypeError):
        return _NOT_APPLIED  # no Python: the rule that made it is at fault
    options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what the parent has imported
    code = _NOT_APPLIED
    for paths in filter(None, module.tests):
        code = int(pytest.main([*options, *paths], plugins=[mutated]))
        if code != _OK or not mutated.done:
            break
    return code if mutated.done else _NOT_APPLIED


def _fork(module: Module, mutant: Mutant | None, tree: ast.Module, cpu_s_max: float = WAIT_S_MAX) -> int:
    """Start it; the id of the process, whose exit code is pytest's, and which may leave a log behind."""
    pid = os.fork()
    if pid:
        return pid
    code = _FAILED
    try:
        os.setpgid(0, 0)
        output = os.open(LOG if mutant is None else os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = _run_tests(module, mutant, tree, cpu_s_max)
        if mutant is None:
            IMPORTS.write_text("\n".join(_foreign_modules()))
    except BaseException:  # noqa: BLE001 - a mutant can raise anything, and nothing may get into the parent's code
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# --- all of them -------------------------------------------------------------------------------------


@define
class State:
    """The outcomes of earlier runs, by module and mutant, each with the digest of what they hold for."""

    digests: dict[str, str] = field(factory=dict)
    outcomes: dict[str, dict[str, str]] = field(factory=dict)

    @classmethod
    def load(cls) -> "State":
        """As it was saved; nothing when there is none."""
        with suppress(OSError, ValueError, TypeError):
            return cls(**json.loads(STATE.read_text()))
        return cls()

    def save(self) -> None:
        """So that a run that is stopped loses nothing."""
        part = STATE.with_suffix(".part")
        part.write_text(json.dumps({"digests": self.digests, "outcomes": self.outcomes}, indent=0))
        part.replace(STATE)

    def todo(self, module: Module, *, survivors: bool) -> list[int]:
        """The mutants of `module`, by their place, whose outcome is not known for what it is now.

        With `survivors` those that were killed are taken for killed whatever has changed since.
        """
        known = self.outcomes.setdefault(module.path, {})
        current = self.digests.get(module.path) == module.digest
        if not current and not survivors:
            known.clear()
            self.digests[module.path] = module.digest
        again = survivors and not current
        return [i for i, name in enumerate(module.mutants) if name not in known or (again and known[name] == SURVIVED)]


def _modules(chosen: Sequence[str]) -> list[Module]:
    found: list[Module] = []
    for name in chosen or FOLDERS:
        path = SOURCE / name.removeprefix(f"src/{PACKAGE}/").rstrip("/")
        if not path.exists():
            raise SystemExit(f"{name} is no folder and no module of {SOURCE.relative_to(ROOT)}")
        paths = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        inside = [Module(str(one.relative_to(SOURCE))) for one in paths]
        found += [module for module in inside if path.is_file() or module.path not in EXPLAIN]
    return found


def _prepare() -> None:
    """Deterministic tests, without what is outside the project."""
    os.chdir(ROOT)
    os.environ.pop("INCOMING_PAYMENTS_VECTORS", None)
    os.environ["PYTEST_ADDOPTS"] = ""
    sys.dont_write_bytecode = False  # of what is not mutated
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],  # a busy machine kills no mutant
    )
    settings.load_profile("mutants")


def _warm_up(module: Module) -> float:
    """Import what the tests of `module` need, and see that they pass without a mutant; the processor time they take."""
    cpu_s = 0.0
    for _ in ("cold", "warm"):
        _, status, usage = os.wait4(_fork(module, None, ast.parse(module.source)), 0)
        if os.waitstatus_to_exitcode(status) != _OK:
            raise SystemExit(f"the tests of {module.path} fail without a mutant:\n{LOG.read_text()}")
        for name in IMPORTS.read_text().split():
            with suppress(Exception), warnings.catch_warnings(action="ignore"):
                importlib.import_module(name)  # what cannot be imported alone is imported in each child
        IMPORTS.unlink()
        LOG.unlink()
        cpu_s = usage.ru_utime + usage.ru_stime
    return cpu_s


def _foreign_modules() -> Iterator[str]:
    """What has been imported that is not of this project."""
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None) or ""
        root = name.partition(".")[0]
        if root in sys.stdlib_module_names or ("site-packages" in origin and root != PACKAGE):
            yield name


@define
class Runner:
    """Runs mutants, as many at a time as there are processors."""

    state: State
    workers: int
    running: dict[int, tuple[Module, str, float]] = field(factory=dict)

    def run(self, module: Module, todo: list[int]) -> None:
        """Run those mutants of `module`, by their place in the list."""
        cpu_s_max = SLOWER_MAX * _warm_up(module)
        try:
            self._run(module, todo, cpu_s_max)
        finally:
            for pid in self.running:
                _end_group(pid)

    def _run(self, module: Module, todo: list[int], cpu_s_max: float) -> None:
        tree = ast.parse(module.source)
        found = mutants(tree)
        gc.freeze()  # what is here belongs to all children, which need not look through it again and again
        for index in todo:
            while len(self.running) >= self.workers:
                self.wait()
            pid = _fork(module, found[index], tree, cpu_s_max)  # the edit is made in the child's copy of the tree
            self.running[pid] = module, found[index].name, time.monotonic()
        while self.running:
            self.wait()

    def wait(self) -> None:
        """Until one has ended, or has to be ended."""
        while True:
            for pid, (module, name, since) in list(self.running.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del self.running[pid]
                    self.state.outcomes[module.path][name] = _outcome(name, os.waitstatus_to_exitcode(status))
                    self.state.save()
                    _end_group(pid)
                    return
                if time.monotonic() - since > WAIT_S_MAX:
                    _end_group(pid)
            time.sleep(0.01)


def _end_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _outcome(name: str, code: int) -> str:
    if code == _OK:
        return SURVIVED
    if code in (-signal.SIGXCPU, -signal.SIGKILL):
        return TIMEOUT
    if code in (_FAILED, _INTERRUPTED, _INTERNAL) or code < 0:
        return KILLED
    raise SystemExit(f"{name}: pytest gave {code}, so nothing is known of it")


# --- the report ------------------------------------------------------------------------------------------


def listed() -> dict[str, str]:
    """The survivors that are known, with the reason."""
    listed: dict[str, str] = {}
    for group in tomllib.loads(SURVIVORS.read_text("utf-8")).get("group", []):
        if not group["reason"].strip():
            raise SystemExit("survivors.toml: each group has a reason")
        for name in group["mutants"]:
            listed[f"{group['module']}::{name}"] = group["reason"]
    return listed


def report(modules: Sequence[Module], outcomes: dict[str, dict[str, str]], listed: dict[str, str]) -> int:
    """Print what came out; 0 when every survivor is listed, every entry survives, and enough are killed."""
    columns = ("mutants", KILLED, TIMEOUT, SURVIVED, "listed")
    rows: list[tuple[str, ...]] = [("module", *columns)]
    total: Counter[str] = Counter()
    survived: set[str] = set()
    names: set[str] = set()
    for module in modules:
        keys = [f"{module.path}::{name}" for name in module.mutants]
        known = outcomes[module.path]
        left = {key for key in keys if known[key.partition("::")[2]] == SURVIVED}
        count = Counter(known[name] for name in module.mutants)
        count += Counter({"mutants": len(keys), "listed": len(left & {*listed})})
        total += count
        names.update(keys)
        survived |= left
        rows.append((module.path, *(str(count[name]) for name in columns)))
    rows.append(("together", *(str(total[name]) for name in columns)))
    for first, *rest in rows:
        print(f"{first:28}" + "".join(f"{cell:>10}" for cell in rest))
    paths = {module.path for module in modules}
    unlisted = sorted(survived - {*listed})
    stale = [key for key in listed if key.partition("::")[0] in paths and key not in survived]
    _print_all("Survivors that survivors.toml does not list: write a test, or the reason why none can", unlisted)
    _print_all("Listed, but killed: take them out", [key for key in stale if key in names])
    _print_all("Listed, but no module has them: take them out", [key for key in stale if key not in names])
    share = 1 - total[SURVIVED] / total["mutants"] if total["mutants"] else 1
    print(f"\n{100 * share:.1f} % killed, {100 * KILLED_MIN:.0f} % wanted")
    return 1 if unlisted or stale or share < KILLED_MIN else 0


def _print_all(title: str, keys: Sequence[str]) -> None:
    if keys:
        print(f"\n{title}:", *keys, sep="\n  ")


def main(arguments: Sequence[str]) -> int:
    """The session."""
    parser = argparse.ArgumentParser(prog="nox -s mutants --", description=__doc__.partition("\n")[0])
    parser.add_argument("chosen", nargs="*", help=f"folders or modules below {SOURCE.relative_to(ROOT)}")
    parser.add_argument("--survivors", action="store_true", help="run only those that survived last time")
    parser.add_argument("--list", action="store_true", help="print the mutants")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    modules = _modules(options.chosen)
    if options.list:
        for module in modules:
            for mutant in mutants(ast.parse(module.source)):
                print(f"{module.path}:{mutant.line}: {mutant.name}")
        return 0
    _prepare()
    state = State.load()
    runner = Runner(state, options.workers)
    began = time.monotonic()
    for module in modules:
        if todo := state.todo(module, survivors=options.survivors):
            runner.run(module, todo)
            print(f"{module.path}: {len(todo)} run, {time.monotonic() - began:.0f} s", flush=True)
    code = report(modules, state.outcomes, listed())
    if any(state.digests.get(module.path) != module.digest for module in modules):
        print("Something has changed since the others were killed: run it once more without --survivors.")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
