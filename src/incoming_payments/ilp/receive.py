"""What becomes of an ILP Prepare: the pure decisions of the STREAM receiver. RFC 29 of the Interledger RFCs.

A packet is judged in two steps, as what the payment says of it is known to the store only:

1. `open_packet` reads the bytes, finds the payment in the address, decrypts and checks. What can be answered without
   the payment is answered: it is a `Fulfill` or a `Reject` then. Otherwise it is an `Arrival`.
2. An `Arrival` that `may_be_fulfilled` is booked by its `decide`, inside the store's transaction, under its
   `credit_id`; any other is judged by the payment as it stands. Then it is `fulfilled`, `quoted` or `refused`.

The fulfillment is worth the money: whoever shows it to the peer before us has been paid. `Arrival.fulfilled` takes the
payment that the store answered with once the credit was durable, and there is no other way to it.

A peer pays for a Fulfill that comes in time, and for no other. So the clock is looked at twice: when the packet comes,
and by `decide`, when the store has let it wait for its turn. What is too late by then is not booked.

Which packet gets which answer is the table `REFUSALS` below, and what stands around it. The codes are those that
senders need (npm `@interledger/pay` and `ilp-protocol-stream`): to them F99 with encrypted data of ours means "go on",
F08 with the amounts "send less", F99 with `StreamClose` "it is over", a code that begins with T "try again", and any
other the end.

**One payment, one pot.** STREAM lets a packet divide its amount among several streams. A payment has no use for that:
it takes the whole amount, whatever streams the packet names, or none, and tells each of them the same: what the
payment is open for in all, and what it has received in all.
"""

import binascii
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Final

from attrs import field, frozen

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.lifecycle import Decision, Tolerance
from incoming_payments.domain.payment import (
    STREAM_CREDITS,
    Credit,
    CreditId,
    IncomingPayment,
    PaymentId,
    check_moment,
)
from incoming_payments.errors import (
    AmountTooLarge,
    AssetMismatch,
    CreditIdReused,
    IncomingPaymentsError,
    InvalidValue,
    MalformedAddress,
    MalformedPacket,
    PacketExpired,
    PaymentCompleted,
    PaymentExpired,
    PaymentNotFound,
    PaymentRefused,
    PolicyRefused,
    StoreError,
)
from incoming_payments.ilp.address import IlpAddress
from incoming_payments.ilp.credentials import DerivedMethods
from incoming_payments.ilp.ildcp import ILDCP_ADDRESS, ILDCP_CONDITION, Peer, ildcp_response
from incoming_payments.ilp.packet import (
    ErrorCode,
    Fulfill,
    PacketType,
    Prepare,
    Reject,
    Reply,
    decode_prepare,
    write_amounts,
)
from incoming_payments.ilp.stream import (
    ConnectionAssetDetails,
    ConnectionClose,
    ConnectionNewAddress,
    Frame,
    StreamClose,
    StreamData,
    StreamDataBlocked,
    StreamError,
    StreamKeys,
    StreamMaxData,
    StreamMaxMoney,
    StreamMoney,
    StreamMoneyBlocked,
    StreamPacket,
    condition_of,
)
from incoming_payments.limits import PREPARE_MARGIN_MS_MIN, STREAM_KEYS_REMEMBERED_MAX, STREAMS_ANSWERED_MAX

_FIRST_STREAM: Final = 1  # RFC 29 §3.3: what a client opens first
_ABOUT_A_STREAM: Final = (StreamMaxMoney, StreamMoneyBlocked, StreamData, StreamMaxData, StreamDataBlocked)

# What the store or the payment says, and how a sender has to hear it. A subclass counts as its class.
REFUSALS: Final[Mapping[type[IncomingPaymentsError], tuple[ErrorCode, str]]] = {
    PaymentNotFound: (ErrorCode.UNREACHABLE, "there is no such payment"),
    PacketExpired: (ErrorCode.TRANSFER_TIMED_OUT, "the packet has expired, or is about to"),
    AssetMismatch: (ErrorCode.CANNOT_RECEIVE, "the payment is in another asset than the account with this peer"),
    PaymentCompleted: (ErrorCode.FINAL_APPLICATION_ERROR, "the payment is completed"),
    PaymentExpired: (ErrorCode.FINAL_APPLICATION_ERROR, "the payment has expired"),
    AmountTooLarge: (ErrorCode.AMOUNT_TOO_LARGE, "the payment cannot take so much"),
    CreditIdReused: (ErrorCode.INVALID_AMOUNT, "this packet came before, with another amount"),
    PolicyRefused: (ErrorCode.CANNOT_RECEIVE, "the receiver does not take this payment"),
    PaymentRefused: (ErrorCode.CANNOT_RECEIVE, "the payment cannot take this"),  # for a reason of a host's own
    StoreError: (ErrorCode.INTERNAL_ERROR, "try again later"),
}


def _margin_ms(value: object) -> int:
    if type(value) is not int or value < 0:
        raise InvalidValue("margin_ms must be an integer, not below 0", member="margin_ms")
    return value


@frozen
class Receiver:
    """How this service takes packets. One for the whole service: it remembers what it derived for recent addresses.

    `methods` reads the addresses that it handed out. `tolerance` says how much too much a packet may bring.
    `margin_ms` is what a Prepare must have left, in milliseconds: the time to commit, and for the Fulfill to travel. A
    Fulfill that comes too late is not paid for, but what it was for has been credited. `find` says whose address a
    destination is, with the keys, or raises `MalformedAddress`. Raises `InvalidValue`.
    """

    methods: DerivedMethods
    tolerance: Tolerance = field(factory=Tolerance)
    margin_ms: int = field(default=PREPARE_MARGIN_MS_MIN, converter=_margin_ms)
    find: Callable[[str], tuple[PaymentId, StreamKeys]] = field(init=False, eq=False, repr=False)
    _margin: timedelta = field(init=False, eq=False, repr=False)

    @find.default
    def _remembering(self) -> Callable[[str], tuple[PaymentId, StreamKeys]]:
        # What is not an address of ours raises, and is not remembered: strangers cannot fill the memory.
        return lru_cache(maxsize=STREAM_KEYS_REMEMBERED_MAX)(partial(_derive, self.methods))

    @_margin.default
    def _of_margin_ms(self) -> timedelta:
        return timedelta(milliseconds=self.margin_ms)

    def in_time(self, expires_at: datetime, now: datetime) -> bool:
        """Whether there is time enough at `now` to answer a Prepare that expires at `expires_at`."""
        return expires_at - now >= self._margin

    def reject(self, code: ErrorCode, message: str, data: bytes = b"") -> Reject:
        """A Reject in the name of this service."""
        return Reject(code, self.methods.prefix, message, data)


def _derive(methods: DerivedMethods, destination: str) -> tuple[PaymentId, StreamKeys]:
    credentials = methods.read(destination)
    return credentials.payment_id, StreamKeys(credentials.shared_secret)


@frozen
class Arrival:
    """An authentic STREAM packet for a payment of ours. `decide` judges whether it came in time.

    `amount` is what `peer` has brought, in the asset that it counts in. `fulfillment` is there when the condition is
    ours and the amount no less than the sender's minimum: only then may the packet be fulfilled. Without it the packet
    is a question: what would arrive? `nonce` is for the reply.
    """

    payment_id: PaymentId
    peer: IlpAddress
    amount: Amount
    expires_at: datetime
    request: StreamPacket
    condition: bytes
    _fulfillment: bytes | None = field(repr=False)
    _keys: StreamKeys = field(repr=False)
    _nonce: bytes = field(repr=False)
    _receiver: Receiver = field(repr=False)

    @property
    def may_be_fulfilled(self) -> bool:
        """Whether it is an offer, and not a question. An offer of nothing is one too: it moves frames."""
        return self._fulfillment is not None

    @property
    def credit_id(self) -> CreditId:
        """The name under which the money of this packet is booked, once.

        It is made of the execution condition, which is `SHA-256(HMAC(key, data))` with a key of this one payment: so it
        stands for the packet's encrypted data and the payment, and for nothing else. From that follows:

        - **The same Prepare twice** has the same id: the second time the store finds the credit, books nothing, and the
          fulfillment is repeated, also once the payment is completed or expired.
        - **Two packets** never share an id: their data differ in a random nonce at least. Who wants two to share one
          has to find a collision of SHA-256, and would pay twice for one credit.
        - **Another amount** on a copy is not another packet. Amount and expiry are the only things that connectors may
          change (RFC 27), and nothing authenticates them. Were the amount part of the id, a connector could bring one
          packet of its sender's as two, and both would be credited; were it neither in the id nor compared, it could
          bring the packet with 100, keep the answer to itself, bring a copy with 1, and hold a fulfillment of ours
          that says we are content with 1, while 100 are in the books. As it is, `lifecycle.credit_packet` refuses the
          copy (`CreditIdReused`), whoever comes first: each fulfillment that leaves was for exactly what is booked
          under its id.
        - **Another expiry**, or the copy coming by another peer, changes nothing: the money that it is for is booked.
          The peer is left out on purpose: a connector that repeats a packet over its second line because the answer on
          the first was lost owes it once. When in doubt we credit once, never twice. The event names the peer that
          was first.
        - **Credits of other rails** cannot be met: `flows.receive` refuses ids that begin with `stream:`.

        In front stands the packet's sequence number, which is in the data as well, so that the ids of one sender lie
        side by side in an index: with hashes alone, each credit would touch another page of it.
        """
        digest = binascii.b2a_base64(self.condition, newline=False).decode("ascii")
        return CreditId(f"{STREAM_CREDITS}{self.request.sequence:016x}:{digest}")

    def decide(
        self, id: CreditId, clock: Callable[[], datetime]
    ) -> Callable[[IncomingPayment, Credit | None], Decision[IncomingPayment]]:
        """The decision to book it under its `credit_id`, for the store to run when it comes to it.

        `clock` is read then, each time that the decision is made. Raises `PacketExpired` when there is too little time
        left to answer, unless the packet was booked before, and whatever `lifecycle.credit_packet` raises.
        """
        return partial(self._decided, id, clock)

    def _decided(
        self, id: CreditId, clock: Callable[[], datetime], payment: IncomingPayment, earlier: Credit | None
    ) -> Decision[IncomingPayment]:
        now = clock()
        check_moment(None, None, now)
        if earlier is None and not self._receiver.in_time(self.expires_at, now):
            raise PacketExpired("the packet has waited until it was too late: it is not booked")
        tolerance, amount, peer = self._receiver.tolerance, self.amount, self.peer
        return lifecycle.credit_packet(payment, earlier, id=id, amount=amount, now=now, tolerance=tolerance, peer=peer)

    def fulfilled(self, payment: IncomingPayment, now: datetime) -> Fulfill:
        """The Fulfill, once the store has answered with `payment`: not before the credit is durable.

        It tells the sender what `payment` is open for. A packet of nothing is fulfilled also by a payment that takes
        nothing more, as its sender has frames to be acknowledged; then it is told that its streams are closed.
        """
        told = self.amount.value or lifecycle.is_receivable(payment, now)
        assert self._fulfillment is not None  # noqa: S101 - our own bug; `Fulfill` would refuse it as well
        return Fulfill(
            self._fulfillment, self._sealed(PacketType.FULFILL, self._told(payment) if told else self._closings())
        )

    def quoted(self, payment: IncomingPayment, now: datetime) -> Reject:
        """The answer to a question: what arrived, and what `payment` is open for.

        Raises `AssetMismatch`, `PaymentCompleted` and `PaymentExpired`.
        """
        lifecycle.require_asset(payment, self.amount)
        lifecycle.require_open(payment, now)
        data = self._sealed(PacketType.REJECT, self._told(payment))
        return self._receiver.reject(ErrorCode.FINAL_APPLICATION_ERROR, "", data)

    def refused(self, refusal: IncomingPaymentsError) -> Reject:
        """The Reject for what the payment or the store has said."""
        code, message = next(row for cls, row in REFUSALS.items() if isinstance(refusal, cls))
        data = b""
        if isinstance(refusal, AmountTooLarge):
            data = write_amounts(self.amount.value, refusal.remaining)
        elif isinstance(refusal, PaymentCompleted | PaymentExpired):
            data = self._sealed(PacketType.REJECT, self._closings())
        return self._receiver.reject(code, message, data)

    def closed(self) -> Reject:
        """The answer to a packet by which the sender closes the connection: it is closed here, too."""
        data = self._sealed(PacketType.REJECT, [ConnectionClose(StreamError.NO_ERROR, "")])
        return self._receiver.reject(ErrorCode.FINAL_APPLICATION_ERROR, "", data)

    def _told(self, payment: IncomingPayment) -> list[Frame]:
        """What `payment` is open for, for each stream of the packet."""
        received = payment.received.value
        receive_max = max(lifecycle.receive_max(payment), received)
        return self._with_asset([StreamMaxMoney(stream, receive_max, received) for stream in self._streams()])

    def _closings(self) -> list[Frame]:
        return self._with_asset([StreamClose(stream, StreamError.NO_ERROR, "") for stream in self._streams()])

    def _with_asset(self, frames: list[Frame]) -> list[Frame]:
        """`frames`, and our asset if the sender asks for it: that of the payment, or it would have been refused."""
        if ConnectionNewAddress in map(type, self.request.frames):
            frames.append(ConnectionAssetDetails(self.amount.asset.code, self.amount.asset.scale))
        return frames

    def _streams(self) -> list[int]:
        """The streams that the packet is about, not too many of them; the first one, when it names none.

        Those of its money come first. Without money, a sender that is blocked has to hear of its stream all the same.
        """
        money: dict[int, None] = {}
        others: dict[int, None] = {}
        for frame in self.request.frames:
            if isinstance(frame, StreamMoney):
                money[frame.stream_id] = None
            elif isinstance(frame, _ABOUT_A_STREAM):
                others[frame.stream_id] = None
        return list(money | others)[:STREAMS_ANSWERED_MAX] or [_FIRST_STREAM]

    def _sealed(self, kind: PacketType, frames: Sequence[Frame]) -> bytes:
        reply = StreamPacket(kind, self.request.sequence, self.amount.value, frames)
        return self._keys.seal(reply, nonce=self._nonce)


def open_packet(packet: bytes, *, peer: Peer, receiver: Receiver, nonce: bytes, now: datetime) -> Arrival | Reply:
    """Read the ILP packet that `peer` sent; the answer, if it can be given without the payment.

    `nonce` is 12 random bytes that are never used twice. Nothing is raised, whatever the packet is.
    """
    try:
        prepare = decode_prepare(packet)
    except MalformedPacket as error:
        return receiver.reject(ErrorCode.INVALID_PACKET, error.description)
    if prepare.destination == ILDCP_ADDRESS:
        return _configure(prepare, peer, receiver)
    opened = _open_stream(prepare, peer, receiver, nonce)
    # A packet that was credited before is fulfilled again at any time, so the store has to look for its credit first.
    may_be_credited = isinstance(opened, Arrival) and opened.may_be_fulfilled
    if not may_be_credited and not receiver.in_time(prepare.expires_at, now):
        return receiver.reject(*REFUSALS[PacketExpired])
    return opened


def _open_stream(prepare: Prepare, peer: Peer, receiver: Receiver, nonce: bytes) -> Arrival | Reply:
    """Decrypt the STREAM packet in `prepare`, or return the reply to one that is not for a payment of this service."""
    try:
        payment_id, keys = receiver.find(prepare.destination)
    except MalformedAddress as error:
        return receiver.reject(ErrorCode.UNREACHABLE, error.description)
    try:
        request = keys.open(prepare.data)
    except MalformedPacket:
        return receiver.reject(ErrorCode.UNEXPECTED_PAYMENT, "the data is no STREAM packet for this payment")
    # RFC 29 §5.2: a packet that was moved to another type of ILP packet is nobody's.
    if request.kind is not PacketType.PREPARE:
        return receiver.reject(ErrorCode.UNEXPECTED_PAYMENT, "the data does not belong on a Prepare")
    fulfillment = keys.fulfillment(prepare.data)
    may_fulfill = condition_of(fulfillment) == prepare.condition and prepare.amount >= request.amount
    arrival = Arrival(
        payment_id,
        peer.address,
        Amount(prepare.amount, peer.asset),
        prepare.expires_at,
        request,
        prepare.condition,
        fulfillment if may_fulfill else None,
        keys,
        nonce,
        receiver,
    )
    return arrival.closed() if ConnectionClose in map(type, request.frames) else arrival


def _configure(prepare: Prepare, peer: Peer, receiver: Receiver) -> Reply:
    """The answer to a question for `peer.config`. RFC 31: it brings nothing, has the one condition and any expiry."""
    if prepare.amount:
        return receiver.reject(ErrorCode.INVALID_AMOUNT, "to be told one's address costs nothing")
    if prepare.condition != ILDCP_CONDITION:
        return receiver.reject(ErrorCode.WRONG_CONDITION, "the condition is not that of RFC 31")
    return ildcp_response(peer)
