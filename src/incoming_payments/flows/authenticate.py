"""Who is calling: the access token first, then the signature by the key that it is bound to, then whether it is new."""

from datetime import datetime

from attrs import frozen

from incoming_payments.domain.payment import ClientId
from incoming_payments.errors import MalformedKey, PortMissing, SignatureRefused
from incoming_payments.flows.effects import Flow, IntrospectToken, UseNonce
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import AccessTokenInfo, require_active
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import (
    Evidence,
    Proof,
    PublicKey,
    RequestMessage,
    fresh_until,
    load_jwk,
    replay_key,
    verify,
)


@frozen
class Caller:
    """A client that has proven who it is, what its token allows, and what its signature covered."""

    client: ClientId
    rights: tuple[AccessRight, ...]
    proof: Proof


def authenticate(request: RequestMessage, policy: ServicePolicy, now: datetime) -> Flow[Caller]:
    """The caller of `request`. Contract section 5.

    Raises `TokenRefused`, or `SignatureRefused` with its `evidence`; `StoreUnavailable` when there is no room for
    another nonce. No key is looked at before the token is known to be active: the key is the one the token is bound to
    (RFC 9635 §7.2), never one that the request names. Nothing is remembered before the signature has held, so that
    nobody without the key can use up a nonce, or the room for them.
    """
    token = parse_authorization(request.values("authorization"))
    info = require_active((yield from IntrospectToken(token)), now)
    keys: dict[str, PublicKey] = {}
    try:
        key = _load_key(info)
        keys[key.kid] = key
        caller = Caller(info.client, info.rights, verify(request, keys, policy=policy.signature, now=now))
        if caller.proof.nonce is not None or not policy.allow_identical:
            yield from _require_new(caller, policy, now)
    except SignatureRefused as refusal:
        refusal.evidence = Evidence(request, keys, policy.signature, now)
        raise
    return caller


def _load_key(info: AccessTokenInfo) -> PublicKey:
    try:
        return load_jwk(info.jwk)
    except MalformedKey as error:
        raise SignatureRefused("key_unusable", f"the key bound to the access token is refused: {error}") from error


def _require_new(caller: Caller, policy: ServicePolicy, now: datetime) -> Flow[None]:
    nonce = caller.proof.nonce
    try:
        is_new = yield from UseNonce(
            replay_key(caller.proof, caller.client), fresh_until(caller.proof, policy.signature), now
        )
    except PortMissing as error:
        if nonce is None or policy.signature.nonce_required:
            raise  # the policy asks for what the host gave no port for
        text = "nonces are not remembered here, so none is accepted: leave it out"
        raise SignatureRefused("nonce_unsupported", text) from error
    if not is_new:
        if nonce is None:
            text = "this very request came before: sign it anew, with a nonce or another created"
            raise SignatureRefused("request_repeated", text)
        raise SignatureRefused("nonce_used", "the nonce was used before: sign each time, with a new one")
