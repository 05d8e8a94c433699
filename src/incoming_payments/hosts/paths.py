"""From the path that a server tells to the path below the service."""

from typing import Final
from urllib.parse import quote

_SAFE: Final = "/:@!$&'()*+,;=~-._"  # what RFC 3986 §3.3 lets stand in a path as it is


def origin_form(target: str) -> str:
    """The path of a request's target, without query: some servers hand on the absolute form. RFC 9112 §3.2.2.

    >>> origin_form("http://bank.example/incoming-payments?x")
    '/incoming-payments'
    """
    if not target.startswith("/"):
        target = f"/{target.partition('://')[2].partition('/')[2]}"
    return target.partition("?")[0]


def encoded(path: str | bytes) -> str:
    """A decoded path, percent-encoded again.

    >>> encoded("/a b")
    '/a%20b'
    """
    return quote(path, safe=_SAFE)


def below(path: str, mount: str) -> str:
    """`path` without the `mount` in front of it; as it is when a server or proxy has taken that away already.

    >>> below("/op/incoming-payments", "/op/")
    '/incoming-payments'
    """
    return path.removeprefix(mount.rstrip("/"))
