"""The codes of refused signatures, in the order in which the rules are applied."""

import enum


class Code(enum.StrEnum):
    """The stable `code` of a `SignatureRefused`.

    The members are in the order of the checks, cheapest first. When several signatures fail, the refusal has the code
    of the signature that passed most checks.
    """

    # the header fields as a whole
    SIGNATURE_MISSING = "signature_missing"  # `Signature-Input` or `Signature` is absent or empty
    # The field does not conform to RFC 9421 §4.1, or is over a limit
    SIGNATURE_INPUT_MALFORMED = "signature_input_malformed"
    SIGNATURE_MALFORMED = "signature_malformed"  # the field does not conform to RFC 9421 §4.2, or is over a limit
    LABELS_DIFFER = "signature_labels_differ"  # a label is in only one of the two fields

    # the key
    KEY_ID_MISSING = "keyid_missing"
    KEY_UNKNOWN = "key_unknown"  # `keyid` is not the `kid` of any key given
    TOO_MANY_SIGNATURES = "too_many_signatures"  # more signatures by known keys than `limits.SIGNATURES_MAX`
    ALGORITHM_MISMATCH = "algorithm_mismatch"  # `alg` is not the algorithm of the key

    # the coverage
    # The policy requires a component that is not covered in its plain form
    COMPONENT_NOT_COVERED = "component_not_covered"
    BODY_NOT_COVERED = "body_not_covered"  # there is a body, and `content-digest` is not covered
    TAG_MISMATCH = "tag_mismatch"  # `tag` differs from the tag of the policy
    NONCE_MISSING = "nonce_missing"  # the policy requires a nonce

    # the time
    CREATED_MISSING = "created_missing"
    CREATED_IN_FUTURE = "created_in_future"
    STALE = "signature_stale"  # `created` is longer ago than the policy allows
    EXPIRES_BEFORE_CREATED = "expires_before_created"
    EXPIRED = "signature_expired"

    # the signature base, RFC 9421 §2.5
    COMPONENT_REPEATED = "component_repeated"
    COMPONENT_UNSUPPORTED = "component_unsupported"  # an unknown name, or a parameter that is not supported
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
