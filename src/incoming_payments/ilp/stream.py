"""STREAM: the packets that travel, encrypted, as the data of ILP packets, and the keys they hang on. RFC 29.

Nothing here decides anything: it reads and writes. The keys are derived from the shared secret of one payment:

```
encryption key    HMAC-SHA256(shared secret, "ilp_stream_encryption")     of AES-256-GCM
fulfillment key   HMAC-SHA256(shared secret, "ilp_stream_fulfillment")
fulfillment       HMAC-SHA256(fulfillment key, data), where data is the encrypted packet
condition         SHA-256(fulfillment)
```

`StreamReceipt`s (frame type 0x17) are neither made nor read: they are skipped, as every frame of an unknown type is.
"""

import enum
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeAlias

from attrs import Attribute, field, fields, frozen
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.oer import (
    read_octets,
    read_saturated_uint,
    read_span,
    read_text,
    read_uint8,
    read_var_uint,
    write_octets,
    write_text,
    write_uint8,
    write_var_uints,
)
from incoming_payments.ilp.packet import PacketType
from incoming_payments.limits import (
    STREAM_FRAME_REMEMBERED_BYTES_MAX,
    STREAM_FRAMES_MAX,
    STREAM_FRAMES_REMEMBERED_MAX,
    UINT64_MAX,
)

STREAM_VERSION: Final = 1
NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16


class StreamError(enum.IntEnum):
    """Why a stream or a connection was closed. RFC 29 §5.4."""

    NO_ERROR = 0x01
    INTERNAL_ERROR = 0x02
    ENDPOINT_BUSY = 0x03
    FLOW_CONTROL_ERROR = 0x04
    STREAM_ID_ERROR = 0x05
    STREAM_STATE_ERROR = 0x06
    FRAME_FORMAT_ERROR = 0x07
    PROTOCOL_VIOLATION = 0x08
    APPLICATION_ERROR = 0x09


# --- the kinds of fields -----------------------------------------------------------------------------
# A frame is a row of fields, and each field is of one of these kinds: how it is checked, written and read.


@frozen
class _Kind:
    read: Callable[[bytes, int, int], tuple[Any, int]]
    write: Callable[[Any], bytes]


_VAR_UINT: Final = _Kind(read_var_uint, write_var_uints)
_SATURATED: Final = _Kind(read_saturated_uint, write_var_uints)
_UINT8: Final = _Kind(read_uint8, write_uint8)
_TEXT: Final = _Kind(read_text, write_text)
_OCTETS: Final = _Kind(read_octets, write_octets)


def _number(most: int, kind: _Kind) -> Any:
    def check(_: object, attribute: "Attribute[int]", value: object) -> None:
        if not isinstance(value, int) or not 0 <= value <= most:
            raise InvalidValue(f"{attribute.name} is an integer from 0 to {most}", member=attribute.name)

    return field(validator=check, metadata={"kind": kind})


def _of(type_: type, kind: _Kind) -> Any:
    def check(_: object, attribute: "Attribute[object]", value: object) -> None:
        if not isinstance(value, type_):
            raise InvalidValue(f"{attribute.name} is of type {type_.__name__}", member=attribute.name)

    return field(validator=check, metadata={"kind": kind})


# --- frames: RFC 29 §5.3 -----------------------------------------------------------------------------


@frozen
class ConnectionClose:
    """The connection is over: `code` is mostly a `StreamError`, `message` for people."""

    type: ClassVar[int] = 0x01
    code: int = _number(255, _UINT8)
    message: str = _of(str, _TEXT)


@frozen
class ConnectionNewAddress:
    """The ILP address of who sends it; empty when it has none to be reached by, and only wants to know our asset."""

    type: ClassVar[int] = 0x02
    address: str = _of(str, _TEXT)


@frozen
class ConnectionMaxData:
    """So many bytes may be sent on the connection in all."""

    type: ClassVar[int] = 0x03
    max_offset: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class ConnectionDataBlocked:
    """So many bytes are to be sent on the connection in all."""

    type: ClassVar[int] = 0x04
    max_offset: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class ConnectionMaxStreamId:
    """The highest stream id that may be opened."""

    type: ClassVar[int] = 0x05
    max_stream_id: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class ConnectionStreamIdBlocked:
    """The highest stream id that is to be opened."""

    type: ClassVar[int] = 0x06
    max_stream_id: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class ConnectionAssetDetails:
    """The asset that amounts of who sends it are in."""

    type: ClassVar[int] = 0x07
    asset_code: str = _of(str, _TEXT)
    asset_scale: int = _number(255, _UINT8)


@frozen
class StreamClose:
    """The stream is over: `code` is mostly a `StreamError`, `message` for people."""

    type: ClassVar[int] = 0x10
    stream_id: int = _number(UINT64_MAX, _VAR_UINT)
    code: int = _number(255, _UINT8)
    message: str = _of(str, _TEXT)


@frozen
class StreamMoney:
    """The part of the packet's amount that is for this stream: `shares` of those of all streams."""

    type: ClassVar[int] = 0x11
    stream_id: int = _number(UINT64_MAX, _VAR_UINT)
    shares: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class StreamMaxMoney:
    """What who sends it will take on the stream in all, and has taken, in its own minor units."""

    type: ClassVar[int] = 0x12
    stream_id: int = _number(UINT64_MAX, _VAR_UINT)
    receive_max: int = _number(UINT64_MAX, _SATURATED)
    total_received: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class StreamMoneyBlocked:
    """What who sends it wants to send on the stream in all, and has sent, in its own minor units."""

    type: ClassVar[int] = 0x13
    stream_id: int = _number(UINT64_MAX, _VAR_UINT)
    send_max: int = _number(UINT64_MAX, _SATURATED)
    total_sent: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class StreamData:
    """Bytes of the stream, and their place in it."""

    type: ClassVar[int] = 0x14
    stream_id: int = _number(UINT64_MAX, _VAR_UINT)
    offset: int = _number(UINT64_MAX, _VAR_UINT)
    data: bytes = _of(bytes, _OCTETS)


@frozen
class StreamMaxData:
    """So many bytes may be sent on the stream in all."""

    type: ClassVar[int] = 0x15
    stream_id: int = _number(UINT64_MAX, _VAR_UINT)
    max_offset: int = _number(UINT64_MAX, _VAR_UINT)


@frozen
class StreamDataBlocked:
    """So many bytes are to be sent on the stream in all."""

    type: ClassVar[int] = 0x16
    stream_id: int = _number(UINT64_MAX, _VAR_UINT)
    max_offset: int = _number(UINT64_MAX, _VAR_UINT)


Frame: TypeAlias = (
    ConnectionClose
    | ConnectionNewAddress
    | ConnectionMaxData
    | ConnectionDataBlocked
    | ConnectionMaxStreamId
    | ConnectionStreamIdBlocked
    | ConnectionAssetDetails
    | StreamClose
    | StreamMoney
    | StreamMaxMoney
    | StreamMoneyBlocked
    | StreamData
    | StreamMaxData
    | StreamDataBlocked
)
FRAMES: Final[tuple[type[Frame], ...]] = (
    ConnectionClose,
    ConnectionNewAddress,
    ConnectionMaxData,
    ConnectionDataBlocked,
    ConnectionMaxStreamId,
    ConnectionStreamIdBlocked,
    ConnectionAssetDetails,
    StreamClose,
    StreamMoney,
    StreamMaxMoney,
    StreamMoneyBlocked,
    StreamData,
    StreamMaxData,
    StreamDataBlocked,
)


def _writer(frame: type[Frame]) -> Callable[[Frame], bytes]:
    """How a frame of this type is written. Most have nothing but numbers, and those are written at once."""
    type_ = bytes((frame.type,))
    names = [member.name for member in fields(frame)]
    writers = [member.metadata["kind"].write for member in fields(frame)]
    members: Callable[[Frame], Any] = attrgetter(*names)
    if len(names) > 1 and set(writers) == {write_var_uints}:
        return lambda frame: type_ + write_octets(write_var_uints(*members(frame)))
    return lambda frame: (
        type_
        + write_octets(b"".join([write(getattr(frame, name)) for name, write in zip(names, writers, strict=True)]))
    )


_READERS: Final[Mapping[int, tuple[type[Frame], tuple[Callable[[bytes, int, int], tuple[Any, int]], ...]]]] = {
    frame.type: (frame, tuple(member.metadata["kind"].read for member in fields(frame))) for frame in FRAMES
}
_WRITERS: Final[Mapping[type[Frame], Callable[[Frame], bytes]]] = {frame: _writer(frame) for frame in FRAMES}


def _frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    return tuple(frames)


# --- the packet: RFC 29 §5.2 -------------------------------------------------------------------------


@frozen
class StreamPacket:
    """A STREAM packet, in the clear.

    `kind` is the type of the ILP packet that it belongs on. On a Prepare `amount` is the least that the receiver should
    accept; on a reply it is what arrived, both in the receiver's minor units. A reply has the `sequence` of what it
    answers.
    """

    kind: PacketType
    sequence: int = _number(UINT64_MAX, _VAR_UINT)
    amount: int = _number(UINT64_MAX, _VAR_UINT)
    frames: tuple[Frame, ...] = field(default=(), converter=_frames)


def decode_stream(plaintext: bytes) -> StreamPacket:
    """The packet that was encrypted. Frames of unknown types, and what follows the last frame, are ignored.

    Raises `MalformedPacket`, for a version other than 1 as well.
    """
    end = len(plaintext)
    version, at = read_uint8(plaintext, 0, end)
    if version != STREAM_VERSION:
        raise MalformedPacket(f"STREAM version {version} is unknown", 0)
    kind, at = read_uint8(plaintext, at, end)
    if kind not in _KINDS:
        raise MalformedPacket(f"a STREAM packet does not belong on an ILP packet of type {kind}", 1)
    sequence, at = read_var_uint(plaintext, at, end)
    amount, at = read_var_uint(plaintext, at, end)
    count, after = read_var_uint(plaintext, at, end)
    if count > STREAM_FRAMES_MAX:
        raise MalformedPacket(f"a packet has more than {STREAM_FRAMES_MAX} frames", at)
    frames = []
    for _ in range(count):
        type_, at = read_uint8(plaintext, after, end)
        at, after = read_span(plaintext, at, end)
        if type_ in _READERS:
            frames.append(_read_frame(type_, plaintext, at, after))
    return StreamPacket(_KINDS[kind], sequence, amount, frames)


def encode_stream(packet: StreamPacket) -> bytes:
    """`packet` in the one canonical spelling, in the clear."""
    head = bytes((STREAM_VERSION, packet.kind)) + write_var_uints(packet.sequence, packet.amount, len(packet.frames))
    return head + b"".join([_WRITERS[type(frame)](frame) for frame in packet.frames])


_KINDS: Final = {int(kind): kind for kind in PacketType}


def _read_frame(type_: int, data: bytes, at: int, end: int) -> Frame:
    """The frame whose contents are `data[at:end]`. What follows its last field is ignored."""
    if end - at <= STREAM_FRAME_REMEMBERED_BYTES_MAX:
        try:
            return _remembered_frame(type_, data[at:end])
        except MalformedPacket:
            pass  # it is read once more, to say at which byte of the packet
    return _read_members(type_, data, at, end)


def _read_members(type_: int, data: bytes, at: int, end: int) -> Frame:
    frame, readers = _READERS[type_]
    members = []
    for read in readers:
        member, at = read(data, at, end)
        members.append(member)
    return frame(*members)


@lru_cache(maxsize=STREAM_FRAMES_REMEMBERED_MAX)
def _remembered_frame(type_: int, contents: bytes) -> Frame:
    """A short frame: all packets of a payment bring the same ones, so most are read once."""
    return _read_members(type_, contents, 0, len(contents))


# --- the keys: RFC 29 §5.1, §6 -----------------------------------------------------------------------


class StreamKeys:
    """What is derived from the shared secret of a payment. It is all that sender and receiver have to share.

    >>> keys = StreamKeys(b"a shared secret of 32 bytes long")
    >>> packet = StreamPacket(PacketType.PREPARE, sequence=1, amount=500, frames=[StreamMoney(1, 1)])
    >>> keys.open(keys.seal(packet, nonce=bytes(12))) == packet
    True
    """

    __slots__ = ("_cipher", "_fulfillments")

    def __init__(self, shared_secret: bytes) -> None:
        self._cipher = AESGCM(hmac.digest(shared_secret, b"ilp_stream_encryption", hashlib.sha256))
        key = hmac.digest(shared_secret, b"ilp_stream_fulfillment", hashlib.sha256)
        self._fulfillments = hmac.new(key, digestmod=hashlib.sha256)

    def __repr__(self) -> str:
        return "StreamKeys()"  # and nothing of what it holds

    def seal(self, packet: StreamPacket, *, nonce: bytes) -> bytes:
        """`packet`, encrypted: the `data` of an ILP packet. RFC 29 §5.1.1: nonce, tag, ciphertext.

        `nonce` is 12 random bytes, never the same twice: two packets under one nonce can both be read and forged.
        """
        sealed = self._cipher.encrypt(nonce, encode_stream(packet), None)
        return nonce + sealed[-_TAG_BYTES:] + sealed[:-_TAG_BYTES]

    def open(self, data: bytes) -> StreamPacket:
        """The packet that `data` is the encryption of. Raises `MalformedPacket` when it is of none."""
        tag_at, ciphertext_at = NONCE_BYTES, NONCE_BYTES + _TAG_BYTES
        try:
            plaintext = self._cipher.decrypt(data[:tag_at], data[ciphertext_at:] + data[tag_at:ciphertext_at], None)
        except (InvalidTag, ValueError):
            raise MalformedPacket("the data was not encrypted for this payment, or was changed on its way", 0) from None
        return decode_stream(plaintext)

    def fulfillment(self, data: bytes) -> bytes:
        """The preimage of the condition of a Prepare whose data is `data`, encrypted as it is."""
        mac = self._fulfillments.copy()
        mac.update(data)
        return mac.digest()


def condition_of(fulfillment: bytes) -> bytes:
    """The condition that `fulfillment` is the preimage of."""
    return hashlib.sha256(fulfillment).digest()
