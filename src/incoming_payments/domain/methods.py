"""Payment methods: how money reaches a payment. Contract section 2.3."""

import re
from functools import lru_cache
from typing import Final, TypeGuard

from attrs import field, frozen

from incoming_payments.errors import InvalidValue
from incoming_payments.limits import ILP_ADDRESS_CHARS_MAX, ILP_ADDRESSES_REMEMBERED_MAX, SHARED_SECRET_CHARS_MAX

# Contract section 2.3, to the letter but for the hyphen, which is escaped.
ILP_ADDRESS_PATTERN: Final = r"(g|private|example|peer|self|test[1-3]?|local)([.][a-zA-Z0-9_~-]+)+"
SHARED_SECRET_PATTERN: Final = r"[a-zA-Z0-9\-_]+"  # noqa: S105 - a pattern, not a secret

_ILP_ADDRESS: Final = re.compile(ILP_ADDRESS_PATTERN)
_SHARED_SECRET: Final = re.compile(SHARED_SECRET_PATTERN)


def is_ilp_address(text: object) -> TypeGuard[str]:
    """Whether `text` has the contract's pattern and length: at most 1023 characters.

    >>> is_ilp_address("g.bank.alice"), is_ilp_address("bank")
    (True, False)
    """
    return isinstance(text, str) and len(text) <= ILP_ADDRESS_CHARS_MAX and _matches(text)


@lru_cache(maxsize=ILP_ADDRESSES_REMEMBERED_MAX)
def _matches(text: str) -> bool:
    return _ILP_ADDRESS.fullmatch(text) is not None


@frozen
class IlpPaymentMethod:
    """The details with which a sender opens a STREAM connection to one payment.

    `shared_secret` is base64url without padding. It is left out of the `repr`: whoever holds it can read the STREAM
    packets of this payment. Raises `InvalidValue` when either does not match the contract's pattern and length.

    >>> IlpPaymentMethod("g.bank.x7", "c2VjcmV0")
    IlpPaymentMethod(ilp_address='g.bank.x7')
    """

    ilp_address: str = field()
    shared_secret: str = field(repr=False)

    @ilp_address.validator
    def _address(self, _: object, address: object) -> None:
        if not is_ilp_address(address):
            raise InvalidValue(
                f"ilpAddress must be an ILP address of at most {ILP_ADDRESS_CHARS_MAX} characters, "
                "such as g.bank.alice",
                member="ilpAddress",
            )

    @shared_secret.validator
    def _secret(self, _: object, secret: object) -> None:
        if not isinstance(secret, str) or len(secret) > SHARED_SECRET_CHARS_MAX or not _SHARED_SECRET.fullmatch(secret):
            raise InvalidValue(
                f"sharedSecret must be base64url without padding, at most {SHARED_SECRET_CHARS_MAX} characters",
                member="sharedSecret",
            )
