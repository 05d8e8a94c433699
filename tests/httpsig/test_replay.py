"""What is remembered of a signature, and for how long."""

import hashlib
from datetime import UTC, datetime, timedelta

import pytest
from attrs import evolve

from incoming_payments.httpsig import Policy, Proof, fresh_until, replay_key, verify
from signed_requests import KEYS, NOW, NOW_S, signed_get

PROOF = verify(signed_get(), KEYS, policy=Policy(), now=NOW)
POLICY = Policy(max_age_s=300, clock_skew_s=60)


def saying(**values: str | int) -> Proof:
    """The proof, had its signature had these parameters too."""
    given = PROOF.signature_input
    return evolve(PROOF, signature_input=evolve(given, values={**given.values, **values}))


def test_a_key_tells_signers_keys_and_nonces_apart() -> None:
    """And nothing else: with a nonce it does not matter what was signed, without one it is all that matters."""
    nonce = saying(nonce="n")
    different = [
        replay_key(PROOF, "a"),
        replay_key(PROOF, "b"),
        replay_key(evolve(PROOF, key_id="other"), "a"),
        replay_key(evolve(PROOF, base=b"other"), "a"),
        replay_key(nonce, "a"),
        replay_key(saying(nonce="m"), "a"),
        replay_key(saying(nonce=""), "a"),
        replay_key(saying(nonce=hashlib.sha256(PROOF.base).hexdigest()), "a"),
    ]
    assert len(set(different)) == len(different)
    assert replay_key(evolve(nonce, base=b"other"), "a") == replay_key(nonce, "a")
    assert {len(key) for key in different} == {64}


def test_a_key_outlives_a_release() -> None:
    """What a store remembers has to be found again by the next version."""
    digest = hashlib.sha256(PROOF.base).hexdigest()
    expected = [hashlib.sha256(text.encode()).hexdigest() for text in (
        f'["a", "key-1", "base", "{digest}"]',
        '["a", "key-1", "nonce", "n"]',
    )]  # fmt: skip
    assert expected == [replay_key(PROOF, "a"), replay_key(saying(nonce="n"), "a")]


@pytest.mark.parametrize(
    ("expires_s", "fresh_s"), [(None, 360), (1000, 360), (300, 360), (10, 70)], ids=["none", "late", "even", "early"]
)
def test_fresh_until(expires_s: int | None, fresh_s: int) -> None:
    """The age allowed or the signer's own wish, whichever ends first, and the skew between our clocks."""
    proof = PROOF if expires_s is None else saying(expires=NOW_S + expires_s)
    assert fresh_until(proof, POLICY) == PROOF.created + timedelta(seconds=fresh_s)


def test_a_window_without_end_ends_with_the_calendar() -> None:
    """However large a number the policy holds."""
    assert fresh_until(PROOF, Policy(max_age_s=10**18)) == datetime.max.replace(tzinfo=UTC)
