"""Offer the feed over HTTP: a consumer in any language claims deliveries, and reports the results of its attempts.

`openapi.pull_document` describes these requests. Each consumer has bearer tokens of its own. A token gives access to
all events of its consumer, so the service stores only its digest.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import field, frozen

from incoming_payments import errors, limits
from incoming_payments.domain.checks import all_of, instance
from incoming_payments.domain.feed import Consumer, Start
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.endpoints._bearer import BearerTokens, digests_of
from incoming_payments.endpoints.open_payments import (
    Headers,
    Request,
    Response,
    body_too_large,
    check_head,
    http_refusal,
    require_content,
)
from incoming_payments.errors import HttpRefused
from incoming_payments.flows.machinery.effects import Flow, flow
from incoming_payments.flows.pull import Clock, acknowledge_delivery, claim_deliveries, fail_delivery
from incoming_payments.gnap.token import AccessToken
from incoming_payments.wire import (
    JSON_MEDIA_TYPE,
    parse_lease,
    read_acknowledge,
    read_claim,
    read_fail,
    write_claimed,
    write_error,
    write_json,
)

_HEADERS: Final = (("Content-Type", JSON_MEDIA_TYPE), ("Cache-Control", "no-store"))
_RETRY_AFTER: Final = ("Retry-After", "1")


def _digests(tokens: Iterable[AccessToken]) -> tuple[bytes, ...]:
    return digests_of(tokens, "consumer")


@frozen(kw_only=True)
class PullConsumer:
    """A `consumer` that pulls its events. Any of `tokens` may be the bearer token of a request.

    A new consumer begins at `start`. Failed attempts follow the schedule `retry`. To replace a token, add the new one,
    let the consumer switch to it, and remove the old one. The object stores only the digests of the tokens. Raises
    `InvalidValue` unless there are 1 to 8 tokens of at least 16 characters.
    """

    consumer: Consumer = field(validator=instance(Consumer))
    digests: tuple[bytes, ...] = field(converter=_digests, alias="tokens", repr=False)
    start: Start = field(default=Start.NOW, converter=Start)
    retry: RetryPolicy = field(factory=RetryPolicy, validator=instance(RetryPolicy))


def _consumers(consumers: Iterable[PullConsumer]) -> tuple[PullConsumer, ...]:
    return all_of(PullConsumer, consumers, member="consumers")


@frozen(kw_only=True)
class PullPolicy:
    """The consumers that pull their events. Raises `InvalidValue` when two of them have the same token."""

    consumers: tuple[PullConsumer, ...] = field(converter=_consumers)
    _tokens: BearerTokens[PullConsumer] = field(init=False, eq=False, repr=False)

    @_tokens.default
    def _index_tokens(self) -> BearerTokens[PullConsumer]:
        digests = [(digest, puller) for puller in self.consumers for digest in puller.digests]
        return BearerTokens.of(digests, member="consumers")

    def consumer_of(self, head: Request) -> PullConsumer:
        """Return the consumer that sends this request. A host can call this method before it reads the body.

        Raises `HttpRefused` with 414, 431, 404, 405, 415 or 401 when the request cannot be one of a known consumer.
        """
        check_head(head)
        if head.path not in ROUTES:
            raise HttpRefused(404, "not_found", f"use one of the paths {', '.join(ROUTES)}")
        if head.method != "POST":
            raise HttpRefused(405, "method_not_allowed", "use POST for this path", headers=(("Allow", "POST"),))
        require_content(head, JSON_MEDIA_TYPE)
        unknown = "the token does not belong to a known consumer"
        return self._tokens.holder_of(head.values("authorization"), unknown=unknown)


@flow
def answer_pull(request: Request, *, policy: PullPolicy, clock: Clock) -> Flow[Response]:
    """Answer one request of a consumer. A refusal is also a response.

    A consumer can never cause an exception. After an exception, such as `StoreUnusable`, the host answers with
    `open_payments.internal_error`, and logs the reason.
    """
    try:
        puller = policy.consumer_of(request)
        if len(request.body) > limits.PULL_BODY_BYTES_MAX:
            raise body_too_large(limits.PULL_BODY_BYTES_MAX)
        body = yield from ROUTES[request.path](puller, request.body, clock)
    except HttpRefused as error:
        return http_refusal(error)
    except errors.MalformedJson as error:
        return _refusal(400, error, error.description, error.details)
    except errors.ConsumerNotFound as error:
        return _refusal(503, error, "the service has not registered this consumer yet: try again later", {})
    except (errors.PortUnavailable, errors.StoreStopped) as error:
        # The description may name files of the host, so a client must not see it.
        return _refusal(503, error, "the service cannot answer now: try again later", {})
    return Response(200, _HEADERS, body)


def _claim(puller: PullConsumer, body: bytes, clock: Clock) -> Flow[bytes]:
    claim = read_claim(body)
    name = puller.consumer.name
    deliveries = yield from claim_deliveries(name, limit=claim.limit, lease_s=claim.lease_seconds, clock=clock)
    return write_claimed(deliveries)


def _acknowledge(puller: PullConsumer, body: bytes, clock: Clock) -> Flow[bytes]:
    delivery = parse_lease(read_acknowledge(body).lease, puller.consumer.name)
    return _settled(is_stored=(yield from acknowledge_delivery(delivery, clock=clock)))


def _fail(puller: PullConsumer, body: bytes, clock: Clock) -> Flow[bytes]:
    report = read_fail(body)
    is_stored = yield from fail_delivery(
        parse_lease(report.lease, puller.consumer.name),
        report.error,
        after_s=report.retry_after_seconds,
        is_last=report.dead,
        retry=puller.retry,
        clock=clock,
    )
    return _settled(is_stored=is_stored)


# The paths, and the answers to a POST.
ROUTES: Final[Mapping[str, Callable[[PullConsumer, bytes, Clock], Flow[bytes]]]] = {
    "/events/claim": _claim,
    "/events/acknowledge": _acknowledge,
    "/events/fail": _fail,
}


def _settled(*, is_stored: bool) -> bytes:
    if not is_stored:
        text = "the delivery has another lease, or has ended: drop this lease, and go on with the next claim"
        raise HttpRefused(409, "lease_lost", text)
    return write_json({})


def _refusal(
    status: int, error: errors.IncomingPaymentsError, description: str, details: Mapping[str, object]
) -> Response:
    headers: Headers = (*_HEADERS, _RETRY_AFTER) if status == 503 else _HEADERS
    return Response(status, headers, write_error(error.code, description, details), error)
