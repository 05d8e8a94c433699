"""The operation of peers, which is an ILP packet, and the required reply."""

# ruff: noqa: ARG002 - all operations have the same signatures, and not every one uses each argument

import enum
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from attrs import define, evolve

from incoming_payments.domain.payment import PaymentId
from incoming_payments.errors import (
    AmountTooLarge,
    ApprovalPending,
    ApprovalUnavailable,
    AssetMismatch,
    CreditIdReused,
    IncomingPaymentsError,
    PacketExpired,
    PaymentCompleted,
    PaymentExpired,
    PaymentNotFound,
    PolicyRefused,
)
from incoming_payments.flows.machinery.effects import Flow
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Fulfill, PacketType, Prepare, encode
from incoming_payments.ilp.stream import StreamClose, StreamMaxMoney, condition_of
from incoming_payments.testing.replies import decode_reply, read_amounts
from incoming_payments.testing.simulation.fixtures import MARGIN, USD
from incoming_payments.testing.simulation.ledger import Expected, Ledger, require
from incoming_payments.testing.simulation.operation import Account, Clock, Operation, Process, Task, World, check_total


class Intent(enum.Enum):
    """The purpose of a packet, which decides about the possible replies."""

    MONEY = "money"
    ZERO_AMOUNT = "amount 0"
    PROBE = "probe"  # a packet with a condition that cannot be fulfilled
    BELOW_MINIMUM = "below the sender's minimum"
    CLOSE = "close the connection"
    MALFORMED = "malformed"
    UNKNOWN_ADDRESS = "unknown address"
    UNDECRYPTABLE = "undecryptable data"
    CONFIGURATION = "ILDCP request"


_FULFILLABLE: Final = {Intent.MONEY, Intent.ZERO_AMOUNT}

# The replies that do not depend on the payment.
_FIXED_REPLIES: Final[Mapping[Intent, str]] = {
    Intent.CLOSE: "F99",
    Intent.MALFORMED: "F01",
    Intent.UNKNOWN_ADDRESS: "F02",
    Intent.UNDECRYPTABLE: "F06",
    Intent.CONFIGURATION: "fulfilled",
}
_WITHOUT_EXPIRY: Final = {Intent.MALFORMED, Intent.CONFIGURATION}  # the receiver replies before it reads the expiry

# The reply to each refusal by the payment or the store (Interledger RFC 27 and RFC 29).
_CODES: Final[Mapping[type[IncomingPaymentsError], str]] = {
    PaymentNotFound: "F02",
    AssetMismatch: "F07",
    PaymentCompleted: "F07",
    PaymentExpired: "F07",
    AmountTooLarge: "F08",
    CreditIdReused: "F03",
    PacketExpired: "R00",
    PolicyRefused: "F99",
    ApprovalPending: "T99",
    ApprovalUnavailable: "T00",
}


@define(eq=False)
class SendPacket(Operation):
    """A packet from a peer. The peer repeats a packet with money until it gets an answer, as ILP over HTTP requires.

    `octets` are the bytes to send. They differ from `prepare` only in a malformed packet.
    """

    account: Account | None
    prepare: Prepare
    intent: Intent
    sequence: int
    peer: Peer
    octets: bytes
    crashes_before: int = 0  # the number of processes that had crashed when the packet was first sent

    reads_clock_in_decision = True

    @property
    def id(self) -> PaymentId | None:  # type: ignore[override]
        return None if self.account is None else self.account.id

    @property
    def key(self) -> Hashable:
        return (self.prepare.condition, self.prepare.amount)

    @property
    def wants_answer(self) -> bool:  # type: ignore[override]
        return self.intent is Intent.MONEY

    def with_amount(self, amount: int) -> "SendPacket":
        """Return the same packet with another amount, which a connector can change."""
        return self._changed(evolve(self.prepare, amount=amount))

    def with_expiry(self, expires_at: datetime) -> "SendPacket":
        """Return the same packet with another expiry, which a connector can change."""
        return self._changed(evolve(self.prepare, expires_at=expires_at))

    def _changed(self, prepare: Prepare) -> "SendPacket":
        return SendPacket(self.account, prepare, self.intent, self.sequence, self.peer, encode(prepare))

    def start(self, world: World, process: Process, clock: Clock) -> Flow[bytes]:
        return world.flows.receive_packet(self.octets, peer=self.peer, receiver=process.receiver, clock=clock)

    def expect(self, ledger: Ledger, now: datetime) -> Expected:
        require(self.intent in _FULFILLABLE, f"a packet with this purpose must not be credited: {self.intent.value}")
        amount, in_time = self.prepare.amount, self._in_time(now)
        return ledger.expect_packet(self.prepare.condition, amount, self.peer.asset, now, in_time=in_time)

    def check(self, world: World, task: Task, answer: Any, error: IncomingPaymentsError | None) -> bool:
        require(error is None, f"a packet must get a reply, but the flow raised {error!r}")
        reply = decode_reply(answer)
        code = "fulfilled" if isinstance(reply, Fulfill) else str(reply.code)
        expected = self._expected_codes(world, task)
        require(code in expected, f"the reply to the packet should be {' or '.join(expected)} but is {code}")
        if isinstance(reply, Fulfill) and self.intent is not Intent.CONFIGURATION:
            self._check_fulfill(world, reply)
        elif code == "F08":
            assert task.expected is not None  # noqa: S101 - only the payment causes F08
            found, required = read_amounts(reply.data), (self.prepare.amount, task.expected.remaining)
            require(
                found == required,
                f"F08 should contain the received and maximum amounts {required}, but contains {found}",
            )
        self._check_sealed(world, task, code, reply.data)
        world.state.count(f"packet answered {code}")
        if code == "T00" and self._is_credited(world):
            world.state.count("packet answered T00 although it was credited")
        return code not in {"T00", "T99"}

    def _is_credited(self, world: World) -> bool:
        ledger = None if self.id is None else world.state.ledgers.get(self.id)
        return ledger is not None and self.prepare.condition in ledger.credits

    def receive_answer(self, world: World, answer: Any) -> None:
        if self.account is not None and answer[0] == PacketType.FULFILL and self.intent is Intent.MONEY:
            condition = self.prepare.condition
            # The peer owes the money of a repeated packet only once.
            if self.prepare.amount and condition not in self.account.counted:
                self.account.counted.add(condition)
                self.account.sent += self.prepare.amount

    def _expected_codes(self, world: World, task: Task) -> Sequence[str]:
        # A packet that may be fulfilled can have been credited before, so the store decides whether the packet is too
        # late.
        if self.intent not in {*_WITHOUT_EXPIRY, *_FULFILLABLE} and not self._in_time(task.began):
            return ("R00",)
        if self.intent in _FIXED_REPLIES:
            return (_FIXED_REPLIES[self.intent],)
        if task.expected is None:
            return ("T00",)
        if task.expected.error is not None:
            return (_CODES[task.expected.error],)
        if self.intent in _FULFILLABLE:
            return ("fulfilled",)
        if self.peer.asset != USD:
            return ("F07",)
        states = self._states(world, task)
        if states[0] == "completed":
            return ("F07",)
        # The payment may expire between the arrival of a probe and the answer of the store.
        return ("F07", "F99") if "expired" in states else ("F99",)

    def _states(self, world: World, task: Task) -> tuple[str, str]:
        """Return the state of the payment at the last call of the store, and its state when the packet arrived."""
        assert self.account is not None  # noqa: S101 - the packet is for a payment
        assert task.seen is not None  # noqa: S101 - the flow has called the store
        return task.seen[1], world.state.ledgers[self.account.id].state(task.began)

    def _in_time(self, now: datetime) -> bool:
        at = self.prepare.expires_at
        return at.replace(microsecond=at.microsecond // 1000 * 1000) - now >= MARGIN

    def _check_fulfill(self, world: World, reply: Fulfill) -> None:
        """Check that the credit is in the ledger, with the packet's amount, before the fulfillment is sent."""
        require(condition_of(reply.fulfillment) == self.prepare.condition, "the fulfillment does not fit the condition")
        if not self.prepare.amount:
            return  # the update was already checked, and a copy with another amount may have been credited later
        assert self.account is not None  # noqa: S101 - a packet with money belongs to an account
        ledger = world.state.ledgers.get(self.account.id)
        entry = None if ledger is None else ledger.credits.get(self.prepare.condition)
        amount = None if entry is None else entry.amount
        require(
            amount == self.prepare.amount,
            f"the packet was fulfilled for {self.prepare.amount}, but the credit is {amount}",
        )

    def _check_sealed(self, world: World, task: Task, code: str, data: bytes) -> None:
        """Check the encrypted part of the reply."""
        if code not in {"fulfilled", "F99", "F07"} or self.intent is Intent.CONFIGURATION or self.account is None:
            return
        if code == "F07" and self.peer.asset != USD:
            return  # the reply to a wrong asset has no encrypted part
        reply = self.account.keys.open(data)
        found, expected = (reply.sequence, reply.amount), (self.sequence, self.prepare.amount)
        require(found == expected, f"the reply should have sequence and amount {expected}, but has {found}")
        assert task.seen is not None or self.intent is Intent.CLOSE  # noqa: S101 - the flow has called the store
        for frame in reply.frames:
            if isinstance(frame, StreamMaxMoney) and task.seen is not None:
                received, total = task.seen[0], frame.total_received
                require(total == received, f"StreamMaxMoney should have total_received {received}, but has {total}")
                check_total(world, task, self.account.id, received, completed=None)
            elif isinstance(frame, StreamClose):
                states = self._states(world, task)
                require(
                    {"completed", "expired"}.intersection(states), "StreamClose was sent although the payment is open"
                )

    def __str__(self) -> str:
        where = "no payment" if self.account is None else self.account.id
        name = self.prepare.condition.hex()[:8]
        money = f"{self.prepare.amount} {self.peer.asset.code}"
        return f"packet {name} #{self.sequence} to {where}: {money}, {self.intent.value}"
