"""A relay in each worker, and the check that each event arrives at least once, in order, and as it was claimed.

A relay may send a delivery only when the commit of its claim is acknowledged, by both servers if there is a synchronous
standby. If it sent the delivery earlier, a failover could lose the claim. The consumer would then have an event that
the database lacks, or would get an event again in a delivery with other events. The check at the end finds both,
because the handlers write each arrival to a file.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from campaigns.crash.arrivals import Facts, Record, arrivals_of, violations_of
from campaigns.crash.feed import render
from campaigns.postgres.check import Violation
from incoming_payments import DerivedMethods, IncomingPayments, Ports, ServicePolicy
from incoming_payments.domain.feed import Consumer, Delivery, FeedEvent, Start, delivery_id
from incoming_payments.domain.retry import RetryPolicy
from incoming_payments.errors import StoreUnavailable
from incoming_payments.relay import Relay
from incoming_payments.stores.postgres import PostgresStore

CONSUMER: Final = Consumer(name="all")
EARLY: Final = "sends_early"  # workers with this store send deliveries before the commit
_CONNECTIONS: Final = 2
_PATIENCE_S: Final = 60.0
_EVENTS: Final = """
    SELECT payment_id::text, version, kind, received_amount::text, credit_id FROM incoming_payments.events
"""


@contextmanager
def relaying(store: str, conninfo: str, folder: Path) -> Iterator[None]:
    """Run a relay in a thread, even if the server does not answer yet."""
    with closing(_open(conninfo)) as own:
        relay = _relay(own, folder, is_early=store == EARLY)
        thread = threading.Thread(target=relay.run, daemon=True)
        thread.start()
        yield
        relay.stop()
        thread.join()


def check_arrivals(conninfo: str, folder: Path) -> tuple[int, Sequence[Violation]]:
    """Deliver the remaining events, and return the number of arrivals and the violations."""
    with closing(PostgresStore(conninfo)) as store, _relay(store, folder, is_early=False):
        end_s = time.monotonic() + _PATIENCE_S
        while store.feed.next_due(CONSUMER.name) is not None:
            assert time.monotonic() < end_s, "the last deliveries do not arrive"
            time.sleep(0.05)
        dead = store.feed.dead_letters(CONSUMER.name, None, 10)
    arrivals = arrivals_of(folder, CONSUMER.name)
    found = [
        *violations_of(CONSUMER, arrivals, _stored_events(conninfo)),
        *(f"{one.id} is a dead letter" for one in dead),
    ]
    return len(arrivals), [("each event arrives as it was claimed", text) for text in found]


def _relay(store: PostgresStore, folder: Path, *, is_early: bool) -> Relay:
    logging.disable()  # each failure is logged
    record = Record(folder, CONSUMER.name)
    policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    ports = Ports(store=store, methods=DerivedMethods("test.bank", [bytes(32)]), feed=store.feed)
    return IncomingPayments(policy=policy, ports=ports).relay(
        CONSUMER,
        _accept if is_early else partial(_note, record),
        render=partial(_note_and_render, record) if is_early else render,
        retry=RetryPolicy(first_s=0.05, factor=1, attempts=1000),
        attempt_s=0.5,
        lease_s=2,
        poll_s=0.05,
        start=Start.BEGINNING,
    )


def _note(record: Record, delivery: Delivery) -> None:
    record.note(delivery.id, delivery.payload)


def _note_and_render(record: Record, events: Sequence[FeedEvent]) -> bytes:
    """Send a delivery in the transaction of its claim."""
    payload = render(events)
    record.note(delivery_id(events[0].payment_id, events[0].version, events[-1].version), payload)
    return payload


def _accept(_: Delivery) -> None:
    """Do nothing more."""


def _open(conninfo: str) -> PostgresStore:
    while True:
        try:
            return PostgresStore(conninfo, connections=_CONNECTIONS)
        except StoreUnavailable:
            time.sleep(0.02)


def _stored_events(conninfo: str) -> dict[str, Facts]:
    with psycopg.connect(conninfo) as connection:
        rows = connection.execute(_EVENTS).fetchall()
    return {f"{id}_{version}": [kind, int(received), credit] for id, version, kind, received, credit in rows}
