"""The feed over HTTP: the answer to each request of a consumer, as its OpenAPI document describes it."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from incoming_payments import Amount, Consumer, RetryPolicy, StoreUnavailable
from incoming_payments.domain.feed import ConsumerName, Ending, Start
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.endpoints.openapi import pull_document, webhook_schema
from incoming_payments.endpoints.pull import PullConsumer, PullPolicy, answer_pull
from incoming_payments.errors import InvalidValue, StoreStopped, StoreUnusable
from incoming_payments.flows.create import create_for_host
from incoming_payments.flows.receive import receive
from incoming_payments.gnap import AccessToken
from incoming_payments.limits import HEADERS_MAX, PULL_BODY_BYTES_MAX, TARGET_CHARS_MAX
from incoming_payments.wire import write_webhook
from kits.fake_ports import Raising
from kits.service_kit import ALICE, JSON, USD, Service

DOCUMENT: Final = pull_document()
TOKEN: Final = "LEDGER-TOKEN-0001"
OLD_TOKEN: Final = "LEDGER-TOKEN-0000"
PUSH_TOKEN: Final = "PUSH-TOKEN-000001"
LEDGER: Final = Consumer(name=ConsumerName("ledger"))
PATHS: Final = ("/events/claim", "/events/acknowledge", "/events/fail")
BODY: Final = {"lease": "019b76da-a800-7000-8000-000000000000.1.1.00", "error": "down"}
NO_LEASE: Final = "lease is not a lease: send the member of a claimed delivery unchanged"


def valid(document: object, schema: str) -> bool:
    """Return whether the schema of the OpenAPI document accepts `document`."""
    whole = {**DOCUMENT, "$ref": f"#/components/schemas/{schema}"}
    return bool(Draft202012Validator(whole, format_checker=FormatChecker()).is_valid(document))


def a_request(path: str, body: object = None, token: str = TOKEN, **changes: Any) -> Request:
    """Return a request of a consumer. `body` is bytes, or a JSON document."""
    content = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
    request = Request("POST", path, headers=(JSON, ("Authorization", f"Bearer {token}")), body=content)
    return evolve(request, **changes)


def policy(**changes: Any) -> PullPolicy:
    """Return the consumers `ledger` and `push`."""
    ledger = {"consumer": LEDGER, "tokens": [AccessToken(TOKEN), AccessToken(OLD_TOKEN)]}
    push = PullConsumer(consumer=Consumer(name=ConsumerName("push")), tokens=[AccessToken(PUSH_TOKEN)])
    return PullPolicy(consumers=[PullConsumer(**{**ledger, **changes}), push])


class Pulled:
    """A service with consumers that pull. Each answer is checked against the OpenAPI document."""

    def __init__(self, **changes: Any) -> None:
        self.service = Service()
        self.feed = self.service.store.feed
        self.service.replace(feed=self.feed)
        self.policy = policy(**changes)
        for puller in self.policy.consumers:
            self.feed.register(puller.consumer, puller.start, self.service.now)

    def pay(self, *values: int) -> str:
        """Create a payment, credit `values`, and return its id."""
        service, clock = self.service, self.service.clock
        created = create_for_host(
            wallet_address=ALICE.url,
            incoming_amount=None,
            expires_at=None,
            metadata=None,
            client=None,
            idempotency_key=None,
            policy=service.policy,
            clock=clock,
        )
        id = service.run(created).id
        for number, value in enumerate(values):
            service.run(receive(id, credit_id=f"wire-{number}", amount=Amount(value, USD), clock=clock))
        return id

    def answer(self, request: Request) -> Response:
        """Return the response to `request`, which the document describes."""
        response = self.service.run(answer_pull(request, policy=self.policy, clock=self.service.clock))
        body, headers = json.loads(response.body), dict(response.headers)
        assert headers["Content-Type"] == "application/json"
        assert headers["Cache-Control"] == "no-store"
        if request.path not in PATHS:
            assert (response.status, valid(body, "error")) == (404, True)
            return response
        documented = DOCUMENT["paths"][request.path]["post"]["responses"][str(response.status)]
        if "$ref" in documented:
            documented = DOCUMENT["components"]["responses"][documented["$ref"].rpartition("/")[2]]
            assert f"`{body['error']['code']}`" in documented["description"]
        assert documented.get("headers", {}).keys() <= headers.keys()
        assert valid(body, documented["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2])
        return response

    def ask(self, path: str, body: object = None, token: str = TOKEN) -> tuple[int, Any]:
        """Return the status, and the document or the code of the error."""
        response = self.answer(a_request(f"/events/{path}", body, token))
        document = json.loads(response.body)
        return response.status, document["error"]["code"] if "error" in document else document

    def claim(self, token: str = TOKEN, **members: int) -> list[dict[str, Any]]:
        """Return the claimed deliveries."""
        status, document = self.ask("claim", members, token)
        assert status == 200
        deliveries: list[dict[str, Any]] = document["deliveries"]
        return deliveries


# --- claim, acknowledge and fail ---------------------------------------------------------------------


def test_deliveries_are_claimed_in_order_and_acknowledged() -> None:
    """A delivery has the body of a webhook. The later events of its payment come after its acknowledgement."""
    pulled = Pulled()
    assert pulled.claim() == []
    id = pulled.pay(100, 200)
    [created] = pulled.claim(leaseSeconds=30)
    assert (created["id"], created["attempt"]) == (f"{id}_1_1", 1)
    assert created["leasedUntil"] == (pulled.service.now + timedelta(seconds=30)).isoformat().replace("+00:00", "Z")
    assert pulled.claim() == []
    assert pulled.ask("acknowledge", {"lease": created["lease"]}) == (200, {})
    [credited] = pulled.claim()
    assert credited["id"] == f"{id}_2_3"
    usd = {"assetCode": "USD", "assetScale": 2}
    assert credited["event"]["type"] == "payment.credited"
    assert credited["event"]["data"]["creditedAmount"] == {"value": "300", **usd}
    assert valid(credited["event"], "event")
    Draft202012Validator(webhook_schema()).validate(credited["event"])
    assert pulled.ask("acknowledge", {"lease": credited["lease"]}) == (200, {})
    assert pulled.claim() == []


def test_event_is_the_body_of_a_webhook() -> None:
    """One reader understands webhooks and pulled events."""
    pulled = Pulled()
    pulled.pay()
    [delivery] = pulled.feed.claim(
        LEDGER.name, write_webhook, now=pulled.service.now, until=pulled.service.now, limit=1
    )
    [claimed] = pulled.claim()
    assert claimed["event"] == json.loads(delivery.payload)
    assert claimed["attempt"] == 2


def test_limit_bounds_a_claim() -> None:
    """A claim has at most `limit` deliveries, which is 10 by default."""
    pulled = Pulled()
    for _ in range(14):
        pulled.pay()
    assert [len(pulled.claim(limit=2)), len(pulled.claim()), len(pulled.claim())] == [2, 10, 2]


def test_lease_that_ends_is_lost() -> None:
    """The delivery is claimed again with another lease, and only the new lease settles it."""
    pulled = Pulled()
    pulled.pay()
    [first] = pulled.claim(leaseSeconds=10)
    pulled.service.clock.advance(10)
    [second] = pulled.claim()
    assert (second["id"], second["event"], second["attempt"]) == (first["id"], first["event"], 2)
    for path, more in (("acknowledge", {}), ("fail", {"error": "late"})):
        assert pulled.ask(path, {"lease": first["lease"], **more}) == (409, "lease_lost")
    assert pulled.ask("acknowledge", {"lease": second["lease"]}) == (200, {})
    assert pulled.ask("acknowledge", {"lease": second["lease"]}) == (409, "lease_lost")


def test_consumer_cannot_settle_for_another() -> None:
    """Each consumer has its own deliveries, also when it knows the lease of another one."""
    pulled = Pulled()
    pulled.pay()
    [of_ledger], [of_push] = pulled.claim(), pulled.claim(PUSH_TOKEN)
    assert of_ledger["id"] == of_push["id"]
    assert pulled.ask("acknowledge", {"lease": of_ledger["lease"]}, PUSH_TOKEN) == (409, "lease_lost")
    assert pulled.ask("acknowledge", {"lease": of_ledger["lease"]}) == (200, {})
    assert pulled.ask("acknowledge", {"lease": of_push["lease"]}, PUSH_TOKEN) == (200, {})


def test_changed_lease_moves_nothing() -> None:
    """A consumer that changes the versions of its lease cannot pass over events."""
    pulled = Pulled()
    pulled.pay(1)
    [created] = pulled.claim()
    id, version, attempt, name = created["lease"].split(".")
    for changed in (f"{id}.2.{attempt}.{name}", f"{id}.{version}.{attempt}.00", BODY["lease"]):
        assert pulled.ask("acknowledge", {"lease": changed}) == (409, "lease_lost")
    assert pulled.ask("acknowledge", {"lease": f"{id}.{version}.7.{name}"}) == (200, {})
    assert [one["id"] for one in pulled.claim()] == [f"{id}_2_2"]


def test_failed_attempts_follow_the_schedule() -> None:
    """Each pause is longer, `retryAfterSeconds` makes it longer still, and the last failure makes a dead letter."""
    pulled = Pulled(retry=RetryPolicy(attempts=3, first_s=10, factor=2, jitter=0.5))
    pulled.pay()
    waited = []
    for more in ({}, {"retryAfterSeconds": 100}, {}):
        [delivery] = pulled.claim()
        assert pulled.ask("fail", {"lease": delivery["lease"], "error": "no\x1b account\n", **more}) == (200, {})
        due_at = pulled.feed.next_due(LEDGER.name)
        if due_at is not None:
            waited.append((due_at - pulled.service.now).total_seconds())
            pulled.service.clock.advance(waited[-1])
    assert 5 <= waited[0] <= 10
    assert waited[1:] == [100]
    [letter] = pulled.feed.dead_letters(LEDGER.name, None, 9)
    assert (letter.ending, letter.attempts, letter.error) == (Ending.DEAD, 3, "no  account ")


def test_consumer_can_give_up() -> None:
    """`dead` makes a dead letter at once, which releases the later events of the payment."""
    pulled = Pulled()
    id = pulled.pay(1)
    [created] = pulled.claim()
    assert pulled.ask("fail", {"lease": created["lease"], "error": "no account", "dead": True}) == (200, {})
    assert [one["id"] for one in pulled.claim()] == [f"{id}_2_2"]


# --- refused requests --------------------------------------------------------------------------------

PULLED: Final = Pulled()
VALUES: Final = st.none() | st.booleans() | st.integers(-1, 10**20) | st.floats(allow_nan=False) | st.text(max_size=9)
NAMES: Final = ("limit", "leaseSeconds", "lease", "error", "retryAfterSeconds", "dead", "x")
LEASE_TEXTS: Final = st.from_regex(r"\A[0-9a-f-]{36}\.[0-9]{1,19}\.[0-9]{1,10}\.([0-9a-f]{2}){1,65}\Z")
JSON_BODIES: Final = st.dictionaries(st.sampled_from(NAMES), VALUES) | st.fixed_dictionaries(
    {"lease": LEASE_TEXTS}, optional={"error": st.text(min_size=1), "dead": st.booleans()}
)
LONG: Final = b'{"lease": "%s"}' % (b"x" * PULL_BODY_BYTES_MAX)
HOSTILE: Final = [b"", b"{", b"[]", b"1", b"\xff", b'{"lease":1,"lease":2}', b"[" * 10_000, b'{"limit":1e400}', b"NaN"]
LEASES: Final = ["", "x", f"{BODY['lease']} ", BODY["lease"].upper(), f"{BODY['lease']}0", "9" * 9000, "é", "1.1.1.1"]
MEMBERS: Final[list[tuple[str, Mapping[str, object], str, str]]] = [
    ("claim", {"limit": 0}, "limit", "limit must be an integer from 1 to 100, not 0"),
    ("claim", {"limit": 101}, "limit", "limit must be an integer from 1 to 100, not 101"),
    ("claim", {"limit": True}, "limit", "limit must be an integer, not a boolean"),
    ("claim", {"limit": None}, "limit", "limit must be an integer, not null"),
    ("claim", {"leaseSeconds": 9}, "leaseSeconds", "leaseSeconds must be an integer from 10 to 7200, not 9"),
    ("claim", {"leaseSeconds": 7201}, "leaseSeconds", "leaseSeconds must be an integer from 10 to 7200, not 7201"),
    ("claim", {"consumer": "push"}, "consumer", "consumer is not a member that a request can set: leave it out"),
    ("acknowledge", {}, "lease", "lease is missing"),
    ("acknowledge", {"lease": 1}, "lease", "lease must be a string, not an integer"),
    ("fail", {"lease": BODY["lease"]}, "error", "error is missing"),
    ("fail", {**BODY, "error": ""}, "error", "error must have 1 to 2000 characters, not 0"),
    ("fail", {**BODY, "error": "x" * 2001}, "error", "error must have 1 to 2000 characters, not 2001"),
    ("fail", {**BODY, "dead": 1}, "dead", "dead must be a boolean, not an integer"),
    ("fail", {**BODY, "retryAfterSeconds": -1}, "retryAfterSeconds", "must be an integer from 0 to 604800, not -1"),
    *(("acknowledge", {"lease": lease}, "lease", NO_LEASE) for lease in LEASES),
]


@pytest.mark.parametrize(("path", "body", "member", "says"), MEMBERS)
def test_wrong_member_is_named(path: str, body: Mapping[str, object], member: str, says: str) -> None:
    """The error names the member and the fault. The schema of the document refuses the body too."""
    response = Pulled().answer(a_request(f"/events/{path}", body))
    error = json.loads(response.body)["error"]
    assert (response.status, error["code"], error["details"]["member"]) == (400, "invalid_body", member)
    assert says in error["description"]
    assert not valid(body, path)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", HOSTILE)
def test_hostile_body_is_refused(path: str, body: bytes) -> None:
    """A body that is not one JSON object gets 400."""
    assert Pulled().answer(a_request(path, body)).status == 400


@settings(max_examples=200, deadline=None)
@given(
    path=st.sampled_from(PATHS), body=st.binary(max_size=200) | JSON_BODIES.map(lambda body: json.dumps(body).encode())
)
def test_any_body_gets_a_documented_answer(path: str, body: bytes) -> None:
    """No body of a consumer causes an exception, or an answer that the document does not have."""
    assert PULLED.answer(a_request(path, body)).status in {200, 400, 409}


def test_smallest_and_largest_members_are_valid() -> None:
    """The reader accepts the bounds of the schema."""
    pulled = Pulled()
    for body in ({"limit": 1, "leaseSeconds": 10}, {"limit": 100, "leaseSeconds": 7200}):
        assert valid(body, "claim")
        assert pulled.ask("claim", body) == (200, {"deliveries": []})
    report = {**BODY, "error": "é" * 2000, "retryAfterSeconds": 604800, "dead": True}
    assert valid(report, "fail")
    assert pulled.ask("fail", report) == (409, "lease_lost")


CLAIM: Final = a_request("/events/claim")
CHALLENGE: Final = ("WWW-Authenticate", "Bearer")
POST: Final = ("Allow", "POST")
TYPE: Final = ("Accept", "application/json")


def with_fields(*fields: tuple[str, str]) -> Request:
    """Return a claim with these header fields."""
    return evolve(CLAIM, headers=fields)


REFUSED: Final = [
    (evolve(CLAIM, path="/events/claim/"), 404, "not_found", None),
    (evolve(CLAIM, path="/incoming-payments"), 404, "not_found", None),
    (evolve(CLAIM, query="x" * TARGET_CHARS_MAX), 414, "target_too_long", None),
    (with_fields(*[("A", "")] * (HEADERS_MAX + 1)), 431, "headers_too_large", None),
    *((evolve(CLAIM, method=method), 405, "method_not_allowed", POST) for method in ("GET", "HEAD", "PUT", "OPTIONS")),
    (with_fields(("Authorization", f"Bearer {TOKEN}")), 415, "unsupported_media_type", TYPE),
    (with_fields(JSON, ("Content-Encoding", "gzip")), 415, "unsupported_encoding", None),
    (with_fields(JSON), 401, "token_missing", CHALLENGE),
    *(
        (with_fields(JSON, ("Authorization", value)), 401, "invalid_token", CHALLENGE)
        for value in (f"Bearer {TOKEN}x", f"Bearer {TOKEN.lower()}", f"GNAP {TOKEN}", TOKEN, "", f"Bearer {TOKEN}é")
    ),
    (with_fields(JSON, *[("Authorization", f"Bearer {TOKEN}")] * 2), 401, "invalid_token", CHALLENGE),
    (a_request("/events/claim", LONG, "UNKNOWN-TOKEN-0001"), 401, "invalid_token", CHALLENGE),
    (a_request("/events/acknowledge", LONG), 413, "body_too_large", None),
]


@pytest.mark.parametrize(("request_", "status", "code", "field"), REFUSED)
def test_refused_request(request_: Request, status: int, code: str, field: tuple[str, str] | None) -> None:
    """Path, method, media type, token and size are checked in this order."""
    response = Pulled().answer(request_)
    assert (response.status, json.loads(response.body)["error"]["code"]) == (status, code)
    assert field is None or field in response.headers
    assert TOKEN.encode() not in response.body


def test_every_token_of_a_consumer_is_valid() -> None:
    """A consumer may use its old token until it is removed."""
    pulled = Pulled()
    pulled.pay()
    assert len(pulled.claim(OLD_TOKEN)) == 1


@pytest.mark.parametrize("failure", [StoreUnavailable("/data/p is locked"), StoreStopped("/data/p failed")])
def test_outage_asks_for_a_retry(failure: Exception) -> None:
    """The response does not show the reason, but the log of the host may."""
    pulled = Pulled()
    pulled.service.replace(feed=Raising(failure))
    for request in (CLAIM, a_request("/events/acknowledge", {"lease": BODY["lease"]}), a_request("/events/fail", BODY)):
        response = pulled.answer(request)
        assert (response.status, response.cause) == (503, failure)
        assert ("Retry-After", "1") in response.headers
        assert b"/data" not in response.body


def test_unregistered_consumer_has_to_wait() -> None:
    """Until the service has registered a consumer, its claims get 503."""
    pulled = Pulled()
    while not pulled.feed.remove(LEDGER.name):
        pass
    assert pulled.ask("claim") == (503, "unknown_consumer")


def test_unusable_store_is_an_exception() -> None:
    """The host logs it with a traceback, because no request can cause it."""
    pulled = Pulled()
    pulled.service.replace(feed=Raising(StoreUnusable("closed")))
    with pytest.raises(StoreUnusable):
        pulled.ask("claim")


# --- the policy --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [[], [AccessToken("A" * 15)], [AccessToken(f"TOKEN-{n:012}") for n in range(9)]])
def test_tokens_are_bounded(tokens: list[AccessToken]) -> None:
    """A consumer has one to eight tokens, which are long enough."""
    with pytest.raises(InvalidValue, match="a consumer ") as refused:
        policy(tokens=tokens)
    assert refused.value.details == {"member": "tokens"}


def test_two_consumers_cannot_have_one_token() -> None:
    """The token would name two consumers."""
    with pytest.raises(InvalidValue, match="a token is listed twice") as refused:
        policy(tokens=[AccessToken(PUSH_TOKEN)])
    assert refused.value.details == {"member": "consumers"}


def test_policy_shows_no_token() -> None:
    """The representation has neither tokens nor digests."""
    whole = policy(start=Start.BEGINNING)
    shown = repr((whole, whole._tokens))
    assert TOKEN not in shown
    assert repr(AccessToken(TOKEN).digest)[2:-1] not in shown
    assert whole.consumers[0].start is Start.BEGINNING
