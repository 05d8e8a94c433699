"""The codes of refused requests: the status, the cause and the remedy of each.

The OpenAPI document has the statuses and causes, and `docs/http.md` has the remedies too.
"""

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from incoming_payments import limits
from incoming_payments.httpsig import Code


@frozen
class Refusal:
    """What one code in an error body means: its HTTP status, its cause, and what the client changes."""

    status: int
    cause: str
    remedy: str


_LATER: Final = "Repeat the request after `Retry-After`."

HTTP_CODES: Final[Mapping[str, Refusal]] = {
    "invalid_http": Refusal(
        400,
        "ASGI only: the request has both `Content-Length` and `Transfer-Encoding`, or a transfer coding other than "
        "`chunked`",
        "Send only one of these fields, and no other coding.",
    ),
    "invalid_content_length": Refusal(
        400, "`Content-Length` is not a number of bytes", "Send the length of the body in bytes."
    ),
    "incomplete_body": Refusal(
        400,
        "the body ended too early, the request has `Upgrade`, or other code has read the body: see the log of the host",
        "Send as many bytes as `Content-Length` says, and no `Upgrade`.",
    ),
    "unexpected_body": Refusal(
        400, "the request has a body, and the operation takes none", "Send the request without a body."
    ),
    "not_found": Refusal(
        404, "the service has no such path", "Use the URL of the payment, or `{base_url}/incoming-payments`."
    ),
    "method_not_allowed": Refusal(405, "the path does not have this method", "Use one of the methods in `Allow`."),
    "not_acceptable": Refusal(
        406, "`Accept` excludes JSON", f"Accept `application/json`, in at most {limits.ACCEPT_CHARS_MAX} characters."
    ),
    "body_timeout": Refusal(
        408,
        f"ASGI only: the body did not begin within {limits.BODY_START_S_MAX} seconds, or did not end within "
        f"{limits.BODY_S_MAX}",
        "Send the whole body at once.",
    ),
    "length_required": Refusal(
        411, "the body is chunked, and the WSGI server does not decode it", "Send `Content-Length` in place of chunks."
    ),
    "body_too_large": Refusal(
        413, f"the body has more than {limits.BODY_BYTES_MAX} bytes", "Send a smaller body, with less metadata."
    ),
    "target_too_long": Refusal(
        414, f"path and query have more than {limits.TARGET_CHARS_MAX} characters", "Shorten the URL."
    ),
    "unsupported_media_type": Refusal(
        415, "`Content-Type` is missing, repeated or not JSON", "Send `Content-Type: application/json` once."
    ),
    "unsupported_encoding": Refusal(415, "the body has a `Content-Encoding`", "Send the body without compression."),
    "headers_too_large": Refusal(
        431,
        f"the request has more than {limits.HEADERS_MAX} header fields, more than {limits.HEADERS_BYTES_MAX} bytes of "
        f"them, or more than {limits.HEADER_BYTES_MAX} bytes in one",
        "Send fewer or shorter fields.",
    ),
}

TOKEN_CODES: Final[Mapping[str, Refusal]] = {
    "token_missing": Refusal(401, "the request has no `Authorization`", "Send `Authorization: GNAP` with the token."),
    "invalid_token": Refusal(
        401,
        "the token is unreadable or not active",
        "Request a new grant at the authorization server that `WWW-Authenticate` names.",
    ),
    "token_expired": Refusal(401, "the token has expired", "Rotate the token, or request a new grant."),
    "insufficient_rights": Refusal(
        401,
        "the token lacks the right for this request",
        "Request a grant with the action that `details.action` names.",
    ),
}

# The order is that of the checks: the key, the signature, and then the rules for repeated requests.
SIGNATURE_CODES: Final[Mapping[str, Refusal]] = {
    "key_unusable": Refusal(
        401,
        "the key that the token is bound to is refused",
        "Request a grant with an Ed25519, P-256, P-384 or RSA key, given by value.",
    ),
    Code.SIGNATURE_MISSING: Refusal(
        401, "`Signature-Input` or `Signature` is absent or empty", "Sign the request, and send both fields."
    ),
    Code.SIGNATURE_INPUT_MALFORMED: Refusal(
        401,
        "`Signature-Input` does not conform to RFC 9421 §4.1, or exceeds a limit",
        'Write a dictionary of inner lists, such as `sig1=("@method");created=1;keyid="k"`.',
    ),
    Code.SIGNATURE_MALFORMED: Refusal(
        401,
        "`Signature` does not conform to RFC 9421 §4.2, or exceeds a limit",
        "Write a dictionary of byte sequences, each with a colon at both ends: `sig1=:BASE64:`.",
    ),
    Code.LABELS_DIFFER: Refusal(
        401, "a label is in only one of the two fields", "Write each label in `Signature-Input` and in `Signature`."
    ),
    Code.KEY_ID_MISSING: Refusal(
        401, "no signature has the parameter `keyid`", "Set `keyid` to the `kid` of your JWK."
    ),
    Code.KEY_UNKNOWN: Refusal(
        401,
        "`keyid` is not the `kid` of a key of the client",
        "Set `keyid` to the `kid` of the key that the token is bound to.",
    ),
    Code.TOO_MANY_SIGNATURES: Refusal(
        401, f"the request has more than {limits.SIGNATURES_MAX} signatures by known keys", "Send one signature."
    ),
    Code.ALGORITHM_MISMATCH: Refusal(
        401,
        "the signature parameter `alg` is not the algorithm of the key",
        "Leave out `alg`, or use the algorithm of the JWK.",
    ),
    Code.COMPONENT_NOT_COVERED: Refusal(
        401,
        "the signature does not cover a required component, or covers it only with parameters",
        "Also cover the components that `details.component` names, without parameters.",
    ),
    Code.BODY_NOT_COVERED: Refusal(
        401,
        "the request has a body, and the signature does not cover `content-digest`",
        "Send `Content-Digest`, and cover `content-digest`.",
    ),
    Code.TAG_MISMATCH: Refusal(
        401, "`tag` is not the tag that the service requires", "Sign with the tag in the description."
    ),
    Code.NONCE_MISSING: Refusal(401, "the service requires a nonce", "Sign each request with a new `nonce`."),
    Code.CREATED_MISSING: Refusal(
        401, "the signature has no `created`", "Set `created` to the present time, in seconds since 1970."
    ),
    Code.CREATED_IN_FUTURE: Refusal(
        401, "`created` is further ahead than the clock skew allows", "Set your clock, and use whole seconds."
    ),
    Code.STALE: Refusal(
        401, "`created` is further in the past than the service allows", "Sign again, immediately before you send."
    ),
    Code.EXPIRES_BEFORE_CREATED: Refusal(
        401, "`expires` is not later than `created`", "Set `expires` to a later time, or leave it out."
    ),
    Code.EXPIRED: Refusal(401, "`expires` has passed", "Sign again."),
    Code.COMPONENT_REPEATED: Refusal(401, "a component is covered twice", "Cover each component once."),
    Code.COMPONENT_UNSUPPORTED: Refusal(
        401,
        "the name or a parameter of a component is unknown",
        "Cover derived components of RFC 9421 and header fields in lower case only.",
    ),
    Code.COMPONENT_ABSENT: Refusal(
        401, "a covered component is not in the request", "Send this component, or do not cover it."
    ),
    Code.COMPONENT_VALUE: Refusal(
        401,
        "the value of a component is too long, is ambiguous, or has control or non-ASCII characters",
        "Change the value as the description says.",
    ),
    Code.FIELD_REPEATED: Refusal(401, "a field that may occur once occurs twice", "Send this field once."),
    Code.CONTENT_LENGTH_MISMATCH: Refusal(
        401, "`Content-Length` is not the size of the received body", "Sign the length of the body that you send."
    ),
    Code.DIGEST_MISSING: Refusal(
        401, "the signature covers `content-digest`, and the field is absent", "Send `Content-Digest`."
    ),
    Code.DIGEST_MALFORMED: Refusal(
        401,
        "`Content-Digest` does not conform to RFC 9530",
        "Write the digest as a byte sequence: `sha-512=:BASE64:`.",
    ),
    Code.DIGEST_UNSUPPORTED: Refusal(
        401, "`Content-Digest` has neither sha-256 nor sha-512", "Send one of these two digests."
    ),
    Code.DIGEST_MISMATCH: Refusal(
        401,
        "the digest is not that of the received body",
        "Compute the digest over the exact bytes that you send.",
    ),
    Code.SIGNATURE_INVALID: Refusal(
        401,
        "the signature is not valid for the signature base and the key",
        "Sign the URL in `details.target_uri`, with the private key of the JWK, after the last change of a header.",
    ),
    "nonce_unsupported": Refusal(401, "the service does not remember nonces", "Sign without `nonce`."),
    "nonce_used": Refusal(401, "the signature's nonce was used before", "Sign each request with a new `nonce`."),
    "request_repeated": Refusal(
        401,
        "the service refuses identical requests, and this one is a duplicate",
        "Sign again with a `nonce` or a new `created`.",
    ),
    "idempotency_key_not_covered": Refusal(
        401,
        "the signature does not cover the `Idempotency-Key` that the request has",
        "Also cover `idempotency-key`.",
    ),
}

RESOURCE_CODES: Final[Mapping[str, Refusal]] = {
    "invalid_body": Refusal(
        400,
        "the body is not JSON, or has a missing, unknown or wrong member, which `member` names",
        "Correct the member that `details.member` names.",
    ),
    "unknown_wallet_address": Refusal(
        400,
        "this service does not host the wallet address",
        "Send the URL of a wallet address that this service hosts.",
    ),
    "asset_mismatch": Refusal(
        400,
        "`incomingAmount` is not in the asset of the wallet address",
        "Use the `assetCode` and the `assetScale` of the wallet address.",
    ),
    "invalid_terms": Refusal(
        400,
        "`incomingAmount` is zero, or `expiresAt` is in the past or too far ahead",
        "Correct the member that `details.member` names.",
    ),
    "invalid_query": Refusal(
        400,
        "a parameter is missing, unknown, repeated or wrong, which `member` names",
        "Correct the parameter that `details.member` names.",
    ),
    "unknown_cursor": Refusal(
        400, "the cursor names no payment of this list", "Use a cursor of this list, or begin without a cursor."
    ),
    "invalid_idempotency_key": Refusal(
        400,
        "`Idempotency-Key` is not one string in double quotes, or is too long",
        f"Send one string of 1 to {limits.IDEMPOTENCY_KEY_CHARS_MAX} characters in double quotes.",
    ),
    "forbidden": Refusal(
        403,
        "the token has the right, but not for this wallet address, or not for payments of other clients",
        "Request a grant for this wallet address, or with `read-all` or `list-all`.",
    ),
    "inactive_wallet_address": Refusal(
        403, "the wallet address takes no new payments", "Ask the payee for another wallet address."
    ),
    "refused_by_policy": Refusal(
        403,
        "a rule of the account servicing entity refuses, with its own description",
        "Do what the description says, or ask the account servicing entity.",
    ),
    "payment_not_found": Refusal(
        404,
        "no such payment, or it belongs to a wallet address that the token does not cover",
        "Use the `id` of the payment, and a token for its wallet address.",
    ),
    "payment_expired": Refusal(
        409, "the payment has expired, so it cannot be completed", "Leave the payment, or create another one."
    ),
    "idempotency_key_reused": Refusal(
        422,
        "the client used this `Idempotency-Key` before for another request",
        "Use a new key for each new request, and repeat a request with the same body.",
    ),
    "too_many_requests": Refusal(429, "the client has sent too many requests", _LATER),
    "too_many_unpaid_payments": Refusal(
        429,
        "the client has too many unpaid payments",
        "Complete a payment, or wait until a payment is paid or expires.",
    ),
}

OUTAGE_CODES: Final[Mapping[str, Refusal]] = {
    "internal_error": Refusal(
        500, "a part of the service failed; no request can cause this", "Repeat the request later."
    ),
    "approval_pending": Refusal(
        503,
        "the account servicing entity has not decided yet",
        "Repeat the request after `Retry-After`. Nothing was stored.",
    ),
    "acceptance_unavailable": Refusal(503, "the account servicing entity cannot decide now", _LATER),
    "port_unavailable": Refusal(503, "another system of the service does not answer now", _LATER),
    "authorization_server_unavailable": Refusal(
        503,
        "the token could not be introspected, and may still be valid",
        "Keep the token, and repeat the request after `Retry-After`.",
    ),
    "client_keys_unavailable": Refusal(503, "the keys of the client cannot be read now", _LATER),
    "clock_behind": Refusal(
        503,
        "the service cannot check nonces now, because its clock was set back",
        "Repeat the request later, or sign without `nonce`.",
    ),
    "wallet_addresses_unavailable": Refusal(503, "the wallet address cannot be looked up now", _LATER),
    "store_unavailable": Refusal(
        503,
        "the store cannot answer now",
        "Repeat the request after `Retry-After`, a create with the same `Idempotency-Key`.",
    ),
    "store_stopped": Refusal(
        503,
        "the store has stopped until an operator acts",
        "Repeat the request later, a create with the same `Idempotency-Key`.",
    ),
}

CODES: Final[Mapping[str, Refusal]] = {
    str(code): refusal
    for group in (HTTP_CODES, TOKEN_CODES, SIGNATURE_CODES, RESOURCE_CODES, OUTAGE_CODES)
    for code, refusal in group.items()
}
