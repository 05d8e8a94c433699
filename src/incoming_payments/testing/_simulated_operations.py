"""What a simulation asks of the service, as its clients, its host, its peers and those who mean harm would.

Each operation knows the flow that answers it, what the books say of it, and which answer would be wrong.
"""

# ruff: noqa: ARG002 - all operations are asked the same, and not all need all of it

import abc
import json
from collections.abc import Callable, Hashable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

from attrs import define, field, frozen

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.payment import Credit, IncomingPayment, PaymentId, WalletAddress, wallet_address_url
from incoming_payments.errors import (
    AmountTooLarge,
    AssetMismatch,
    CreditIdReused,
    IncomingPaymentsError,
    PacketExpired,
    PaymentCompleted,
    PaymentExists,
    PaymentExpired,
    PaymentNotFound,
    StoreError,
)
from incoming_payments.flows.create import create_payment
from incoming_payments.flows.effects import Flow, UpdatePayment
from incoming_payments.flows.expire import announce_expired
from incoming_payments.flows.get import get_payment, get_public_payment
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, StaticIntrospector
from incoming_payments.httpsig import PrivateKey, Request, load_private_jwk, sign
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Fulfill, PacketType, Prepare, decode_reply, encode, read_amounts
from incoming_payments.ilp.stream import (
    StreamClose,
    StreamKeys,
    StreamMaxMoney,
    condition_of,
)
from incoming_payments.testing._simulated_books import Book, Verdict, require
from incoming_payments.testing._simulated_scene import Process, Scene, Task
from incoming_payments.wire import PaymentView, PublicView

USD: Final = Asset("USD", 2)
EUR: Final = Asset("EUR", 2)
METHODS: Final = DerivedMethods("test.bank", [b"a server secret that nobody knows"])
PEER: Final = Peer("test.bank.connector", USD)
FOREIGN_PEER: Final = Peer("test.bank.abroad", EUR)
WALLET: Final = WalletAddress(wallet_address_url("https://bank.example/alice"), USD, "https://auth.bank.example")
POLICY: Final = ServicePolicy(base_url="https://bank.example/op", auth_server="https://auth.bank.example")
PREPARE_S: Final = 30
MARGIN: Final = timedelta(seconds=1)

Clock = Callable[[], datetime]

_TOKEN: Final = "OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1LT0"  # noqa: S105 - of nobody
# RFC 8032 §7.1, test 1: a key that everybody knows, so that a seed gives the same requests everywhere
_JWK: Final = {
    "kty": "OKP",
    "crv": "Ed25519",
    "alg": "EdDSA",
    "kid": "key-1",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}
_KEY: Final[PrivateKey] = load_private_jwk({**_JWK, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"})
INTROSPECTOR: Final = StaticIntrospector(
    [
        (
            AccessToken(_TOKEN),
            AccessTokenInfo(
                client="https://shop.example/",
                jwk=_JWK,
                rights=[AccessRight(["create", "read"], WALLET.url)],
            ),
        )
    ]
)

# How a peer hears what the store or the payment said. RFC 27 and RFC 29, and what senders need of them.
_CODES: Final[dict[type[IncomingPaymentsError], str]] = {
    PaymentNotFound: "F02",
    AssetMismatch: "F07",
    PaymentCompleted: "F99",
    PaymentExpired: "F99",
    AmountTooLarge: "F08",
    CreditIdReused: "F03",
    PacketExpired: "R00",
}


@frozen(kw_only=True)
class Flows:
    """The use cases under simulation: the library's own, unless a host has wrapped them, or a test has broken one."""

    create_payment: Callable[..., Flow[PaymentView]] = create_payment
    receive: Callable[..., Flow[Credit]] = receive
    receive_packet: Callable[..., Flow[bytes]] = receive_packet
    announce_expired: Callable[..., Flow[int]] = announce_expired
    get_payment: Callable[..., Flow[PaymentView]] = get_payment
    get_public_payment: Callable[..., Flow[PublicView]] = get_public_payment


@define(eq=False)
class Account:
    """A payment as those outside know it: who pays, the host that books, and what each of them has in its books."""

    id: PaymentId
    address: str
    keys: StreamKeys
    life: int
    sequence: int = 0
    paid: int = 0  # what fulfilled packets brought, by the sender's books
    booked: int = 0  # what the host was told is booked, by the host's
    credits: list["Receive"] = field(factory=list)
    packets: list["SendPacket"] = field(factory=list)
    first_answers: dict[str, Credit] = field(factory=dict)
    settled: set[str | bytes] = field(factory=set)  # what is in the books of those outside, each once


class World(Protocol):
    """What operations need of the world that they happen in."""

    flows: Flows
    scene: Scene

    def opened(self, account: Account) -> None:
        """A client has a payment, and has handed on its details."""
        ...


class Operation(abc.ABC):
    """What somebody asks. The same operation may be asked again; `wants_answer` says that somebody will.

    `name` is what all attempts have in common that are for the same thing.
    """

    id: PaymentId | None = None
    wants_answer = False
    decides_by_the_clock = False  # as it is when the store lets it decide, not when it began

    @property
    def name(self) -> Hashable:
        """For what, and how much."""
        return (type(self), self.id)

    @abc.abstractmethod
    def start(self, world: World, process: Process, clock: Clock) -> Flow[Any]:
        """The flow that answers it."""

    def judge(self, book: Book, now: datetime) -> Verdict:
        """What has to become of its update; of an operation that must not change anything there is nothing."""
        return Verdict(f"nothing: {self} is not to change {book.id}")

    def expect(self, book: Book, answer: Any) -> None:
        """Compare the answer of the store to its update, which the books have noted, with the books."""
        book.compare(answer)

    @abc.abstractmethod
    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        """Compare what leaves the process with the books; whether it settles the matter for whoever asked."""

    def heard(self, world: World, task: Task, answer: Any) -> None:
        """Whoever asked has the answer that settles it; most do nothing with it."""
        return


def _told(world: World, task: Task, id: PaymentId, received: int, *, completed: bool | None) -> None:
    """An answer says `received`: no less than any answer that was given before this call began."""
    least, was_completed = task.told
    require(received >= least, f"{received} is told, after {least} was")
    if completed is not None:
        require(completed or not was_completed, "what was told to be completed is told not to be")
    book = world.scene.books[id]
    book.told = max(book.told, received)
    book.told_completed = book.told_completed or bool(completed)


# --- clients -----------------------------------------------------------------------------------------


@define(eq=False)
class Create(Operation):
    """A client's signed request for a payment."""

    limit: int | None
    expires_at: datetime | None
    nonce: str | None
    life: int

    def start(self, world: World, process: Process, clock: Clock) -> Flow[PaymentView]:
        body: dict[str, Any] = {"walletAddress": WALLET.url}
        if self.limit is not None:
            body["incomingAmount"] = {"value": str(self.limit), "assetCode": USD.code, "assetScale": USD.scale}
        if self.expires_at is not None:
            body["expiresAt"] = self.expires_at.isoformat()
        headers = (("Authorization", f"GNAP {_TOKEN}"), ("Content-Type", "application/json"))
        request = Request("POST", f"{POLICY.base_url}/incoming-payments", headers, json.dumps(body).encode())
        now = clock()
        return world.flows.create_payment(sign(request, _KEY, created=now, nonce=self.nonce), POLICY, now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            allowed = (PaymentExists, StoreError)
            late = self.expires_at is not None and self.expires_at <= task.now and error.code == "invalid_terms"
            repeated = self.nonce is not None and error.code == "invalid_signature"
            require(isinstance(error, allowed) or late or repeated, f"a create ended with {error!r}")
            return True  # its client asks anew, for another payment
        id = _id_of(answer)
        book = world.scene.books.get(id)
        require(book is not None, f"the payment {id} was answered and is not stored")
        require((answer.received_amount.value, answer.completed) == (0, False), "a new payment has received something")
        return True

    def heard(self, world: World, task: Task, answer: Any) -> None:
        if answer is None:
            return
        (method,) = answer.methods
        secret = METHODS.read(method.ilp_address).shared_secret
        world.opened(Account(_id_of(answer), method.ilp_address, StreamKeys(secret), self.life))

    def __str__(self) -> str:
        return f"create(limit={self.limit}, expires_at={self.expires_at})"


def _id_of(view: PaymentView) -> PaymentId:
    return PaymentId(view.id.rpartition("/")[2])


@define(eq=False)
class Get(Operation):
    """A client's signed request to see the payment."""

    id: PaymentId

    def start(self, world: World, process: Process, clock: Clock) -> Flow[PaymentView]:
        headers = (("Authorization", f"GNAP {_TOKEN}"),)
        now = clock()
        request = sign(Request("GET", POLICY.payment_url(self.id), headers), _KEY, created=now)
        return world.flows.get_payment(request, self.id, POLICY, now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return _trouble(task, error)
        assert task.seen is not None  # noqa: S101 - a get loads
        received, state = task.seen
        found = (answer.received_amount.value, answer.completed, bool(answer.methods))
        expected = (received, state == "completed", state in {"pending", "processing"})
        require(found == expected, f"a get has to show {expected} and shows {found}")
        _told(world, task, self.id, received, completed=answer.completed)
        return True

    def __str__(self) -> str:
        return f"get({self.id})"


@define(eq=False)
class GetPublic(Operation):
    """Anybody's request to see how much has arrived."""

    id: PaymentId

    def start(self, world: World, process: Process, clock: Clock) -> Flow[PublicView]:
        return world.flows.get_public_payment(self.id, POLICY)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return _trouble(task, error)
        assert task.seen is not None  # noqa: S101 - a get loads
        found, expected = answer.received_amount.value, task.seen[0]
        require(found == expected, f"a public get has to show {expected} and shows {found}")
        _told(world, task, self.id, found, completed=None)
        return True

    def __str__(self) -> str:
        return f"get_public({self.id})"


def _trouble(task: Task, error: IncomingPaymentsError) -> bool:
    """Whether `error` is the store's, or the refusal that the payment had for it."""
    expected = task.verdict.error if task.verdict is not None else None
    if isinstance(error, StoreError):
        return False
    require(type(error) is expected, f"it ended with {error!r}, and the payment said {expected}")
    return True


def complete_payment(id: PaymentId, now: datetime) -> Flow[IncomingPayment]:
    """Close the payment, as its client wishes."""
    return (yield from UpdatePayment(id, partial(lifecycle.complete, now=now)))


@define(eq=False)
class Complete(Operation):
    """A client's wish to close the payment."""

    id: PaymentId
    wants_answer = True

    def start(self, world: World, process: Process, clock: Clock) -> Flow[IncomingPayment]:
        return complete_payment(self.id, clock())

    def judge(self, book: Book, now: datetime) -> Verdict:
        return book.judge_complete(now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return _trouble(task, error)
        book = world.scene.books.get(self.id)
        require(book is not None and book.completed, "told to be completed, and is not")
        _told(world, task, self.id, answer.received.value, completed=True)
        return True

    def __str__(self) -> str:
        return f"complete({self.id})"


# --- the host ----------------------------------------------------------------------------------------


@define(eq=False)
class Sweep(Operation):
    """The host's sweep for what has expired."""

    limit: int

    def start(self, world: World, process: Process, clock: Clock) -> Flow[int]:
        return world.flows.announce_expired(clock(), limit=self.limit)

    def judge(self, book: Book, now: datetime) -> Verdict:
        return book.judge_expire(now)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        return error is None or _trouble(task, error)

    def __str__(self) -> str:
        return f"announce_expired(limit={self.limit})"


@define(eq=False)
class Receive(Operation):
    """The host books money that has arrived by a rail of its own. It asks again until it knows."""

    account: Account
    credit: str
    amount: Amount
    born: int = 0  # how many processes had died when it was first asked
    wants_answer = True

    @property
    def id(self) -> PaymentId:  # type: ignore[override]
        return self.account.id

    @property
    def name(self) -> Hashable:
        return (self.account.id, self.credit, self.amount)

    def start(self, world: World, process: Process, clock: Clock) -> Flow[Credit]:
        return world.flows.receive(self.account.id, credit=self.credit, amount=self.amount, now=clock())

    def judge(self, book: Book, now: datetime) -> Verdict:
        return book.judge_credit(self.credit, self.amount.value, self.amount.asset, now)

    def expect(self, book: Book, answer: Any) -> None:
        book.compare_credit(self.credit, answer)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        if error is not None:
            return _trouble(task, error)
        book = world.scene.books.get(self.account.id)
        require(book is not None and self.credit in book.credits, "a credit is told and not booked")
        first = self.account.first_answers.setdefault(self.credit, answer)
        require(first == answer, f"the credit {self.credit} was answered with {first} and now with {answer}")
        return True

    def heard(self, world: World, task: Task, answer: Any) -> None:
        if answer is not None and self.credit not in self.account.settled:
            self.account.settled.add(self.credit)
            self.account.booked += answer.amount.value

    def __str__(self) -> str:
        return f"receive({self.account.id}, {self.credit!r}, {self.amount.value} {self.amount.asset.code})"


# --- peers -------------------------------------------------------------------------------------------


@define(eq=False)
class SendPacket(Operation):
    """A peer sends a packet; a connector repeats it until it is answered, as ILP over HTTP has it.

    `answer` is what a receiver that needs not ask the payment has to say, or `money`, `question`, `nothing`.
    """

    account: Account | None
    prepare: Prepare
    expected: str
    sequence: int
    peer: Peer
    wire: bytes
    born: int = 0  # how many processes had died when it was first sent

    @property
    def id(self) -> PaymentId | None:  # type: ignore[override]
        return None if self.account is None else self.account.id

    @property
    def name(self) -> Hashable:
        return (self.prepare.condition, self.prepare.amount)

    decides_by_the_clock = True

    @property
    def wants_answer(self) -> bool:  # type: ignore[override]
        return self.expected == "money"

    def again(self, *, amount: int | None = None, expires_at: datetime | None = None) -> "SendPacket":
        """The same packet as a connector may hand it on: amount and expiry are its own."""
        old = self.prepare
        changed = Prepare(
            old.amount if amount is None else amount,
            old.expires_at if expires_at is None else expires_at,
            old.condition,
            old.destination,
            old.data,
        )
        return SendPacket(self.account, changed, self.expected, self.sequence, self.peer, encode(changed))

    def start(self, world: World, process: Process, clock: Clock) -> Flow[bytes]:
        return world.flows.receive_packet(self.wire, peer=self.peer, receiver=process.receiver, clock=clock)

    def judge(self, book: Book, now: datetime) -> Verdict:
        require(self.expected in {"money", "nothing"}, "money is booked for a packet that brings none")
        amount, in_time = self.prepare.amount, self._in_time(now)
        return book.judge_packet(self.prepare.condition, amount, self.peer.asset, now, in_time=in_time)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        require(error is None, f"a packet is answered, and not with {error!r}")
        reply = decode_reply(answer)
        code = "fulfilled" if isinstance(reply, Fulfill) else str(reply.code)
        expected = self._expected_code(task)
        require(code == expected, f"the packet has to be answered {expected} and is answered {code}")
        if isinstance(reply, Fulfill) and self.expected != "ILDCP":
            self._check_fulfill(world, reply)
        elif code == "F08":
            assert task.verdict is not None  # noqa: S101 - where F08 comes from
            found, said = read_amounts(reply.data), (self.prepare.amount, task.verdict.remaining)
            require(found == said, f"what came and what remains is {said}, and {found} is told")
        self._check_sealed(world, task, code, reply.data)
        world.scene.meet(f"packet answered {code}")
        if code == "T00" and self._is_booked(world):
            world.scene.meet("peer told T00 for what was committed")
        return code != "T00"

    def _is_booked(self, world: World) -> bool:
        book = None if self.id is None else world.scene.books.get(self.id)
        return book is not None and self.prepare.condition in book.credits

    def heard(self, world: World, task: Task, answer: Any) -> None:
        if self.account is not None and answer[0] == PacketType.FULFILL and self.expected == "money":
            condition = self.prepare.condition
            if self.prepare.amount and condition not in self.account.settled:  # all copies of a packet are one debt
                self.account.settled.add(condition)
                self.account.paid += self.prepare.amount

    def _expected_code(self, task: Task) -> str:
        if self.expected not in {"money", "question", "nothing", "too little"}:
            if self.expected not in {"F01", "ILDCP"} and not self._in_time(task.began):
                return "R00"
            return "fulfilled" if self.expected == "ILDCP" else self.expected[:3]
        # A packet that may be fulfilled can have been credited before, so the store decides whether it is too late.
        if self.expected not in {"money", "nothing"} and not self._in_time(task.began):
            return "R00"
        if task.verdict is None:
            return "T00"
        if task.verdict.error is not None:
            return _CODES[task.verdict.error]
        if self.expected in {"money", "nothing"}:
            return "fulfilled"
        return "F99" if self.peer.asset == USD else "F07"

    def _in_time(self, now: datetime) -> bool:
        at = self.prepare.expires_at
        return at.replace(microsecond=at.microsecond // 1000 * 1000) - now >= MARGIN

    def _check_fulfill(self, world: World, reply: Fulfill) -> None:
        """The money is in the books, as much as the peer is asked for, before the fulfillment leaves."""
        require(condition_of(reply.fulfillment) == self.prepare.condition, "the fulfillment does not fit")
        if not self.prepare.amount:
            return  # judged when it was decided: by now a copy that brings something may have come
        assert self.account is not None  # noqa: S101 - money is for somebody
        book = world.scene.books.get(self.account.id)
        booked = None if book is None else book.credits.get(self.prepare.condition)
        amount = None if booked is None else booked.amount
        require(
            amount == self.prepare.amount, f"fulfilled for {self.prepare.amount} while {amount} is in the books for it"
        )

    def _check_sealed(self, world: World, task: Task, code: str, data: bytes) -> None:
        """What the sender alone can read."""
        if code not in {"fulfilled", "F99"} or self.expected == "ILDCP" or self.account is None:
            return
        said = self.account.keys.open(data)
        found, expected = (said.sequence, said.amount), (self.sequence, self.prepare.amount)
        require(found == expected, f"sequence and amount are {expected} and come back as {found}")
        assert task.seen is not None or self.expected == "F99 close"  # noqa: S101 - the store was asked
        for frame in said.frames:
            if isinstance(frame, StreamMaxMoney) and task.seen is not None:
                received = task.seen[0]
                require(frame.total_received == received, f"{received} was received, {frame.total_received} is told")
                _told(world, task, self.account.id, received, completed=None)
            elif isinstance(frame, StreamClose):
                states = {task.seen and task.seen[1], world.scene.books[self.account.id].state(task.began)}
                require(states & {"completed", "expired"}, "closed, and takes money")

    def __str__(self) -> str:
        where = "nowhere" if self.account is None else self.account.id
        name = self.prepare.condition.hex()[:8]
        return (
            f"packet {name} #{self.sequence} to {where}: {self.prepare.amount} {self.peer.asset.code}, {self.expected}"
        )
