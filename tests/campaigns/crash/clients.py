"""The clients of a service that is killed: processes that do not give up, and write down what they are told.

    python -m campaigns.crash.clients ROLE FOLDER BOOK SEED

`ROLE` is `sender` (pays by STREAM packets over HTTP), `creator` (asks for payments, signed, over HTTP) or `banking`
(books by `receive` on the database file). When there is a file `REST` in the folder, each brings to its end what is
under way. One that was killed is started again with the same book: it repeats what has no final answer, and goes on.
"""

import base64
import http.client
import itertools
import random
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

import httpx
from attrs import frozen

from campaigns.crash.books import AGAIN, CALL, CREATE, PACKET, UNHEARD, Answered, Asked, Book, Reader, notes_in, pending
from incoming_payments import Amount, Asset, Ports, receive, run
from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.ilp import IlpAddress, StreamCredentials
from incoming_payments.ilp.packet import Fulfill, Reject, decode_reply, encode
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN
from incoming_payments.server.settings import load_settings
from incoming_payments.stores.sqlite import SqliteStore
from kits.processes import HttpClient
from kits.stream_kit import Sender

T = TypeVar("T")

IN_FLIGHT: Final = 3  # packets of one sender at a time
CREATED: Final = "created.book"  # what every sender reads
REST: Final = "rest"
USD: Final = Asset("USD", 2)
_PAUSE_S: Final = 0.01  # before the very same is sent again
_PACKETS_EXPIRE_AFTER: Final = timedelta(hours=1)  # so that none expires meanwhile
_OPEN_MAX: Final = 6  # payments that are paid at a time: few, so that packets meet in them
_F08: Final = struct.Struct(">QQ")  # what came, and what remains


# --- paying ------------------------------------------------------------------------------------------


@frozen
class Payable:
    """A payment as its creator was told of it."""

    id: str
    address: str
    secret: bytes

    def sender(self) -> Sender:
        """Whoever pays it."""
        return Sender(StreamCredentials(PaymentId(self.id), IlpAddress(self.address), self.secret))


class Payables:
    """The payments that may take money, as far as one sender knows."""

    def __init__(self, path: Path) -> None:
        self._created = Reader(path)
        self._lock = threading.Lock()
        self._open: list[Payable] = []

    def some(self, choose: random.Random) -> Payable | None:
        """One of them."""
        with self._lock:
            notes = self._created.more()
            self._open += [
                _payable(one.details) for one in notes if isinstance(one, Answered) and one.said == "created"
            ]
            return choose.choice(self._open[:_OPEN_MAX]) if self._open else None

    def drop(self, id: str) -> None:
        """It takes nothing more."""
        with self._lock:
            self._open = [one for one in self._open if one.id != id]


def _payable(details: dict[str, Any]) -> Payable:
    return Payable(details["payment"], details["address"], base64.urlsafe_b64decode(f"{details['secret']}="))


class Line:
    """A connection of a peer's to the service, made anew whenever it is cut."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/octet-stream"}
        self._connection: http.client.HTTPConnection | None = None

    def send(self, packet: bytes) -> Fulfill | Reject | None:
        """The reply; `None` when there was none."""
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
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self) -> http.client.HTTPConnection:
        """A connection, once the service listens."""
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
            try:
                connection.connect()
            except OSError:
                time.sleep(_PAUSE_S)
            else:
                return connection


def settle(line: Line, book: Book, asked: Asked) -> tuple[str, bytes]:
    """Send a packet until it has its final answer: what that was, and its data."""
    while True:
        reply = line.send(bytes.fromhex(asked.packet))
        said = said_to(asked, reply)
        book.answered(asked.key, said)
        if reply is not None and said not in AGAIN:
            return said, reply.data
        time.sleep(_PAUSE_S)


def said_to(asked: Asked, reply: Fulfill | Reject | None) -> str:
    """What a reply says, in a word. A fulfillment has to be that of the packet."""
    if reply is None:
        return UNHEARD
    if isinstance(reply, Fulfill):
        assert sha256(reply.fulfillment).hexdigest() == asked.key
        return "fulfilled"
    return str(reply.code)


def pay(folder: Path, book_path: Path, seed: int) -> None:
    """Send packets into whatever payments there are."""
    port, token = _port(folder), token_of(folder)
    notes = list(notes_in(book_path))
    book = Book(book_path)
    left = pending(notes)
    counter = itertools.count(len(notes) + 1)  # each is noted, so that none comes twice
    payables = Payables(folder / CREATED)
    number = int(book_path.stem.rpartition("-")[2])

    def work(thread: int) -> None:
        line, choose = Line(port, token), random.Random(f"{seed} {thread} {len(notes)}")
        for asked in left[thread::IN_FLIGHT]:
            settle(line, book, asked)
        amount = 0  # what is known to remain, when it is
        while not _rests(folder):
            payable = payables.some(choose)
            if payable is None:
                time.sleep(_PAUSE_S)
                continue
            sequence = number << 40 | next(counter)
            asked = new_packet(book, payable, min(amount, 1 << 32) or choose.randint(1, 120), sequence)
            said, data = settle(line, book, asked)
            amount = _F08.unpack(data)[1] if said == "F08" else 0
            if said == "F99":
                payables.drop(payable.id)

    _in_threads(work, IN_FLIGHT)


def new_packet(book: Book, payable: Payable, amount: int, sequence: int) -> Asked:
    """A new packet, in the book."""
    expires_at = datetime.now(UTC).replace(microsecond=0) + _PACKETS_EXPIRE_AFTER
    prepare = payable.sender().prepare(amount, sequence=sequence, expires_at=expires_at)
    return book.asked(
        kind=PACKET,
        key=prepare.condition.hex(),
        payment=payable.id,
        amount=amount,
        sequence=sequence,
        packet=encode(prepare).hex(),
    )


# --- asking for payments -----------------------------------------------------------------------------


def create(folder: Path, book_path: Path, seed: int) -> None:
    """Ask for payments of all sorts, one after the other."""
    port = _port(folder)
    client = HttpClient.of(folder, f"http://127.0.0.1:{port}")
    notes = list(notes_in(book_path))
    book = Book(book_path)
    choose = random.Random(f"{seed} {len(notes)}")
    for number in range(len(notes), sys.maxsize):
        if _rests(folder):
            return
        asked = book.asked(kind=CREATE, key=f"create-{number}")
        terms = _terms(choose)
        while not _create_once(client, book, asked, terms):
            time.sleep(_PAUSE_S)
        time.sleep(choose.uniform(0.01, 0.05))


def _terms(choose: random.Random) -> dict[str, Any]:
    """Mostly with an `incomingAmount`, so that payments get full; some that expire soon."""
    terms: dict[str, Any] = {}
    if choose.random() < 0.9:
        value = str(choose.randint(1, choose.choice([300, 3000, 30000])))
        terms["incomingAmount"] = {"value": value, "assetCode": USD.code, "assetScale": USD.scale}
    if choose.random() < 0.4 or not terms:
        expires_at = datetime.now(UTC) + timedelta(seconds=choose.uniform(1, 5))
        terms["expiresAt"] = expires_at.isoformat()
    return terms


def _create_once(client: HttpClient, book: Book, asked: Asked, terms: dict[str, Any]) -> bool:
    """Whether there was a final answer."""
    try:
        response = client.create(**terms)
    except httpx.ConnectError:
        return False  # nothing was sent
    except httpx.TransportError:
        book.answered(asked.key, UNHEARD)
        return False
    body = response.json()
    if response.status_code != 201:
        book.answered(asked.key, body["error"]["code"])
        return body["error"]["code"] not in AGAIN
    [method] = body["methods"] or [None]
    if method is None:  # it has expired already
        book.answered(asked.key, "too_late")
        return True
    id = body["id"].rpartition("/")[2]
    book.answered(asked.key, "created", payment=id, address=method["ilpAddress"], secret=method["sharedSecret"])
    return True


# --- booking -----------------------------------------------------------------------------------------


def bank(folder: Path, book_path: Path, seed: int) -> None:
    """Book money that came by another rail, in a process of its own on the file of the service."""
    notes = list(notes_in(book_path))
    left, numbers = pending(notes), itertools.count(len(notes))
    book, choose = Book(book_path), random.Random(f"{seed} {len(notes)}")
    payables = Payables(folder / CREATED)
    with SqliteStore(load_settings(folder / CONFIGURATION).database) as store:
        for asked in left:
            _book_once(store, book, asked)
        while not _rests(folder):
            time.sleep(choose.uniform(0.005, 0.03))
            payable = payables.some(choose)
            if payable is not None:
                # Each is noted, so that the next life of this client begins behind it.
                key, amount = f"wire-{next(numbers)}", choose.randint(1, 60)
                asked = book.asked(kind=CALL, key=key, payment=payable.id, amount=amount)
                if _book_once(store, book, asked) in {"payment_completed", "payment_expired"}:
                    payables.drop(payable.id)


def _book_once(store: SqliteStore, book: Book, asked: Asked) -> str:
    """Call `receive` until it has its final answer."""
    amount = Amount(asked.amount, USD)
    while True:
        try:
            run(receive(asked.payment, credit=asked.key, amount=amount, now=datetime.now(UTC)), Ports(store=store))
            said = "booked"
        except IncomingPaymentsError as error:
            said = error.code
        book.answered(asked.key, said)
        if said not in AGAIN:
            return said
        time.sleep(_PAUSE_S)


# --- the process -------------------------------------------------------------------------------------


def token_of(folder: Path) -> str:
    """The token of the peer."""
    return (folder / PEER_TOKEN).read_text("ascii").strip()


def _port(folder: Path) -> int:
    return load_settings(folder / CONFIGURATION).port


def _rests(folder: Path) -> bool:
    return (folder / REST).exists()


def _in_threads(work: Callable[[int], None], count: int) -> None:
    """Run them to the end; what one of them raises ends the process, and is seen."""
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


def main(role: str, folder: str, book: str, seed: str) -> None:
    """Be one of them."""
    ROLES[role](Path(folder), Path(book), int(seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
