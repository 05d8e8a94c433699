"""The reasons: stable codes."""

from incoming_payments.httpsig import Code

# Clients match on these, and of several refusals the one furthest down is told: docs and tests follow, not the reverse.
CODES = [
    "signature_missing",
    "signature_input_malformed",
    "signature_malformed",
    "signature_labels_differ",
    "keyid_missing",
    "key_unknown",
    "too_many_signatures",
    "algorithm_mismatch",
    "component_not_covered",
    "body_not_covered",
    "tag_mismatch",
    "nonce_missing",
    "created_missing",
    "created_in_future",
    "signature_stale",
    "expires_before_created",
    "signature_expired",
    "component_repeated",
    "component_unsupported",
    "component_absent",
    "component_value",
    "field_repeated",
    "content_length_mismatch",
    "digest_missing",
    "digest_malformed",
    "digest_unsupported",
    "digest_mismatch",
    "signature_invalid",
]


def test_codes_and_their_order() -> None:
    """A code that changes breaks a client that matches on it."""
    assert [code.value for code in Code] == CODES
