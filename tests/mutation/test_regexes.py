"""What mutation testing changes in a regular expression."""

import pytest

from mutation.regexes import regexes


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a*", ["a+", "a"]),
        ("a+", ["a*", "a"]),
        ("(?:a)?", ["(?:a)"]),
        ("a{2}", ["a{3}", "a{1}"]),
        ("a{1,15}", ["a{2,15}", "a{0,15}", "a{1,16}", "a{1,14}"]),
        ("[ab]", ["[^ab]", "[b]", "[a]"]),
        ("[^a]", ["[a]"]),
        ("[b-y]", ["[^b-y]", r"[\x63-\x79]", r"[\x62-\x78]"]),
        (r"[\x20-~]", [r"[^\x20-~]", r"[\x21-\x7e]", r"[\x20-\x7d]"]),
        (r"[\-a]", [r"[^\-a]", "[a]", r"[\-]"]),
        ("a|b", ["b", "a"]),
        ("(a|b|c)d", ["(b|c)d", "(a|c)d", "(a|b)d"]),
        (r"\*\[a", []),
    ],
)
def test_each_rule(pattern: str, expected: list[str]) -> None:
    """Quantifiers, what a class holds and the edges of its ranges, and alternatives."""
    assert regexes(pattern, whole=True) == expected


def test_a_fragment() -> None:
    """A piece of an f-string need not be a pattern by itself, and its alternatives may begin elsewhere."""
    assert regexes("){1,", whole=False) == ["){2,", "){0,"]
    assert regexes(",7}|a", whole=False) == [",8}|a", ",6}|a"]
    assert regexes("(a){1,", whole=True) == ["(a){2,", "(a){0,"]
