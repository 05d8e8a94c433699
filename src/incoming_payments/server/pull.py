"""The feed of events over HTTP, which has a port of its own."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from incoming_payments.endpoints.open_payments import Response, http_refusal, internal_error
from incoming_payments.endpoints.pull import PullConsumer, PullPolicy, answer_pull
from incoming_payments.errors import HttpRefused
from incoming_payments.hosts.asgi import Receive, Scope, Send, read_request, send_fixed
from incoming_payments.hosts.host_log import HostLog
from incoming_payments.limits import PULL_BODY_BYTES_MAX, RELAY_TROUBLE_S_MIN
from incoming_payments.observers.log import LineLimit, LogEvent, log_event
from incoming_payments.server.background import Task
from incoming_payments.server.config.tables import Configuration
from incoming_payments.server.fixed_paths import Application, with_pull_document
from incoming_payments.server.listeners import Listeners, open_listeners
from incoming_payments.service import AsyncIncomingPayments

logger = logging.getLogger(__name__)


@contextmanager
def with_pull_listeners(listeners: Sequence[Listeners], given: Configuration) -> Iterator[Sequence[Listeners]]:
    """Add a listener on `events.port` to those of each worker, if there is such a port. Close them at the end."""
    port = given.events.port
    if port is None:
        yield listeners
        return
    with open_listeners(given.listen.host, port, len(listeners), setting="events.port") as opened:
        yield [(*first, *more) for first, more in zip(listeners, opened, strict=True)]


def with_pull(
    application: Application, given: Configuration, policy: PullPolicy | None, service: AsyncIncomingPayments
) -> Application:
    """Return `application`, in which the consumers of `policy` get the answers to the requests on `events.port`."""
    if policy is None:
        return application
    pulled, port = with_pull_document(pulling(policy, service)), given.events.port

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        # the port of the socket that accepted the connection, and not that of the header field Host
        is_pull = scope["type"] == "http" and (scope["server"] or ("", None))[1] == port
        await (pulled if is_pull else application)(scope, receive, send)

    return respond


def pulling(policy: PullPolicy, service: AsyncIncomingPayments) -> Application:
    """Return an application that answers the consumers of `policy` with the port `feed` of `service`."""
    log = HostLog(logger)

    async def answer(scope: Scope, receive: Receive) -> Response:
        try:
            request = await read_request(scope, receive, check=policy.consumer_of, bytes_max=PULL_BODY_BYTES_MAX)
            response = await service.run(answer_pull(request, policy=policy, clock=service.clock))
        except HttpRefused as error:
            return http_refusal(error)
        except Exception as error:  # noqa: BLE001 - it is logged
            log.failed(error)
            return internal_error()
        log.note(response)
        return response

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        await send_fixed(await answer(scope, receive), scope, send)

    return respond


def registering(policy: PullPolicy, service: AsyncIncomingPayments) -> Task:
    """Return a task that registers the consumers of `policy`. It may run in several processes."""

    async def run() -> None:
        await asyncio.gather(*(_register(puller, service) for puller in policy.consumers))

    return run


async def _register(puller: PullConsumer, service: AsyncIncomingPayments) -> None:
    """Register the consumer, one batch of its old events after the other. A failure is logged.

    Wait as long as the batch took, so that other updates can use the disk for half of the time.
    """
    loop, lines, name = asyncio.get_running_loop(), LineLimit(), puller.consumer.name
    is_ready = False
    while not is_ready:
        begin_s = loop.time()
        try:
            is_ready = bool(await service.require_feed().register(puller.consumer, puller.start, service.clock()))
            pause_s = loop.time() - begin_s
        except Exception as error:  # noqa: BLE001 - it is logged
            if lines.admits(logger, f"failed registrations of the consumer {name}"):
                text = "consumer %s is not registered yet: %s"
                log_event(logger, logging.WARNING, LogEvent.CONSUMER_UNREGISTERED, text, name, error)
            pause_s = RELAY_TROUBLE_S_MIN
        await asyncio.sleep(pause_s)
