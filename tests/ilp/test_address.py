"""`ilp.address`: RFC 15 of the Interledger RFCs, and contract section 2.3."""

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.ilp.address import ilp_address


@pytest.mark.parametrize(
    "scheme", ["g", "private", "example", "peer", "self", "test", "test1", "test2", "test3", "local"]
)
def test_rfc_15_allocation_schemes(scheme: str) -> None:
    """Each scheme may begin an address, and is not one by itself."""
    assert ilp_address(f"{scheme}.a") == f"{scheme}.a"
    with pytest.raises(InvalidValue):
        ilp_address(scheme)


def test_rfc_15_example() -> None:
    """The address of an invoice, with everything that an address may hold."""
    address = "g.us-fed.ach.0.acmebank.swx0a0.acmecorp.sales.199.~ipr.cdfa5e16-e759-4ba3-88f6-8b9dc83c1868.2"
    assert ilp_address(address) == address


@pytest.mark.parametrize("text", ["g.a", "test3.bank.~alice", "g.A_z-0~", "private." + "a" * 1015])
def test_ilp_address(text: str) -> None:
    """An ILP address has a prefix, at least one segment, and at most 1023 characters."""
    assert ilp_address(text) == text


@pytest.mark.parametrize(
    "text",
    [
        None,
        b"g.a",
        "",
        "g",
        "g.",
        "g..a",
        "g.a.",
        ".g.a",
        "G.a",
        "test4.a",
        "g.a\n",
        "g.a b",
        "g.\u00e9",
        "private." + "a" * 1016,
    ],
)
def test_ilp_address_refused(text: object) -> None:
    """Anything else is refused."""
    with pytest.raises(InvalidValue) as caught:
        ilp_address(text)
    assert str(caught.value) == "must be an ILP address of at most 1023 characters, such as g.bank.alice"
    assert caught.value.details == {"member": "ilpAddress"}
