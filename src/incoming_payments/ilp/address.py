"""ILP addresses. RFC 15 of the Interledger RFCs; the pattern is contract section 2.3's.

An address is an allocation scheme (`g`, `private`, `example`, `test` to `test3`, `local`, `peer`, `self`) and one or
more segments of letters, digits, `_`, `~` and `-`, with a period before each; at most 1023 characters, and case
matters.
"""

import re
from functools import lru_cache
from typing import Final, NewType

from incoming_payments.domain.methods import ILP_ADDRESS_PATTERN
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import ILP_ADDRESS_CHARS_MAX, ILP_ADDRESSES_REMEMBERED_MAX

IlpAddress = NewType("IlpAddress", str)

_ADDRESS: Final = re.compile(ILP_ADDRESS_PATTERN)


def ilp_address(text: object) -> IlpAddress:
    """`text` as an ILP address. Raises `InvalidValue` when it does not match the contract's pattern and length.

    >>> ilp_address("g.bank.alice")
    'g.bank.alice'
    """
    if not isinstance(text, str) or len(text) > ILP_ADDRESS_CHARS_MAX or not _is_address(text):
        raise InvalidValue(
            f"must be an ILP address of at most {ILP_ADDRESS_CHARS_MAX} characters, such as g.bank.alice",
            member="ilpAddress",
        )
    return IlpAddress(text)


@lru_cache(maxsize=ILP_ADDRESSES_REMEMBERED_MAX)
def _is_address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None
