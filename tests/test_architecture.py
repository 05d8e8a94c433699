"""The arrows of the design do not turn round: who may import whom, and which modules may touch the world.

The source is read with `ast`, so an import within a function or for the type checker counts as well. The rules are
the three tables below; that the checks themselves can fail is tested at the end.
"""

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import incoming_payments

PACKAGE: Final = "incoming_payments"
SOURCE: Final = Path(incoming_payments.__file__).parent
TESTS: Final = Path(__file__).parent

# errors, limits -> domain -> {wire, httpsig, gnap, ilp} -> flows -> api -> ilp_http -> hosts
# domain, gnap -> ports -> {stores, clients}; flows may import ports
GROUND: Final = {"errors", "limits"}
CORE: Final = {*GROUND, "domain"}
FLOWS: Final = {*CORE, "wire", "httpsig", "gnap", "ilp", "ports"}
EVERYTHING: Final = {*FLOWS, "flows", "api", "ilp_http", "stores", "clients", "hosts", "testing", PACKAGE}
MAY_IMPORT: Final[dict[str, set[str]]] = {
    "errors": set(),
    "limits": set(),
    "domain": GROUND,
    "wire": CORE,
    "httpsig": GROUND,  # usable alone
    "gnap": CORE,
    "ilp": CORE,
    "ports": {*CORE, "gnap"},
    "flows": FLOWS,
    "api": {*FLOWS, "flows"},
    "ilp_http": {*FLOWS, "flows", "api"},
    "stores": {*CORE, "gnap", "ports"},
    "clients": {*CORE, "gnap", "ports"},
    "hosts": EVERYTHING,
    "testing": EVERYTHING,  # but for the command
    PACKAGE: {*FLOWS, "flows", "api", "ilp_http"},  # the public names
}
NEVER: Final = {"testing": (f"{PACKAGE}.hosts.command", f"{PACKAGE}.hosts.sign_command")}
# Only the edges diagnose a refusal: `verify` and the flows know nothing of it.
EXPLAIN: Final = f"{PACKAGE}.httpsig.explain"
MAY_EXPLAIN: Final = ("hosts", "server")

# What is installed with the library, and who needs it. Drivers and servers are extras of the edges.
MAY_INSTALL: Final[dict[str, set[str]]] = {
    "errors": set(),
    "limits": set(),
    "domain": {"attrs"},
    "wire": {"attrs", "cattrs", "dateutil"},
    "httpsig": {"attrs", "cryptography", "http_sf", "nacl"},
    "gnap": {"attrs"},
    "ilp": {"attrs", "cryptography"},
    "ports": {"attrs"},
    "flows": {"attrs"},
    "api": {"attrs"},
    "ilp_http": {"attrs"},
    "stores": {"attrs", "psycopg"},
    "clients": {"attrs"},
    "hosts": {"attrs", "httptools", "uvicorn"},
    "testing": {"attrs", "hypothesis", "pytest"},
    PACKAGE: set(),
}
OPTIONAL: Final = {"nacl"}  # the core uses it when it is there
STUBS: Final = {"_typeshed"}  # known to the type checker only
DRIVERS: Final = {"sqlite3", "psycopg"}

# Pure modules take time, randomness and ids as arguments, and wait for nothing.
PURE: Final = {"domain", "wire", "httpsig", "gnap", "ilp", "flows", "api", "ilp_http"}
IMPURE: Final = {
    "asyncio", "concurrent", "ctypes", "http", "importlib", "io", "logging", "multiprocessing", "os", "pathlib",
    "queue", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time",
}  # fmt: skip
CLOCKS: Final = {
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "uuid.uuid1",
    "uuid.uuid4",
}
EFFECTS_OF_BUILTINS: Final = {"__import__", "eval", "exec", "input", "open", "print"}


def modules() -> Iterator[tuple[str, str]]:
    """Every module of the package: its dotted name and its source."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts]
        yield ".".join(parts), path.read_text("utf-8")


def part_of(name: str) -> str:
    """The part of the package that a dotted name belongs to; the package itself for names it exports."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else PACKAGE


def imports(module: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every name that `tree` imports, dotted and absolute, with the name it gets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, alias.asname or alias.name
        elif isinstance(node, ast.ImportFrom):
            above = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{origin}.{alias.name}", alias.asname or alias.name


def dotted(node: ast.AST) -> str:
    """`a.b.c` as text, or nothing when it is more than names and dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def complaints(module: str, source: str) -> list[str]:
    """What `source` does that a module of this name must not do."""
    tree = ast.parse(source)
    part = part_of(module)
    found: list[str] = []
    local: dict[str, str] = {}
    for name, known_as in imports(module, tree):
        local[known_as] = name
        found += wrong_import(part, name)
        if is_below(name, (EXPLAIN,)) and part not in MAY_EXPLAIN and not is_below(module, (EXPLAIN,)):
            found.append(f"{part} imports {name}")
    if part in PURE:
        found += [f"reads {what}" for what in sorted(clocks(tree, local))]
    return found


def wrong_import(part: str, name: str) -> Iterator[str]:
    """Why `part` may not import `name`, if it may not."""
    root = name.partition(".")[0]
    if root == PACKAGE:
        if part_of(name) not in {part, *MAY_IMPORT[part]} or is_below(name, NEVER.get(part, ())):
            yield f"{part} imports {name}"
    elif root not in sys.stdlib_module_names:
        if root not in MAY_INSTALL[part] | STUBS:
            yield f"{part} needs {root}"
    elif part in PURE and root in IMPURE:
        yield f"{part} imports {root}"


def is_below(name: str, modules: tuple[str, ...]) -> bool:
    """Whether a dotted name is one of `modules`, or in one of them."""
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


def clocks(tree: ast.AST, local: dict[str, str]) -> Iterator[str]:
    """What in `tree` reads a clock, draws randomness or touches the world, whatever it was imported as."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            head, _, rest = dotted(node).partition(".")
            name = f"{local.get(head, head)}.{rest}".rstrip(".")
            if name in CLOCKS:
                yield name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EFFECTS_OF_BUILTINS:
            yield f"{node.func.id}()"


# --- the package ---------------------------------------------------------------------------------

ALL: Final = dict(modules())


@pytest.mark.parametrize("module", ALL)
def test_imports_follow_the_arrows(module: str) -> None:
    """No module imports what lies downstream of it, what it need not have installed, or, if pure, the world."""
    assert complaints(module, ALL[module]) == []


def test_every_module_has_its_place() -> None:
    """A new part of the package is put into the tables above, and the tables are about the same parts."""
    parts = {name.split(".")[1] for name in ALL} - {"__init__"}
    assert parts <= set(MAY_IMPORT)
    assert set(MAY_INSTALL) == set(MAY_IMPORT)


def test_httpsig_and_ilp_know_nothing_of_each_other() -> None:
    """Either can be used, and understood, without the other."""
    assert "ilp" not in MAY_IMPORT["httpsig"]
    assert "httpsig" not in MAY_IMPORT["ilp"]


@pytest.mark.parametrize("module", [name for name in ALL if part_of(name) == "stores"])
def test_a_store_imports_one_driver_at_most(module: str) -> None:
    """Who uses one database need not install another's driver."""
    assert len({name.partition(".")[0] for name, _ in imports(module, ast.parse(ALL[module]))} & DRIVERS) <= 1


@pytest.mark.parametrize("module", [name for name in ALL if not name.rpartition(".")[2].startswith("_")])
def test_every_module_has_its_own_test_file(module: str) -> None:
    """The tests mirror the source. A private module is tested through the public one that it belongs to."""
    *folder, name = module.split(".")[1:]
    assert TESTS.joinpath(*folder, f"test_{name}.py").is_file()


def test_the_library_declares_what_it_imports() -> None:
    """What the tables allow in the core is what an installation brings, under the names of the distributions."""
    core = set().union(*(needs for part, needs in MAY_INSTALL.items() if part not in {"stores", "hosts", "testing"}))
    core -= OPTIONAL
    required = {
        re.split(r"[^A-Za-z0-9-]", requirement)[0]
        for requirement in importlib.metadata.requires("incoming-payments") or []
        if "extra ==" not in requirement
    }
    assert {"python-dateutil" if name == "dateutil" else name.replace("_", "-") for name in core} == required


WITHOUT_EXTRAS: Final = """
import importlib, sys

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"{name} is optional")

sys.meta_path.insert(0, Bare())
for name in MODULES:
    importlib.import_module(name)
"""
EXTRAS: Final = {
    "asyncpg", "flask", "http_sfv", "httptools", "httpx", "hypothesis", "nacl", "psycopg", "pytest", "starlette",
    "uvicorn", "werkzeug",
}  # fmt: skip
NEEDS_NO_EXTRA: Final = [
    *(name.removesuffix(".__init__") for name in ALL if part_of(name) in {*GROUND, *PURE, "ports", PACKAGE}),
    f"{PACKAGE}.testing.sender",
    f"{PACKAGE}.hosts.demo",  # which needs `serve` for the service that it starts
]


def import_without_extras(names: list[str]) -> subprocess.CompletedProcess[str]:
    """Import `names` in an interpreter in which nothing optional can be imported."""
    program = WITHOUT_EXTRAS.replace("EXTRAS", repr(EXTRAS)).replace("MODULES", repr(names))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_core_imports_without_optional_dependencies() -> None:
    """`import incoming_payments`, each module from domain to api, and the demo with its sender need no extra."""
    done = import_without_extras(NEEDS_NO_EXTRA)
    assert (done.returncode, done.stderr) == (0, "")


# --- the checks can fail -----------------------------------------------------------------------------


def test_the_check_for_optional_dependencies_can_fail() -> None:
    """An import of an extra does not get through, although it is installed here."""
    done = import_without_extras(["pytest"])
    assert done.returncode == 1
    assert "ModuleNotFoundError: pytest is optional" in done.stderr


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("errors", "from incoming_payments.limits import X", ["errors imports incoming_payments.limits.X"]),
        ("domain.amount", "import incoming_payments.wire", ["domain imports incoming_payments.wire"]),
        ("domain.amount", "from incoming_payments import wire", ["domain imports incoming_payments.wire"]),
        ("domain.amount", "from incoming_payments import run", ["domain imports incoming_payments.run"]),
        ("domain.amount", "from .. import wire", ["domain imports incoming_payments.wire"]),
        ("domain.amount", "from ..wire import X", ["domain imports incoming_payments.wire.X"]),
        ("domain.amount", "from . import urls", []),
        ("domain.amount", "import cattrs", ["domain needs cattrs"]),
        ("wire", "from incoming_payments.gnap.token import X", ["wire imports incoming_payments.gnap.token.X"]),
        ("httpsig.base", "import incoming_payments.domain.urls", ["httpsig imports incoming_payments.domain.urls"]),
        ("httpsig.base", "import incoming_payments.ilp", ["httpsig imports incoming_payments.ilp"]),
        ("ilp.address", "import incoming_payments.httpsig", ["ilp imports incoming_payments.httpsig"]),
        *(
            (module, f"from {EXPLAIN} import explain", [f"{part} imports {EXPLAIN}.explain"])
            for module, part in (("httpsig.__init__", "httpsig"), ("flows.get", "flows"), ("api", "api"))
        ),
        ("httpsig.verify", "from incoming_payments.httpsig import explain", [f"httpsig imports {EXPLAIN}"]),
        ("httpsig.explain._case", f"from {EXPLAIN}._redaction import Redactor", []),
        ("hosts.host_log", f"from {EXPLAIN} import explain", []),
        ("gnap.access", "import incoming_payments.ports", ["gnap imports incoming_payments.ports"]),
        ("ports", "import incoming_payments.flows.run", ["ports imports incoming_payments.flows.run"]),
        ("ports", "import incoming_payments.gnap.token", []),
        ("flows.get", "import incoming_payments.api", ["flows imports incoming_payments.api"]),
        ("flows.get", "import incoming_payments.stores", ["flows imports incoming_payments.stores"]),
        ("flows.get", "import incoming_payments.ports", []),
        ("api", "def f():\n import incoming_payments.hosts", ["api imports incoming_payments.hosts"]),
        (
            "api",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import incoming_payments.testing",
            ["api imports incoming_payments.testing"],
        ),
        ("stores.memory", "import incoming_payments.flows.run", ["stores imports incoming_payments.flows.run"]),
        ("stores.memory", "import threading", []),
        ("hosts.wsgi", "import incoming_payments.testing, asyncio", []),
        ("hosts.wsgi", "import flask", ["hosts needs flask"]),
        ("testing.clock", "import incoming_payments.hosts.wsgi", []),
        (
            "testing.clock",
            "import incoming_payments.hosts.command",
            ["testing imports incoming_payments.hosts.command"],
        ),
        (
            "testing.clock",
            "from incoming_payments.hosts import command",
            ["testing imports incoming_payments.hosts.command"],
        ),
        (
            "testing.clock",
            "from incoming_payments.hosts import sign_command",
            ["testing imports incoming_payments.hosts.sign_command"],
        ),
        ("testing.clock", "import incoming_payments.hosts.curl", []),
        ("__init__", "import incoming_payments.hosts", ["incoming_payments imports incoming_payments.hosts"]),
        *(
            ("gnap.token", f"import {world}", [f"gnap imports {world}"])
            for world in ("socket", "asyncio", "threading", "sqlite3", "time", "random", "secrets", "os")
        ),
        ("flows.run", "import logging", ["flows imports logging"]),
        ("flows.run", "from os import path as p", ["flows imports os"]),
        ("flows.run", "from datetime import datetime\ndatetime.now(None)", ["reads datetime.datetime.now"]),
        ("flows.run", "from datetime import datetime as d\nd.utcnow()", ["reads datetime.datetime.utcnow"]),
        ("flows.run", "import datetime\ndatetime.datetime.today()", ["reads datetime.datetime.today"]),
        ("flows.run", "import datetime as dt\nx = dt.date.today", ["reads datetime.date.today"]),
        ("flows.run", "from datetime import date\nf(factory=date.today)", ["reads datetime.date.today"]),
        ("flows.run", "from time import time\ntime()", ["flows imports time"]),
        ("flows.run", "from uuid import uuid4\nuuid4()", ["reads uuid.uuid4"]),
        ("flows.run", "effect.now\nself.today()\nf().now()", []),
        ("flows.run", "open('x')", ["reads open()"]),
        ("stores.memory", "from datetime import datetime\ndatetime.now(None)", []),
    ],
)
def test_the_checker_can_fail(module: str, source: str, expected: list[str]) -> None:
    """Each rule is broken once by a snippet, in each of the ways to write an import, and its neighbours hold."""
    found = complaints(f"{PACKAGE}.{module}", source)
    assert [re.sub(r"imports (os|time)\..*", r"imports \1", complaint) for complaint in found] == expected
