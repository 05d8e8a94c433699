"""The fast path: what it reads, and that it leaves everything else to the specification.

That both paths agree is tested in `tests/property/test_httpsig.py`, by the fuzz targets and by the vectors.
"""

from functools import partial

import pytest

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import fast
from incoming_payments.limits import COMPONENTS_MAX, HEADER_BYTES_MAX, KEY_ID_CHARS_MAX
from kits.both_paths import OnSlowPath, only_fast_path
from kits.characters import DIGITS, LOWER, PRINTABLE, accepted_characters


def is_fast(*lines: str) -> bool:
    """Return whether a `Signature-Input` with these `lines` is read without the specification."""
    with only_fast_path():
        try:
            fast.parse_signature_input(lines)
        except OnSlowPath:
            return False
    return True


def with_character(shape: str, character: str) -> bool:
    """Return the same, with `character` in place of the #."""
    return is_fast(shape.replace("#", character))


def test_each_character_that_honest_clients_write() -> None:
    """The fast path reads the characters of labels, names, strings and numbers, and no others."""
    start, rest, plain = {*LOWER, "*"}, {*LOWER, *DIGITS, *"_-.*"}, {*PRINTABLE} - {*'"\\'}
    for shape, expected in (
        ('#=("x")', start),
        ('a#=("x")', rest),
        ('a=("#")', plain - {")"}),
        ('a=("x" "#")', plain - {")"}),
        ('a=("x");tag="#"', plain),
        ('a=("x");created=#', {*DIGITS}),
        ('a=("x");created=1#', {*DIGITS}),
    ):
        assert accepted_characters(partial(with_character, shape), MalformedField) == expected


def names(count: int) -> str:
    """Return so many components in quotes."""
    return " ".join(f'"{number}"' for number in range(count))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('a=("b")', True),
        ("a=()", False),
        ('a=("")', True),
        (f"a=({names(COMPONENTS_MAX)})", True),
        (f"a=({names(COMPONENTS_MAX + 1)})", False),
        ('a=("b");expires=2;tag="t";alg="a";created=1;nonce="n";keyid="k"', True),
        ('a=("b");created=0', True),
        ('a=("b");created=00', False),
        ('a=("b");created=01', False),
        ('a=("b");created=' + "9" * 11, True),
        ('a=("b");created=' + "9" * 12, False),
        ('a=("b");created="1"', False),
        ('a=("b");keyid=""', True),
        (f'a=("b");keyid="{"k" * KEY_ID_CHARS_MAX}"', True),
        (f'a=("b");keyid="{"k" * (KEY_ID_CHARS_MAX + 1)}"', False),
        ('a=("b");keyid=1', False),
        ('a=("b");tag', False),
        ('a=("b");x=1', False),
        ('a=("b");created=1;created=1', False),
        ('a=("b");created=1 ', False),
        ('a=("b")x;created=1', False),
        ('a=("b");created=1x;expires=1', False),
        (f'a=("{"b" * (HEADER_BYTES_MAX - 6)}")', True),
        (f'a=("{"b" * (HEADER_BYTES_MAX - 5)}")', False),
        ('a=("b"', False),
    ],
)
def test_signature_inputs_on_the_fast_path(text: str, expected: bool) -> None:
    """The fast path reads one signature in the strict form, with known parameters within the limits."""
    assert is_fast(text) is expected


def test_several_lines_take_the_specification() -> None:
    """A field of several lines, or of none, is left to the specification."""
    assert [is_fast(*['a=("b")'] * count) for count in range(3)] == [False, True, False]
