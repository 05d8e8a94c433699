"""The name under which a signature is recorded, and how long to keep it."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from attrs import evolve

from incoming_payments.httpsig import Policy, Proof, fresh_until, replay_key, verify
from kits.signed_requests import KEYS, NOW, NOW_S, signed_get

PROOF = verify(signed_get(), KEYS, policy=Policy(), now=NOW)
POLICY = Policy(max_age_s=300, clock_skew_s=60)


def proof_with(**values: str | int) -> Proof:
    """Return `PROOF` with these signature parameters added."""
    given = PROOF.signature_input
    return evolve(PROOF, signature_input=evolve(given, values={**given.values, **values}))


def test_replay_key_depends_on_signer_key_and_nonce() -> None:
    """The name depends on the signer, the key and the nonce. Without a nonce it depends on what was signed."""
    nonce = proof_with(nonce="n")
    different = [
        replay_key(PROOF, "a"),
        replay_key(PROOF, "b"),
        replay_key(evolve(PROOF, key_id="other"), "a"),
        replay_key(evolve(PROOF, base=b"other"), "a"),
        replay_key(nonce, "a"),
        replay_key(proof_with(nonce="m"), "a"),
        replay_key(proof_with(nonce=""), "a"),
        replay_key(proof_with(nonce=hashlib.sha256(PROOF.base).hexdigest()), "a"),
    ]
    assert len(set(different)) == len(different)
    assert replay_key(evolve(nonce, base=b"other"), "a") == replay_key(nonce, "a")
    assert {len(key) for key in different} == {64}


def test_replay_key_is_stable() -> None:
    """The name never changes between releases, so that the next release finds the names in a store."""
    digest = hashlib.sha256(PROOF.base).hexdigest()
    expected = [hashlib.sha256(text.encode()).hexdigest() for text in (
        f'["a", "key-1", "base", "{digest}"]',
        '["a", "key-1", "nonce", "n"]',
    )]  # fmt: skip
    assert expected == [replay_key(PROOF, "a"), replay_key(proof_with(nonce="n"), "a")]


@pytest.mark.parametrize(
    ("expires_s", "fresh_s"), [(None, 360), (1000, 360), (300, 360), (10, 70)], ids=["none", "late", "even", "early"]
)
def test_fresh_until(expires_s: int | None, fresh_s: int) -> None:
    """A signature stays fresh until the earlier of its maximum age and `expires`, plus the clock skew."""
    proof = PROOF if expires_s is None else proof_with(expires=NOW_S + expires_s)
    assert fresh_until(proof, POLICY) == PROOF.created + timedelta(seconds=fresh_s)


def test_fresh_until_does_not_overflow() -> None:
    """A policy with a very large maximum age gives the last `datetime`."""
    assert fresh_until(PROOF, Policy(max_age_s=10**18)) == datetime.max.replace(tzinfo=UTC)
