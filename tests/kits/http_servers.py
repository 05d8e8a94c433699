"""HTTP servers in a thread on loopback, and a client that sends requests unchanged."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import uvicorn

from incoming_payments.endpoints.open_payments import Request, Response


class Quiet(WSGIRequestHandler):
    """A handler that does not log requests."""

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving_wsgi(application: Any) -> Iterator[int]:
    """Serve `application` with the server of the standard library, and yield its port."""
    with make_server("127.0.0.1", 0, application, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serving_asgi(application: Any, **options: Any) -> Iterator[int]:
    """Serve `application` with uvicorn and its `options`, and yield its port."""
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="critical",
        lifespan="auto",
        ws="none",
        http="h11",
        timeout_keep_alive=1,
        **options,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.005)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def over_http(port: int, request: Request, *, target: str | None = None, chunked: bool = False) -> Response:
    """Return the response to `request`, sent unchanged. `target` replaces its path in the request line."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        path = request.path + (f"?{request.query}" if request.query else "")
        connection.putrequest(request.method, target or path, skip_accept_encoding=True)
        headers = [line for line in request.headers if not (chunked and line[0].lower() == "content-length")]
        if chunked:
            headers.append(("Transfer-Encoding", "chunked"))
        elif request.body and not request.values("content-length"):
            headers.append(("Content-Length", str(len(request.body))))
        for name, value in headers:
            connection.putheader(name, value)
        body: Any = iter([request.body[:7], request.body[7:]]) if chunked else request.body
        connection.endheaders(body or None, encode_chunked=chunked)
        answer = connection.getresponse()
        return Response(answer.status, tuple(answer.getheaders()), answer.read())
    finally:
        connection.close()
