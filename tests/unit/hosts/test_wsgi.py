"""The WSGI host (PEP 3333), in memory under the validator of the standard library, and over HTTP."""

import io
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import flask
import pytest
from attrs import evolve

from incoming_payments.endpoints.open_payments import Request
from incoming_payments.errors import ConfigurationError, HttpRefused
from incoming_payments.hosts.wsgi import read_request
from incoming_payments.limits import BODY_BYTES_MAX, HEADERS_MAX
from incoming_payments.observers.log import LogEvent
from incoming_payments.outbound.introspection import HttpIntrospector
from incoming_payments.testing.authorization_server import AuthorizationServer
from kits.http_servers import over_http, serving_wsgi
from kits.memory_hosts import WSGI, an_environ
from kits.memory_hosts import call_wsgi as call
from kits.memory_hosts import wsgi_application as an_application
from kits.packet_kit import a_policy
from kits.service_kit import JSON, NOBODYS_ID, PATH, SHOP, Service, Unused, refusal

USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}
ID_PATH = f"{PATH}/{NOBODYS_ID}"


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
        "issuer to this iss"
    )
    assert client.token not in caplog.text


# --- the interface -------------------------------------------------------------------


def test_status_line_has_the_phrase() -> None:
    """PEP 3333: the status is a code and its phrase."""
    lines: list[str] = []

    def start_response(status: str, *_: object) -> Any:
        lines.append(status)

    an_application(Service())(an_environ(Request("GET", "/")), start_response)
    assert lines == ["404 Not Found"]


# --- the path --------------------------------------------------------------------------------------


# The keys of the server, and the resulting path below the service.
PATHS: list[tuple[str, dict[str, Any], str]] = [
    ("decoded only", {"PATH_INFO": f"{PATH}/a b"}, f"{PATH}/a%20b"),
    ("decoded only, not ASCII", {"PATH_INFO": "/\u00c3\u00a9"}, "/%C3%A9"),
    ("decoded only, not UTF-8", {"PATH_INFO": "/\u00ff"}, "/%FF"),
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
    client = WSGI.through(Service())
    request = client.creation()
    again = {name: (name, value) for name, value in request.headers}
    for name, status in (("Authorization", 401), ("Signature", 401), ("Signature-Input", 401), ("Content-Type", 415)):
        assert status == client.send(evolve(request, headers=[*request.headers, again[name]])).status


def test_fields_past_the_limit_are_not_read() -> None:
    """Some servers pass on any number of header fields. One too many is enough for the refusal."""
    fields = [(f"X-{number}", "") for number in range(10 * HEADERS_MAX)]
    request = read_request(an_environ(Request("GET", ID_PATH, headers=fields)))
    assert len(request.headers) == HEADERS_MAX + 1
    assert refusal(Service().handle(request)) == (431, "headers_too_large")


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


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (Request("GET", PATH), r"takes the WSGI environ, such as request.environ, not Request"),
        ({"type": "http", "path": PATH}, r"WsgiApplication takes the WSGI environ, .*, not an ASGI scope"),
    ],
)
def test_another_object_is_no_environ(wrong: Any, text: str) -> None:
    """The error names the class and the argument to pass."""
    with pytest.raises(ConfigurationError, match=text):
        an_application(Service()).answer(wrong)


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


# --- over HTTP -------------------------------------------------------------------------------------


def test_over_http_stated_length_over_the_limit() -> None:
    """The status is 413, and the server continues to answer requests."""
    with serving_wsgi(an_application(Service())) as port:
        large = Request("POST", PATH, headers=[("Content-Length", str(LARGE))])
        assert refusal(over_http(port, large)) == (413, "body_too_large")
        assert over_http(port, Request("GET", ID_PATH)).status == 404


def test_field_under_two_keys_counts_once() -> None:
    """Some servers put Content-Type and Content-Length under two keys. Each is one field."""
    service = Service()
    request = service.client().creation()
    twice = {"HTTP_CONTENT_TYPE": "application/json", "HTTP_CONTENT_LENGTH": str(len(request.body))}
    assert call(an_application(service), an_environ(request, **twice)).status == 201
