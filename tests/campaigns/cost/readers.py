"""Each part of the library that reads bytes from outside, with the words of its language."""

import http.server
import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, get_args

from campaigns.cost.bodies import BODIES_MAX, HOSTILE_WORDS, NoAddresses, refused_create
from campaigns.cost.measure import Reader
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.methods import ilp_address
from incoming_payments.domain.payment import client_id, wallet_address_url
from incoming_payments.domain.urls import canonical_url, header_safe_url
from incoming_payments.endpoints.open_payments import Request, handle
from incoming_payments.errors import IncomingPaymentsError, SignatureRefused
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap import StaticIntrospector, read_introspection
from incoming_payments.gnap.introspection import Dialect
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.hosts._paths import encoded, origin_form
from incoming_payments.httpsig import (
    Evidence,
    Policy,
    PrivateKey,
    RequestMessage,
    Shape,
    key_ids,
    load_jwk,
    parse_signature,
    parse_signature_input,
    parse_string,
    verify,
    verify_digest,
)
from incoming_payments.httpsig.explain import explain
from incoming_payments.ilp.packet import decode_prepare
from incoming_payments.ilp.stream import decode_stream
from incoming_payments.limits import (
    DOCUMENT_BYTES_MAX,
    HEADER_BYTES_MAX,
    ILP_DATA_BYTES_MAX,
    ILP_PREPARE_BYTES_MAX,
    INTROSPECTION_BYTES_MAX,
    JWK_CHARS_MAX,
    SF_CHARS_MAX,
    SF_STRICT_CHARS_MAX,
    TARGET_CHARS_MAX,
)
from incoming_payments.outbound.client_keys import HttpClientKeys
from incoming_payments.outbound.wallet_addresses import HttpWalletAddresses
from incoming_payments.wire import parse_date_time, read_create_request, read_list_request

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
KEY: Final = PrivateKey.generate_ed25519("k")
POLICY: Final = ServicePolicy(base_url="https://bank.example", auth_server="https://auth.bank.example")
PORTS: Final = Ports(introspector=StaticIntrospector([]), wallet_addresses=NoAddresses())
URL: Final = "https://bank.example/incoming-payments"
CREATED: Final = b";created=%d" % NOW.timestamp()
FIELD_WORDS: Final = (
    b"a",
    b"sig1",
    b"=",
    b"(",
    b")",
    b'"',
    b'"@method"',
    b'"a"',
    b"\\",
    b'\\"',
    b";",
    b",",
    b" ",
    b"\t",
    b":",
    b":AA==:",
    b"?1",
    b"1",
    b"1.5",
    b"@1",
    b'%"',
    b"%",
    b"/",
    b"*",
    b"-",
    b"created=",
    b"sha-512=",
    b"\xe9",
    b"a<nnnn>=1,",
    b";a<nnnn>",
    b'"a<nnnn>" ',
    b"s<nnnn>=:AA==:, ",
    b"s<nnnn>=();created=1, ",
)
URL_WORDS: Final = (
    b"a",
    b"/",
    b".",
    b"..",
    b"%2e",
    b"%2f",
    b"%",
    b"%c3%a9",
    b"?",
    b"&",
    b"=",
    b"#",
    b"@",
    b":",
    b"[",
    b"]",
    b"\\",
    b"+",
    b";",
    b"//",
    b"http://",
    b"1",
    b" ",
    b"a=b&",
    b"a<nnnn>=1&",
    b"/<nnnn>",
)


def refusing(read: Callable[[Any], object], to: Callable[[bytes], Any] = bytes) -> Callable[[bytes], None]:
    """Return `read` for bytes, which are first given to `to`. The errors of the library are swallowed."""

    def call(data: bytes) -> None:
        with suppress(IncomingPaymentsError):
            read(to(data))

    return call


def text(data: bytes) -> str:
    """Return field bytes as servers pass them on."""
    return data.decode("latin-1")


def line(data: bytes) -> list[str]:
    """Return the only line of a field."""
    return [text(data)]


def of_stranger(**parts: Any) -> object:
    """Answer a request with an unknown token."""
    headers = (("Authorization", "GNAP x"), *parts.pop("headers", ()))
    request = Request(parts.pop("method", "GET"), parts.pop("path", "/incoming-payments"), headers=headers, **parts)
    return run(handle(request, policy=POLICY, now=NOW), PORTS)


def signed(*fields: tuple[str, str], uri: str = URL, body: bytes = b"") -> RequestMessage:
    """Return a request with signature `fields`, which may be invalid."""
    return RequestMessage("GET", uri, (("Authorization", "GNAP x"), *fields), body)


def verified(build: Callable[[bytes], RequestMessage], explained: bool, data: bytes) -> None:
    """Verify the request that `build` makes of `data`, and explain its refusal if it is to be `explained`."""
    request = build(data)
    policy = Policy(shapes=frozenset(Shape))
    try:
        key_ids(request, policy)
        verify(request, {"k": KEY.public_key()}, policy=policy, now=NOW)
    except SignatureRefused as refusal:
        if explained:
            explain(refusal, Evidence(request, {"k": KEY.public_key()}, policy, NOW))


COVERED: Final = '"@method" "@target-uri" "authorization"'


def with_input(data: bytes) -> RequestMessage:
    """Return a request with this `Signature-Input`."""
    return signed(("Signature-Input", text(data)), ("Signature", "sig1=:AA==:"))


def with_signature(data: bytes) -> RequestMessage:
    """Return a request with this `Signature`."""
    return signed(("Signature-Input", f'sig1=({COVERED}){text(CREATED)};keyid="k"'), ("Signature", text(data)))


def covering(component: str) -> Callable[[bytes], RequestMessage]:
    """Return how to make a request with a field, of which the signature covers `component`."""

    def request(data: bytes) -> RequestMessage:
        given = f'sig1=({COVERED} {component}){text(CREATED)};keyid="k"'
        return signed(("Signature-Input", given), ("Signature", "sig1=:AA==:"), ("Cache-Control", text(data)))

    return request


def with_digest(data: bytes) -> RequestMessage:
    """Return a request with a body and this `Content-Digest`, which is covered."""
    given = f'sig1=({COVERED} "content-digest"){text(CREATED)};keyid="k"'
    fields = ("Signature-Input", given), ("Signature", "sig1=:AA==:"), ("Content-Digest", text(data))
    return signed(*fields, body=b'{"a": 1}')


def with_target(data: bytes) -> RequestMessage:
    """Return a request for a URL, of which the signature covers a member of the query."""
    given = f'sig1=({COVERED} "@path" "@query-param";name="a"){text(CREATED)};keyid="k"'
    return signed(("Signature-Input", given), ("Signature", "sig1=:AA==:"), uri=f"{URL}{text(data)}")


def both(
    name: str, build: Callable[[bytes], RequestMessage], *frames: tuple[bytes, bytes], **more: Any
) -> list[Reader]:
    """Return the readers that verify a request, without and with the explanation."""
    made: dict[str, Any] = {
        "words": FIELD_WORDS,
        "bytes_max": HEADER_BYTES_MAX,
        "frames": frames or ((b"", b""),),
        **more,
    }
    return [
        Reader(
            f"{name}{', explained' * explained}",
            partial(verified, build, explained),
            **made,
        )
        for explained in (False, True)
    ]


SIGNATURES: Final = [
    *both(
        "Signature-Input",
        with_input,
        (b"", b""),
        (b"sig1=(", b")" + CREATED + b';keyid="k"'),
        (b'sig1=("@method"', b")" + CREATED + b';keyid="k"'),
        (b'sig1=("@method")' + CREATED + b';keyid="k";a=', b""),
        (b'sig1=("@method")' + CREATED + b';keyid="k";tag="', b'"'),
        (b"sig1=(@method", b")" + CREATED + b';keyid="k"'),
        bytes_max=SF_CHARS_MAX,
    ),
    *both("Signature", with_signature, (b"", b""), (b"sig1=:", b":"), (b"sig1=:", b""), (b"sig1=", b"")),
    *both("covered field", covering('"cache-control"')),
    *both("covered field;bs", covering('"cache-control";bs')),
    *both(
        "covered field;sf",
        covering('"cache-control";sf'),
        (b"a=(", b")"),
        (b"", b""),
        bytes_max=SF_STRICT_CHARS_MAX,
    ),
    *both(
        "covered field;key",
        covering('"cache-control";key="a"'),
        (b'a="', b'"'),
        (b"", b""),
        bytes_max=SF_STRICT_CHARS_MAX,
    ),
    *both("Content-Digest", with_digest, (b"", b""), (b"sha-512=:", b":"), (b"sha-512=", b"")),
    *both(
        "target URI",
        with_target,
        (b"", b""),
        (b"/", b""),
        (b"?a=", b""),
        (b"?", b"=a"),
        words=URL_WORDS,
        bytes_max=TARGET_CHARS_MAX,
    ),
]
FIELDS: Final = [
    Reader("parse_signature_input", refusing(parse_signature_input, line), FIELD_WORDS, HEADER_BYTES_MAX),
    Reader("parse_signature", refusing(parse_signature, line), FIELD_WORDS, HEADER_BYTES_MAX),
    Reader("verify_digest", refusing(lambda given: verify_digest(given, b""), line), FIELD_WORDS, HEADER_BYTES_MAX),
    Reader(
        "Idempotency-Key",
        refusing(lambda given: parse_string(given, "Idempotency-Key"), line),
        FIELD_WORDS,
        HEADER_BYTES_MAX,
        [(b"", b""), (b'"', b'"'), (b'"a";', b"")],
    ),
    Reader(
        "Authorization",
        refusing(parse_authorization, line),
        (b"a", b" ", b"=", b"GNAP", b"gnap ", b"/", b"\t", b",", b'"'),
        HEADER_BYTES_MAX,
        [(b"", b""), (b"GNAP ", b""), (b"GNAP ", b"!")],
    ),
    Reader(
        "Accept",
        lambda data: of_stranger(headers=(("Accept", text(data)),)),
        (b"a", b",", b";", b" ", b"\t", b"q=0", b"q=0.000", b"*/*", b"application/json", b"=", b'"', b"Q"),
        HEADER_BYTES_MAX,
        [(b"", b""), (b"application/json;", b""), (b"application/json;", b"!"), (b"*/*,", b",")],
    ),
    Reader(
        "Content-Type",
        lambda data: of_stranger(method="POST", headers=(("Content-Type", text(data)),), body=b"{}"),
        (b"a", b",", b";", b" ", b"\t", b"application/json", b"=", b'"'),
        HEADER_BYTES_MAX,
    ),
]
URLS: Final = [
    Reader(
        "request path",
        lambda data: of_stranger(path=f"/{text(data)}"),
        URL_WORDS,
        TARGET_CHARS_MAX,
        [(b"", b""), (b"incoming-payments/", b"/complete")],
    ),
    Reader(
        "request query",
        lambda data: of_stranger(query=text(data)),
        URL_WORDS,
        TARGET_CHARS_MAX,
        [(b"", b""), (b"wallet-address=", b"")],
    ),
    Reader(
        "read_list_request",
        refusing(read_list_request, text),
        URL_WORDS,
        TARGET_CHARS_MAX,
        [(b"", b""), (b"wallet-address=https://", b""), (b"wallet-address=https://bank.example/a&cursor=", b"")],
    ),
    Reader(
        "canonical_url",
        refusing(lambda given: canonical_url(given, member="url"), text),
        URL_WORDS,
        65536,
        [(b"", b""), (b"https://", b""), (b"https://bank.example", b"")],
    ),
    Reader(
        "canonical_url within its limit",
        refusing(lambda given: canonical_url(given, member="url"), text),
        URL_WORDS,
        2048,
        [(b"", b""), (b"https://", b""), (b"https://bank.example", b"")],
    ),
    Reader(
        "header_safe_url",
        refusing(lambda given: header_safe_url(given, member="url"), text),
        URL_WORDS,
        65536,
        [(b"https://", b"")],
    ),
    Reader(
        "wallet_address_url", refusing(wallet_address_url, text), URL_WORDS, 65536, [(b"https://bank.example/", b"")]
    ),
    Reader("client_id", refusing(client_id, text), URL_WORDS, 65536),
    Reader("origin_form", refusing(lambda given: encoded(origin_form(given)), text), URL_WORDS, 65536),
]
VALUES: Final = [
    Reader(
        "parse_date_time",
        refusing(parse_date_time, text),
        (b"0", b"T", b":", b".", b"Z", b"-", b"+", b" "),
        65536,
        [(b"", b""), (b"2026-02-03T23:20:50.", b"Z"), (b"2026-02-03T23:20:50.", b"")],
    ),
    Reader(
        "Amount.parse",
        refusing(lambda given: Amount.parse(given, Asset("USD", 2)), text),
        (b"0", b"1", b"9", b"-", b".", b"e"),
        65536,
    ),
    Reader("Asset", refusing(lambda given: Asset(given, 2), text), (b"A", b" ", b"\x00"), 65536),
]
FRAME_WORDS: Final = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\x81",
    b"\x82",
    b"\xff",
    b"a",
    b"\x01\x00",
    b"\x10\x02\x01\x01",
    b"\x04\x01a",
)
PREPARE: Final = b"\x00" * 8 + b"20300101000000000" + b"\x00" * 32
PACKETS: Final = [
    Reader(
        "decode_prepare",
        refusing(decode_prepare),
        FRAME_WORDS,
        ILP_PREPARE_BYTES_MAX,
        [(b"", b""), (b"\x0c", b""), (b"\x0c\x82\x80\x00" + PREPARE, b"")],
    ),
    Reader(
        "decode_stream",
        refusing(decode_stream),
        FRAME_WORDS,
        ILP_DATA_BYTES_MAX,
        [
            (b"", b""),
            (b"\x01\x0c\x01\x01\x01\x01", b""),
            (b"\x01\x0c\x01\x01\x01\x01\x01\xff", b""),
            (b"\x01\x0c\x01\x01\x01\x01\x02\x01\x00", b""),
        ],
    ),
    Reader(
        "ilp_address",
        refusing(ilp_address, text),
        (b"a", b".", b"g", b"test", b"~", b"/"),
        65536,
        [(b"", b""), (b"g.", b""), (b"g.", b"!")],
    ),
]
JSON_FRAMES: Final = [
    (b"[", b"0]"),
    (b'{"a":[', b"0]}"),
    (b'{"keys":[', b"{}]}"),
    (b"{", b'"x":0}'),
    (b"{", b'"x":0,"x":0}'),
    (b'{"a":"', b'"}'),
    (b"", b""),
]
DOCUMENTS: Final = [
    Reader("create request of a stranger", refused_create, HOSTILE_WORDS, BODIES_MAX, JSON_FRAMES),
    Reader(
        "create request",
        refusing(read_create_request),
        HOSTILE_WORDS,
        BODIES_MAX,
        [*JSON_FRAMES, (b'{"walletAddress":"https://bank.example/alice","metadata":{"a":[', b"0]}}")],
    ),
    *(
        Reader(
            f"introspection answer, {dialect}",
            refusing(partial(read_introspection, dialect=dialect)),
            (*HOSTILE_WORDS, b'{"type":"incoming-payment","actions":["read"]},', b'"read",'),
            INTROSPECTION_BYTES_MAX,
            [
                *JSON_FRAMES,
                (b'{"active":true,"client":"https://c.example/","key":{"jwk":{}},"access":[', b"0]}"),
                (
                    b'{"active":true,"client":"https://c.example/","key":{"jwk":{}},"access":[{"type":"incoming-payment","actions":[',
                    b"0]}]}",
                ),
                (b'{"active":true,"instance_id":"i","client":{"walletAddress":"https://', b'"}}'),
                (b'{"active":true,"key":{"jwk":{', b'"x":0}}}'),
            ],
        )
        for dialect in get_args(Dialect)
    ),
    Reader(
        "load_jwk",
        refusing(load_jwk),
        (*HOSTILE_WORDS, b'"n":', b'"AAAA"'),
        JWK_CHARS_MAX,
        [*JSON_FRAMES, (b'{"kty":"RSA","alg":"PS512","kid":"k","e":"AQAB","n":"', b'"}')],
    ),
]


@contextmanager
def fetched_documents() -> Iterator[list[Reader]]:
    """Yield the readers that fetch a document over HTTP, from a server on loopback."""
    served = [b"{}"]

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits for an acknowledgement

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(served[0])))
            self.end_headers()
            self.wfile.write(served[0])

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    numbers = itertools.count()  # each look-up is for another document, because the cache keeps a known one
    keys, addresses = HttpClientKeys(allow_private=True), HttpWalletAddresses([base], allow_private=True)

    def look_up(find: Callable[[Any], object], data: bytes) -> None:
        served[0] = data
        with suppress(IncomingPaymentsError):
            find(f"{base}/{next(numbers)}")

    rsa = {"kty": "RSA", "alg": "PS512", "kid": "k", "e": "AQAB", "n": "A" * 1360 + "_"}
    words = (*HOSTILE_WORDS, json.dumps(KEY.public_jwk()).encode() + b",", json.dumps(rsa).encode() + b",")
    try:
        yield [
            Reader(
                "key set",
                lambda data: look_up(lambda url: keys.find(url, "k"), data),
                words,
                DOCUMENT_BYTES_MAX,
                JSON_FRAMES,
            ),
            Reader(
                "wallet address document",
                lambda data: look_up(addresses.find, data),
                words,
                DOCUMENT_BYTES_MAX,
                JSON_FRAMES,
            ),
        ]
    finally:
        keys.close()
        addresses.close()
        server.shutdown()
        server.server_close()


READERS: Final[Sequence[Reader]] = [*DOCUMENTS, *FIELDS, *SIGNATURES, *URLS, *VALUES, *PACKETS]
