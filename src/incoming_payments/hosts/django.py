"""The service in Django, under WSGI and under ASGI. Clients have no cookies, so the views skip the CSRF checks."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, re_path
from django.views.decorators.csrf import csrf_exempt

from incoming_payments.endpoints.open_payments import Response
from incoming_payments.errors import ConfigurationError
from incoming_payments.hosts._paths import require_application
from incoming_payments.hosts.asgi import AsgiApplication, Message
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.limits import BODY_BYTES_MAX


def routes(application: WsgiApplication | AsgiApplication) -> list[URLPattern]:
    """Return the URL patterns for the paths of `application` and below, for use in `urlpatterns`.

    The view of a `WsgiApplication` is sync, and works in any server. The view of an `AsgiApplication` is async, and
    needs an ASGI server. The views also work if middleware has already read `request.body`. Raises `ConfigurationError`
    unless `application` is of one of these two classes.
    """
    require_application(application, AsgiApplication, WsgiApplication)
    is_sync = isinstance(application, WsgiApplication)
    answer = _answer if is_sync else _answer_async
    view: Callable[..., Any] = partial(answer, application)  # type: ignore[arg-type]  # `is_sync` fits
    return [re_path(rf"(?s)^{re.escape(path[1:])}(?:/.*)?\Z", csrf_exempt(view)) for path in application.paths]


def _answer(application: WsgiApplication, request: HttpRequest) -> HttpResponse:
    environ = dict(request.META)
    # PEP 3333 requires text that is decoded as Latin-1, but Django has decoded these values as UTF-8.
    for name in ("SCRIPT_NAME", "PATH_INFO"):
        environ[name] = environ[name].encode().decode("latin-1")
    if hasattr(request, "scope") or environ.get("CONTENT_LENGTH"):
        # Django may already have read the server's stream
        environ |= {"wsgi.input": request, "wsgi.input_terminated": True}
    return _response(request, application.answer(environ))


async def _answer_async(application: AsgiApplication, request: HttpRequest) -> HttpResponse:
    async def receive() -> Message:
        return {"type": "http.request", "body": request.read(BODY_BYTES_MAX + 1)}

    if not hasattr(request, "scope"):
        text = "an AsgiApplication needs an ASGI server: in a WSGI server, pass a WsgiApplication to routes()"
        raise ConfigurationError(text, setting="application")
    return _response(request, await application.answer(request.scope, receive))


def _response(request: HttpRequest, answer: Response) -> HttpResponse:
    headers = {**dict(answer.headers), "Content-Length": str(len(answer.body))}
    return HttpResponse(b"" if request.method == "HEAD" else answer.body, status=answer.status, headers=headers)
