"""`incoming-payments dead-letters` and `redeliver`: the deliveries of events that have failed."""

import re
from collections.abc import Iterator
from typing import Final

from incoming_payments.domain.feed import ConsumerName, DeliveryRecord, consumer_name
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import DELIVERIES_CLAIMED_MAX
from incoming_payments.ports import Feed
from incoming_payments.ports.clock import utc_now
from incoming_payments.server.config.settings import Settings
from incoming_payments.server.database import opened
from incoming_payments.server.payments import DELIVERY, delivery_row
from incoming_payments.server.report import print_json, print_table

_DELIVERY: Final = re.compile(r"([0-9a-f-]{36})_([1-9][0-9]{0,17})_[1-9][0-9]{0,17}")


def dead_letters(settings: Settings, *, consumer: str | None, as_json: bool) -> int:
    """Print the dead letters of a consumer, or of all consumers, oldest first, and return the exit status.

    Raises `ConsumerNotFound`, `ConfigurationError` when the database cannot be opened, and `StoreError` when it fails.
    """
    with opened(settings, "to read") as store:
        names = [state.consumer.name for state in store.feed.consumers()]
        wanted = names if consumer is None else [consumer_name(consumer)]
        rows = [delivery_row(letter) for name in wanted for letter in _letters(store.feed, name)]
    if as_json:
        print_json(rows)
    else:
        print_table(f"{len(rows)} dead letters", DELIVERY, rows)
    return 0


def redeliver(settings: Settings, *, consumer: str, delivery: str | None, as_json: bool) -> int:
    """Send a dead letter again, or all dead letters of the consumer if `delivery` is `None`. Return the exit status.

    Raises the errors of `dead_letters`. Raises `InvalidValue` when `delivery` is not the id of a delivery, and
    `DeliveryNotFound` when the consumer has no dead letter with this id.
    """
    name = consumer_name(consumer)
    one = None if delivery is None else _place(delivery)
    with opened(settings, "to read") as store:
        letters = _letters(store.feed, name)
        places = [(letter.payment_id, letter.first_version) for letter in letters] if one is None else [one]
        for payment, first_version in places:
            store.feed.redeliver(name, payment, first_version, utc_now())
    if as_json:
        print_json({"consumer": name, "redelivered": len(places)})
    else:
        print(f"{len(places)} deliveries of {name} are due again. A relay of this consumer sends them.")
    return 0


def _letters(feed: Feed, name: ConsumerName) -> Iterator[DeliveryRecord]:
    last: DeliveryRecord | None = None
    while page := feed.dead_letters(name, last, DELIVERIES_CLAIMED_MAX):
        yield from page
        last = page[-1]


def _place(delivery: str) -> tuple[PaymentId, int]:
    found = _DELIVERY.fullmatch(delivery)
    if found is None:
        text = f"{delivery!r} is no id of a delivery: give an id that `incoming-payments dead-letters` shows"
        raise InvalidValue(text, member="delivery")
    return PaymentId(found[1]), int(found[2])
