"""All exceptions of this library. This module imports nothing of the library.

```
IncomingPaymentsError              has a code, a description and details
├── InvalidValue (ValueError)      the caller passed an invalid value
├── Malformed                      input from outside cannot be read
│   ├── MalformedJson              a request body
│   ├── MalformedIdempotencyKey    the header field of a create request
│   ├── MalformedQuery             the query of a list request
│   ├── MalformedField             a header field, or an HTTP message that cannot be signed
│   ├── MalformedKey               a JWK
│   ├── MalformedAddress           an ILP address that this service did not issue
│   └── MalformedPacket            OER, an ILP packet or a STREAM packet
├── Refused                        the request is valid, but not allowed
│   ├── TokenRefused               the access token is missing, invalid, expired or lacks the right
│   ├── SignatureRefused           the signature does not satisfy the policy
│   ├── AccessForbidden            the token has the right, but not for this wallet address or payment
│   ├── PolicyRefused              a rule of the host refuses; raised by the host's ports
│   ├── TermsRefused               a payment cannot have these terms
│   ├── PaymentRefused             the payment cannot take this credit
│   │   ├── PaymentCompleted
│   │   ├── PaymentExpired
│   │   ├── AmountOverflow
│   │   ├── AmountTooLarge         the sender of the packet can send less
│   │   ├── AssetMismatch
│   │   └── CreditIdReused
│   ├── PaymentNotFound
│   ├── IdempotencyKeyReused       the key was used before for another request
│   ├── CursorNotFound             the cursor names no payment of the list
│   ├── PacketExpired              the packet waited too long for the store
│   ├── ApprovalPending            the host has not decided yet: repeat the request
│   ├── QuotaExceeded              the client has used up a quota
│   ├── ConsumerNotFound           the feed has no consumer with this name
│   ├── DeliveryNotFound           the consumer has no such delivery
│   ├── WalletAddressNotFound
│   ├── WalletAddressInactive
│   └── HttpRefused                HTTP has a status for this refusal: method, media type, size
├── PortUnavailable                a port cannot answer now: repeat the call
│   ├── ApprovalUnavailable
│   ├── AuthorizationServerUnavailable
│   ├── ClientKeysUnavailable
│   ├── ClockBehind
│   └── WalletAddressesUnavailable
├── StoreError                     the store failed
│   ├── StoreUnavailable (PortUnavailable)    for now: repeat the call
│   └── StoreUnusable              until an operator repairs it
│       └── StoreStopped           until an operator repairs the disk or the files, and restarts the processes
├── BackupFailed                   the backup was not made
├── AuditFailed                    the database could not be audited
├── CopyFailed                     the payments could not be copied to another database
├── PaymentExists                  the payment id was used twice
├── BrokenDecision                 the values to store contradict each other: a bug in the decision
├── ApprovalRequired               the money of a packet needs the approval of the host
├── LeaseLost                      a handler acknowledges a delivery, but has lost its lease
├── RetryLater                     a handler asks for a later attempt of its delivery
├── HandlerGone                    a handler wants no more deliveries
├── PortMissing                    a flow needs a port that the host did not pass
├── FlowStuck                      a flow took too many steps, or had already run
└── ConfigurationError             a setting is missing or wrong
```

Match on the class or on `code`, never on the description. `endpoints.open_payments.STATUS` maps the classes to HTTP
status codes.
"""

from collections.abc import Mapping
from typing import Any


class IncomingPaymentsError(Exception):
    """The base class of all exceptions that this library raises on purpose.

    `code` is stable and is for programs. `description` is for people, and says what to change. `details` holds facts,
    such as the wrong member. None of these members holds a secret. `TokenRefused`, `SignatureRefused`, `MalformedField`
    and `HttpRefused` take their `code` as an argument. Each of the other classes has one code.
    """

    code: str = "error"

    def __init_subclass__(cls, *, code: str | None = None) -> None:
        if code is not None:
            cls.code = code

    def __init__(self, description: str, **details: object) -> None:
        super().__init__(description)
        self.description = description
        self.details: Mapping[str, Any] = details


class InvalidValue(IncomingPaymentsError, ValueError, code="invalid_value"):
    """An argument of a value is invalid. `details["member"]` is the name of the argument, if it has a name."""


# --- input that cannot be read -----------------------------------------------------------------


class Malformed(IncomingPaymentsError, code="malformed"):
    """Input from outside cannot be read."""


class MalformedJson(Malformed, code="invalid_body"):
    """A body is not JSON, or has a wrong member. `details["member"]` is the path of the wrong member."""


class MalformedIdempotencyKey(Malformed, code="invalid_idempotency_key"):
    """`Idempotency-Key` is not one string in double quotes (RFC 9651 §3.3.3), is empty, or is too long."""


class MalformedQuery(Malformed, code="invalid_query"):
    """The query of a list request cannot be read. `details["member"]` is the name of the wrong member."""


class MalformedField(Malformed, code="malformed_field"):
    """A header field or an HTTP message is not valid under RFC 9651, RFC 9530 or RFC 9421.

    `code` is an `httpsig.Code` if a signature base cannot be built from the message.
    """

    def __init__(self, description: str, *, code: str = "malformed_field", **details: object) -> None:
        super().__init__(description, **details)
        self.code = code


class MalformedKey(Malformed, code="malformed_key"):
    """A JWK cannot be used: members are missing or have the wrong length, or the key is weak or private."""


class MalformedAddress(Malformed, code="malformed_address"):
    """This service did not issue the ILP address."""


class MalformedPacket(Malformed, code="malformed_packet"):
    """The bytes are not valid OER, or not a valid ILP or STREAM packet. `position` is the index of the wrong byte."""

    def __init__(self, description: str, position: int) -> None:
        super().__init__(f"{description}, at byte {position}", position=position)
        self.position = position


# --- refusals ----------------------------------------------------------------------------------


class Refused(IncomingPaymentsError, code="refused"):
    """The request is valid, but not allowed. `hint` is empty, or names a setting of the host that may be the reason.

    Only the log of the host shows the hint.
    """

    def __init__(self, description: str, *, hint: str = "", **details: object) -> None:
        super().__init__(description, **details)
        self.hint = hint


class TokenRefused(Refused, code="invalid_token"):
    """The request has no usable access token: `token_missing`, `invalid_token`, `token_expired` or
    `insufficient_rights`.

    The code `key_unusable` means that this service cannot use the key to which the token is bound.
    """

    def __init__(self, code: str, description: str, *, hint: str = "", **details: object) -> None:
        super().__init__(description, hint=hint, **details)
        self.code = code


class SignatureRefused(Refused, code="invalid_signature"):
    """The signature does not satisfy the policy.

    `code` is an `httpsig.Code`, or `key_unusable`, `nonce_used`, `nonce_unsupported` or `request_repeated`. `evidence`
    is an `httpsig.Evidence` if the caller of `verify` kept the evidence for its log.
    """

    def __init__(self, code: str, description: str, *, hint: str = "", **details: object) -> None:
        super().__init__(description, hint=hint, **details)
        self.code = code
        self.evidence: object = None


class AccessForbidden(Refused, code="forbidden"):
    """The token has the right, but not for this wallet address, or not for payments of other clients."""


class PolicyRefused(Refused, code="refused_by_policy"):
    """A rule of the host refuses the request or the packet. The ports of the host raise this exception.

    A client gets 403 with this description. The sender of a packet gets F99 with the description, which is encrypted
    for the sender.
    """


class TermsRefused(Refused, code="invalid_terms"):
    """The terms of a payment are invalid. `details["member"]` is the name of the wrong member."""


class PaymentRefused(Refused, code="payment_refused"):
    """The payment cannot accept this credit. The subclass shows the reason."""


class PaymentCompleted(PaymentRefused, code="payment_completed"):
    """The payment has received its `incomingAmount`, or its client has closed the payment (spec section 3, row 1)."""


class PaymentExpired(PaymentRefused, code="payment_expired"):
    """The `expiresAt` of the payment has passed (spec section 3, row 2)."""


class AmountOverflow(PaymentRefused, code="amount_overflow"):
    """The total received would exceed 2**64 - 1."""


class AmountTooLarge(PaymentRefused, code="amount_too_large"):
    """A packet has more money than the payment can still accept, and was not credited.

    The payment can still accept `remaining` minor units.
    """

    def __init__(self, description: str, *, remaining: int) -> None:
        super().__init__(description, remaining=remaining)
        self.remaining = remaining


class AssetMismatch(PaymentRefused, code="asset_mismatch"):
    """The amount and the wallet address have different asset codes or scales."""


class CreditIdReused(PaymentRefused, code="credit_id_reused"):
    """The credit id was used before for another amount, so this is not a repeated call but a mistake."""


class PaymentNotFound(Refused, code="payment_not_found"):
    """The payment does not exist, or the caller may not know that it exists."""


class IdempotencyKeyReused(Refused, code="idempotency_key_reused"):
    """The client used the idempotency key before for another request, so this is not a retry but a mistake."""


class CursorNotFound(Refused, code="unknown_cursor"):
    """The cursor does not name a payment of the list, or the caller may not know that this payment exists."""


class PacketExpired(Refused, code="packet_expired"):
    """An ILP packet waited for the store until it was about to expire. Nothing was credited."""


class ApprovalPending(Refused, code="approval_pending"):
    """The host has not decided yet. Nothing was stored, and the host may approve the same request later."""


class QuotaExceeded(Refused, code="too_many_requests"):
    """The client has used up a quota: `too_many_requests` or `too_many_unpaid_payments`.

    `retry_after_s` is the number of seconds after which a request may succeed.
    """

    def __init__(self, code: str, description: str, *, retry_after_s: float) -> None:
        super().__init__(description)
        self.code = code
        self.retry_after_s = retry_after_s


class ConsumerNotFound(Refused, code="unknown_consumer"):
    """The feed has no consumer with this name."""


class DeliveryNotFound(Refused, code="unknown_delivery"):
    """The consumer has no dead letter with this id."""


class WalletAddressNotFound(Refused, code="unknown_wallet_address"):
    """This ASE does not host the wallet address."""


class WalletAddressInactive(Refused, code="inactive_wallet_address"):
    """The wallet address accepts no new payments. Its existing payments still receive money."""


class HttpRefused(Refused, code="http_error"):
    """A refusal with a `status` that HTTP defines. `headers` are the header fields that belong to the response."""

    def __init__(self, status: int, code: str, description: str, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(description)
        self.status = status
        self.code = code
        self.headers = headers


# --- ports and drivers -------------------------------------------------------------------------


class PortUnavailable(IncomingPaymentsError, code="port_unavailable"):
    """A port cannot answer now, because a system that it depends on does not answer. The same call may work later.

    Clients get 503 with the code, and peers get T00. Only the log of the host shows the description.
    """


class AuthorizationServerUnavailable(PortUnavailable, code="authorization_server_unavailable"):
    """The authorization server does not answer, or its answer does not show whether the token is active."""


class ApprovalUnavailable(PortUnavailable, code="acceptance_unavailable"):
    """The approval port of the host failed, or did not answer in time. Nothing was stored."""


class ClientKeysUnavailable(PortUnavailable, code="client_keys_unavailable"):
    """The keys of the client cannot be read now, so the signature can be neither accepted nor refused."""


class ClockBehind(PortUnavailable, code="clock_behind"):
    """A nonce cannot be checked, because a process whose clock was ahead has removed the nonces of this time.

    The service accepts nonces again when the clock has passed the time in the description. A request that was delayed
    for longer than the clock skew may get this error too.
    """


class WalletAddressesUnavailable(PortUnavailable, code="wallet_addresses_unavailable"):
    """The service for wallet addresses does not answer, or its answer cannot be read."""


class StoreError(IncomingPaymentsError, code="store_error"):
    """The store failed."""


class StoreUnavailable(StoreError, PortUnavailable, code="store_unavailable"):
    """The store cannot answer now: the file is locked or read-only, or the disk is full.

    Repeat the same call. Credit ids make the retry safe.
    """


class StoreUnusable(StoreError, code="store_unusable"):
    """The store is closed, or an operator must repair its database. For example, the database has another schema."""


class StoreStopped(StoreUnusable, code="store_stopped"):
    """The store has stopped, because the disk may not contain the data that the store would acknowledge.

    A write or a sync failed, or the database files were removed, replaced or shortened. Every process that has the
    database open refuses every call.

    Check the disk and the files, end these processes, and start again. Then repeat the same call. Its change may
    already be on the disk, but credit ids make the retry safe.
    """


class BackupFailed(IncomingPaymentsError, code="backup_failed"):
    """A backup was not made. No partial copy is left, and the database is unchanged."""


class AuditFailed(IncomingPaymentsError, code="audit_failed"):
    """A database could not be audited, so nothing is known about its books."""


class CopyFailed(IncomingPaymentsError, code="copy_failed"):
    """The payments of a database could not be copied to another database. No store opens an incomplete copy."""


class PaymentExists(IncomingPaymentsError, code="payment_exists"):
    """A payment with this id exists already. Ids are random, so the source of randomness is broken."""


class BrokenDecision(IncomingPaymentsError, code="broken_decision"):
    """A decision has a bug: its values contradict each other or the stored values. Nothing was changed."""


class ApprovalRequired(IncomingPaymentsError, code="approval_required"):
    """The decision would credit the money of a packet without the approval of the host. Nothing was changed.

    `payment` is the `IncomingPayment` that would receive the money. The flow catches this exception and requests the
    approval. If the exception reaches the host, the flow has a bug.
    """

    def __init__(self, description: str, payment: Any) -> None:
        super().__init__(description)
        self.payment = payment


class LeaseLost(IncomingPaymentsError, code="lease_lost"):
    """A handler acknowledges a delivery, but has lost its lease. Another process may have the delivery."""


class RetryLater(IncomingPaymentsError, code="retry_later"):
    """A handler asks for a pause of at least `after_s` seconds before the next attempt. The log has the description.

    For `throttle_s` seconds, the relay that called the handler begins no attempt of any delivery.

    >>> RetryLater("the core ledger is closed until midnight", after_s=3600, throttle_s=3600).after_s
    3600.0
    """

    def __init__(self, description: str, *, after_s: float, throttle_s: float = 0.0) -> None:
        super().__init__(description)
        self.after_s = float(after_s)
        self.throttle_s = float(throttle_s)


class HandlerGone(IncomingPaymentsError, code="handler_gone"):
    """A handler wants no more deliveries. The attempt counts as failed, and the consumer is disabled."""


class PortMissing(IncomingPaymentsError, code="port_missing"):
    """A flow needs a port that the host did not pass."""


class FlowStuck(IncomingPaymentsError, code="flow_stuck"):
    """A flow has a bug and took more than `limits.FLOW_STEPS_MAX` steps, or the flow had already run."""


class ConfigurationError(IncomingPaymentsError, code="configuration_error"):
    """A setting is missing or wrong. `details["setting"]` is the name of the setting."""
