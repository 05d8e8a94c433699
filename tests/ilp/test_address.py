"""`ilp.address`: RFC 15 of the Interledger RFCs, and contract section 2.3."""

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.ilp.address import ilp_address


@pytest.mark.parametrize("text", ["g.a", "test3.bank.~alice", "private." + "a" * 1015])
def test_ilp_address(text: str) -> None:
    """An ILP address has a prefix, at least one segment, and at most 1023 characters."""
    assert ilp_address(text) == text


@pytest.mark.parametrize(
    "text", [None, b"g.a", "", "g", "g.", "g..a", "G.a", "test4.a", "g.a\n", "private." + "a" * 1016]
)
def test_ilp_address_refused(text: object) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidValue) as caught:
        ilp_address(text)
    assert str(caught.value) == "must be an ILP address of at most 1023 characters, such as g.bank.alice"
    assert caught.value.details == {"member": "ilpAddress"}
