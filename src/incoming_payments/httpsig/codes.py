"""The codes of refused signatures, in the order of the checks."""

import enum


class Code(enum.StrEnum):
    """The stable `code` of a `SignatureRefused`.

    The members are in the order of the checks, cheapest first. When several signatures fail, the refusal has the code
    of the signature that passed most checks.
    """

    # the rules for the header fields as a whole
    SIGNATURE_MISSING = "signature_missing"  # `Signature-Input` or `Signature` is absent or empty
    # the field does not conform to RFC 9421 §4.1, or exceeds a limit
    SIGNATURE_INPUT_MALFORMED = "signature_input_malformed"
    SIGNATURE_MALFORMED = "signature_malformed"  # the field does not conform to RFC 9421 §4.2, or exceeds a limit
    LABELS_DIFFER = "signature_labels_differ"  # a label is in only one of the two fields

    # the key
    KEY_ID_MISSING = "keyid_missing"
    KEY_UNKNOWN = "key_unknown"  # `keyid` is not the `kid` of any of the given keys
    TOO_MANY_SIGNATURES = "too_many_signatures"  # there are more than `limits.SIGNATURES_MAX` signatures by known keys
    ALGORITHM_MISMATCH = "algorithm_mismatch"  # `alg` is not the algorithm of the key

    # the coverage
    # the policy requires a component that is not covered, or is covered only with parameters
    COMPONENT_NOT_COVERED = "component_not_covered"
    BODY_NOT_COVERED = "body_not_covered"  # the request has a body, and `content-digest` is not covered
    TAG_MISMATCH = "tag_mismatch"  # `tag` differs from the tag of the policy
    NONCE_MISSING = "nonce_missing"  # the policy requires a nonce

    # the time
    CREATED_MISSING = "created_missing"
    CREATED_IN_FUTURE = "created_in_future"
    STALE = "signature_stale"  # `created` is further in the past than the policy allows
    EXPIRES_BEFORE_CREATED = "expires_before_created"
    EXPIRED = "signature_expired"

    # the signature base, RFC 9421 §2.5
    COMPONENT_REPEATED = "component_repeated"
    COMPONENT_UNSUPPORTED = "component_unsupported"  # the name is unknown, or a parameter is not supported
    COMPONENT_ABSENT = "component_absent"  # a covered component is not in the request
    COMPONENT_VALUE = "component_value"  # the value is ambiguous, or has control or non-ASCII characters
    FIELD_REPEATED = "field_repeated"  # a field that may occur once occurs twice

    # the body
    CONTENT_LENGTH_MISMATCH = "content_length_mismatch"
    DIGEST_MISSING = "digest_missing"
    DIGEST_MALFORMED = "digest_malformed"
    DIGEST_UNSUPPORTED = "digest_unsupported"  # the digest is neither sha-256 nor sha-512
    DIGEST_MISMATCH = "digest_mismatch"

    # the signature itself
    SIGNATURE_INVALID = "signature_invalid"
