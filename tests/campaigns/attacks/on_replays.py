"""Replays: a first request that is accepted, and a second one that must be refused. RFC 9421 §7.2.2."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from typing import Final

from attrs import evolve

from campaigns.attacks.on_octets import P256_ORDER
from campaigns.attacks.rows import Replay, title
from incoming_payments.httpsig import Algorithm, RequestMessage, sign
from kits.signed_requests import Scene, both, field, put

Family = dict[str, list[tuple[str, RequestMessage, RequestMessage]]]


def used_nonces(at: Scene) -> Family:
    """A repeated nonce."""

    def get(nonce: str, *, late_s: int = 0, more: str = "", label: str = "sig1") -> RequestMessage:
        return at.forge(at.get(), at.lines(), at.params(f';nonce="{nonce}"{more}', late_s=late_s), label=label)

    def post(nonce: str) -> RequestMessage:
        return at.signed_post(nonce=nonce)

    wrong = at.forge(at.get(), at.lines(), by=at.other.sign, label="w")
    other_token = put(at.get(), "Authorization", f"GNAP {at.tokens[1]}")
    return {
        "a repeated nonce, the request unchanged": [
            ("GET", get("a"), get("a")),
            ("POST", post("b"), post("b")),
        ],
        "a repeated nonce, unsigned parts changed": [
            ("its label", get("d"), get("d", label="other")),
            ("another field", get("e"), put(get("e"), "X-A", "1")),
            ("the order of the fields", get("f"), evolve(get("f"), headers=get("f").headers[::-1])),
            ("a wrong signature before it", get("g"), both(wrong, get("g"))),
        ],
        "a repeated nonce in a new signature": [
            ("under another created", get("h"), get("h", late_s=1)),
            ("with expires", get("i"), get("i", more=f";expires={at.now_s + 99}")),
            ("for another request", get("j"), post("j")),
            ("under another token of the client's", get("k"), sign(other_token, at.key, created=at.now, nonce="k")),
            ("an empty one", get(""), get("", late_s=1)),
        ],
    }  # fmt: skip


def identical(at: Scene) -> Family:
    """A repeated request without a nonce, where the service refuses that."""

    def get(late_s: int, label: str = "sig1") -> RequestMessage:
        return at.forge(at.get(), at.lines(), at.params(late_s=-late_s), label=label)

    def post(late_s: int) -> RequestMessage:
        return at.signed_post(created=at.now_s - late_s)

    def by(algorithm: Algorithm, late_s: int) -> RequestMessage:
        scene = at.by(algorithm)
        return scene.forge(scene.get(), scene.lines(), scene.params(late_s=-late_s))

    wrong = at.forge(at.get(), at.lines(), by=at.other.sign, label="w")
    short = at.post_covering(at.digested(), "content-digest")
    ecdsa = by(Algorithm.ES256, 9)
    return {
        "an identical request": [
            ("GET", get(1), get(1)),
            ("POST", post(1), post(1)),
        ],
        "an identical request, unsigned parts changed": [
            ("its label", get(2), get(2, "other")),
            ("another field", get(3), put(get(3), "X-A", "1")),
            ("the order of the fields", get(4), evolve(get(4), headers=get(4).headers[::-1])),
            ("its content type", short, put(short, "Content-Type", "application/json; charset=utf-8")),
            ("a wrong signature before it", get(5), both(wrong, get(5))),
        ],
        "another signature over the same request": [
            ("ECDSA, signed again", by(Algorithm.ES256, 8), by(Algorithm.ES256, 8)),
            ("ECDSA, without the key: the order less s", ecdsa, _mirrored(ecdsa)),
            ("PSS, with another salt", by(Algorithm.PS512, 8), by(Algorithm.PS512, 8)),
        ],
    }  # fmt: skip


def _mirrored(request: RequestMessage) -> RequestMessage:
    """Return the request with the second valid ECDSA signature, (r, -s)."""
    value = field(request, "signature")
    octets = b64decode(value[6:-1])
    s = P256_ORDER - int.from_bytes(octets[32:])
    return put(request, "Signature", f"sig1=:{b64encode(octets[:32] + s.to_bytes(32)).decode()}:")


CODES: Final[dict[Callable[[Scene], Family], str]] = {used_nonces: "nonce_used", identical: "request_repeated"}


def replays(at: Scene) -> Iterator[Replay]:
    """Yield every replay, made for `at`, for a service that refuses identical requests."""
    for family, code in CODES.items():
        for kind, rows in family(at).items():
            for name, first, second in rows:
                yield Replay(title(family), kind, name, first, second, code)
