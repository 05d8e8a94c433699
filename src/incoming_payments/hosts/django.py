"""The service in Django, under WSGI and under ASGI. The views are exempt from CSRF checks: clients have no cookies."""

import re
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, re_path
from django.views.decorators.csrf import csrf_exempt

from incoming_payments.api import Response
from incoming_payments.hosts.asgi import AsgiApplication, Message
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.limits import BODY_BYTES_MAX


def routes(application: WsgiApplication | AsgiApplication) -> list[URLPattern]:
    """Return the URL patterns for the paths of `application` and below: `urlpatterns = [*routes(application), ...]`.

    A `WsgiApplication` has a sync view, for any server. An `AsgiApplication` has an async view, for ASGI servers only.
    Middleware may have read `request.body`.
    """
    view = csrf_exempt(_view(application) if isinstance(application, WsgiApplication) else _async_view(application))
    return [re_path(rf"(?s)^{re.escape(path[1:])}(?:/.*)?\Z", view) for path in application.paths]


def _view(application: WsgiApplication) -> Callable[[HttpRequest], HttpResponse]:
    def view(request: HttpRequest) -> HttpResponse:
        environ = dict(request.META)
        for name in ("SCRIPT_NAME", "PATH_INFO"):  # PEP 3333 has the bytes as Latin-1; Django decodes them
            environ[name] = environ[name].encode().decode("latin-1")
        if hasattr(request, "scope") or environ.get("CONTENT_LENGTH"):
            environ |= {"wsgi.input": request, "wsgi.input_terminated": True}
        return _response(request, application.answer(environ))

    return view


def _async_view(application: AsgiApplication) -> Callable[[HttpRequest], Any]:
    async def view(request: HttpRequest) -> HttpResponse:
        async def receive() -> Message:
            return {"type": "http.request", "body": request.read(BODY_BYTES_MAX + 1)}

        scope = getattr(request, "scope", None)
        if scope is None:
            raise ImproperlyConfigured("an AsgiApplication needs an ASGI server: under WSGI, use a WsgiApplication")
        return _response(request, await application.answer(scope, receive))

    return view


def _response(request: HttpRequest, answer: Response) -> HttpResponse:
    content = b"" if request.method == "HEAD" else answer.body  # not every WSGI server leaves it out
    return HttpResponse(
        content, status=answer.status, headers={**dict(answer.headers), "Content-Length": len(answer.body)}
    )
