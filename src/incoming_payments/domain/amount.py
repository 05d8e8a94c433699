"""Money: assets, amounts, and the tolerance between two amounts (spec section 2.1)."""

import re
from typing import Any, Final, Self

from attrs import field, frozen

from incoming_payments import limits
from incoming_payments.domain.checks import check_visible, instance, integer, name_of
from incoming_payments.errors import InvalidValue

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]*")


def _check_code(_: object, __: object, code: str) -> None:
    check_visible(code, limits.ASSET_CODE_CHARS_MAX, "assetCode must be", member="assetCode")


def _check_value(_: object, __: object, value: Any) -> None:
    if type(value) is not int or not 0 <= value <= limits.UINT64_MAX:
        found = "" if type(value) is int else f", not {name_of(value)}"
        text = f"value must be in minor units, such as cents: an integer from 0 to {limits.UINT64_MAX}{found}"
        raise InvalidValue(text, member="value")


@frozen
class Asset:
    """A currency or another asset, with its code and the number of decimal places of its minor unit.

    Spec section 2.1: `code` should be an ISO 4217 code, and `scale` is an integer from 0 to 255, such as 2 for cents.
    Raises `InvalidValue`, which names the member, for any other value, including a `bool`.

    >>> Asset("USD", 2)
    Asset(code='USD', scale=2)
    """

    code: str = field(validator=_check_code)
    scale: int = field(validator=integer(0, limits.ASSET_SCALE_MAX, name="assetScale"))


@frozen
class Amount:
    """A sum of money: `value` minor units of `asset`.

    Spec section 2.1: `value` is an unsigned 64-bit integer. Raises `InvalidValue` for any other value.

    >>> Amount(2500, Asset("USD", 2)).text
    '2500'
    """

    value: int = field(validator=_check_value)
    asset: Asset = field(validator=instance(Asset))

    @classmethod
    def parse(cls, text: object, asset: Asset) -> Self:
        """Return the amount in `text`, which is `0`, or ASCII digits without a leading zero, and at most 2**64 - 1.

        Raises `InvalidValue` for any other spelling, so that each amount has exactly one spelling.

        >>> Amount.parse("2500", Asset("USD", 2)) == Amount(2500, Asset("USD", 2))
        True
        """
        if not isinstance(text, str) or len(text) > limits.UINT64_DIGITS_MAX or not _DECIMAL.fullmatch(text):
            raise InvalidValue(
                "value must be a string of decimal digits without sign, spaces or leading zeros, "
                f"from 0 to {limits.UINT64_MAX}",
                member="value",
            )
        return cls(int(text), asset)

    @property
    def text(self) -> str:
        """The text for `value` in JSON."""
        return str(self.value)


@frozen
class Tolerance:
    """The amount by which a packet may exceed `incomingAmount`: the larger of `units` and `basis_points`.

    `units` are minor units. `basis_points` are hundredths of a percent of `incomingAmount`. A sender may count in an
    asset with larger minor units, and exchange rates are rounded. If there were no tolerance, such a sender could never
    deliver the last unit. Raises `InvalidValue` unless both are unsigned 64-bit integers.

    >>> Tolerance().excess_max(Amount(2500, Asset("USD", 2)))
    25
    """

    units: int = field(default=limits.EXCESS_UNITS_DEFAULT, validator=integer())
    basis_points: int = field(default=limits.EXCESS_BASIS_POINTS_DEFAULT, validator=integer())

    def excess_max(self, limit: Amount | None) -> int:
        """Return the largest amount by which a total may exceed `limit`, in minor units."""
        if limit is None:
            return 0
        return min(max(self.units, limit.value * self.basis_points // 10_000), limits.UINT64_MAX - limit.value)
