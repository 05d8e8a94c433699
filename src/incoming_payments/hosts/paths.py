"""Derive the path below the service from the path that a server reports."""

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

_SAFE: Final = "/:@!$&'()*+,;=~-._"  # RFC 3986 §3.3 allows these in a path without percent-encoding


def origin_form(target: str) -> str:
    """Return the path of a request target, without its query. RFC 9112 §3.2.

    Some servers pass on a target in absolute form.
    """
    if not target.startswith("/"):
        target = f"/{target.partition('://')[2].partition('/')[2]}"
    return target.partition("?")[0]


def encoded(path: str | bytes) -> str:
    """Return a decoded path with percent-encoding."""
    return quote(path, safe=_SAFE)


def below(path: str, mount: str) -> str:
    """Return `path` without the leading `mount`.

    A path without the `mount` is returned unchanged, because some servers and proxies have removed it already.
    """
    return path.removeprefix(mount.rstrip("/"))


def actual_mount(path: str, endpoints: Iterable[str]) -> str | None:
    """Return the part of `path` in front of one of the `endpoints`, or `None` if the path has none of them."""
    for endpoint in endpoints:
        before, found, after = path.partition(endpoint)
        if found and after[:1] in {"", "/"}:
            return before
    return None
