"""The WSGI host (PEP 3333), in memory under the validator of the standard library, and over HTTP."""

import io
import json
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, unquote_to_bytes
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import flask
import pytest
from attrs import evolve

from incoming_payments.api import Request, Response
from incoming_payments.clients.introspection import HttpIntrospector
from incoming_payments.errors import ConfigurationError, HttpRefused, StoreUnavailable
from incoming_payments.hosts.wsgi import WsgiApplication, read_request
from incoming_payments.ilp.packet import Reject, encode
from incoming_payments.limits import BODY_BYTES_MAX, HEADERS_MAX, ILP_PREPARE_BYTES_MAX
from incoming_payments.log import LogEvent
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.testing.authorization_server import AuthorizationServer
from kits.http_servers import over_http, serving_wsgi
from kits.packet_kit import BEARER, OCTETS, TOKEN, a_policy, code, reply
from kits.packet_kit import a_request as packet_request
from kits.service_kit import (
    ALICE,
    JSON,
    NOBODYS_ID,
    PATH,
    SHOP,
    Client,
    Service,
    Unused,
    document,
    header,
    id_of,
    refusal,
    settings,
)
from kits.stream_kit import METHODS, Sender

USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}
ID_PATH = f"{PATH}/{NOBODYS_ID}"


def an_environ(request: Request, **changes: Any) -> dict[str, Any]:
    """Return the WSGI environment for `request`. `None` among `changes` removes a key."""
    environ: dict[str, Any] = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(request.path).decode("latin-1"),
        "QUERY_STRING": request.query,
        "CONTENT_TYPE": "",
        "CONTENT_LENGTH": str(len(request.body)) if request.body else "",
        "wsgi.input": io.BytesIO(request.body),
    }
    for name, value in request.headers:
        key = name.upper().replace("-", "_")
        key = key if key in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{key}"
        environ[key] = f"{environ[key]},{value}" if environ.get(key) and key != "CONTENT_LENGTH" else value
    setup_testing_defaults(environ)
    return {key: value for key, value in {**environ, **changes}.items() if value is not None}


def an_application(service: Service, **options: Any) -> WsgiApplication:
    """Return the service as a WSGI application. `options` are those of the application and of the service."""
    return WsgiApplication(IncomingPayments(**settings(service, options)), **options)


def call(application: Any, environ: dict[str, Any]) -> Response:
    """Return the response of `application`, read as a WSGI server does."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], _: object = None) -> Any:
        started.append((status, headers))

    body = application(environ, start_response)
    try:
        content = b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()
    [(status, headers)] = started
    return Response(int(status.split(" ")[0]), tuple(headers), content)


def through(service: Service, **options: Any) -> Client:
    """Return a client of `service` that calls it by WSGI, under the validator."""
    client = service.client()
    application = validator(an_application(service, **options))
    client.send = lambda request: call(application, an_environ(request))
    return client


def path_of(environ: dict[str, Any], mount: str = "/op") -> str:
    """Return the path below the service that the host reads from `environ`, mounted at /op."""
    return read_request(environ, mount=mount).path


def test_wrong_setting_of_the_introspector_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The issuer differs by a final slash. The log names the setting and both values, and not the token."""
    service = Service()
    client = service.client()
    with AuthorizationServer(issuer="https://auth.bank.example/") as server:
        server.issue(client.token, actions=["create"], client=SHOP, jwk=client.key.public_jwk())
        introspector = HttpIntrospector(
            server.url,
            dialect="rfc9767",
            issuer="https://auth.bank.example",
            resource_server="bank",
            allow_http=True,
        )
        with closing(introspector):
            service.replace(introspector=introspector)
            application = an_application(service)
            client.send = lambda request: call(application, an_environ(request))
            assert refusal(client.create()) == (401, "invalid_token")
    (record,) = [record for record in caplog.records if getattr(record, "event", "") == LogEvent.SETTING_SUSPECTED]
    assert record.getMessage() == (
        "incoming payments: a request was refused with invalid_token: issuer is 'https://auth.bank.example', and the "
        "introspection answer has the iss 'https://auth.bank.example/': if this is your authorization server, set "
        "issuer to its iss"
    )
    assert client.token not in caplog.text


# --- the interface -------------------------------------------------------------------


def test_create_and_get() -> None:
    """A payment that is created can be read. The response has `Content-Length`."""
    client = through(Service())
    created = client.create(incomingAmount=USD_25)
    assert str(len(created.body)) == header(created, "Content-Length")
    assert document(created, 201) == document(client.get(id_of(created)))


def test_status_line_has_the_phrase() -> None:
    """PEP 3333: the status is a code and its phrase."""
    lines: list[str] = []

    def start_response(status: str, *_: object) -> Any:
        lines.append(status)

    an_application(Service())(an_environ(Request("GET", "/")), start_response)
    assert lines == ["404 Not Found"]


def test_refusals_have_their_header_fields() -> None:
    """A refusal arrives with its status, its code, and the header fields for it."""
    client = through(Service())
    assert refusal(client.send(Request("POST", PATH, headers=[JSON]))) == (401, "token_missing")
    assert refusal(client.send(Request("DELETE", PATH))) == (405, "method_not_allowed")
    assert refusal(client.get(NOBODYS_ID)) == (404, "payment_not_found")


def test_head_has_the_length_of_get_and_no_content() -> None:
    """RFC 9110 §9.3.2 applies to every response, also when the adapter refuses or a port fails."""
    service = Service()
    client = through(service)
    good = client.get(client.creates(), "HEAD")
    refused = call(
        an_application(service), an_environ(Request("HEAD", ID_PATH), CONTENT_LENGTH=str(BODY_BYTES_MAX + 1))
    )
    service.replace(store=Unused())
    failed = call(an_application(service), an_environ(Request("HEAD", ID_PATH)))
    assert [good.status, refused.status, failed.status] == [200, 413, 500]
    for response in (good, refused, failed):
        assert response.body == b""
        assert int(header(response, "Content-Length") or 0) > 0
        assert header(response, "Content-Type") == "application/json"


def test_clock_is_the_wall_clock_by_default() -> None:
    """Without `clock` a request that was signed long ago is refused."""
    service = Service()
    application = WsgiApplication(IncomingPayments(policy=service.policy, ports=service.ports))
    request = service.client().creation(created=0)
    assert refusal(call(application, an_environ(request))) == (401, "signature_stale")


# --- the path --------------------------------------------------------------------------------------


# The keys of the server, and the resulting path below the service.
PATHS: list[tuple[str, dict[str, Any], str]] = [
    ("decoded only", {"PATH_INFO": f"{PATH}/a b"}, f"{PATH}/a%20b"),
    ("decoded only, not ASCII", {"PATH_INFO": "/\u00c3\u00a9"}, "/%C3%A9"),
    ("nothing", {"PATH_INFO": None}, ""),
    ("REQUEST_URI", {"PATH_INFO": "/ab", "REQUEST_URI": "/%61b?c=d"}, "/%61b"),
    ("RAW_URI", {"PATH_INFO": "/ab", "RAW_URI": "/%61b?c=d"}, "/%61b"),
    ("REQUEST_URI first", {"PATH_INFO": "/ab", "REQUEST_URI": "/%61b", "RAW_URI": "/a%62"}, "/%61b"),
    ("empty REQUEST_URI", {"PATH_INFO": "/ab", "REQUEST_URI": "", "RAW_URI": "/a%62"}, "/a%62"),
    ("REQUEST_URI of another path", {"PATH_INFO": "/ab", "REQUEST_URI": "/xy"}, "/ab"),
    ("two slashes", {"PATH_INFO": "//ab", "REQUEST_URI": "//ab"}, "//ab"),
    ("absolute form", {"PATH_INFO": "/ab", "REQUEST_URI": "http://h.example:80/%61b?c=/d"}, "/%61b"),
    ("absolute form without path", {"PATH_INFO": "/", "REQUEST_URI": "http://h.example?/d"}, "/"),
    ("absolute form with an invalid host", {"PATH_INFO": "/ab", "REQUEST_URI": "http://[/ab"}, "/ab"),
    ("asterisk form", {"PATH_INFO": "*", "REQUEST_URI": "*"}, "*"),
    ("mounted", {"SCRIPT_NAME": "/op", "PATH_INFO": "/ab"}, "/ab"),
    ("mounted, raw", {"SCRIPT_NAME": "/op", "PATH_INFO": "/ab", "REQUEST_URI": "/op/%61b"}, "/%61b"),
    ("mounted, only the rest is reported", {"SCRIPT_NAME": "/op", "PATH_INFO": "/ab", "REQUEST_URI": "/ab"}, "/ab"),
]


@pytest.mark.parametrize(("reported", "expected"), [row[1:] for row in PATHS], ids=[row[0] for row in PATHS])
def test_path_is_raw_if_the_server_reports_it(reported: dict[str, Any], expected: str) -> None:
    """The raw path is used only if it decodes to the path that the server has routed on."""
    assert expected == path_of(an_environ(Request("GET", "/"), **reported))


@pytest.mark.parametrize(("mount", "raw"), [("/op", "/op"), ("/op/", "/op"), ("/o%20p", "/o%20p")])
def test_mount_is_removed(mount: str, raw: str) -> None:
    """`mount` says where the service begins, percent-encoded as in requests. `SCRIPT_NAME` may have a part of it."""
    decoded = unquote(raw)
    for reported in (
        {"PATH_INFO": f"{decoded}{PATH}"},
        {"PATH_INFO": f"{decoded}{PATH}", "REQUEST_URI": f"{raw}{PATH}?x"},
        {"SCRIPT_NAME": decoded, "PATH_INFO": PATH, "REQUEST_URI": f"{raw}{PATH}?x"},
        {"SCRIPT_NAME": f"{decoded}{PATH}", "PATH_INFO": ""},
    ):
        assert path_of(an_environ(Request("GET", "/"), **reported), mount) == PATH


def test_mounted_application_answers() -> None:
    """`mount` is the path of the base URL by default. A server or proxy may have removed it."""
    service = Service()
    request = service.client().creation()
    mounted, elsewhere = an_application(service), an_application(service, mount="/pay")
    assert call(mounted, an_environ(evolve(request, path=f"/op{PATH}"))).status == 201
    assert call(mounted, an_environ(request, SCRIPT_NAME="/op")).status == 201
    assert call(mounted, an_environ(request)).status == 201
    assert call(mounted, an_environ(evolve(request, path=f"/operator{PATH}"))).status == 404
    assert call(elsewhere, an_environ(evolve(request, path=f"/pay{PATH}"))).status == 201
    assert call(elsewhere, an_environ(evolve(request, path=f"/op{PATH}"))).status == 404


def test_404_because_of_a_wrong_mount_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the path that arrived, the expected one, and the mount that fits. Other 404s leave no line."""
    application = an_application(Service())
    assert refusal(call(application, an_environ(Request("GET", f"/pay{ID_PATH}")))) == (404, "not_found")
    expected = f"incoming payments: '/pay{ID_PATH}' is not found, because the service expects '/op{ID_PATH}': set mount"
    assert [record.getMessage()[: len(expected)] for record in caplog.records] == [expected]
    assert "mount='/pay'" in caplog.text
    for path in (ID_PATH, f"/op{ID_PATH}", f"{ID_PATH}/x", "/", "/wp-login.php"):
        assert call(application, an_environ(Request("GET", path))).status == 404
    assert len(caplog.records) == 1


def test_service_of_another_kind_is_refused() -> None:
    """An adapter that gets an async service, ports or a mount without a slash refuses when it is built."""
    service = Service()
    wrong: Any = AsyncIncomingPayments(policy=service.policy, ports=service.ports)
    with pytest.raises(
        ConfigurationError, match="takes IncomingPayments, not AsyncIncomingPayments: WsgiApplication is sync"
    ):
        WsgiApplication(wrong)
    with pytest.raises(ConfigurationError, match="mount='op' must begin with a slash, as \"/op\" does"):
        an_application(service, mount="op")


def test_signature_covers_the_raw_path() -> None:
    """The signature is verified over the raw target, and not over the decoded path of the server."""
    service = Service()
    client = service.client()
    path = f"{PATH}/{client.creates()}".replace("incoming", "%69ncoming")
    request = client.sign(Request("GET", path))
    assert call(an_application(service), an_environ(request, REQUEST_URI=path)).status == 404


def test_signature_covers_the_query() -> None:
    """The verifier gets the query as sent. A server may leave out an empty query."""
    service = Service()
    client = service.client()
    id = client.creates()
    request = client.sign(Request("GET", f"{PATH}/{id}", "a=%62"))
    application = an_application(service)
    assert call(application, an_environ(request)).status == 200
    assert call(application, an_environ(request, QUERY_STRING="a=b")).status == 401
    assert call(application, an_environ(client.sign(Request("GET", f"{PATH}/{id}")), QUERY_STRING=None)).status == 200


# --- header fields ---------------------------------------------------------------------------------


def test_header_fields() -> None:
    """Only keys of the request become header fields. An empty type or length is no field."""
    request = Request("POST", PATH, headers=[("X-A", "1"), JSON, ("Content-Length", "2")], body=b"{}")
    read = read_request(an_environ(request, HTTP_HOST=None, HTTPS="on"))
    assert {("x-a", "1"), ("content-type", "application/json"), ("content-length", "2")} == set(read.headers)
    assert read_request(an_environ(Request("GET", "/"), HTTP_HOST=None)).headers == ()


def test_repeated_field_lines_are_refused() -> None:
    """Servers join repeated fields. Two tokens are no token, and two media types are no media type."""
    client = through(Service())
    request = client.creation()
    again = {name: (name, value) for name, value in request.headers}
    for name, status in (("Authorization", 401), ("Signature", 401), ("Signature-Input", 401), ("Content-Type", 415)):
        assert status == client.send(evolve(request, headers=[*request.headers, again[name]])).status


# --- the body --------------------------------------------------------------------------------------


class Stream(io.BytesIO):
    """A body that counts the bytes read, and fails when its client disconnects."""

    def __init__(self, content: bytes, error: Exception | None = None) -> None:
        super().__init__(content)
        self.taken = 0
        self._error = error

    def read(self, size: int | None = -1) -> bytes:
        """Return at most 1,000 bytes at once, as a socket does."""
        assert size is not None
        assert size > 0, "never read without a bound"
        chunk = super().read(min(size, 1000))
        if not chunk and self._error:
            raise self._error
        self.taken += len(chunk)
        return chunk


LARGE = BODY_BYTES_MAX + 1
CHUNKED = {"HTTP_TRANSFER_ENCODING": "chunked"}
# The stated length, the body, and the number of bytes read before the refusal.
LENGTHS: list[tuple[str, dict[str, Any], Stream, tuple[int, str], int]] = [
    ("negative", {"CONTENT_LENGTH": "-1"}, Stream(b"{}"), (400, "invalid_content_length"), 0),
    ("signed", {"CONTENT_LENGTH": "+2"}, Stream(b"{}"), (400, "invalid_content_length"), 0),
    ("no number", {"CONTENT_LENGTH": "two"}, Stream(b"{}"), (400, "invalid_content_length"), 0),
    ("list", {"CONTENT_LENGTH": "2, 2"}, Stream(b"{}"), (400, "invalid_content_length"), 0),
    ("digits not ASCII", {"CONTENT_LENGTH": "\u00b2"}, Stream(b"{}"), (400, "invalid_content_length"), 0),
    ("one too many", {"CONTENT_LENGTH": str(LARGE)}, Stream(b"x" * LARGE), (413, "body_too_large"), 0),
    ("more than any integer", {"CONTENT_LENGTH": "9" * 10_000}, Stream(b"{}"), (413, "body_too_large"), 0),
    ("large behind zeros", {"CONTENT_LENGTH": "0" * 30 + str(LARGE)}, Stream(b"{}"), (413, "body_too_large"), 0),
    ("body shorter than its length", {"CONTENT_LENGTH": "3"}, Stream(b"{}"), (400, "incomplete_body"), 2),
    ("client disconnects", {"CONTENT_LENGTH": "3"}, Stream(b"{}", ConnectionError("x")), (400, "incomplete_body"), 2),
    ("chunks that the server does not decode", CHUNKED, Stream(b"2\r\n{}\r\n"), (411, "length_required"), 0),
    (
        "chunks that the server reports as not decoded",
        {**CHUNKED, "wsgi.input_terminated": False},
        Stream(b"{}"),
        (411, "length_required"),
        0,
    ),
    ("chunks too many", {"wsgi.input_terminated": True}, Stream(b"x" * 10**6), (413, "body_too_large"), LARGE),
    ("chunks broken", {"wsgi.input_terminated": True}, Stream(b"{}", OSError("x")), (400, "incomplete_body"), 2),
]


@pytest.mark.parametrize(
    ("reported", "stream", "expected", "taken"), [row[1:] for row in LENGTHS], ids=[row[0] for row in LENGTHS]
)
def test_wrong_length_is_refused(
    reported: dict[str, Any], stream: Stream, expected: tuple[int, str], taken: int
) -> None:
    """The status is 400, 411 or 413, and the adapter reads no more than it needs for that."""
    environ = an_environ(Request("POST", PATH, headers=[JSON]), **{**reported, "wsgi.input": stream})
    assert expected == refusal(call(an_application(Service()), environ))
    assert taken == stream.taken


@pytest.mark.parametrize(
    ("reported", "content", "expected"),
    [
        ({"CONTENT_LENGTH": ""}, b"{}", b""),
        ({"CONTENT_LENGTH": None}, b"{}", b""),
        ({"CONTENT_LENGTH": "0"}, b"{}", b""),
        ({"CONTENT_LENGTH": "2"}, b"{}GET /", b"{}"),
        ({"CONTENT_LENGTH": "0" * 30 + "2"}, b"{}", b"{}"),
        ({"CONTENT_LENGTH": "2500"}, b"x" * 2500, b"x" * 2500),
        ({"CONTENT_LENGTH": str(BODY_BYTES_MAX)}, b"x" * BODY_BYTES_MAX, b"x" * BODY_BYTES_MAX),
        ({"CONTENT_LENGTH": "", "wsgi.input_terminated": True}, b"x" * 2500, b"x" * 2500),
        ({"CONTENT_LENGTH": "", "wsgi.input_terminated": True}, b"x" * BODY_BYTES_MAX, b"x" * BODY_BYTES_MAX),
        ({"CONTENT_LENGTH": "2", "wsgi.input_terminated": True}, b"{}", b"{}"),
        ({"CONTENT_LENGTH": None, "wsgi.input_terminated": False}, b"{}", b""),
        ({"CONTENT_LENGTH": None, "wsgi.input_terminated": True, **CHUNKED}, b"{}", b"{}"),
        ({"CONTENT_LENGTH": "2", **CHUNKED}, b"{}", b"{}"),
    ],
)
def test_body_is_read_to_its_end_and_not_beyond(reported: dict[str, Any], content: bytes, expected: bytes) -> None:
    """`Content-Length` is the end. Without it, the body is read only if the server marks the end of the stream."""
    assert (
        expected == read_request(an_environ(Request("POST", PATH), **{**reported, "wsgi.input": Stream(content)})).body
    )


def test_body_that_the_framework_has_read() -> None:
    """The adapter takes the bytes from `answer`, and does not read the stream."""
    service = Service()
    request = service.client().creation()
    application = an_application(service)
    environ = {**an_environ(request), "wsgi.input": None}
    assert application.answer(environ, body=request.body).status == 201
    large = application.answer(environ, body=b"x" * LARGE)
    assert refusal(large) == (413, "body_too_large")


READ = {"CONTENT_LENGTH": "2", "wsgi.input": Stream(b"")}


@pytest.mark.parametrize(
    ("reported", "body"),
    [
        (READ, None),
        (READ, b""),
        ({**READ, "wsgi.input": None, "werkzeug.request": SimpleNamespace(stream=object())}, None),
    ],
    ids=["stream at its end", "body given empty", "stream in use by werkzeug"],
)
def test_body_that_other_code_has_read_is_logged(
    reported: dict[str, Any], body: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets 400, because a client that disconnects looks the same. The log says how to pass the body."""
    environ = an_environ(Request("POST", PATH, headers=[JSON]), **{"wsgi.input": Stream(b""), **reported})
    environ["wsgi.input"] = reported["wsgi.input"]
    application = an_application(Service())
    assert refusal(application.answer(environ, body=body)) == (400, "incomplete_body")
    [record] = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "incoming_payments.hosts.wsgi")
    assert f"no byte of the body of POST '{PATH}' arrived" in record.getMessage()
    assert "answer(..., body=...)" in record.getMessage()


def test_request_of_a_framework_is_no_environ() -> None:
    """The error names the argument to pass."""
    wrong: Any = Request("GET", PATH)
    with pytest.raises(ConfigurationError, match=r"takes the WSGI environ, such as request.environ, not Request"):
        an_application(Service()).answer(wrong)


def test_asgi_scope_is_no_environ() -> None:
    """The error names the class and the argument to pass."""
    scope = {"type": "http", "method": "GET", "path": PATH, "headers": []}
    with pytest.raises(ConfigurationError, match=r"WsgiApplication takes the WSGI environ, .*, not an ASGI scope"):
        an_application(Service()).answer(scope)


@pytest.mark.parametrize("more", [(), (object(), object())], ids=["ASGI 2", "ASGI 3"])
def test_call_of_an_asgi_server_names_the_other_class(more: tuple[Any, ...]) -> None:
    """Such a server passes the scope alone, or the scope with `receive` and `send`."""
    with pytest.raises(ConfigurationError, match=r"an ASGI server called WsgiApplication: use AsgiApplication"):
        an_application(Service())({"type": "http", "method": "GET", "path": PATH}, *more)


@pytest.mark.parametrize("body", [{"walletAddress": "https://bank.example/alice"}, "{}"], ids=["JSON", "str"])
def test_body_that_was_read_as_an_object_or_text_is_refused(body: Any) -> None:
    """The error names the argument to pass."""
    environ = an_environ(Request("POST", PATH, headers=[JSON], body=b"{}"))
    with pytest.raises(ConfigurationError, match="body must be the bytes of the body as received, not ") as caught:
        an_application(Service()).answer(environ, body=body)
    assert caught.value.details == {"setting": "body"}


def test_body_that_arrives_in_part_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A client can cause such a request, and the host cannot."""
    environ = an_environ(Request("POST", PATH, headers=[JSON]), CONTENT_LENGTH="3", **{"wsgi.input": Stream(b"{}")})
    assert refusal(an_application(Service()).answer(environ)) == (400, "incomplete_body")
    assert caplog.records == []


def test_exception_of_the_server_while_it_reads_a_body_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The client gets 400: servers have exceptions of their own for malformed chunks. A defect stays visible."""
    stream = Stream(b"{}", TypeError("a defect of a server"))
    environ = an_environ(Request("POST", PATH, headers=[JSON]), **{"wsgi.input_terminated": True, "wsgi.input": stream})
    assert refusal(call(an_application(Service()), environ)) == (400, "incomplete_body")
    [record] = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "incoming_payments.hosts.wsgi")
    assert f"the server could not read the body of POST '{PATH}'" in record.getMessage()
    assert "TypeError: a defect of a server" in caplog.text


def test_flask_view_that_has_read_the_json(caplog: pytest.LogCaptureFixture) -> None:
    """After `get_json()`, `body=` passes the bytes on. Without it the client gets 400 at once.

    A second read would wait here, because `wsgi.input` of this server is the socket.
    """
    service = Service()
    client = service.client()
    payments = an_application(service)
    app = flask.Flask(__name__)

    @app.post(PATH)
    def create() -> flask.Response:
        assert "walletAddress" in flask.request.get_json()
        body = flask.request.get_data() if flask.request.args else None
        answer = payments.answer(flask.request.environ, body=body)
        return flask.Response(answer.body, answer.status, answer.headers)

    with serving_wsgi(app) as port:
        client.send = lambda request: over_http(port, request)
        request = client.creation()
        assert refusal(client.send(request)) == (400, "incomplete_body")
        assert "answer(..., body=...)" in caplog.text
        assert client.send(client.sign(Request("POST", PATH, "read=1", [JSON], request.body))).status == 201


def test_create_with_a_chunked_body() -> None:
    """A body without a length is accepted if the server marks its end."""
    service = Service()
    request = service.client().creation(components=["@method", "@target-uri", "authorization", "content-digest"])
    environ = an_environ(request, CONTENT_LENGTH=None, **{"wsgi.input_terminated": True})
    assert call(an_application(service), environ).status == 201


def test_body_over_the_limit_uses_no_port() -> None:
    """The adapter refuses the body before it uses a port."""
    service = Service()
    service.replace(store=Unused(), introspector=Unused())
    assert refusal(
        call(an_application(service), an_environ(Request("PUT", "/nowhere"), CONTENT_LENGTH=str(LARGE)))
    ) == (413, "body_too_large")


def test_read_request_for_a_frameworks_own_route() -> None:
    """`read_request` raises `HttpRefused` where the application would refuse."""
    with pytest.raises(HttpRefused) as refused:
        read_request(an_environ(Request("POST", PATH), CONTENT_LENGTH="x"))
    assert refused.value.status == 400


# --- failures --------------------------------------------------------------------------------------


class Broken(MemoryStore):
    """A store that raises `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def load(self, _: object) -> Any:
        """Raise the error."""
        raise self._error


def test_failed_port_is_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The response has no details. The log of the host has the traceback and no token."""
    service = Service()
    service.replace(store=Broken(RuntimeError("the ledger is gone")))
    client = through(service)
    response = client.get(NOBODYS_ID)
    assert refusal(response) == (500, "internal_error")
    assert b"ledger" not in response.body
    [record] = caplog.records
    assert (record.name, record.levelname) == ("incoming_payments.hosts.wsgi", "ERROR")
    assert "the ledger is gone" in caplog.text
    assert "Traceback" in caplog.text
    assert client.token not in caplog.text


def test_failed_clock_is_500(caplog: pytest.LogCaptureFixture) -> None:
    """`answer` raises no exception for any failure."""
    service = Service()
    times = iter([service.now])  # the service checks its clock when it is built
    application = an_application(service, clock=lambda: next(times))
    assert refusal(application.answer(an_environ(Request("GET", ID_PATH)))) == (500, "internal_error")
    assert "StopIteration" in caplog.text


def test_path_that_is_not_latin_1_is_500(caplog: pytest.LogCaptureFixture) -> None:
    """PEP 3333 requires latin-1. A server that breaks this rule still gets a response."""
    environ = an_environ(Request("GET", ID_PATH), PATH_INFO="/\u20ac")
    assert refusal(an_application(Service(), packets=a_policy()).answer(environ)) == (500, "internal_error")
    assert "UnicodeEncodeError" in caplog.text


def test_unavailable_store_is_503() -> None:
    """The client gets `store_unavailable`, and may repeat the request."""
    service = Service()
    service.replace(store=Broken(StoreUnavailable("locked")))
    assert refusal(through(service).get(NOBODYS_ID)) == (503, "store_unavailable")


# --- packets ---------------------------------------------------------------------------------------


def test_packets_pay_payments_of_clients() -> None:
    """With `packets`, peers can pay the payments of the same service."""
    service = Service()
    client = through(service, packets=a_policy())
    id = client.creates(incomingAmount=USD_25)
    sender = Sender(METHODS.derive(id))
    assert code(client.send(packet_request(encode(sender.prepare(2500))))) == "fulfilled"
    assert document(client.get(id))["completed"] is True
    assert code(client.send(packet_request(encode(sender.prepare(1))))) == "F07"


def test_packets_are_off_by_default() -> None:
    """Without `packets`, their path is 404."""
    assert refusal(through(Service()).send(packet_request())) == (404, "not_found")


def test_packets_below_a_mount() -> None:
    """The path for packets is below the mount."""
    service = Service()
    application = an_application(service, packets=a_policy(path="/peers/ilp"), mount="/op")
    request = evolve(packet_request(), path="/op/peers/ilp")
    assert code(call(application, an_environ(request))) == "F01"
    assert refusal(call(application, an_environ(evolve(request, path="/op/ilp")))) == (404, "not_found")


def test_packets_have_their_own_size_limit() -> None:
    """A body that is too large for a packet is refused. The limit for clients is higher."""
    client = through(Service(), packets=a_policy())
    too_large = bytes(ILP_PREPARE_BYTES_MAX + 1)
    refused = client.send(packet_request(too_large))
    assert refusal(refused) == (413, "body_too_large")
    assert str(ILP_PREPARE_BYTES_MAX) in json.loads(refused.body)["error"]["description"]
    assert refusal(client.send(Request("POST", PATH, headers=[JSON], body=too_large))) == (401, "token_missing")


EARLY_REFUSALS = [
    pytest.param(packet_request(b"x" * 100, OCTETS), "Bearer", (401, "token_missing"), id="no peer"),
    pytest.param(packet_request(b"x" * 100, BEARER), "Bearer", (415, "unsupported_media_type"), id="no packet"),
    pytest.param(
        Request("POST", PATH, headers=[JSON, *((f"X-{n}", "") for n in range(HEADERS_MAX))], body=b"x" * 100),
        "GNAP",
        (431, "headers_too_large"),
        id="too many fields",
    ),
]


@pytest.mark.parametrize(("request_", "challenge", "expected"), EARLY_REFUSALS)
def test_refused_head_leaves_the_body_unread(request_: Request, challenge: str, expected: tuple[int, str]) -> None:
    """The body is not read when the sender of a packet is unknown, or there are too many header fields."""
    stream = Stream(request_.body)
    answer = call(an_application(Service(), packets=a_policy()), an_environ(request_, **{"wsgi.input": stream}))
    assert expected == refusal(answer, challenge)
    assert stream.taken == 0


def test_failed_port_is_t00_for_a_peer_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A peer gets T00 and never a 5xx. The log of the host has the traceback and no token."""
    service = Service()
    sender = Sender(METHODS.derive(service.client().creates()))
    service.replace(store=Broken(RuntimeError("the ledger is gone")))
    client = through(service, packets=a_policy())
    response = client.send(packet_request(encode(sender.probe(1))))
    assert reply(response) == Reject("T00", METHODS.prefix, "try again later")
    assert "the ledger is gone" in caplog.text
    assert "Traceback" in caplog.text
    assert TOKEN not in caplog.text


def test_unavailable_store_is_t00_for_a_peer(caplog: pytest.LogCaptureFixture) -> None:
    """The peer gets T00, and the log of the host has the error in one line."""
    service = Service()
    sender = Sender(METHODS.derive(service.client().creates()))
    service.replace(store=Broken(StoreUnavailable("locked")))
    response = through(service, packets=a_policy()).send(packet_request(encode(sender.probe(1))))
    assert code(response) == "T00"
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        "incoming payments: the store is unavailable; clients have to retry: locked",
    )


# --- over HTTP -------------------------------------------------------------------------------------


def test_over_http() -> None:
    """Create, read, public view, completion and refusals work through a real server."""
    service = Service()
    client = service.client()
    with serving_wsgi(validator(an_application(service))) as port:
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
        assert refusal(client.send(Request("POST", PATH, headers=[("Content-Length", str(LARGE))]))) == (
            413,
            "body_too_large",
        )
        assert json.loads(client.send(request).body)["completed"] is False


def test_field_under_two_keys_counts_once() -> None:
    """Some servers put Content-Type and Content-Length under two keys. Each is one field."""
    service = Service()
    request = service.client().creation()
    twice = {"HTTP_CONTENT_TYPE": "application/json", "HTTP_CONTENT_LENGTH": str(len(request.body))}
    assert call(an_application(service), an_environ(request, **twice)).status == 201


# --- why a signature was refused -------------------------------------------------------------------


def test_refused_signatures_are_diagnosed_when_enabled(caplog: pytest.LogCaptureFixture) -> None:
    """The log has a diagnosis without the token. The response is the same with and without the diagnosis."""
    service = Service()
    client = service.client()
    request = evolve(client.creation(), query="a=1")
    without = call(an_application(service), an_environ(request))
    assert caplog.records == []
    with_diagnosis = call(an_application(service, explain_refusals=True), an_environ(request))

    assert without == with_diagnosis
    assert refusal(with_diagnosis) == (401, "signature_invalid")
    [record] = caplog.records
    assert (record.name, record.levelname) == ("incoming_payments.hosts.wsgi", "WARNING")
    cause = "  proved: the client signed https://bank.example/op/incoming-payments: another query than the service"
    assert cause in caplog.text
    assert client.token not in caplog.text


def test_other_responses_are_not_diagnosed(caplog: pytest.LogCaptureFixture) -> None:
    """Accepted requests, and requests refused for other reasons, leave the log empty."""
    service = Service()
    client = through(service, explain_refusals=True)
    assert document(client.get(client.creates()))["completed"] is False
    assert refusal(client.send(Request("POST", PATH, headers=[JSON]))) == (401, "token_missing")
    assert refusal(client.get(NOBODYS_ID)) == (404, "payment_not_found")
    assert caplog.records == []
