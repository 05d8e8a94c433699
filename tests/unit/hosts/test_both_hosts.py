"""The behaviour that the WSGI and the ASGI host share, in memory. WSGI runs under the validator of wsgiref."""

import json
from urllib.parse import quote

import pytest
from attrs import evolve

from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import ConfigurationError, StoreUnavailable
from incoming_payments.ilp.packet import Reject, encode
from incoming_payments.limits import BODY_BYTES_MAX, HEADERS_MAX, ILP_PREPARE_BYTES_MAX
from kits.fake_ports import Raising
from kits.http_servers import over_http
from kits.memory_hosts import ASGI, WSGI, MemoryHost
from kits.packet_kit import BEARER, OCTETS, TOKEN, a_policy, code, reply
from kits.packet_kit import a_request as packet_request
from kits.service_kit import (
    ALICE,
    JSON,
    NOBODYS_ID,
    PATH,
    Client,
    Service,
    Unused,
    a_right,
    document,
    header,
    id_of,
    refusal,
)
from kits.stream_kit import METHODS, Sender

USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}
ID_PATH = f"{PATH}/{NOBODYS_ID}"


@pytest.fixture(params=[WSGI, ASGI], ids=["wsgi", "asgi"])
def host(request: pytest.FixtureRequest) -> MemoryHost:
    """Return the WSGI and the ASGI host."""
    chosen: MemoryHost = request.param
    return chosen


def test_create_and_get(host: MemoryHost) -> None:
    """A payment that is created can be read. The response has `Content-Length`."""
    client = host.through(Service())
    created = client.create(incomingAmount=USD_25)
    assert str(len(created.body)) == header(created, "Content-Length")
    assert document(created, 201) == document(client.get(id_of(created)))


def test_over_http(host: MemoryHost) -> None:
    """Create, read, public view, completion and refusals work through a real server."""
    service = Service()
    client = service.client()
    with host.serving(host.application(service)) as port:
        client.send = lambda request: over_http(port, request)
        created = client.create(incomingAmount=USD_25, metadata={"order": "\u00e9"})
        id = id_of(created)
        assert document(created, 201) == document(client.get(id))
        assert client.send(client.sign(Request("GET", f"{PATH}/{id}", "a=%62&c"))).status == 200
        service.receive(id, 2500)
        assert ((resource := document(client.get(id)))["completed"], resource["methods"]) == (True, [])
        public = document(client.send(Request("GET", f"{PATH}/{id}")))
        assert {"receivedAmount": USD_25, "authServer": ALICE.auth_server} == public
        head = client.get(id, "HEAD")
        assert (head.status, head.body) == (200, b"")
        request = client.creation()
        assert refusal(client.send(evolve(request, body=b"x" * len(request.body)))) == (401, "digest_mismatch")
        assert refusal(client.send(Request("POST", PATH, headers=[JSON], body=b"{}"))) == (401, "token_missing")
        twice = evolve(request, headers=[*request.headers, ("Authorization", f"GNAP {client.token}")])
        assert refusal(client.send(twice)) == (401, "invalid_token")
        assert document(client.send(request), 201)["completed"] is False


def slashed(client: Client, id: str) -> dict[str, Request]:
    """Return a signed request for each operation, as a client sends it that ends each target with a slash."""
    creation = client.creation()
    return {
        "create": client.sign(evolve(creation, path=f"{PATH}/", headers=creation.headers[1:3])),
        "list": client.sign(Request("GET", f"{PATH}/", f"wallet-address={quote(ALICE.url, safe='')}")),
        "get": client.sign(Request("GET", f"{PATH}/{id}/")),
        "public": Request("GET", f"{PATH}/{id}/"),
        "complete": client.sign(Request("POST", f"{PATH}/{id}/complete/")),
    }


def test_trailing_slash_is_accepted(host: MemoryHost) -> None:
    """With `trailing_slash`, one slash may follow each path. No URL in a response ends with a slash."""
    service = Service(trailing_slash=True)
    client = service.client(a_right("create", "read", "complete", "list"))
    id = client.creates()
    with host.serving(host.application(service)) as port:
        answers = {name: over_http(port, request) for name, request in slashed(client, id).items()}
        plain = over_http(port, client.sign(Request("GET", f"{PATH}/{id}")))
    assert {name: answer.status for name, answer in answers.items()} == {
        "create": 201,
        "list": 200,
        "get": 200,
        "public": 200,
        "complete": 200,
    }
    created = document(answers["create"], 201)["id"]
    assert created == header(answers["create"], "Location")
    assert created == service.policy.payment_url(id_of(answers["create"]))
    url = service.policy.payment_url(id)
    assert {item["id"] for item in document(answers["list"])["result"]} == {url, created}
    assert [document(answers[name])["id"] for name in ("get", "complete")] == [url, url]
    assert plain.status == 200


def test_trailing_slash_is_refused_by_default(host: MemoryHost) -> None:
    """Without `trailing_slash`, the same requests get 404."""
    service = Service()
    client = service.client()
    requests = slashed(client, client.creates())
    with host.serving(host.application(service)) as port:
        assert {refusal(over_http(port, request)) for request in requests.values()} == {(404, "not_found")}


def test_signature_covers_the_trailing_slash(host: MemoryHost) -> None:
    """With `trailing_slash`, a signature over the other spelling of the target is invalid."""
    service = Service(trailing_slash=True)
    client = host.through(service)
    path = f"{PATH}/{client.creates()}"
    for signed, sent in ((path, f"{path}/"), (f"{path}/", path)):
        request = evolve(client.sign(Request("GET", signed)), path=sent)
        assert refusal(client.send(request)) == (401, "signature_invalid")


@pytest.mark.parametrize(
    "path",
    [
        f"{PATH}//",
        f"/{PATH}/",
        f"{PATH}/./",
        f"{PATH}/../",
        f"{PATH}%2F",
        f"{ID_PATH}//",
        f"{ID_PATH}/../",
        f"{ID_PATH}%2F",
        f"{ID_PATH}/complete//",
        f"{ID_PATH}//complete/",
        f"{ID_PATH}/complete/../",
    ],
)
def test_only_one_trailing_slash_is_accepted(host: MemoryHost, path: str) -> None:
    """With `trailing_slash`, empty segments, dot segments and encoded slashes are still refused."""
    client = host.through(Service(trailing_slash=True))
    refused = refusal(client.send(client.sign(Request("GET", path))))
    # a WSGI environ without the raw path has decoded the slash, which the signature reveals
    decoded = [(401, "signature_invalid")] if host is WSGI and "%2F" in path else []
    assert refused in [(404, "not_found"), (404, "payment_not_found"), *decoded]


def test_unsigned_list_with_a_trailing_slash_is_not_public(host: MemoryHost) -> None:
    """The collection has no public view. Its challenge precedes other refusals, as without the slash."""
    client = host.through(Service(trailing_slash=True))
    unacceptable = [("Accept", "text/html")]
    for path in (PATH, f"{PATH}/"):
        assert refusal(client.send(Request("GET", path, headers=unacceptable))) == (401, "token_missing")
        assert refusal(client.send(Request("OPTIONS", path))) == (405, "method_not_allowed")


def test_refusals_have_their_header_fields(host: MemoryHost) -> None:
    """A refusal arrives with its status, its code, and the header fields for it."""
    client = host.through(Service())
    assert refusal(client.send(Request("POST", PATH, headers=[JSON]))) == (401, "token_missing")
    assert refusal(client.send(Request("DELETE", PATH))) == (405, "method_not_allowed")
    assert refusal(client.get(NOBODYS_ID)) == (404, "payment_not_found")


def test_head_has_the_length_of_get_and_no_content(host: MemoryHost) -> None:
    """RFC 9110 §9.3.2 applies to every response, also when the adapter refuses or a port fails."""
    service = Service()
    client = host.through(service)
    good = client.get(client.creates(), "HEAD")
    length = ("Content-Length", str(BODY_BYTES_MAX + 1))
    large = Request("HEAD", ID_PATH, headers=[length], body=b"x" * (BODY_BYTES_MAX + 1))
    refused = host.call(host.application(service), large)
    service.replace(store=Unused())
    failed = host.call(host.application(service), Request("HEAD", ID_PATH))
    assert [good.status, refused.status, failed.status] == [200, 413, 500]
    for response in (good, refused, failed):
        assert response.body == b""
        assert int(header(response, "Content-Length") or 0) > 0
        assert header(response, "Content-Type") == "application/json"


def test_clock_is_the_wall_clock_by_default(host: MemoryHost) -> None:
    """Without `clock` a request that was signed long ago is refused."""
    service = Service()
    application = host.adapter(host.service(policy=service.policy, ports=service.ports))
    assert refusal(host.call(application, service.client().creation(created=0))) == (401, "signature_stale")


def test_mounted_application_answers(host: MemoryHost) -> None:
    """`mount` is the path of the base URL by default. A server or proxy may have removed it."""
    service = Service()
    request = service.client().creation()
    mounted, elsewhere = host.application(service), host.application(service, mount="/pay/")
    for application, path, status in [
        (mounted, f"/op{PATH}", 201),
        (mounted, PATH, 201),
        (mounted, f"/operator{PATH}", 404),
        (elsewhere, f"/pay{PATH}", 201),
        (elsewhere, f"/op{PATH}", 404),
    ]:
        assert host.call(application, evolve(request, path=path)).status == status


def test_404_because_of_a_wrong_mount_is_logged(host: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    """The line names the path that arrived, the expected one, and the mount that fits. Other 404s leave no line."""
    application = host.application(Service())
    assert refusal(host.call(application, Request("GET", f"/pay{ID_PATH}"))) == (404, "not_found")
    expected = (
        f"incoming payments: '/pay{ID_PATH}' does not exist, because the service expects '/op{ID_PATH}': set mount"
    )
    assert [record.getMessage()[: len(expected)] for record in caplog.records] == [expected]
    assert "mount='/pay'" in caplog.text
    for path in (ID_PATH, f"/op{ID_PATH}", f"{ID_PATH}/x", "/", "/wp-login.php"):
        assert host.call(application, Request("GET", path)).status == 404
    assert len(caplog.records) == 1


def test_service_of_another_kind_is_refused(host: MemoryHost) -> None:
    """An adapter that gets the other kind of service or a mount without a slash refuses when it is built."""
    service = Service()
    wrong = host.other(policy=service.policy, ports=service.ports)
    text = f"takes {host.service.__name__}, not {host.other.__name__}: use WsgiApplication for a sync service"
    with pytest.raises(ConfigurationError, match=text):
        host.adapter(wrong)
    with pytest.raises(ConfigurationError, match="mount='op' must begin with a slash, such as \"/op\""):
        host.application(service, mount="op")


# --- failures --------------------------------------------------------------------------------------


def test_failed_port_is_500_and_logged(host: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    """The response has no details. The log of the host has the traceback and no token."""
    service = Service()
    service.replace(store=Raising(RuntimeError("the ledger is gone")))
    client = host.through(service)
    response = client.get(NOBODYS_ID)
    assert refusal(response) == (500, "internal_error")
    assert b"ledger" not in response.body
    [record] = [record for record in caplog.records if record.name.startswith("incoming_payments")]
    assert (record.name, record.levelname) == (host.logger, "ERROR")
    assert "the ledger is gone" in caplog.text
    assert "Traceback" in caplog.text
    assert client.token not in caplog.text


def test_unavailable_store_is_503(host: MemoryHost) -> None:
    """The client gets `store_unavailable`, and may repeat the request."""
    service = Service()
    service.replace(store=Raising(StoreUnavailable("locked")))
    assert refusal(host.through(service).get(NOBODYS_ID)) == (503, "store_unavailable")


# --- packets ---------------------------------------------------------------------------------------


def test_packets_pay_payments_of_clients(host: MemoryHost) -> None:
    """With `packets`, peers can pay the payments of the same service."""
    service = Service()
    client = host.through(service, packets=a_policy())
    id = client.creates(incomingAmount=USD_25)
    sender = Sender(METHODS.derive(id))
    assert code(client.send(packet_request(encode(sender.prepare(2500))))) == "fulfilled"
    assert document(client.get(id))["completed"] is True
    assert code(client.send(packet_request(encode(sender.prepare(1))))) == "F07"


def test_packets_are_off_by_default(host: MemoryHost) -> None:
    """Without `packets`, their path is 404."""
    assert refusal(host.through(Service()).send(packet_request())) == (404, "not_found")


def test_packets_below_a_mount(host: MemoryHost) -> None:
    """The path for packets is below the mount."""
    application = host.application(Service(), packets=a_policy(path="/peers/ilp"), mount="/op")
    request = evolve(packet_request(), path="/op/peers/ilp")
    assert code(host.call(application, request)) == "F01"
    assert refusal(host.call(application, evolve(request, path="/op/ilp"))) == (404, "not_found")


def test_packets_have_their_own_size_limit(host: MemoryHost) -> None:
    """A body that is too large for a packet is refused. The limit for clients is higher."""
    client = host.through(Service(), packets=a_policy())
    too_large = bytes(ILP_PREPARE_BYTES_MAX + 1)
    refused = client.send(packet_request(too_large))
    assert refusal(refused) == (413, "body_too_large")
    assert str(ILP_PREPARE_BYTES_MAX) in json.loads(refused.body)["error"]["description"]
    assert refusal(client.send(Request("POST", PATH, headers=[JSON], body=too_large))) == (401, "token_missing")


MANY_FIELDS = [JSON, *((f"X-{n}", "") for n in range(HEADERS_MAX))]


@pytest.mark.parametrize(
    ("request_", "challenge", "expected"),
    [
        pytest.param(packet_request(b"x" * 100, OCTETS), "Bearer", (401, "token_missing"), id="no peer"),
        pytest.param(packet_request(b"x" * 100, BEARER), "Bearer", (415, "unsupported_media_type"), id="no packet"),
        pytest.param(
            Request("POST", PATH, headers=MANY_FIELDS, body=b"x" * 100),
            "GNAP",
            (431, "headers_too_large"),
            id="too many fields",
        ),
    ],
)
def test_refused_head_leaves_the_body_unread(
    host: MemoryHost, request_: Request, challenge: str, expected: tuple[int, str]
) -> None:
    """The body is not read when the sender of a packet is unknown, or there are too many header fields."""
    response, is_read = host.exchange(host.application(Service(), packets=a_policy()), request_)
    assert expected == refusal(response, challenge)
    assert not is_read


def test_failed_port_is_t00_for_a_peer_and_logged(host: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    """A peer gets T00 and never a 5xx. The log of the host has the traceback and no token."""
    service = Service()
    sender = Sender(METHODS.derive(service.client().creates()))
    service.replace(store=Raising(RuntimeError("the ledger is gone")))
    response = host.through(service, packets=a_policy()).send(packet_request(encode(sender.probe(1))))
    assert reply(response) == Reject("T00", METHODS.prefix, "try again later")
    assert "the ledger is gone" in caplog.text
    assert "Traceback" in caplog.text
    assert TOKEN not in caplog.text


def test_unavailable_store_is_t00_for_a_peer(host: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    """The peer gets T00, and the log of the host has the error in one line."""
    service = Service()
    sender = Sender(METHODS.derive(service.client().creates()))
    service.replace(store=Raising(StoreUnavailable("locked")))
    response = host.through(service, packets=a_policy()).send(packet_request(encode(sender.probe(1))))
    assert code(response) == "T00"
    [record] = [record for record in caplog.records if record.name.startswith("incoming_payments")]
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        "incoming payments: the store is unavailable, so clients have to retry: locked",
    )


# --- why a signature was refused -------------------------------------------------------------------


def test_refused_signatures_are_diagnosed_when_enabled(host: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    """The log has a diagnosis without the token. The response is the same with and without the diagnosis."""
    service = Service()
    client = service.client()
    request = evolve(client.creation(), query="a=1")
    without = host.call(host.application(service), request)
    assert caplog.records == []
    with_diagnosis = host.call(host.application(service, explain_refusals=True), request)

    assert without == with_diagnosis
    assert refusal(with_diagnosis) == (401, "signature_invalid")
    [record] = caplog.records
    assert (record.name, record.levelname) == (host.logger, "WARNING")
    cause = "  proved: the client signed https://bank.example/op/incoming-payments: another query than the service"
    assert cause in caplog.text
    assert client.token not in caplog.text


def test_other_responses_are_not_diagnosed(host: MemoryHost, caplog: pytest.LogCaptureFixture) -> None:
    """Accepted requests, and requests refused for other reasons, leave the log empty."""
    client = host.through(Service(), explain_refusals=True)
    assert document(client.get(client.creates()))["completed"] is False
    assert refusal(client.send(Request("POST", PATH, headers=[JSON]))) == (401, "token_missing")
    assert refusal(client.get(NOBODYS_ID)) == (404, "payment_not_found")
    assert caplog.records == []
