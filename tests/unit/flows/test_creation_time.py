"""Tests of `createdAt`, the place of a payment in lists: it is read after every wait but the one for the store."""

import asyncio
import json
import random
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from incoming_payments import AsyncIncomingPayments, AsyncPorts, IncomingPayments
from incoming_payments.domain.idempotency import KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import ClientId, IncomingPayment, PaymentId, WalletAddress, WalletAddressUrl
from incoming_payments.endpoints.open_payments import Request
from incoming_payments.gnap import AccessTokenInfo, TokenQuery
from incoming_payments.ports.approval import Approval, ProposedPayment
from incoming_payments.service.quotas import MemoryQuotas
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import AsyncSqliteStore
from kits.service_kit import ALICE, JSON, PATH, Service, document, id_of, refusal

PAYMENTS = 200
IN_FLIGHT = 16
BODY = json.dumps({"walletAddress": ALICE.url}).encode()


class Slow:
    """Every port but the store. Each call advances the clock of `service` by a second."""

    def __init__(self, service: Service, *, unpaid_payments: int | None = None) -> None:
        self.service = service
        self.quotas = MemoryQuotas(unpaid_payments=unpaid_payments)
        self.approval_s = 1.0
        self.proposed: list[IncomingPayment] = []

    def wait(self, seconds: float = 1.0) -> None:
        """Advance the clock."""
        self.service.clock.advance(seconds)

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Find a wallet address."""
        self.wait()
        return self.service.hosted.addresses.get(url)  # type: ignore[return-value] # none is inactive

    def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Introspect a token."""
        self.wait()
        return self.service.tokens.introspect(query)

    def admit(self, client: ClientId, now: datetime) -> float | None:
        """Count a request."""
        self.wait()
        return self.quotas.admit(client, now)

    def reserve(self, client: ClientId, id: PaymentId) -> Sequence[PaymentId]:
        """Count an unpaid payment."""
        self.wait()
        return self.quotas.reserve(client, id)

    def release(self, client: ClientId, id: PaymentId) -> None:
        """Count an unpaid payment no longer."""
        self.quotas.release(client, id)

    def approve_payment(self, proposed: ProposedPayment) -> Approval:
        """Approve after `approval_s`."""
        self.wait(self.approval_s)
        self.proposed.append(proposed.payment)
        return Approval.APPROVED

    def approve_credit(self, _: object) -> Approval:
        """Approve."""
        return Approval.APPROVED

    def allocate(self, payment: IncomingPayment) -> Sequence[IlpPaymentMethod]:
        """Allocate the payment methods."""
        self.wait()
        return self.service.methods.allocate(payment)


class Recording(MemoryStore):
    """A store that records the events of each insert, with the time of the call."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service
        self.inserted: list[tuple[datetime, Decision[IncomingPayment]]] = []

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert the payment."""
        self.inserted.append((self.service.now, decision))
        return super().insert(decision)


def slow_service(service: Service, slow: Slow) -> tuple[IncomingPayments, Recording]:
    """Return a service with slow ports, and its store."""
    store = Recording(service)
    service.replace(store=store, wallet_addresses=slow, introspector=slow, quotas=slow, approval=slow, methods=slow)
    return IncomingPayments(policy=service.policy, ports=service.ports, clock=service.clock), store


def test_payment_is_created_at_the_time_of_its_insert() -> None:
    """All that counts from `createdAt` counts from there: the default expiry, the event, and the idempotency key."""
    service = Service(default_expiry_s=600, idempotency_key_s=3600)
    slow = Slow(service)
    bank, store = slow_service(service, slow)
    keyed = Request("POST", PATH, headers=(JSON, ("Idempotency-Key", '"key"')), body=BODY)
    arrived_at = service.now

    answer = document(bank.handle(service.client().sign(keyed)), 201)

    [(inserted_at, decision)] = store.inserted
    [event] = decision.events
    payment = store.load(decision.answer.id)
    assert inserted_at == arrived_at + timedelta(seconds=6)
    assert {inserted_at} == {payment.created_at, payment.updated_at, event.at}
    assert datetime.fromisoformat(answer["createdAt"]) == inserted_at
    assert payment.expires_at == inserted_at + timedelta(seconds=600)
    assert decision.keyed is not None
    assert decision.keyed.until == inserted_at + timedelta(seconds=3600)
    assert [payment.id] == [proposed.id for proposed in slow.proposed]


def test_host_creates_at_the_time_of_the_insert() -> None:
    """The same holds for a payment of the host, for which a slow wallet address and slow payment methods count."""
    service = Service()
    bank, store = slow_service(service, Slow(service))
    payment = bank.create(wallet_address=ALICE.url)
    [(inserted_at, _)] = store.inserted
    assert payment.created_at == inserted_at


def test_expiry_that_passes_during_the_approval_is_refused() -> None:
    """No payment is stored that was expired at its creation. Its place in the quota is free again after a minute."""
    service = Service()
    slow = Slow(service, unpaid_payments=1)
    bank, store = slow_service(service, slow)
    client = service.client()
    client.send = bank.handle
    slow.approval_s = 30

    expires_at = (service.now + timedelta(seconds=20)).isoformat()
    assert refusal(client.create(expiresAt=expires_at)) == (400, "invalid_terms")
    assert store.inserted == []
    assert refusal(client.create()) == (429, "too_many_unpaid_payments")
    service.clock.advance(60)
    assert client.create().status == 201


class Introspector:
    """An async introspector that waits for a random time."""

    def __init__(self, service: Service, seed: int) -> None:
        self.service = service
        self.random = random.Random(seed)

    async def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Introspect a token."""
        await asyncio.sleep(self.random.random() * 0.03)
        return self.service.tokens.introspect(query)


async def created_and_seen(bank: AsyncIncomingPayments, requests: Iterable[Request]) -> tuple[list[str], list[str]]:
    """Send the create requests while a client follows the list. Return the payments created, and those in the list."""
    created: list[str] = []
    seen: list[str] = []
    waiting = iter(requests)

    async def create() -> None:
        for request in waiting:
            created.append(id_of(await bank.handle(request)))  # noqa: PERF401 - the tasks share the list

    cursor = (await bank.create(wallet_address=ALICE.url)).id
    creators = asyncio.gather(*[create() for _ in range(IN_FLIGHT)])
    is_over = False
    while not is_over:
        is_over = creators.done()
        page = await bank.list(wallet_address=ALICE.url, cursor=cursor, last=100)
        is_over = is_over and not page.has_previous
        if page.payments:
            seen += [payment.id for payment in page.payments]
            cursor = page.payments[0].id
    await creators
    return created, seen


def test_poller_of_the_list_misses_no_payment(tmp_path: Path) -> None:
    """In one event loop, a client that follows the list meets each payment once, although creates overtake others."""
    service = Service()
    client = service.client()
    now = datetime.now(UTC)
    requests = [client.creation(created=now, nonce=str(number)) for number in range(PAYMENTS)]

    async def run() -> tuple[list[str], list[str]]:
        async with AsyncSqliteStore(tmp_path / "payments.sqlite3") as store:
            introspector, nonces = Introspector(service, seed=9), store.nonces
            ports: Any = {"wallet_addresses": service.hosted, "methods": service.methods}
            ports = AsyncPorts(store=store, introspector=introspector, nonces=nonces, **ports)
            return await created_and_seen(AsyncIncomingPayments(policy=service.policy, ports=ports), requests)

    created, seen = asyncio.run(run())
    assert len(created) == PAYMENTS
    assert sorted(seen) == sorted(created)
