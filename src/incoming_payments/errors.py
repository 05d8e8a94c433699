"""Every exception this library raises. Nothing is imported here, so that everything may import it.

```
IncomingPaymentsError              code, description, details: what an error body says
├── InvalidValue (ValueError)      a value that cannot exist was asked for: our own caller, or a client's body
├── Malformed                      bytes or text from outside do not read as what they should be
│   ├── MalformedJson              a request body
│   ├── MalformedField             a structured field, or an HTTP message that cannot be signed over
│   ├── MalformedKey               a JWK
│   ├── MalformedAddress           an ILP address that is not one of ours
│   └── MalformedPacket            OER, an ILP packet or a STREAM packet; says at which byte
├── Refused                        understood, and not allowed
│   ├── TokenRefused               the access token is missing, unreadable, unknown, expired or lacks the right
│   ├── SignatureRefused           the request is not signed as the policy demands; `code` says why
│   ├── AccessForbidden            the right is there, but not for this wallet address or this payment
│   ├── PolicyRefused              the host's own rules say no; for a host's ports to raise
│   ├── TermsRefused               a payment on such terms cannot be: amount zero, expiry in the past or too far
│   ├── PaymentRefused             the payment cannot take this
│   │   ├── PaymentCompleted
│   │   ├── PaymentExpired
│   │   ├── AmountOverflow
│   │   ├── AmountTooLarge         a packet brings more than it can still take; a smaller one may be sent
│   │   ├── AssetMismatch
│   │   └── CreditIdReused
│   ├── PaymentNotFound
│   ├── PacketExpired              waited for the store until it was too late
│   ├── WalletAddressNotFound
│   └── HttpRefused                method, media type, size: what HTTP itself has a status for
├── StoreError                     the store could not do it; nothing was changed as far as it can tell
│   ├── StoreUnavailable           for now: try the same call again
│   └── StoreUnusable              until an operator acts: wrong schema, not a database, closed
│       └── StoreStopped           its disk failed or its files changed: it refuses every call from then on
├── BackupFailed                   no copy of the database was made
├── PaymentExists                  an id was used twice: a port that hands out ids is broken
├── BrokenDecision                 what a decision wants stored contradicts itself: a bug in the decision
├── PortMissing                    a flow asked for something no port was given for
├── FlowStuck                      a flow took more steps than any flow should
└── ConfigurationError             a setting is missing or wrong; the message names it
```

Callers match on the class or on `code`, never on the message. The HTTP status of each is decided in `api.py`.
"""

from collections.abc import Mapping


class IncomingPaymentsError(Exception):
    """The root: `except IncomingPaymentsError` catches whatever this library raises on purpose.

    `code` is stable and for programs; `description` is for people and says what to change; `details` holds
    facts such as the offending member. None of the three ever holds a secret. Each class has a `code`; a class that
    takes one as an argument covers several refusals, and each of its instances has its own.
    """

    code: str = "error"

    def __init__(self, description: str, **details: object) -> None:
        super().__init__(description)
        self.description = description
        self.details: Mapping[str, object] = details


class InvalidValue(IncomingPaymentsError, ValueError):
    """A value that cannot exist was asked for. `details["member"]` names it where there is a name."""

    code = "invalid_value"


# --- input that cannot be read -----------------------------------------------------------------


class Malformed(IncomingPaymentsError):
    """Input from outside that cannot be read."""

    code = "malformed"


class MalformedJson(Malformed):
    """A body is not the JSON it has to be; `details["member"]` is the path of the member at fault."""

    code = "invalid_body"


class MalformedField(Malformed):
    """A header field, or a message, that cannot be read as RFC 9651, 9530 or 9421 say.

    A message that cannot be signed over has a `code` of `httpsig.Code`.
    """

    code = "malformed_field"

    def __init__(self, description: str, *, code: str = "malformed_field", **details: object) -> None:
        super().__init__(description, **details)
        self.code = code


class MalformedKey(Malformed):
    """A JWK that cannot be used: members missing, of the wrong length, weak, or private."""

    code = "malformed_key"


class MalformedAddress(Malformed):
    """An ILP address that this service did not hand out."""

    code = "malformed_address"


class MalformedPacket(Malformed):
    """Bytes that are not the OER, the ILP packet or the STREAM packet that they have to be.

    `position` is the index of the byte from which on they do not read; it is in `details` as well.
    """

    code = "malformed_packet"

    def __init__(self, description: str, position: int) -> None:
        super().__init__(f"{description}, at byte {position}", position=position)
        self.position = position


# --- refusals ----------------------------------------------------------------------------------


class Refused(IncomingPaymentsError):
    """Understood, and not allowed."""

    code = "refused"


class TokenRefused(Refused):
    """No usable access token: `token_missing`, `invalid_token`, `token_expired` or `insufficient_rights`."""

    code = "invalid_token"

    def __init__(self, code: str, description: str, **details: object) -> None:
        super().__init__(description, **details)
        self.code = code


class SignatureRefused(Refused):
    """The request is not signed as the policy demands.

    `code` is a `httpsig.Code`, or `key_unusable`, `nonce_used`, `nonce_unsupported`, `request_repeated`. `evidence`
    is an `httpsig.Evidence`, when the caller of `verify` kept one for its log.
    """

    code = "invalid_signature"

    def __init__(self, code: str, description: str, **details: object) -> None:
        super().__init__(description, **details)
        self.code = code
        self.evidence: object = None


class AccessForbidden(Refused):
    """The right exists, but not for this wallet address or this client's payment."""

    code = "forbidden"


class PolicyRefused(Refused):
    """Raised by a host's port to refuse by its own rules: the client gets 403 with this description."""

    code = "refused_by_policy"


class TermsRefused(Refused):
    """There cannot be a payment on these terms; `details["member"]` names the one at fault."""

    code = "invalid_terms"


class PaymentRefused(Refused):
    """The payment cannot take this; the subclass says why."""

    code = "payment_refused"


class PaymentCompleted(PaymentRefused):
    """It has received what it was for, or its client closed it. Contract section 3, row 1."""

    code = "payment_completed"


class PaymentExpired(PaymentRefused):
    """Its `expiresAt` has passed. Contract section 3, row 2."""

    code = "payment_expired"


class AmountOverflow(PaymentRefused):
    """The total would not fit an unsigned 64-bit integer."""

    code = "amount_overflow"


class AmountTooLarge(PaymentRefused):
    """A packet brings more than the payment can still take, which is `remaining` minor units. Nothing was booked."""

    code = "amount_too_large"

    def __init__(self, description: str, *, remaining: int) -> None:
        super().__init__(description, remaining=remaining)
        self.remaining = remaining


class AssetMismatch(PaymentRefused):
    """Code or scale are not those of the wallet address."""

    code = "asset_mismatch"


class CreditIdReused(PaymentRefused):
    """The credit id was booked before, with another amount: not a repeat but a mistake."""

    code = "credit_id_reused"


class PaymentNotFound(Refused):
    """No such payment, or none that the caller may know of."""

    code = "payment_not_found"


class PacketExpired(Refused):
    """An ILP packet waited for the store until its sender was about to give it up. Nothing was booked."""

    code = "packet_expired"


class WalletAddressNotFound(Refused):
    """The wallet address is not hosted here."""

    code = "unknown_wallet_address"


class HttpRefused(Refused):
    """What HTTP has a status of its own for: `status`, with the header fields that go with it."""

    code = "http_error"

    def __init__(self, status: int, code: str, description: str, *, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(description)
        self.status = status
        self.code = code
        self.headers = headers


# --- ports and drivers -------------------------------------------------------------------------


class StoreError(IncomingPaymentsError):
    """The store could not do what was asked."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot do it now: locked, disk full, file read-only. Repeat the same call; credit ids make it safe."""

    code = "store_unavailable"


class StoreUnusable(StoreError):
    """The store cannot be used until somebody acts: another schema, not a database, or closed."""

    code = "store_unusable"


class StoreStopped(StoreUnusable):
    """The store has stopped for good, because the disk may not hold what it would acknowledge.

    A write or a sync failed, or the database files were removed, replaced or shortened. Every call is refused, in every
    process that has the database open. Check the disk and the files, end these processes, and start again.
    """

    code = "store_stopped"


class BackupFailed(IncomingPaymentsError):
    """A backup was not made. Nothing is left of it, and the database is as it was."""

    code = "backup_failed"


class PaymentExists(IncomingPaymentsError):
    """A payment with this id is there already. Ids are random: whatever draws them is broken."""

    code = "payment_exists"


class BrokenDecision(IncomingPaymentsError):
    """What a decision wants stored contradicts itself or what is stored: a bug in the decision. Nothing was changed."""

    code = "broken_decision"


class PortMissing(IncomingPaymentsError):
    """A flow asked a question that no port was given for."""

    code = "port_missing"


class FlowStuck(IncomingPaymentsError):
    """A flow took more than `limits.FLOW_STEPS_MAX` steps, a bug in the flow; or it was driven before."""

    code = "flow_stuck"


class ConfigurationError(IncomingPaymentsError):
    """A setting is missing or wrong. `details["setting"]` names it."""

    code = "configuration_error"
