"""Create requests with `Idempotency-Key`, and `create` of the service with an idempotency key."""

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from attrs import evolve

from incoming_payments import IncomingPayments
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision, as_created
from incoming_payments.domain.payment import HOST, ClientId, InactiveWalletAddress, IncomingPayment, PaymentId
from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import (
    IdempotencyKeyReused,
    InvalidValue,
    MalformedIdempotencyKey,
    PolicyRefused,
    SignatureRefused,
    StoreUnavailable,
    WalletAddressesUnavailable,
    WalletAddressInactive,
    WalletAddressNotFound,
)
from incoming_payments.flows.create import create_payment
from incoming_payments.flows.idempotency import read_key
from incoming_payments.flows.machinery.effects import (
    AllocateMethods,
    Effect,
    FindCreation,
    Flow,
    InsertPayment,
    LoadPayment,
    ReleaseUnpaid,
)
from incoming_payments.gnap import AccessRight
from incoming_payments.httpsig import Evidence, RequestMessage
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig.explain import explain
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ports.approval import Approval
from incoming_payments.service.quotas import MemoryQuotas
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.wire import PaymentView
from kits.fake_ports import Decide, Raising, Rules, raising
from kits.service_kit import (
    ALICE,
    BASE_URL,
    BOB,
    JSON,
    OTHER_SHOP,
    PATH,
    SERVER_SECRET,
    USD,
    Client,
    Crash,
    Service,
    Unused,
    a_right,
    document,
    ed25519_key,
    id_of,
    refusal,
    settings,
    watched,
)

KEY = '"8e03978e-40d5-43dd-bc93-6894a57f9324"'
BODY = json.dumps({"walletAddress": ALICE.url}).encode()
COVERED = ["@method", "@target-uri", "authorization", "content-digest"]


def keyed(client: Client, key: str = KEY, *lines: str, body: bytes = BODY, **options: Any) -> Request:
    """Return a signed create request with one or more lines of `Idempotency-Key`."""
    keys = tuple(("Idempotency-Key", line) for line in (key, *lines))
    return client.sign(Request("POST", PATH, headers=(JSON, *keys), body=body), **options)


def creation_flow(service: Service, request: Request) -> Flow[PaymentView]:
    """Return the flow that answers `request`."""
    message = RequestMessage(request.method, f"{BASE_URL}{request.path}", request.headers, request.body)
    return create_payment(message, service.policy, service.now, service.clock)


def payments(service: Service) -> list[IncomingPayment]:
    """Return all payments in the store."""
    return [row for row in service.store._rows.values() if isinstance(row, IncomingPayment)]


# --- retries ---------------------------------------------------------------------------------------


def test_retry_gets_the_first_response() -> None:
    """Status, header fields and body are those of the first response, and one payment exists."""
    service = Service()
    client = service.client()
    first = client.send(keyed(client))
    service.clock.advance(60)
    again = client.send(keyed(client))
    assert first.status == 201
    assert first == again
    assert [payment.id for payment in payments(service)] == [id_of(first)]


def test_another_key_creates_another_payment() -> None:
    """A key stands for one payment, and two payments may be alike."""
    client = Service().client()
    assert id_of(client.send(keyed(client, '"a"'))) != id_of(client.send(keyed(client, '"b"')))


def test_key_belongs_to_its_client() -> None:
    """Another client can use the same key, and learns nothing of the first payment."""
    service = Service()
    one, other = service.client(), service.client(name=OTHER_SHOP)
    first, second = one.send(keyed(one)), other.send(keyed(other, body=BODY + b" "))
    assert id_of(first) != id_of(second)


def test_key_survives_the_token_and_the_signature() -> None:
    """A client retries with a new token, another key pair, a nonce, and parameters of the field."""
    service = Service()
    client, later = service.client(), service.client(key=ed25519_key("another"))
    first = client.send(keyed(client))
    service.clock.advance(5)
    assert later.send(keyed(later, f"{KEY};retry=1", nonce="n1")) == first


@pytest.mark.parametrize("change", ["credited", "completed", "expired"])
def test_retry_gets_the_payment_in_the_state_of_its_creation(change: str) -> None:
    """Money and time that came in between do not show, and the payment methods are those of the first response."""
    service = Service()
    client = service.client()
    expires_at = (service.now + timedelta(seconds=60)).isoformat()
    amount = {"value": "500", "assetCode": "USD", "assetScale": 2}
    body = json.dumps({"walletAddress": ALICE.url, "incomingAmount": amount, "expiresAt": expires_at}).encode()
    first = client.send(keyed(client, body=body))
    if change == "expired":
        service.clock.advance(61)
    else:
        service.receive(id_of(first), 100 if change == "credited" else 500)
    again = client.send(keyed(client, body=body))
    assert again == first
    assert document(again, 201)["receivedAmount"]["value"] == "0"
    assert document(again, 201)["completed"] is False
    assert len(document(again, 201)["methods"]) == 1


def test_payment_methods_are_derived_again() -> None:
    """No secret is stored for a retry: after a change of the server secret, it gets methods of the new secret."""
    service = Service()
    client = service.client()
    first = client.send(keyed(client))
    service.replace(methods=DerivedMethods("test.bank", [b"another server secret, for tests", SERVER_SECRET]))
    again = client.send(keyed(client))
    assert id_of(again) == id_of(first)
    assert document(again, 201)["methods"] != document(first, 201)["methods"]


@pytest.mark.parametrize("found", [None, InactiveWalletAddress(ALICE.url)], ids=["removed", "inactive"])
def test_retry_needs_no_active_wallet_address(found: InactiveWalletAddress | None) -> None:
    """The payment exists, so the client gets it. A new key is refused."""
    service = Service()
    client = service.client(a_right("create", on=None))
    first = client.send(keyed(client))
    del service.hosted.addresses[ALICE.url]
    if found is not None:
        service.hosted.addresses[ALICE.url] = found
    assert client.send(keyed(client)) == first
    assert client.send(keyed(client, '"new"')).status in {400, 403}


def test_retry_needs_no_look_up_of_the_wallet_address() -> None:
    """The payment exists, so an outage of the port for wallet addresses does not keep it from the client."""
    service = Service()
    client = service.client()
    first = client.send(keyed(client))
    service.replace(wallet_addresses=Raising(WalletAddressesUnavailable("no answer")))
    assert client.send(keyed(client)) == first
    assert refusal(client.send(keyed(client, '"new"'))) == (503, "wallet_addresses_unavailable")


def test_key_ends() -> None:
    """Until `idempotency_key_s` has passed, the key is protected. After that it creates another payment."""
    service = Service(idempotency_key_s=60)
    client = service.client()
    first = client.send(keyed(client))
    service.clock.advance(60)
    assert client.send(keyed(client)) == first
    service.clock.advance(0.000001)
    assert id_of(client.send(keyed(client))) != id_of(first)


def test_refused_request_does_not_use_its_key() -> None:
    """The client can correct the request and send it with the same key."""
    client = Service().client()
    past = json.dumps({"walletAddress": ALICE.url, "expiresAt": "2000-01-01T00:00:00Z"}).encode()
    assert refusal(client.send(keyed(client, body=past))) == (400, "invalid_terms")
    assert client.send(keyed(client)).status == 201


# --- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [BODY + b" ", json.dumps({"walletAddress": ALICE.url, "metadata": {}}).encode()])
def test_another_body_under_the_same_key_is_refused(body: bytes) -> None:
    """The fingerprint is over the bytes, because a client repeats the same bytes."""
    service = Service()
    client = service.client()
    first = client.send(keyed(client))
    again = client.send(keyed(client, body=body))
    assert refusal(again) == (422, "idempotency_key_reused")
    assert "use a new key for each payment" in again.body.decode()
    assert client.send(keyed(client)) == first
    assert len(payments(service)) == 1


@pytest.mark.parametrize(
    "lines",
    [
        ["8e03978e-40d5-43dd-bc93-6894a57f9324"],
        ["5"],
        ["?1"],
        [":YQ==:"],
        ['%"a"'],
        ["@1"],
        ["token"],
        ['("a")'],
        ['"a", "b"'],
        ['"a'],
        ['"a" x'],
        [""],
        ['"a"', '"a"'],
        ['"a', 'b"'],
        ['""'],
        [f'"{"k" * 256}"'],
        [f'"{"k" * 10_000}"'],
    ],
)
def test_malformed_key_is_refused(lines: list[str]) -> None:
    """The field is one string in double quotes (RFC 9651 §3.3.3) of 1 to 255 characters, in one line."""
    client = Service().client()
    response = client.send(keyed(client, *lines))
    assert refusal(response) == (400, "invalid_idempotency_key")
    assert document(response, 400)["error"]["details"] == {"field": "Idempotency-Key"}


def test_key_outside_ascii_is_refused() -> None:
    """No client can sign such a field, but a header of another process could hold one."""
    message = RequestMessage("POST", f"{BASE_URL}{PATH}", (("Idempotency-Key", '"ü"'),), BODY)
    with pytest.raises(MalformedIdempotencyKey, match="one string in double quotes"):
        read_key(message, ClientId("c"))


def test_longest_key_is_accepted() -> None:
    """A key has up to 255 characters. Escaped quotes count once."""
    client = Service().client()
    key = '"' + '\\"' * 255 + '"'
    first = client.send(keyed(client, key))
    assert (first.status, client.send(keyed(client, key))) == (201, first)


@pytest.mark.parametrize(
    ("components", "code"),
    [
        (COVERED, "idempotency_key_not_covered"),
        (COVERED[:-1], "component_not_covered"),
        (["@method"], "component_not_covered"),
    ],
)
def test_signature_must_cover_the_key(components: list[str], code: str) -> None:
    """Nothing is acted on that was not signed. With more missing components, the refusal names all of them."""
    service = Service()
    client = service.client()
    response = client.send(keyed(client, components=components))
    assert refusal(response) == (401, code)
    assert "idempotency-key" in document(response, 401)["error"]["details"]["component"].split(", ")
    assert payments(service) == []


def test_uncovered_key_can_be_explained() -> None:
    """The evidence has the policy that was applied, so the diagnosis names the component."""
    service = Service()
    client = service.client()
    with pytest.raises(SignatureRefused) as caught:
        service.run(creation_flow(service, keyed(client, components=COVERED)))
    assert isinstance(caught.value.evidence, Evidence)
    [cause] = explain(caught.value, caught.value.evidence).causes
    assert (cause.name, "idempotency-key" in str(cause)) == ("not_covered", True)


def test_added_key_is_refused() -> None:
    """A proxy cannot add a key to a request that was signed without one."""
    client = Service().client()
    request = client.creation()
    added = evolve(request, headers=(*request.headers, ("Idempotency-Key", KEY)))
    assert refusal(client.send(added)) == (401, "idempotency_key_not_covered")


def test_changed_key_is_refused() -> None:
    """A proxy cannot change the key."""
    client = Service().client()
    request = keyed(client)
    changed = tuple((name, '"other"' if name == "Idempotency-Key" else value) for name, value in request.headers)
    assert refusal(client.send(evolve(request, headers=changed))) == (401, "signature_invalid")


def test_policy_may_require_the_key() -> None:
    """Every request must then have a key."""
    required = (*SignaturePolicy().required, "idempotency-key")
    client = Service(signature=SignaturePolicy(required=required)).client()
    assert refusal(client.send(client.creation())) == (401, "idempotency_key_not_covered")
    assert client.send(keyed(client)).status == 201


def test_key_of_a_get_is_ignored() -> None:
    """Only a create request acts on the field, so another request need not cover it."""
    client = Service().client()
    id = client.creates()
    request = Request("GET", f"{PATH}/{id}", headers=(("Idempotency-Key", "x"),))
    assert client.send(client.sign(request, components=["@method", "@target-uri", "authorization"])).status == 200


UNKNOWN = b'{"walletAddress": "https://bank.example/eve"}'
READ, ANYWHERE = a_right("read"), a_right("create", on=None)

# Each row breaks one rule, and as many later rules as possible. The refusal must be that of the first broken rule.
PRECEDENCE: dict[str, tuple[AccessRight, dict[str, Any], tuple[int, str]]] = {
    "coverage": (READ, {"components": COVERED, "body": b"{", "key": "x"}, (401, "idempotency_key_not_covered")),
    "right": (READ, {"body": b"{", "key": "x"}, (401, "insufficient_rights")),
    "body": (a_right("create", on=BOB), {"body": b"{", "key": "x"}, (400, "invalid_body")),
    "wallet address of the right": (a_right("create", on=BOB), {"key": "x"}, (403, "forbidden")),
    "key": (ANYWHERE, {"key": "x", "body": UNKNOWN}, (400, "invalid_idempotency_key")),
    "fingerprint": (ANYWHERE, {"body": UNKNOWN}, (422, "idempotency_key_reused")),
    "wallet address": (ANYWHERE, {"key": '"new"', "body": UNKNOWN}, (400, "unknown_wallet_address")),
}


@pytest.mark.parametrize(("right", "options", "answer"), PRECEDENCE.values(), ids=PRECEDENCE)
def test_refusals_by_precedence(right: AccessRight, options: dict[str, Any], answer: tuple[int, str]) -> None:
    """Token, signature, right, body, the key and its record, and then the wallet address."""
    service = Service()
    honest = service.client()
    assert honest.send(keyed(honest)).status == 201
    sender = service.client(right)
    assert refusal(sender.send(keyed(sender, **options))) == answer


# --- the effects, crashes and concurrency ------------------------------------------------------------


@pytest.mark.parametrize("crash_after", range(1, 10))
def test_retry_after_a_crash_creates_one_payment(crash_after: int) -> None:
    """Whether the process ended before or after the transaction, one payment exists after the retry."""
    service = Service()
    client = service.client()
    with pytest.raises(Crash):
        service.run(watched(creation_flow(service, keyed(client)), [], crash_after=crash_after))
    assert len(payments(service)) == (1 if crash_after == 9 else 0)
    response = client.send(keyed(client))
    assert [payment.id for payment in payments(service)] == [id_of(response)]


class LosesAnswers(MemoryStore):
    """Inserts, and then raises `StoreUnavailable` once."""

    failures = 1

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert, and lose the first answer."""
        answer = super().insert(decision)
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("the connection was lost after the commit")
        return answer


def test_retry_after_an_ambiguous_commit_creates_one_payment() -> None:
    """The client gets 503, repeats the request, and gets the payment of the transaction that lost its answer."""
    service = Service()
    service.store = LosesAnswers()
    service.replace(store=service.store)
    client = service.client()
    assert refusal(client.send(keyed(client))) == (503, "store_unavailable")
    response = client.send(keyed(client))
    assert [payment.id for payment in payments(service)] == [id_of(response)]


class KnowsNoKeys(MemoryStore):
    """Finds no record, as for a request that looked the key up before the transaction of the first request ended."""

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:  # noqa: ARG002
        """Return `None`."""
        return None


def test_duplicate_that_was_late_gets_the_first_payment() -> None:
    """The record that `insert` returns decides: same response, or 422 for another body."""
    service = Service()
    service.store = KnowsNoKeys()
    service.replace(store=service.store)
    client = service.client()
    first = client.send(keyed(client))
    service.clock.advance(1)
    seen: list[Effect[Any]] = []
    service.run(watched(creation_flow(service, keyed(client)), seen))
    assert [type(effect) for effect in seen[-5:]] == [
        AllocateMethods, InsertPayment, ReleaseUnpaid, LoadPayment, AllocateMethods
    ]  # fmt: skip
    assert client.send(keyed(client)) == first
    assert refusal(client.send(keyed(client, body=BODY + b" "))) == (422, "idempotency_key_reused")
    assert len(payments(service)) == 1


# --- approval and quotas -----------------------------------------------------------------------------


def test_retry_needs_no_approval_and_no_quota() -> None:
    """The host decides once, and one payment counts. The retry succeeds at the quota, and after a change of mind."""
    service, rules = Service(), Rules()
    service.replace(approval=rules, quotas=MemoryQuotas(unpaid_payments=1))
    client = service.client()
    first = client.send(keyed(client))
    rules.decide = raising(PolicyRefused("no"))
    assert (first.status, [client.send(keyed(client)) for _ in range(3)]) == (201, [first] * 3)
    assert len(rules.proposals) == 1
    assert refusal(client.send(keyed(client, body=BODY + b" "))) == (422, "idempotency_key_reused")
    assert refusal(client.send(keyed(client, '"new"'))) == (429, "too_many_unpaid_payments")
    assert len(rules.proposals) == 1


def test_retry_counts_as_a_request() -> None:
    """The quota of requests comes before the key is read and looked up."""
    service = Service()
    service.replace(quotas=MemoryQuotas(requests_per_minute=2))
    client = service.client()
    first = client.send(keyed(client))
    assert client.send(keyed(client)) == first
    for request in (keyed(client), keyed(client, body=BODY + b" "), keyed(client, "no string")):
        assert refusal(client.send(request)) == (429, "too_many_requests")


@pytest.mark.parametrize(
    "decide", [raising(PolicyRefused("no")), lambda _: Approval.PENDING, raising(RuntimeError("broken"))]
)
def test_create_that_is_not_approved_leaves_its_key_free(decide: Decide) -> None:
    """The client can repeat the request with the same key, or use the key for another request."""
    service, rules = Service(), Rules(decide)
    service.replace(approval=rules, quotas=MemoryQuotas(unpaid_payments=1))
    client = service.client()
    assert {client.send(keyed(client)).status for _ in range(2)} <= {403, 503}
    rules.decide = lambda _: Approval.APPROVED
    first = client.send(keyed(client, body=BODY + b" "))
    assert first.status == 201
    assert [payment.id for payment in payments(service)] == [id_of(first)]


def test_create_above_the_quota_leaves_its_key_free() -> None:
    """The client can repeat the request with the same key when another payment is paid."""
    service = Service()
    service.replace(quotas=MemoryQuotas(unpaid_payments=1))
    client = service.client()
    id = client.creates()
    assert refusal(client.send(keyed(client))) == (429, "too_many_unpaid_payments")
    service.receive(id, 1)
    assert client.send(keyed(client, body=BODY + b" ")).status == 201


def test_duplicate_that_was_late_does_not_count_as_unpaid() -> None:
    """A payment that is not stored, because a concurrent request used the key, does not use up the quota."""
    service = Service()
    service.store = KnowsNoKeys()
    service.replace(store=service.store, quotas=MemoryQuotas(unpaid_payments=2))
    client = service.client()
    first = client.send(keyed(client))
    for _ in range(2):
        assert client.send(keyed(client)) == first
        assert refusal(client.send(keyed(client, body=BODY + b" "))) == (422, "idempotency_key_reused")
    assert client.create().status == 201
    assert refusal(client.create()) == (429, "too_many_unpaid_payments")


def test_late_duplicate_of_the_host_uses_no_quota() -> None:
    """The ports for approval and quotas are not called for the host, also when `insert` returns an earlier record."""
    kit = Service()
    kit.replace(store=KnowsNoKeys(), approval=Unused(), quotas=Unused())
    service = a_service(kit)
    first = service.create(wallet_address=ALICE.url, idempotency_key="k")
    assert service.create(wallet_address=ALICE.url, idempotency_key="k") == first


# --- the service ---------------------------------------------------------------------------------------


def a_service(kit: Service) -> IncomingPayments:
    """Return the service object for `kit`."""
    return IncomingPayments(**settings(kit, {}))


def test_create_of_the_host_can_be_repeated() -> None:
    """The repeated call returns the payment of the first one in the state of its creation."""
    kit = Service()
    service = a_service(kit)
    first = service.create(wallet_address=ALICE.url, incoming_amount=Amount(5, USD), idempotency_key="order-1")
    service.receive(first.id, credit_id="wire-1", amount=Amount(5, USD))
    kit.hosted.addresses.clear()
    kit.clock.advance(3600)
    again = service.create(wallet_address=ALICE.url, incoming_amount=Amount(5, USD), idempotency_key="order-1")
    assert again == first == as_created(service.get(first.id))
    assert len(payments(kit)) == 1


def test_arguments_are_compared_by_value() -> None:
    """The spelling of the URL, the zone of the time and the order of the metadata do not matter."""
    kit = Service()
    service = a_service(kit)
    soon = kit.now + timedelta(seconds=60)
    one = service.create(
        wallet_address=ALICE.url, expires_at=soon, metadata={"a": 1, "b": [True]}, client="c", idempotency_key="k"
    )
    for zone in (UTC, timezone(timedelta(0)), ZoneInfo("UTC")):
        again = service.create(
            wallet_address="HTTPS://bank.example:443/alice/",
            expires_at=soon.astimezone(zone),
            metadata={"b": [True], "a": 1},
            client="c",
            idempotency_key="k",
        )
        assert again == one


@pytest.mark.parametrize(
    "change",
    [
        {"wallet_address": BOB.url},
        {"incoming_amount": Amount(6, USD)},
        {"incoming_amount": None},
        {"expires_at": datetime(2026, 2, 1, tzinfo=UTC)},
        {"metadata": {}},
        {"client": "https://shop.example/"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_arguments_under_the_same_key_are_refused(change: dict[str, Any]) -> None:
    """Each argument is part of the fingerprint."""
    service = a_service(Service())
    given: dict[str, Any] = {"wallet_address": ALICE.url, "incoming_amount": Amount(5, USD), "idempotency_key": "k"}
    service.create(**given)
    with pytest.raises(
        IdempotencyKeyReused, match=("pass the same arguments to get the first payment, and a new key only")
    ):
        service.create(**{**given, **change})


@pytest.mark.parametrize("key", ["", "k" * 256, "ü", 5])
def test_invalid_key_of_the_host_is_refused(key: Any) -> None:
    """The error names the argument, before any port is used."""
    service = a_service(Service())
    with pytest.raises(InvalidValue) as caught:
        service.create(wallet_address="https://bank.example/eve", idempotency_key=key)
    assert caught.value.details == {"member": "idempotency_key"}


def test_first_call_of_the_host_needs_an_active_wallet_address() -> None:
    """Only a repeated call succeeds without it."""
    kit = Service()
    service = a_service(kit)
    kit.hosted.addresses[ALICE.url] = InactiveWalletAddress(ALICE.url)
    with pytest.raises(WalletAddressInactive):
        service.create(wallet_address=ALICE.url, idempotency_key="k")
    with pytest.raises(WalletAddressNotFound):
        service.create(wallet_address="https://bank.example/eve", idempotency_key="k")


def test_keys_of_the_host_and_of_clients_are_separate() -> None:
    """A client cannot find a payment of the host by its key, not even a payment that the host made for this client."""
    kit = Service()
    service = a_service(kit)
    client = kit.client()
    made = service.create(wallet_address=ALICE.url, client="https://shop.example/", idempotency_key=KEY.strip('"'))
    response = client.send(keyed(client))
    assert id_of(response) != made.id
    assert service.run(_find(HOST)) == made.id


def _find(client: ClientId) -> Flow[PaymentId | None]:
    found = yield from FindCreation(client, IdempotencyKey(KEY.strip('"')), datetime(2026, 1, 1, tzinfo=UTC))
    return None if found is None else found.payment
