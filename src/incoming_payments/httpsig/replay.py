"""The name under which a signature is recorded so that it is accepted only once, and the time to keep the record.

RFC 9421 §7.2.2. The caller records the name: this module keeps nothing.
"""

import hashlib
import json
from datetime import UTC, datetime, timedelta

from incoming_payments.httpsig.verify import Policy, Proof


def replay_key(proof: Proof, signer: str) -> str:
    """Return the name to record for this signature: 64 hexadecimal digits.

    The name identifies the nonce of this signer and key, or without a nonce the signed bytes. `signer` identifies
    the owner of the key, so that two signers may use the same nonce.
    """
    # Do not hash the signature: anyone can turn a valid ECDSA signature into a second one, without the key.
    nonce = proof.signature_input.nonce
    subject = ["base", hashlib.sha256(proof.base).hexdigest()] if nonce is None else ["nonce", nonce]
    return hashlib.sha256(json.dumps([signer, proof.key_id, *subject]).encode()).hexdigest()


def fresh_until(proof: Proof, policy: Policy) -> datetime:
    """Return the time after which every server refuses the signature as stale, so that its name can be dropped.

    This holds while the servers' clocks differ by no more than the policy's skew.
    """
    fresh_s: float = policy.max_age_s
    if proof.expires is not None:
        fresh_s = min(fresh_s, (proof.expires - proof.created).total_seconds())
    try:
        return proof.created + timedelta(seconds=fresh_s + policy.clock_skew_s)
    except OverflowError:  # the policy allows thousands of years
        return datetime.max.replace(tzinfo=UTC)
