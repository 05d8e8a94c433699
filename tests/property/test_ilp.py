"""`ilp.credentials`, over all payments, prefixes, secrets and addresses."""

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import PaymentId, new_payment_id
from incoming_payments.errors import MalformedAddress
from incoming_payments.ilp import DerivedMethods, ilp_address
from incoming_payments.testing import NOW, a_creation

SECRETS = [bytes([number]) * 32 for number in range(8)]
METHODS = DerivedMethods("test.bank", SECRETS[:2])
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

ids = st.builds(new_payment_id, st.just(NOW), st.binary(min_size=10, max_size=10))
prefixes = st.from_regex(r"(g|test[1-3]?|private)(\.[a-zA-Z0-9_~-]{1,9}){1,3}", fullmatch=True)
secrets = st.binary(min_size=32, max_size=48)


@given(ids, prefixes, secrets)
def test_what_is_handed_out_is_read(id: PaymentId, prefix: str, secret: bytes) -> None:
    """Every payment's address leads back to it, is an ILP address, and makes a method that the contract allows."""
    methods = DerivedMethods(prefix, [secret])
    credentials = methods.derive(id)
    assert credentials.payment_id == id
    assert methods.read(credentials.ilp_address) == credentials
    assert ilp_address(credentials.ilp_address) == credentials.ilp_address
    [method] = methods.allocate(a_creation(id=id).answer)
    assert type(method) is IlpPaymentMethod
    assert method.ilp_address == credentials.ilp_address


@given(ids, ids)
def test_different_payments_have_different_details(one: PaymentId, other: PaymentId) -> None:
    """No two payments share an address or a secret."""
    assume(one != other)
    assert METHODS.derive(one).ilp_address != METHODS.derive(other).ilp_address
    assert METHODS.derive(one).shared_secret != METHODS.derive(other).shared_secret


@given(
    st.text(max_size=60)
    | st.builds("test.bank.{}".format, st.text(max_size=50))
    | st.builds("test.bank.{}".format, st.text(st.sampled_from(ALPHABET), min_size=42, max_size=44))
    | st.builds("test.bank.{}".format, st.text(st.sampled_from(ALPHABET + "=+/\u00e9 \n"), min_size=43, max_size=43))
)
@example("test.bank." + "A" * 43)
def test_any_other_address_is_refused(address: str) -> None:
    """An address that was not handed out is `MalformedAddress`, and never anything else."""
    with pytest.raises(MalformedAddress):
        METHODS.read(address)


@given(ids, st.data())
def test_one_changed_character_is_refused(id: PaymentId, data: st.DataObject) -> None:
    """An address in which any one character is another is not ours, in the prefix, the segment or its last bits."""
    address = METHODS.derive(id).ilp_address
    at = data.draw(st.integers(0, len(address) - 1))
    other = data.draw(st.sampled_from(ALPHABET + ".~=\u00e9"))
    assume(other != address[at])
    with pytest.raises(MalformedAddress):
        METHODS.read(address[:at] + other + address[at + 1 :])


@given(ids, st.lists(st.sampled_from(SECRETS), min_size=1, max_size=8, unique=True), st.sampled_from(SECRETS))
def test_rotation(id: PaymentId, listed: list[bytes], used: bytes) -> None:
    """An address is read exactly while the secret it was made under is in the list, wherever it stands there."""
    handed_out = DerivedMethods("test.bank", [used]).derive(id)
    methods = DerivedMethods("test.bank", listed)
    if used in listed:
        assert methods.read(handed_out.ilp_address) == handed_out
    else:
        with pytest.raises(MalformedAddress):
            methods.read(handed_out.ilp_address)
    assert methods.derive(id) == DerivedMethods("test.bank", listed[:1]).derive(id)


@given(ids, prefixes, prefixes)
def test_an_address_belongs_to_its_prefix(id: PaymentId, prefix: str, other: str) -> None:
    """The prefix is authenticated: a segment moved below another prefix means nothing there."""
    assume(prefix != other)
    segment = DerivedMethods(prefix, SECRETS[:1]).derive(id).ilp_address.rpartition(".")[2]
    with pytest.raises(MalformedAddress):
        DerivedMethods(other, SECRETS[:1]).read(f"{other}.{segment}")
