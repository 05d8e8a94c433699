"""ILP addresses. RFC 15 of the Interledger RFCs; the pattern is contract section 2.3's.

An address is an allocation scheme (`g`, `private`, `example`, `test` to `test3`, `local`, `peer`, `self`) and one or
more segments of letters, digits, `_`, `~` and `-`, with a period before each; at most 1023 characters, and case
matters.
"""

from typing import NewType

from incoming_payments.domain.methods import is_ilp_address
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import ILP_ADDRESS_CHARS_MAX

IlpAddress = NewType("IlpAddress", str)


def ilp_address(text: object) -> IlpAddress:
    """`text` as an ILP address. Raises `InvalidValue` when it does not match the contract's pattern and length.

    >>> ilp_address("g.bank.alice")
    'g.bank.alice'
    """
    if not is_ilp_address(text):
        raise InvalidValue(
            f"must be an ILP address of at most {ILP_ADDRESS_CHARS_MAX} characters, such as g.bank.alice",
            member="ilpAddress",
        )
    return IlpAddress(text)
