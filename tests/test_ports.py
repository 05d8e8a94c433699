"""`ports`: the two bags of ports. The Protocols themselves have nothing that runs."""

import secrets

import pytest
from attrs.exceptions import FrozenInstanceError

from incoming_payments.ports import AsyncPorts, Ports


@pytest.mark.parametrize("bag", [Ports, AsyncPorts])
def test_ports_may_be_left_out(bag: type[Ports | AsyncPorts]) -> None:
    """A host gives the ports that its flows ask for; randomness is the system's own."""
    ports = bag()
    assert (ports.store, ports.wallet_addresses, ports.introspector, ports.methods, ports.nonces) == (None,) * 5
    assert ports.randomness is secrets.token_bytes


@pytest.mark.parametrize("bag", [Ports, AsyncPorts])
def test_ports_are_named_and_frozen(bag: type[Ports | AsyncPorts]) -> None:
    """Nobody passes one port for another by its place, or changes one under a running flow."""
    with pytest.raises(TypeError):
        bag(None)  # type: ignore[call-arg] # on purpose
    with pytest.raises(FrozenInstanceError):
        bag().store = None  # type: ignore[misc] # on purpose
