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


def test_codes_are_unique_and_speak_for_themselves() -> None:
    """Each code is unique and in lower case words, so that a client can match on it."""
    codes = [code.value for code in Code.__members__.values()]
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not code.replace("_", "").islower()] == []


def test_a_code_is_a_string() -> None:
    """A code is a string, so that it can go into a JSON body as it is."""
    assert isinstance(Code.STALE, str)
    assert f"{Code.STALE}" == Code.STALE.value == "signature_stale"
