"""Ten processes that create a payment under one idempotency key, and are killed at random.

    python -m campaigns.crash.orders FOLDER SEED ROUNDS        with PYTHONPATH=tests

Each round has a key of its own. Its processes share a SQLite file, as the worker processes of a host do. Some are
killed before their first call has ended, some between two calls. If one is killed in a sync that the others need, their
stores stop, and the processes of the next round open the file again. At the end, each key must have one payment, and
every answer must have named it.
"""

import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from contextlib import closing
from pathlib import Path
from typing import Final

from incoming_payments import (
    Asset,
    DerivedMethods,
    IncomingPayments,
    Ports,
    ServicePolicy,
    WalletAddress,
    WalletAddressUrl,
)
from incoming_payments.errors import StoreStopped
from incoming_payments.stores.sqlite import SqliteStore

PROCESSES: Final = 10
CALLS: Final = 20  # of one process: the first may create the payment, and the others repeat the call
_SECONDS_MAX: Final = 0.12  # until a process is killed: it needs about 0.1 for its calls
_STOPPED: Final = 2  # the exit status after a stop: another process was killed in a sync that all of them need
_ALICE: Final = "https://bank.example/alice"


class _Bank:
    def find(self, url: WalletAddressUrl) -> WalletAddress:
        return WalletAddress(url, Asset("USD", 2), "https://auth.bank.example")


def _service(store: SqliteStore) -> IncomingPayments:
    policy = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
    methods = DerivedMethods("test.bank", [bytes(32)])
    return IncomingPayments(policy=policy, ports=Ports(store=store, wallet_addresses=_Bank(), methods=methods))


def _create(folder: Path, key: str, record: int) -> None:
    """Create a payment under `key` several times, and write each answer to `record`."""
    with SqliteStore(folder / "payments.db") as store:
        service = _service(store)
        for _ in range(CALLS):
            payment = service.create(wallet_address=_ALICE, metadata={"order": key}, idempotency_key=key)
            os.write(record, f"{key} {payment.id}\n".encode())


def _run_round(folder: Path, key: str, record: int, choose: random.Random) -> int:
    """Fork the processes of one round, kill them at random, and return how many were killed."""
    children = []
    for _ in range(PROCESSES):
        child = os.fork()
        if not child:
            status = 1
            try:
                _create(folder, key, record)
                status = 0
            except StoreStopped:
                status = _STOPPED
            except BaseException:  # noqa: BLE001 - `os._exit` would lose it
                traceback.print_exc()
            finally:
                os._exit(status)
        children.append((choose.uniform(0, _SECONDS_MAX), child))
    begin_s, killed = time.monotonic(), 0
    for at_s, child in sorted(children):
        time.sleep(max(0.0, begin_s + at_s - time.monotonic()))
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in {0, _STOPPED, -signal.SIGKILL}, status
        killed += status == -signal.SIGKILL
    return killed


def main(folder: Path, seed: int, rounds: int) -> None:
    """Run all rounds, compare the answers with the database, and print how many processes were killed and answered."""
    choose, keys = random.Random(seed), [f"order-{number}" for number in range(rounds)]
    SqliteStore(folder / "payments.db").close()
    record = os.open(folder / "answers", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    killed = sum(_run_round(folder, key, record, choose) for key in keys)
    answers = [tuple(line.split()) for line in (folder / "answers").read_text("ascii").splitlines()]
    with SqliteStore(folder / "payments.db") as store:  # a client without an answer repeats its request
        for key in keys:
            payment = _service(store).create(wallet_address=_ALICE, metadata={"order": key}, idempotency_key=key)
            answers.append((key, payment.id))
    with closing(sqlite3.connect(folder / "payments.db")) as connection:
        stored = connection.execute(
            "SELECT text, id FROM payments JOIN metadata ON number = metadata_number"
        ).fetchall()
        events = connection.execute("SELECT count(*) FROM events").fetchone()[0]
    assert len(set(answers)) == rounds, f"a key was answered with two payments: {sorted(set(answers))}"
    assert sorted(stored) == sorted((f'{{"order":"{key}"}}', id) for key, id in set(answers)), stored
    assert events == rounds
    print(killed, len(answers) - rounds)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
