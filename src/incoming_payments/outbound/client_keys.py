"""Fetch the keys that clients publish at `{walletAddress}/jwks.json`, over HTTP.

```
ports = Ports(store=..., client_keys=HttpClientKeys())                  # or AsyncPorts with AsyncHttpClientKeys
```

A client chooses the URL of its wallet address, so the URL is hostile input. The port uses only https, and follows no
redirect. It connects only to a public IP address, which it checks after the look-up of the name.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from incoming_payments.domain.payment import ClientId
from incoming_payments.domain.urls import canonical_url, has_plain_path
from incoming_payments.errors import ClientKeysUnavailable, InvalidValue, MalformedKey
from incoming_payments.httpsig import load_jwk
from incoming_payments.limits import (
    CLIENT_KEYS_MAX,
    DOCUMENT_AGE_S_DEFAULT,
    DOCUMENT_FETCH_S_DEFAULT,
    FETCHES_MAX,
    FETCHES_OF_DOMAIN_MAX,
)
from incoming_payments.outbound._documents import Documents, Fetcher, read_object
from incoming_payments.outbound._http import HttpAnswer, HttpFailed
from incoming_payments.outbound._settings import check_number

KeySet = Mapping[str, Mapping[str, object]]  # the JWKs of one client, by their `kid`

_NOT_FOUND, _GONE = 404, 410
# The members that `load_jwk` checks, for each kind of key. Other members may be large, and would only fill the cache.
_MEMBERS: Final = {
    "OKP": ("kty", "alg", "kid", "crv", "x"),
    "EC": ("kty", "alg", "kid", "crv", "x", "y"),
    "RSA": ("kty", "alg", "kid", "n", "e"),
}


class _ClientKeys:
    """The settings and the documents of both ports."""

    def __init__(
        self,
        *,
        timeout_s: float = DOCUMENT_FETCH_S_DEFAULT,
        max_age_s: float = DOCUMENT_AGE_S_DEFAULT,
        fetches: int = FETCHES_MAX,
        allow_private: bool = False,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_number("fetches", fetches, 1, FETCHES_MAX)
        # Of 2 or 3 fetches, each parent domain gets one, so that others get one too.
        of_domain_max = min(FETCHES_OF_DOMAIN_MAX, 1 + fetches // 4)
        self._is_development = allow_private
        self._fetcher = Fetcher(
            Documents(_read, ClientKeysUnavailable, max_age_s, clock, fetches, of_domain_max),
            timeout_s=timeout_s,
            allow_private=allow_private,
            tls=tls,
        )


class HttpClientKeys(_ClientKeys):
    """A `ClientKeys` port that reads the key set of the client's wallet address. Threads may share a port.

    The port fetches a key set again after `max_age_s` seconds. It also does so when the key set lacks the key, but at
    most every `limits.DOCUMENT_COOL_DOWN_S_MIN` seconds. While the key server fails, the cached keys stay in use for
    another `limits.DOCUMENT_STALE_S_MAX` seconds. `timeout_s` limits the time of one fetch. At most `fetches` fetches
    of unknown key sets are in flight, and at most `fetches` fetches of cached key sets. At most `fetches` other threads
    wait for these fetches. A fetch occupies the thread of its caller, so slow key servers could occupy all threads of a
    WSGI server. To prevent this, set `fetches` to an eighth of the threads. `tls` replaces the default TLS context.
    Restrict its key exchange as `docs/client-keys.md` says, because the key server may be hostile. `clock` returns
    seconds and never goes back. Change `clock` only in tests. Close the port with `close`.

    `allow_private` is for development. It also allows http, a port in the URL, and IP addresses that are not public,
    such as loopback. Raises `ConfigurationError` for a wrong setting.
    """

    async_class = "AsyncHttpClientKeys"

    def find(self, client: ClientId, key_id: str) -> Mapping[str, object] | None:
        """Return the public JWK of `client` with this `kid`, or `None` if there is no such key.

        A client that is not a wallet address, such as a thumbprint, has no such key. Raises `ClientKeysUnavailable`.
        """
        url = _url(client, self._is_development)
        keys = None if url is None else self._fetcher.look_up(url, lambda known: key_id in known)
        return (keys or {}).get(key_id)

    def close(self) -> None:
        """Close the connections."""
        self._fetcher.close()


class AsyncHttpClientKeys(_ClientKeys):
    """`HttpClientKeys` for asyncio, with the same arguments. No thread waits for a fetch."""

    async def find(self, client: ClientId, key_id: str) -> Mapping[str, object] | None:
        """Return the public JWK of `client` with this `kid`, or `None` if there is no such key.

        See `HttpClientKeys.find`.
        """
        url = _url(client, self._is_development)
        keys = None if url is None else await self._fetcher.look_up_async(url, lambda known: key_id in known)
        return (keys or {}).get(key_id)

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._fetcher.close)


def _url(client: ClientId, is_development: bool) -> str | None:
    """Return the URL of the key set of `client`, or `None` if `client` is not the URL of a wallet address.

    A wallet address is an https URL with a plain path, and has no port and no query. So a client cannot choose another
    service on a host.
    """
    try:
        url = canonical_url(client, member="client")
    except InvalidValue:
        return None
    parts = urlsplit(url)
    if (
        "?" in url
        or not has_plain_path(url)
        or not (is_development or (parts.scheme == "https" and parts.port is None))
    ):
        return None
    return f"{url}/jwks.json"


def _read(_: str, answer: HttpAnswer, known: KeySet | None) -> KeySet | None:
    """Return the usable keys of a key set, and ignore the other keys (RFC 7517 §5).

    If several keys have the same `kid`, the first of them is used. A status of 410 means that the key set was withdrawn
    for good (RFC 9110 §15.5.11), so the cache drops the keys. A 404 may be a mistake during a deployment, so the cached
    keys stay.
    """
    if answer.status == _GONE or (answer.status == _NOT_FOUND and known is None):
        return None
    keys = read_object(answer).get("keys")
    if not isinstance(keys, list):
        raise HttpFailed("the member keys of the key set is not an array (RFC 7517 §5)")
    found: dict[str, dict[str, Any]] = {}
    for jwk in keys[:CLIENT_KEYS_MAX]:
        try:
            key = load_jwk(jwk if isinstance(jwk, dict) else {})
        except MalformedKey:
            continue
        found.setdefault(key.kid, {name: jwk[name] for name in _MEMBERS[jwk["kty"]]})
    return found
