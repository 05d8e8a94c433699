"""The decisions of the STREAM receiver (Interledger RFC 29) about an ILP Prepare. All functions are pure.

The receiver handles a packet in two steps, because only the store knows the payment:

1. `open_packet` decrypts and checks the packet. It returns a `Fulfill` or a `Reject` if the answer does not depend on
the payment, or else an `Arrival`. 2. If `Arrival.may_be_fulfilled` is true, the store runs `Arrival.decide` in a
transaction, under `Arrival.credit_id`. If not, the store only loads the payment. Then `fulfilled`, `quoted` or
`refused` returns the answer.

The fulfillment is worth money: after the service has sent the fulfillment, the peer owes the amount. Only
`Arrival.fulfilled` returns a fulfillment. This method needs the payment that the store returned after the credit was
durable. A peer pays only for a Fulfill that arrives before the Prepare expires. So the receiver checks the time when
the packet arrives, and again in the store's transaction.

STREAM lets a packet divide its amount among several streams. A payment accepts the whole amount or nothing, and every
stream in the reply has the totals of the whole payment.
"""

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import Final

from attrs import field, frozen

from incoming_payments import errors
from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Tolerance
from incoming_payments.domain.approval import Approved, Approver
from incoming_payments.domain.checks import check_time, instance, integer
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.methods import IlpAddress
from incoming_payments.domain.payment import STREAM_CREDITS, Credit, CreditId, IncomingPayment, PaymentId
from incoming_payments.domain.transitions import receive_max
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
from incoming_payments.limits import (
    PREPARE_MARGIN_MS_DEFAULT,
    REFUSAL_CHARS_MAX,
    STREAM_KEYS_REMEMBERED_MAX,
    STREAMS_ANSWERED_MAX,
)

_FIRST_STREAM: Final = 1  # the first stream that a client opens (RFC 29 §3.3)
_STREAM_FRAMES: Final = (StreamMaxMoney, StreamMoneyBlocked, StreamData, StreamMaxData, StreamDataBlocked)

# The ILP error for each refusal by the payment or the store. A subclass has the error of its base class. The senders
# npm `@interledger/pay` and `ilp-protocol-stream` continue after F99 with encrypted data, and end after a close frame.
# They send a smaller packet after F08 with amounts, and retry after T.. codes. After any other code they give up. The
# newest Rafiki reads F99 with a close frame as a final refusal. After F07 with such a frame, Rafiki reads the payment
# again (docs/reports/senders.md).
REFUSALS: Final[Mapping[type[errors.IncomingPaymentsError], tuple[ErrorCode, str]]] = {
    errors.PaymentNotFound: (ErrorCode.UNREACHABLE, "the payment does not exist"),
    errors.PacketExpired: (ErrorCode.TRANSFER_TIMED_OUT, "the packet has expired or is about to expire"),
    errors.AssetMismatch: (ErrorCode.CANNOT_RECEIVE, "the payment and the account of this peer have different assets"),
    errors.PaymentCompleted: (ErrorCode.CANNOT_RECEIVE, "the payment is completed"),
    errors.PaymentExpired: (ErrorCode.CANNOT_RECEIVE, "the payment has expired"),
    errors.AmountTooLarge: (ErrorCode.AMOUNT_TOO_LARGE, "the amount is more than the payment can still receive"),
    errors.CreditIdReused: (ErrorCode.INVALID_AMOUNT, "this packet was already received with another amount"),
    errors.PolicyRefused: (ErrorCode.FINAL_APPLICATION_ERROR, "the receiver refuses this packet"),
    errors.ApprovalPending: (ErrorCode.TEMPORARY_APPLICATION_ERROR, "the receiver has not decided yet"),
    errors.PaymentRefused: (ErrorCode.CANNOT_RECEIVE, "the payment cannot receive this packet"),
    errors.PortUnavailable: (ErrorCode.INTERNAL_ERROR, "try again later"),
    errors.StoreError: (ErrorCode.INTERNAL_ERROR, "try again later"),
}


@frozen
class Receiver:
    """The settings of this service for packets.

    Use one `Receiver` for the whole service, because it caches derived keys.

    `methods` decrypts the addresses that it issued. `tolerance` is the amount by which a packet may exceed
    `incomingAmount`. `margin_ms` is the time in milliseconds that must remain until a Prepare expires. The commit and
    the transfer of the Fulfill to the peer must fit in this time. The peer does not pay for a late Fulfill, although
    the payment was credited. `find` returns the payment id and the keys for a destination, or raises
    `MalformedAddress`. Raises `InvalidValue` for an invalid setting.
    """

    methods: DerivedMethods = field(validator=instance(DerivedMethods))
    tolerance: Tolerance = field(factory=Tolerance, validator=instance(Tolerance))
    margin_ms: int = field(default=PREPARE_MARGIN_MS_DEFAULT, validator=integer())
    find: Callable[[str], tuple[PaymentId, StreamKeys]] = field(init=False, eq=False, repr=False)

    @find.default
    def _cached_find(self) -> Callable[[str], tuple[PaymentId, StreamKeys]]:
        # With the cache, a packet takes 45 % less time (benchmarks/receive.py). An unknown address raises an error and
        # is not cached, so an attacker cannot fill the cache.
        return lru_cache(maxsize=STREAM_KEYS_REMEMBERED_MAX)(partial(_derive, self.methods))

    def in_time(self, expires_at: datetime, now: datetime) -> bool:
        """Return whether enough time remains at `now` to answer a Prepare that expires at `expires_at`."""
        return expires_at - now >= timedelta(milliseconds=self.margin_ms)

    def reject(self, code: ErrorCode, message: str, data: bytes = b"") -> Reject:
        """Return a Reject that names this service as its origin."""
        return Reject(code, self.methods.prefix, message, data)


def _derive(methods: DerivedMethods, destination: str) -> tuple[PaymentId, StreamKeys]:
    credentials = methods.read(destination)
    return credentials.payment_id, StreamKeys(credentials.shared_secret)


@frozen
class Arrival:
    """An authentic STREAM packet for a payment of this service, which `decide` refuses if too little time remains.

    `amount` is the amount that `peer` sent, in the asset of the peer's account. `fulfillment` is set when the condition
    can be fulfilled and the amount reaches the sender's minimum. If `fulfillment` is `None`, the packet is a probe,
    with which the sender asks how much would arrive. `nonce` is for the reply.
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
        """Whether the packet is an offer and not a probe. A packet of amount 0 that carries frames can be an offer."""
        return self._fulfillment is not None

    @property
    def credit_id(self) -> CreditId:
        """The id under which the money of this packet is credited, once.

        The id contains the execution condition, which is `SHA-256(HMAC(key, data))` with a key of this payment. So the
        id depends only on the payment and the encrypted data:

        - **A repeated Prepare** has the same id. The packet is fulfilled again and credited once, in each state of the
          payment.
        - **Two packets** have different ids, because their data have different nonces.
        - **A copy with another amount** has the same id and is refused by `lifecycle.credit_packet`, because nothing
          authenticates the amount (RFC 27). If the amount were part of the id, a connector could turn one packet into
          two credits. If amounts were not compared, a connector could get a fulfillment for 100 by sending 1.
        - **A copy with another expiry, or from another peer,** has the same id and is fulfilled again. A connector that
          repeats a packet on a second connection owes the amount only once. The event names the first peer.
        - **Credits by the host** have other ids, because `flows.receive` refuses ids that begin with `stream:`.

        The id begins with the sequence number of the packet, so the credits of one sender are neighbours in an index.
        """
        digest = base64.b64encode(self.condition).decode("ascii")
        return CreditId(f"{STREAM_CREDITS}{self.request.sequence:016x}:{digest}")

    @property
    def stream_data(self) -> bytes:
        """The data that the sender wrote to stream 1 in this packet, in the order of the offsets."""
        frames = [frame for frame in self.request.frames if isinstance(frame, StreamData)]
        frames = sorted((frame for frame in frames if frame.stream_id == _FIRST_STREAM), key=lambda each: each.offset)
        return b"".join([frame.data for frame in frames])

    def approved_by(self, approver: Approver) -> Approved:
        """Return the proof that `approver` approves the money of this packet."""
        return Approved(approver, self.payment_id, self.credit_id, self.amount)

    def decide(
        self, credit_id: CreditId, clock: Callable[[], datetime], approval: Approved | errors.IncomingPaymentsError
    ) -> Callable[[IncomingPayment, Credit | None], Decision[IncomingPayment]]:
        """Return the decision to credit this packet under its `credit_id`. The store runs the decision.

        Each run of the decision reads `clock`. The decision raises `PacketExpired` when too little time remains to
        answer, unless the packet is already credited. It also raises the refusals of `lifecycle.credit_packet`.

        `approval` is the proof that the money of this packet may be credited, or the error to raise if the payment
        would accept the money. If nothing is credited, `approval` is not used. Raises `BrokenDecision` for the proof of
        another payment, credit or amount.
        """

        def decision(payment: IncomingPayment, earlier: Credit | None) -> Decision[IncomingPayment]:
            now = check_time(clock())
            if earlier is None and not self._receiver.in_time(self.expires_at, now):
                raise errors.PacketExpired("the packet expired while it waited for the store, and was not credited")
            decided = lifecycle.credit_packet(
                payment,
                earlier,
                credit_id=credit_id,
                amount=self.amount,
                now=now,
                tolerance=self._receiver.tolerance,
                peer=self.peer,
            )
            if decided.credit is None:
                return decided
            if not isinstance(approval, Approved):
                raise approval
            if not approval.covers(decided.credit):
                raise errors.BrokenDecision("the approval is for another payment, credit or amount")
            return Decision(decided.answer, decided.payment, decided.events, decided.credit, approved=approval)

        return decision

    def fulfilled(self, payment: IncomingPayment, now: datetime) -> Fulfill:
        """Return the Fulfill. `payment` must be the payment that the store returned after a durable commit.

        The reply contains the totals of `payment`. A packet of amount 0 carries frames to acknowledge, so it is
        fulfilled even when `payment` can no longer receive money. In that case, the reply closes the streams.
        """
        is_open = self.amount.value or lifecycle.is_receivable(payment, now)
        frames = self._max_money_frames(payment) if is_open else self._close_frames()
        assert self._fulfillment is not None  # noqa: S101 - our own bug; `Fulfill` also refuses `None`
        return Fulfill(self._fulfillment, self._sealed(PacketType.FULFILL, frames))

    def quoted(self, payment: IncomingPayment, now: datetime) -> Reject:
        """Return the answer to a probe: the amount that arrived, and the totals of `payment`.

        Raises `AssetMismatch`, `PaymentCompleted` and `PaymentExpired`.
        """
        lifecycle.require_receivable(payment, self.amount, now)
        data = self._sealed(PacketType.REJECT, self._max_money_frames(payment))
        return self._receiver.reject(ErrorCode.FINAL_APPLICATION_ERROR, "", data)

    def refused(self, refusal: errors.IncomingPaymentsError) -> Reject:
        """Return the Reject for a refusal by the payment or the store."""
        code, message = next(row for cls, row in REFUSALS.items() if isinstance(refusal, cls))
        data = b""
        if isinstance(refusal, errors.AmountTooLarge):
            data = write_amounts(self.amount.value, refusal.remaining)
        elif isinstance(refusal, errors.PaymentCompleted | errors.PaymentExpired):
            data = self._sealed(PacketType.REJECT, self._close_frames())
        elif isinstance(refusal, errors.PolicyRefused):
            data = self._sealed(PacketType.REJECT, _words(refusal.description))
        return self._receiver.reject(code, message, data)

    def closed(self) -> Reject:
        """Return the answer to a packet that closes the connection.

        The answer also has a frame that closes the connection.
        """
        data = self._sealed(PacketType.REJECT, [ConnectionClose(StreamError.NO_ERROR, "")])
        return self._receiver.reject(ErrorCode.FINAL_APPLICATION_ERROR, "", data)

    def _max_money_frames(self, payment: IncomingPayment) -> list[Frame]:
        """Return the maximum and the total received of `payment`, for each stream of the packet."""
        received = payment.progress.received.value
        maximum = max(receive_max(payment), received)
        return self._with_asset([StreamMaxMoney(stream, maximum, received) for stream in self._stream_ids()])

    def _close_frames(self) -> list[Frame]:
        return self._with_asset([StreamClose(stream, StreamError.NO_ERROR, "") for stream in self._stream_ids()])

    def _with_asset(self, frames: list[Frame]) -> list[Frame]:
        """Add the asset of the payment to `frames` if the sender requests it."""
        if ConnectionNewAddress in map(type, self.request.frames):
            frames.append(ConnectionAssetDetails(self.amount.asset.code, self.amount.asset.scale))
        return frames

    def _stream_ids(self) -> list[int]:
        """Return at most `STREAMS_ANSWERED_MAX` streams that the packet names, or stream 1 if it names no stream.

        Streams with money come first. The other streams follow, because a sender that is blocked on a stream needs the
        totals of that stream.
        """
        money = [frame.stream_id for frame in self.request.frames if isinstance(frame, StreamMoney)]
        others = [frame.stream_id for frame in self.request.frames if isinstance(frame, _STREAM_FRAMES)]
        return list(dict.fromkeys(money + others))[:STREAMS_ANSWERED_MAX] or [_FIRST_STREAM]

    def _sealed(self, kind: PacketType, frames: Sequence[Frame]) -> bytes:
        reply = StreamPacket(kind, self.request.sequence, self.amount.value, frames)
        return self._keys.seal(reply, nonce=self._nonce)


def _words(words: str) -> list[Frame]:
    """Return the frames that end the connection with the message of the host. Rafiki also reads data of stream 1.

    The message may be any text, so this function shortens it, and replaces characters that UTF-8 cannot encode.
    """
    data = words[:REFUSAL_CHARS_MAX].encode("utf-8", "replace")
    close = ConnectionClose(StreamError.APPLICATION_ERROR, data.decode())
    return [close, StreamData(_FIRST_STREAM, 0, data)]


def open_packet(packet: bytes, *, peer: Peer, receiver: Receiver, nonce: bytes, now: datetime) -> Arrival | Reply:
    """Read the ILP packet that `peer` sent. Return its reply if the reply does not depend on the payment.

    `nonce` is 12 random bytes that must never be used twice. This function raises no error for any packet.
    """
    try:
        prepare = decode_prepare(packet)
    except errors.MalformedPacket as error:
        return receiver.reject(ErrorCode.INVALID_PACKET, error.description)
    if prepare.destination == ILDCP_ADDRESS:
        return _configure(prepare, peer, receiver)
    opened = _open_stream(prepare, peer, receiver, nonce)
    # A packet that was credited before is fulfilled again at any time, so the store has to look for the credit first.
    may_be_credited = isinstance(opened, Arrival) and opened.may_be_fulfilled
    if not may_be_credited and not receiver.in_time(prepare.expires_at, now):
        return receiver.reject(*REFUSALS[errors.PacketExpired])
    return opened


def _open_stream(prepare: Prepare, peer: Peer, receiver: Receiver, nonce: bytes) -> Arrival | Reply:
    """Decrypt the STREAM packet in `prepare`, or return the reply if it is not for a payment of this service."""
    try:
        payment_id, keys = receiver.find(prepare.destination)
    except errors.MalformedAddress as error:
        return receiver.reject(ErrorCode.UNREACHABLE, error.description)
    try:
        request = keys.open(prepare.data)
    except errors.MalformedPacket:
        return receiver.reject(
            ErrorCode.UNEXPECTED_PAYMENT, "the data is not a STREAM packet encrypted for this payment"
        )
    # Refuse a STREAM packet that was made for another type of ILP packet (RFC 29 §5.2).
    if request.kind is not PacketType.PREPARE:
        return receiver.reject(
            ErrorCode.UNEXPECTED_PAYMENT, "the data is a STREAM packet for another type of ILP packet"
        )
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
    """Return the answer to a packet for `peer.config`. The packet must have amount 0 and a fixed condition (RFC 31)."""
    if prepare.amount:
        return receiver.reject(ErrorCode.INVALID_AMOUNT, "an ILDCP request must have amount 0")
    if prepare.condition != ILDCP_CONDITION:
        return receiver.reject(
            ErrorCode.WRONG_CONDITION, "an ILDCP request must have the condition of Interledger RFC 31"
        )
    return ildcp_response(peer)
