"""Tests of `flows.approval`: the host approves, refuses or delays payments and packets before anything is stored."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.approval import Approved, Approver
from incoming_payments.domain.events import EventKind
from incoming_payments.domain.lifecycle import Decision, complete
from incoming_payments.domain.payment import Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.errors import (
    ApprovalRequired,
    ApprovalUnavailable,
    BrokenDecision,
    PolicyRefused,
    PortUnavailable,
    StoreUnavailable,
)
from incoming_payments.flows.create import create_for_host
from incoming_payments.flows.machinery.effects import Flow, UpdatePayment
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports
from incoming_payments.flows.machinery.run import arun, run
from incoming_payments.flows.receive_packet import receive_packet, receive_packet_with_cause
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Prepare, encode
from incoming_payments.ilp.receive import Arrival, open_packet
from incoming_payments.ilp.stream import ConnectionClose, Frame, StreamData, StreamError, StreamMoney
from incoming_payments.ports import CreditDecided
from incoming_payments.ports.approval import Approval, ProposedCredit, ProposedPayment
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW, a_creation
from incoming_payments.testing.replies import decode_reply
from kits import service_kit
from kits.fake_ports import Async, Decide, Rules, raising
from kits.observed_kit import WAYS, Observed
from kits.packet_kit import a_request
from kits.service_kit import ALICE, SHOP, document, refusal
from kits.stream_kit import METHODS, PEER, USD, Answer, Sender, Service

BOUND_S: Final = 0.05
APPROVED, PENDING = Approval.APPROVED, Approval.PENDING


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield an event for which hanging ports wait. It is set at the end."""
    event = threading.Event()
    yield event
    event.set()


def with_rules(decide: Decide = lambda _: APPROVED, **terms: Any) -> tuple[Service, Rules]:
    """Return a receiver with one payment, and its approval port."""
    service, rules = Service(**{"limit": 1000, **terms}), Rules(decide)
    service.replace(approval=rules, approval_s=5.0)
    return service, rules


def untouched(service: Service) -> bool:
    """Return whether nothing was credited."""
    return service.received == 0 and [event.kind for event in service.store.events(service.id)] == [EventKind.CREATED]


# --- packets -----------------------------------------------------------------------------------------


def test_approved_packet_is_credited() -> None:
    """The host sees the client, the wallet address, the amount, the peer and the data of the sender."""
    service, rules = with_rules()
    frames: list[Frame] = [
        StreamData(1, 4, b" two"),
        StreamMoney(1, 1),
        StreamData(3, 0, b"another stream"),
        StreamData(1, 0, b"one,"),
    ]
    prepare = service.sender.prepare(400, frames=frames)
    assert service.send(prepare).code == "fulfilled"
    assert service.received == 400
    [proposed] = rules.proposals
    assert isinstance(proposed, ProposedCredit)
    assert (proposed.client, proposed.wallet_address) == (service.payment.client, service.payment.wallet_address)
    assert (proposed.amount, proposed.peer) == (Amount(400, USD), PEER.address)
    assert (proposed.data, proposed.expires_at) == (b"one, two", prepare.expires_at.replace(microsecond=0))
    assert proposed.payment == service.created.answer  # as stored before the credit
    assert proposed.credit_id == service.store.events(service.id)[-1].credit_id


def test_refused_packet_ends_the_connection_with_the_words_of_the_host() -> None:
    """The reply is F99 with `ConnectionClose` and `StreamData`. A connector on the route cannot read the words."""
    service, _ = with_rules(raising(PolicyRefused("this account takes no gambling money")))
    packet = service.sender.prepare(400)
    answer = service.send(packet)
    words = "this account takes no gambling money"
    assert answer.code == "F99"
    assert answer.frames == (
        ConnectionClose(StreamError.APPLICATION_ERROR, words),
        StreamData(1, 0, words.encode()),
    )
    assert b"gambling" not in encode(answer.reply)
    assert untouched(service)


def test_pending_packet_is_refused_until_the_host_decides() -> None:
    """T99 is temporary, so the sender retries with new packets, and the first one after the approval is credited."""
    service, rules = with_rules(lambda _: PENDING)
    for _ in range(3):
        answer = service.send(service.sender.prepare(400))
        assert (answer.code, answer.reply.data) == ("T99", b"")
    assert untouched(service)
    rules.decide = lambda _: APPROVED
    assert service.send(service.sender.prepare(400)).code == "fulfilled"
    assert service.received == 400


BROKEN: Final = [
    pytest.param(raising(RuntimeError("broken")), id="raises"),
    pytest.param(raising(TimeoutError()), id="timeout of its own"),
    pytest.param(raising(PortUnavailable("the compliance system is down")), id="unavailable"),
    pytest.param(raising(StoreUnavailable("its database is down")), id="its store is unavailable"),
    pytest.param(lambda _: None, id="returns nothing"),
    pytest.param(lambda _: True, id="returns true"),
    pytest.param(lambda _: "approved", id="returns text"),
    pytest.param(lambda _: asyncio.sleep(0, APPROVED), id="returns a coroutine"),
]


@pytest.mark.parametrize("decide", BROKEN)
def test_failure_of_the_port_refuses_for_now(decide: Decide) -> None:
    """The sender gets T00, the log of the host gets the cause, and nothing is credited. A failure never approves."""
    service, rules = with_rules(decide)
    packet = encode(service.sender.prepare(400))
    answer = run(
        receive_packet_with_cause(packet, peer=PEER, receiver=service.receiver, clock=lambda: service.now),
        service.ports,
    )
    assert getattr(decode_reply(answer.reply), "code", None) == "T00"
    assert isinstance(answer.cause, ApprovalUnavailable)
    assert untouched(service)
    rules.decide = lambda _: APPROVED
    assert service.answer(packet)[0] == 13  # the same packet is fulfilled once the port works


def test_port_that_hangs_refuses_for_now_and_its_late_approval_is_dropped(gate: threading.Event) -> None:
    """The reply is T00 at the bound. The approval that comes later credits nothing."""
    answered = threading.Event()

    def decide(_: object) -> Approval:
        gate.wait(10)
        answered.set()
        return APPROVED

    service, _ = with_rules(decide)
    service.replace(approval_s=BOUND_S)
    began_s = time.monotonic()
    assert service.send(service.sender.prepare(400)).code == "T00"
    assert time.monotonic() - began_s < 5
    gate.set()
    assert answered.wait(5)
    assert untouched(service)


def test_approval_after_the_packet_has_expired_credits_nothing() -> None:
    """The store's transaction reads the clock again, so the packet is refused with R00."""
    service, rules = with_rules()
    prepare = service.sender.prepare(400)

    def decide(_: object) -> Approval:
        service.now = prepare.expires_at
        return APPROVED

    rules.decide = decide
    assert service.send(prepare).code == "R00"
    assert untouched(service)


def test_approval_after_the_payment_has_completed_credits_nothing() -> None:
    """The transaction decides about the payment as it is then."""
    service, rules = with_rules()

    def decide(_: object) -> Approval:
        service.store.update(service.id, lambda payment, _: complete(payment, now=NOW))
        return APPROVED

    rules.decide = decide
    assert service.send(service.sender.prepare(400)).code == "F07"
    assert service.received == 0


def test_credited_packet_is_not_asked_about_again() -> None:
    """The packet is fulfilled again and credited once, even if the host would refuse it now, and after its expiry."""
    service, rules = with_rules()
    prepare = service.sender.prepare(400)
    assert service.send(prepare).code == "fulfilled"
    for decide in (raising(PolicyRefused("no")), raising(RuntimeError("broken")), lambda _: PENDING):
        rules.decide = decide
        assert service.send(prepare).code == "fulfilled"
    service.now = prepare.expires_at + timedelta(days=1)
    assert service.send(prepare).code == "fulfilled"
    assert service.received == 400
    assert len(rules.proposals) == 1


def test_copy_of_a_credited_packet_with_another_amount_is_refused() -> None:
    """Such a packet needs no approval, and the refusal stays F03."""
    service, rules = with_rules()
    prepare = service.sender.prepare(400)
    assert service.send(prepare).code == "fulfilled"
    assert service.send(evolve(prepare, amount=401)).code == "F03"
    assert len(rules.proposals) == 1


@pytest.mark.parametrize("amount", [400, 1000])
@pytest.mark.parametrize(
    "decide",
    [lambda _: APPROVED, raising(PolicyRefused("no")), raising(RuntimeError("broken")), lambda _: PENDING],
)
def test_copy_that_is_credited_during_the_decision_is_fulfilled(decide: Decide, amount: int) -> None:
    """Two copies are in flight, and the host approves the first. Both get the Fulfill, whatever the second answer is.

    An amount of 1000 completes the payment.
    """
    service, rules = with_rules()
    prepare = service.sender.prepare(amount)

    def decide_twice(proposed: object) -> object:
        rules.decide = lambda _: APPROVED
        assert service.send(prepare).code == "fulfilled"
        return decide(proposed)

    rules.decide = decide_twice
    assert service.send(prepare).code == "fulfilled"
    assert service.received == amount


@pytest.mark.parametrize(
    ("make", "code"),
    [
        pytest.param(lambda s: s.sender.probe(400), "F99", id="probe"),
        pytest.param(lambda s: s.sender.prepare(400, least=401), "F99", id="below its minimum"),
        pytest.param(lambda s: s.sender.prepare(0), "fulfilled", id="no money"),
        pytest.param(lambda s: s.sender.prepare(2000), "F08", id="too large"),
        pytest.param(lambda s: s.sender.prepare(400, expires_at=NOW), "R00", id="expired"),
        pytest.param(lambda s: s.sender.prepare(400, frames=[ConnectionClose(1, "")]), "F99", id="close"),
    ],
)
def test_packet_that_cannot_be_credited_needs_no_approval(make: Callable[[Service], Prepare], code: str) -> None:
    """The host does not decide about a packet without money, or one that the payment refuses anyway."""
    service, rules = with_rules()
    assert service.send(make(service)).code == code
    assert rules.proposals == []
    assert untouched(service)


def test_refusals_of_the_payment_come_first() -> None:
    """A payment that does not exist, is completed, or has another asset refuses before the host decides."""
    service, rules = with_rules()
    assert service.send(service.sender.prepare(5), Peer("test.abroad", Asset("EUR", 2))).code == "F07"
    service.store.update(service.id, lambda payment, _: complete(payment, now=NOW))
    assert service.send(service.sender.prepare(5)).code == "F07"
    service.replace(store=MemoryStore())
    assert service.send(service.sender.prepare(5)).code == "F02"
    assert rules.proposals == []


# --- flows that forget the approval ------------------------------------------------------------------


def arrival_of(service: Service, prepare: Prepare) -> Arrival:
    """Return the packet as the receiver of `service` opens it."""
    opened = open_packet(encode(prepare), peer=PEER, receiver=service.receiver, nonce=bytes(12), now=NOW)
    assert isinstance(opened, Arrival)
    return opened


def crediting(service: Service, prepare: Prepare, approved: Approved | None) -> Flow[IncomingPayment]:
    """Credit a packet with this proof, and without a request for approval."""
    opened = arrival_of(service, prepare)
    decide = opened.decide(opened.credit_id, lambda: NOW, opened.approved_by(Approver.NO_PORT))

    def decide_with(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
        return evolve(decide(payment, earlier), approved=approved)

    return (yield from UpdatePayment(opened.payment_id, decide_with, opened.credit_id))


PAYMENT: Final = a_creation(limit=1000)
ID: Final = PAYMENT.answer.id
SERVICE: Final = Service(PAYMENT)
PACKET: Final = SERVICE.sender.prepare(400)
CREDIT_ID: Final = arrival_of(SERVICE, PACKET).credit_id
PROOFS: Final = {
    "none": None,
    "of a service without the port": Approved(Approver.NO_PORT, ID, CREDIT_ID, Amount(400, USD)),
    "for another payment": Approved(Approver.HOST, PaymentId(service_kit.NOBODYS_ID), CREDIT_ID, Amount(400, USD)),
    "for another packet": Approved(Approver.HOST, ID, CreditId("stream:1"), Amount(400, USD)),
    "for a smaller amount": Approved(Approver.HOST, ID, CREDIT_ID, Amount(399, USD)),
    "for another asset": Approved(Approver.HOST, ID, CREDIT_ID, Amount(400, Asset("EUR", 2))),
}


@pytest.mark.parametrize("kind", [Ports, AsyncPorts])
@pytest.mark.parametrize("proof", PROOFS)
def test_packet_without_the_right_proof_is_not_credited(proof: str, kind: type[Ports | AsyncPorts]) -> None:
    """With an approval port, the driver refuses a flow of the host that credits a packet without its approval."""
    service = Service(PAYMENT)
    flow = crediting(service, PACKET, PROOFS[proof])
    ports = kind(store=service.store, approval=Rules())
    with pytest.raises(ApprovalRequired):
        run(flow, ports) if isinstance(ports, Ports) else asyncio.run(arun(flow, ports))
    assert untouched(service)


def test_packet_with_the_right_proof_is_credited() -> None:
    """The driver does not ask again."""
    service, rules = with_rules(raising(PolicyRefused("no")))
    packet = service.sender.prepare(400)
    proof = Approved(Approver.HOST, service.id, arrival_of(service, packet).credit_id, Amount(400, USD))
    assert run(crediting(service, packet, proof), service.ports).received.value == 400
    assert rules.proposals == []


def test_driver_leaves_a_broken_decision_to_the_store() -> None:
    """The store refuses a decision of the host that is no `Decision`, also with an approval port."""
    service, _ = with_rules()

    def deciding() -> Flow[Any]:
        return (yield from UpdatePayment(service.id, lambda *_: "a decision"))  # type: ignore[arg-type]

    with pytest.raises(BrokenDecision):
        run(deciding(), service.ports)


# --- every way into the service ----------------------------------------------------------------------

ROUTES: Final = [*((way, "ilp") for way in WAYS), ("sync", "receive_packet"), ("async", "receive_packet")]


@pytest.mark.parametrize(("way", "route"), ROUTES)
@pytest.mark.parametrize(
    ("decide", "code", "received", "reported"),
    [
        (lambda _: APPROVED, "fulfilled", 400, "credited"),
        (lambda _: PENDING, "T99", 0, "approval_pending"),
        (raising(PolicyRefused("no")), "F99", 0, "refused_by_policy"),
        (raising(RuntimeError("broken")), "T00", 0, "acceptance_unavailable"),
    ],
)
def test_every_way_into_the_service_requests_the_approval(
    way: str, route: str, decide: Decide, code: str, received: int, reported: str
) -> None:
    """A packet is credited only if the host approves it. The observer gets one report about the credit."""
    service, rules = Observed(way), Rules(decide)
    id = service.kit.client().creates()
    service.kit.replace(approval=rules)
    packet = encode(Sender(METHODS.derive(id)).prepare(400))
    if route == "ilp":
        reply = service.send(a_request(packet)).body
    else:
        reply = service.call("receive_packet", packet, peer=PEER)
    assert Answer(decode_reply(reply), None).code == code
    assert service.kit.store.load(id).received.value == received
    assert len(rules.proposals) == 1
    reports = [each.outcome for each in service.recorder.take() if isinstance(each, CreditDecided)]
    assert reports == [reported]


# --- packets, with asyncio ---------------------------------------------------------------------------


def send_async(service: Service, prepare: Prepare, rules: Rules, approval_s: float = 5.0) -> Answer:
    """Return the reply of the async driver."""
    ports = AsyncPorts(store=service.store, approval=rules, approval_s=approval_s)
    flow = receive_packet(encode(prepare), peer=PEER, receiver=service.receiver, clock=lambda: service.now)
    reply = decode_reply(asyncio.run(arun(flow, ports)))
    return Answer(reply, None)


@pytest.mark.parametrize("kind", [lambda rules: rules, Async])
@pytest.mark.parametrize(
    ("decide", "code"),
    [
        (lambda _: APPROVED, "fulfilled"),
        (lambda _: PENDING, "T99"),
        (raising(PolicyRefused("no")), "F99"),
        (raising(RuntimeError("broken")), "T00"),
        (lambda _: None, "T00"),
    ],
)
def test_async_driver_requests_the_same_approval(kind: Callable[[Rules], Any], decide: Decide, code: str) -> None:
    """A sync port and an async port have the same effects as in a sync host."""
    service = Service(limit=1000)
    assert send_async(service, service.sender.prepare(400), kind(Rules(decide))).code == code
    assert service.received == (400 if code == "fulfilled" else 0)


# --- create requests ---------------------------------------------------------------------------------


def http_service(decide: Decide, **ports: Any) -> tuple[service_kit.Service, Rules]:
    """Return a service with an approval port."""
    service, rules = service_kit.Service(), Rules(decide)
    service.replace(approval=rules, approval_s=5.0, **ports)
    return service, rules


def no_payments(service: service_kit.Service) -> bool:
    """Return whether the store is empty."""
    return not service.store._rows


def test_approved_create_is_stored() -> None:
    """The host sees the client, the wallet address and the amount, before anything is stored or allocated."""
    service, rules = http_service(lambda _: APPROVED)
    rules.decide = lambda _: APPROVED if no_payments(service) else None
    client = service.client()
    created = document(client.create(incomingAmount={"value": "2500", "assetCode": "USD", "assetScale": 2}), 201)
    [proposed] = rules.proposals
    assert isinstance(proposed, ProposedPayment)
    assert (proposed.client, proposed.wallet_address, proposed.amount) == (SHOP, ALICE.url, Amount(2500, USD))
    assert created["id"].endswith(proposed.payment.id)
    assert service.store.load(proposed.payment.id) == proposed.payment


@pytest.mark.parametrize(
    ("decide", "expected"),
    [
        (raising(PolicyRefused("this shop is blocked")), (403, "refused_by_policy")),
        (lambda _: PENDING, (503, "approval_pending")),
        (raising(RuntimeError("broken")), (503, "acceptance_unavailable")),
        (raising(TimeoutError()), (503, "acceptance_unavailable")),
        (raising(PortUnavailable("down")), (503, "acceptance_unavailable")),
        (lambda _: None, (503, "acceptance_unavailable")),
        (lambda _: 1, (503, "acceptance_unavailable")),
    ],
)
def test_create_that_is_not_approved_stores_nothing(decide: Decide, expected: tuple[int, str]) -> None:
    """A refusal is 403 with the words of the host. Pending and every failure of the port are 503 with `Retry-After`."""
    service, _ = http_service(decide)
    response = service.client().create()
    assert refusal(response) == expected
    assert no_payments(service)
    if expected[0] == 403:
        assert document(response, 403)["error"]["description"] == "this shop is blocked"
    if expected[1] == "acceptance_unavailable":
        assert isinstance(response.cause, ApprovalUnavailable)
        assert "broken" not in str(document(response, 503))
    if expected[1] == "approval_pending":
        assert document(response, 503)["error"]["description"].startswith("the receiver has not decided yet")


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"walletAddress": "https://bank.example/bob"}, 403),
        ({"unknown": 1}, 400),
        ({"incomingAmount": {"value": "0", "assetCode": "USD", "assetScale": 2}}, 400),
        ({"expiresAt": "2000-01-01T00:00:00Z"}, 400),
    ],
)
def test_host_decides_last_about_a_create(members: dict[str, object], status: int) -> None:
    """The host does not decide about a create request that is refused anyway."""
    service, rules = http_service(lambda _: APPROVED)
    assert service.client().create(**members).status == status
    assert service.client(service_kit.a_right("read")).create().status == 401
    assert rules.proposals == []


def test_calls_of_the_host_need_no_approval() -> None:
    """The host decides itself before it creates a payment, or credits money that has arrived by another rail."""
    service, rules = http_service(raising(PolicyRefused("no")))
    payment = service.run(create_for_host(wallet_address=ALICE.url, policy=service.policy, clock=service.clock))
    assert service.receive(payment.id, 400).received.value == 400
    assert rules.proposals == []
