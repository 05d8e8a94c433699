"""`incoming-payments serve`: the service on uvicorn, in one process or more."""

import gc
import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import asdict

from incoming_payments.errors import ConfigurationError, StoreStopped
from incoming_payments.flows.machinery.ports import AsyncPorts
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.limits import (
    BACKLOG_CONNECTIONS_MAX,
    KEEP_ALIVE_S_MAX,
    SHUTDOWN_S_MAX,
)
from incoming_payments.observers.log import LogEvent, log_event
from incoming_payments.ports import AsyncQuotas, Observer
from incoming_payments.server.access_log import with_access_log
from incoming_payments.server.background import Task, beating, relaying, sweeping, with_tasks
from incoming_payments.server.config.settings import Settings
from incoming_payments.server.config.tables import QuotasTable
from incoming_payments.server.connections import Connections
from incoming_payments.server.consumers import unused
from incoming_payments.server.database import store_for_workers
from incoming_payments.server.drain import Drain, with_drain
from incoming_payments.server.fixed_paths import Application, with_document, with_health
from incoming_payments.server.listeners import Listeners, open_listeners
from incoming_payments.server.metrics import Metrics
from incoming_payments.server.output import log_to_stderr, say
from incoming_payments.server.pull import registering, with_pull, with_pull_listeners
from incoming_payments.server.reload import ReloadableApplication, hangups
from incoming_payments.server.workers import hold_signals, run_workers
from incoming_payments.service import AsyncIncomingPayments

if TYPE_CHECKING:
    import uvicorn

    from incoming_payments.server.database import AsyncStore

logger = logging.getLogger(__name__)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit status. SIGTERM begins a drain (see `Drain`).

    On SIGHUP, the service reads the configuration again (see `ReloadableApplication`).

    Raises `ConfigurationError` when the address or the database cannot be used or uvicorn is not installed,
    `StoreUnavailable` when the database does not answer at the start, and `StoreStopped` when the disk of a SQLite
    database fails or its files change.
    """
    try:
        import httptools  # noqa: F401 - uvicorn would import it later, with a worse message
        import uvicorn
    except ImportError:
        raise ConfigurationError(
            "serve needs uvicorn and httptools: run pip install 'incoming-payments[serve]'"
        ) from None
    log_to_stderr(settings.given.log.format)
    for warning in settings.warnings:
        _warn(warning, settings)
    stops: list[StoreStopped] = []

    def on_stop(error: StoreStopped) -> None:
        stops.append(error)
        server.should_exit = True

    signals = hangups()
    given = settings.given
    connections = Connections(given)  # a wrong setting causes an error before any file is created
    with (
        open_listeners(given.listen.host, given.listen.port, given.listen.workers) as first,
        with_pull_listeners(first, given) as listeners,
    ):
        metrics = Metrics.of(given.listen)
        observer = None if metrics is None else metrics.observer
        store = store_for_workers(settings, on_stop, observer)
        for warning in unused(settings):
            _warn(warning, settings)
        # The quotas are made once, so that they keep their counts when the settings change.
        quotas = None if given.quotas == QuotasTable() else store.quotas(**asdict(given.quotas))
        application = ReloadableApplication(settings, lambda new: build(new, store, connections, observer, quotas))
        ports = AsyncPorts(store=store, feed=store.feed, erasure=store.erasure)
        own = AsyncIncomingPayments(policy=settings.policy, ports=ports, observer=observer)
        tasks = list(_tasks(settings, own, store))
        answering = with_pull(application, given, settings.pull, own)
        logged = with_access_log(answering) if given.log.access else answering
        server = uvicorn.Server(http_config(logged))

        def stop(*_: object) -> None:
            # uvicorn replaces these handlers while it runs, and raises the signal again after it has stopped.
            server.should_exit = True

        drain = Drain(given.listen.drain_s, stop)

        def work(number: int, sockets: Listeners, beat: Callable[[], None]) -> int:
            if metrics is not None:
                metrics.serve(number)
            application.reload_on(signals)
            server.config.app = with_tasks(with_drain(logged, drain), drain.install, beating(beat), *tasks)
            server.run(sockets=list(sockets))
            return exit_status(stops)

        hold_signals()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
        _announce(settings)
        # Garbage collection skips the loaded modules. This saves 10 to 17 ms for each full collection (packets, p99),
        # and the workers share the memory of these modules.
        gc.freeze()
        return run_workers(listeners, work, application.reload, drain_s=given.listen.drain_s)


def _tasks(settings: Settings, service: AsyncIncomingPayments, store: "AsyncStore") -> Iterator[Task]:
    """Yield the background tasks of each worker."""
    yield sweeping(service, store.feed, settings.given.sweep)
    if settings.webhooks:
        yield relaying(service, settings.webhooks)
    if settings.pull is not None:
        yield registering(settings.pull, service)


def exit_status(stops: Sequence[StoreStopped]) -> int:
    """Return 0, or raise the error that stopped the store, so that a supervisor sees a status of 1."""
    for error in stops:
        raise error
    return 0


def http_config(application: Application) -> "uvicorn.Config":
    """Return the uvicorn configuration for `application`.

    uvicorn's `limit_concurrency` is not set, because it counts idle connections too, and its response differs from the
    error format of this service. The store refuses requests past `STORE_QUEUE_MAX`, and the proxy limits the
    connections of each client.
    """
    import uvicorn

    from incoming_payments.server.protocol import Protocol

    return uvicorn.Config(
        application,
        http=Protocol,
        # Use uvloop if it is installed. A signed get then takes 14 % less processor time (docs/reports/speed.md).
        loop="auto",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the service never trusts X-Forwarded-*
        server_header=False,
        backlog=BACKLOG_CONNECTIONS_MAX,
        timeout_keep_alive=KEEP_ALIVE_S_MAX,
        timeout_graceful_shutdown=SHUTDOWN_S_MAX,
    )


def build(
    settings: Settings,
    store: "AsyncStore",
    connections: Connections,
    observer: Observer | None = None,
    quotas: AsyncQuotas | None = None,
) -> Application:
    """Return the ASGI application for `settings` on an open `store`.

    The application closes the store and the `connections` when the server stops. If `connections` has an introspector,
    the service ignores the tokens in `settings`.
    """

    async def close() -> None:
        await connections.aclose()
        await store.close()

    listen, kept = settings.given.listen, settings.given.wallet_addresses
    ports = AsyncPorts(
        store=store,
        wallet_addresses=settings.wallet_addresses if kept is None else connections.wallet_addresses(kept),
        introspector=connections.introspector or settings.introspector,
        client_keys=connections.client_keys,
        nonces=store.nonces,
        methods=settings.receiver.methods,
        quotas=quotas,
    )
    service = AsyncIncomingPayments(
        policy=settings.policy, ports=ports, receiver=settings.receiver, packets=settings.packets, observer=observer
    )
    application = AsgiApplication(
        service, mount=listen.mount, explain_refusals=settings.given.log.explain_signatures, on_shutdown=close
    )
    described = with_document(application, settings.policy, listen.mount)
    return with_health(described, service) if listen.health else described


def _warn(text: str, settings: Settings) -> None:
    """Write a warning about the settings to the terminal. If programs read the log, write a log line instead."""
    if settings.given.log.format == "text":
        say(f"incoming-payments: warning: {text}", sys.stderr)
    else:
        log_event(logger, logging.WARNING, LogEvent.CONFIGURATION_WARNING, "%s", text)


def _announce(settings: Settings) -> None:
    base_url, listen = settings.policy.base_url, settings.given.listen
    lines = [f"Serving {base_url}/incoming-payments on {listen.host} port {listen.port}."]
    if settings.packets is not None:
        lines.append(f"Peers send ILP packets to {base_url}{settings.packets.path}.")
    if settings.pull is not None:
        lines.append(f"Consumers claim events on {listen.host} port {settings.given.events.port}.")
    lines.append(f"Payments are stored in {settings.given.database}. Press Ctrl-C to stop.")
    say("\n".join(lines), sys.stdout)
