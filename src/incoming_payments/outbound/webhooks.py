"""Send webhooks for the events of payments, as Standard Webhooks (standardwebhooks.com) specifies them.

```
shop = WebhookEndpoint(name="shop", url="https://shop.example/hooks", secrets=["whsec_..."])
with webhooks(service, [shop]):
    ...                                                 # serve requests
```

Each endpoint is a consumer of the feed. So each endpoint has its own schedule, filters and dead letters.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, closing, contextmanager
from datetime import datetime
from typing import Any, Final, Protocol, TypedDict, Unpack
from urllib.parse import urlsplit, urlunsplit

from attrs import Factory, field, fields, frozen

from incoming_payments.domain.checks import all_of
from incoming_payments.domain.feed import Consumer, Delivery, FeedEvent, Start
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.domain.urls import canonical_url
from incoming_payments.errors import ConfigurationError, InvalidValue
from incoming_payments.httpsig import RequestMessage
from incoming_payments.limits import (
    RELAY_CONCURRENCY_MAX,
    WEBHOOK_ANSWER_BYTES_MAX,
    WEBHOOK_CREDIT_DELAY_S_DEFAULT,
    WEBHOOK_DISABLE_S_DEFAULT,
    WEBHOOK_DOWN_S_DEFAULT,
    WEBHOOK_MARGIN_S_MIN,
    WEBHOOK_S_DEFAULT,
    WEBHOOK_S_MAX,
)
from incoming_payments.outbound import _forks
from incoming_payments.outbound._documents import is_public
from incoming_payments.outbound._http import HttpFailed, any_address
from incoming_payments.outbound._loop_thread import LoopThread
from incoming_payments.outbound._settings import check_number, check_types, open_http, wrong
from incoming_payments.outbound._webhook_answers import check_answer
from incoming_payments.outbound._webhook_secrets import WebhookSecret, webhook_secrets
from incoming_payments.ports.clock import utc_now
from incoming_payments.wire import JSON_MEDIA_TYPE, write_webhook

_ANY_URL: Final = re.compile(r"https?://\S*")
_USER_AGENT: Final = "incoming-payments"


def _target(url: str) -> str:
    """Return `url` with scheme and host in their canonical spelling, and the path as it is.

    Raises `ConfigurationError`. A slash at the end of the path stays, because it may name another resource.
    """
    try:
        canonical = urlsplit(canonical_url(url, member="url"))
    except InvalidValue as error:
        raise ConfigurationError(error.description, setting="url") from None
    return urlunsplit((canonical.scheme, canonical.netloc, urlsplit(url).path, canonical.query, ""))


def _host(url: str) -> str:
    """Return the beginning of `url` for texts, because the rest of the URL of a webhook is often a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _consumer(endpoint: "WebhookEndpoint") -> Consumer:
    """Return the consumer of `endpoint`. Raises `ConfigurationError`."""
    try:
        return Consumer(**{each.name: getattr(endpoint, each.name) for each in fields(Consumer)})
    except InvalidValue as error:
        raise ConfigurationError(error.description, setting=str(error.details["member"])) from None


@frozen(kw_only=True, eq=False)
class WebhookEndpoint:
    """An endpoint that receives webhooks, and the consumer of the feed behind it.

    `name` is the name of the consumer. It stays the same when the URL changes. `secrets` are one or more strings. A
    string that begins with `whsec_` signs with HMAC-SHA256, and one that begins with `whsk_` signs with Ed25519. Each
    secret signs each webhook, so that a receiver can change to a new secret before you remove the old one.

    `kinds`, `wallet_addresses`, `joins_credits`, `credit_delay_s`, `down_after_s` and `disable_after_s` are those of
    `Consumer`. If `thin` is true, a webhook has only ids and versions. An attempt fails after `timeout_s` seconds. Set
    `allow_private` to allow private IP addresses and http, for development or for a receiver in your own network.
    `tls` replaces the default TLS context.

    Raises `ConfigurationError` with the name of a wrong setting. Neither its errors nor its `repr` shows a secret or
    the path of the URL.
    """

    name: str
    url: str = field(converter=_target, repr=_host)
    secrets: Sequence[WebhookSecret] = field(converter=webhook_secrets)
    kinds: Iterable[str] | None = None
    wallet_addresses: Iterable[str] | None = None
    joins_credits: bool = True
    credit_delay_s: float = WEBHOOK_CREDIT_DELAY_S_DEFAULT
    down_after_s: float | None = WEBHOOK_DOWN_S_DEFAULT
    disable_after_s: float | None = WEBHOOK_DISABLE_S_DEFAULT
    thin: bool = False
    timeout_s: float = WEBHOOK_S_DEFAULT
    allow_private: bool = False
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    consumer: Consumer = field(init=False, repr=False, default=Factory(_consumer, takes_self=True))

    def __attrs_post_init__(self) -> None:
        """Check the settings."""
        check_types(bool, {"joins_credits": self.joins_credits, "thin": self.thin, "allow_private": self.allow_private})
        check_types(ssl.SSLContext, {"tls": self.tls})
        check_number("timeout_s", self.timeout_s, 0.01, WEBHOOK_S_MAX)
        if self.url.startswith("http:") and not self.allow_private:
            text = (
                "must be an https URL, because http shows the events to the network: correct it, or set allow_private"
            )
            raise wrong("url", text)

    def render(self, events: Sequence[FeedEvent]) -> bytes:
        """Return the body of the webhook for the `events` of one delivery."""
        return write_webhook(events, thin=self.thin)

    def request(self, delivery: Delivery, now: datetime) -> RequestMessage:
        """Return the signed request for `delivery`, for an attempt at the time `now`."""
        timestamp = str(int(now.timestamp()))
        content = b".".join((delivery.id.encode(), timestamp.encode(), delivery.payload))
        headers = {
            "Content-Type": JSON_MEDIA_TYPE,
            "User-Agent": _USER_AGENT,
            "webhook-id": delivery.id,
            "webhook-timestamp": timestamp,
            "webhook-signature": " ".join(secret.sign(content) for secret in self.secrets),
        }
        return RequestMessage("POST", self.url, tuple(headers.items()), delivery.payload)


class _Sender:
    """The endpoint and the HTTP client of both senders."""

    def __init__(self, endpoint: WebhookEndpoint, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._endpoint = endpoint
        self._clock = clock
        _forks.begin(self)

    def begin(self) -> None:
        """Start with no connection and no thread."""
        self._http = open_http(
            bytes_max=WEBHOOK_ANSWER_BYTES_MAX,
            connections=RELAY_CONCURRENCY_MAX,  # no attempt waits for the connection of another one
            tls=self._endpoint.tls,
            may_connect=any_address if self._endpoint.allow_private else is_public,
        )
        # A hostile endpoint can cause much work by TLS messages, which must not occupy the event loop of a caller.
        self._thread = LoopThread(self._http, rests=True)

    async def _send(self, delivery: Delivery) -> None:
        request = self._endpoint.request(delivery, self._clock())
        try:
            answer = await self._http.send(request, timeout_s=self._endpoint.timeout_s)
        except HttpFailed as error:
            raise _without_url(error, self._endpoint.url) from None
        check_answer(answer, self._clock())


class WebhookSender(_Sender):
    """A handler for the relay, which sends the payload of a delivery to `endpoint`. Close it with `close`.

    The handler returns after an answer with status 2xx. Otherwise it raises the failure of the attempt: `RetryLater` if
    the next attempt has to wait, `HandlerGone` after the status 410, or else `PortUnavailable`. Threads may share a
    sender.
    """

    def __call__(self, delivery: Delivery) -> None:
        """Send the webhook once."""
        self._thread.run(self._send(delivery))

    def close(self) -> None:
        """Close the connections."""
        self._thread.close()


class AsyncWebhookSender(_Sender):
    """`WebhookSender` for asyncio, with the same arguments. Close it with `aclose`."""

    async def __call__(self, delivery: Delivery) -> None:
        """Send the webhook once. See `WebhookSender`."""
        await asyncio.wrap_future(self._thread.submit(self._send(delivery)))

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._thread.close)


def _without_url(error: HttpFailed, url: str) -> HttpFailed:
    """Return `error` without `url` in its text, because the path is often a secret and the text is logged.

    The text may also repeat a line of the server, which may repeat the path.
    """
    text, parts = _ANY_URL.sub("the endpoint", error.description), urlsplit(url)
    for part in (parts.path, parts.query):
        text = text.replace(part, "...") if len(part) > 1 else text
    return HttpFailed(text)


# --- relays --------------------------------------------------------------------------------------


class WebhookOptions(TypedDict, total=False):
    """The optional arguments of `webhooks`, which are those of `service.relay`."""

    start: Start
    retry: RetryPolicy
    concurrency: int
    poll_s: float


class Relaying(Protocol):
    """A service. `IncomingPayments` and `AsyncIncomingPayments` have this method."""

    @property
    def relay(self) -> Callable[..., Any]:
        """The method, which returns a relay."""


@contextmanager
def webhooks(
    service: Relaying, endpoints: Iterable[WebhookEndpoint], **options: Unpack[WebhookOptions]
) -> Iterator[None]:
    """Send webhooks to `endpoints` in background threads, until the context ends.

    The end of the context waits for the attempts in flight. `options` are those of `service.relay`, for all endpoints:
    `start`, `retry`, `concurrency` and `poll_s`. Raises `ConfigurationError` if two endpoints have the same name.
    """
    with ExitStack() as stack:
        relays = []
        for endpoint in _different(endpoints):
            sender = stack.enter_context(closing(WebhookSender(endpoint)))
            relays.append(_relay(service, endpoint, sender, options))
            if not isinstance(relays[-1], AbstractContextManager):
                raise wrong("service", "is async: write async with async_webhooks(...), or pass IncomingPayments")
            stack.enter_context(relays[-1])
        stack.callback(_stop, relays)
        yield


@asynccontextmanager
async def async_webhooks(
    service: Relaying, endpoints: Iterable[WebhookEndpoint], **options: Unpack[WebhookOptions]
) -> AsyncIterator[None]:
    """Send webhooks to `endpoints` in tasks of the event loop, until the context ends. See `webhooks`."""
    async with AsyncExitStack() as stack:
        relays = []
        for endpoint in _different(endpoints):
            sender = AsyncWebhookSender(endpoint)
            stack.push_async_callback(sender.aclose)
            relays.append(_relay(service, endpoint, sender, options))
            await stack.enter_async_context(relays[-1])
        stack.callback(_stop, relays)
        yield


def _different(endpoints: Iterable[WebhookEndpoint]) -> Sequence[WebhookEndpoint]:
    checked = all_of(WebhookEndpoint, endpoints, member="endpoints")
    names = [endpoint.name for endpoint in checked]
    for name in names:
        if names.count(name) > 1:
            raise wrong("endpoints", f"has two endpoints with the name {name}: give each endpoint its own name")
    return checked


def _relay(
    service: Relaying, endpoint: WebhookEndpoint, sender: Callable[[Delivery], Any], options: WebhookOptions
) -> Any:
    attempt_s = endpoint.timeout_s + WEBHOOK_MARGIN_S_MIN
    return service.relay(endpoint.consumer, sender, render=endpoint.render, attempt_s=attempt_s, **options)


def _stop(relays: Iterable[Any]) -> None:
    """Stop all relays at once, because each of them then waits for its attempts in flight."""
    for relay in relays:
        relay.stop()
