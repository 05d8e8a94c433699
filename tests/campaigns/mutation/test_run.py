"""The mutation session: the copy that mutmut mutates, the bound, and the names of packages."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaigns.mutation.run import PACKAGES, ROOT, SOURCE, expose, killed_share, main, sampled

EXAMPLES = '''
from functools import cached_property, lru_cache
from typing import Final

from attrs import field, frozen

SIZE_MAX: Final = 3
count = 7


@lru_cache(maxsize=SIZE_MAX)
def double(number):
    """Return twice `number`."""
    return number * 2


@frozen
class Box:
    size: int = field()

    @size.validator
    def _small(self, _, size):
        if size > SIZE_MAX:
            raise ValueError(size)

    @property
    def twice(self):
        return double(self.size)

    @cached_property
    def thrice(self):
        return 3 * self.size

    @classmethod
    def least(cls):
        return cls(1)


def results():
    box = Box.least()
    try:
        Box(4)
    except ValueError as error:
        refused = error.args
    return box, box.twice, box.thrice, double.cache_info().hits, double.__doc__, refused, SIZE_MAX
'''


def _run(source: str) -> Any:
    names: dict[str, Any] = {"__name__": "examples"}
    exec(source, names)  # noqa: S102
    results: Callable[[], Any] = names["results"]
    return repr(results())


def test_exposed_module_behaves_as_before() -> None:
    """Validators, properties, cached functions and constants keep their meaning."""
    assert _run(expose(EXAMPLES)) == _run(EXAMPLES)


def test_only_decorators_that_mutmut_handles_remain() -> None:
    """mutmut mutates class methods as they are, and decorators of classes do not hide the methods."""
    lines = [line.strip() for line in expose(EXAMPLES).splitlines()]
    assert [line for line in lines if line.startswith("@")] == ["@frozen", "@classmethod"]


def test_functions_that_overload_or_set_a_property_keep_their_decorators() -> None:
    """An assignment could not replace these decorators, as it would use the wrong function of that name."""
    source = textwrap.dedent(
        """\
        class Box:

            @size.setter
            def size(self, size):
                pass"""
    )
    assert expose(source) == source
    assert expose("@overload\ndef f(x):\n    ...") == "@overload\ndef f(x):\n    ..."


@pytest.mark.parametrize("package", PACKAGES)
def test_package_and_its_tests_exist(package: str) -> None:
    """A package or a test that moves must move in the table too, or the session would mutate nothing."""
    path = ROOT / SOURCE / package
    assert path.is_dir() or path.with_suffix(".py").is_file()
    assert all((ROOT / test).exists() for test in PACKAGES[package])


def test_unknown_package_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the unknown package and lists the known ones."""
    with pytest.raises(SystemExit) as ended:
        main(["gnap", "gnab"])
    assert ended.value.code == 2
    assert f"unknown package gnab: choose from {', '.join(PACKAGES)}" in capsys.readouterr().err


def test_mutants_that_no_test_runs_count_as_survived() -> None:
    """A timeout or a failed import is a mutant that the tests noticed; a mutant without tests is not."""
    counts = {
        "killed": 5,
        "timeout": 1,
        "suspicious": 0,
        "segfault": 1,
        "check_was_interrupted_by_user": 1,
        "survived": 1,
        "no_tests": 1,
        "skipped": 0,
        "total": 10,
    }
    assert killed_share(counts) == 0.8


def test_sample_is_always_the_same(tmp_path: Path) -> None:
    """A sample has as many mutants as requested, from all modules, and at most all mutants."""
    for module in ("a", "b"):
        path = tmp_path / f"mutants/src/{module}.py.meta"
        path.parent.mkdir(parents=True, exist_ok=True)
        codes = {f"{module}.x_f__mutmut_{number}": None for number in range(20)}
        path.write_text(json.dumps({"exit_code_by_key": codes}), "utf-8")
    names = sampled(tmp_path, 30)
    assert len(set(names)) == 30
    assert names == sampled(tmp_path, 30)
    assert len(sampled(tmp_path, 100)) == 40
