"""Money: an asset and an amount of it. Contract section 2.1."""

import re
from typing import Final, Self

from attrs import Attribute, field, frozen

from incoming_payments.errors import InvalidValue
from incoming_payments.limits import (
    ASSET_CODE_CHARS_MAX,
    ASSET_SCALE_MAX,
    EXCESS_BASIS_POINTS_MAX,
    EXCESS_UNITS_MAX,
    UINT64_DIGITS_MAX,
    UINT64_MAX,
)

# Printable ASCII without the space: what every ISO 4217 code is, and nothing that could hide in a log line.
_ASSET_CODE: Final = re.compile(r"[!-~]+")
_DECIMAL: Final = re.compile(r"0|[1-9][0-9]*")


@frozen
class Asset:
    """What is counted: a code, and how many decimal places its smallest unit has.

    Contract section 2.1: `code` should be an ISO 4217 code; `scale` is an integer from 0 to 255, so 2 for cents.
    Raises `InvalidValue` naming the member for anything else; a `bool` is not an integer here.

    >>> Asset("USD", 2)
    Asset(code='USD', scale=2)
    """

    code: str = field()
    scale: int = field()

    @code.validator
    def _printable(self, _: object, code: object) -> None:
        if not isinstance(code, str) or not _ASSET_CODE.fullmatch(code) or len(code) > ASSET_CODE_CHARS_MAX:
            raise InvalidValue(
                f"assetCode must be 1 to {ASSET_CODE_CHARS_MAX} printable ASCII characters without spaces",
                member="assetCode",
            )

    @scale.validator
    def _in_range(self, _: object, scale: object) -> None:
        if type(scale) is not int or not 0 <= scale <= ASSET_SCALE_MAX:
            raise InvalidValue(f"assetScale must be an integer from 0 to {ASSET_SCALE_MAX}", member="assetScale")


@frozen
class Amount:
    """A sum of money: `value` minor units of `asset`.

    Contract section 2.1: `value` is an unsigned 64-bit integer. Raises `InvalidValue` for anything else.

    >>> Amount(2500, Asset("USD", 2)).text
    '2500'
    """

    value: int = field()
    asset: Asset = field()

    @asset.validator
    def _is_asset(self, _: object, asset: object) -> None:
        if not isinstance(asset, Asset):
            raise InvalidValue("asset must be an Asset", member="asset")

    @value.validator
    def _uint64(self, _: object, value: object) -> None:
        if type(value) is not int or not 0 <= value <= UINT64_MAX:
            raise InvalidValue(f"value must be an integer from 0 to {UINT64_MAX}", member="value")

    @classmethod
    def parse(cls, text: object, asset: Asset) -> Self:
        """The amount that `text` writes: `0`, or ASCII digits with no leading zero, at most 2**64 - 1.

        Raises `InvalidValue` for any other spelling, so that two spellings never mean one amount.

        >>> Amount.parse("2500", Asset("USD", 2)) == Amount(2500, Asset("USD", 2))
        True
        """
        if not isinstance(text, str) or len(text) > UINT64_DIGITS_MAX or not _DECIMAL.fullmatch(text):
            raise InvalidValue(
                "value must be a string of decimal digits without sign, spaces or leading zeros, "
                f"from 0 to {UINT64_MAX}",
                member="value",
            )
        return cls(int(text), asset)

    @property
    def text(self) -> str:
        """The wire's spelling of `value`."""
        return str(self.value)


def _not_negative(_: object, attribute: "Attribute[int]", value: object) -> None:
    if type(value) is not int or not 0 <= value <= UINT64_MAX:
        raise InvalidValue(f"{attribute.name} must be an integer from 0 to {UINT64_MAX}", member=attribute.name)


@frozen
class Tolerance:
    """By how much one packet may pass `incomingAmount`: `units` minor units or `basis_points` of it, what is more.

    Senders count in other assets, perhaps coarser ones, and rates are rounded: with none of this a payment could stay a
    unit short for ever. Raises `InvalidValue`.

    >>> Tolerance().excess_max(Amount(2500, Asset("USD", 2)))
    25
    """

    units: int = field(default=EXCESS_UNITS_MAX, validator=_not_negative)
    basis_points: int = field(default=EXCESS_BASIS_POINTS_MAX, validator=_not_negative)

    def excess_max(self, limit: Amount | None) -> int:
        """The most by which a total may pass `limit`, in minor units; a total never passes 2**64 - 1."""
        if limit is None:
            return 0
        return min(max(self.units, limit.value * self.basis_points // 10_000), UINT64_MAX - limit.value)
