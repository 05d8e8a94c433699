"""Derive the path below the service from the path that a server reports, and check the arguments of adapters."""

from typing import Final
from urllib.parse import quote, urlsplit

from incoming_payments.domain.checks import name_of
from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.policy import COLLECTION_PATH
from incoming_payments.service import AsyncIncomingPayments, IncomingPayments

_SAFE: Final = "/:@!$&'()*+,;=~-._"  # the characters that need no percent-encoding in a path (RFC 3986 §3.3)


def origin_form(target: str) -> str:
    """Return the path of a request target, without its query. RFC 9112 §3.2.

    Some servers give the target in absolute form.
    """
    if not target.startswith("/"):
        target = f"/{target.partition('://')[2].partition('/')[2]}"
    return target.partition("?")[0]


def encoded(path: str | bytes) -> str:
    """Return a decoded path with percent-encoding."""
    return quote(path, safe=_SAFE)


def require_application(application: object, *kinds: type) -> None:
    """Raise `ConfigurationError` unless `application`, the argument of `routes()`, is of one of `kinds`."""
    if not isinstance(application, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        text = f"routes() takes an {names}, not {name_of(application)}: pass routes({kinds[-1].__name__}(service))"
        raise ConfigurationError(text, setting="application")


def check_body(body: object) -> None:
    """Raise `ConfigurationError` unless `body`, the argument of an `answer` method, is bytes or `None`."""
    if body is not None and not isinstance(body, bytes | bytearray | memoryview):
        text = (
            f"body must be the bytes of the body as received, not {name_of(body)}: pass the bytes, because the "
            "signature covers them"
        )
        raise ConfigurationError(text, setting="body")


def below(path: str, mount: str) -> str:
    """Return `path` without the leading `mount`.

    A path without the `mount` is returned unchanged, because some servers and proxies have already removed the `mount`.
    """
    return path.removeprefix(mount.rstrip("/"))


class Mount:
    """The `path` at which a server mounts a service, and the `endpoints` of the service below this path.

    Raises `ConfigurationError` when `service` is not of `kind`, when a port for its routes is missing, or when `mount`
    does not begin with a slash.
    """

    def __init__(
        self, service: object, kind: type[IncomingPayments] | type[AsyncIncomingPayments], mount: str | None
    ) -> None:
        if not isinstance(service, kind):
            is_class = isinstance(service, type)
            advice = (
                "pass an instance"
                if is_class
                else "use WsgiApplication for a sync service, and AsgiApplication for an async service"
            )
            text = f"this adapter takes {kind.__name__}, not {name_of(service)}: {advice}"
            raise ConfigurationError(text, setting="service")
        service.check_routes()
        self.path: Final = urlsplit(service.policy.base_url).path if mount is None else mount.rstrip("/")
        if self.path[:1] not in {"", "/"}:
            raise ConfigurationError(f'mount={mount!r} must begin with a slash, such as "/op"', setting="mount")
        self.endpoints: Final = (COLLECTION_PATH, *([service.packets.path] if service.packets else []))

    def actual(self, path: str) -> str | None:
        """Return the part of `path` in front of an endpoint, or `None` if the path contains no endpoint."""
        for endpoint in self.endpoints:
            before, found, after = path.partition(endpoint)
            if found and after[:1] in {"", "/"}:
                return before
        return None
