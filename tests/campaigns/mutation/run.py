"""Mutation testing: do the tests notice small changes of the code? `nox -s mutants [-- PACKAGE...]`.

mutmut makes and runs the mutants. A mutant survives when all tests of its package pass. The session fails when a
package has fewer than 95 % of its mutants killed. There is no list of excused survivors.

mutmut changes only the bodies of functions without decorators. `expose` therefore rewrites a copy of the package first:
a decorated function becomes a plain function that is decorated by an assignment, and the value of a module's `Final`
becomes the body of a function. So validators, properties, cached functions, limits, tables and regular expressions are
mutated too. The statements of a class body (fields of attrs classes, members of enums) are not.

Each mutant runs in a process that imports the package again, with empty caches and with the mutant active during the
import.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
SOURCE: Final = Path("src/incoming_payments")
WORK: Final = ROOT / ".mutants"  # one folder a package, in which mutmut runs

# The tests of a package are its own. A mutant that only the tests of another package notice counts as survived. Tests
# that take longer than a few seconds are left out, because each survivor runs all tests that reach it.
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "domain": ("tests/unit/domain",),
    "httpsig": ("tests/unit/httpsig", "tests/unit/vectors/test_rfc9421.py"),
    "gnap": ("tests/unit/gnap",),
    "ilp": ("tests/unit/ilp", "tests/unit/flows/test_receive_packet.py"),
    "flows": ("tests/unit/flows", "tests/unit/endpoints", "tests/unit/service"),
    "stores": ("tests/unit/stores",),
    "wire": ("tests/unit/wire", "tests/unit/property/test_wire.py"),
    "endpoints": ("tests/unit/endpoints",),
}
# It explains a refusal to the host's log and decides nothing.
NOT_MUTATED: Final = (f"{SOURCE}/httpsig/explain/*",)
KILLED_MIN: Final = 0.95
PLUGIN: Final = "mutmut_plugin"
_SLOW: Final = ("random_histories", "log_stays_short", "copying_the_file", "stop_reaches_another_process")
PYTEST_OPTIONS: Final = (
    *("-k", " and ".join(f"not {name}" for name in _SLOW)),
    *("-p", "no:cacheprovider", "-p", PLUGIN),
    "--ignore-glob=*/test_explain.py",  # slow, and about modules that are not mutated
    "--ignore-glob=*/test_processes.py",  # slow
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # about the modules that PLUGIN lists
    "--hypothesis-profile=mutants",  # also in PLUGIN
    # A mutant of a store often leaves its callers waiting. The end of the process counts as a failed test.
    *("-o", "faulthandler_timeout=60", "-o", "faulthandler_exit_on_timeout=true"),
)


class _Expose(ast.NodeTransformer):
    """Rewrite code that mutmut does not mutate into equivalent functions without decorators."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> list[ast.stmt]:
        kept = {"staticmethod", "classmethod", "overload"}  # mutmut mutates the first two as they are
        names = {name.id for decorator in node.decorator_list for name in ast.walk(decorator) if type(name) is ast.Name}
        if not node.decorator_list or names & {*kept, node.name}:
            return [node]
        decorated: ast.expr = ast.Name(node.name, ast.Load())
        for decorator in reversed(node.decorator_list):
            decorated = ast.Call(decorator, [decorated], [])
        node.decorator_list = []
        return [node, ast.Assign([ast.Name(node.name, ast.Store())], decorated)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        if node.value is None or not ast.unparse(node.annotation).startswith("Final"):
            return [node]
        name = f"_value_of_{ast.unparse(node.target)}"
        arguments = ast.arguments([], [], None, [], [], None, [])
        function = ast.FunctionDef(name, arguments, [ast.Return(node.value)], [])
        node.value = ast.Call(ast.Name(name, ast.Load()), [], [])
        return [function, node]

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        methods = [self.visit_FunctionDef(inner) if type(inner) is ast.FunctionDef else [inner] for inner in node.body]
        node.body = [statement for statements in methods for statement in statements]
        return node


def expose(source: str) -> str:
    """Return an equivalent of `source` in which mutmut mutates decorated functions and the values of `Final` names.

    >>> print(expose('''
    ... SIZE_MAX: Final = 7
    ... class Box:
    ...     @size.validator
    ...     def _small(self, _, size): check(size)
    ... '''))
    def _value_of_SIZE_MAX():
        return 7
    SIZE_MAX: Final = _value_of_SIZE_MAX()
    <BLANKLINE>
    class Box:
    <BLANKLINE>
        def _small(self, _, size):
            check(size)
        _small = size.validator(_small)
    """
    return ast.unparse(ast.fix_missing_locations(_Expose().visit(ast.parse(source))))


def configuration(package: str) -> str:
    """Return the `[tool.mutmut]` table for `package`."""
    lists = {
        "source_paths": ["src"],
        "only_mutate": [f"{SOURCE}/{package}.py", f"{SOURCE}/{package}/*"],
        "do_not_mutate": NOT_MUTATED,
        "pytest_add_cli_args": PYTEST_OPTIONS,
        "pytest_add_cli_args_test_selection": PACKAGES[package],
        "also_copy": [f"{PLUGIN}.py"],
    }
    words = {"process_isolation": "forkserver", "forkserver_warmup": "import", "preload_modules_file": "preloaded.txt"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in {**lists, **words}.items()]
    # A mutant may take 15 times as long as its tests and this constant together. A busy machine then kills no mutant.
    switches = ["use_git_change_detection = false", "timeout_constant = 8.0"]
    return "\n".join(["", "[tool.mutmut]", *switches, *lines, ""])


def prepare(package: str) -> Path:
    """Write the folder in which mutmut runs for `package`, and return its path."""
    folder = WORK / package
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    target = folder / SOURCE / package
    for path in sorted(target.rglob("*.py")) if target.is_dir() else [target.with_suffix(".py")]:
        path.write_text(expose(path.read_text("utf-8")), "utf-8")
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / f"{PLUGIN}.py").symlink_to(Path(__file__).with_name(f"{PLUGIN}.py"))
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(settings + configuration(package), "utf-8")
    return folder


def killed_share(counts: Mapping[str, int]) -> float:
    """Return the share of mutants that the tests noticed, from the counts that mutmut exports.

    A mutant without tests, or one that did not run, counts as survived.
    """
    # mutmut says "interrupted" for pytest's exit code 2: the mutated module could not be imported.
    noticed = ("killed", "timeout", "suspicious", "segfault", "check_was_interrupted_by_user")
    return sum(counts[name] for name in noticed) / counts["total"]


def sampled(folder: Path, size: int, seed: int = 0) -> list[str]:
    """Return the names of `size` mutants in `folder`, or of all if there are fewer. `seed` decides the choice."""
    files = sorted((folder / "mutants").rglob("*.meta"))
    names = [name for file in files for name in json.loads(file.read_text("utf-8"))["exit_code_by_key"]]
    return random.Random(seed).sample(names, min(size, len(names)))


def run(package: str, *, processes: int, sample: int | None = None, seed: int = 0) -> float:
    """Run the mutants of `package`, print the survivors, and return the share of mutants that were killed.

    With `sample`, run so many of the mutants, which `seed` chooses, and return the share of those.
    """
    folder = prepare(package)
    env = {**os.environ, "PYTHONPATH": str(folder), "PYTHONHASHSEED": "0"}
    for name in ("INCOMING_PAYMENTS_VECTORS", "PYTHONDONTWRITEBYTECODE"):
        env.pop(name, None)
    began = time.monotonic()

    def mutmut(*arguments: str, stdout: int | None = None, check: bool = True) -> str:
        done = subprocess.run(["mutmut", *arguments], cwd=folder, env=env, stdout=stdout, text=True, check=check)
        return done.stdout or ""

    names: list[str] = []
    if sample:
        # mutmut makes all mutants before it refuses a name that no mutant has.
        mutmut("run", "no-such-mutant", check=False)
        names = sampled(folder, sample, seed)
    mutmut("run", "--max-children", str(processes), *names)
    mutmut("export-cicd-stats", stdout=subprocess.DEVNULL)
    counts = json.loads((folder / "mutants/mutmut-cicd-stats.json").read_text("utf-8"))
    of = f"of {counts['total']} " if names else ""
    counts["total"] = len(names) or counts["total"]
    results = mutmut("results", stdout=subprocess.PIPE).splitlines()
    survivors = [
        line for line in results if line.endswith(("survived", "no tests", *(() if names else ["not checked"])))
    ]
    print(*survivors, sep="\n")
    share = killed_share(counts)
    seconds = time.monotonic() - began
    print(f"{package}: {counts['total']} {of}mutants, {100 * share:.1f} % killed, {seconds:.0f} s", flush=True)
    if survivors:
        print(f"See one with: cd {folder.relative_to(ROOT)} && mutmut show NAME", flush=True)
    return share


def main(arguments: Sequence[str]) -> int:
    """Run the session; return 0 when each package has enough of its mutants killed."""
    parser = argparse.ArgumentParser(prog="nox -s mutants --", description=__doc__.partition("\n")[0])
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=f"from {', '.join(PACKAGES)} (all of them)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="mutants at a time (one a processor)"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="run N mutants of each package, chosen at random (all)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="the seed of the sample (0)")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.packages if name not in PACKAGES]:
        parser.error(f"unknown package {', '.join(unknown)}: choose from {', '.join(PACKAGES)}")
    shares = {
        name: run(name, processes=options.processes, sample=options.sample, seed=options.seed)
        for name in options.packages or PACKAGES
    }
    print("\n" + "\n".join(f"{name:10} {100 * share:5.1f} % killed" for name, share in shares.items()))
    missed = [name for name, share in shares.items() if share < KILLED_MIN]
    if missed:
        print(f"Fewer than {100 * KILLED_MIN:.0f} % killed: {', '.join(missed)}. Write tests for the survivors above.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
