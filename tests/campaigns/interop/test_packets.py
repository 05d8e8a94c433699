"""Random packets, between this library and npm `ilp-packet` and `ilp-protocol-stream`, in both directions.

For each packet, both sides write the same bytes from its fields, and each side reads the fields from the other's bytes.
A failure prints the seed. To repeat it, set INCOMING_PAYMENTS_SEED.
"""

import json
import os
import random
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import astuple, evolve, fields

from incoming_payments.ilp.packet import ErrorCode, Fulfill, PacketType, Prepare, Reject, decode_prepare, encode
from incoming_payments.ilp.stream import (
    FRAMES,
    Frame,
    StreamKeys,
    StreamPacket,
    condition_of,
    decode_stream,
    encode_stream,
)
from incoming_payments.limits import UINT64_MAX
from incoming_payments.testing.replies import decode_reply
from kits.node_packages import installed

PACKAGES: Final = {"ilp-packet": "3.1.3", "ilp-protocol-stream": "2.7.1"}
SCRIPT: Final = Path(__file__).with_name("packets.mjs")
COUNT: Final = 200  # of each kind
SEED: Final = int(os.environ.get("INCOMING_PAYMENTS_SEED") or random.randrange(2**32))
SECRET: Final = bytes(range(32))
SEGMENT: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_~-"
SCHEMES: Final = ("g", "private", "example", "peer", "self", "test", "test1", "test2", "test3", "local")
_BYTES: Final = {"asset_scale", "code"}  # the fields of one byte


# --- random packets -------------------------------------------------------------------------------


def an_integer(draw: random.Random) -> int:
    """Return an integer of any size, often at an edge."""
    edge = draw.choice((0, 1, 127, 128, 255, 256, 2**31, 2**53, 2**63, UINT64_MAX))
    return draw.choice((edge, draw.getrandbits(draw.randrange(1, 65))))


def some_bytes(draw: random.Random) -> bytes:
    """Return few or many bytes, around the lengths at which the length prefix grows."""
    return draw.randbytes(draw.choice((0, 1, 127, 128, 255, 256, draw.randrange(600))))


def a_text(draw: random.Random) -> str:
    return "".join(draw.choice("a é€😀") for _ in range(draw.choice((0, 1, 3, 40, 130))))


def an_address(draw: random.Random) -> str:
    segments = ["".join(draw.choices(SEGMENT, k=draw.choice((1, 8, 43, 120)))) for _ in range(draw.randrange(1, 6))]
    return ".".join([draw.choice(SCHEMES), *segments])


def a_prepare(draw: random.Random) -> Prepare:
    expires_at = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(milliseconds=draw.randrange(10**13))
    return Prepare(an_integer(draw), expires_at, draw.randbytes(32), an_address(draw), some_bytes(draw))


def a_fulfill(draw: random.Random) -> Fulfill:
    return Fulfill(draw.randbytes(32), some_bytes(draw))


def a_reject(draw: random.Random) -> Reject:
    triggered_by = draw.choice(("", an_address(draw)))
    return Reject(draw.choice(list(ErrorCode)), triggered_by, a_text(draw), some_bytes(draw))


def a_frame(draw: random.Random) -> Frame:
    kind = draw.choice(list(FRAMES.values()))
    return kind(*(_member(draw, member) for member in fields(kind)))


def _member(draw: random.Random, member: Any) -> Any:
    if member.name in _BYTES:
        return draw.randrange(256)
    return {int: an_integer, str: a_text, bytes: some_bytes}[member.type](draw)


def a_stream_packet(draw: random.Random) -> StreamPacket:
    frames = [a_frame(draw) for _ in range(draw.choice((0, 1, 2, 5, 20)))]
    return StreamPacket(draw.choice(list(PacketType)), an_integer(draw), an_integer(draw), frames)


# --- the fields, in the form of the other side -------------------------------------------------------------


def of_prepare(packet: Prepare) -> dict[str, Any]:
    return {
        "amount": str(packet.amount),
        "expiresAt": packet.expires_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "condition": packet.condition.hex(),
        "destination": packet.destination,
        "data": packet.data.hex(),
    }


def of_fulfill(packet: Fulfill) -> dict[str, Any]:
    return {"fulfillment": packet.fulfillment.hex(), "data": packet.data.hex()}


def of_reject(packet: Reject) -> dict[str, Any]:
    return {
        "code": packet.code,
        "triggeredBy": packet.triggered_by,
        "message": packet.message,
        "data": packet.data.hex(),
    }


def of_stream(packet: StreamPacket) -> dict[str, Any]:
    return {
        "kind": int(packet.kind),
        "sequence": str(packet.sequence),
        "amount": str(packet.amount),
        "frames": [_of_frame(frame) for frame in packet.frames],
    }


def _of_frame(frame: Frame) -> list[Any]:
    names = [member.name for member in fields(type(frame))]
    return [type(frame).__name__, *map(_of_member, names, astuple(frame))]


def _of_member(name: str, value: int | str | bytes) -> dict[str, Any]:
    if isinstance(value, int):
        return {"number": value} if name in _BYTES else {"integer": str(value)}
    return {"text": value} if isinstance(value, str) else {"bytes": value.hex()}


# --- both sides --------------------------------------------------------------------------------------

Case = tuple[Any, bytes]  # a packet, and our bytes of it
KEYS: Final = StreamKeys(SECRET)


def cases() -> dict[str, list[Case]]:
    """Return the packets of each kind."""
    draw = random.Random(SEED)

    def many(make: Callable[[random.Random], Any], write: Callable[[Any], bytes]) -> list[Case]:
        packets = [make(draw) for _ in range(COUNT)]
        return [(packet, write(packet)) for packet in packets]

    return {
        "prepares": many(a_prepare, encode),
        "fulfills": many(a_fulfill, encode),
        "rejects": many(a_reject, encode),
        "streams": many(a_stream_packet, encode_stream),
        "sealed": many(a_stream_packet, lambda packet: KEYS.seal(packet, nonce=draw.randbytes(12))),
    }


DESCRIBE: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "prepares": of_prepare,
    "fulfills": of_fulfill,
    "rejects": of_reject,
    "streams": of_stream,
    "sealed": of_stream,
}
READ: Final[dict[str, Callable[[bytes], Any]]] = {
    "prepares": decode_prepare,
    "fulfills": decode_reply,
    "rejects": decode_reply,
    "streams": decode_stream,
    "sealed": KEYS.open,
}


@pytest.fixture(scope="module")
def ours() -> dict[str, list[Case]]:
    """Return the packets and our bytes of them."""
    return cases()


@pytest.fixture(scope="module")
def theirs(
    ours: dict[str, list[Case]], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """Return the results of the Node libraries for each packet."""
    folder = installed(PACKAGES, request, tmp_path_factory)
    given: dict[str, Any] = {
        name: [{"fields": DESCRIBE[name](packet), "packet": octets.hex()} for packet, octets in packets]
        for name, packets in ours.items()
    }
    node = ["node", str(SCRIPT), str(folder)]
    text = json.dumps({"secret": SECRET.hex(), **given})
    done = subprocess.run(node, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"seed {SEED}: {done.stderr}"
    answer: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("kind", DESCRIBE)
def test_they_read_what_we_write(
    kind: str, ours: dict[str, list[Case]], theirs: dict[str, list[dict[str, Any]]]
) -> None:
    """The Node libraries read each of our packets with its fields."""
    expected = [DESCRIBE[kind](packet) for packet, _ in ours[kind]]
    assert expected == [row["read"] for row in theirs[kind]], f"seed {SEED}"


@pytest.mark.parametrize("kind", DESCRIBE)
def test_we_read_what_they_write(
    kind: str, ours: dict[str, list[Case]], theirs: dict[str, list[dict[str, Any]]]
) -> None:
    """This library reads each of their packets with its fields."""
    expected = [packet for packet, _ in ours[kind]]
    assert expected == [READ[kind](bytes.fromhex(row["written"])) for row in theirs[kind]], f"seed {SEED}"


@pytest.mark.parametrize("kind", DESCRIBE)
def test_the_bytes_are_the_same(
    kind: str, ours: dict[str, list[Case]], theirs: dict[str, list[dict[str, Any]]]
) -> None:
    """Both sides write the same bytes, also the encrypted ones under the same nonce."""
    written = "resealed" if kind == "sealed" else "written"
    assert [octets.hex() for _, octets in ours[kind]] == [row[written] for row in theirs[kind]], f"seed {SEED}"


def test_fulfillments_are_the_same(theirs: dict[str, list[dict[str, Any]]]) -> None:
    """Both sides derive the same fulfillment and condition for their packets."""
    for row in theirs["sealed"]:
        fulfillment = KEYS.fulfillment(bytes.fromhex(row["written"]))
        assert (fulfillment.hex(), condition_of(fulfillment).hex()) == (row["fulfillment"], row["condition"])


def test_the_comparison_can_fail(theirs: dict[str, list[dict[str, Any]]]) -> None:
    """The comparison notices one changed field."""
    row = theirs["prepares"][0]
    packet = decode_prepare(bytes.fromhex(row["written"]))
    assert of_prepare(packet) == row["read"]
    assert of_prepare(evolve(packet, amount=packet.amount ^ 1)) != row["read"]
