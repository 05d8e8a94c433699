"""The random choice of the next operation of clients, the host, peers and attackers."""

from collections import defaultdict
from collections.abc import Hashable
from datetime import timedelta
from typing import Final

from attrs import evolve

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, PaymentId, new_payment_id
from incoming_payments.domain.transitions import State
from incoming_payments.ilp.packet import PacketType, Prepare, encode
from incoming_payments.ilp.stream import (
    NONCE_BYTES,
    ConnectionClose,
    ConnectionNewAddress,
    StreamKeys,
    StreamMoney,
    StreamPacket,
    condition_of,
)
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing.replies import ildcp_request
from incoming_payments.testing.simulation.clients import Complete, Create, Get, GetPublic, List
from incoming_payments.testing.simulation.fixtures import EUR, FOREIGN_PEER, METHODS, PEER, PREPARE_LIFETIME, USD
from incoming_payments.testing.simulation.host import Receive, Sweep
from incoming_payments.testing.simulation.operation import Account, Operation, Task
from incoming_payments.testing.simulation.peers import Intent, SendPacket
from incoming_payments.testing.simulation.state import SimulationState

ACTIVE_ACCOUNTS_MAX: Final = 8  # a small number of payments, so that concurrent operations often use the same payment
RECENT_CREATES_MAX: Final = 3  # a small number of requests, so that a repeated request is often still in flight
RECENT_PACKETS_MAX: Final = 8  # the number of recent packets of a payment that the traffic may repeat


class Traffic:
    """The new and the repeated operations of one run."""

    def __init__(self, state: SimulationState, tasks: list[Task]) -> None:
        self._state = state
        self._tasks = tasks
        self._active: list[Account] = []
        self._retired: list[Account] = []
        self._credits: defaultdict[PaymentId, list[Receive]] = defaultdict(list)
        self._packets: defaultdict[PaymentId, list[SendPacket]] = defaultdict(list)
        self._creates: list[Create] = []  # the recent requests with an idempotency key
        self._unanswered: list[Operation] = []
        self._unknown: dict[Hashable, Operation] = {}
        self._crashes = 0

    @property
    def accounts(self) -> list[Account]:
        """Return all accounts of the run, with the active accounts first."""
        return [*self._active, *self._retired]

    def add_account(self, account: Account) -> None:
        """Use a payment that a client has created, unless an earlier answer contained the same payment."""
        if all(account.id != known.id for known in self.accounts):
            self._active.append(account)

    def note_crash(self) -> None:
        """Count the crash of a process."""
        self._crashes += 1

    def note_unanswered(self, operation: Operation, *, outcome_known: bool) -> None:
        """Remember to repeat `operation`. A late commit can still change an outcome that is not known."""
        if operation.wants_answer:
            self._unanswered.append(operation)
            if not outcome_known:
                self._unknown[operation.key] = operation

    def unknown_outcomes(self) -> list[Operation]:
        """Return the operations to repeat at the end, because a late commit may have changed their outcome."""
        return [self._repeated(operation) for operation in self._unknown.values()]

    def next_unanswered(self) -> Operation | None:
        """Return an operation that still has no answer, or `None`."""
        return self._repeat_unanswered() if self._unanswered else None

    def next_operation(self) -> Operation:
        """Return the next operation to start."""
        creating = sum(1 for task in self._tasks if type(task.operation) is Create)
        if len(self._active) + creating < ACTIVE_ACCOUNTS_MAX or not self._active:
            return self._create()
        if self._creates and self._state.roll() < 0.03:
            return self._repeat_create()
        roll = self._state.roll()
        account = self._pick_account()
        if roll < 0.10 and self._unanswered:
            return self._repeat_unanswered()
        if roll < 0.60:
            return self._packet(account)
        if roll < 0.70:
            return self._repeat_packet(account)
        if roll < 0.82:
            return self._receive(account)
        if roll < 0.88:
            return self._repeat_receive(account)
        return self._other(account, roll)

    def _other(self, account: Account, roll: float) -> Operation:
        if roll < 0.92:
            return Complete(account.id) if roll < 0.90 else Sweep(1 + self._state.below(5))
        if roll < 0.95:
            return Get(account.id) if roll < 0.935 else self._list(account)
        return GetPublic(account.id if roll < 0.99 else self._unknown_account().id)

    def _pick_account(self) -> Account:
        place = self._state.below(len(self._active))
        account = self._active[place]
        ledger = self._state.ledgers[account.id]
        account.uses_left -= 1 if ledger.state(self._state.now) in {"pending", "processing"} else 6
        if account.uses_left < 0:
            self._active[place] = self._active[-1]
            self._active.pop()
            self._retired.append(account)
        elif self._retired and self._state.roll() < 0.02:
            return self._retired[self._state.below(len(self._retired))]
        return account

    # --- clients and the host ----------------------------------------------------------------------------

    def _create(self) -> Create:
        limit = (None, 1 + self._state.below(30), 500, 10_000, 2**63, UINT64_MAX)[self._state.below(6)]
        expires_at = None
        if self._state.roll() < 0.6:
            expires_at = self._state.now + timedelta(microseconds=2_100_000 + self._state.below(30_000_000))
        nonce = f"n{self._state.steps}" if self._state.roll() < 0.3 else None
        uses = 20 + self._state.below(60)
        if nonce is not None or self._state.roll() < 0.3:
            return Create(limit, expires_at, nonce, uses)
        self._creates.append(Create(limit, expires_at, None, uses, f"order-{self._state.steps}"))
        return self._creates[-1]

    def _repeat_create(self) -> Create:
        """Return a recent request with an idempotency key again, or another request with the same key."""
        create = self._creates[-1 - self._state.below(min(len(self._creates), RECENT_CREATES_MAX))]
        if self._state.roll() < 0.2:
            return evolve(create, limit=(create.limit or 0) % UINT64_MAX + 1, first_answer=None)
        in_flight = any(task.operation is create for task in self._tasks)
        self._state.count("create repeated while the first is in flight" if in_flight else "create repeated")
        return create

    def _list(self, account: Account) -> List:
        roll = self._state.roll()
        cursor = self._unknown_account().id if roll < 0.05 else account.id if roll < 0.7 else None
        state = (None, None, *State)[self._state.below(6)]
        backwards = cursor is not None and self._state.roll() < 0.4
        return List(1 + self._state.below(6), cursor, backwards=backwards, state=state)

    def _amount(self, id: PaymentId) -> int:
        """Return an amount near a boundary, such as the remainder, a part of the remainder, or too much."""
        ledger = self._state.ledgers[id]
        roll = self._state.roll()
        if ledger.limit is None or roll < 0.02:
            return (1, 7, 2**62, UINT64_MAX - ledger.received)[self._state.below(4)] or 1
        left = ledger.limit - ledger.received
        if left < 1 or roll < 0.15:
            return 1 + self._state.below(3)
        if roll < 0.3:
            return left
        if roll < 0.4:
            return min(left + 1 + self._state.below(2 + ledger.limit // 100), UINT64_MAX)
        return 1 + self._state.below(min(left, 2**53)) // 3

    def _unknown_account(self) -> Account:
        """Return valid payment details for a payment that is not stored."""
        id = new_payment_id(self._state.now, self._state.random.randbytes(PAYMENT_ID_RANDOM_BYTES))
        credentials = METHODS.derive(id)
        return Account(id, credentials.ilp_address, StreamKeys(credentials.shared_secret), 0)

    def _receive(self, account: Account) -> Receive:
        asset = EUR if self._state.roll() < 0.02 else USD
        amount = Amount(self._amount(account.id), asset)
        credits = self._credits[account.id]
        credit = Receive(account, f"wire-{len(credits)}", amount, crashes_before=self._crashes)
        credits.append(credit)
        return credit

    def _repeat_receive(self, account: Account) -> Operation:
        credits = self._credits[account.id]
        if not credits:
            return self._receive(account)
        credit = credits[self._state.below(len(credits))]
        after_crash = self._crashes > credit.crashes_before
        self._state.count("credit repeated after a crash" if after_crash else "credit repeated")
        if self._state.roll() < 0.1:
            self._state.count("credit repeated with another amount")
            return Receive(account, credit.credit, Amount(credit.amount.value % UINT64_MAX + 1, credit.amount.asset))
        return credit

    # --- peers and attackers -----------------------------------------------------------------------------

    def _packet(self, account: Account) -> SendPacket:
        roll = self._state.roll()
        if roll < 0.80:
            packet = self._seal(account, self._amount(account.id), Intent.MONEY)
            packet.crashes_before = self._crashes
            self._packets[account.id].append(packet)
            return packet
        if roll < 0.84:
            return self._seal(account, 1 + self._state.below(10**12), Intent.PROBE)
        if roll < 0.87:
            return self._seal(account, 0, Intent.ZERO_AMOUNT)
        if roll < 0.90:
            return self._seal(account, 5, Intent.BELOW_MINIMUM)
        if roll < 0.93:
            intent = (Intent.MONEY, Intent.PROBE, Intent.ZERO_AMOUNT)[self._state.below(3)]
            return self._seal(account, 0 if intent is Intent.ZERO_AMOUNT else 5, intent, foreign=True)
        if roll < 0.95:
            return self._seal(self._unknown_account(), 5, Intent.MONEY)
        if roll < 0.97:
            return self._seal(account, 5, Intent.CLOSE)
        return self._invalid(account)

    def _invalid(self, account: Account) -> SendPacket:
        """Return a packet that the receiver must answer without a look-up of the payment."""
        valid = self._seal(account, 5, Intent.UNDECRYPTABLE).prepare
        choice = self._state.below(4)
        if choice == 0:
            return SendPacket(None, valid, Intent.MALFORMED, 0, PEER, encode(valid)[:-1])
        if choice == 1:
            return self._without_account(
                evolve(valid, destination=f"{METHODS.prefix}.{'x' * 43}"), Intent.UNKNOWN_ADDRESS
            )
        if choice == 2:
            return self._without_account(evolve(valid, data=valid.data[:-1]), Intent.UNDECRYPTABLE)
        return self._without_account(ildcp_request(valid.expires_at), Intent.CONFIGURATION)

    @staticmethod
    def _without_account(prepare: Prepare, intent: Intent) -> SendPacket:
        return SendPacket(None, prepare, intent, 0, PEER, encode(prepare))

    def _seal(self, account: Account, amount: int, intent: Intent, *, foreign: bool = False) -> SendPacket:
        """Return a packet that a sender with the account's payment details would send."""
        if account.sequence and self._state.roll() < 0.05:
            self._state.count("packet with a used sequence number")
        else:
            account.sequence += 1
        sequence = account.sequence
        frames = (ConnectionClose(1, ""),) if intent is Intent.CLOSE else (StreamMoney(1, 1),)
        if sequence == 1 and intent is not Intent.CLOSE:
            frames = (ConnectionNewAddress(""), *frames)
        minimum = amount + 1 if intent is Intent.BELOW_MINIMUM else 0
        stream_packet = StreamPacket(PacketType.PREPARE, sequence, minimum, frames)
        data = account.keys.seal(stream_packet, nonce=self._state.random.randbytes(NONCE_BYTES))
        condition = bytes(32) if intent is Intent.PROBE else condition_of(account.keys.fulfillment(data))
        lifetime = PREPARE_LIFETIME if self._state.roll() < 0.98 else timedelta(seconds=-3)
        prepare = Prepare(amount, self._state.now + lifetime, condition, account.address, data)
        peer = FOREIGN_PEER if foreign else PEER
        return SendPacket(account, prepare, intent, sequence, peer, encode(prepare))

    def _repeat_packet(self, account: Account) -> Operation:
        """Return a packet that was sent before, unchanged or changed by a connector."""
        packets = self._packets[account.id]
        if not packets:
            return self._packet(account)
        packet = packets[-1 - self._state.below(min(len(packets), RECENT_PACKETS_MAX))]
        after_crash = self._crashes > packet.crashes_before
        self._state.count("packet repeated after a crash" if after_crash else "packet repeated")
        if any(task.operation is packet for task in self._tasks):
            self._state.count("packet repeated while the first is in flight")
        roll = self._state.roll()
        if roll < 0.2:
            self._state.count("packet repeated with another amount")
            return packet.with_amount(self._amount(account.id) if roll < 0.15 else 0)
        if roll < 0.5:
            self._state.count("packet repeated with another expiry")
            return packet.with_expiry(self._state.now + PREPARE_LIFETIME)
        return packet

    # --- repeats of operations without an answer ---------------------------------------------------------

    def _repeat_unanswered(self) -> Operation:
        place = self._state.below(len(self._unanswered))
        operation = self._unanswered[place]
        self._unanswered[place] = self._unanswered[-1]
        self._unanswered.pop()
        return self._repeated(operation)

    def _repeated(self, operation: Operation) -> Operation:
        if isinstance(operation, SendPacket):
            return operation.with_expiry(self._state.now + PREPARE_LIFETIME)
        return operation
