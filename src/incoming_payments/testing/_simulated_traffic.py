"""Who asks what, and when: the clients, the host, the peers, and those who mean harm, as the dice have it."""

from collections.abc import Hashable
from datetime import timedelta
from typing import Final

from incoming_payments.domain.amount import Amount
from incoming_payments.domain.payment import PaymentId, new_payment_id
from incoming_payments.ilp.ildcp import ildcp_request
from incoming_payments.ilp.packet import PacketType, Prepare, encode
from incoming_payments.ilp.stream import (
    ConnectionClose,
    ConnectionNewAddress,
    StreamKeys,
    StreamMoney,
    StreamPacket,
    condition_of,
)
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing._simulated_operations import (
    EUR,
    FOREIGN_PEER,
    METHODS,
    PEER,
    USD,
    Account,
    Complete,
    Create,
    Get,
    GetPublic,
    Operation,
    Receive,
    SendPacket,
    Sweep,
)
from incoming_payments.testing._simulated_scene import Scene, Task

ACCOUNTS_MAX: Final = 8  # payments that are being paid at once: few, so that all meet
PREPARE_S: Final = 30
RECENT_PACKETS: Final = 8  # of a payment, that may come again


class Traffic:
    """All that is asked."""

    def __init__(self, scene: Scene, tasks: list[Task]) -> None:
        self._scene = scene
        self._tasks = tasks
        self._open: list[Account] = []
        self._retired: list[Account] = []
        self._unanswered: list[Operation] = []
        self._doubtful: dict[Hashable, Operation] = {}
        self._crashes = 0

    @property
    def accounts(self) -> list[Account]:
        """Every payment whose details anybody has."""
        return [*self._open, *self._retired]

    def opened(self, account: Account) -> None:
        """A client has a payment, and has handed on its details."""
        self._open.append(account)

    def crashed(self) -> None:
        """A process has died."""
        self._crashes += 1

    def left_without_answer(self, operation: Operation, *, doubtful: bool) -> None:
        """Nobody heard what became of it; it is `doubtful` when nobody can know yet, and a late commit may decide."""
        if operation.wants_answer:
            self._unanswered.append(operation)
            if doubtful:
                self._doubtful[operation.name] = operation

    def doubts(self) -> list[Operation]:
        """What has to be asked again when all is over, as a late commit may have decided otherwise than was told."""
        return [self._again(operation) for operation in self._doubtful.values()]

    def unanswered(self) -> Operation | None:
        """What still nobody has heard the answer to, if anything."""
        return self._repeat_unanswered() if self._unanswered else None

    def next_operation(self) -> Operation:
        """What somebody asks next."""
        creating = sum(1 for task in self._tasks if type(task.operation) is Create)
        if len(self._open) + creating < ACCOUNTS_MAX or not self._open:
            return self._create()
        dice = self._scene.roll()
        account = self._pick_account()
        if dice < 0.10 and self._unanswered:
            return self._repeat_unanswered()
        if dice < 0.60:
            return self._packet(account)
        if dice < 0.70:
            return self._repeat_packet(account)
        if dice < 0.82:
            return self._receive(account)
        if dice < 0.88:
            return self._repeat_receive(account)
        if dice < 0.90:
            return Complete(account.id)
        if dice < 0.92:
            return Sweep(1 + self._scene.below(5))
        if dice < 0.94:
            return Get(account.id)
        return GetPublic(account.id if dice < 0.99 else self._stranger().id)

    def _pick_account(self) -> Account:
        place = self._scene.below(len(self._open))
        account = self._open[place]
        book = self._scene.books[account.id]
        account.life -= 1 if book.state(self._scene.now) in {"pending", "processing"} else 6
        if account.life < 0:
            self._open[place] = self._open[-1]
            self._open.pop()
            self._retired.append(account)
        elif self._retired and self._scene.roll() < 0.02:
            return self._retired[self._scene.below(len(self._retired))]
        return account

    def _create(self) -> Create:
        limit = (None, 1 + self._scene.below(30), 500, 10_000, 2**63, UINT64_MAX)[self._scene.below(6)]
        expires_at = None
        if self._scene.roll() < 0.6:
            expires_at = self._scene.now + timedelta(microseconds=2_100_000 + self._scene.below(30_000_000))
        nonce = f"n{self._scene.steps}" if self._scene.roll() < 0.3 else None
        return Create(limit, expires_at, nonce, life=20 + self._scene.below(60))

    def _amount(self, id: PaymentId) -> int:
        """An amount that matters: a part of what is left, all of it, a little or a lot too much."""
        book = self._scene.books[id]
        dice = self._scene.roll()
        if book.limit is None or dice < 0.02:
            return (1, 7, 2**62, UINT64_MAX - book.received)[self._scene.below(4)] or 1
        left = book.limit - book.received
        if left < 1 or dice < 0.15:
            return 1 + self._scene.below(3)
        if dice < 0.3:
            return left
        if dice < 0.4:
            return min(left + 1 + self._scene.below(2 + book.limit // 100), UINT64_MAX)
        return 1 + self._scene.below(min(left, 2**53)) // 3

    def _stranger(self) -> Account:
        """Somebody who has the details of a payment that is not stored."""
        id = new_payment_id(self._scene.now, self._scene.dice.randbytes(10))
        credentials = METHODS.derive(id)
        return Account(id, credentials.ilp_address, StreamKeys(credentials.shared_secret), 0)

    def _receive(self, account: Account) -> Receive:
        asset = EUR if self._scene.roll() < 0.02 else USD
        amount = Amount(self._amount(account.id), asset)
        credit = Receive(account, f"wire-{len(account.credits)}", amount, born=self._crashes)
        account.credits.append(credit)
        return credit

    def _repeat_receive(self, account: Account) -> Operation:
        if not account.credits:
            return self._receive(account)
        credit = account.credits[self._scene.below(len(account.credits))]
        self._scene.meet("credit repeated after a crash" if self._crashes > credit.born else "credit repeated")
        if self._scene.roll() < 0.1:
            self._scene.meet("credit repeated with another amount")
            return Receive(account, credit.credit, Amount(credit.amount.value % UINT64_MAX + 1, credit.amount.asset))
        return credit

    def _packet(self, account: Account) -> SendPacket:
        dice = self._scene.roll()
        if dice < 0.80:
            packet = self._seal(account, self._amount(account.id), "money")
            packet.born = self._crashes
            account.packets.append(packet)
            return packet
        if dice < 0.84:
            return self._seal(account, 1 + self._scene.below(10**12), "question")
        if dice < 0.87:
            return self._seal(account, 0, "nothing")
        if dice < 0.90:
            return self._seal(account, 5, "too little")
        if dice < 0.93:
            return self._seal(account, 5, ("money", "question", "nothing")[self._scene.below(3)], abroad=True)
        if dice < 0.95:
            return self._seal(self._stranger(), 5, "money")
        if dice < 0.97:
            return self._seal(account, 5, "F99 close")
        return self._garbage(account)

    def _garbage(self, account: Account) -> SendPacket:
        """What nobody should send."""
        good = self._seal(account, 5, "F06").prepare
        dice = self._scene.below(4)
        if dice == 0:
            return SendPacket(None, good, "F01", 0, PEER, encode(good)[:-1])
        if dice == 1:
            bad = Prepare(5, good.expires_at, good.condition, f"{METHODS.prefix}.{'x' * 43}", good.data)
            return SendPacket(None, bad, "F02", 0, PEER, encode(bad))
        if dice == 2:
            bad = Prepare(5, good.expires_at, good.condition, good.destination, good.data[:-1])
            return SendPacket(None, bad, "F06", 0, PEER, encode(bad))
        asked = ildcp_request(good.expires_at)
        return SendPacket(None, asked, "ILDCP", 0, PEER, encode(asked))

    def _seal(self, account: Account, amount: int, expected: str, *, abroad: bool = False) -> SendPacket:
        """A packet by whoever has the details of the payment."""
        if account.sequence and self._scene.roll() < 0.05:
            self._scene.meet("sequence used twice")
        else:
            account.sequence += 1
        sequence = account.sequence
        if expected == "nothing":
            amount = 0
        frames = (ConnectionClose(1, ""),) if expected == "F99 close" else (StreamMoney(1, 1),)
        if sequence == 1 and expected != "F99 close":
            frames = (ConnectionNewAddress(""), *frames)
        least = amount + 1 if expected == "too little" else 0
        sealed = StreamPacket(PacketType.PREPARE, sequence, least, frames)
        data = account.keys.seal(sealed, nonce=self._scene.dice.randbytes(12))
        condition = bytes(32) if expected == "question" else condition_of(account.keys.fulfillment(data))
        seconds = PREPARE_S if self._scene.roll() < 0.98 else -3
        prepare = Prepare(amount, self._scene.now + timedelta(seconds=seconds), condition, account.address, data)
        peer = FOREIGN_PEER if abroad else PEER
        return SendPacket(account, prepare, expected, sequence, peer, encode(prepare))

    def _repeat_packet(self, account: Account) -> Operation:
        """A packet comes again, as its connector had it, or changed by it."""
        if not account.packets:
            return self._packet(account)
        recent = min(len(account.packets), 8)
        packet = account.packets[-1 - self._scene.below(recent)]
        self._scene.meet("packet repeated after a crash" if self._crashes > packet.born else "packet repeated")
        if any(task.operation is packet for task in self._tasks):
            self._scene.meet("packet repeated while the first is under way")
        dice = self._scene.roll()
        if dice < 0.2:
            self._scene.meet("packet repeated with another amount")
            return packet.again(amount=self._amount(account.id) if dice < 0.15 else 0)
        if dice < 0.5:
            self._scene.meet("packet repeated with another expiry")
            return packet.again(expires_at=self._scene.now + timedelta(seconds=PREPARE_S))
        return packet

    def _repeat_unanswered(self) -> Operation:
        """Who was left without an answer asks again."""
        place = self._scene.below(len(self._unanswered))
        operation = self._unanswered[place]
        self._unanswered[place] = self._unanswered[-1]
        self._unanswered.pop()
        return self._again(operation)

    def _again(self, operation: Operation) -> Operation:
        if isinstance(operation, SendPacket):
            return operation.again(expires_at=self._scene.now + timedelta(seconds=PREPARE_S))
        return operation
