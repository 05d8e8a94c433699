"""A process that runs calls of a store on a failing disk, one for each line of its standard input.

    python -m campaigns.disk.caller DATABASE [fork]

The lines are `create`, `credit PAYMENT NAME`, `read PAYMENT` and `nonce KEY`. It answers each with one line: `ok` and
the result, or the name of the error. It ends when its input ends. With `fork`, it only opens the store, and a child of
its own answers each line. It answers `killed` for a child that was killed.
"""

import os
import sys
from datetime import timedelta

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import NOW
from incoming_payments.testing.steps import create, credit


def answer(store: SqliteStore, command: str, *arguments: str) -> object:
    """Return the result of one call."""
    if command == "create":
        return create(store)
    if command == "credit":
        return credit(store, PaymentId(arguments[0]), arguments[1], 1).received.value
    if command == "read":
        return store.load(PaymentId(arguments[0])).received.value
    return store.nonces.use(arguments[0] * 64, NOW + timedelta(seconds=60), NOW)


def answer_line(store: SqliteStore, line: str) -> None:
    """Run the call of one line, and print the answer."""
    try:
        print("ok", answer(store, *line.split()), flush=True)
    except IncomingPaymentsError as error:
        print(type(error).__name__, flush=True)


def main() -> None:
    """Open the store, and answer each line."""
    try:
        store = SqliteStore(sys.argv[1])
    except IncomingPaymentsError as error:
        print(type(error).__name__, flush=True)
        return
    print("ok open", flush=True)
    for line in sys.stdin:
        if "fork" not in sys.argv:
            answer_line(store, line)
            continue
        child = os.fork()
        if child == 0:
            answer_line(store, line)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            print("killed", flush=True)


if __name__ == "__main__":
    main()
