"""ILP addresses: Interledger RFC 15, with the pattern of spec section 2.3.

An address is an allocation scheme (`g`, `private`, `example`, `test`, `test1` to `test3`, `local`, `peer` or `self`)
and one or more segments, each preceded by a period. A segment consists of letters, digits, `_`, `~` and `-`. An address
has at most 1023 characters and is case-sensitive.
"""

from typing import NewType

from incoming_payments.domain.methods import is_ilp_address
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import ILP_ADDRESS_CHARS_MAX

IlpAddress = NewType("IlpAddress", str)


def ilp_address(text: object) -> IlpAddress:
    """Return `text` as an ILP address. Raise `InvalidValue` when its pattern or length is wrong.

    >>> ilp_address("g.bank.alice")
    'g.bank.alice'
    """
    if not is_ilp_address(text):
        raise InvalidValue(
            f"must be an ILP address of at most {ILP_ADDRESS_CHARS_MAX} characters, such as g.bank.alice",
            member="ilpAddress",
        )
    return IlpAddress(text)
