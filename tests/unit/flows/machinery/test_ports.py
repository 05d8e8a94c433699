"""Tests of `ports`: the classes `Ports` and `AsyncPorts`. The Protocols have no code to test."""

import secrets

import pytest
from attrs.exceptions import FrozenInstanceError

from incoming_payments.flows.machinery.ports import AsyncPorts, Ports


@pytest.mark.parametrize("ports_class", [Ports, AsyncPorts])
def test_ports_are_optional(ports_class: type[Ports | AsyncPorts]) -> None:
    """Every port is optional, and the default randomness is `secrets.token_bytes`."""
    ports = ports_class()
    assert (ports.store, ports.wallet_addresses, ports.introspector, ports.methods, ports.nonces) == (None,) * 5
    assert ports.randomness is secrets.token_bytes


@pytest.mark.parametrize("ports_class", [Ports, AsyncPorts])
def test_ports_are_keyword_only_and_frozen(ports_class: type[Ports | AsyncPorts]) -> None:
    """A port cannot be passed by position, or replaced while a flow runs."""
    with pytest.raises(TypeError):
        ports_class(None)  # type: ignore[call-arg] # on purpose
    with pytest.raises(FrozenInstanceError):
        ports_class().store = None  # type: ignore[misc] # on purpose
