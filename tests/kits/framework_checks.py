"""The requests that every framework has to leave to the service, sent over HTTP, with the expected responses."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import ConfigurationError
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.limits import BODY_BYTES_MAX
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments
from kits.http_servers import over_http
from kits.packet_kit import a_policy, code
from kits.packet_kit import a_request as packet_request
from kits.service_kit import JSON, NOBODYS_ID, PATH, Client, Service, document, header, id_of, refusal, settings

ID_PATH: Final = f"{PATH}/{NOBODYS_ID}"
REFUSALS: Final = [
    ("DELETE", PATH, (405, "method_not_allowed")),
    ("GET", PATH, (401, "token_missing")),
    ("POST", f"{ID_PATH}/complete", (401, "token_missing")),
    ("GET", f"{ID_PATH}/complete", (405, "method_not_allowed")),
    ("OPTIONS", PATH, (405, "method_not_allowed")),
    ("PUT", ID_PATH, (405, "method_not_allowed")),
    ("PURGE", ID_PATH, (405, "method_not_allowed")),
    ("POST", ID_PATH, (405, "method_not_allowed")),
    ("GET", "/ilp", (405, "method_not_allowed")),
    ("POST", f"{PATH}/", (404, "not_found")),
    ("GET", f"{ID_PATH}/", (404, "not_found")),
    ("GET", f"{PATH}//{NOBODYS_ID}", (404, "not_found")),
    ("GET", f"{ID_PATH}/x", (404, "not_found")),
    ("POST", "/ilp/", (404, "not_found")),
    ("GET", ID_PATH, (404, "payment_not_found")),
    ("GET", f"{PATH}/%E2%82%AC%0A", (404, "payment_not_found")),
]


def asgi_application(service: Service) -> AsgiApplication:
    """Return `service` as an ASGI application that takes packets."""
    return AsgiApplication(AsyncIncomingPayments(**settings(service, {"packets": a_policy()})))


def wsgi_application(service: Service) -> WsgiApplication:
    """Return `service` as a WSGI application that takes packets."""
    return WsgiApplication(IncomingPayments(**settings(service, {"packets": a_policy()})))


def check_refusals(routes: Callable[[Any], object], other: object, text: str) -> None:
    """Check that `routes` refuses `other`, a service and a class, with a message that begins with what it takes."""
    service = Service()
    for wrong in (other, IncomingPayments(**settings(service, {})), AsgiApplication):
        with pytest.raises(ConfigurationError, match=rf"^routes\(\) takes {text} .*: pass routes\(\w+\(serv") as caught:
            routes(wrong)
        assert caught.value.details == {"setting": "application"}


def client_at(service: Service, port: int) -> Client:
    """Return a client that sends its requests to `port`."""
    client = service.client()
    client.send = lambda request: over_http(port, request)
    return client


def check(service: Service, port: int) -> None:
    """Send all requests to `service` at `port`, and check the responses."""
    client = client_at(service, port)
    created = client.create(metadata={"order": "\u00e9"})
    id = id_of(created)
    assert document(created, 201) == document(client.get(id))
    assert list(document(client.send(Request("GET", f"{PATH}/{id}")))) == ["receivedAmount", "authServer"]
    assert client.send(client.sign(Request("GET", f"{PATH}/{id}", "a=%62&c"))).status == 200

    head = client.send(Request("HEAD", f"{PATH}/{id}"))
    expected = len(client.send(Request("GET", f"{PATH}/{id}")).body)
    assert (head.status, head.body, header(head, "Content-Length")) == (200, b"", str(expected))
    assert header(head, "Content-Type") == "application/json"

    preflight = client.send(Request("OPTIONS", f"{PATH}/{id}"))
    assert (preflight.status, header(preflight, "Access-Control-Allow-Origin")) == (200, "*")
    assert code(client.send(packet_request(b""))) == "F01"
    for method, path, refused in REFUSALS:
        assert (method, path, refusal(client.send(Request(method, path)))) == (method, path, refused)
    large = Request("POST", PATH, headers=[JSON], body=b"x" * (BODY_BYTES_MAX + 1))
    assert refusal(client.send(large)) == (413, "body_too_large")
    unsigned = Request("POST", PATH, headers=[JSON], body=b"{}")
    assert refusal(client.send(unsigned)) == (401, "token_missing")
