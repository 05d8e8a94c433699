"""The seeds of the fuzzer: the rows of the tests' own tables, and a few requests that reach other code.

No seed is stored in a file, so a new row of a table is a new seed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from campaigns.attacks.on_registered_keys import bad_keys
from campaigns.attacks.signatures import attacks
from campaigns.fuzz.messages import SEPARATOR, script, script_of, signers
from campaigns.fuzz.targets import EXPLAINED, LINES, PAYMENT, TOKENS
from incoming_payments.httpsig import Algorithm
from kits.service_kit import ALICE, BOB, PATH
from kits.signed_requests import KEY, NOW_S, OTHER, PHP_GET, RUST_GET, SCENE
from kits.signing_keys import private
from unit.endpoints import test_open_payments as test_api
from unit.gnap import test_token
from unit.httpsig import test_digest, test_fields, test_keys, test_shapes
from unit.property.test_httpsig import PIECES
from unit.wire import test_wire


def _rows(test: Any) -> Iterator[Any]:
    """Yield the rows of the table with which `test` is parametrized."""
    for mark in test.pytestmark:
        for row in mark.args[1] if mark.name == "parametrize" else ():
            yield getattr(row, "values", row)


def _lines(lines: list[str]) -> Iterator[bytes]:
    with suppress(UnicodeEncodeError):  # lone surrogates
        yield LINES.join([line.encode() for line in lines])


# --- parsers -----------------------------------------------------------------------------------


def signature_input() -> Iterator[bytes]:
    """Yield accepted and refused values, and those of the requests in the tests."""
    for row in _rows(test_fields.test_field_at_a_limit_is_accepted):
        yield from _lines([row])
    for value, _ in _rows(test_fields.test_signature_input_is_refused):
        yield from _lines([value])
    for attack in attacks(SCENE):
        yield from _lines(list(attack.request.values("signature-input")))
    yield from _lines(['a=("@query-param";name="b" "c";sf "d";key="e");tag="t";x=tok;y=:AQ==:;z=?0', "b=();x=1.5;d=@5"])


def signature() -> Iterator[bytes]:
    """Yield accepted and refused values, and those of the requests in the tests."""
    for value, _ in _rows(test_fields.test_signature_is_refused):
        yield from _lines([value])
    for value in _rows(test_fields.test_colons_outside_byte_sequences):
        yield from _lines([value])
    for attack in attacks(SCENE):
        yield from _lines(list(attack.request.values("signature")))
    yield from _lines(["b=:AQ==:", "a=::"])


def content_digest() -> Iterator[bytes]:
    """Yield digests that match any body, and those in the tests."""
    for fields in (
        ["sha-512={sha-512}"],
        ["sha-256={sha-256}, md5=:AQ==:"],
        ["sha-256={sha-256}", "sha-512={sha-512}"],
    ):
        yield LINES.join([*_lines([*fields, "body"])])
    for values in _rows(test_digest.test_matching_digest_is_accepted):
        yield LINES.join([*_lines(values), test_digest.BODY])
    for values, _ in _rows(test_digest.test_digest_is_refused):
        yield LINES.join([*_lines(values), test_digest.BODY] if values else [test_digest.BODY])


def jwk() -> Iterator[bytes]:
    """Yield a public key for each algorithm, private keys that load quickly, and refused keys."""
    for algorithm in Algorithm:
        yield json.dumps(private(algorithm).public_jwk()).encode()
    for point in test_keys.SMALL_ORDER + test_keys.NOT_CANONICAL:
        yield json.dumps({**KEY.public_jwk(), "x": test_keys.b64(bytes.fromhex(point))}).encode()
    for jwk in (*[row[0] for row in _rows(test_keys.test_jwk_is_refused)], *[bad.jwk for bad in bad_keys()]):
        with suppress(TypeError, ValueError):  # some values have no JSON form
            yield json.dumps(jwk).encode()
    yield json.dumps({**KEY.public_jwk(), "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}).encode()
    yield json.dumps({**OTHER.public_jwk(), "use": "sig", "key_ops": ["sign", "verify"]}).encode("utf-16")


def authorization() -> Iterator[bytes]:
    """Yield accepted and refused values, and no value."""
    yield b""
    for value in _rows(test_token.test_authorization_is_parsed):
        yield from _lines([value])
    for values, *_ in _rows(test_token.test_authorization_is_refused):
        yield from _lines(values)


def create_request() -> Iterator[bytes]:
    """Yield accepted and refused bodies."""
    yield b'{"walletAddress":"https://bank.example/alice"}'
    yield (
        b'{"metadata":{"a":[1,2.5,true,null,"\xc3\xa9\xf0\x9f\x92\xb6"]},"expiresAt":"2026-02-03T23:20:50.52+01:00",'
        b'"incomingAmount":{"assetScale":2,"assetCode":"USD","value":"2500"},"walletAddress":"HTTPS://Bank.example:443/a/"}'
    )
    for test in (
        test_wire.test_text_that_is_not_json_is_refused,
        test_wire.test_json_that_readers_could_change_is_refused,
        test_wire.test_json_within_the_limits_is_accepted,
        test_wire.test_invalid_create_request_is_refused,
    ):
        for first, *_ in _rows(test):
            yield first


# --- requests ----------------------------------------------------------------------------------

SHAPES: Final = 6  # the policy that accepts the forms of the SDKs
KEYED: Final = 7  # the policy that requires Idempotency-Key to be covered
# One signature over every kind of component
EVERYTHING: Final = (
    b's\0*x=("@method" "@target-uri" "@authority" "@scheme" "@request-target" "@path" "@query" "@query-param";name="a"'
    b' "authorization" "x-a" "x-a";bs "accept";sf "content-digest" "content-digest";key="sha-512"'
    b' "cache-control";key="a");created=%d;expires=%d;keyid="key-1";alg="ed25519";nonce="n";tag="t"'
) % (NOW_S, NOW_S + 9)


def verify() -> Iterator[bytes]:
    """Yield every attack in the tests, and honest requests signed by every key under every policy."""
    for request in [attack.request for attack in attacks(SCENE)]:
        with suppress(ValueError):
            yield script_of(request.method, request.target_uri, list(request.headers), request.body)
    for request in (PHP_GET, test_shapes.PHP_POST, RUST_GET, test_shapes.RUST_POST):
        for change in (lambda same: same, *[row[1] for row in test_shapes.CHANGES]):
            changed = change(request)
            with suppress(ValueError):
                yield script_of(changed.method, changed.target_uri, list(changed.headers), changed.body, policy=SHAPES)
    yield from _signed(b"https://ase.example/incoming-payments")


def explanation() -> Iterator[bytes]:
    """Yield the seeds of `verify`, and requests with the token in a wrong place."""
    yield from verify()
    token = EXPLAINED.token.encode()
    yield script(1, 0, b"s\0", b"uhttps://ase.example/%b?%b&a=%b" % (token, token, token))
    yield script(1, 0, b"s\0", b"r\1sig1=(%b);keyid=%b" % (token, token))
    yield script(
        2, 0, b"hHost:%b" % token, b"m" + token, b's\0%b=("@method" "host");keyid="%b"' % (b"a" + token, token)
    )


def service() -> Iterator[bytes]:
    """Yield the HTTP cases of the tests, and honest requests with every token for the stored payment."""
    for _, request, *_ in test_api.HTTP:
        with suppress(ValueError):
            query = f"?{request.query}" if request.query else ""
            yield script_of(request.method, request.path + query, list(request.headers), request.body)
    path = PATH.encode()
    yield from _signed(path)
    for token in TOKENS:
        line = b"r\0GNAP " + token.encode()
        for key in b"\0", b"\1":
            yield script(1, 0, b"u%b/%b" % (path, PAYMENT.encode()), line, b"s" + key)
            yield script(2, 0, line, b"s" + key)
    yield script(1, 0, b"u/TOKEN-OTHER", b"s\0")  # the refusal repeats this path
    everything: dict[str, object] = {
        "incomingAmount": test_api.USD_25,
        "expiresAt": "2030-02-01T00:00:00Z",
        "metadata": {"a": 1},
    }
    addresses: list[dict[str, object]] = [
        {"walletAddress": url} for url in (ALICE.url, BOB.url, "https://bank.example/unknown")
    ]
    for members in (*addresses, everything, *[row[1] for row in test_api.BAD_MEMBERS]):
        body = json.dumps({"walletAddress": ALICE.url, **members}).encode()
        yield script(2, 0, b"b" + body, b"d\2", b"g", b"s\0")


def _signed(target: bytes) -> Iterator[bytes]:
    for policy in range(SHAPES + 1):
        yield script(1, policy, b"s\0")
        yield script(1, policy, b"x\0")
        yield script(2, policy, b"s\0", b"p")
        yield script(2, policy, b"x\2")
        yield script(2, policy, b"s\0")
        yield script(2, policy, b"s\1", b"h:", b"c59999")
        lines = (b"hX-A: a", b"hX-A:\tb \r\n c", b"hAccept:text/html, */*;q=0.5", b"hCache-Control:a=1, b")
        yield script(2, policy, b"u%b?a=b%%20c&d" % target, *lines, EVERYTHING)
    for key in range(len(signers())):
        yield script(2, 0, b"s%c" % key)
        yield script(1, 3, b"s%c" % key, b"e\2\x05\1x")
    yield script(2, 0, b"b{}", b"gsha-256", b"r\x022", b"s\0")
    yield script(2, 0, b"hX-A:1", b"s\0", b"r\x042")  # a covered value was changed
    yield script(2, 0, b"r\1text/plain", b"s\0")
    yield script(2, 0, b"b{}", b"s\0")  # the digest of another body
    yield script(2, 0, b"s\0", b"b{}")
    yield script(2, 0, b"r\3sha-256=:AQ==:", b"s\0")
    yield script(2, 0, b"r\3md5=:AQ==:", b"s\0")
    yield script(1, 0, b"hContent-Digest:undefined", b"s\0")
    for policy in (0, KEYED):
        yield script(2, policy, b'hIdempotency-Key:"k"', b"s\0")
        yield script(2, policy, b"s\0", b'hIdempotency-Key:"k"')  # the key is not covered
    plain = b'("@method" "@target-uri" "authorization" "content-digest");created=%d' % NOW_S
    yield script(2, 0, b"d\3", b"s\0a=" + plain + b';keyid="key-1"')
    yield script(2, 0, b"s\0" + b", ".join([b'%c=%b;keyid="key-1"' % (label, plain) for label in b"abcde"]))
    yield script(2, 0, b"s\0a=" + plain + b';keyid="key-2"', b"s\1b=" + plain + b';keyid="key-2";nonce="n"')
    for late in (-60_000, -60_001, 300_000, 300_001):
        yield script(1, 0, b"s\0", b"c%d" % late)


SEEDS: Final[Mapping[str, Callable[[], Iterator[bytes]]]] = {
    "signature-input": signature_input,
    "signature": signature,
    "content-digest": content_digest,
    "jwk": jwk,
    "authorization": authorization,
    "create-request": create_request,
    "verify": verify,
    "explanation": explanation,
    "service": service,
}

# Words that a mutation may insert as a whole
_FIELDS: Final = (
    "Authorization", "Signature", "Signature-Input", "Content-Digest", "Content-Length", "Content-Type", "Accept",
    "Host", "Idempotency-Key", "GNAP ", "{sha-512}", "{sha-256}",
)  # fmt: skip
_JSON: Final = (
    '"walletAddress":', '"incomingAmount":', '"expiresAt":', '"metadata":', '"value":', '"assetCode":', '"USD"',
    '"assetScale":', '"2030-02-01T00:00:00Z"', "\\ud800", "\\u0000", '"kty":', '"crv":', '"alg":', '"kid":', '"use":',
    '"key_ops":', '"x":', '"y":', '"n":', '"e":', '"d":', '"OKP"', '"EC"', '"RSA"', '"Ed25519"', '"P-256"', '"P-384"',
    '"EdDSA"', '"ES256"', '"ES384"', '"PS512"', '"RS256"',
)  # fmt: skip
_CHANGES: Final = tuple([SEPARATOR + letter.encode() for letter in "muhrdecgsbxp"])
DICTIONARY: Final = (*[piece.encode() for piece in (*PIECES, *_FIELDS, *_JSON)], *_CHANGES)


def write(target: str, folder: Path, *, bytes_max: int) -> None:
    """Write the seeds of `target` into `folder`. Leave out longer ones, which libFuzzer would cut."""
    folder.mkdir()
    for number, seed in enumerate(SEEDS[target]()):
        if len(seed) <= bytes_max:
            folder.joinpath(f"{number:04}").write_bytes(seed)


def dictionary() -> str:
    """Return the dictionary in the syntax of libFuzzer."""
    escaped = ["".join([f"\\x{octet:02x}" for octet in token]) for token in DICTIONARY]
    return "".join([f'"{token}"\n' for token in escaped])
