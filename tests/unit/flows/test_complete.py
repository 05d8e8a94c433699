"""Tests of `complete`: close a payment before it has received its `incomingAmount`."""

from datetime import timedelta
from typing import Any

import pytest

from incoming_payments.domain.lifecycle import state_of
from incoming_payments.domain.payment import HOST, ClientId, CreditId, PaymentId
from incoming_payments.domain.transitions import State
from incoming_payments.endpoints.open_payments import Request, Response, handle
from incoming_payments.errors import InvalidValue, PaymentNotFound
from incoming_payments.flows.complete import complete
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.gnap import AccessRight
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, FakeClock, a_creation
from kits.service_kit import (
    BOB,
    JSON,
    NOBODYS_ID,
    OTHER_SHOP,
    PATH,
    SHOP,
    Client,
    Service,
    a_right,
    document,
    ed25519_key,
    refusal,
)

LATER = NOW + timedelta(minutes=1)


class Waiting(MemoryStore):
    """A store with transactions that begin after the `clock` has advanced by a minute."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def update(self, id: PaymentId, decide: Any, credit_id: CreditId | None = None) -> Any:
        """Update the payment after a minute."""
        self._clock.advance(60)
        return super().update(id, decide, credit_id)


def stored(store: MemoryStore, **terms: Any) -> PaymentId:
    """Store a payment, and return its id."""
    created = a_creation(**terms)
    store.insert(created)
    return created.answer.id


def test_clock_is_read_inside_the_transaction() -> None:
    """The payment is completed at the time of the decision, and not at the time of the call."""
    store = Waiting(clock := FakeClock())
    id = stored(store)
    completed = run(complete(id, clock=clock), Ports(store=store))
    assert (completed.closed_at, state_of(completed, LATER)) == (LATER, State.COMPLETED)
    assert completed == store.load(id)


def test_unknown_payment_and_invalid_arguments_are_refused() -> None:
    """An unknown payment, an invalid id, and a clock that is not in UTC are refused."""
    ports = Ports(store=MemoryStore())
    with pytest.raises(PaymentNotFound):
        run(complete(NOBODYS_ID, clock=FakeClock()), ports)
    with pytest.raises(InvalidValue, match="a payment id must be"):
        run(complete("1", clock=FakeClock()), ports)
    assert isinstance(ports.store, MemoryStore)
    id = stored(ports.store)
    with pytest.raises(InvalidValue, match="a time must be a datetime in UTC"):
        run(complete(id, clock=lambda: NOW.replace(tzinfo=None)), ports)


# --- by a client -------------------------------------------------------------------------------------


def completing(client: Client, id: str, **parts: Any) -> Response:
    """Send a signed complete request."""
    return client.send(client.sign(Request("POST", f"{PATH}/{id}/complete", **parts)))


def test_client_completes_its_payment() -> None:
    """The answer is the payment without methods and `updatedAt`. A repeated request gets the same answer."""
    service = Service()
    id = service.client().creates(metadata={"a": 1})
    client = service.client(a_right("complete"))
    first = completing(client, id)
    assert document(first)["completed"] is True
    there = ["completed", "createdAt", "id", "metadata", "receivedAmount", "walletAddress"]
    assert there == sorted(document(first))
    service.clock.advance(60)
    assert completing(client, id, headers=(JSON,)).body == first.body
    assert service.store.load(id).closed_at == NOW


def test_client_completes_a_full_payment() -> None:
    """A payment that has received its `incomingAmount` is completed already, and does not change."""
    service = Service()
    id = service.client().creates(incomingAmount={"value": "5", "assetCode": "USD", "assetScale": 2})
    service.receive(id, 5)
    before = service.store.load(id)
    assert document(completing(service.client(a_right("complete")), id))["receivedAmount"]["value"] == "5"
    assert before == service.store.load(id)


# The rights of the token, the client that created the payment, and the status and the code of the refusal.
COMPLETE_RIGHTS: list[tuple[list[AccessRight], str, tuple[int, str]]] = [
    ([a_right("create", "read", "read-all", "list", "list-all")], SHOP, (401, "insufficient_rights")),
    ([a_right("complete")], OTHER_SHOP, (403, "forbidden")),
    ([a_right("complete", on=None)], OTHER_SHOP, (403, "forbidden")),
    ([a_right("complete", "read-all", "list-all", on=None)], HOST, (403, "forbidden")),
    ([a_right("complete", on=BOB)], SHOP, (404, "payment_not_found")),
    ([a_right("complete", on=BOB)], OTHER_SHOP, (404, "payment_not_found")),
]


@pytest.mark.parametrize(("rights", "owner", "expected"), COMPLETE_RIGHTS)
def test_other_payments_are_not_completed(rights: list[AccessRight], owner: str, expected: tuple[int, str]) -> None:
    """`complete` covers the payments that the client itself created, on the wallet address of the right."""
    service = Service()
    id = stored(service.store, client=ClientId(owner))
    assert refusal(completing(service.client(*rights), id)) == expected
    assert service.store.load(id).closed_at is None


def test_bad_complete_requests_are_refused() -> None:
    """Each refusal has its status and code, and changes nothing."""
    service = Service()
    id = service.client().creates()
    client = service.client(a_right("complete"))
    for name in (NOBODYS_ID, "x", id.upper()):
        assert refusal(completing(client, name)) == (404, "payment_not_found")
    assert refusal(completing(client, id, body=b"{}", headers=(JSON,))) == (400, "unexpected_body")
    assert refusal(service.handle(Request("POST", f"{PATH}/{id}/complete"))) == (401, "token_missing")
    assert refusal(service.handle(Request("GET", f"{PATH}/{id}/complete"))) == (405, "method_not_allowed")
    assert refusal(service.handle(Request("POST", f"{PATH}//complete"))) == (404, "not_found")
    forged = service.client(a_right("complete"), jwk=ed25519_key("another").public_jwk())
    assert completing(forged, id).status == 401
    assert service.store.load(id).closed_at is None


def test_expired_payment_is_not_completed() -> None:
    """The answer is 409 `payment_expired`, and the payment stays expired."""
    service = Service()
    id = service.client().creates(expiresAt=(NOW + timedelta(seconds=9)).isoformat())
    service.clock.advance(10)
    assert refusal(completing(service.client(a_right("complete")), id)) == (409, "payment_expired")
    assert service.store.load(id).closed_at is None


def test_clock_of_a_request_is_read_inside_the_transaction() -> None:
    """A payment that expires while the request of the client waits for the store is not completed."""
    service = Service()
    store = Waiting(service.clock)
    id = stored(store, expires_in_s=30, client=ClientId(SHOP))
    service.replace(store=store)
    request = service.client(a_right("complete")).sign(Request("POST", f"{PATH}/{id}/complete"))
    response = service.run(handle(request, policy=service.policy, now=service.now, clock=service.clock))
    assert refusal(response) == (409, "payment_expired")
