"""The clients of a service that is killed. They repeat their requests until they get a final answer, and record both.

    python -m campaigns.crash.clients ROLE FOLDER RECORD SEED        with PYTHONPATH=tests

`ROLE` is `sender` (pays by STREAM packets over HTTP), `creator` (creates, lists and completes payments by signed HTTP
requests) or `banking` (credits money by `receive` on the database file). When the file `END` is in the folder, each
client finishes its requests and ends. A client that was killed is started again with the same record. It repeats each
request without a final answer, and continues. The banking client kills itself when its store has stopped: its last call
may be on the disk or not, and a repeat in a new process finds out.
"""

import base64
import http.client
import itertools
import os
import random
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from attrs import frozen

from campaigns.crash.records import (
    CALL,
    COMPLETE,
    CREATE,
    LIST,
    NO_ANSWER,
    ORDER,
    PACKET,
    RETRIED,
    STOPPED,
    ClientRecord,
    Reader,
    ReceivedAnswer,
    SentRequest,
    entries_in,
    pending,
)
from incoming_payments import Amount, Asset, Ports
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import IncomingPaymentsError, StoreStopped, StoreUnavailable
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive import receive
from incoming_payments.ilp import IlpAddress, StreamCredentials
from incoming_payments.ilp.packet import Fulfill, Reject, encode
from incoming_payments.server.config.settings import load_settings
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing.replies import decode_reply
from kits.processes import HttpClient
from kits.stream_kit import Sender

T = TypeVar("T")

IN_FLIGHT: Final = 3  # packets of one sender at a time
CREATED: Final = "created.record"  # the record that every sender reads
END: Final = "end"
USD: Final = Asset("USD", 2)
_PAUSE_S: Final = 0.01  # before the same request is sent again
_PACKETS_EXPIRE_AFTER: Final = timedelta(hours=1)  # so that no packet expires during the campaign
_COMPLETED_EVERY: Final = 3  # create requests, until the next complete request
_OPEN_MAX: Final = 6  # payments that are paid at a time: few, so that packets compete for them
_F08: Final = struct.Struct(">QQ")  # the amount that arrived, and the amount that remains


# --- paying ------------------------------------------------------------------------------------------


@frozen
class Payable:
    """A payment, as in the response to its creator."""

    id: str
    address: str
    secret: bytes

    def sender(self) -> Sender:
        """Return a STREAM sender for the payment."""
        return Sender(StreamCredentials(PaymentId(self.id), IlpAddress(self.address), self.secret))


class Payables:
    """The payments that one client believes to be open."""

    def __init__(self, path: Path) -> None:
        self._created = Reader(path)
        self._lock = threading.Lock()
        self._open: list[Payable] = []

    def some(self, choose: random.Random) -> Payable | None:
        """Return a random open payment, or None if there is none."""
        with self._lock:
            entries = self._created.new_entries()
            self._open += [
                _payable(one.details) for one in entries if isinstance(one, ReceivedAnswer) and one.answer == "created"
            ]
            return choose.choice(self._open[:_OPEN_MAX]) if self._open else None

    def drop(self, id: str) -> None:
        """Remove a payment that accepts no more money."""
        with self._lock:
            self._open = [one for one in self._open if one.id != id]


def _payable(details: dict[str, Any]) -> Payable:
    return Payable(details["payment"], details["address"], base64.urlsafe_b64decode(f"{details['secret']}="))


class PeerConnection:
    """A connection of a peer to the service. It is opened again after each failure."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/octet-stream"}
        self._connection: http.client.HTTPConnection | None = None

    def send(self, packet: bytes) -> Fulfill | Reject | None:
        """Send a packet and return the reply, or None if there was none."""
        if self._connection is None:
            self._connection = self._connect()
        try:
            self._connection.request("POST", "/ilp", packet, self._headers)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            return None
        assert response.status == 200, (response.status, body)
        return decode_reply(body)

    def close(self) -> None:
        """Close the connection if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        """Return a connection, once the service listens."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                connection.connect()
            except OSError:
                time.sleep(_PAUSE_S)
            else:
                return connection


def send_until_final(connection: PeerConnection, record: ClientRecord, request: SentRequest) -> tuple[str, bytes]:
    """Send a packet until it has its final answer, and return the answer and its data."""
    while True:
        reply = connection.send(bytes.fromhex(request.packet))
        answer = answer_in(request, reply)
        record.answered(request.key, answer)
        if reply is not None and answer not in RETRIED:
            return answer, reply.data
        time.sleep(_PAUSE_S)


def answer_in(request: SentRequest, reply: Fulfill | Reject | None) -> str:
    """Return the answer in a reply as one word. A fulfillment must be that of the packet."""
    if reply is None:
        return NO_ANSWER
    if isinstance(reply, Fulfill):
        assert sha256(reply.fulfillment).hexdigest() == request.key
        return "fulfilled"
    return str(reply.code)


def pay(folder: Path, record_path: Path, seed: int) -> None:
    """Send packets to open payments."""
    port, token = _port(folder), token_of(folder)
    entries = list(entries_in(record_path))
    record = ClientRecord(record_path)
    left = pending(entries)
    counter = itertools.count(len(entries) + 1)  # each packet is recorded, so no sequence is used twice
    payables = Payables(folder / CREATED)
    number = int(record_path.stem.rpartition("-")[2])

    def work(thread: int) -> None:
        connection, choose = PeerConnection(port, token), random.Random(f"{seed} {thread} {len(entries)}")
        for request in left[thread::IN_FLIGHT]:
            send_until_final(connection, record, request)
        amount = 0  # that remains, if the last F08 reported it
        while not _is_ending(folder):
            payable = payables.some(choose)
            if payable is None:
                time.sleep(_PAUSE_S)
                continue
            sequence = number << 40 | next(counter)
            request = new_packet(record, payable, min(amount, 1 << 32) or choose.randint(1, 120), sequence)
            answer, data = send_until_final(connection, record, request)
            amount = _F08.unpack(data)[1] if answer == "F08" else 0
            if answer == "F07":
                payables.drop(payable.id)

    _in_threads(work, IN_FLIGHT)


def new_packet(record: ClientRecord, payable: Payable, amount: int, sequence: int) -> SentRequest:
    """Return a new packet, and record it."""
    expires_at = datetime.now(UTC).replace(microsecond=0) + _PACKETS_EXPIRE_AFTER
    prepare = payable.sender().prepare(amount, sequence=sequence, expires_at=expires_at)
    return record.sent(
        kind=PACKET,
        key=prepare.condition.hex(),
        payment=payable.id,
        amount=amount,
        sequence=sequence,
        packet=encode(prepare).hex(),
    )


# --- creating payments -----------------------------------------------------------------------------


def create(folder: Path, record_path: Path, seed: int) -> None:
    """Create payments with various terms, one after the other. List each, and complete some that may be open."""
    port = _port(folder)
    client = HttpClient.of(folder, f"http://127.0.0.1:{port}")
    entries = list(entries_in(record_path))
    record = ClientRecord(record_path)
    choose, payables = random.Random(f"{seed} {len(entries)}"), Payables(folder / CREATED)
    for number in range(len(entries), sys.maxsize):
        if _is_ending(folder):
            return
        terms = _terms(choose)
        if choose.random() < 0.5:
            request = record.sent(kind=ORDER, key=f"order-{number}")
            terms["metadata"] = {"order": request.key}
        else:
            request = record.sent(kind=CREATE, key=f"create-{number}")
        while not _create_once(client, record, request, terms):
            time.sleep(_PAUSE_S)
        _list_once(client, record, folder)
        if number % _COMPLETED_EVERY == 0 and (payable := payables.some(choose)) is not None:
            request = record.sent(kind=COMPLETE, key=f"complete-{number}", payment=payable.id)
            while not _complete_once(client, record, request):
                time.sleep(_PAUSE_S)
            payables.drop(payable.id)
        time.sleep(choose.uniform(0.01, 0.05))


def _terms(choose: random.Random) -> dict[str, Any]:
    """Return random terms: most have an `incomingAmount`, so that payments become full, and some expire soon."""
    terms: dict[str, Any] = {}
    if choose.random() < 0.9:
        value = str(choose.randint(1, choose.choice([300, 3000, 30000])))
        terms["incomingAmount"] = {"value": value, "assetCode": USD.code, "assetScale": USD.scale}
    if choose.random() < 0.4 or not terms:
        expires_at = datetime.now(UTC) + timedelta(seconds=choose.uniform(1, 5))
        terms["expiresAt"] = expires_at.isoformat()
    return terms


def _create_once(client: HttpClient, record: ClientRecord, request: SentRequest, terms: dict[str, Any]) -> bool:
    """Send the request, and return whether the answer is final."""
    try:
        response = client.order(request.key if request.kind == ORDER else None, **terms)
    except httpx.ConnectError:
        return False  # no request was sent
    except httpx.TransportError:
        record.answered(request.key, NO_ANSWER)
        return False
    body = response.json()
    if response.status_code != 201:
        record.answered(request.key, body["error"]["code"])
        return body["error"]["code"] not in RETRIED
    [method] = body["methods"] or [None]
    if method is None:  # the payment has expired already
        record.answered(request.key, "too_late")
        return True
    id = body["id"].rpartition("/")[2]
    record.answered(request.key, "created", payment=id, address=method["ilpAddress"], secret=method["sharedSecret"])
    return True


def _list_once(client: HttpClient, record: ClientRecord, folder: Path) -> None:
    """Read the newest payments, and record a page without those that the client knows to be created, or in disorder."""
    created = [
        one.details["payment"]
        for one in entries_in(folder / CREATED)
        if isinstance(one, ReceivedAnswer) and one.answer == "created"
    ]
    try:
        response = client.list(first=100)
    except httpx.TransportError:
        return
    if response.status_code == HTTPStatus.OK:
        listed = [item["id"].rpartition("/")[2] for item in response.json()["result"]]
        missing = set(created[-20:]) - set(listed)  # some of those above have no answer yet
        if missing or listed != sorted(set(listed), reverse=True):
            record.answered(LIST, "wrong", missing=sorted(missing), listed=listed)


def _complete_once(client: HttpClient, record: ClientRecord, request: SentRequest) -> bool:
    """Send the request, and return whether the answer is final."""
    try:
        response = client.complete(f"{client.base_url}/incoming-payments/{request.payment}")
    except httpx.ConnectError:
        return False  # no request was sent
    except httpx.TransportError:
        record.answered(request.key, NO_ANSWER)
        return False
    body = response.json()
    answer = "completed" if response.status_code == HTTPStatus.OK else body["error"]["code"]
    record.answered(request.key, answer)
    return answer not in RETRIED


# --- crediting -----------------------------------------------------------------------------------------


def bank(folder: Path, record_path: Path, seed: int) -> None:
    """Credit money that arrived by another rail, in a separate process on the service's database."""
    entries = list(entries_in(record_path))
    left, numbers = pending(entries), itertools.count(len(entries))
    record, choose = ClientRecord(record_path), random.Random(f"{seed} {len(entries)}")
    payables = Payables(folder / CREATED)
    database = load_settings(folder / CONFIGURATION).given.database
    assert isinstance(database, Path)
    with _opened(database) as store:
        for request in left:
            _credit_once(store, record, request)
        while not _is_ending(folder):
            time.sleep(choose.uniform(0.005, 0.03))
            payable = payables.some(choose)
            if payable is not None:
                # Each call is recorded, so no credit id is used twice after a restart.
                key, amount = f"wire-{next(numbers)}", choose.randint(1, 60)
                request = record.sent(kind=CALL, key=key, payment=payable.id, amount=amount)
                if _credit_once(store, record, request) in {"payment_completed", "payment_expired"}:
                    payables.drop(payable.id)


def _opened(database: Path) -> SqliteStore:
    """Return the store, once it can be opened: after a failure, that is when every process has closed it."""
    while True:
        try:
            return SqliteStore(database)
        except (StoreStopped, StoreUnavailable):
            time.sleep(_PAUSE_S)


def _credit_once(store: SqliteStore, record: ClientRecord, request: SentRequest) -> str:
    """Call `receive` until it returns a final answer."""
    amount = Amount(request.amount, USD)
    while True:
        try:
            run(
                receive(request.payment, credit_id=request.key, amount=amount, clock=lambda: datetime.now(UTC)),
                Ports(store=store),
            )
            answer = "credited"
        except IncomingPaymentsError as error:
            answer = error.code
        record.answered(request.key, answer)
        if answer == STOPPED:  # only the end of this process releases the store
            os.kill(os.getpid(), signal.SIGKILL)
        if answer not in RETRIED:
            return answer
        time.sleep(_PAUSE_S)


# --- the process -------------------------------------------------------------------------------------


def token_of(folder: Path) -> str:
    """Return the token of the peer."""
    return (folder / PEER_TOKEN).read_text("ascii").strip()


def _port(folder: Path) -> int:
    return load_settings(folder / CONFIGURATION).given.listen.port


def _is_ending(folder: Path) -> bool:
    return (folder / END).exists()


def _in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work` in threads until all end. An exception in one of them ends the process."""
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


ROLES: Final = {"sender": pay, "creator": create, "banking": bank}


def main(role: str, folder: str, record: str, seed: str) -> None:
    """Run the client with this role."""
    ROLES[role](Path(folder), Path(record), int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
