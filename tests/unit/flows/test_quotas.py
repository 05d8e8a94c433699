"""Tests of `flows.quotas`: clients that send too many requests, or have too many unpaid payments, get 429."""

import asyncio
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.lifecycle import complete
from incoming_payments.domain.payment import ClientId, PaymentId
from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import ConfigurationError, PortUnavailable, StoreUnavailable
from incoming_payments.flows.create import create_for_host
from incoming_payments.flows.machinery.ports import AsyncPorts
from incoming_payments.limits import QUOTA_RESERVED_S_MAX
from incoming_payments.service import AsyncIncomingPayments
from incoming_payments.service.quotas import MemoryQuotas
from incoming_payments.stores.memory import MemoryNonces
from kits.fake_ports import Async, Raising, Rules
from kits.service_kit import ALICE, NOBODYS_ID, OTHER_SHOP, SHOP, USD, Service, a_right, document, header, refusal

EXPIRES = {"expiresAt": "2026-01-01T12:10:00Z"}  # ten minutes after the time of the clock


def service_with(**quotas: Any) -> Service:
    """Return a service with quotas in memory."""
    service = Service()
    service.replace(quotas=MemoryQuotas(**quotas))
    return service


# --- requests ----------------------------------------------------------------------------------------


def test_too_many_requests() -> None:
    """Creates and reads count together. The response has its own code, and says when to send the next request."""
    service = service_with(requests_per_minute=3)
    client = service.client()
    id = client.creates()
    assert client.get(id).status == 200
    assert client.get(NOBODYS_ID).status == 404
    for response in (client.create(), client.get(id)):
        assert refusal(response) == (429, "too_many_requests")
        assert header(response, "Retry-After") == "20"
        assert "Retry-After" in document(response, 429)["error"]["description"]
    service.clock.advance(20)
    assert client.get(id).status == 200
    assert refusal(client.get(id)) == (429, "too_many_requests")


def test_quota_belongs_to_the_client_and_not_to_its_token() -> None:
    """A second token of the client does not help it, and another client is not affected."""
    service = service_with(requests_per_minute=1)
    service.client().creates()
    assert refusal(service.client().create()) == (429, "too_many_requests")
    assert service.client(name=OTHER_SHOP).create().status == 201


def test_refused_callers_use_up_no_quota() -> None:
    """The token, the signature and the right come first: only the client itself can use up its quota."""
    service = service_with(requests_per_minute=1)
    client = service.client()
    narrow = service.client(a_right("read"))
    assert refusal(narrow.create()) == (401, "insufficient_rights")
    assert client.send(client.creation(created=service.now - timedelta(days=1))).status == 401
    assert client.create().status == 201
    assert refusal(narrow.create()) == (401, "insufficient_rights")  # at the quota too


def test_client_beyond_its_quota_uses_up_no_nonces() -> None:
    """All clients share the capacity for nonces, so neither a quota that is used up nor a missing right may take it."""
    service = service_with(requests_per_minute=1)
    service.replace(nonces=MemoryNonces(capacity=2))
    client, narrow = service.client(), service.client(a_right("read"))
    assert client.send(client.creation(nonce="first")).status == 201
    for number in range(3):
        assert refusal(client.send(client.creation(nonce=f"{number}"))) == (429, "too_many_requests")
        assert refusal(narrow.send(narrow.creation(nonce=f"{number}"))) == (401, "insufficient_rights")
    other = service.client(name=OTHER_SHOP)
    assert other.send(other.creation(nonce="first")).status == 201


def test_lists_and_complete_requests_count() -> None:
    """Each request with a token counts, and a request at the quota changes nothing."""
    service = service_with(requests_per_minute=4)
    client = service.client(a_right("create", "list", "complete"))
    id = client.creates()
    listing = Request("GET", "/incoming-payments", f"wallet-address={quote(ALICE.url, safe='')}")
    completion = Request("POST", f"/incoming-payments/{id}/complete")
    assert client.send(client.sign(listing)).status == 200
    assert client.send(client.sign(evolve(listing, query="x"))).status == 400
    assert client.send(client.sign(evolve(completion, path=f"/incoming-payments/{NOBODYS_ID}/complete"))).status == 404
    for request in (listing, evolve(listing, query="x"), completion):
        assert refusal(client.send(client.sign(request))) == (429, "too_many_requests")
    assert service.store.load(PaymentId(id)).closed_at is None


def test_public_view_has_no_quota() -> None:
    """A request without a token belongs to no client."""
    service = service_with(requests_per_minute=1)
    id = service.client().creates()
    assert {service.handle(Request("GET", f"/incoming-payments/{id}")).status for _ in range(5)} == {200}


def test_quota_comes_before_the_refusals_of_the_request() -> None:
    """A client at its quota learns nothing about bodies and wallet addresses."""
    service = service_with(requests_per_minute=1)
    client = service.client()
    assert client.create(unknown=1).status == 400  # it counts
    assert refusal(client.create(unknown=1)) == (429, "too_many_requests")
    assert refusal(client.create(walletAddress="https://bank.example/bob")) == (429, "too_many_requests")


# --- unpaid payments ---------------------------------------------------------------------------------


def test_too_many_unpaid_payments() -> None:
    """The code differs from that of too many requests, and reads are not affected."""
    service = service_with(unpaid_payments=2)
    client = service.client()
    id = client.creates(**EXPIRES)
    client.creates(expiresAt="2026-01-01T12:20:00Z")
    response = client.create()
    assert refusal(response) == (429, "too_many_unpaid_payments")
    assert header(response, "Retry-After") == "600"  # when the first one expires
    assert len([row for row in service.store._rows if isinstance(row, str)]) == 2
    assert client.get(id).status == 200
    assert service.client(name=OTHER_SHOP).create().status == 201


def pay(service: Service, id: PaymentId) -> None:
    """Credit one unit."""
    service.receive(id, 1)


def close(service: Service, id: PaymentId) -> None:
    """Complete the payment."""
    service.store.update(id, lambda payment, _: complete(payment, now=service.now))


def expire(service: Service, _: PaymentId) -> None:
    """Let all payments of the test expire."""
    service.clock.advance(601)


@pytest.mark.parametrize("end", [pay, close, expire])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_payment_that_is_not_unpaid_any_more_makes_room(end: Any, place: int) -> None:
    """A payment with money, a completed one and an expired one do not count, in any order."""
    service = service_with(unpaid_payments=3)
    client = service.client()
    ids = [client.creates(**EXPIRES) for _ in range(3)]
    assert refusal(client.create()) == (429, "too_many_unpaid_payments")
    end(service, ids[place])
    assert client.create().status == 201
    expected = 201 if end is expire else 429
    assert client.create().status == expected


def test_payments_without_expiry_wait_at_most_an_hour() -> None:
    """`Retry-After` is bounded, because a payer may pay at any time."""
    service = service_with(unpaid_payments=1)
    client = service.client()
    client.creates()
    assert header(client.create(), "Retry-After") == "3600"


def test_last_second_of_a_payment_is_rounded_up() -> None:
    """`Retry-After` is a whole number of seconds, and at least one."""
    service = service_with(unpaid_payments=1)
    client = service.client()
    client.creates(**EXPIRES)
    service.clock.advance(599.9)
    assert header(client.create(), "Retry-After") == "1"


def test_quota_comes_before_the_approval() -> None:
    """A create that exceeds the quota is refused before the host decides."""
    service = service_with(unpaid_payments=1)
    rules = Rules()
    service.replace(approval=rules)
    client = service.client()
    client.creates()
    assert client.create().status == 429
    assert len(rules.proposals) == 1


def test_insert_with_an_unknown_outcome_counts_for_a_minute() -> None:
    """The payment may have been stored, so it counts. If it never appears, it stops counting after a minute."""
    service = service_with(unpaid_payments=1)
    store, client = service.store, service.client()

    class Failing(type(store)):  # type: ignore[misc] # a class that is known at run time
        def insert(self, _: object) -> None:
            raise StoreUnavailable("the outcome is unknown")

    broken = Failing()
    broken._rows = store._rows
    service.replace(store=broken)
    assert client.create().status == 503
    service.replace(store=store)
    response = client.create()
    assert refusal(response) == (429, "too_many_unpaid_payments")
    assert header(response, "Retry-After") == str(QUOTA_RESERVED_S_MAX)
    service.clock.advance(QUOTA_RESERVED_S_MAX)
    assert client.create().status == 201


def test_creates_of_the_host_do_not_count() -> None:
    """The host creates payments for itself and for clients without a quota, and credits them."""
    service = service_with(unpaid_payments=1)
    for owner in (None, SHOP, SHOP):
        payment = service.run(
            create_for_host(wallet_address=ALICE.url, client=owner, policy=service.policy, clock=service.clock)
        )
        assert service.receive(payment.id, 5).amount == Amount(5, USD)
    assert service.client().create().status == 201


# --- ports -------------------------------------------------------------------------------------------


def test_async_port_of_several_processes() -> None:
    """Two services share the port, and count together."""
    kit = Service()
    shared: Any = Async(MemoryQuotas(requests_per_minute=2, unpaid_payments=1))
    ports = AsyncPorts(
        store=kit.store,
        wallet_addresses=kit.hosted,
        introspector=kit.tokens,
        methods=kit.methods,
        nonces=kit.ports.nonces,
        quotas=shared,
    )
    services = [AsyncIncomingPayments(policy=kit.policy, ports=ports, clock=kit.clock) for _ in range(2)]
    client = kit.client()
    responses = [asyncio.run(services[turn % 2].handle(client.creation())) for turn in range(3)]
    assert responses[0].status == 201
    assert refusal(responses[1]) == (429, "too_many_unpaid_payments")
    assert refusal(responses[2]) == (429, "too_many_requests")


@pytest.mark.parametrize("answer", [True, False])
def test_port_that_answers_whether_a_request_is_admitted_is_named(answer: bool) -> None:
    """`True` is a number in Python. It would refuse each request, and the client would seem to be at fault."""

    class Whether(MemoryQuotas):
        def admit(self, client: ClientId, now: datetime) -> float | None:  # noqa: ARG002 - it has one answer
            return answer

    service = Service()
    service.replace(quotas=Whether())
    with pytest.raises(ConfigurationError, match=f"^quotas.admit returned {answer}: return None to admit the request"):
        service.client().create()


def test_port_that_is_unavailable_refuses_for_now() -> None:
    """An outage of the port is 503, and no request passes without its quota."""
    service = Service()
    service.replace(quotas=Raising(PortUnavailable("the shared cache is down")))
    assert refusal(service.client().create()) == (503, "port_unavailable")
    assert service.store._rows == {}
