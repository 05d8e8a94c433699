"""Tests of `flows.machinery.effects`: requests to ports, as data."""

import gc
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import pytest

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import HOST, PaymentId
from incoming_payments.endpoints.open_payments import Request, handle
from incoming_payments.endpoints.packets import PacketPolicy, receive_packet_request
from incoming_payments.errors import ConfigurationError, FlowStuck
from incoming_payments.flows.complete import complete
from incoming_payments.flows.create import create_for_host, create_payment
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.get import get_payment, get_public_payment
from incoming_payments.flows.machinery.effects import (
    DrawRandomness,
    Effect,
    FindClientKey,
    FindWalletAddress,
    Flow,
    IntrospectToken,
    LoadPayment,
    ReserveUnpaid,
    UseNonce,
)
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet, receive_packet_with_cause
from incoming_payments.gnap.access import Action
from incoming_payments.gnap.introspection import TokenQuery
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import RequestMessage
from incoming_payments.ilp.receive import Receiver
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW
from kits.service_kit import ALICE, NOBODYS_ID, ed25519_key
from kits.stream_kit import METHODS, PEER, USD


@pytest.mark.parametrize(
    ("effect", "answer", "text"),
    [
        (
            FindWalletAddress(ALICE.url),
            {"asset": "USD"},
            "wallet_addresses.find returned dict: return WalletAddress or InactiveWalletAddress or None",
        ),
        (
            IntrospectToken(TokenQuery(AccessToken("t"), Action.READ)),
            True,
            "introspector.introspect returned bool: return AccessTokenInfo or None",
        ),
        (UseNonce("k", NOW, NOW), None, "nonces.use returned NoneType: return bool"),
        (LoadPayment(PaymentId("a")), None, "store.load returned NoneType: return IncomingPayment"),
        (
            FindClientKey(HOST, "k"),
            ed25519_key().public_key(),
            "client_keys.find returned PublicKey: return Mapping or None",
        ),
        (ReserveUnpaid(HOST, PaymentId("a")), None, "quotas.reserve returned NoneType: return Sequence"),
        (DrawRandomness(5), "text", "randomness returned str: return bytes"),
    ],
)
def test_port_that_answers_with_another_type_is_named(effect: Effect[Any], answer: object, text: str) -> None:
    """The error says which port to correct, and what to return."""
    steps = iter(effect)
    next(steps)
    with pytest.raises(ConfigurationError, match=text):
        steps.send(answer)


# --- flows that are dropped --------------------------------------------------------------------------

REQUEST: Final = Request("GET", "/")
MESSAGE: Final = RequestMessage("GET", "https://bank.example/", ())
POLICY: Final = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
RECEIVER: Final = Receiver(METHODS)
PACKETS: Final = PacketPolicy(peers=[])
USD_5: Final = Amount(5, USD)
ID: Final = PaymentId(NOBODYS_ID)

FLOWS: Final[dict[str, Callable[[], Flow[Any]]]] = {
    "announce_expired": lambda: announce_expired(NOW),
    "receive_packet_with_cause": lambda: receive_packet_with_cause(b"", peer=PEER, receiver=RECEIVER, clock=clock),
    "complete": lambda: complete(ID, clock=clock),
    "create_for_host": lambda: create_for_host(wallet_address="", policy=POLICY, clock=lambda: NOW),
    "create_payment": lambda: create_payment(MESSAGE, POLICY, NOW, lambda: NOW),
    "get_payment": lambda: get_payment(MESSAGE, ID, POLICY, NOW),
    "get_public_payment": lambda: get_public_payment(ID, POLICY),
    "handle": lambda: handle(REQUEST, policy=POLICY, now=NOW),
    "receive_packet_request": lambda: receive_packet_request(REQUEST, policy=PACKETS, receiver=RECEIVER, clock=clock),
    "receive": lambda: receive(ID, credit_id="wire-1", amount=USD_5, clock=clock),
    "receive_packet": lambda: receive_packet(b"", peer=PEER, receiver=RECEIVER, clock=clock),
}


def clock() -> datetime:
    """Return a fixed time."""
    return NOW


@pytest.mark.parametrize("name", FLOWS)
def test_flow_that_is_dropped_warns(name: str) -> None:
    """A flow that is dropped without being run warns, like a coroutine that was never awaited."""
    text = f"^flow '{name}' was never run: pass it to run\\(\\) or arun\\(\\), or call the service$"
    with pytest.warns(RuntimeWarning, match=text) as caught:
        FLOWS[name]()
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "use",
    [
        next,
        lambda flow: flow.close(),
        lambda flow: next(iter(flow)),
        lambda flow: run(flow, Ports(store=MemoryStore())),
        lambda flow: run(delegating(flow), Ports(store=MemoryStore())),
    ],
)
def test_flow_that_was_used_does_not_warn(use: Callable[[Flow[int]], object]) -> None:
    """Warnings are errors here. A flow that was started, closed, or run does not warn when it is dropped."""
    use(announce_expired(NOW))
    gc.collect()


def delegating(flow: Flow[int]) -> Flow[int]:
    """Return the answer of another flow."""
    return (yield from flow)


@pytest.mark.parametrize(
    "first",
    [
        lambda flow: run(flow, Ports(store=MemoryStore())),
        lambda flow: run(delegating(flow), Ports(store=MemoryStore())),
        next,
        lambda flow: flow.close(),
    ],
)
@pytest.mark.parametrize("again", [lambda flow: flow, delegating])
def test_flow_runs_once(first: Callable[[Flow[int]], object], again: Callable[[Flow[int]], Flow[int]]) -> None:
    """A flow that was used is refused, by the drivers and by `yield from`. It would return `None` at once."""
    steps = announce_expired(NOW)
    first(steps)
    with pytest.raises(FlowStuck, match="this flow has already run: make a new flow for each call"):
        run(again(steps), Ports(store=MemoryStore()))
    steps.close()
