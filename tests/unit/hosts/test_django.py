"""The service in Django, over HTTP: a sync view under WSGI and ASGI, and an async view under ASGI."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest
from django.test import override_settings
from django.urls import include, path

from incoming_payments.endpoints.open_payments import Request
from incoming_payments.hosts.django import routes
from kits.framework_checks import asgi_application, check, check_refusals, client_at, wsgi_application
from kits.http_servers import serving_asgi, serving_wsgi
from kits.raw_http import answers, exchange
from kits.service_kit import JSON, PATH, Service, refusal

Serving = Callable[..., AbstractContextManager[int]]

MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
if not settings.configured:
    settings.configure(SECRET_KEY="a secret for the tests", ALLOWED_HOSTS=["*"], MIDDLEWARE=MIDDLEWARE)


@contextmanager
def under_wsgi(service: Service, prefix: str = "", **options: Any) -> Iterator[int]:
    """Serve a Django project with the sync view of `service` by WSGI. `options` are settings."""
    with urls(routes(wsgi_application(service)), prefix, **options), serving_wsgi(get_wsgi_application()) as port:
        yield port


@contextmanager
def under_asgi(service: Service, prefix: str = "", **options: Any) -> Iterator[int]:
    """Serve a Django project with the async view of `service` by ASGI. `options` are settings."""
    with urls(routes(asgi_application(service)), prefix, **options), serving_asgi(get_asgi_application()) as port:
        yield port


@contextmanager
def sync_under_asgi(service: Service, prefix: str = "", **options: Any) -> Iterator[int]:
    """Serve a Django project with the sync view of `service` by ASGI. `options` are settings."""
    with urls(routes(wsgi_application(service)), prefix, **options), serving_asgi(get_asgi_application()) as port:
        yield port


def urls(patterns: list[Any], prefix: str, **options: Any) -> Any:
    """Return a context with these URL patterns below `prefix`."""
    module = ModuleType("urls")
    module.urlpatterns = [path(prefix, include(patterns))] if prefix else patterns  # type: ignore[attr-defined]
    return override_settings(ROOT_URLCONF=module, **options)


def reads_body(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Middleware that looks at the body before the view, as an audit log does."""

    def middleware(request: HttpRequest) -> Any:
        assert request.body is not None
        return get_response(request)

    return middleware


def uses_up_body(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Middleware that reads the stream of the request and keeps nothing."""

    def middleware(request: HttpRequest) -> Any:
        request.read()
        return get_response(request)

    return middleware


SERVING = [under_wsgi, under_asgi, sync_under_asgi]


@pytest.mark.parametrize("middleware", [[], [f"{__name__}.reads_body"]], ids=["plain", "body read"])
@pytest.mark.parametrize("serving", SERVING)
def test_every_path_and_method_is_answered_by_the_service(serving: Serving, middleware: list[str]) -> None:
    """Payments, packets, HEAD, other methods and other paths below the service have its responses.

    A POST needs no CSRF token, and middleware may have read the body.
    """
    service = Service()
    with serving(service, MIDDLEWARE=[*MIDDLEWARE, *middleware]) as port:
        check(service, port)


@pytest.mark.parametrize("serving", SERVING)
def test_service_below_a_path_is_found(serving: Serving) -> None:
    """The patterns work below the path of the base URL, too."""
    service = Service()
    with serving(service, "op/") as port:
        client = client_at(service, port)
        request = client.creation()
        assert client.send(Request("POST", f"/op{PATH}", headers=request.headers, body=request.body)).status == 201


@pytest.mark.parametrize("serving", SERVING)
def test_body_that_is_used_up_is_logged(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets 400 at once, and the log of the host says why."""
    service = Service()
    with serving(service, MIDDLEWARE=[f"{__name__}.uses_up_body"]) as port:
        client = client_at(service, port)
        assert refusal(client.send(client.creation())) == (400, "incomplete_body")
    assert "answer(..., body=...)" in caplog.text


@pytest.mark.parametrize("serving", SERVING)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", {(401, "token_missing"), (411, "length_required")}),
        (b"Content-Length: two\r\n\r\n{}", {(400, "invalid_content_length"), (400, None)}),
    ],
    ids=["chunked", "no number"],
)
def test_body_without_a_length(serving: Serving, fields: bytes, expected: set[tuple[int, str | None]]) -> None:
    """A chunked body is read by ASGI, and refused where the WSGI server cannot mark its end."""
    with serving(Service()) as port:
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n".encode()
        [answer] = answers(exchange(port, head + fields).replace(b"HTTP/1.0 ", b"HTTP/1.1 "))  # of wsgiref
        assert answer in expected


def test_asgi_application_under_wsgi_is_a_mistake_of_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """The log of Django names the change to make."""
    service = Service()
    with urls(routes(asgi_application(service)), ""), serving_wsgi(get_wsgi_application()) as port:
        unsigned = Request("POST", PATH, headers=[JSON], body=b"{}")
        assert client_at(service, port).send(unsigned).status == 500
    assert "an AsgiApplication needs an ASGI server: in a WSGI server, pass a WsgiApplication" in caplog.text


def test_another_object_than_an_application_is_refused() -> None:
    """The mistake is found at start, and not at the first request."""
    check_refusals(routes, None, "an AsgiApplication or WsgiApplication, not")
