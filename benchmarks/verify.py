"""Measure the verification of the POST that the Node client sends, with all checks.

The same run measures, in turns and on the same request, the raw Ed25519 verification with both libraries, npm
`@interledger/http-signature-utils` (`validateSignature`) and PyPI `http-message-signatures`. A turn is long enough to
include garbage collection, and the median of the turns counts. Each side starts with a parsed request. In Python each
verification gets a new request object, as in a server, so that no result of an earlier verification is reused.

    nox -s bench -- verify [--json] [--seconds S] [--without-fast-path]

With `--without-fast-path` it prints instead how much longer a verification takes without the fast path of
`httpsig/fast.py`, and without its cache.
"""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from attrs import frozen
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures import HTTPMessageVerifier, HTTPSignatureKeyResolver
from http_message_signatures.algorithms import ED25519

from _npm import node
from _report import finish, table
from incoming_payments.httpsig import (
    Policy,
    PrivateKey,
    PublicKey,
    RequestMessage,
    ed25519,
    load_jwk,
    parse_signature,
    parse_signature_input,
    sign,
    signature_base,
    verify,
)

PACKAGES: Final = {"@interledger/http-signature-utils": "2.0.3"}
TURNS: Final = 20
KEY: Final = PrivateKey.generate_ed25519("key-1")
NOW: Final = datetime.now(UTC)
BODY: Final = json.dumps(
    {
        "walletAddress": "https://bank.example/alice",
        "incomingAmount": {"value": "2500", "assetCode": "USD", "assetScale": 2},
        "metadata": {"externalRef": "INV-2026-0042"},
    },
    separators=(",", ":"),  # as JSON.stringify writes it, which the other side digests
).encode()
SIGNED: Final = sign(
    RequestMessage(
        "POST",
        "https://bank.example/incoming-payments",
        (
            ("authorization", "GNAP a-token-of-some-length-as-they-are"),
            ("content-type", "application/json"),
            ("content-length", str(len(BODY))),
        ),
        BODY,
    ),
    KEY,
    created=NOW,
    components=("@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type"),
)
GIVEN: Final = parse_signature_input(SIGNED.values("signature-input"))["sig1"]
BASE: Final = signature_base(SIGNED, GIVEN.components, GIVEN.parameters)
SIGNATURE: Final = parse_signature(SIGNED.values("signature"))["sig1"]
POLICY: Final = Policy()


@frozen
class Job:
    """A function to time: `run` is timed, with the result of `make` as its argument."""

    run: Callable[[Any], object]
    make: Callable[[], object] = lambda: None


def ours(backend: str) -> Job:
    """Return the job of the whole verification with one of the two libraries."""
    chosen, ed25519.BACKEND = ed25519.BACKEND, backend
    keys: dict[str, PublicKey] = {"key-1": load_jwk(KEY.public_jwk())}
    ed25519.BACKEND = chosen
    method, uri, headers, body = SIGNED.method, SIGNED.target_uri, SIGNED.headers, SIGNED.body
    return Job(
        lambda request: verify(request, keys, policy=POLICY, now=NOW),
        lambda: RequestMessage(method, uri, headers, body),
    )


def raw(backend: str) -> Job | None:
    """Return the job of the raw verification of the same signature, or `None` if the library is not installed."""
    encoded = KEY._key.public_key().public_bytes_raw()
    if backend == "OpenSSL":
        public = Ed25519PublicKey.from_public_bytes(encoded)
        return Job(lambda _: public.verify(SIGNATURE, BASE))
    try:
        from nacl.signing import VerifyKey
    except ImportError:
        return None
    key = VerifyKey(encoded)
    return Job(lambda _: key.verify(BASE, SIGNATURE))


class _Message:
    """The request in the form of PyPI http-message-signatures."""

    def __init__(self) -> None:
        self.method, self.url = SIGNED.method, SIGNED.target_uri
        self.headers = dict(SIGNED.headers)
        self.body = SIGNED.body


class _Resolver(HTTPSignatureKeyResolver):
    """The one key, in the form of PyPI http-message-signatures."""

    def __init__(self) -> None:
        self._public = KEY._key.public_key()

    def resolve_public_key(self, key_id: str) -> Any:
        """Return the public key."""
        assert key_id == "key-1"
        return self._public

    def resolve_private_key(self, key_id: str) -> Any:
        """Raise `LookupError`, because no private key is needed."""
        raise LookupError(key_id)


def pyauth() -> Job:
    """Return the job of PyPI http-message-signatures, with the digest."""
    verifier = HTTPMessageVerifier(signature_algorithm=ED25519, key_resolver=_Resolver())
    return Job(lambda message: verifier.verify(message, body=SIGNED.body), _Message)


def _node_request() -> dict[str, Any]:
    headers = {name.lower(): value for name, value in SIGNED.headers}
    return {"method": SIGNED.method, "url": SIGNED.target_uri, "headers": headers, "body": SIGNED.body.decode()}


def mean(job: Job, seconds: float) -> float:
    """Return the seconds of one run of `job`, measured over a turn of `seconds`."""
    run, spent, count = job.run, 0.0, 0
    while spent < seconds:
        given = [job.make() for _ in range(50)]
        start = time.perf_counter()
        for each in given:
            run(each)
        spent += time.perf_counter() - start
        count += 50
    return spent / count


def measure(seconds: float) -> tuple[dict[str, float], str | None]:
    """Return the seconds of one verification for each side, and the reason if Node is missing."""
    jobs: dict[str, Job] = {}
    for backend in ("OpenSSL", "PyNaCl"):
        if bare := raw(backend):
            jobs |= {f"raw, {backend}": bare, f"ours, {backend}": ours(backend)}
    jobs["http-message-signatures"] = pyauth()
    turns: dict[str, list[float]] = {name: [] for name in jobs}
    with node(Path(__file__).with_name("_node.mjs"), PACKAGES) as other:
        if not isinstance(other, str):
            assert other({"jwk": KEY.public_jwk(), "request": _node_request()}) == {"ready": True}
        for _ in range(TURNS):
            for name, job in jobs.items():
                turns[name].append(mean(job, seconds / TURNS))
            if not isinstance(other, str):
                turns.setdefault("Node", []).append(float(other({"seconds": seconds / TURNS})["seconds"]))
    times = {name: statistics.median(each) for name, each in turns.items()}
    return times, other if isinstance(other, str) else None


def figures_of(times: dict[str, float]) -> dict[str, float | str | None]:
    """Return the ratios. `times_raw` and the comparisons are for the library in use."""
    backend = ed25519.BACKEND
    own = times[f"ours, {backend}"]
    times_raw = {
        name: times[f"ours, {name}"] / times[f"raw, {name}"] if f"raw, {name}" in times else None
        for name in ("OpenSSL", "PyNaCl")
    }
    figures: dict[str, float | None] = {
        "times_raw": times_raw[backend],
        "times_raw_openssl": times_raw["OpenSSL"],
        "times_raw_pynacl": times_raw["PyNaCl"],
        "vs_node": times["Node"] / own if "Node" in times else None,
        "vs_pyauth": times["http-message-signatures"] / own,
        **{f"us {name}": seconds * 1e6 for name, seconds in times.items()},
    }
    return {"backend": backend, **{name: None if value is None else round(value, 3) for name, value in figures.items()}}


def without_fast_path(seconds: float) -> None:
    """Print how much longer a verification takes without the fast path, as the best of many short turns."""
    package = "incoming_payments.httpsig"
    verifier, fast, fields = (importlib.import_module(f"{package}.{name}") for name in ("verify", "fast", "fields"))
    slow: dict[str, tuple[Any, str, object]] = {
        "with both": (verifier, "Proof", verifier.Proof),
        "the fast path": (verifier, "parse_signature_input", fields.parse_signature_input),
        "the cache": (fast, "_head", fast._head.__wrapped__),
    }
    job = ours(ed25519.BACKEND)
    turns: dict[str, list[float]] = {name: [] for name in slow}
    for _ in range(10 * TURNS):
        for name, (module, function, instead) in slow.items():
            original = getattr(module, function)
            setattr(module, function, instead)
            turns[name].append(mean(job, seconds / TURNS / 10))
            setattr(module, function, original)
    times = {name: min(each) for name, each in turns.items()}
    whole = times["with both"]
    rows = [[name, f"{time_s * 1e6:.1f}", f"{time_s / whole:.2f}"] for name, time_s in times.items()]
    table(f"One POST without the fast path, {ed25519.BACKEND} in use", ["", "us", "times as long"], rows)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Measure the verification of one signed POST.")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on the last line")
    parser.add_argument("--seconds", type=float, default=4.0, help="the seconds for each side (4)")
    parser.add_argument("--without-fast-path", action="store_true", help="measure what the fast path saves")
    options = parser.parse_args()
    if options.without_fast_path:
        without_fast_path(options.seconds)
        return
    times, missing = measure(options.seconds)
    figures = figures_of(times)
    own = times[f"ours, {ed25519.BACKEND}"]
    rows = [[name, f"{seconds * 1e6:.1f}", f"{seconds / own:.2f}"] for name, seconds in times.items()]
    table(f"One POST, {len(GIVEN.components)} components, {ed25519.BACKEND} in use", ["", "us", "times ours"], rows)
    wanted = [
        ("times_raw_openssl", "<= 1.25"),
        ("times_raw_pynacl", "<= 1.35"),
        ("vs_node", ">= 1.6"),
        ("vs_pyauth", ">= 2"),
    ]
    table("Ratios", ["", "figure", "wanted"], [[name, str(figures[name]), target] for name, target in wanted])
    if missing:
        print(f"\nvs_node is missing: {missing}")
    finish(figures, as_json=options.json)


if __name__ == "__main__":
    main()
