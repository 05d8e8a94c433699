"""The arrivals at the consumers of the feed: the files with them, and their comparison with the stored events."""

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from incoming_payments.domain.feed import Consumer

Arrival = tuple[str, str]  # the id of a delivery, and its bytes as text
Facts = list[str | int | None]  # kind, total and credit id
Read = Callable[[str], dict[str, Facts]]  # returns the facts of each event in the bytes of a delivery, by its id


class Record:
    """The file of the arrivals at one consumer. Several processes may write to it."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = os.open(folder / f"{name}.arrivals", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, delivery: str, payload: bytes) -> None:
        """Write the arrival to the disk."""
        os.write(self._file, json.dumps([delivery, payload.decode()]).encode() + b"\n")
        os.fsync(self._file)


def arrivals_of(folder: Path, name: str) -> list[Arrival]:
    """Return the arrivals at a consumer, in order."""
    lines = (folder / f"{name}.arrivals").read_text("utf-8").splitlines()
    return [(id, payload) for id, payload in map(json.loads, lines)]


def stored_events(database: Path) -> dict[str, Facts]:
    """Return the facts of all stored events by their ids."""
    query = "SELECT payment_id, version, kind, received_amount, credit_id FROM events"
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(query).fetchall()
    return {f"{id}_{version}": [kind, int(received), credit] for id, version, kind, received, credit in rows}


def violations_of(
    consumer: Consumer,
    arrivals: Sequence[Arrival],
    stored: dict[str, Facts],
    *,
    read: Read = json.loads,
    late: Collection[str] = (),
) -> Iterator[str]:
    """Yield the differences between the arrivals at `consumer` and the stored events.

    The deliveries `late` are dead letters that may never have reached the consumer before they were sent again. So
    they may arrive after later events of their payments.
    """
    payloads: dict[str, str] = {}
    deliveries = defaultdict[str, set[str]](set)  # the deliveries that have the event
    versions = defaultdict[str, list[int]](list)  # the first arrivals of each payment
    for delivery, payload in arrivals:
        if payloads.setdefault(delivery, payload) != payload:
            yield f"a duplicate has other bytes: {delivery}"
        for event, facts in read(payload).items():
            if stored.get(event) != facts:
                yield f"the event was invented: {event}"
            payment, _, version = event.rpartition("_")
            if event not in deliveries and delivery not in late:
                versions[payment].append(int(version))
            deliveries[event].add(delivery)
    kinds = consumer.kinds
    wanted = {event for event, facts in stored.items() if kinds is None or facts[0] in kinds}
    yield from (f"the event never arrived: {event}" for event in sorted(wanted - set(deliveries)))
    yield from (f"the event is excluded: {event}" for event in sorted(set(deliveries) - wanted))
    yield from (f"two deliveries have the event: {event}" for event, found in deliveries.items() if len(found) > 1)
    yield from (f"first arrivals are not in order: {id}" for id, found in versions.items() if found != sorted(found))
