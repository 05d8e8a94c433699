"""Bodies of create requests, harmless and hostile, and what a stranger makes the service spend on one."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from campaigns.cost.measure import repeated
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.endpoints.open_payments import Request, handle
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap import StaticIntrospector
from incoming_payments.limits import BODY_BYTES_MAX

BODIES_MAX: Final = BODY_BYTES_MAX
COST_MAX: Final = 6.0  # of any body, relative to a harmless one of the same size
_NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
_POLICY: Final = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
_HEADERS: Final = (("Content-Type", "application/json"), ("Authorization", "GNAP x"))


class NoAddresses:
    """A service that hosts no wallet address."""

    def find(self, _: WalletAddressUrl) -> None:
        """Return no wallet address."""


_PORTS: Final = Ports(introspector=StaticIntrospector([]), wallet_addresses=NoAddresses())


def refused_create(body: bytes) -> None:
    """Answer a create request with this `body` and an unknown token."""
    request = Request("POST", "/incoming-payments", headers=_HEADERS, body=body)
    assert run(handle(request, policy=_POLICY, now=_NOW), _PORTS).status == 401


HEAD_BYTES: Final = 60_000  # of one header field, on four lines: a request may have 65,536 bytes of them
HEAD_NAMES: Final = (
    "Accept",
    "Accept-Encoding",
    "Authorization",
    "Content-Digest",
    "Content-Type",
    "Cookie",
    "Idempotency-Key",
    "Signature",
    "Signature-Input",
)
HEAD_WORDS: Final = (b"*/*,", b"a;q=0,", b",", b" ", b"a/<nnnn>,", b"a=1;", b'a="b",', b"a=(),", b"a=:AA==:,", b"GNAP ")


def refused_list(name: str, value: bytes) -> None:
    """Answer a list request with this header field and, in other fields, an unknown token."""
    text, quarter = value.decode("ascii"), len(value) // 4
    lines = [(name, text[at : at + quarter]) for at in range(0, 4 * quarter, quarter)]
    request = Request("GET", "/incoming-payments", headers=(*_HEADERS[1:], *lines))
    assert run(handle(request, policy=_POLICY, now=_NOW), _PORTS).status in (401, 406)


CREATE: Final = b'{"walletAddress":"https://bank.example/alice","metadata":{"a":['
FRAMES: Final = ((CREATE, b"0]}}"), (b"[", b"0]"), (b"[", b"[" * 33 + b"]" * 34), (b"{", b'"x":0}'), (b"", b""))
_LINE: Final = b'{"sku":"AB-1234","description":"Blue pen","quantity":2,"price":"1.20"},'


def harmless(size: int = BODIES_MAX) -> bytes:
    """Return a create request of `size` bytes with the lines of an invoice, more than the service stores."""
    return repeated((CREATE, b"0]}}"), _LINE, size)


# Pieces of JSON that have cost more than others: numbers, empty containers, repeated names, escapes, deep nesting
HOSTILE_WORDS: Final = (
    b"NaN,",
    b"-Infinity,",
    b"1,",
    b"-0,",
    b"0.1,",
    b"1e1,",
    b"1.50,",
    b"1e400,",
    b"1e-310,",
    b"0.0,",
    b"[],",
    b"{},",
    b'"",',
    b'"a":0,',
    b'"a":"a",',
    b'{"a":0,"a":0},',
    b'{"":0},',
    b"null,",
    b"true,",
    b"[",
    b"{",
    b'{"a":',
    b"\\u0000",
    b'"\\ud800",',
    b'"\\\\",',
    b'"a",',
    b'\\"',
    b" ",
    b"\n",
    b"[1,{}],",
    b"1" * 4300 + b",",
    b"9" * 64 + b",",
    b"[[[[[[[[]]]]]]]],",
    b"[" * 900 + b"]" * 900 + b",",
    b'"\xc3\xa9",',
    b"1.2345678901234567e-290,",
    b"0.30000000000000004,",
    b'"<nnnn>":0,',
    b'{"<nnnn>":0},',
    b'"<nnnn>",',
    b"<nnnn>",
    b"0.<nnnn>,",
)


def generated(seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` bodies of the limit's size: some words in random order, or random documents."""
    chosen = random.Random(seed)
    for _ in range(count):
        before, after = chosen.choice(FRAMES)
        words = chosen.choices(HOSTILE_WORDS, k=chosen.choice((1, 2, 5, 50)))
        yield repeated((before, after), b"".join(words), BODIES_MAX)
        names = [json.dumps("".join(chosen.choices("ab\u00e9\\", k=3))) for _ in range(chosen.choice((2, 2000)))]
        piece = "".join(
            f"{chosen.choice(names)}:{chosen.choice(('0', '[]', '{}', 'NaN', '0.5'))}," for _ in range(6000)
        )
        yield (before + b"{" + piece.encode() + b'"x":0}' + after)[:BODIES_MAX]
