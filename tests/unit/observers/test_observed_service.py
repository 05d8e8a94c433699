"""The observations that a service reports, through its methods and through both adapters."""

from typing import Final

import pytest
from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    ConfigurationError,
    FlowStuck,
    PaymentCompleted,
    StoreUnavailable,
)
from incoming_payments.flows.receive import receive
from incoming_payments.ilp.packet import encode
from incoming_payments.limits import ILP_PREPARE_BYTES_MAX, LOGGED_A_MINUTE_MAX
from incoming_payments.ports import CreditDecided, PacketAnswered, RequestAnswered, TokenIntrospected
from kits.fake_ports import Raising
from kits.observed_kit import WAYS, Observed
from kits.openapi_kit import OPERATIONS, Documented
from kits.packet_kit import BEARER, OCTETS
from kits.service_kit import JSON, NOBODYS_ID, PATH, USD, BrokenObserver, id_of
from kits.stream_kit import METHODS, PEER, Sender

COLLECTION: Final = "/incoming-payments"
ONE: Final = "/incoming-payments/{id}"


def request(method: str, route: str, status: int, outcome: str = "ok") -> RequestAnswered:
    """Return the observation of a request."""
    return RequestAnswered(method=method, route=route, status=status, outcome=outcome, duration_s=0.0)


def introspected(outcome: str = "active") -> TokenIntrospected:
    """Return the observation of an introspection."""
    return TokenIntrospected(outcome=outcome, duration_s=0.0)


def packet(outcome: str) -> PacketAnswered:
    """Return the observation of a packet."""
    return PacketAnswered(outcome=outcome, duration_s=0.0)


def credited(outcome: str = "credited") -> CreditDecided:
    """Return the observation of a credit."""
    return CreditDecided(outcome=outcome, duration_s=0.0)


@pytest.fixture(params=WAYS)
def observed(request: pytest.FixtureRequest) -> Observed:
    """Return an observed service, for each way to send a request."""
    return Observed(request.param)


def test_requests_are_reported(observed: Observed) -> None:
    """Each response is reported with its method, route, status and code, after the introspection that it needed."""
    client = observed.client()
    id = id_of(client.create())
    client.get(id, "HEAD")
    observed.send(Request("GET", f"{PATH}/{id}"))
    client.get(NOBODYS_ID)
    observed.send(Request("POST", PATH, headers=[JSON]))
    observed.send(Request("BREW", "/coffee"))
    observed.send(Request("DELETE", f"{PATH}/"))
    assert observed.recorder.take() == [
        introspected(),
        request("POST", COLLECTION, 201),
        introspected(),
        request("HEAD", ONE, 200),
        request("GET", ONE, 200),
        introspected(),
        request("GET", ONE, 404, "payment_not_found"),
        request("POST", COLLECTION, 401, "token_missing"),
        request("_OTHER", "", 404, "not_found"),
        request("DELETE", "", 404, "not_found"),
    ]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_route_of_each_operation_is_reported(operation: Documented) -> None:
    """The route is the path in the OpenAPI document, so that a metric does not grow with each payment."""
    observed = Observed("sync")
    observed.send(Request(operation.method, operation.path.replace("{id}", NOBODYS_ID)))
    found = [one.route for one in observed.recorder.take() if isinstance(one, RequestAnswered)]
    assert found == [operation.path]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/{NOBODYS_ID}", f"{PATH}/{NOBODYS_ID}/complete"])
def test_route_has_no_trailing_slash(path: str) -> None:
    """With `trailing_slash`, both spellings of a path are the same route."""
    observed = Observed("sync")
    observed.kit.policy = evolve(observed.kit.policy, trailing_slash=True)
    for spelling in (path, f"{path}/"):
        observed.send(Request("GET", spelling))
    first, second = [one.route for one in observed.recorder.take() if isinstance(one, RequestAnswered)]
    assert first == second != ""


def test_outages_and_failures_are_reported(observed: Observed) -> None:
    """The outcome names the port, or `internal_error`."""
    client = observed.client()
    observed.kit.replace(introspector=Raising(AuthorizationServerUnavailable("no answer")))
    client.create()
    observed.kit.replace(store=Raising(StoreUnavailable("locked")))
    observed.send(Request("GET", f"{PATH}/{NOBODYS_ID}"))
    observed.kit.replace(store=Raising(ZeroDivisionError()))
    if observed.way in {"wsgi", "asgi"}:
        observed.send(Request("GET", f"{PATH}/{NOBODYS_ID}"))
    else:
        with pytest.raises(ZeroDivisionError):
            observed.send(Request("GET", f"{PATH}/{NOBODYS_ID}"))
    assert observed.recorder.take() == [
        introspected("authorization_server_unavailable"),
        request("POST", COLLECTION, 503, "authorization_server_unavailable"),
        request("GET", ONE, 503, "store_unavailable"),
        request("GET", ONE, 500, "internal_error"),
    ]


def test_packets_over_http_are_reported(observed: Observed) -> None:
    """A packet is a request with a reply. A request without a packet of a known peer is only a request."""
    id = id_of(observed.kit.client().create(incomingAmount={"value": "100", "assetCode": "USD", "assetScale": 2}))
    sender = Sender(METHODS.derive(id))
    for amount in (60, 70):
        body = encode(sender.prepare(amount))
        observed.send(Request("POST", "/ilp", headers=[OCTETS, BEARER], body=body))
    observed.send(Request("POST", "/ilp", headers=[OCTETS], body=b"x"))
    observed.send(Request("POST", "/ilp", headers=[OCTETS, BEARER], body=b"x" * (ILP_PREPARE_BYTES_MAX + 1)))
    observed.kit.replace(store=Raising(StoreUnavailable("locked")))
    observed.send(Request("POST", "/ilp", headers=[OCTETS, BEARER], body=encode(sender.prepare(1))))
    assert observed.recorder.take() == [
        credited(),
        request("POST", "/ilp", 200),
        packet("fulfilled"),
        credited("amount_too_large"),
        request("POST", "/ilp", 200),
        packet("F08"),
        request("POST", "/ilp", 401, "token_missing"),
        request("POST", "/ilp", 413, "body_too_large"),
        credited("store_unavailable"),
        request("POST", "/ilp", 200, "store_unavailable"),
        packet("T00"),
    ]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_methods_of_the_host_are_reported(way: str) -> None:
    """Packets and credits without HTTP are reported too."""
    observed = Observed(way)
    id = id_of(observed.kit.client().create())
    sender = Sender(METHODS.derive(id))
    observed.call("receive_packet", encode(sender.prepare(60)), peer=PEER)
    observed.call("receive_packet", b"", peer=PEER)
    for _ in range(2):
        observed.call("receive", id, credit_id="wire-1", amount=Amount(5, USD))
    observed.call("complete", id)
    with pytest.raises(PaymentCompleted):
        observed.call("receive", id, credit_id="wire-2", amount=Amount(5, USD))
    observed.call("run", receive(id, credit_id="wire-1", amount=Amount(5, USD), clock=observed.kit.clock))
    assert observed.recorder.take() == [
        credited(),
        packet("fulfilled"),
        packet("F01"),
        credited(),
        credited(),
        credited("payment_completed"),
        credited(),
    ]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_mistakes_with_flows_are_still_found(way: str) -> None:
    """A flow that has run, and another object, are refused as without an observer."""
    observed = Observed(way)
    id = id_of(observed.kit.client().create())
    flow = receive(id, credit_id="wire-1", amount=Amount(5, USD), clock=observed.kit.clock)
    observed.call("run", flow)
    with pytest.raises(FlowStuck, match="already run"):
        observed.call("run", flow)
    with pytest.raises(ConfigurationError, match="pass a flow"):
        observed.call("run", 5)


def test_failing_observer_breaks_no_request(observed: Observed, caplog: pytest.LogCaptureFixture) -> None:
    """The responses are the same, and the log has the failures."""
    observed.options["observer"] = BrokenObserver()
    client = observed.client()
    assert client.get(id_of(client.create())).status == 200
    events = {record.__dict__["event"] for record in caplog.records}
    assert events == {"observer_failed"}


def test_wrong_observer_is_refused() -> None:
    """The error is raised when the service is built."""
    with pytest.raises(ConfigurationError, match="observer must be"):
        Observed("sync", observer=object()).service.policy  # noqa: B018 - the property builds the service


# --- readiness ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize(
    ("store", "line", "error"),
    [
        (Raising(StoreUnavailable("locked")), "the store is unavailable: locked", None),
        (Raising(ZeroDivisionError()), "the store failed", ZeroDivisionError),
    ],
)
def test_store_decides_about_readiness(
    way: str, store: object, line: str, error: type[Exception] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A service is ready while its store answers, also without an authorization server.

    The log names the failure, and has the traceback of an unexpected error.
    """
    observed = Observed(way)
    observed.kit.replace(introspector=Raising(AuthorizationServerUnavailable("no answer")))
    assert observed.call("is_ready") is True
    assert not caplog.records
    observed.kit.replace(store=store)
    assert observed.call("is_ready") is False
    [record] = caplog.records
    assert record.getMessage() == f"incoming payments: a readiness check failed, because {line}"
    assert record.__dict__["event"] == "not_ready"
    assert (record.exc_info[0] if record.exc_info else None) is error


@pytest.mark.parametrize("error", [StoreUnavailable("locked"), ZeroDivisionError()])
def test_failed_readiness_checks_are_logged_at_a_limited_rate(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks arrive every second, and must not fill the disk."""
    observed = Observed("sync")
    observed.kit.replace(store=Raising(error))
    service = observed.service
    assert not any(service.is_ready() for _ in range(LOGGED_A_MINUTE_MAX + 5))
    assert len(caplog.records) == LOGGED_A_MINUTE_MAX
