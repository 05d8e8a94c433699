"""The name under which a signature is recorded, and how long to keep it."""

import hashlib

from attrs import evolve

from incoming_payments.httpsig import Policy, Proof, replay_key, verify
from kits.signed_requests import KEYS, NOW, signed_get

PROOF = verify(signed_get(), KEYS, policy=Policy(), now=NOW)


def proof_with(**values: str | int) -> Proof:
    """Return `PROOF` with these signature parameters added."""
    given = PROOF.signature_input
    return evolve(PROOF, signature_input=evolve(given, values={**given.values, **values}))


def test_replay_key_is_stable() -> None:
    """The name never changes between releases, so that the next release finds the names in a store."""
    digest = hashlib.sha256(PROOF.base).hexdigest()
    expected = [hashlib.sha256(text.encode()).hexdigest() for text in (
        f'["a", "key-1", "base", "{digest}"]',
        '["a", "key-1", "nonce", "n"]',
    )]  # fmt: skip
    assert expected == [replay_key(PROOF, "a"), replay_key(proof_with(nonce="n"), "a")]
