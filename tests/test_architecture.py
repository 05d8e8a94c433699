"""The architecture: the allowed imports of each part, the pure modules, and no import cycles.

The tests read the source by `ast`, so they also see imports within functions and for the type checker. The rules are
the tables below. The last tests show that each check can fail.
"""

import ast
import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, get_origin

import pytest

import incoming_payments
from incoming_payments import errors, ports, stores

PACKAGE: Final = "incoming_payments"
SOURCE: Final = Path(incoming_payments.__file__).parent
TESTS: Final = Path(__file__).parent / "unit"

# errors, limits -> domain -> {wire, httpsig, gnap, ilp} -> flows -> endpoints -> service -> hosts -> server
# {domain, gnap} -> ports -> {observers, flows.machinery -> flows}; observers -> {stores, outbound, service}
MACHINERY: Final = "flows.machinery"  # a part of its own: it imports no use case, and its drivers are not pure
GROUND: Final = {"errors", "limits"}
CORE: Final = {*GROUND, "domain"}
FLOWS: Final = {*CORE, "wire", "httpsig", "gnap", "ilp", "ports", MACHINERY}
# all but the hosts
LIBRARY: Final = {*FLOWS, "flows", "endpoints", "relay", "service", "stores", "outbound", "observers", PACKAGE}
MAY_IMPORT: Final[dict[str, set[str]]] = {
    "errors": set(),
    "limits": set(),
    "domain": GROUND,
    "wire": CORE,
    "httpsig": GROUND,  # usable alone
    "gnap": CORE,
    "ilp": CORE,
    "ports": {*CORE, "gnap"},
    "observers": {*CORE, "ports"},
    MACHINERY: {*CORE, "gnap", "ports", "observers"},
    "flows": FLOWS,
    "endpoints": {*FLOWS, "flows"},
    "relay": {*CORE, "ports", MACHINERY, "observers"},
    "service": {*FLOWS, "flows", "endpoints", "observers", "relay"},  # a method imports the relay late
    "stores": {*CORE, "gnap", "ports", "observers"},
    "outbound": {*CORE, "wire", "httpsig", "gnap", "ports", "observers"},
    "audit": CORE,
    "copying": {*CORE, "stores"},
    "hosts": LIBRARY,
    "server": {*LIBRARY, "audit", "copying", "hosts"},
    "testing": {*LIBRARY, "hosts"},
    PACKAGE: {*FLOWS, "flows", "endpoints", "service"},  # the public names
    "__main__": {"server"},
}
POSTGRES: Final = SOURCE / "stores" / "postgres"
# Exceptions: parts that a single module may import in addition to the table above.
MAY_ALSO_IMPORT: Final = {
    f"{PACKAGE}.server.dev.demo": {"testing"},  # the demo pays by the sender for tests
    f"{PACKAGE}.audit._database": {"stores"},  # whether a store has the file open
    f"{PACKAGE}.audit._sqlite": {"stores"},  # the tables that it expects
    f"{PACKAGE}.audit._postgres": {"stores"},  # the tables that it expects, and its connections
    f"{PACKAGE}.httpsig.keys": {"wire"},  # the strict reader of JSON
    f"{PACKAGE}.gnap.introspection": {"wire"},
}
# Only these parts import the diagnosis of refusals.
EXPLAIN: Final = f"{PACKAGE}.httpsig.explain"
MAY_EXPLAIN: Final = ("hosts", "server")

# The distributions that each part may import. Drivers and servers are extras of the outer parts.
MAY_INSTALL: Final[dict[str, set[str]]] = {
    "errors": set(),
    "limits": set(),
    "domain": {"attrs"},
    "wire": {"attrs", "cattrs", "dateutil"},
    "httpsig": {"attrs", "cryptography", "http_sf", "nacl"},
    "gnap": {"attrs"},
    "ilp": {"attrs", "cryptography"},
    "ports": {"attrs"},
    "observers": set(),
    MACHINERY: {"attrs"},
    "flows": {"attrs"},
    "endpoints": {"attrs"},
    "relay": {"attrs"},
    "service": {"attrs"},
    "stores": {"attrs"},
    "outbound": {"aiohttp", "attrs", "cryptography", "yarl"},
    "audit": {"attrs"},
    "copying": {"attrs"},
    "hosts": {"attrs"},
    "server": {"attrs", "cattrs", "httptools", "prometheus_client", "rich", "uvicorn"},
    "testing": {"attrs", "hypothesis", "pytest"},
    PACKAGE: set(),
    "__main__": set(),
}
# The modules for one framework, one metrics library or one database driver each, with its distributions. Only their
# users need them.
FRAMEWORKS: Final[dict[str, set[str]]] = {
    **{f"{PACKAGE}.stores.postgres.{path.stem}": {"psycopg", "psycopg_pool"} for path in POSTGRES.glob("*.py")},
    f"{PACKAGE}.audit._postgres": {"psycopg"},
    f"{PACKAGE}.copying._target": {"psycopg"},
    f"{PACKAGE}.hosts.aiohttp": {"aiohttp"},
    f"{PACKAGE}.hosts.django": {"django"},
    f"{PACKAGE}.hosts.fastapi": {"fastapi", "pydantic", "starlette", "typing_extensions"},
    f"{PACKAGE}.observers.otel": {"opentelemetry"},
    f"{PACKAGE}.observers.prometheus": {"prometheus_client"},
}
HTTP_LIBRARIES: Final = {
    f"{PACKAGE}.outbound._aiohttp",
    f"{PACKAGE}.server.protocol",
}  # a client and `serve` import theirs late
OPTIONAL: Final = {"nacl"}  # the core uses it if it is installed
STUBS: Final = {"_typeshed"}  # known to the type checker only
DRIVERS: Final = {"sqlite3", "psycopg"}

# Pure modules get time, randomness and ids as arguments, and do no input or output.
PURE: Final = {"domain", "wire", "httpsig", "gnap", "ilp", "flows", "endpoints"}
IMPURE: Final = {
    "asyncio", "concurrent", "ctypes", "http", "importlib", "io", "logging", "multiprocessing", "os", "pathlib",
    "queue", "random", "secrets", "select", "selectors", "shutil", "signal", "socket", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time",
}  # fmt: skip
MAY_ALSO_USE: Final = {f"{PACKAGE}.endpoints.openapi": {"importlib"}}  # it reads the document in the package
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
    """Yield every module of the package: its dotted name and its source."""
    for path in sorted(SOURCE.rglob("*.py")):
        parts = [PACKAGE, *path.relative_to(SOURCE).with_suffix("").parts]
        yield ".".join(parts), path.read_text("utf-8")


def part_of(name: str) -> str:
    """Return the part of the package that a dotted name belongs to, or the package itself for its public names."""
    if f"{name}.".startswith(f"{PACKAGE}.{MACHINERY}."):
        return MACHINERY
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else PACKAGE


def imports(module: str, tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield every name that `tree` imports, dotted and absolute, with its local name."""
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
    """Return `a.b.c` as text, or an empty text for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def complaints(module: str, source: str) -> list[str]:
    """Return the rules that `source` breaks as a module of this name."""
    tree = ast.parse(source)
    part = part_of(module)
    found: list[str] = []
    local: dict[str, str] = {}
    for name, known_as in imports(module, tree):
        local[known_as] = name
        found += wrong_import(module, name)
        if _explains(name) and part not in MAY_EXPLAIN and not _explains(module):
            found.append(f"{part} imports {name}")
    if part in PURE:
        found += [f"reads {name}" for name in sorted(clocks(tree, local))]
    return found


def _explains(name: str) -> bool:
    """Return whether a dotted name belongs to the diagnosis of refusals."""
    return f"{name}.".startswith(f"{EXPLAIN}.")


def wrong_import(module: str, name: str) -> Iterator[str]:
    """Yield why `module` may not import `name`, if it may not."""
    part, root = part_of(module), name.partition(".")[0]
    if root == PACKAGE:
        if part_of(name) not in {part, *MAY_IMPORT[part], *MAY_ALSO_IMPORT.get(module, ())}:
            yield f"{part} imports {name}"
    elif root not in sys.stdlib_module_names:
        if root not in MAY_INSTALL[part] | STUBS | FRAMEWORKS.get(module, set()):
            yield f"{part} needs {root}"
    elif part in PURE and root in IMPURE - MAY_ALSO_USE.get(module, set()):
        yield f"{part} imports {root}"


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Return the modules that each module imports. A package is the module of its `__init__.py`."""
    known = {name.removesuffix(".__init__"): name for name in sources}
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        found = set()
        for name, _ in imports(module, ast.parse(source)):
            origin = name if name in known else name.rpartition(".")[0]  # a module, or a name in one
            found |= {known[origin]} if origin in known else set()
        graph[module] = found - {module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, directly or through others, largest first."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen, ahead = set[str](), [start]
        while ahead:
            new = graph[ahead.pop()] - seen
            seen |= new
            ahead += new
        reach[start] = seen
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return [set(group) for group in sorted(groups - {frozenset()}, key=lambda group: (-len(group), sorted(group)))]


def clocks(tree: ast.AST, local: dict[str, str]) -> Iterator[str]:
    """Yield each clock, source of randomness and effect that `tree` uses, under any local name."""
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
    """A module imports only allowed parts and distributions, and a pure module nothing with effects."""
    assert complaints(module, ALL[module]) == []


def test_no_modules_import_each_other() -> None:
    """There is no import cycle, neither at the top of modules nor within functions."""
    assert cycles(import_graph(ALL)) == []


def test_every_part_is_in_the_tables() -> None:
    """Every part of the package is in both tables."""
    parts = {name.split(".")[1] for name in ALL} - {"__init__"}
    assert {*parts, MACHINERY} == set(MAY_IMPORT) - {PACKAGE}
    assert set(MAY_INSTALL) == set(MAY_IMPORT)


def test_httpsig_and_ilp_are_independent() -> None:
    """Each can be used and understood without the other."""
    assert "ilp" not in MAY_IMPORT["httpsig"]
    assert "httpsig" not in MAY_IMPORT["ilp"]


@pytest.mark.parametrize("module", [name for name in ALL if part_of(name) == "stores"])
def test_a_store_imports_one_driver_at_most(module: str) -> None:
    """A user of one database need not install another's driver."""
    assert len({name.partition(".")[0] for name, _ in imports(module, ast.parse(ALL[module]))} & DRIVERS) <= 1


def test_the_package_exports_every_exception_and_every_port() -> None:
    """A host imports every exception that a method can raise, and each Protocol of a port, from the package."""
    classes = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    exceptions = {name for name, value in classes.items() if issubclass(value, Exception)}
    assert exceptions | set(ports.__all__) - {"Decide"} <= set(incoming_payments.__all__)


def test_the_package_exports_no_flow() -> None:
    """The package exports neither a flow nor a name that needs the name of its module."""
    functions = {name: getattr(incoming_payments, name) for name in incoming_payments.__all__}
    functions = {name: value for name, value in functions.items() if inspect.isfunction(value)}
    assert [name for name, value in functions.items() if get_origin(value.__annotations__["return"]) is Generator] == []
    assert {"Flow", "arun", "complete", "handle", "receive", "run"}.isdisjoint(incoming_payments.__all__)


def test_a_store_author_imports_from_one_module() -> None:
    """The store in the examples needs no other module of the library."""
    example = TESTS.parents[1] / "examples" / "postgres_store.py"
    names = [name for name, _ in imports("postgres_store", ast.parse(example.read_text("utf-8")))]
    used = [name for name in names if name.startswith(f"{PACKAGE}.")]
    assert set(used) <= {f"{stores.__name__}.{name}" for name in stores.__all__}


# Packages whose public names are all in `__init__`: the modules are private, and one test file tests the package.
TESTED_AS_ONE: Final = {f"{PACKAGE}.testing.simulation"}
# Modules that only declare Protocols
PROTOCOLS: Final = {
    f"{PACKAGE}.ports.{name}"
    for name in (
        "client_keys", "erasure", "feed", "introspection", "methods", "nonces", "observer", "quotas", "store",
        "wallet_addresses",
    )
}  # fmt: skip


# Modules whose behaviour another file tests through its public face
TESTED_BY: Final = {
    f"{PACKAGE}.domain.quotas": "service/test_quotas.py",
    f"{PACKAGE}.flows.machinery.feed_effects": "flows/machinery/test_run.py",
    f"{PACKAGE}.flows.machinery.ports": "test_mistakes.py",
    f"{PACKAGE}.flows.erase": "service/test_service.py",
    f"{PACKAGE}.flows.pull": "endpoints/test_pull.py",
    f"{PACKAGE}.httpsig.fast": "property/test_httpsig.py",
    f"{PACKAGE}.server.config.events": "server/config/test_settings.py",
    f"{PACKAGE}.server.check_config": "server/test_operating.py",
    f"{PACKAGE}.server.config.webhooks": "server/test_webhooks.py",
    f"{PACKAGE}.server.consumers": "server/test_operating.py",
    f"{PACKAGE}.server.deliveries": "server/test_operating.py",
    f"{PACKAGE}.server.payments": "server/test_operating.py",
    f"{PACKAGE}.server.report": "server/test_operating.py",
    f"{PACKAGE}.server.config.setting": "server/config/test_settings.py",
    f"{PACKAGE}.server.config.sweep": "server/test_background.py",
    f"{PACKAGE}.server.config.tables": "server/config/test_settings.py",
    f"{PACKAGE}.testing.clock": "flows/test_receive.py",
    f"{PACKAGE}.testing.machine": "testing/test_contract.py",
    f"{PACKAGE}.testing.values": "domain/test_lifecycle.py",
}


@pytest.mark.parametrize(
    "module", [name for name in ALL if not name.rpartition(".")[2].startswith("_") and name not in PROTOCOLS]
)
def test_every_module_has_its_own_test_file(module: str) -> None:
    """The tests mirror the source. A private module is tested through its public module."""
    package = module.rpartition(".")[0]
    *folder, name = (package if package in TESTED_AS_ONE else module).split(".")[1:]
    own = "/".join((*folder, f"test_{name}.py"))
    assert (TESTS / own).is_file() != (module in TESTED_BY)
    assert (TESTS / TESTED_BY.get(module, own)).is_file()


def test_distribution_declares_its_dependencies() -> None:
    """The dependencies of the distribution are exactly those that the tables allow in the core."""
    outer = {"outbound", "stores", "server", "testing"}
    core = set().union(*(needs for part, needs in MAY_INSTALL.items() if part not in outer))
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
    "aiohttp", "asyncpg", "django", "fastapi", "flask", "http_sfv", "httptools", "httpx", "hypothesis", "nacl",
    "opentelemetry", "prometheus_client", "psycopg", "psycopg_pool", "pydantic", "pytest", "starlette", "uvicorn",
    "waitress", "werkzeug", "yarl",
}  # fmt: skip
NEEDS_NO_EXTRA: Final = [
    *(name.removesuffix(".__init__") for name in ALL if part_of(name) in {*GROUND, *PURE, "ports", PACKAGE}),
    *(
        name.removesuffix(".__init__")
        for name in ALL
        if part_of(name)
        in {"__main__", "audit", "outbound", "hosts", "log", "observers", "server", "service", "stores"}
        and name not in {*FRAMEWORKS, *HTTP_LIBRARIES}
    ),
    f"{PACKAGE}.testing.sender",
]


def import_without_extras(names: list[str]) -> subprocess.CompletedProcess[str]:
    """Import `names` in an interpreter that cannot import optional dependencies."""
    program = WITHOUT_EXTRAS.replace("EXTRAS", repr(EXTRAS)).replace("MODULES", repr(names))
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_core_imports_without_optional_dependencies() -> None:
    """The core, the adapters, the program and the test sender import no extra; `serve` does when it runs."""
    done = import_without_extras(NEEDS_NO_EXTRA)
    assert (done.returncode, done.stderr) == (0, "")


# --- the checks can fail -----------------------------------------------------------------------------


def test_the_check_for_optional_dependencies_can_fail() -> None:
    """An import of an extra fails, although the extra is installed here."""
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
        ("ilp.oer", "import incoming_payments.httpsig", ["ilp imports incoming_payments.httpsig"]),
        *(
            (module, f"from {EXPLAIN} import explain", [f"{part} imports {EXPLAIN}.explain"])
            for module, part in (
                ("httpsig.__init__", "httpsig"),
                ("flows.get", "flows"),
                ("endpoints.packets", "endpoints"),
            )
        ),
        ("httpsig.verify", "from incoming_payments.httpsig import explain", [f"httpsig imports {EXPLAIN}"]),
        ("httpsig.explain._case", f"from {EXPLAIN}._redaction import Redactor", []),
        ("hosts.host_log", f"from {EXPLAIN} import explain", []),
        ("gnap.access", "import incoming_payments.ports", ["gnap imports incoming_payments.ports"]),
        (
            "ports",
            "import incoming_payments.flows.machinery.run",
            ["ports imports incoming_payments.flows.machinery.run"],
        ),
        ("ports", "import incoming_payments.gnap.token", []),
        (
            "flows.get",
            "import incoming_payments.endpoints.open_payments",
            ["flows imports incoming_payments.endpoints.open_payments"],
        ),
        ("flows.get", "import incoming_payments.stores", ["flows imports incoming_payments.stores"]),
        ("flows.get", "import incoming_payments.ports", []),
        (
            "endpoints.packets",
            "def f():\n import incoming_payments.hosts",
            ["endpoints imports incoming_payments.hosts"],
        ),
        (
            "endpoints.packets",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n import incoming_payments.testing",
            ["endpoints imports incoming_payments.testing"],
        ),
        (
            "stores.memory",
            "import incoming_payments.flows.machinery.run",
            ["stores imports incoming_payments.flows.machinery.run"],
        ),
        ("stores.memory", "import threading", []),
        ("hosts.wsgi", "import asyncio", []),
        ("hosts.wsgi", "import flask", ["hosts needs flask"]),
        ("hosts.asgi", "from fastapi import FastAPI", ["hosts needs fastapi"]),
        ("hosts.fastapi", "from fastapi import FastAPI", []),
        ("hosts.fastapi", "import django", ["hosts needs django"]),
        ("hosts.wsgi", "import incoming_payments.testing", ["hosts imports incoming_payments.testing"]),
        ("hosts.wsgi", "import incoming_payments.server.serve", ["hosts imports incoming_payments.server.serve"]),
        ("hosts.asgi", "import uvicorn", ["hosts needs uvicorn"]),
        ("server.serve", "import incoming_payments.hosts.asgi, uvicorn", []),
        ("server.serve", "import incoming_payments.testing", ["server imports incoming_payments.testing"]),
        ("server.dev.demo", "import incoming_payments.testing.sender", []),
        ("testing.clock", "import incoming_payments.hosts.wsgi", []),
        (
            "testing.clock",
            "from incoming_payments.server.dev import sign",
            ["testing imports incoming_payments.server.dev.sign"],
        ),
        ("__init__", "import incoming_payments.hosts", ["incoming_payments imports incoming_payments.hosts"]),
        *(
            ("gnap.token", f"import {world}", [f"gnap imports {world}"])
            for world in ("socket", "asyncio", "threading", "sqlite3", "time", "random", "secrets", "os")
        ),
        ("flows.get", "import logging", ["flows imports logging"]),
        ("flows.get", "from os import path as p", ["flows imports os"]),
        ("flows.get", "from datetime import datetime\ndatetime.now(None)", ["reads datetime.datetime.now"]),
        ("flows.get", "from datetime import datetime as d\nd.utcnow()", ["reads datetime.datetime.utcnow"]),
        ("flows.get", "import datetime\ndatetime.datetime.today()", ["reads datetime.datetime.today"]),
        ("flows.get", "import datetime as dt\nx = dt.date.today", ["reads datetime.date.today"]),
        ("flows.get", "from datetime import date\nf(factory=date.today)", ["reads datetime.date.today"]),
        ("flows.get", "from time import time\ntime()", ["flows imports time"]),
        ("flows.get", "from uuid import uuid4\nuuid4()", ["reads uuid.uuid4"]),
        ("flows.get", "effect.now\nself.today()\nf().now()", []),
        ("flows.get", "open('x')", ["reads open()"]),
        ("stores.memory", "from datetime import datetime\ndatetime.now(None)", []),
    ],
)
def test_the_checker_can_fail(module: str, source: str, expected: list[str]) -> None:
    """Each rule has a snippet that breaks it, for each form of an import, and similar snippets that do not."""
    found = complaints(f"{PACKAGE}.{module}", source)
    assert [re.sub(r"imports (os|time)\..*", r"imports \1", complaint) for complaint in found] == expected


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"a": "import ip.b", "b": ""}, []),
        ({"a": "import ip.b", "b": "import ip.a"}, [{"a", "b"}]),
        ({"a": "from ip.b import X", "b": "def f():\n from ip import a"}, [{"a", "b"}]),
        ({"a": "from . import b", "b": "from .c import X", "c": "from ip.a import Y"}, [{"a", "b", "c"}]),
        ({"p.__init__": "from ip.p.a import X", "p.a": "from ip.p import Y"}, [{"p.__init__", "p.a"}]),
        ({"p.__init__": "from ip.p.a import X", "p.a": "from ip.p.b import Y", "p.b": ""}, []),
        ({"a": "import os, ip.none"}, []),
    ],
)
def test_the_check_for_cycles_can_fail(sources: dict[str, str], expected: list[set[str]]) -> None:
    """The check finds cycles through packages, functions and other modules."""
    graph = import_graph({f"ip.{name}": source for name, source in sources.items()})
    assert cycles(graph) == [{f"ip.{name}" for name in group} for group in expected]
