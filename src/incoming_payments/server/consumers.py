"""`incoming-payments consumers`, `enable-consumer`, `disable-consumer` and `remove-consumer`."""

import shlex
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

from incoming_payments.domain.feed import ConsumerState
from incoming_payments.errors import ConfigurationError, IncomingPaymentsError
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.server.config.settings import Settings
from incoming_payments.server.database import is_served, opened
from incoming_payments.server.payments import time_text
from incoming_payments.server.report import Row, print_json, print_table
from incoming_payments.service import IncomingPayments

if TYPE_CHECKING:
    from incoming_payments.server.database import Store

_COLUMNS: Final = ("name", "state", "oldestDueAt", "failingSince", "disabledAt", "kinds", "walletAddresses")


def consumers(settings: Settings, *, as_json: bool) -> int:
    """Print the consumers of the database, and return the exit status.

    Raises `ConfigurationError` when the database cannot be opened, and `StoreError` when it fails.
    """
    with opened(settings, "to read") as store:
        service = _service(settings, store)
        rows = [_row(state, service.clock()) for state in service.consumers()]
    if as_json:
        print_json(rows)
    else:
        print_table(f"{len(rows)} consumers", _COLUMNS, rows)
    return 0


def enable(settings: Settings, *, consumer: str, skip: bool, as_json: bool) -> int:
    """Enable a consumer, and return the exit status. If `skip` is true, drop what waits.

    Raises the errors of `consumers`, `InvalidValue` for text that is no name of a consumer, and `ConsumerNotFound`.
    """
    with opened(settings, "to write") as store:
        _service(settings, store).enable(consumer, skip=skip)
    dropped = "The deliveries that waited are dropped." if skip else "It continues where it stopped."
    _print(consumer, "enabled", f"{consumer} is enabled. {dropped}", as_json=as_json)
    return 0


def disable(settings: Settings, *, consumer: str, as_json: bool) -> int:
    """Disable a consumer, and return the exit status. Raises the errors of `enable`."""
    with opened(settings, "to write") as store:
        _service(settings, store).disable(consumer)
    text = f"{consumer} is disabled. Its deliveries wait until you enable it again."
    _print(consumer, "disabled", text, as_json=as_json)
    return 0


def remove(settings: Settings, *, consumer: str, as_json: bool) -> int:
    """Remove a consumer, and return the exit status.

    Raises the errors of `enable`, and `ConfigurationError` while the configuration names the consumer.
    """
    if consumer in _configured(settings):
        text = (
            f"the configuration has a [[webhooks]] or [[consumer]] table with the name {consumer}: remove the table, "
            "restart serve, and repeat the command"
        )
        raise ConfigurationError(text, setting="webhooks")
    with opened(settings, "to write") as store:
        _service(settings, store).remove_consumer(consumer)
    _print(consumer, "removed", f"{consumer} and its deliveries are removed. The payments stay.", as_json=as_json)
    return 0


def unused(settings: Settings) -> Iterator[str]:
    """Yield a warning for each consumer in the database that the configuration does not name."""
    with opened(settings, "to read") as store:
        names = [state.consumer.name for state in store.feed.consumers()]
    for name in names:
        if name not in _configured(settings):
            command = f"incoming-payments remove-consumer {name} --config {shlex.quote(str(settings.path))}"
            yield (
                f"the database keeps deliveries for the consumer {name}, which no [[webhooks]] and no [[consumer]] "
                f"names: unless a relay of your own has this name, remove it with `{command}`"
            )


def unused_while_served(settings: Settings) -> list[str]:
    """Return the warnings of `unused`, or an empty list if no process has the SQLite file open.

    Without such a process, the file may have an older version, and opening it would upgrade it.
    """
    try:
        if not is_served(settings):
            return []
        return list(unused(settings))
    except (OSError, IncomingPaymentsError) as error:
        return [f"the consumers in the database were not checked: {error}"]


def _configured(settings: Settings) -> set[str]:
    """Return the names of the consumers for which `serve` has a setting."""
    return {table.name for table in settings.webhooks} | {table.name for table in settings.given.consumer}


def _service(settings: Settings, store: "Store") -> IncomingPayments:
    return IncomingPayments(policy=settings.policy, ports=Ports(store=store, feed=store.feed))


def _print(consumer: str, state: str, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": consumer, "state": state})
    else:
        print(text)


def _row(state: ConsumerState, now: datetime) -> Row:
    consumer, health = state.consumer, state.health
    return {
        "name": consumer.name,
        "state": _state(state, now),
        "oldestDueAt": time_text(state.oldest_due_at),
        "failingSince": time_text(health.failing_since),
        "disabledAt": time_text(health.disabled_at),
        "kinds": None if consumer.kinds is None else sorted(consumer.kinds),
        "walletAddresses": None if consumer.wallet_addresses is None else sorted(consumer.wallet_addresses),
    }


def _state(state: ConsumerState, now: datetime) -> str:
    if state.health.disabled_at is not None:
        return "disabled"
    if not state.is_ready:
        return "registering"
    return "down" if state.health.is_down(state.consumer, now) else "ready"
