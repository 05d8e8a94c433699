"""Every reason for which a signed request is refused, in the order in which the rules are applied."""

import enum


class Reason(enum.StrEnum):
    """Why a request was refused: the stable `code` of a `SignatureRefused`.

    The members stand in the order in which the verifier looks, cheapest first. When several signatures fail, the one
    reported is the one that came furthest down this list.

    >>> Reason("signature_expired") is Reason.EXPIRED
    True
    """

    # the header fields as a whole
    SIGNATURE_MISSING = "signature_missing"  # `Signature-Input` or `Signature` is absent or empty
    SIGNATURE_INPUT_MALFORMED = "signature_input_malformed"  # not as RFC 9421 §4.1 has it, or over a limit
    SIGNATURE_MALFORMED = "signature_malformed"  # likewise, RFC 9421 §4.2
    LABELS_DIFFER = "signature_labels_differ"  # a label stands in one of the two fields only

    # which key
    KEY_ID_MISSING = "keyid_missing"
    KEY_UNKNOWN = "key_unknown"  # `keyid` is not the `kid` of any key given
    TOO_MANY_SIGNATURES = "too_many_signatures"  # more by known keys than `limits.SIGNATURES_MAX`
    ALGORITHM_MISMATCH = "algorithm_mismatch"  # `alg` is not what the key is for

    # what is covered
    COMPONENT_NOT_COVERED = "component_not_covered"  # one the policy requires, in its plain form
    BODY_NOT_COVERED = "body_not_covered"  # there is a body, and `content-digest` is not covered
    TAG_MISMATCH = "tag_mismatch"  # `tag` is not the one the policy asks for
    NONCE_MISSING = "nonce_missing"  # the policy asks for one

    # when
    CREATED_MISSING = "created_missing"
    CREATED_IN_FUTURE = "created_in_future"
    STALE = "signature_stale"  # `created` is longer ago than the policy allows
    EXPIRES_BEFORE_CREATED = "expires_before_created"
    EXPIRED = "signature_expired"

    # can the signature base be built, RFC 9421 §2.5
    COMPONENT_REPEATED = "component_repeated"
    COMPONENT_UNSUPPORTED = "component_unsupported"  # an unknown name, or a parameter we do not apply
    COMPONENT_ABSENT = "component_absent"  # covered, but not in the request
    COMPONENT_VALUE = "component_value"  # its value cannot be signed over: control characters, not ASCII, ambiguous
    FIELD_REPEATED = "field_repeated"  # a field that may occur once occurs twice

    # the body
    CONTENT_LENGTH_MISMATCH = "content_length_mismatch"
    DIGEST_MISSING = "digest_missing"
    DIGEST_MALFORMED = "digest_malformed"
    DIGEST_UNSUPPORTED = "digest_unsupported"  # neither sha-256 nor sha-512
    DIGEST_MISMATCH = "digest_mismatch"

    # the curve
    SIGNATURE_INVALID = "signature_invalid"
