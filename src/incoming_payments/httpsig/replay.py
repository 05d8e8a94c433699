"""What has to be remembered of a signature so that it is good once, and for how long. RFC 9421 §7.2.2.

Remembering is for the caller: nothing is remembered here.
"""

import hashlib
import json
from datetime import UTC, datetime, timedelta

from incoming_payments.httpsig.verify import Policy, Proof


def replay_key(proof: Proof, signer: str) -> str:
    """One name for the nonce of this signer and key, or without a nonce for what was signed: 64 hexadecimal digits.

    `signer` is who the key belongs to, so that two signers may use the same nonce.
    """
    # What was signed and not the signature: of an ECDSA signature anybody can make a second one that holds.
    what = ["base", hashlib.sha256(proof.base).hexdigest()] if proof.nonce is None else ["nonce", proof.nonce]
    return hashlib.sha256(json.dumps([signer, proof.key_id, *what]).encode()).hexdigest()


def fresh_until(proof: Proof, policy: Policy) -> datetime:
    """When no clock of ours can take the signature for fresh any more, if they are no further apart than the skew."""
    fresh_s: float = policy.max_age_s
    if proof.expires is not None:
        fresh_s = min(fresh_s, (proof.expires - proof.created).total_seconds())
    try:
        return proof.created + timedelta(seconds=fresh_s + policy.clock_skew_s)
    except OverflowError:  # a window of thousands of years
        return datetime.max.replace(tzinfo=UTC)
