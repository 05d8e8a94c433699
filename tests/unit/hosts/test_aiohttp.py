"""The service in an aiohttp server, over HTTP."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from incoming_payments.endpoints.open_payments import Request
from incoming_payments.hosts.aiohttp import routes
from kits.framework_checks import asgi_application, check, check_refusals, client_at, wsgi_application
from kits.raw_http import answers, exchange
from kits.service_kit import JSON, PATH, Service, refusal


@contextmanager
def serving(app: web.Application) -> Iterator[int]:
    """Serve `app` with the server of aiohttp, and yield its port."""
    ready = threading.Event()
    ports: list[int] = []
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def run() -> None:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        ready.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    try:
        assert ready.wait(30)
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def test_every_path_and_method_is_answered_by_the_service() -> None:
    """Payments, packets, HEAD, other methods and other paths below the service have its responses."""
    service = Service()
    app = web.Application()
    app.add_routes(routes(asgi_application(service)))
    with serving(app) as port:
        check(service, port)


def test_service_below_a_path_is_found() -> None:
    """The routes work in an application below the path of the base URL, too."""
    service = Service()
    app, payments = web.Application(), web.Application()
    payments.add_routes(routes(asgi_application(service)))
    app.add_subapp("/op", payments)
    with serving(app) as port:
        client = client_at(service, port)
        request = client.creation()
        assert client.send(Request("POST", f"/op{PATH}", headers=request.headers, body=request.body)).status == 201


@pytest.mark.parametrize(("cached", "expected"), [(True, 201), (False, 400)])
def test_middleware_may_have_read_the_body(cached: bool, expected: int, caplog: pytest.LogCaptureFixture) -> None:
    """A body that `request.read()` keeps is used. The log says so when other code has used the body up."""
    service = Service()

    @web.middleware
    async def reading(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        await (request.json() if cached else request.content.read())
        return await handler(request)

    app = web.Application(middlewares=[reading])
    app.add_routes(routes(asgi_application(service)))
    with serving(app) as port:
        client = client_at(service, port)
        assert client.send(client.creation()).status == expected
    assert ("answer(..., body=...)" in caplog.text) == (expected == 400)


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 9\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nx\r\n"],
    ids=["ends early", "malformed chunk"],
)
def test_broken_body_is_no_failure(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A client that sends half a body, or a malformed one, leaves no line in the log and harms no other request."""
    service = Service()
    app = web.Application()
    app.add_routes(routes(asgi_application(service)))
    with serving(app) as port:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
        refused = answers(exchange(port, head + body, ends_early=True))
        assert [status for status, _ in refused] in ([], [400])
        unsigned = Request("POST", PATH, headers=[JSON], body=b"{}")
        assert refusal(client_at(service, port).send(unsigned)) == (401, "token_missing")
    assert [record for record in caplog.records if record.name.startswith("incoming_payments")] == []


def test_another_object_than_an_asgi_application_is_refused() -> None:
    """The mistake is found at start, and not at the first request."""
    check_refusals(routes, wsgi_application(Service()), "an AsgiApplication, not")
