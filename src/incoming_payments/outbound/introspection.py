"""Token introspection over HTTP, in the dialects of RFC 9767 and of Rafiki. This module needs the extra `outbound`."""

import asyncio
import json
import random
import secrets
import ssl
import threading
import time
from collections.abc import Callable, Hashable
from datetime import datetime
from functools import partial
from typing import Final, get_args

from incoming_payments.domain.urls import canonical_url
from incoming_payments.errors import AuthorizationServerUnavailable, ConfigurationError, InvalidValue
from incoming_payments.gnap import AccessToken, AccessTokenInfo, Action, Dialect, TokenQuery, read_introspection
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.limits import (
    ACTIVE_TOKENS_MAX,
    ACTIVE_TOKENS_OF_CLIENT_MAX,
    CLIENT_RETRIES_MAX,
    CLIENT_RETRY_S_MAX,
    INTROSPECTION_BYTES_MAX,
    INTROSPECTION_CACHE_S_MAX,
    INTROSPECTION_CACHED_BYTES_MAX,
    INTROSPECTION_S_DEFAULT,
    INTROSPECTION_S_MAX,
    INTROSPECTIONS_CACHED_DEFAULT,
)
from incoming_payments.outbound import _forks
from incoming_payments.outbound._breaker import Breaker, SingleFlight
from incoming_payments.outbound._http import CONNECTIONS_DEFAULT, AnswerTooLarge, HttpAnswer, HttpFailed
from incoming_payments.outbound._loop_thread import LoopThread
from incoming_payments.outbound._recent import ActiveTokens, Recent
from incoming_payments.outbound._settings import check_number, check_types, open_http, wrong
from incoming_payments.ports.clock import utc_now

_HEADERS: Final = (("Content-Type", "application/json"), ("Accept", "application/json"))
# the components that each request must cover (RFC 9635 §7.3.1)
_SIGNED: Final = ("@method", "@target-uri", "content-digest", "content-type")
# the statuses of answers to a wrong URL or wrong credentials
_SETTING_SUSPECTED: Final = {301, 302, 303, 307, 308, 401, 403, 404, 405}
_GATEWAY: Final = {502, 503, 504}  # the statuses that a proxy sends when its server does not answer


class _Introspector:
    """The common part of both introspectors: settings, requests, answers and cache."""

    def __init__(
        self,
        url: str,
        *,
        dialect: Dialect,
        issuer: str | None = None,
        audience: str | None = None,
        resource_server: str | None = None,
        key: PrivateKey | None = None,
        allow_http: bool = False,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = INTROSPECTION_S_DEFAULT,
        connections: int = 2 * CONNECTIONS_DEFAULT,
        cache_s: float = 0.0,
        cache_tokens: int = INTROSPECTIONS_CACHED_DEFAULT,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Raise `ConfigurationError` for a missing or wrong setting. `HttpIntrospector` describes the settings."""
        check_types(bool, {"allow_http": allow_http})
        check_types(str, {"issuer": issuer, "audience": audience, "resource_server": resource_server})
        check_types(PrivateKey, {"key": key})
        check_types(ssl.SSLContext, {"tls": tls})
        _check_url(url, allow_http=allow_http)
        if dialect not in get_args(Dialect):
            raise wrong("dialect", f"must be one of {', '.join(get_args(Dialect))}, not {dialect!r}")
        if dialect == "rfc9767" and issuer is None:
            raise wrong("issuer", "is missing: set the grant endpoint URL of the authorization server (RFC 9767 §3.3)")
        if dialect == "rafiki" and issuer is not None:
            raise wrong(
                "issuer",
                "must not be set for the dialect rafiki, because the answers of Rafiki have no iss: leave it out",
            )
        if dialect == "rfc9767" and resource_server is None and key is None:
            text = "is missing: set the name of this service at the authorization server, or a key (RFC 9767 §3.3)"
            raise wrong("resource_server", text)
        check_number("timeout_s", timeout_s, 0.01, INTROSPECTION_S_MAX)
        check_number("cache_s", cache_s, 0, INTROSPECTION_CACHE_S_MAX)
        for name, count in (("connections", connections), ("cache_tokens", cache_tokens)):
            if type(count) is not int or count < 1:
                raise wrong(name, "must be a whole number of at least 1")
        self._url = url
        self._dialect: Dialect = dialect
        self._parse = partial(read_introspection, dialect=dialect, issuer=issuer, audience=audience)
        self._server = resource_server or (key and {"key": {"proof": "httpsig", "jwk": key.public_jwk()}})
        self._key = key
        self._timeout_s = timeout_s
        self._clock = clock
        self._cache_s = cache_s
        self._cache_tokens = cache_tokens
        self._connections = connections
        self._tls = tls
        _forks.begin(self)

    def begin(self) -> None:
        """Start with no token and no connection."""
        self._breaker = Breaker()
        self._flights = SingleFlight[bytes]()
        # Cache the bytes of an answer, because a client chooses its key, and a parsed key can take much more memory.
        self._cache = Recent[tuple[float, bytes]](self._cache_tokens)
        # the digests of the tokens that were active at their last introspection
        self._active = ActiveTokens(ACTIVE_TOKENS_MAX, ACTIVE_TOKENS_OF_CLIENT_MAX)
        reserved = self._connections // 2
        open_client = partial(open_http, bytes_max=INTROSPECTION_BYTES_MAX, tls=self._tls)
        self._shared = open_client(connections=self._connections - reserved)
        self._reserved = open_client(connections=reserved) if reserved else self._shared

    def _name(self, query: TokenQuery) -> Hashable:
        """Return the key of the answer in the cache. Queries with the same key get the same answer."""
        if self._dialect == "rafiki":
            return query.token.digest, query.action, query.wallet_address
        return query.token.digest

    def _request(self, query: TokenQuery) -> RequestMessage:
        """Return the request, signed if there is a key. Each call signs with a new nonce."""
        members: dict[str, object] = {"access_token": query.token.value}
        if self._dialect == "rfc9767":
            members |= {"proof": "httpsig", "resource_server": self._server}
        else:
            access: dict[str, object] = {"type": "incoming-payment", "actions": [query.action]}
            if query.wallet_address is not None:
                access["identifier"] = query.wallet_address
            members["access"] = [access]
        request = RequestMessage("POST", self._url, _HEADERS, json.dumps(members).encode())
        if self._key is None:
            return request
        nonce = secrets.token_urlsafe(16)
        return sign(request, self._key, created=self._clock(), components=_SIGNED, nonce=nonce, tag="gnap")

    def _read(self, query: TokenQuery, name: Hashable, body: bytes) -> AccessTokenInfo | None:
        info = None
        try:
            info = self._parse(body)
        finally:
            if info is None:
                self._active.remove(query.token.digest)
        if info is None:
            return None
        self._active.add(query.token.digest, info.client)
        if len(body) <= INTROSPECTION_CACHED_BYTES_MAX:
            left_s = self._cache_s if info.expires_at is None else (info.expires_at - self._clock()).total_seconds()
            if (kept_s := min(self._cache_s, left_s)) > 0:
                self._cache.put(name, (time.monotonic() + kept_s, body))
        return info

    def _cached(self, query: TokenQuery) -> AccessTokenInfo | None:
        until_s, body = self._cache.get(self._name(query)) or (0.0, b"")
        return self._parse(body) if time.monotonic() < until_s else None

    async def _introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        name = self._name(query)
        fetch = partial(self._fetch, query, time.monotonic() + self._timeout_s)
        return self._read(query, name, await self._flights.run(name, fetch))

    async def _fetch(self, query: TokenQuery, deadline: float) -> bytes:
        was_active = query.token.digest in self._active
        http = self._reserved if was_active else self._shared  # random tokens never get a reserved connection
        attempt = _Attempt(self._url, self._breaker, deadline, was_active=was_active)
        if attempt.must_probe:
            # All callers wait for the result of the probe, so the probe continues when this caller is cancelled.
            self._probing = asyncio.create_task(self._probe(attempt))
            if (outage := await asyncio.shield(self._probing)) is not None:
                raise outage
        try:
            while True:
                try:
                    return attempt.body(await http.send(self._request(query), timeout_s=attempt.left_s()))
                except HttpFailed as error:
                    await asyncio.sleep(attempt.pause_s(error))
        except asyncio.CancelledError:
            attempt.cancelled()
            raise

    async def _probe(self, attempt: "_Attempt") -> AuthorizationServerUnavailable | None:
        """Probe the server. Return the error to raise if the server does not answer."""
        try:
            attempt.probed(await self._reserved.send(self._request(_probe()), timeout_s=attempt.left_s()))
        except HttpFailed as error:
            outage = attempt.outage(error)
            outage.__cause__ = error
            return outage
        return None


class HttpIntrospector(_Introspector):
    """The `Introspector` port over HTTP, for threads. `AsyncHttpIntrospector` is the same for asyncio.

    `url` is the introspection endpoint. `dialect` is `rfc9767` or `rafiki` (see `docs/introspection.md`). An http URL
    needs `allow_http`, because http lets the network read the tokens.

    - `issuer` is the grant endpoint URL of the authorization server. The `iss` of each answer must be equal to this
      URL. The dialect `rfc9767` needs `issuer`.
    - `audience` is the name of this service in the `aud` of an answer. The introspector refuses a token whose `aud`
      names only other services.
    - `key` signs each request. `resource_server` is the name under which the authorization server knows this service.
      If this name is `None`, the request contains the public key. The dialect `rfc9767` needs `key` or
      `resource_server`.
    - `tls` replaces the default TLS context, for a private authority or a client certificate. `docs/client-keys.md`
      says how to restrict the key exchange of the context.
    - `timeout_s` is the time for one introspection with its retries, at most `limits.INTROSPECTION_S_MAX`.
    - `connections` is the number of connections to the authorization server. Half of the connections are reserved for
      tokens that were active at their last introspection. So an attacker with random tokens cannot occupy all
      connections. `HttpIntrospector` also limits the threads that wait for other tokens to the number of the other
      connections. Under WSGI, set `connections` to half of the threads of your server.
    - `cache_s` is the number of seconds for which an active token is cached, at most
      `limits.INTROSPECTION_CACHE_S_MAX`. A cached token is never used beyond its `exp`, but a revoked token stays
      usable for that long. 0 turns the cache off. `cache_tokens` is the size of the cache.

    `introspect` raises `TokenRefused`, as `read_introspection` does, and `AuthorizationServerUnavailable`. Threads that
    need the same answer at the same time share one request. After a failed connection, the introspector tries again at
    most `limits.CLIENT_RETRIES_MAX` times. If a server fails repeatedly, and then also fails to answer a probe with a
    random token, the introspector pauses for at most `limits.BREAKER_OPEN_S_MAX` seconds. Raises `ConfigurationError`
    for a wrong setting. In a child process after a fork, the introspector starts with an empty state. Close the
    introspector with `close`.
    """

    async_class = "AsyncHttpIntrospector"

    def begin(self) -> None:
        """Start with no token, no connection and no thread."""
        super().begin()
        self._thread = LoopThread(self._shared, self._reserved)
        self._waits = threading.Semaphore(self._connections - self._connections // 2)

    def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Return the information about the token, or `None` when it is not active."""
        try:
            return self._cached(query) or self._wait(query)
        except HttpFailed as error:
            raise AuthorizationServerUnavailable(error.description) from error

    def _wait(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Wait for the answer. Strangers with random tokens occupy only some threads of a WSGI server."""
        if query.token.digest in self._active:
            return self._thread.run(self._introspect(query))
        if not self._waits.acquire(blocking=False):
            text = "too many other threads wait for tokens that were not active before: repeat the request later"
            raise AuthorizationServerUnavailable(text)
        try:
            return self._thread.run(self._introspect(query))
        finally:
            self._waits.release()

    def close(self) -> None:
        """Close the connections."""
        self._thread.close()


class AsyncHttpIntrospector(_Introspector):
    """The `AsyncIntrospector` port over HTTP, with the settings of `HttpIntrospector`. Close it with `aclose`."""

    async def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Return the information about the token, or `None` when it is not active."""
        return self._cached(query) or await self._introspect(query)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._shared.aclose()
        await self._reserved.aclose()


class _Attempt:
    """One introspection with its retries, until its deadline. Raises `AuthorizationServerUnavailable`."""

    def __init__(self, url: str, breaker: Breaker, deadline: float, *, was_active: bool) -> None:
        self._url = url
        self._breaker = breaker
        self._deadline = deadline
        self._retries = 0
        self._begin_s = time.monotonic()
        is_trial = was_active and breaker.takes_trial(self._begin_s, deadline)
        self.must_probe = not is_trial and breaker.takes_probe(self._begin_s)
        if not (is_trial or self.must_probe) and (wait_s := breaker.wait_s(self._begin_s)):
            raise self._outage(f"failed repeatedly, so this service sends it no request for {wait_s:.1f} s")

    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    def pause_s(self, error: HttpFailed) -> float:
        """Return the pause in seconds before the next retry. Raise the failure if there is no further retry."""
        pause_s = random.uniform(0, CLIENT_RETRY_S_MAX * 2**self._retries)  # noqa: S311 - a pause, not a secret
        self._retries += 1
        if not error.is_connection or self._retries > CLIENT_RETRIES_MAX or self.left_s() <= pause_s:
            # If a large answer counted as a failure, one large grant could open the breaker for all clients.
            if not isinstance(error, AnswerTooLarge):
                self._breaker.failed(self._begin_s)
            raise AuthorizationServerUnavailable(error.description) from error
        return pause_s

    def cancelled(self) -> None:
        """Record that the caller did not wait for the answer.

        Without this record, a host with a shorter timeout would never stop calling a server that does not answer.
        """
        self._breaker.failed(self._begin_s)

    def probed(self, answer: HttpAnswer) -> None:
        """Process the answer to the probe. Any answer of the server itself shows that it works."""
        if answer.status in _GATEWAY:
            raise HttpFailed(f"the status was {answer.status}")
        self._breaker.succeeded(time.monotonic())

    def outage(self, error: HttpFailed) -> AuthorizationServerUnavailable:
        """Return the error to raise after a failed probe."""
        self._breaker.probe_failed(time.monotonic(), self._begin_s)
        return self._outage(f"failed repeatedly, and a probe failed too: {error.description}")

    def body(self, answer: HttpAnswer) -> bytes:
        """Return the body of a successful answer."""
        if answer.status in _GATEWAY:
            self._breaker.failed(self._begin_s)
        else:
            self._breaker.succeeded(time.monotonic())
        if answer.status != 200:
            advice = ": check url, key and resource_server" if answer.status in _SETTING_SUSPECTED else ""
            raise self._outage(f"answered {answer.status}{_error_code(answer.body)}{advice}")
        return answer.body

    def _outage(self, why: str) -> AuthorizationServerUnavailable:
        return AuthorizationServerUnavailable(f"the introspection endpoint {self._url} {why}")


def _probe() -> TokenQuery:
    """Return a query for a random token. A healthy server answers that this token is not active."""
    return TokenQuery(AccessToken(secrets.token_urlsafe(32)), Action.READ)


def _error_code(body: bytes) -> str:
    """Return the error code in `body` for the log. The rest of the body may repeat the token."""
    try:
        error = json.loads(body)["error"]
        code = error["code"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    known = isinstance(code, str) and code in {"invalid_request", "invalid_resource_server", "invalid_access"}
    return f" {code}" if known else ""


def _check_url(url: str, *, allow_http: bool) -> None:
    try:
        scheme = canonical_url(url, member="url").partition(":")[0]
    except InvalidValue as error:
        raise ConfigurationError(error.description, setting="url") from None
    if scheme != "https" and not allow_http:
        raise wrong(
            "url",
            "must be an https URL, because http lets the network read the tokens: correct the URL, or set "
            "allow_http for development",
        )
