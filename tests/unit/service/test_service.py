"""The service object: each use case with sync and with async ports, and the mistakes that it finds when it is built."""

import asyncio
import inspect
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast
from urllib.parse import quote

import pytest
from attrs import evolve

from incoming_payments import (
    AccessToken,
    Amount,
    AsyncIncomingPayments,
    AsyncPorts,
    ConfigurationError,
    DerivedMethods,
    EventKind,
    HttpPeer,
    IncomingPayment,
    IncomingPayments,
    PacketPolicy,
    Ports,
    Receiver,
    Request,
    Response,
    ServicePolicy,
    State,
    state_of,
)
from incoming_payments.domain.payment import HOST
from incoming_payments.endpoints.open_payments import http_refusal
from incoming_payments.errors import (
    AssetMismatch,
    HttpRefused,
    InvalidValue,
    PaymentExpired,
    PaymentNotFound,
    PortMissing,
    TermsRefused,
    WalletAddressNotFound,
)
from incoming_payments.flows.machinery.effects import LoadPayment
from incoming_payments.gnap import AccessTokenInfo
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig import PrivateKey
from incoming_payments.ilp.packet import Reject, encode
from incoming_payments.limits import BODY_BYTES_MAX, ILP_PREPARE_BYTES_MAX
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing import NOW
from incoming_payments.testing.replies import decode_reply
from kits.packet_kit import BEARER, OCTETS, TOKEN
from kits.service_kit import (
    ALICE,
    AUTH_SERVER,
    BASE_URL,
    BOB,
    JPY,
    JSON,
    NOBODYS_ID,
    PATH,
    USD,
    Client,
    Service,
    Unused,
    a_right,
    document,
    ed25519_key,
    refusal,
)
from kits.stream_kit import METHODS, PEER, SECRET, Sender

POLICY: Final = ServicePolicy(base_url=BASE_URL, auth_server=AUTH_SERVER)
PACKETS: Final = PacketPolicy(peers=[], path="/packets")
STORE: Final = Ports(store=Unused(), methods=METHODS)
RECEIVER: Final = Receiver(METHODS)


class Driven:
    """The service object for `kit`. Each call of a method returns its answer, also if the method is a coroutine."""

    def __init__(self, kit: Service, kind: type[IncomingPayments] | type[AsyncIncomingPayments]) -> None:
        peer = HttpPeer(PEER, tokens=[AccessToken(TOKEN)])
        self.kit = kit
        self.service = kind(policy=kit.policy, ports=kit.ports, packets=PacketPolicy(peers=[peer]), clock=kit.clock)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.service, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            return asyncio.run(answer) if inspect.iscoroutine(answer) else answer

        return call


@pytest.fixture(params=[IncomingPayments, AsyncIncomingPayments])
def driven(request: pytest.FixtureRequest) -> Driven:
    """Return a service object with sync ports."""
    return Driven(Service(), request.param)


def test_errors_of_python_name_the_public_method() -> None:
    """A missing argument, and a coroutine that is never awaited, are reported under the name that the host calls."""
    service = IncomingPayments(policy=POLICY, ports=STORE)
    with pytest.raises(TypeError, match=r"^receive\(\) missing 1 required keyword-only argument: 'credit_id'"):
        service.receive(NOBODYS_ID, amount=Amount(1, USD))  # type: ignore[call-arg]
    coroutine: Any = AsyncIncomingPayments(policy=POLICY, ports=STORE).get(NOBODYS_ID)
    assert coroutine.__qualname__ == "get"
    coroutine.close()


# --- create ------------------------------------------------------------------------------------------


def test_host_creates_a_payment(driven: Driven) -> None:
    """The payment has the terms of the call, the time of the clock and the client of the host, and is durable."""
    expires_at = NOW + timedelta(days=1)
    metadata = {"order": "ab", "lines": [1, 2.5, None, {"ü": True}]}
    made = driven.create(
        wallet_address="HTTPS://bank.example:443/alice/",
        incoming_amount=Amount(2500, USD),
        expires_at=expires_at,
        metadata=metadata,
    )
    assert isinstance(made, IncomingPayment)
    assert (made.wallet_address, made.client, made.limit) == (ALICE.url, HOST, Amount(2500, USD))
    assert (made.created_at, made.expires_at, made.metadata) == (driven.kit.now, expires_at, metadata)
    assert made == driven.kit.store.load(made.id)
    assert driven.get(made.id).metadata == metadata
    assert [event.kind for event in driven.events(made.id)] == [EventKind.CREATED]


def test_only_the_wallet_address_is_required(driven: Driven) -> None:
    """Without the other terms, the payment accepts only any amount and never expires."""
    made = driven.create(wallet_address=ALICE.url)
    assert (made.limit, made.expires_at, made.metadata) == (None, None, None)


def test_payment_of_the_host_is_read_with_read_all_or_in_the_public_view(driven: Driven) -> None:
    """A client with `read` cannot read a payment that the host created. A client with `read-all` can."""
    id = driven.create(wallet_address=ALICE.url).id
    kit = driven.kit
    assert refusal(kit.client(a_right("read")).get(id)) == (403, "forbidden")
    assert document(kit.client(a_right("read-all")).get(id))["id"] == f"{BASE_URL}{PATH}/{id}"
    assert "receivedAmount" in document(driven.handle(Request("GET", f"{PATH}/{id}")))


def test_payment_for_a_client_is_read_by_that_client(driven: Driven) -> None:
    """A host that names a client creates a payment of this client."""
    id = driven.create(wallet_address=ALICE.url, client="https://shop.example/").id
    assert document(driven.kit.client(a_right("read")).get(id))["id"] == f"{BASE_URL}{PATH}/{id}"
    assert refusal(driven.kit.client(a_right("read"), name="https://other.example").get(id)) == (403, "forbidden")


def test_no_token_can_have_the_client_of_the_host(driven: Driven) -> None:
    """The client id of the host is no valid client id, neither in a token nor as an argument."""
    with pytest.raises(InvalidValue, match="a client id must have"):
        AccessTokenInfo(HOST, {}, [])
    with pytest.raises(InvalidValue, match="a client id must have"):
        driven.create(wallet_address=ALICE.url, client=HOST)


@pytest.mark.parametrize(
    ("terms", "error", "text"),
    [
        ({"wallet_address": "https://bank.example/nobody"}, WalletAddressNotFound, "does not host"),
        ({"wallet_address": "bank.example/alice"}, InvalidValue, "walletAddress must be an absolute"),
        ({"wallet_address": "$bank.example/alice"}, InvalidValue, "walletAddress is a payment pointer: write a URL"),
        ({"wallet_address": 5}, InvalidValue, "walletAddress must be an absolute"),
        ({"incoming_amount": Amount(5, JPY)}, AssetMismatch, "must be in USD"),
        ({"incoming_amount": Amount(0, USD)}, TermsRefused, "incomingAmount"),
        ({"incoming_amount": 5}, InvalidValue, "an amount must be an Amount"),
        ({"expires_at": NOW}, TermsRefused, "expiresAt"),
        ({"expires_at": "2030-01-01T00:00:00Z"}, InvalidValue, "a time must be a datetime in UTC"),
        ({"expires_at": datetime(2030, 1, 1)}, InvalidValue, "a time must be a datetime in UTC"),  # noqa: DTZ001
        ({"metadata": ["a"]}, InvalidValue, "metadata must be a mapping, not list"),
        ({"metadata": "a"}, InvalidValue, "metadata must be a mapping, not str"),
        ({"metadata": {"a": {1}}}, InvalidValue, "metadata must be a JSON object: .*set"),
        ({"metadata": {"a": float("nan")}}, InvalidValue, "metadata must be a JSON object: "),
        ({"metadata": {"a": "\ud800"}}, InvalidValue, "metadata must be a JSON object: "),
        ({"metadata": {"a": "x" * 100_000}}, InvalidValue, "metadata must be a JSON object: .*larger than"),
        ({"metadata": {1: "a", "1": "b"}}, InvalidValue, "metadata must be a JSON object: .*twice"),
        ({"client": ""}, InvalidValue, "a client id must have"),
        ({"client": 5}, InvalidValue, "a client id must have"),
    ],
)
def test_wrong_terms_are_refused(driven: Driven, terms: dict[str, Any], error: type[Exception], text: str) -> None:
    """Terms that a client could not have, and arguments of a wrong type, raise a typed error that names them."""
    with pytest.raises(error, match=text):
        driven.create(**{"wallet_address": ALICE.url, **terms})


def test_metadata_is_stored_as_json_writes_it(driven: Driven) -> None:
    """Keys become text and tuples become lists, also in nested values."""
    metadata: Any = {1: "a", "lines": ({True: None},)}
    payment = driven.create(wallet_address=ALICE.url, metadata=metadata)
    assert driven.get(payment.id).metadata == {"1": "a", "lines": [{"true": None}]}


# --- the payment as URL or id ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelled", ["{id}", BASE_URL + PATH + "/{id}", "HTTPS://BANK.example:443/op" + PATH + "/{id}/"]
)
def test_payment_is_named_by_its_id_or_its_url(driven: Driven, spelled: str) -> None:
    """Every method takes the id of a payment, and its URL in any spelling."""
    id = driven.create(wallet_address=ALICE.url).id
    payment = spelled.format(id=id)
    assert driven.receive(payment, credit_id="wire-1", amount=Amount(5, USD)).received == Amount(5, USD)
    assert driven.get(payment).received == Amount(5, USD)
    assert state_of(driven.complete(payment), driven.kit.now) is State.COMPLETED
    kinds = [event.kind for event in driven.events(payment)]
    assert kinds == [EventKind.CREATED, EventKind.CREDITED, EventKind.COMPLETED]


@pytest.mark.parametrize("name", ["get", "complete", "events", "receive"])
@pytest.mark.parametrize(
    ("payment", "found"),
    [
        (f"https://bank.example{PATH}/{NOBODYS_ID}", f"a URL below https://bank.example{PATH}/"),
        (f"HTTPS://other.example:8443/op{PATH}/{NOBODYS_ID}/", f"a URL below https://other.example:8443/op{PATH}/"),
        (f"{BASE_URL}{PATH}", f"a URL below {BASE_URL}/"),
        ("https://bank.example", "a URL below https://bank.example/"),
        ("https://bank.example/op?token=/5f", "a URL below https://bank.example/"),
        ("https://alice:5f@bank.example/op", "another text"),
        (f"{BASE_URL}{PATH}/{NOBODYS_ID}?x=1", "another text"),
        (f"{BASE_URL}{PATH}/{NOBODYS_ID.upper()}x", "another text"),
        (f"{PATH}/{NOBODYS_ID}", "another text"),
        ("", "another text"),
        (None, "NoneType"),
        (5, "int"),
        (b"x", "bytes"),
    ],
)
def test_other_text_is_no_payment(driven: Driven, name: str, payment: Any, found: str) -> None:
    """A URL of another service, other text and other types are refused, and the error shows what to pass.

    The error shows where the URL is, and no part of it that may be a secret.
    """
    options = {"credit_id": "wire-1", "amount": Amount(5, USD)} if name == "receive" else {}
    text = f"^payment must be a payment's id, or its URL below {BASE_URL}{PATH}/, not {found}$"
    with pytest.raises(InvalidValue, match=text):
        getattr(driven, name)(payment, **options)


@pytest.mark.parametrize("name", ["get", "complete", "events"])
def test_unknown_payment_is_not_found(driven: Driven, name: str) -> None:
    """A payment that does not exist is `PaymentNotFound`."""
    with pytest.raises(PaymentNotFound):
        getattr(driven, name)(NOBODYS_ID)


# --- receive, complete and announce ------------------------------------------------------------------


def test_receive_reads_the_clock(driven: Driven) -> None:
    """The time of a credit and of a refusal is that of the clock, and a repeated call returns the first credit."""
    id = driven.create(wallet_address=ALICE.url, expires_at=driven.kit.now + timedelta(hours=1)).id
    driven.kit.clock.advance(60)
    first = driven.receive(id, credit_id="wire-1", amount=Amount(5, USD))
    assert first.at == driven.kit.now
    driven.kit.clock.advance(3600)
    assert driven.receive(id, credit_id="wire-1", amount=Amount(5, USD)) == first
    with pytest.raises(PaymentExpired):
        driven.receive(id, credit_id="wire-2", amount=Amount(5, USD))


def test_complete_reads_the_clock(driven: Driven) -> None:
    """A payment is completed at the time of the clock, once. A payment that has expired cannot be completed."""
    expires_at = driven.kit.now + timedelta(hours=1)
    one, other = (driven.create(wallet_address=ALICE.url, expires_at=expires_at).id for _ in range(2))
    driven.kit.clock.advance(60)
    completed = driven.complete(one)
    assert completed.closed_at == driven.kit.now
    driven.kit.clock.advance(3600)
    assert driven.complete(one) == completed
    with pytest.raises(PaymentExpired):
        driven.complete(other)


def test_announce_expired(driven: Driven) -> None:
    """Each payment that has expired by the time of the clock gets its event once, `limit` of them at a time."""
    for _ in range(3):
        driven.create(wallet_address=ALICE.url, expires_at=driven.kit.now + timedelta(hours=1))
    assert driven.announce_expired() == 0
    driven.kit.clock.advance(3601)
    assert [driven.announce_expired(limit=2) for _ in range(3)] == [2, 1, 0]


# --- metadata ----------------------------------------------------------------------------------------

INVOICE: Final = {"externalRef": "INV-7"}


def test_erased_metadata_is_absent_over_http(driven: Driven) -> None:
    """The payment stays, also for a retry of the create request. A second erasure changes nothing."""
    kit = driven.kit
    kit.replace(erasure=kit.store.erasure)
    driven = Driven(kit, type(driven.service))
    client = kit.client(a_right("create", "read-all", "list-all"))
    order = {"wallet_address": ALICE.url, "metadata": INVOICE, "idempotency_key": "order-7"}
    made = driven.create(**order)
    body = json.dumps({"walletAddress": ALICE.url, "metadata": INVOICE}).encode()
    request = Request("POST", PATH, headers=(JSON, ("Idempotency-Key", '"7"')), body=body)
    created = document(client.send(client.sign(request)), 201)
    id = created["id"].rpartition("/")[2]
    assert created["metadata"] == document(client.get(id))["metadata"] == INVOICE
    for payment in (made.id, id, created["id"]):
        assert driven.erase_metadata(payment).metadata is None
    assert driven.get(made.id) == driven.create(**order)
    listing = Request("GET", PATH, query=f"wallet-address={quote(ALICE.url, safe='')}")
    kept = {name: value for name, value in created.items() if name != "metadata"}
    assert document(client.get(id)) == document(client.send(client.sign(request)), 201) == kept
    assert all("metadata" not in item for item in document(client.send(client.sign(listing)))["result"])
    with pytest.raises(PaymentNotFound):
        driven.erase_metadata(NOBODYS_ID)


def test_old_metadata_is_erased(driven: Driven) -> None:
    """The time counts from the end of the payment."""
    kit = driven.kit
    kit.replace(erasure=kit.store.erasure)
    driven = Driven(kit, type(driven.service))
    ended, open_one = (driven.create(wallet_address=ALICE.url, metadata=INVOICE).id for _ in range(2))
    driven.complete(ended)
    kit.clock.advance(60)
    assert driven.erase_old_metadata(kept_s=60)
    assert driven.get(ended).metadata == INVOICE
    assert driven.erase_old_metadata(kept_s=59)
    assert (driven.get(ended).metadata, driven.get(open_one).metadata) == (None, INVOICE)


def test_erasure_needs_its_port(driven: Driven) -> None:
    """A store of the host without the port works as before."""
    id = driven.create(wallet_address=ALICE.url, metadata=INVOICE).id
    with pytest.raises(PortMissing, match=r"this call needs erasure.erase: pass erasure=... to Ports"):
        driven.erase_metadata(id)
    with pytest.raises(PortMissing, match=r"this call needs erasure.erase_ended: pass erasure=... to Ports"):
        driven.erase_old_metadata(kept_s=5)


def test_payment_is_found_by_its_reference(driven: Driven) -> None:
    """The store names the member. Payments of every wallet address can have the reference."""
    kit = driven.kit
    kit.replace(store=MemoryStore(reference="externalRef"))
    driven = Driven(kit, type(driven.service))
    ids = [driven.create(wallet_address=url, metadata=INVOICE).id for url in (ALICE.url, BOB.url)]
    driven.create(wallet_address=ALICE.url, metadata={"externalRef": "INV-8", "other": "INV-7"})
    driven.create(wallet_address=ALICE.url)
    page = driven.list(reference="INV-7")
    assert {payment.id: payment.wallet_address for payment in page.payments} == {ids[0]: ALICE.url, ids[1]: BOB.url}
    assert [payment.id for payment in driven.list(reference="INV-7", wallet_address=BOB.url).payments] == ids[1:]
    assert not driven.list(reference="INV-9").payments
    with pytest.raises(InvalidValue, match="reference must be a text of 1 to 255 characters"):
        driven.list(reference="")


def test_store_without_references_is_named(driven: Driven) -> None:
    """The list is never returned without the filter."""
    with pytest.raises(ConfigurationError, match="the store indexes no references: name a member"):
        driven.list(reference="INV-7")
    driven.kit.replace(store=Unused())
    with pytest.raises(ConfigurationError, match="the store indexes no references: name a member"):
        Driven(driven.kit, type(driven.service)).list(reference="INV-7")


def test_real_clock_is_the_default() -> None:
    """Without `clock`, the service reads the real clock."""
    kit = Service()
    made = IncomingPayments(policy=kit.policy, ports=kit.ports).create(wallet_address=ALICE.url)
    assert abs(made.created_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_own_flow_is_run_with_the_ports(driven: Driven) -> None:
    """`run` of the service runs the flows of a host."""
    made = driven.create(wallet_address=ALICE.url)
    assert driven.run(iter(LoadPayment(made.id))) == made


# --- packets and requests ----------------------------------------------------------------------------


def test_receive_packet(driven: Driven) -> None:
    """A packet is fulfilled and credited, with the methods of the ports."""
    id = driven.create(wallet_address=ALICE.url).id
    sender = Sender(driven.kit.methods.derive(id))
    reply = driven.receive_packet(encode(sender.prepare(400)), peer=PEER)
    assert not isinstance(decode_reply(reply), Reject)
    assert driven.get(id).received == Amount(400, USD)


def test_receive_packet_needs_a_receiver() -> None:
    """Without `DerivedMethods` and without a receiver, the error says what to pass."""
    ports = Ports(store=Unused(), methods=Unused())
    with pytest.raises(ConfigurationError, match=r"no receiver: .* or receiver=Receiver\(") as caught:
        IncomingPayments(policy=POLICY, ports=ports).receive_packet(b"", peer=PEER)
    assert caught.value.details == {"setting": "receiver"}


def test_receive_packet_with_its_own_receiver() -> None:
    """A host passes a receiver with its own tolerance, or without `DerivedMethods` in the ports."""
    lone = IncomingPayments(policy=POLICY, ports=Ports(store=Unused()), receiver=RECEIVER)
    assert decode_reply(lone.receive_packet(b"", peer=PEER)).code == "F01"  # type: ignore[union-attr]


def test_handle_answers_clients_and_peers(driven: Driven) -> None:
    """`handle` answers requests for Open Payments, packets at their path, and refuses before it uses the body."""
    client = driven.kit.client()
    client.send = driven.handle
    id = client.creates()
    sender = Sender(driven.kit.methods.derive(id))
    packet = Request("POST", "/ilp", headers=(BEARER, OCTETS), body=encode(sender.prepare(400)))
    answer = driven.handle(packet)
    assert (answer.status, driven.get(id).received) == (200, Amount(400, USD))
    assert refusal(driven.handle(evolve(packet, headers=(OCTETS,))), "Bearer") == (401, "token_missing")
    assert refusal(driven.handle(Request("GET", "/", query="x" * 10_000))) == (414, "target_too_long")
    large = Request("POST", PATH, body=bytes(BODY_BYTES_MAX + 1))
    assert refusal(driven.handle(large)) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda s: s.handle("GET /"), "request must not be str: pass Request"),
        (lambda s: s.receive_packet("packet", peer=PEER), "packet must not be str: pass the bytes"),
        (lambda s: s.receive_packet(b"", peer="test.bank"), "peer must not be str: pass the Peer"),
        (lambda s: s.receive(NOBODYS_ID, credit_id="x", amount=5), "an amount must be an Amount"),
        (lambda s: s.receive(NOBODYS_ID, credit_id=5, amount=Amount(5, USD)), "a credit id must have"),
        (lambda s: s.announce_expired(limit="5"), "limit must be an integer"),
        (lambda s: s.erase_old_metadata(kept_s=-1), "kept_s must be an integer from 0"),
        (lambda s: s.erase_old_metadata(kept_s=5.0), "kept_s must be an integer from 0"),
        (lambda s: s.erase_metadata("x"), "payment must be a payment's id"),
    ],
)
def test_wrong_arguments_are_typed_errors(driven: Driven, call: Callable[[Driven], object], text: str) -> None:
    """An argument of a wrong type is a typed error that says what to pass."""
    with pytest.raises((ConfigurationError, InvalidValue), match=text):
        call(driven)


@pytest.mark.parametrize(
    ("packets", "path", "expected"),
    [
        (PACKETS, "/packets", (405, "method_not_allowed", ILP_PREPARE_BYTES_MAX)),
        (PACKETS, "/packets/", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/Packets", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/%70ackets", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/ilp", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/incoming-payments/1", (404, "payment_not_found", BODY_BYTES_MAX)),
        (None, "/packets", (404, "not_found", BODY_BYTES_MAX)),
    ],
)
def test_exactly_one_path_is_for_packets(
    packets: PacketPolicy | None, path: str, expected: tuple[int, str, int]
) -> None:
    """With `packets`, exactly one path accepts packets. All other paths belong to Open Payments."""
    built = IncomingPayments(policy=POLICY, ports=STORE, packets=packets)
    endpoint = built.endpoint(path)
    try:
        answer = built.run(endpoint.begin(Request("GET", path))(b""))
    except HttpRefused as error:
        answer = http_refusal(error)
    assert (*refusal(answer), endpoint.body_bytes_max) == expected


def test_response_after_a_failure() -> None:
    """A client gets 500 `internal_error`. A peer gets a Reject with T00, and no 5xx."""
    built = IncomingPayments(policy=POLICY, ports=STORE, packets=PACKETS)
    assert refusal(built.endpoint("/incoming-payments").failed()) == (500, "internal_error")
    failed = built.endpoint("/packets").failed()
    assert failed.status == 200
    assert decode_reply(failed.body) == Reject("T00", METHODS.prefix, "try again later")


@pytest.mark.parametrize("kind", [IncomingPayments, AsyncIncomingPayments])
def test_unauthenticated_client_causes_no_look_up_of_a_wallet_address(
    kind: type[IncomingPayments] | type[AsyncIncomingPayments],
) -> None:
    """The port for wallet addresses may ask a remote server, so a stranger must not reach it by a create or a list."""
    kit = Service()
    kit.replace(wallet_addresses=Unused())
    right = a_right("create", "list")
    strangers = {
        "invalid_token": Client(kit, "AN-UNKNOWN-TOKEN", ed25519_key()),
        "token_expired": kit.client(right, expires_at=NOW),
        "signature_invalid": Client(kit, kit.client(right).token, PrivateKey.generate_ed25519(ed25519_key().kid)),
    }
    driven = Driven(kit, kind)
    for code, client in strangers.items():
        query = "wallet-address=https%3A%2F%2Fbank.example%2Falice"
        for request in (client.creation(), client.sign(Request("GET", PATH, query))):
            assert refusal(driven.handle(request)) == (401, code)


# --- construction ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("methods", "fits"),
    [
        (METHODS, True),
        (DerivedMethods("test.bank", [SECRET]), True),
        (None, True),
        (Unused(), True),  # the host's own port is not checked
        (DerivedMethods("test.other", [SECRET]), False),
        (DerivedMethods("test.bank", [bytes(32), SECRET]), False),
        (DerivedMethods("test.bank", [SECRET, bytes(32)]), True),
    ],
)
@pytest.mark.parametrize("options", [{"packets": PACKETS}, {}])
def test_receiver_must_read_the_addresses_of_new_payments(methods: Any, fits: bool, options: dict[str, Any]) -> None:
    """A receiver that cannot read the addresses of new payments is refused at once."""
    ports = Ports(store=Unused(), methods=methods)
    if fits:
        assert IncomingPayments(policy=POLICY, ports=ports, receiver=RECEIVER, **options).receiver is RECEIVER
        return
    with pytest.raises(ConfigurationError, match=r"cannot decrypt the addresses of ports\.methods:"):
        IncomingPayments(policy=POLICY, ports=ports, receiver=RECEIVER, **options)


@pytest.mark.parametrize(
    ("change", "setting", "text"),
    [
        ({"policy": {}}, "policy", r"policy must not be dict: pass ServicePolicy\(base_url=..., auth_server=...\)"),
        ({"policy": ServicePolicy}, "policy", "policy must not be the class ServicePolicy"),
        ({"ports": MemoryStore()}, "ports", r"ports must not be MemoryStore: pass Ports\(store=...\)"),
        ({"ports": AsyncPorts(store=MemoryStore())}, "ports", "AsyncPorts to AsyncIncomingPayments"),
        ({"ports": Ports()}, "store", "ports has no store"),
        ({"receiver": METHODS}, "receiver", r"receiver must not be DerivedMethods: pass Receiver\(methods\)"),
        (
            {"ports": Ports(store=Unused(), methods=Unused()), "packets": PACKETS},
            "receiver",
            "packets= is given, but there is no receiver: pass Ports",
        ),
        ({"packets": Receiver(METHODS)}, "packets", "packets must not be Receiver: pass PacketPolicy"),
        ({"clock": NOW}, "clock", "clock must not be datetime: pass a function"),
        ({"clock": datetime.now}, "clock", "clock must return the time in UTC with its time zone"),
        ({"clock": time.time}, "clock", "clock must return the time in UTC with its time zone"),
    ],
)
def test_wrong_settings_are_found_when_the_service_is_built(change: dict[str, Any], setting: str, text: str) -> None:
    """Each mistake is a `ConfigurationError` that names the setting and says what to pass."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        IncomingPayments(**{"policy": POLICY, "ports": STORE, **change})
    assert caught.value.details == {"setting": setting}


def test_receiver_comes_from_the_ports() -> None:
    """Without a receiver of its own, the service uses the `DerivedMethods` of its ports."""
    assert IncomingPayments(policy=POLICY, ports=STORE, packets=PACKETS).receiver == RECEIVER


@pytest.mark.parametrize(
    ("policy", "missing", "setting"),
    [
        (POLICY, "wallet_addresses", "wallet_addresses"),
        (POLICY, "introspector", "introspector"),
        (POLICY, "methods", "methods"),
        (evolve(POLICY, allow_identical=False), "nonces", "nonces"),
        (evolve(POLICY, signature=SignaturePolicy(nonce_required=True)), "nonces", "nonces"),
        (POLICY, "nonces", None),
    ],
)
def test_routes_need_ports(policy: ServicePolicy, missing: str, setting: str | None) -> None:
    """`check_routes` names the port that requests of clients need."""
    unused = Unused()
    every = Ports(store=unused, wallet_addresses=unused, introspector=unused, nonces=unused, methods=unused)
    IncomingPayments(policy=policy, ports=every).check_routes()
    built = IncomingPayments(policy=policy, ports=evolve(every, **cast("Any", {missing: None})))
    if setting is None:
        built.check_routes()
        return
    with pytest.raises(ConfigurationError, match=f"ports has no {missing}: pass") as caught:
        built.check_routes()
    assert caught.value.details == {"setting": setting}


def test_async_service_takes_either_ports() -> None:
    """`AsyncIncomingPayments` takes `AsyncPorts` and `Ports`."""
    store = MemoryStore()
    for ports in (AsyncPorts(store=store), Ports(store=store)):
        assert asyncio.run(AsyncIncomingPayments(policy=POLICY, ports=ports).announce_expired()) == 0


def test_both_classes_have_the_same_methods() -> None:
    """The methods have the same parameters and docstrings. Their signatures show the answer, not the flow."""
    names = [name for name in vars(IncomingPayments) if not name.startswith("_") and name != "run"]
    assert names == [name for name in vars(AsyncIncomingPayments) if not name.startswith("_") and name != "run"]
    for name in names:
        one, other = getattr(IncomingPayments, name), getattr(AsyncIncomingPayments, name)
        signatures = [inspect.signature(method) for method in (one, other)]
        if name == "relay":  # the relays are of two classes
            assert [signature.return_annotation for signature in signatures] == ["Relay", "AsyncRelay"]
            signatures = [signature.replace(return_annotation=None) for signature in signatures]
        assert (one.__name__, one.__doc__, signatures[0]) == (name, other.__doc__, signatures[1])
    assert inspect.signature(IncomingPayments.create).return_annotation is IncomingPayment
    assert inspect.signature(AsyncIncomingPayments.handle).return_annotation is Response


# --- lists -------------------------------------------------------------------------------------------


def test_list_has_every_filter(driven: Driven) -> None:
    """The filters, the cursor and the clock of the service reach the store. The cursor may be a URL."""
    began = driven.kit.now
    hosts = [driven.create(wallet_address=ALICE.url, expires_at=began + timedelta(seconds=60)).id for _ in range(3)]
    driven.kit.clock.advance(30)
    shops = driven.create(wallet_address=ALICE.url, client="https://shop.example/").id
    newest_first = sorted(hosts, reverse=True)
    page = driven.list(wallet_address=ALICE.url, client=HOST, first=2)
    assert ([one.id for one in page.payments], page.has_next, page.has_previous) == (newest_first[:2], True, False)
    cursor = driven.kit.policy.payment_url(page.payments[-1].id)
    page = driven.list(wallet_address=ALICE.url, client=HOST, cursor=cursor)
    assert ([one.id for one in page.payments], page.has_next, page.has_previous) == (newest_first[2:], False, True)
    page = driven.list(cursor=cursor, last=2)
    assert [one.id for one in page.payments] == [shops, newest_first[0]]
    assert [one.id for one in driven.list(created_from=driven.kit.now).payments] == [shops]
    assert [one.id for one in driven.list(created_before=driven.kit.now).payments] == newest_first
    assert driven.list(state="expired").payments == ()
    driven.kit.clock.advance(31)
    assert [one.id for one in driven.list(state=State.EXPIRED).payments] == newest_first


def test_clients_list_and_complete(driven: Driven) -> None:
    """`handle` answers both requests of a client. The clock of the service decides about a completion."""
    client = driven.kit.client(a_right("create", "complete", "list"))
    client.send = driven.handle
    id = client.creates()
    query = "wallet-address=https%3A%2F%2Fbank.example%2Falice"
    listed = document(client.send(client.sign(Request("GET", PATH, query))))
    assert [item["id"] for item in listed["result"]] == [f"{BASE_URL}{PATH}/{id}"]
    driven.kit.clock.advance(60)
    assert document(client.send(client.sign(Request("POST", f"{PATH}/{id}/complete"))))["completed"] is True
    assert driven.get(id).closed_at == driven.kit.now
