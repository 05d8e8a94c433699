"""Credit a payment from several threads on a disk with random sync failures, and repeat refused credits.

    python -m campaigns.disk.worker DATABASE NAME FIRST COUNT

Each acknowledged credit is a line in the file `acknowledged` beside the database, written after the store's answer.
"""

import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from campaigns.disk.faults import STOPPED
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import PaymentExists, StoreError, StoreStopped
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.steps import credit

THREADS: Final = 4
ATTEMPTS_MAX: Final = 3


class Worker:
    """Credits the only payment of the database, and records the acknowledged credits."""

    def __init__(self, path: Path, name: str) -> None:
        self.stopped = False
        self._name = name
        self._acknowledged = os.open(path.with_name("acknowledged"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def credit_all(self, store: SqliteStore, first: int, count: int) -> None:
        """Credit from all threads."""
        id = self._payment(store)
        threads = [
            threading.Thread(target=self._credit, args=(store, id, range(first + n, first + count, THREADS)))
            for n in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _payment(self, store: SqliteStore) -> PaymentId:
        # Each process inserts the same payment. A look-up would open a reading connection, and with one open SQLite
        # recovers no log.
        creation = a_creation()
        with suppress(PaymentExists):
            store.insert(creation)
        return creation.answer.id

    def _credit(self, store: SqliteStore, id: PaymentId, numbers: range) -> None:
        for number in numbers:
            for _ in range(ATTEMPTS_MAX):
                try:
                    credit(store, id, f"{self._name}-{number}", 1)
                except StoreError as error:
                    self.stopped |= isinstance(error, StoreStopped)
                else:
                    os.write(self._acknowledged, f"{self._name}-{number}\n".encode())
                    break


def main() -> int:
    """Credit until everything is acknowledged or the store stops."""
    path, name, first, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    worker = Worker(path, name)
    try:
        with SqliteStore(path) as store:
            worker.credit_all(store, first, count)
    except StoreError:
        return STOPPED
    return STOPPED if worker.stopped else 0


if __name__ == "__main__":
    sys.exit(main())
