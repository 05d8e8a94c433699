"""The ASGI host (ASGI 3.0), in memory and over HTTP."""

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, cast
from urllib.parse import unquote

import pytest
from attrs import asdict, evolve

from incoming_payments.domain.payment import (
    IncomingPayment,
    PaymentId,
)
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.errors import ConfigurationError, HttpRefused
from incoming_payments.flows.machinery.ports import AsyncPorts, Ports
from incoming_payments.gnap import AccessTokenInfo, TokenQuery
from incoming_payments.hosts.asgi import AsgiApplication, Message, Receive, Scope, read_request
from incoming_payments.ilp.packet import encode
from incoming_payments.limits import BODY_BYTES_MAX, BODY_S_MAX, BODY_START_S_MAX, HEADERS_MAX
from incoming_payments.stores.memory import MemoryStore
from kits.fake_ports import Async
from kits.http_servers import over_http, serving_asgi
from kits.memory_hosts import ASGI, Channel, a_scope, chunks
from kits.memory_hosts import asgi_application as an_application
from kits.memory_hosts import call_asgi as call
from kits.packet_kit import a_policy
from kits.packet_kit import a_request as packet_request
from kits.service_kit import JSON, NOBODYS_ID, PATH, Service, Unused, document, header, refusal
from kits.stream_kit import METHODS, Sender

USD_25 = {"value": "2500", "assetCode": "USD", "assetScale": 2}
ID_PATH = f"{PATH}/{NOBODYS_ID}"


def path_of(scope: Scope, mount: str = "/op") -> str:
    """Return the path below the service that the host reads from `scope`, mounted at /op."""
    return asyncio.run(read_request(scope, Channel(*chunks(b"")).receive, mount=mount)).path


# --- the interface -------------------------------------------------------------------


def async_ports(service: Service, **ports: Any) -> AsyncPorts:
    """Return the ports of `service`, with `ports` in their place."""
    return AsyncPorts(**{**asdict(service.ports, recurse=False), **ports})


def test_ports_may_be_async() -> None:
    """Sync and async ports can be mixed."""
    service = Service()
    ports = async_ports(service, wallet_addresses=Async(service.hosted), introspector=Async(service.tokens))
    client = ASGI.through(service, ports=ports)
    assert client.get(client.creates()).status == 200


def test_cancelled_during_a_port_call() -> None:
    """When the server cancels the application, it ends and sends nothing."""
    service = Service()
    client = service.client()
    request = client.creation()

    class Hanging:
        async def introspect(self, _: TokenQuery) -> AccessTokenInfo | None:
            await asyncio.Event().wait()
            return None

    ports = async_ports(service, introspector=Hanging())
    application = an_application(service, ports=ports)
    channel = Channel(*chunks(request.body))

    async def give_up() -> None:
        task = asyncio.create_task(application(a_scope(request), channel.receive, channel.send))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(give_up())
    assert channel.sent == []


def test_fields_past_the_limit_are_not_read() -> None:
    """Some servers pass on any number of header fields. One too many is enough for the refusal."""
    scope = a_scope(Request("GET", ID_PATH, headers=[("X", "")] * 10 * HEADERS_MAX))
    request = asyncio.run(read_request(scope, Channel(*chunks(b"")).receive))
    assert len(request.headers) == HEADERS_MAX + 1
    assert refusal(Service().handle(request)) == (431, "headers_too_large")


# --- the path --------------------------------------------------------------------------------------

# The keys of the server, and the resulting path below the service.
PATHS: list[tuple[str, dict[str, Any], str]] = [
    ("raw", {"path": "/ab", "raw_path": b"/%61b"}, "/%61b"),
    ("raw with query", {"path": "/ab", "raw_path": b"/%61b?c=/d"}, "/%61b"),
    ("raw is null", {"path": "/a b?\u00e9", "raw_path": None}, "/a%20b%3F%C3%A9"),
    ("raw is null, with signs", {"path": "/50%/a-b_c.d~e", "raw_path": None}, "/50%25/a-b_c.d~e"),
    ("two slashes", {"path": "//ab", "raw_path": b"//ab"}, "//ab"),
    ("absolute form", {"path": "http://h/ab", "raw_path": b"http://h/%61b"}, "/%61b"),
    ("absolute form with an invalid host", {"path": "http://[/ab", "raw_path": b"http://[/ab"}, "/ab"),
    ("absolute form without path", {"path": "http://h", "raw_path": b"http://h"}, "/"),
    ("asterisk form", {"path": "*", "raw_path": b"*"}, "/"),
    ("mounted", {"path": "/op/ab", "raw_path": b"/op/%61b", "root_path": "/op"}, "/%61b"),
    ("mounted, raw is null", {"path": "/op/a b", "raw_path": None, "root_path": "/op"}, "/a%20b"),
    ("mounted, only the rest is reported", {"path": "/ab", "raw_path": b"/ab", "root_path": "/op"}, "/ab"),
    ("root_path is left out", {"path": "/ab", "raw_path": b"/ab", "root_path": None}, "/ab"),
]


@pytest.mark.parametrize(("reported", "expected"), [row[1:] for row in PATHS], ids=[row[0] for row in PATHS])
def test_path_is_raw_if_the_server_reports_it(reported: dict[str, Any], expected: str) -> None:
    """The signature covers the raw path."""
    assert expected == path_of(a_scope(Request("GET", "/"), **reported))


@pytest.mark.parametrize(("mount", "raw"), [("/op", "/op"), ("/op/", "/op"), ("/o%20p", "/o%20p")])
def test_mount_is_removed(mount: str, raw: str) -> None:
    """`mount` says where the service begins, percent-encoded as in requests. `root_path` may have it or not."""
    decoded = unquote(raw)
    for reported in ({"path": f"{decoded}{PATH}"}, {"raw_path": f"{raw}{PATH}".encode()}):
        for root_path in ("", decoded):
            scope = a_scope(Request("GET", "/"), **{"raw_path": None, **reported, "root_path": root_path})
            assert path_of(scope, mount) == PATH


def test_signature_covers_the_query() -> None:
    """The verifier gets the query as sent."""
    service = Service()
    client = service.client()
    id = client.creates()
    request = client.sign(Request("GET", f"{PATH}/{id}", "a=%62"))
    application = an_application(service)
    assert call(application, a_scope(request)).status == 200
    assert call(application, a_scope(request, query_string=b"a=b")).status == 401
    assert call(application, a_scope(request, query_string=b"a=\xff")).status == 401
    assert call(application, a_scope(client.sign(Request("GET", f"{PATH}/{id}")), query_string=None)).status == 200


def test_repeated_field_lines_stay_apart() -> None:
    """ASGI keeps repeated field lines apart, so a repeated field is detected."""
    client = ASGI.through(Service())
    request = client.creation()
    for name, value in request.headers:
        response = client.send(evolve(request, headers=[*request.headers, (name, value)]))
        assert (415 if name == "Content-Type" else 401) == response.status, name


# --- the body --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (chunks(b""), b""),
        ([{"type": "http.request"}], b""),
        (chunks(b"ab", b"", b"c", b""), b"abc"),
        (chunks(*[b"x"] * 500), b"x" * 500),
        (chunks(b"x" * BODY_BYTES_MAX), b"x" * BODY_BYTES_MAX),
        (chunks(b"x" * (BODY_BYTES_MAX - 1), b"x", b""), b"x" * BODY_BYTES_MAX),
    ],
)
def test_body_is_received_to_its_end(messages: list[Message], expected: bytes) -> None:
    """The body may have any number of messages, and the adapter requests no message after its end."""
    channel = Channel(*messages, {"type": "http.disconnect"})
    request = asyncio.run(read_request(a_scope(Request("POST", PATH)), channel.receive))
    assert expected == request.body
    assert len(channel.waiting) == 1


def test_create_in_many_chunks() -> None:
    """A body in many chunks is verified as one."""
    service = Service()
    request = service.client().creation()
    parts = [request.body[n : n + 1] for n in range(len(request.body))]
    assert call(an_application(service), a_scope(request), *chunks(*parts)).status == 201


def test_over_the_limit_stops_reading() -> None:
    """The status is 413, and the adapter requests no further message."""
    channel = Channel(*chunks(*[b"x" * 50_000] * 10))
    asyncio.run(an_application(Service())(a_scope(Request("POST", PATH)), channel.receive, channel.send))
    assert refusal(channel.response) == (413, "body_too_large")
    assert len(channel.waiting) == 8


@pytest.mark.parametrize("before", [[], chunks(b'{"walletAddress":', b"")[:1]])
def test_disconnect_before_the_end_of_the_body(before: list[Message]) -> None:
    """A partial request creates no payment, and is refused."""
    service = Service()
    service.replace(store=Unused(), introspector=Unused())
    response = call(an_application(service), a_scope(Request("POST", PATH)), *before, {"type": "http.disconnect"})
    assert refusal(response) == (400, "incomplete_body")


class Clocked(asyncio.SelectorEventLoop):
    """An event loop with a clock that a test can advance."""

    ahead_s = 0.0

    def time(self) -> float:
        """Return the real time plus the time that the test has added."""
        return super().time() + self.ahead_s


@pytest.mark.parametrize("packets", [False, True])
@pytest.mark.parametrize(("ahead_s", "expected"), [(BODY_S_MAX - 1, 401), (BODY_S_MAX + 1, 408)])
def test_body_has_to_arrive_within_the_time_limit(packets: bool, ahead_s: float, expected: int) -> None:
    """A body that trickles in is refused with 408 `body_timeout` at either endpoint, and the connection is closed."""
    request = packet_request() if packets else Request("POST", PATH, headers=[JSON])
    application = an_application(Service(), packets=a_policy())
    channel = Channel()

    async def receive() -> Message:
        if loop.ahead_s >= ahead_s:
            return {"type": "http.request", "body": b"x"}
        loop.ahead_s += ahead_s / 4
        for _ in range(3):  # the loop looks at its timers after the tasks that are ready
            await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x", "more_body": True}

    loop = Clocked()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(application(a_scope(request), receive, channel.send))
    if expected == 408:
        assert refusal(channel.response) == (408, "body_timeout")
        assert header(channel.response, "Connection") == "close"
    else:
        assert channel.response.status == (200 if packets else expected)


@pytest.mark.parametrize(("ahead_s", "expected"), [(BODY_START_S_MAX - 1, 401), (BODY_START_S_MAX + 1, 408)])
def test_body_has_to_begin_within_its_own_time_limit(
    ahead_s: float, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If other code has received the body, the adapter waits for more messages. The log of the host gives the cause."""

    async def receive() -> Message:
        loop.ahead_s += ahead_s
        for _ in range(3):  # the loop looks at its timers after the tasks that are ready
            await asyncio.sleep(0)
        return {"type": "http.request", "body": b"{}"}

    channel = Channel()
    loop = Clocked()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        scope = a_scope(Request("POST", PATH, headers=[JSON]))
        runner.run(an_application(Service())(scope, receive, channel.send))
    assert channel.response.status == expected
    hints = [record.getMessage() for record in caplog.records]
    assert [f"no byte of the body of POST '{PATH}' arrived" in hint for hint in hints] == [True] * (expected == 408)


class Steps:
    """An awaitable that has only the methods of an iterator, as in some servers that are not written in Python."""

    def __init__(self, steps: int, message: Message) -> None:
        self._steps = [None] * steps
        self._message = message

    def __await__(self) -> Generator[Any, Any, Message]:
        return cast("Generator[Any, Any, Message]", self)

    def __iter__(self) -> Iterator[None]:
        return self

    def __next__(self) -> None:
        if not self._steps:
            raise StopIteration(self._message)
        self._steps.pop()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_message_of_a_server_may_be_any_awaitable(steps: int) -> None:
    """The adapter awaits what `receive` returns, and needs no more methods than `await` does."""
    service = Service()
    request = service.client().creation()
    waiting = [Steps(steps, message) for message in chunks(request.body[:5], request.body[5:])]
    channel = Channel()
    asyncio.run(an_application(service)(a_scope(request), lambda: waiting.pop(0), channel.send))
    assert channel.response.status == 201


def test_time_limit_of_the_server_is_a_refusal_too() -> None:
    """A server may have its own limit on the time of a body."""

    async def receive() -> Message:
        raise TimeoutError

    channel = Channel()
    asyncio.run(an_application(Service())(a_scope(Request("POST", PATH, headers=[JSON])), receive, channel.send))
    assert refusal(channel.response) == (408, "body_timeout")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_body_that_the_framework_has_received(kind: Callable[[bytes], bytes]) -> None:
    """The adapter takes the bytes from `answer`, and receives nothing."""
    service = Service()
    request = service.client().creation()
    application = an_application(service)

    def status(body: bytes) -> Response:
        return asyncio.run(application.answer(a_scope(request), Channel().receive, body=body))

    assert status(kind(request.body)).status == 201
    assert refusal(status(b"x" * (BODY_BYTES_MAX + 1))) == (413, "body_too_large")


@pytest.mark.parametrize(
    ("message", "body"),
    [({"type": "http.request", "body": b""}, None), ({"type": "http.disconnect"}, None), ({}, b"")],
    ids=["empty", "disconnected", "body given empty"],
)
def test_body_that_other_code_has_read_is_logged(
    message: Message, body: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets 400, because a client that disconnects looks the same. The log says how to pass the body."""
    scope = a_scope(Request("POST", PATH, headers=[JSON, ("Content-Length", "2")]))
    answer = asyncio.run(an_application(Service()).answer(scope, Channel(message).receive, body=body))
    assert refusal(answer) == (400, "incomplete_body")
    [record] = caplog.records
    assert (record.levelname, record.name) == ("WARNING", "incoming_payments.hosts.asgi")
    assert f"no byte of the body of POST '{PATH}' arrived" in record.getMessage()
    assert "answer(..., body=...)" in record.getMessage()


def test_body_that_the_server_skips_after_upgrade_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Some parsers leave out the body of such a request. The response says so, and the log does not blame the host."""
    headers = [JSON, ("Content-Length", "2"), ("Upgrade", "h2c")]
    response = call(an_application(Service()), a_scope(Request("POST", PATH, headers=headers)))
    assert refusal(response) == (400, "incomplete_body")
    assert b"the request has Upgrade: send it without Upgrade" in response.body
    assert caplog.records == []


def test_upgrade_without_a_body_is_ignored() -> None:
    """Without a body, nothing is lost."""
    headers = [JSON, ("Content-Length", "0"), ("Upgrade", "h2c")]
    response = call(an_application(Service()), a_scope(Request("POST", PATH, headers=headers)))
    assert refusal(response) == (401, "token_missing")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (Request("GET", PATH), r"takes the ASGI scope, such as request.scope, not Request"),
        ({"REQUEST_METHOD": "GET"}, r"AsgiApplication takes the ASGI scope, .*, not a WSGI environ"),
    ],
)
def test_another_object_is_no_scope(wrong: Any, text: str) -> None:
    """The error names the class and the argument to pass."""
    with pytest.raises(ConfigurationError, match=text):
        asyncio.run(an_application(Service()).answer(wrong, Channel().receive))


def test_body_that_was_read_as_an_object_is_refused() -> None:
    """The error names the argument to pass."""
    scope, wrong = a_scope(Request("POST", PATH, headers=[JSON], body=b"{}")), {"a": "b"}
    with pytest.raises(ConfigurationError, match="body must be the bytes of the body as received, not dict"):
        asyncio.run(an_application(Service()).answer(scope, Channel().receive, body=wrong))  # type: ignore[arg-type]


def test_body_that_arrives_in_part_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A client can cause such a request, and the host cannot."""
    parts = [*chunks(b"{", b"")[:1], {"type": "http.disconnect"}]
    assert refusal(call(an_application(Service()), a_scope(Request("POST", PATH)), *parts)) == (400, "incomplete_body")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("method", "http_version", "headers", "received"),
    [
        ("GET", "1.1", [], 0),
        ("HEAD", "1.0", [], 0),
        ("OPTIONS", "1.1", [], 0),
        ("GET", "1.1", [("Content-Length", "0")], 1),
        ("GET", "1.1", [("Transfer-Encoding", "chunked")], 1),
        ("GET", "2", [], 1),
        ("POST", "1.1", [], 1),
    ],
)
def test_get_without_a_body_receives_nothing(
    method: str, http_version: str, headers: list[tuple[str, str]], received: int
) -> None:
    """RFC 9112 §6.3: such a request has no body. Other code may have received its only message."""
    channel = Channel(*chunks(b""))
    scope = a_scope(Request(method, ID_PATH, headers=headers), http_version=http_version)
    asyncio.run(an_application(Service())(scope, channel.receive, channel.send))
    assert received == 1 - len(channel.waiting)


def test_time_limit_covers_the_body_only() -> None:
    """A port that takes longer than the time limit for bodies does not cause a timeout."""
    service = Service()

    class Slow:
        async def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
            loop.ahead_s += 2 * BODY_S_MAX
            await asyncio.sleep(0)
            return service.tokens.introspect(query)

    client = service.client()
    request = client.creation(b"{}")
    application = an_application(service, ports=async_ports(service, introspector=Slow()))
    channel = Channel(*chunks(request.body))
    loop = Clocked()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(application(a_scope(request), channel.receive, channel.send))
    assert refusal(channel.response) == (400, "invalid_body")


def test_request_with_two_lengths_is_refused_and_the_connection_closed() -> None:
    """A proxy may use the other field, and see another end of the request. RFC 9112 §6.1."""
    service = Service()
    request = service.client().creation()
    headers = [*request.headers, ("Transfer-Encoding", "chunked"), ("Content-Length", str(len(request.body)))]
    channel = Channel(*chunks(request.body))
    asyncio.run(an_application(service)(a_scope(evolve(request, headers=headers)), channel.receive, channel.send))
    assert refusal(channel.response) == (400, "invalid_http")
    assert header(channel.response, "Connection") == "close"
    assert len(channel.waiting) == 1


def test_transfer_coding_other_than_chunked_is_refused() -> None:
    """RFC 9112 §11.2: a proxy that ignores the coding would see another end of the request."""
    request = Request("POST", PATH, headers=[JSON, ("Transfer-Encoding", "xchunked")])
    assert refusal(call(an_application(Service()), a_scope(request))) == (400, "invalid_http")


def test_request_for_another_protocol_is_the_last_of_its_connection() -> None:
    """`Upgrade` is ignored. The connection closes, because some parsers read the body as the next request."""
    service = Service()
    request = service.client().creation()
    upgrade = evolve(request, headers=[*request.headers, ("Connection", "Upgrade"), ("Upgrade", "h2c")])
    answered = [
        call(an_application(service), a_scope(sent), *chunks(request.body))
        for sent in (upgrade, evolve(request, method="PUT"), evolve(upgrade, method="PUT"))
    ]
    assert [(response.status, header(response, "Connection")) for response in answered] == [
        (201, "close"),
        (405, None),
        (405, "close"),
    ]


def test_read_request_for_a_frameworks_own_route() -> None:
    """`read_request` raises `HttpRefused` where the application would refuse."""
    receive: Receive = Channel({"type": "http.disconnect"}).receive
    with pytest.raises(HttpRefused) as refused:
        asyncio.run(read_request(a_scope(Request("POST", PATH)), receive))
    assert refused.value.status == 400


# --- packets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", ["a client", "a peer"])
def test_packets_and_payments_do_not_wait_for_each_other(waits: str) -> None:
    """While the ports for one of them hang, the other gets its response."""
    service = Service()
    client = service.client()
    sender = Sender(METHODS.derive(client.creates()))
    released = asyncio.Event()

    class Hanging(MemoryStore):
        """A store and an introspector that answer after `released` is set."""

        async def load(self, id: PaymentId) -> IncomingPayment:  # type: ignore[override] # async on purpose
            await released.wait()
            return service.store.load(id)

        async def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
            await released.wait()
            return service.tokens.introspect(query)

    ports: dict[str, Any] = {"introspector": Hanging()} if waits == "a client" else {"store": Hanging()}
    service.ports = cast("Ports", async_ports(service, **ports))
    application = an_application(service, packets=a_policy())
    creation, probe = client.creation(), packet_request(encode(sender.probe(1)))
    slow, quick = (creation, probe) if waits == "a client" else (probe, client.creation(b"{}"))

    async def send(request: Request) -> Response:
        channel = Channel(*chunks(request.body))
        await application(a_scope(request), channel.receive, channel.send)
        return channel.response

    async def both() -> list[int]:
        waiting = asyncio.create_task(send(slow))
        answered = await send(quick)
        assert not waiting.done()
        released.set()
        return [answered.status, (await waiting).status]

    assert asyncio.run(both()) == ([200, 201] if waits == "a client" else [400, 200])


# --- the lifespan, and other protocols ------------------------------------------------------------


def live(application: AsgiApplication) -> list[str]:
    """Return the messages of `application` when the server starts and stops."""
    channel = Channel({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    asyncio.run(application({"type": "lifespan"}, channel.receive, channel.send))
    return [message["type"] for message in channel.sent]


def test_lifespan_startup_and_shutdown() -> None:
    """Startup and shutdown are both confirmed."""
    assert live(an_application(Service())) == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_on_shutdown_must_be_a_function() -> None:
    """A coroutine or another object is refused at start. Else it would fail when the server stops."""
    with pytest.raises(
        ConfigurationError, match=r"on_shutdown must be an async function, such as store\.close"
    ) as caught:
        an_application(Service(), on_shutdown=5)
    assert caught.value.details == {"setting": "on_shutdown"}


def test_lifespan_awaits_on_shutdown() -> None:
    """`on_shutdown` completes before shutdown is confirmed."""
    steps = []

    async def close() -> None:
        await asyncio.sleep(0)
        steps.append("closed")

    class Noting(Channel):
        async def send(self, message: Message) -> None:
            steps.append(message["type"])

    channel = Noting({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    asyncio.run(an_application(Service(), on_shutdown=close)({"type": "lifespan"}, channel.receive, channel.send))
    assert steps == ["lifespan.startup.complete", "closed", "lifespan.shutdown.complete"]


def test_websocket_is_refused() -> None:
    """The application closes the connection before it accepts it, so the server answers 403."""
    channel = Channel({"type": "websocket.connect"})
    asyncio.run(an_application(Service())({"type": "websocket"}, channel.receive, channel.send))
    assert [(message["type"], message["code"]) for message in channel.sent] == [("websocket.close", 1003)]


def test_unknown_protocol_is_not_answered() -> None:
    """ASGI requires an exception for an unknown protocol."""
    channel = Channel()
    with pytest.raises(NotImplementedError, match="gopher"):
        asyncio.run(an_application(Service())({"type": "gopher"}, channel.receive, channel.send))
    assert channel.sent == []


# --- over HTTP -------------------------------------------------------------------------------------


def test_over_http() -> None:
    """A raw path, a target in absolute form and a body in chunks are read. The server awaits `on_shutdown`."""
    service = Service()
    client = service.client()
    closed = threading.Event()

    async def close() -> None:
        closed.set()

    with serving_asgi(an_application(service, on_shutdown=close)) as port:
        client.send = lambda request: over_http(port, request)
        id = client.creates()
        assert client.get(id.replace("0", "%30", 1)).status == 404
        public = Request("GET", f"{PATH}/{id}")
        absolute = over_http(port, public, target=f"http://127.0.0.1:{port}{public.path}")
        assert document(absolute) == document(client.send(public))
        request = client.creation(components=["@method", "@target-uri", "authorization", "content-digest"])
        assert over_http(port, request, chunked=True).status == 201
        assert not closed.is_set()
    assert closed.is_set()


def test_over_http_body_over_the_limit() -> None:
    """The status is 413, and the server continues to answer requests."""
    with serving_asgi(an_application(Service())) as port:
        large = Request("POST", PATH, headers=[JSON], body=b"x" * (BODY_BYTES_MAX + 1))
        assert refusal(over_http(port, large)) == (413, "body_too_large")
        assert over_http(port, Request("GET", ID_PATH)).status == 404
