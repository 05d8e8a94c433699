"""The fuzz targets without a fuzzer: they pass for their seeds and for similar bytes, and each can fail."""

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaigns.fuzz.seeds import DICTIONARY, SEEDS, dictionary
from campaigns.fuzz.targets import GOOD, REFUSED, TARGETS
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.gnap.access import AccessRight, Allowance
from incoming_payments.httpsig import Algorithm, Code
from incoming_payments.httpsig.base import Coverage

some = settings(max_examples=150, deadline=None, derandomize=True)


@cache
def seeds(target: str) -> list[bytes]:
    """Return the seeds of a target."""
    return list(SEEDS[target]())


@cache
def outcomes(target: str) -> set[str]:
    """Return the outcomes of the seeds."""
    return {str(TARGETS[target].run(seed)) for seed in seeds(target)}


# --- they pass -----------------------------------------------------------------------------------


def test_each_target_has_seeds() -> None:
    """The tables of seeds and of targets have the same names."""
    assert set(SEEDS) == set(TARGETS)


# A body without a digest is refused earlier, because its digest is not covered.
CODES: Final = {"proven", *Code} - {Code.DIGEST_MISSING}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("signature-input", {"parsed", "empty", "refused"}),
        ("signature", {"parsed", "empty", "refused"}),
        ("content-digest", {"verified", *[code for code in Code if code.name.startswith("DIGEST")]}),
        ("jwk", {*[algorithm.value for algorithm in Algorithm], "private", "refused"}),
        ("authorization", {"parsed", "token_missing", "invalid_token"}),
        ("create-request", {"parsed", "refused"}),
        ("verify", CODES),
        ("explanation", CODES),
        ("service", {str(status) for status in GOOD | REFUSED}),
    ],
)
def test_seeds_pass_and_reach_every_outcome(target: str, expected: set[str]) -> None:
    """The seeds reach every outcome of their target, so the fuzzer begins with each of them."""
    assert expected == outcomes(target)


@st.composite
def near_seeds(draw: st.DrawFn, target: str) -> bytes:
    """Draw a seed in which a few pieces are replaced: by bytes, by a word of the dictionary or by another seed."""
    data = draw(st.sampled_from(seeds(target)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(len(data), 500)))
        other = draw(st.sampled_from(seeds(target)))
        cut = draw(st.integers(0, min(len(other), 500)))
        piece = draw(st.one_of(st.binary(max_size=4), st.sampled_from(DICTIONARY), st.just(other[cut : cut + 20])))
        data = data[:at] + piece + data[at + draw(st.integers(0, 8)) :]
    return data


@pytest.mark.parametrize("target", TARGETS)
def test_targets_pass_near_the_seeds(target: str) -> None:
    """Each target passes for any bytes, and for seeds with small changes."""

    @some
    @given(st.one_of(st.binary(max_size=200), near_seeds(target), near_seeds(target)))
    def holds(data: bytes) -> None:
        TARGETS[target].run(data)

    holds()


def test_dictionary_is_as_libfuzzer_reads_it() -> None:
    """The dictionary has one quoted token a line, with each byte as an escape."""
    lines = dictionary().splitlines()
    assert [bytes.fromhex(line.strip('"').replace("\\x", "")) for line in lines] == list(DICTIONARY)


# --- they can fail -------------------------------------------------------------------------------


def yes(*_: object, **__: object) -> bool:
    """Accept everything."""
    return True


def nothing(*_: object, **__: object) -> None:
    """Refuse nothing."""


def broken(*_: object, **__: object) -> None:
    """Raise an unexpected exception."""
    raise LookupError


def all_actions(rights: Iterable[AccessRight], _: object) -> Allowance:
    """Allow every action on the wallet addresses of `rights`."""
    return Allowance(tuple(rights), tuple(rights))


def one_cent(*_: object, **__: object) -> Any:
    """Read every amount as 0.01 USD."""
    return Amount(1, Asset("USD", 2))


HTTPSIG: Final = "incoming_payments.httpsig"

# Bugs put into the library: the target that must notice, the module or class, the name, and its replacement.
BUGS: Final[list[tuple[str, str, str, object]]] = [
    ("signature-input", f"{HTTPSIG}.fields", "_check_types", broken),
    ("signature-input", f"{HTTPSIG}.fields", "_TIMES", ()),
    ("signature-input", f"{HTTPSIG}.fast", "_head", lambda _: ("a", Coverage(()))),
    ("signature", f"{HTTPSIG}.fields", "_check_base64", broken),
    ("signature", f"{HTTPSIG}.fields", "_check_base64", nothing),
    ("content-digest", f"{HTTPSIG}.digest.hmac", "compare_digest", yes),
    ("content-digest", f"{HTTPSIG}.digest", "parse_dictionary", broken),
    ("jwk", f"{HTTPSIG}.keys", "_check_ed25519", nothing),
    ("jwk", f"{HTTPSIG}.keys", "_ec_numbers", broken),
    ("jwk", f"{HTTPSIG}.keys.PublicKey", "verify", yes),
    ("jwk", f"{HTTPSIG}.keys", "_PRIVATE", ()),
    ("authorization", "incoming_payments.gnap.token.AccessToken", "__repr__", lambda token: token.value),
    ("authorization", "incoming_payments.gnap.token", "AccessToken", broken),
    ("create-request", "incoming_payments.domain.amount.Amount", "parse", one_cent),
    ("create-request", "incoming_payments.wire._values", "_check_metadata", broken),
    ("create-request", "incoming_payments.wire._values", "isoparse", broken),
    ("verify", f"{HTTPSIG}.keys.PublicKey", "verify", yes),
    ("verify", f"{HTTPSIG}.verify", "_check_coverage", nothing),
    ("verify", f"{HTTPSIG}.verify", "_check_times", nothing),
    ("verify", f"{HTTPSIG}.verify", "verify_digest", nothing),
    ("verify", f"{HTTPSIG}.verify", "any_strict_form", broken),
    ("verify", f"{HTTPSIG}.base", "_SINGLETONS", ()),
    ("verify", f"{HTTPSIG}.base.BaseBuilder", "value", broken),
    ("verify", f"{HTTPSIG}.message", "Target", broken),
    ("explanation", f"{HTTPSIG}.explain._redaction", "_SECRET_FIELDS", ()),
    ("explanation", f"{HTTPSIG}.explain", "find_causes", broken),
    ("explanation", f"{HTTPSIG}.explain._case", "MalformedField", KeyError),
    ("service", "incoming_payments.flows.authenticate", "verify", broken),
    ("service", "incoming_payments.flows.create", "require_wallet_address", nothing),
    ("service", "incoming_payments.flows.create", "IDEMPOTENCY_KEY", "x-other"),
    ("service", "incoming_payments.flows.authenticate", "authorize", all_actions),
    ("service", "incoming_payments.endpoints.open_payments", "require_content", nothing),
    ("service", "incoming_payments.stores.memory.MemoryNonces", "use", yes),
    ("service", f"{HTTPSIG}.keys.PublicKey", "verify", yes),
]


def _at(path: str) -> Any:
    """Return the module or class at a dotted path. A module wins over a function of the same name in its package."""
    if path in sys.modules:
        return sys.modules[path]
    above, _, name = path.rpartition(".")
    return getattr(_at(above), name)


@pytest.mark.parametrize(("target", "where", "name", "instead"), BUGS, ids=[f"{row[0]}: {row[2]}" for row in BUGS])
def test_target_notices_a_bug(
    target: str, where: str, name: str, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each bug in the library, a seed makes the target raise."""
    monkeypatch.setattr(_at(where), name, instead)
    for seed in seeds(target):
        try:
            TARGETS[target].run(seed)
        except Exception:  # noqa: BLE001 - any exception is a finding for a fuzzer
            return
    pytest.fail("no seed made the target raise")
