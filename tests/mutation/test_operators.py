"""The rules of mutation testing: what each makes of a piece of code, and what is left alone."""

import ast
from textwrap import dedent

import pytest

from mutation.operators import mutants


def made(source: str) -> list[str]:
    """The programs that differ from `source` by one mutant."""
    source = dedent(source)
    programs = []
    for index in range(len(mutants(ast.parse(source)))):
        tree = ast.parse(source)
        mutants(tree)[index].edit.apply()
        programs.append(ast.unparse(ast.fix_missing_locations(tree)))
    return programs


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a < b", ["x = a <= b", "x = a >= b"]),
        ("x = a == b", ["x = a != b"]),
        ("x = len(a) == b", ["x = len(a) != b", "x = len(a) <= b", "x = len(a) >= b"]),
        ("x = a is None", ["x = a is not None"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = a < b <= c", ["x = a <= b <= c", "x = a >= b <= c", "x = a < b < c", "x = a < b > c"]),
        ("x = a and b", ["x = a or b", "x = b", "x = a"]),
        ("x = a | b", ["x = a", "x = b"]),
        ("x = a + b", ["x = a", "x = b", "x = a - b"]),
        ("x = a % b", ["x = a * b"]),
        ("x = not a", ["x = a"]),
        ("x = b if a else c", ["x = b", "x = c"]),
        ("x = 5", ["x = 6", "x = 4"]),
        ("x = True", ["x = False"]),
        ("x = 'abc'", ["x = 'bc'"]),
        ("x = ''", ["x = 'other'"]),
        ("x = b'abc'", ["x = b'bc'"]),
        ("x = f'a{b}'", ["x = f'{b}'"]),
        ("x = {a: b, c: d}", ["x = {c: d}", "x = {a: b}", "x = {a: d, c: b}"]),
        ("x = a, b", ["x = (b,)", "x = (a,)"]),
        ("x = a[b:c]", ["x = a[:c]", "x = a[b:]"]),
        ("x = a(b=c)", ["x = a()"]),
        ("x = any(a)", ["x = all(a)"]),
        ("x = a.fullmatch(b)", ["x = a.match(b)"]),
        ("x = a.lower()", ["x = a"]),
        ("x = a.strip('bc')", ["x = a", "x = a.strip('b')", "x = a.rstrip('bc')", "x = a.strip('c')"]),
        ("x = [a for a in b if c]", ["x = [a for a in b if not c]"]),
        ("if a: b = c", ["if not a:\n    b = c"]),
        ("for a in b: c = d", ["for a in ():\n    c = d"]),
        ("a(b)", ["pass"]),
        ("a.b = c", ["pass"]),
        ("def a(b=None): return b", ["def a(b=None):\n    return None", "def a(b=0):\n    return b"]),
        ("def a(b=1): pass", ["def a(b=2):\n    pass", "def a(b=0):\n    pass"]),
        ("class A:\n    b: int | None = None", ["class A:\n    b: int | None = 0"]),
        ("@a.validator\ndef b(): pass", ["def b():\n    pass"]),
        ("@frozen\nclass A: pass", ["@frozen(frozen=False)\nclass A:\n    pass", "class A:\n    pass"]),
        ("x = re.compile('a*', b)", ["x = re.compile('a*')", "x = re.compile('a+', b)", "x = re.compile('a', b)"]),
    ],
)  # fmt: skip
def test_each_rule(source: str, expected: list[str]) -> None:
    """Every mutant of a small program, and no other."""
    assert sorted(made(source)) == sorted(expected)


def test_within_a_function() -> None:
    """Returns, raises and assignments are taken out where the code after them would run without them."""
    source = """
    def f(a):
        if a:
            raise E
        a = g(a)
        b = g(a)
        return b
    """
    before = "def f(a):\n    if a:\n        raise E\n    a = g(a)\n    b = g(a)\n    return b"
    assert sorted(made(source)) == sorted([
        before.replace("if a", "if not a"),
        before.replace("raise E", "pass"),
        before.replace("a = g(a)", "pass", 1),
        before.replace("return b", "return None"),
    ])  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "import a",
        "__all__ = ['a', 'b']",
        "x: int",
        "A = Literal['a', 'b']",
        "A: TypeAlias = B | C",
        "def f(a: 'int') -> 'str': ...",
        "x = cast('int', a)",
        "if TYPE_CHECKING:\n    x = 1",
        "class A:\n    'A docstring.'",
    ],
)
def test_what_means_nothing_at_run_time(source: str) -> None:
    """It has no mutants."""
    assert made(source) == []


def test_the_text_of_an_error_is_not_mutated_but_its_code_is() -> None:
    """No caller may match on a description, and every caller may on a reason."""
    source = """
    from package.errors import Refused

    def refuse(member) -> NoReturn:
        raise Refused('a_code', f'{member} is wrong', member=member)

    def f():
        text = 'it is wrong'
        refuse(text)
    """
    names = [mutant.name for mutant in mutants(ast.parse(dedent(source)))]
    before = "Refused('a_code', f'{member} is wrong', member=member)"
    assert names == [
        f"refuse: raise {before} -> pass",
        f"refuse: {before} -> Refused('_code', f'{{member}} is wrong', member=member)",
        f"refuse: {before} -> Refused('a_code', f'{{member}} is wrong')",
        "f: refuse(text) -> pass",
    ]


def test_names_say_where_and_what_and_are_unique() -> None:
    """So that a survivor can be listed by its name, whatever line it moves to."""
    source = "class A:\n    def b(self):\n        return c(1) + c(1)"
    names = [mutant.name for mutant in mutants(ast.parse(source))]
    assert names[:2] == ["A.b: return c(1) + c(1) -> return None", "A.b: return c(1) + c(1) -> return c(1)"]
    assert "A.b: return c(1) + c(1) -> return c(1) #2" in names
    assert len(set(names)) == len(names)
    assert names == [mutant.name for mutant in mutants(ast.parse(f"# moved\n\n{source}"))]
