"""A worker process with a store and some clients, which create, pay, read and complete payments.

    python -m campaigns.postgres.worker STORE CONNINFO FOLDER NAME        with PYTHONPATH=tests

All clients of all workers call about the same few payments, which change every `GENERATION_S` seconds. A client whose
call has an unknown outcome repeats it until it knows the outcome. Clients pay by calls of the store, and by STREAM
packets to `receive_packet`, which a client repeats byte by byte, like a connector. A relay delivers the events of all
workers. When the file `END` exists, the clients settle the calls that have no outcome yet, and the process ends.
"""

import base64
import random
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

from campaigns.postgres.records import SUFFIX, UNKNOWN, ClientRecord
from campaigns.postgres.relays import relaying
from campaigns.postgres.stores import STORES
from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import (
    PAYMENT_ID_RANDOM_BYTES,
    STREAM_CREDITS,
    CreditId,
    IncomingPayment,
    PaymentId,
    new_payment_id,
)
from incoming_payments.domain.transitions import State
from incoming_payments.errors import PaymentCompleted, PaymentNotFound, StoreUnavailable
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.ilp.packet import ErrorCode, Fulfill, encode
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp.stream import StreamMaxMoney, condition_of
from incoming_payments.ports import PaymentStore
from incoming_payments.testing.replies import decode_reply
from incoming_payments.testing.values import NOW, a_creation, crediting
from kits.payment_model import COMPLETED, NOT_FOUND, Action, Answer, Complete, Create, Credit, Get, Packet, View
from kits.stream_kit import METHODS, PEER, Sender

END: Final = "end"
CLIENTS: Final = 2  # of each worker
GENERATION_S: Final = 2.0
KEYS: Final = 4  # payments of a generation
AMOUNT_MAX: Final = 10**9  # no two sets of credits have the same sum, so that the checker is fast
_LIMIT: Final = 20 * AMOUNT_MAX  # some forty credits complete the payment
_PAUSE_S_MAX: Final = 0.02
_RETRY_S: Final = 0.02
_RECEIVER: Final = Receiver(METHODS)
_REFUSED: Final = {ErrorCode.INTERNAL_ERROR: UNKNOWN, ErrorCode.CANNOT_RECEIVE: COMPLETED}


class Client:
    """One client, which continues with its record."""

    def __init__(self, store: PaymentStore, path: Path, end: Path) -> None:
        self._store = store
        self._record = ClientRecord(path)
        self._end = end
        self._name = path.stem
        self._number = len(self._record.calls)
        self._payments: dict[str, str] = {}  # the id of the payment under each key

    def run(self) -> None:
        """Settle the credits of an earlier process, and make calls until the end."""
        settled = {call.action for call in self._record.calls if call.is_settled}
        pending = dict.fromkeys(
            (call.key, call.action)
            for call in self._record.calls
            if isinstance(call.action, Credit) and call.action not in settled
        )
        for key, action in pending:
            self._call(key, action)
        while not self._end.exists():
            self._step(f"order-{int(time.monotonic() / GENERATION_S)}-{random.randrange(KEYS)}")
            time.sleep(random.uniform(0, _PAUSE_S_MAX))

    def _step(self, key: str) -> None:
        """Make one call about the payment under `key`."""
        payment = self._payments.get(key)
        choice = random.random()
        if payment is None or choice < 0.05:
            id = new_payment_id(NOW, secrets.token_bytes(PAYMENT_ID_RANDOM_BYTES))
            limit = _LIMIT if key.endswith("0") else None
            self._payments[key] = str(self._call(key, Create(id, limit)))
        elif choice < 0.3:
            self._call(key, Get(payment))
        elif choice < 0.32 and key.endswith("1"):
            self._call(key, Complete(payment))
        elif choice < 0.65 and not key.endswith("0"):  # a packet that exceeds the limit would have another refusal
            self._call(key, _new_packet(payment))
        else:
            self._number += 1
            self._call(key, Credit(payment, f"{self._name}-{self._number}", random.randint(1, AMOUNT_MAX)))

    def _call(self, key: str, action: Action) -> Answer:
        """Make a call until its outcome is known."""
        while True:
            self._record.called(key, action)
            answer = self._answer(key, action)
            self._record.answered(answer)
            if answer != UNKNOWN:
                return answer
            time.sleep(_RETRY_S)

    def _answer(self, key: str, action: Action) -> Answer:
        try:
            return self._act(key, action)
        except StoreUnavailable as error:
            print(f"{time.monotonic():.3f} {self._name}: {error}", flush=True)
            return UNKNOWN
        except PaymentCompleted:
            return COMPLETED
        except PaymentNotFound:
            return NOT_FOUND

    def _act(self, key: str, action: Action) -> Answer:
        id = PaymentId(action.payment)
        if isinstance(action, Create):
            earlier = self._store.insert(a_creation(id=id, limit=action.limit, key=key))
            return action.payment if earlier is None else earlier.payment
        if isinstance(action, Packet):
            return self._send(action)
        if isinstance(action, Credit):
            return self._store.update(id, crediting(action.id, action.amount), CreditId(action.id)).received.value
        if isinstance(action, Complete):
            return _view(self._store.update(id, partial(lifecycle.complete, now=NOW)))
        return _view(self._store.load(id))

    def _send(self, action: Packet) -> Answer:
        """Send a packet, check the Fulfill, and return the total that it tells."""
        sender = _sender(action.payment)
        prepare = sender.prepare(action.amount, sequence=action.sequence)
        answered = receive_packet(encode(prepare), peer=PEER, receiver=_RECEIVER, clock=lambda: NOW)
        reply = decode_reply(run(answered, Ports(store=self._store)))
        if isinstance(reply, Fulfill):
            assert condition_of(reply.fulfillment) == prepare.condition
            [total] = [frame.total_received for frame in sender.read(reply).frames if isinstance(frame, StreamMaxMoney)]
            return total
        assert reply.code in _REFUSED, reply
        return _REFUSED[ErrorCode(reply.code)]


def _sender(payment: str) -> Sender:
    return Sender(METHODS.derive(PaymentId(payment)))


def _new_packet(payment: str) -> Packet:
    """Return a packet with a sequence that no other client uses."""
    sequence, amount = random.randrange(1, 1 << 31), random.randint(1, AMOUNT_MAX)
    condition = _sender(payment).prepare(amount, sequence=sequence).condition
    id = f"{STREAM_CREDITS}{sequence:016x}:{base64.b64encode(condition).decode('ascii')}"
    return Packet(payment, id, amount, sequence)


def _view(payment: IncomingPayment) -> View:
    return View(payment.received.value, lifecycle.state_of(payment, NOW) is State.COMPLETED)


def _open(store: str, conninfo: str) -> Any:
    """Open the store, also when the server is not there yet."""
    while True:
        try:
            return STORES[store](conninfo)
        except StoreUnavailable:
            time.sleep(_RETRY_S)


def main() -> None:
    """Run the clients of one worker."""
    name, conninfo, folder, prefix = sys.argv[1:]
    store = _open(name, conninfo)
    paths = [Path(folder) / f"{prefix}-{number}{SUFFIX}" for number in range(CLIENTS)]
    clients = [Client(store, path, Path(folder) / END) for path in paths]
    with closing(store), relaying(name, conninfo, Path(folder)), ThreadPoolExecutor(CLIENTS) as executor:
        for done in [executor.submit(client.run) for client in clients]:
            done.result()


if __name__ == "__main__":
    main()
