"""`domain.amount`: assets, amounts and tolerances. Spec sections 2.1 and 8."""

from decimal import Decimal

import pytest

from incoming_payments.domain.amount import Amount, Asset, Tolerance
from incoming_payments.errors import InvalidValue
from kits.frozen_values import assert_frozen

USD = Asset("USD", 2)

ASSET_CODE = "assetCode must be 1 to 32 printable ASCII characters without spaces"
ASSET_SCALE = "assetScale must be an integer from 0 to 255"
VALUE = "value must be in minor units, such as cents: an integer from 0 to 18446744073709551615"
TEXT = "value must be a string of decimal digits without sign, spaces or leading zeros, from 0 to 18446744073709551615"


@pytest.mark.parametrize("code", ["USD", "x", "!", "~", "USDC.e", "X" * 32])
def test_spec_2_1_asset_code(code: str) -> None:
    """An asset code is 1 to 32 printable ASCII characters; it need not be an ISO 4217 code."""
    assert Asset(code, 2).code == code


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(None, id="not a string"),
        pytest.param(b"USD", id="bytes"),
        pytest.param("", id="empty"),
        pytest.param("U D", id="space"),
        pytest.param("USD\n", id="trailing newline"),
        pytest.param("US\x7f", id="control character"),
        pytest.param("\uff35SD", id="not ASCII"),
        pytest.param("X" * 33, id="too long"),
    ],
)
def test_invalid_asset_code_is_refused(code: object) -> None:
    """The error for an invalid code names the member."""
    with pytest.raises(InvalidValue) as caught:
        Asset(code, 2)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == ASSET_CODE
    assert caught.value.details == {"member": "assetCode"}


@pytest.mark.parametrize("scale", [0, 2, 255])
def test_spec_2_1_asset_scale(scale: int) -> None:
    """An asset scale is an integer from 0 to 255."""
    assert Asset("USD", scale).scale == scale


@pytest.mark.parametrize("scale", [None, "2", 2.0, True, False, -1, 256, 10**30])
def test_invalid_asset_scale_is_refused(scale: object) -> None:
    """Values that equal an integer, such as `True` and `2.0`, are refused too."""
    with pytest.raises(InvalidValue) as caught:
        Asset("USD", scale)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == ASSET_SCALE
    assert caught.value.details == {"member": "assetScale"}


@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1])
def test_spec_2_1_value(value: int) -> None:
    """A value is an unsigned 64-bit integer; its text is the string of its digits."""
    amount = Amount(value, USD)
    assert amount.value == value
    assert amount.text == str(value)
    assert Amount.parse(amount.text, USD) == amount


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, ", not NoneType"),
        ("25.00", ", not str"),
        (25.0, ", not float"),
        (Decimal("25.00"), ", not Decimal"),
        (True, ", not bool"),
        (False, ", not bool"),
        (-1, ""),
        (2**64, ""),
        pytest.param(10**5000, "", id="too long to print"),
    ],
)
def test_invalid_value_is_refused(value: object, found: str) -> None:
    """The error names the member, and says that the value counts minor units."""
    with pytest.raises(InvalidValue) as caught:
        Amount(value, USD)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == VALUE + found
    assert caught.value.details == {"member": "value"}


@pytest.mark.parametrize("asset", [None, "USD", ("USD", 2)])
def test_amount_needs_an_asset(asset: object) -> None:
    """The asset of an amount must be an `Asset`; the error names the member."""
    with pytest.raises(InvalidValue) as caught:
        Amount(1, asset)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == f"asset must be of type Asset, not {type(asset).__name__}"
    assert caught.value.details == {"member": "asset"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(None, id="not a string"),
        pytest.param(1, id="integer"),
        pytest.param(b"1", id="bytes"),
        pytest.param("", id="empty"),
        pytest.param("1" * 21, id="too many digits"),
        pytest.param("1" * 10**6, id="a million digits"),
        pytest.param("00", id="zero with leading zero"),
        pytest.param("01", id="leading zero"),
        pytest.param("-1", id="minus"),
        pytest.param("-0", id="minus zero"),
        pytest.param("+1", id="plus"),
        pytest.param(" 1", id="leading space"),
        pytest.param("1 ", id="trailing space"),
        pytest.param("1\n", id="trailing newline"),
        pytest.param("1_000", id="underscore"),
        pytest.param("1,000", id="comma"),
        pytest.param("1.0", id="fraction"),
        pytest.param("1e3", id="exponent"),
        pytest.param("0x1", id="hexadecimal"),
        pytest.param("\u0661", id="Arabic digit"),
        pytest.param("\uff11", id="full-width digit"),
        pytest.param("1\0", id="NUL"),
    ],
)
def test_other_spelling_of_an_amount_is_refused(text: object) -> None:
    """Each amount has exactly one spelling, so any other spelling is refused."""
    with pytest.raises(InvalidValue) as caught:
        Amount.parse(text, USD)
    assert str(caught.value) == TEXT
    assert caught.value.details == {"member": "value"}


@pytest.mark.parametrize("text", ["18446744073709551616", "99999999999999999999"])
def test_amount_text_above_uint64_is_refused(text: str) -> None:
    """A text of twenty digits can still be too large; the error is about the value."""
    with pytest.raises(InvalidValue) as caught:
        Amount.parse(text, USD)
    assert str(caught.value) == VALUE
    assert caught.value.details == {"member": "value"}


def test_amounts_compare_by_value_and_asset() -> None:
    """Amounts of different assets differ, even if their values are equal."""
    assert Amount(1, USD) == Amount(1, Asset("USD", 2))
    assert Amount(1, USD) != Amount(1, Asset("USD", 3))
    assert Amount(1, USD) != Amount(1, Asset("EUR", 2))
    assert Amount(1, USD) != Amount(2, USD)


def test_amounts_are_frozen() -> None:
    """Amounts and assets cannot change after their checks."""
    assert_frozen(Amount(1, USD), USD)


def test_tolerance_without_a_limit_is_zero() -> None:
    """Without `incomingAmount`, no total can pass it."""
    assert Tolerance(50, 100).excess_max(None) == 0


@pytest.mark.parametrize(
    ("tolerance", "limit", "excess_max"),
    [
        pytest.param(Tolerance(1, 100), 99, 1, id="units"),
        pytest.param(Tolerance(1, 100), 299, 2, id="basis points, rounded down"),
        pytest.param(Tolerance(0, 0), 1000, 0, id="none"),
        pytest.param(Tolerance(0, 1), 2**63 + 9_999, (2**63 + 9_999) // 10_000, id="more digits than a float has"),
        pytest.param(Tolerance(2**64 - 1, 0), 2**64 - 2, 1, id="total below 2**64"),
    ],
)
def test_excess_is_a_whole_number_of_minor_units(tolerance: Tolerance, limit: int, excess_max: int) -> None:
    """The larger of units and basis points decides, without rounding up, and without a total past 2**64 - 1."""
    found = tolerance.excess_max(Amount(limit, USD))
    assert (type(found), found) == (int, excess_max)


@pytest.mark.parametrize("member", ["units", "basis_points"])
@pytest.mark.parametrize("value", [-1, 2**64, True, 1.0, None])
def test_invalid_tolerance_is_refused(member: str, value: object) -> None:
    """`units` and `basis_points` must be unsigned 64-bit integers."""
    with pytest.raises(InvalidValue) as caught:
        Tolerance(**{member: value})  # type: ignore[arg-type] # on purpose
    assert caught.value.details == {"member": member}
    assert str(caught.value) == f"{member} must be an integer from 0 to 18446744073709551615"
