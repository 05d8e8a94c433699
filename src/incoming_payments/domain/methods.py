"""The payment methods by which money reaches a payment, and ILP addresses (spec section 2.3).

An ILP address (Interledger RFC 15) is an allocation scheme, such as `g` or `test`, and one or more segments, each with
a period before it. A segment consists of letters, digits, `_`, `~` and `-`. An address is case-sensitive.
"""

import re
from typing import Final, NewType, TypeGuard

from attrs import field, frozen

from incoming_payments.errors import InvalidValue
from incoming_payments.limits import ILP_ADDRESS_CHARS_MAX, SHARED_SECRET_CHARS_MAX

IlpAddress = NewType("IlpAddress", str)

# The patterns of spec section 2.3, with the hyphen escaped.
ILP_ADDRESS_PATTERN: Final = r"(g|private|example|peer|self|test[1-3]?|local)([.][a-zA-Z0-9_~-]+)+"
SHARED_SECRET_PATTERN: Final = r"[a-zA-Z0-9\-_]+"  # noqa: S105 - a pattern, not a secret

_ILP_ADDRESS: Final = re.compile(ILP_ADDRESS_PATTERN)
_SHARED_SECRET: Final = re.compile(SHARED_SECRET_PATTERN)


def is_ilp_address(text: object) -> TypeGuard[str]:
    """Return whether `text` matches the pattern of spec section 2.3 and has at most 1023 characters.

    >>> is_ilp_address("g.bank.alice"), is_ilp_address("bank")
    (True, False)
    """
    return isinstance(text, str) and len(text) <= ILP_ADDRESS_CHARS_MAX and _ILP_ADDRESS.fullmatch(text) is not None


def ilp_address(text: str) -> IlpAddress:
    """Return `text` as an ILP address. Raise `InvalidValue` for a wrong pattern or length."""
    if not is_ilp_address(text):
        raise InvalidValue(
            f"ilpAddress must be an ILP address of at most {ILP_ADDRESS_CHARS_MAX} characters, such as g.bank.alice",
            member="ilpAddress",
        )
    return IlpAddress(text)


@frozen
class IlpPaymentMethod:
    """The details that a sender needs to open a STREAM connection to one payment.

    `shared_secret` is base64url without padding. The `repr` does not show this secret, because it decrypts the STREAM
    packets of the payment. Raises `InvalidValue` when a member does not match the pattern and length of spec section
    2.3.

    >>> IlpPaymentMethod("g.bank.x7", "c2VjcmV0")
    IlpPaymentMethod(ilp_address='g.bank.x7')
    """

    ilp_address: IlpAddress = field(converter=ilp_address)
    shared_secret: str = field(repr=False)

    @shared_secret.validator
    def _secret(self, _: object, secret: object) -> None:
        if not isinstance(secret, str) or len(secret) > SHARED_SECRET_CHARS_MAX or not _SHARED_SECRET.fullmatch(secret):
            raise InvalidValue(
                f"sharedSecret must be base64url without padding, and have at most {SHARED_SECRET_CHARS_MAX} "
                "characters",
                member="sharedSecret",
            )
