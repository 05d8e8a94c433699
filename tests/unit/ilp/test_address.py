"""Tests of `ilp.address`: Interledger RFC 15 and spec section 2.3."""

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.ilp.address import ilp_address


@pytest.mark.parametrize(
    "scheme", ["g", "private", "example", "peer", "self", "test", "test1", "test2", "test3", "local"]
)
def test_rfc_15_allocation_schemes(scheme: str) -> None:
    """Each scheme can begin an address, but is not an address by itself."""
    assert ilp_address(f"{scheme}.a") == f"{scheme}.a"
    with pytest.raises(InvalidValue):
        ilp_address(scheme)


def test_rfc_15_example() -> None:
    """The example address uses every kind of character that an address can hold."""
    address = "g.us-fed.ach.0.acmebank.swx0a0.acmecorp.sales.199.~ipr.cdfa5e16-e759-4ba3-88f6-8b9dc83c1868.2"
    assert ilp_address(address) == address


@pytest.mark.parametrize("text", ["g.a", "test3.bank.~alice", "g.A_z-0~", "private." + "a" * 1015])
def test_valid_address_is_accepted(text: str) -> None:
    """An ILP address has a scheme, at least one segment, and at most 1023 characters."""
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
def test_invalid_address_is_refused(text: object) -> None:
    """Other values raise `InvalidValue`, also values that are not strings."""
    with pytest.raises(InvalidValue) as caught:
        ilp_address(text)
    assert str(caught.value) == "must be an ILP address of at most 1023 characters, such as g.bank.alice"
    assert caught.value.details == {"member": "ilpAddress"}
