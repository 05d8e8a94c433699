"""STREAM (Interledger RFC 29): the encrypted packets in the data of ILP packets, and their keys.

This module reads and writes packets and makes no decisions. The keys are derived from the shared secret of one payment:

```
encryption key    HMAC-SHA256(shared secret, "ilp_stream_encryption")     of AES-256-GCM
fulfillment key   HMAC-SHA256(shared secret, "ilp_stream_fulfillment")
fulfillment       HMAC-SHA256(fulfillment key, data); the data is the encrypted packet
condition         SHA-256(fulfillment)
```

`StreamReceipt` frames (type 0x17) are not supported. The decoder skips them, like every frame of an unknown type.
"""

import enum
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from attrs import Attribute, field, fields, frozen
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from incoming_payments.domain.checks import instance
from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp import oer
from incoming_payments.ilp.oer import read_span, read_uint8, read_var_uint, write_octets, write_var_uint
from incoming_payments.ilp.packet import PacketType
from incoming_payments.limits import STREAM_FRAMES_MAX, UINT64_MAX

STREAM_VERSION: Final = 1
NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_KINDS: Final = {int(kind): kind for kind in PacketType}


class StreamError(enum.IntEnum):
    """The reasons for which the service closes a stream or a connection, of those in RFC 29 §5.4."""

    NO_ERROR = 0x01
    APPLICATION_ERROR = 0x09


@frozen
class _Codec:
    """The functions that read and write one field of a frame."""

    read: Callable[[bytes, int, int], tuple[Any, int]]
    write: Callable[[Any], bytes]


_VAR_UINT: Final = _Codec(oer.read_var_uint, oer.write_var_uint)
_SATURATED: Final = _Codec(oer.read_saturated_uint, oer.write_var_uint)


def _uint(most: int = UINT64_MAX, codec: _Codec = _VAR_UINT) -> Any:
    def check(_: object, attribute: "Attribute[int]", value: object) -> None:
        if not isinstance(value, int) or not 0 <= value <= most:
            raise InvalidValue(f"{attribute.name} must be an integer from 0 to {most}", member=attribute.name)

    return field(validator=check, metadata={"codec": codec})


def _uint8() -> Any:
    return _uint(255, _Codec(oer.read_uint8, oer.write_uint8))


def _text() -> Any:
    return field(validator=instance(str), metadata={"codec": _Codec(oer.read_text, oer.write_text)})


def _octets() -> Any:
    return field(validator=instance(bytes), metadata={"codec": _Codec(oer.read_octets, oer.write_octets)})


# The frames of RFC 29 §5.3
@frozen
class ConnectionClose:
    """The sender closes the connection. `code` is an error code of RFC 29 §5.4. `message` is for people."""

    code: int = _uint8()
    message: str = _text()


@frozen
class ConnectionNewAddress:
    """The ILP address of the endpoint. The address is empty when the endpoint has no address and only requests the
    asset of this receiver."""

    address: str = _text()


@frozen
class ConnectionMaxData:
    """The total number of bytes that the other endpoint may send on the connection."""

    max_offset: int = _uint()


@frozen
class ConnectionDataBlocked:
    """The total number of bytes that the endpoint wants to send on the connection."""

    max_offset: int = _uint()


@frozen
class ConnectionMaxStreamId:
    """The highest stream id that the other endpoint may open."""

    max_stream_id: int = _uint()


@frozen
class ConnectionStreamIdBlocked:
    """The highest stream id that the endpoint wants to open."""

    max_stream_id: int = _uint()


@frozen
class ConnectionAssetDetails:
    """The asset of the amounts of the endpoint."""

    asset_code: str = _text()
    asset_scale: int = _uint8()


@frozen
class StreamClose:
    """The sender closes the stream. `code` is an error code of RFC 29 §5.4. `message` is for people."""

    stream_id: int = _uint()
    code: int = _uint8()
    message: str = _text()


@frozen
class StreamMoney:
    """The part of the packet's amount for this stream: its `shares` divided by the shares of all streams."""

    stream_id: int = _uint()
    shares: int = _uint()


@frozen
class StreamMaxMoney:
    """The total that the endpoint accepts on the stream, and the total that it has received, in its own minor units."""

    stream_id: int = _uint()
    receive_max: int = _uint(codec=_SATURATED)
    total_received: int = _uint()


@frozen
class StreamMoneyBlocked:
    """The totals that the endpoint wants to send and has sent on the stream, in its own minor units."""

    stream_id: int = _uint()
    send_max: int = _uint(codec=_SATURATED)
    total_sent: int = _uint()


@frozen
class StreamData:
    """Bytes of the stream, and the offset of the first byte."""

    stream_id: int = _uint()
    offset: int = _uint()
    data: bytes = _octets()


@frozen
class StreamMaxData:
    """The total number of bytes that the other endpoint may send on the stream."""

    stream_id: int = _uint()
    max_offset: int = _uint()


@frozen
class StreamDataBlocked:
    """The total number of bytes that the endpoint wants to send on the stream."""

    stream_id: int = _uint()
    max_offset: int = _uint()


Frame: TypeAlias = (
    ConnectionClose | ConnectionNewAddress | ConnectionMaxData | ConnectionDataBlocked
    | ConnectionMaxStreamId | ConnectionStreamIdBlocked | ConnectionAssetDetails
    | StreamClose | StreamMoney | StreamMaxMoney | StreamMoneyBlocked | StreamData | StreamMaxData | StreamDataBlocked
)  # fmt: skip
FRAMES: Final[Mapping[int, type[Frame]]] = {  # RFC 29 §5.3
    0x01: ConnectionClose,
    0x02: ConnectionNewAddress,
    0x03: ConnectionMaxData,
    0x04: ConnectionDataBlocked,
    0x05: ConnectionMaxStreamId,
    0x06: ConnectionStreamIdBlocked,
    0x07: ConnectionAssetDetails,
    0x10: StreamClose,
    0x11: StreamMoney,
    0x12: StreamMaxMoney,
    0x13: StreamMoneyBlocked,
    0x14: StreamData,
    0x15: StreamMaxData,
    0x16: StreamDataBlocked,
}
_TYPES: Final = {frame: number for number, frame in FRAMES.items()}
_CODECS: Final = {frame: [(each.name, each.metadata["codec"]) for each in fields(frame)] for frame in _TYPES}


@frozen
class StreamPacket:
    """A decrypted STREAM packet. RFC 29 §5.2.

    `kind` is the type of the ILP packet that carries the STREAM packet. `amount` is in the receiver's minor units. In a
    Prepare, `amount` is the minimum that the receiver should accept. In a reply, `amount` is the amount that arrived. A
    reply has the `sequence` of the packet that it answers.
    """

    kind: PacketType
    sequence: int = _uint()
    amount: int = _uint()
    frames: tuple[Frame, ...] = field(default=(), converter=tuple[Frame, ...])


def decode_stream(plaintext: bytes) -> StreamPacket:
    """Return the packet in `plaintext`. Frames of unknown types and bytes after the last frame are ignored.

    Raises `MalformedPacket` for an invalid packet, and for a version other than 1.
    """
    end = len(plaintext)
    version, at = read_uint8(plaintext, 0, end)
    if version != STREAM_VERSION:
        raise MalformedPacket(f"STREAM version {version} is not supported: use version 1", 0)
    kind, at = read_uint8(plaintext, at, end)
    if kind not in _KINDS:
        raise MalformedPacket(f"{kind} is not the type of an ILP packet that carries STREAM", 1)
    sequence, at = read_var_uint(plaintext, at, end)
    amount, at = read_var_uint(plaintext, at, end)
    count, after = read_var_uint(plaintext, at, end)
    if count > STREAM_FRAMES_MAX:
        raise MalformedPacket(f"a STREAM packet has more than {STREAM_FRAMES_MAX} frames", at)
    frames = []
    for _ in range(count):
        type_, at = read_uint8(plaintext, after, end)
        at, after = read_span(plaintext, at, end)
        if type_ in FRAMES:
            frames.append(_read_frame(FRAMES[type_], plaintext, at, after))
    return StreamPacket(_KINDS[kind], sequence, amount, frames)


def encode_stream(packet: StreamPacket) -> bytes:
    """Return the canonical encoding of `packet`, before its encryption."""
    head = bytes((STREAM_VERSION, packet.kind)) + write_var_uint(packet.sequence) + write_var_uint(packet.amount)
    return head + write_var_uint(len(packet.frames)) + b"".join([_write_frame(frame) for frame in packet.frames])


def _read_frame(frame: type[Frame], data: bytes, at: int, end: int) -> Frame:
    """Read the fields of a frame from `data[at:end]`. Bytes after the last field are ignored."""
    members = []
    for _, codec in _CODECS[frame]:
        member, at = codec.read(data, at, end)
        members.append(member)
    return frame(*members)


def _write_frame(frame: Frame) -> bytes:
    contents = b"".join([codec.write(getattr(frame, name)) for name, codec in _CODECS[type(frame)]])
    return bytes((_TYPES[type(frame)],)) + write_octets(contents)


class StreamKeys:
    """The keys that a sender and this receiver derive from the shared secret of a payment. RFC 29 §5.1, §6.

    >>> keys = StreamKeys(b"a shared secret of 32 bytes long")
    >>> packet = StreamPacket(PacketType.PREPARE, sequence=1, amount=500, frames=[StreamMoney(1, 1)])
    >>> keys.open(keys.seal(packet, nonce=bytes(12))) == packet
    True
    """

    def __init__(self, shared_secret: bytes) -> None:
        self._cipher = AESGCM(hmac.digest(shared_secret, b"ilp_stream_encryption", hashlib.sha256))
        self._fulfillment_key = hmac.digest(shared_secret, b"ilp_stream_fulfillment", hashlib.sha256)

    def __repr__(self) -> str:
        return "StreamKeys()"  # the text must not show a key

    def seal(self, packet: StreamPacket, *, nonce: bytes) -> bytes:
        """Encrypt `packet`, and return the `data` of an ILP packet: nonce, tag and ciphertext (RFC 29 §5.1.1).

        `nonce` is 12 random bytes. Never use a nonce twice, because an attacker could then decrypt and forge packets.
        """
        sealed = self._cipher.encrypt(nonce, encode_stream(packet), None)
        return nonce + sealed[-_TAG_BYTES:] + sealed[:-_TAG_BYTES]

    def open(self, data: bytes) -> StreamPacket:
        """Decrypt `data`, and return the STREAM packet. Raise `MalformedPacket` when `data` is not authentic."""
        tag_at, ciphertext_at = NONCE_BYTES, NONCE_BYTES + _TAG_BYTES
        try:
            plaintext = self._cipher.decrypt(data[:tag_at], data[ciphertext_at:] + data[tag_at:ciphertext_at], None)
        except (InvalidTag, ValueError):
            raise MalformedPacket("the data was not encrypted for this payment, or was changed in transit", 0) from None
        return decode_stream(plaintext)

    def fulfillment(self, data: bytes) -> bytes:
        """Return the fulfillment of a Prepare with this encrypted `data`, which is the preimage of the condition."""
        return hmac.digest(self._fulfillment_key, data, hashlib.sha256)


def condition_of(fulfillment: bytes) -> bytes:
    """Return the condition of which `fulfillment` is the preimage."""
    return hashlib.sha256(fulfillment).digest()
