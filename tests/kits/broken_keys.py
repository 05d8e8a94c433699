"""Stores on SQLite with one fault each in their idempotency keys, for the contract suite to detect."""

import sqlite3
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from attrs import evolve

from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import ClientId, IncomingPayment
from incoming_payments.errors import PaymentExists
from kits.reference_store import ReferenceStore

TICK = timedelta(microseconds=1)


class ForgetsKeys(ReferenceStore):
    """Stores the payment without its key."""

    def _write_key(self, connection: sqlite3.Connection, keyed: KeyedCreation) -> None:
        """Write nothing."""


class SharesKeys(ReferenceStore):
    """Looks a key up without its client."""

    def _creation(
        self, connection: sqlite3.Connection, client: ClientId, key: IdempotencyKey, now: datetime
    ) -> KeyedCreation | None:
        row = connection.execute("SELECT client FROM keys WHERE key = ?", (key,)).fetchone()
        return super()._creation(connection, client if row is None else row[0], key, now)


class IgnoresCaseOfKeys(ReferenceStore):
    """Compares keys without case."""

    def _creation(
        self, connection: sqlite3.Connection, client: ClientId, key: IdempotencyKey, now: datetime
    ) -> KeyedCreation | None:
        row = connection.execute("SELECT key FROM keys WHERE lower(key) = lower(?)", (key,)).fetchone()
        return super()._creation(connection, client, key if row is None else row[0], now)


class KeepsKeysForever(ReferenceStore):
    """Finds a key that has ended."""

    def _creation(
        self, connection: sqlite3.Connection, client: ClientId, key: IdempotencyKey, now: datetime
    ) -> KeyedCreation | None:
        return super()._creation(connection, client, key, min(now, datetime(2000, 1, 1, tzinfo=now.tzinfo)))


class EndsKeysEarly(ReferenceStore):
    """Does not find a key that ends now."""

    def _creation(
        self, connection: sqlite3.Connection, client: ClientId, key: IdempotencyKey, now: datetime
    ) -> KeyedCreation | None:
        return super()._creation(connection, client, key, now + TICK)


class RemovesAllKeys(ReferenceStore):
    """Removes keys that have not ended."""

    def _write_key(self, connection: sqlite3.Connection, keyed: KeyedCreation) -> None:
        if keyed.key.startswith("short"):
            connection.execute("DELETE FROM keys WHERE key LIKE 'long%'")
        super()._write_key(connection, keyed)


class ReplacesKeys(ReferenceStore):
    """Creates a second payment under a key that was used."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert, although the key was used."""
        if super().insert(decision) is not None:
            super().insert(evolve(decision, keyed=None))
        return None


class StoresBothPayments(ReferenceStore):
    """Returns the first payment of a key, but stores the second one too."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert in every case."""
        earlier = super().insert(decision)
        if earlier is not None:
            super().insert(evolve(decision, keyed=None))
        return earlier


class UsesKeysOfRefusedInserts(ReferenceStore):
    """Writes the key although the payment exists already."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert, and write the key after a refusal."""
        try:
            return super().insert(decision)
        except PaymentExists:
            if decision.keyed is not None:
                with self._transaction() as connection:
                    self._write_key(connection, decision.keyed)
            raise


class CommitsKeysFirst(ReferenceStore):
    """Commits the key before the payment."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Insert in two transactions."""
        if decision.keyed is None:
            return super().insert(decision)
        keyed, now = decision.keyed, decision.answer.created_at
        with self._transaction() as connection:
            earlier = self._creation(connection, keyed.client, keyed.key, now)
            if earlier is not None:
                return earlier
            self._write_key(connection, keyed)
        return super().insert(evolve(decision, keyed=None))


class CommitsKeysLater(ReferenceStore):
    """Commits the payment before the key."""

    def _write_key(self, connection: sqlite3.Connection, keyed: KeyedCreation) -> None:
        connection.execute("COMMIT")
        connection.execute("BEGIN IMMEDIATE")
        super()._write_key(connection, keyed)


class LooksUpBeforeTheLock(ReferenceStore):
    """Looks the key up in one transaction, and inserts in another."""

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Find, and then insert."""
        keyed = decision.keyed
        if keyed is not None:
            earlier = self.find_creation(keyed.client, keyed.key, decision.answer.created_at)
            if earlier is not None:
                return earlier
        super().insert(evolve(decision, keyed=None))
        if keyed is not None:
            with self._transaction() as connection:
                self._write_key(connection, keyed)
        return None


class LocksKeysInTheProcess(LooksUpBeforeTheLock):
    """Has a mutex of each object in place of a lock of the database."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._inserting = threading.Lock()

    def insert(self, decision: Decision[IncomingPayment]) -> KeyedCreation | None:
        """Find and insert with the mutex."""
        with self._inserting:
            return super().insert(decision)


class CachesKeys(ReferenceStore):
    """Remembers that a key was unknown."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._known: dict[tuple[str, str], KeyedCreation | None] = {}

    def find_creation(self, client: ClientId, key: IdempotencyKey, now: datetime) -> KeyedCreation | None:
        """Return the record from the cache, if the key was looked up before."""
        with suppress(KeyError):
            return self._known[client, key]
        return self._known.setdefault((client, key), super().find_creation(client, key, now))
