"""What is remembered of a signature, and for how long."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from attrs import evolve

from incoming_payments.httpsig import Policy, Proof, fresh_until, replay_key, verify
from signed_requests import KEYS, NOW, signed_get

PROOF = verify(signed_get(), KEYS, policy=Policy(), now=NOW)
POLICY = Policy(max_age_s=300, clock_skew_s=60)


def test_a_key_tells_signers_keys_and_nonces_apart() -> None:
    """And nothing else: with a nonce it does not matter what was signed, without one it is all that matters."""
    nonce = evolve(PROOF, nonce="n")
    different = [
        replay_key(PROOF, "a"),
        replay_key(PROOF, "b"),
        replay_key(evolve(PROOF, key_id="other"), "a"),
        replay_key(evolve(PROOF, base_sha256=bytes(32)), "a"),
        replay_key(nonce, "a"),
        replay_key(evolve(PROOF, nonce="m"), "a"),
        replay_key(evolve(PROOF, nonce=""), "a"),
        replay_key(evolve(PROOF, nonce=PROOF.base_sha256.hex()), "a"),
    ]
    assert len(set(different)) == len(different)
    assert replay_key(evolve(nonce, base_sha256=bytes(32)), "a") == replay_key(nonce, "a")
    assert {len(key) for key in different} == {64}


def test_a_key_outlives_a_release() -> None:
    """What a store remembers has to be found again by the next version."""
    digest = PROOF.base_sha256.hex()
    expected = [hashlib.sha256(text.encode()).hexdigest() for text in (
        f'["a", "key-1", "base", "{digest}"]',
        '["a", "key-1", "nonce", "n"]',
    )]  # fmt: skip
    assert expected == [replay_key(PROOF, "a"), replay_key(evolve(PROOF, nonce="n"), "a")]


@pytest.mark.parametrize(
    ("expires_s", "fresh_s"), [(None, 360), (1000, 360), (300, 360), (10, 70)], ids=["none", "late", "even", "early"]
)
def test_fresh_until(expires_s: int | None, fresh_s: int) -> None:
    """The age allowed or the signer's own wish, whichever ends first, and the skew between our clocks."""
    expires = None if expires_s is None else PROOF.created + timedelta(seconds=expires_s)
    proof: Proof = evolve(PROOF, expires=expires)
    assert fresh_until(proof, POLICY) == PROOF.created + timedelta(seconds=fresh_s)


def test_a_window_without_end_ends_with_the_calendar() -> None:
    """However large a number the policy holds."""
    assert fresh_until(PROOF, Policy(max_age_s=10**18)) == datetime.max.replace(tzinfo=UTC)
