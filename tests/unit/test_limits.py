"""Tests of `limits`: the values of spec section 8, the reasons, and the relations between limits."""

import re
from pathlib import Path

import pytest

from incoming_payments import limits

SOURCE = Path(limits.__file__)


def all_limits() -> dict[str, float]:
    """Return every limit by name."""
    return {name: value for name, value in vars(limits).items() if name.isupper() and not name.startswith("_")}


def test_limits_of_spec_8() -> None:
    """`value` is an unsigned 64-bit integer as a string. The other limits are those of the specification."""
    assert (limits.UINT64_MAX, limits.UINT64_DIGITS_MAX) == (18446744073709551615, 20)
    assert (limits.ASSET_SCALE_MAX, limits.ILP_ADDRESS_CHARS_MAX) == (255, 1023)


def test_every_limit_is_positive_and_has_a_reason() -> None:
    """Each limit ends with `_MAX`, `_MIN` or `_DEFAULT`, is greater than zero, and has its reason beside it."""
    written = dict(re.findall(r"^([A-Z0-9_]+): Final = [^#\n]+(#.*)?$", SOURCE.read_text(), re.MULTILINE))
    assert set(written) == set(all_limits())
    for name, value in all_limits().items():
        assert name.endswith(("_MAX", "_MIN", "_DEFAULT")), name
        assert value > 0, name
    without_reason = {"ILP_ADDRESS_CHARS_MAX", "KEY_ID_CHARS_MAX", "NONCE_CHARS_MAX", "JWK_CHARS_MAX"}
    assert {name for name, reason in written.items() if not reason} <= without_reason


RELATIONS = re.findall(r'^    \((.+), (.+), "(.+)"\),$', SOURCE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("smaller", "larger", "why"), RELATIONS)
def test_contradicting_limits_fail_at_import(smaller: str, larger: str, why: str) -> None:
    """Each relation between two limits is checked at import, and the message has its reason."""
    held, reversed_ = f'({smaller}, {larger}, "{why}")', f'({larger} + 1, {smaller}, "{why}")'
    source = SOURCE.read_text().replace(held, reversed_)
    # With the name of the file, so that coverage counts the line that raises.
    with pytest.raises(RuntimeError, match=rf"^limits.py: \S+ must not be more than \S+: {re.escape(why)}$"):
        exec(compile(source, str(SOURCE), "exec"), {"__name__": "limits_edited"})  # noqa: S102 - the source is ours


def test_relations_are_found() -> None:
    """The test above has read the relations."""
    assert len(RELATIONS) > 30
