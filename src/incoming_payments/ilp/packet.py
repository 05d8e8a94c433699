"""ILPv4: the Prepare, and the Fulfill or Reject that answers it. RFC 27 of the Interledger RFCs.

Decoding is strict about what it reads, and ignores bytes after what it knows (RFC 30, "Extensibility"). Encoding is
canonical. Whatever does not read is `MalformedPacket`.
"""

import enum
import re
import struct
from datetime import datetime
from typing import Final, TypeAlias

from attrs import Attribute, field, frozen

from incoming_payments.domain.payment import check_moment
from incoming_payments.errors import InvalidValue, MalformedPacket
from incoming_payments.ilp.address import IlpAddress, ilp_address
from incoming_payments.ilp.oer import (
    read_octets,
    read_span,
    read_text,
    read_uint8,
    write_length,
    write_octets,
    write_text,
)
from incoming_payments.limits import (
    ILP_DATA_BYTES_MAX,
    ILP_MESSAGE_CHARS_MAX,
    UINT64_MAX,
)

CONDITION_BYTES: Final = 32
_TIMESTAMP_CHARS: Final = 17  # YYYYMMDDHHmmSSfff
_CODE: Final = re.compile(r"[FTR][0-9]{2}")
_FIXED: Final = struct.Struct(f"!Q{_TIMESTAMP_CHARS}s{CONDITION_BYTES}s")  # amount, expiresAt, executionCondition
_NO_ADDRESS: Final = "an ILP address is not as RFC 15 has it"
_WITHOUT_MARKS: Final = str.maketrans("", "", "-T:.")
_AMOUNTS: Final = struct.Struct("!QQ")


class PacketType(enum.IntEnum):
    """The first byte of an ILP packet."""

    PREPARE = 12
    FULFILL = 13
    REJECT = 14


class ErrorCode(enum.StrEnum):
    """The error codes of RFC 27: F for final, T for temporary, R for relative to amount or time."""

    BAD_REQUEST = "F00"
    INVALID_PACKET = "F01"
    UNREACHABLE = "F02"
    INVALID_AMOUNT = "F03"
    INSUFFICIENT_DESTINATION_AMOUNT = "F04"
    WRONG_CONDITION = "F05"
    UNEXPECTED_PAYMENT = "F06"
    CANNOT_RECEIVE = "F07"
    AMOUNT_TOO_LARGE = "F08"
    FINAL_APPLICATION_ERROR = "F99"
    INTERNAL_ERROR = "T00"
    PEER_UNREACHABLE = "T01"
    PEER_BUSY = "T02"
    CONNECTOR_BUSY = "T03"
    INSUFFICIENT_LIQUIDITY = "T04"
    RATE_LIMITED = "T05"
    TEMPORARY_APPLICATION_ERROR = "T99"
    TRANSFER_TIMED_OUT = "R00"
    INSUFFICIENT_SOURCE_AMOUNT = "R01"
    INSUFFICIENT_TIMEOUT = "R02"
    RELATIVE_APPLICATION_ERROR = "R99"


_CODES: Final = frozenset(ErrorCode)


def _check_32_bytes(_: object, attribute: "Attribute[bytes]", octets: object) -> None:
    if not isinstance(octets, bytes) or len(octets) != CONDITION_BYTES:
        raise InvalidValue(f"{attribute.name} is {CONDITION_BYTES} bytes", member=attribute.name)


def _check_data(_: object, __: object, data: object) -> None:
    if not isinstance(data, bytes) or len(data) > ILP_DATA_BYTES_MAX:
        raise InvalidValue(f"data is at most {ILP_DATA_BYTES_MAX} bytes", member="data")


@frozen
class Prepare:
    """An offer of `amount` minor units of the asset that is counted with the peer it comes from.

    `expires_at` is when the peer stops waiting, in UTC; on the wire it has milliseconds, and what is finer is dropped.
    Whoever shows the 32 bytes whose SHA-256 is `condition` in time gets the money. `data` is for the receiver alone.
    Connectors change `amount` and `expires_at` and nothing else. Raises `InvalidValue`.
    """

    amount: int = field()
    expires_at: datetime = field(validator=check_moment)
    condition: bytes = field(validator=_check_32_bytes)
    destination: IlpAddress = field(converter=ilp_address)
    data: bytes = field(default=b"", validator=_check_data, repr=False)

    @amount.validator
    def _uint64(self, _: object, amount: object) -> None:
        if type(amount) is not int or not 0 <= amount <= UINT64_MAX:
            raise InvalidValue(f"amount must be an integer from 0 to {UINT64_MAX}", member="amount")


@frozen
class Fulfill:
    """The money is accepted: `fulfillment` is the preimage of the condition. `data` is for the sender alone."""

    fulfillment: bytes = field(validator=_check_32_bytes)
    data: bytes = field(default=b"", validator=_check_data, repr=False)


def _code(code: object) -> str:
    """`code`, as a member of `ErrorCode` where it is one: a later version of ILP may have others."""
    if not isinstance(code, str) or not _CODE.fullmatch(code):
        raise InvalidValue("an error code is F, T or R and two digits", member="code")
    return ErrorCode(code) if code in _CODES else code


def _address_or_nothing(address: object) -> str:
    return "" if address == "" else ilp_address(address)


@frozen
class Reject:
    """The money is not accepted. `code` is mostly an `ErrorCode`; `triggered_by` is the ILP address of who says so.

    `message` is for people, and everybody on the way can read it; `data` is the sender's alone, or explains `code`.
    Raises `InvalidValue`.
    """

    code: str = field(converter=_code)
    triggered_by: str = field(converter=_address_or_nothing)
    message: str = field(default="")
    data: bytes = field(default=b"", validator=_check_data, repr=False)

    @message.validator
    def _short(self, _: object, message: object) -> None:
        if not isinstance(message, str) or len(message) > ILP_MESSAGE_CHARS_MAX:
            raise InvalidValue(f"message is at most {ILP_MESSAGE_CHARS_MAX} characters", member="message")


Reply: TypeAlias = Fulfill | Reject


# --- decoding --------------------------------------------------------------------------------------


def decode_prepare(packet: bytes) -> Prepare:
    """The Prepare that `packet` is. Raises `MalformedPacket`, for a Fulfill or a Reject as well."""
    at, end = _contents(packet, PacketType.PREPARE)
    if at + _FIXED.size > end:
        raise MalformedPacket("amount, expiry and condition of a Prepare are cut short", at)
    amount, timestamp, condition = _FIXED.unpack_from(packet, at)
    expires_at = _moment(timestamp, at + 8)
    address_at = at + _FIXED.size
    address, data_at = read_octets(packet, address_at, end)
    data = _data(packet, data_at, end)
    try:
        return Prepare(amount, expires_at, condition, address.decode("ascii"), data)
    except (InvalidValue, UnicodeDecodeError):  # of the address: all else has been read as what it is
        raise MalformedPacket(_NO_ADDRESS, address_at) from None


def decode_reply(packet: bytes) -> Reply:
    """The Fulfill or Reject that `packet` is. Raises `MalformedPacket`, for a Prepare as well."""
    if packet[:1] == bytes((PacketType.FULFILL,)):
        at, end = _contents(packet, PacketType.FULFILL)
        if at + CONDITION_BYTES > end:
            raise MalformedPacket("a fulfillment is cut short", at)
        fulfillment = packet[at : at + CONDITION_BYTES]
        return Fulfill(fulfillment, _data(packet, at + CONDITION_BYTES, end))
    at, end = _contents(packet, PacketType.REJECT)
    code = packet[at : min(at + 3, end)].decode("ascii", "replace")
    if not _CODE.fullmatch(code):
        raise MalformedPacket("an error code is F, T or R and two digits", at)
    triggered_by, message_at = read_octets(packet, at + 3, end)
    address = _address(triggered_by, at + 3) if triggered_by else ""
    message, data_at = read_text(packet, message_at, end)
    if len(message) > ILP_MESSAGE_CHARS_MAX:
        raise MalformedPacket(f"a message has more than {ILP_MESSAGE_CHARS_MAX} characters", message_at)
    return Reject(code, address, message, _data(packet, data_at, end))


def read_amounts(data: bytes) -> tuple[int, int]:
    """What the `data` of an F08 says: the amount that came, and the largest that would do. Raises `MalformedPacket`."""
    if len(data) < _AMOUNTS.size:
        raise MalformedPacket("the amounts of an F08 are cut short", 0)
    received, maximum = _AMOUNTS.unpack_from(data)
    return received, maximum


def _contents(packet: bytes, expected: PacketType) -> tuple[int, int]:
    """Where the contents of a packet of type `expected` begin, and where they end."""
    kind, at = read_uint8(packet, 0, len(packet))
    if kind != expected:
        raise MalformedPacket(f"a packet of type {kind} is not a {expected.name.capitalize()}", 0)
    return read_span(packet, at, len(packet))


def _moment(timestamp: bytes, at: int) -> datetime:
    """An Interledger timestamp. RFC 30: 17 digits, in UTC; no leap second, and midnight is of the following day."""
    if timestamp.isdigit() and timestamp[8:10] != b"24":  # which newer Pythons read as the following day
        text = timestamp.decode("ascii")
        try:
            return datetime.fromisoformat(f"{text[:8]}T{text[8:14]}.{text[14:]}Z")
        except ValueError:
            pass
    raise MalformedPacket("a timestamp is not YYYYMMDDHHmmSSfff", at)


def _address(octets: bytes, at: int) -> IlpAddress:
    try:
        return ilp_address(octets.decode("ascii"))
    except (InvalidValue, UnicodeDecodeError):
        raise MalformedPacket(_NO_ADDRESS, at) from None


def _data(packet: bytes, at: int, end: int) -> bytes:
    data, _ = read_octets(packet, at, end)
    if len(data) > ILP_DATA_BYTES_MAX:
        raise MalformedPacket(f"data has more than {ILP_DATA_BYTES_MAX} bytes", at)
    return data


# --- encoding --------------------------------------------------------------------------------------


def encode(packet: Prepare | Reply) -> bytes:
    """`packet` on the wire, in the one canonical spelling.

    >>> encode(Fulfill(bytes(32))).hex()
    '0d21000000000000000000000000000000000000000000000000000000000000000000'
    """
    if isinstance(packet, Fulfill):
        return _wrap(PacketType.FULFILL, packet.fulfillment + write_octets(packet.data))
    if isinstance(packet, Reject):
        named = packet.code.encode("ascii") + write_octets(packet.triggered_by.encode("ascii"))
        return _wrap(PacketType.REJECT, named + write_text(packet.message) + write_octets(packet.data))
    fixed = _FIXED.pack(packet.amount, _timestamp(packet.expires_at), packet.condition)
    return _wrap(
        PacketType.PREPARE, fixed + write_octets(packet.destination.encode("ascii")) + write_octets(packet.data)
    )


def write_amounts(received: int, maximum: int) -> bytes:
    """The `data` of an F08: the amount that came, and the largest that would do, both in the receiver's minor units."""
    return _AMOUNTS.pack(received, maximum)


def _wrap(kind: PacketType, contents: bytes) -> bytes:
    return bytes((kind,)) + write_length(len(contents)) + contents


def _timestamp(moment: datetime) -> bytes:
    # Not strftime: what it does with years below 1000 depends on the platform.
    text = moment.isoformat(timespec="milliseconds")[:23]
    return text.translate(_WITHOUT_MARKS).encode("ascii")
