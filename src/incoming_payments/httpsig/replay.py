"""The key under which a signature is recorded, so that it is accepted only once, and the time to keep the record.

See RFC 9421 §7.2.2. The caller records the key, because this module keeps no state.
"""

import hashlib
import json
from datetime import UTC, datetime, timedelta

from incoming_payments.httpsig.verify import Policy, Proof


def replay_key(proof: Proof, signer: str) -> str:
    """Return the key to record for this signature, which has 64 hexadecimal digits.

    The key to record identifies the nonce, the signer and the signer's key. If there is no nonce, it identifies the
    signed bytes. `signer` identifies the owner of the signer's key, so that two signers may use the same nonce.
    """
    # Do not hash the signature, because an attacker can turn a valid ECDSA signature into a second valid signature.
    nonce = proof.signature_input.nonce
    subject = ["base", hashlib.sha256(proof.base).hexdigest()] if nonce is None else ["nonce", nonce]
    return hashlib.sha256(json.dumps([signer, proof.key_id, *subject]).encode()).hexdigest()


def fresh_until(proof: Proof, policy: Policy) -> datetime:
    """Return the time after which every server refuses the signature as too old, so that the record can be removed.

    This is true while the clocks of the servers differ by at most the policy's `clock_skew_s`.
    """
    fresh_s: float = policy.max_age_s
    if proof.expires is not None:
        fresh_s = min(fresh_s, (proof.expires - proof.created).total_seconds())
    try:
        return proof.created + timedelta(seconds=fresh_s + policy.clock_skew_s)
    except OverflowError:  # the policy allows thousands of years
        return datetime.max.replace(tzinfo=UTC)
