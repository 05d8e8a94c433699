"""A plugin of pytest that adapts mutmut to code that runs at import.

mutmut runs a mutant against the tests that call its function. It gives a function that runs while pytest imports the
modules to the first test only; this plugin gives it to every test. The plugin also lists the modules of other projects
that the tests import, so that mutmut imports them once and not again for each mutant. It has a profile for Hypothesis.
Last, it turns the garbage collector off in mutmut's first run, in which mutmut records each call in a context variable.
CPython damages the variable when the collector runs inside its `set` and a finalizer calls a recorded function, such as
the finalizer of a SQLite store.
"""

import gc
import importlib
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutants",
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # a failure is enough: shrinking it takes longer than the other tests
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine kills no mutant
)
_at_import: set[str] = set()


def _hits() -> set[str]:
    """Return the set to which mutmut adds the name of each function that is called."""
    state: Any = importlib.import_module("mutmut.state").state()
    hits: set[str] = state._stats
    return hits


def _is_first_run() -> bool:
    """Return whether this run has no mutant: mutmut records the functions that each test calls."""
    return os.environ["MUTANT_UNDER_TEST"] == "stats"


def pytest_sessionstart() -> None:
    """Turn the garbage collector off. Tests that call `gc.collect` still work."""
    if _is_first_run():
        gc.disable()


def pytest_collection_finish() -> None:
    """Remember the functions that were called before the first test."""
    _at_import.update(_hits())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Add them to the functions that this test has called, before mutmut reads those."""
    _hits().update(_at_import)
    return (yield)


def pytest_sessionfinish() -> None:
    """List the imported modules of other projects, in mutmut's first run only."""
    if not _is_first_run():
        return
    gc.enable()
    here = Path.cwd()
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    names = [name for name, file in files.items() if file and here not in Path(file).parents and name != "__main__"]
    (here.parent / "preloaded.txt").write_text("\n".join(names))
