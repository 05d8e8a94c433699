"""Create only one payment for each idempotency key. See draft-ietf-httpapi-idempotency-key-header."""

import hashlib
from datetime import datetime, timedelta
from typing import Final

from attrs import evolve, frozen

from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation, idempotency_key
from incoming_payments.domain.lifecycle import Decision, as_created
from incoming_payments.domain.payment import HOST, ClientId, IncomingPayment
from incoming_payments.errors import (
    IdempotencyKeyReused,
    InvalidValue,
    MalformedField,
    MalformedIdempotencyKey,
    SignatureRefused,
)
from incoming_payments.flows.machinery.effects import FindCreation, Flow, LoadPayment
from incoming_payments.httpsig import RequestMessage, parse_string
from incoming_payments.limits import IDEMPOTENCY_KEY_CHARS_MAX

IDEMPOTENCY_KEY: Final = "idempotency-key"  # the name of the header field


@frozen
class KeyedRequest:
    """A request of `client` with an idempotency key. `client` is `HOST` for a call of the host."""

    client: ClientId
    key: IdempotencyKey
    fingerprint: str


def keyed_request(client: ClientId, key: str, content: bytes) -> KeyedRequest:
    """Return the request of `client` with the idempotency key `key`. Two requests are equal if `content` is equal.

    Raises `InvalidValue` for an invalid key.
    """
    return KeyedRequest(client, idempotency_key(key), hashlib.sha256(content).hexdigest())


def read_key(request: RequestMessage, client: ClientId) -> KeyedRequest | None:
    """Return `request` of `client` with its `Idempotency-Key`, or `None` if it has no such field.

    The fingerprint is computed from the bytes of the body, because a retry has the same bytes. Raises
    `MalformedIdempotencyKey`.
    """
    lines = request.values(IDEMPOTENCY_KEY)
    if not lines:
        return None
    try:
        return keyed_request(client, parse_string(lines, "Idempotency-Key"), request.body)
    except MalformedField as error:
        raise MalformedIdempotencyKey(error.description, **error.details) from error
    except InvalidValue as error:
        text = f"shorten Idempotency-Key to 1 to {IDEMPOTENCY_KEY_CHARS_MAX} characters between the quotes"
        raise MalformedIdempotencyKey(text, field="Idempotency-Key") from error


def key_not_covered(refusal: SignatureRefused) -> SignatureRefused:
    """Return the refusal of a signature that does not cover `Idempotency-Key`. The cause is the refusal by `verify`."""
    text = (
        f'the signature does not cover "{IDEMPOTENCY_KEY}": add this component, without parameters, or do not '
        "send the field"
    )
    replaced = SignatureRefused("idempotency_key_not_covered", text, component=IDEMPOTENCY_KEY)
    replaced.evidence = refusal.evidence
    return replaced


def find_created(keyed: KeyedRequest | None, now: datetime) -> Flow[IncomingPayment | None]:
    """Return the payment that `keyed` created before `now`, in the state of its creation, or `None`.

    Raises `IdempotencyKeyReused` when another request has used the key.
    """
    if keyed is None:
        return None
    found = yield from FindCreation(keyed.client, keyed.key, now)
    return None if found is None else (yield from load_created(keyed, found))


def load_created(keyed: KeyedRequest, found: KeyedCreation) -> Flow[IncomingPayment]:
    """Return the payment that `found` records, in the state of its creation.

    `found` is the record of the key of `keyed`. Raises `IdempotencyKeyReused` when another request has used the key.
    """
    if found.fingerprint != keyed.fingerprint:
        text = "the idempotency key was used for another request: use a new key for each payment"
        if keyed.client == HOST:
            # A retry with changed arguments is a mistake of the caller. A new key would create a second payment.
            text = "idempotency_key was used with other arguments: pass the same arguments to get the first payment, "
            text += "and a new key only for another payment"
        raise IdempotencyKeyReused(text)
    return as_created((yield from LoadPayment(found.payment)))


def with_key(
    decision: Decision[IncomingPayment], keyed: KeyedRequest | None, *, idempotency_key_s: int
) -> Decision[IncomingPayment]:
    """Add the record of `keyed` to `decision`, which creates a payment, and return the result.

    The store keeps the record for `idempotency_key_s` seconds.
    """
    if keyed is None:
        return decision
    payment = decision.answer
    until = payment.created_at + timedelta(seconds=idempotency_key_s)
    return evolve(decision, keyed=KeyedCreation(keyed.client, keyed.key, keyed.fingerprint, payment.id, until))
