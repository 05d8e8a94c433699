"""Authenticate a request: first its access token, then its signature, then whether the request is a replay."""

from datetime import datetime

from attrs import frozen

from incoming_payments.domain.payment import ClientId
from incoming_payments.errors import AuthorizationServerUnavailable, MalformedKey, PortMissing, SignatureRefused
from incoming_payments.flows.effects import Flow, IntrospectToken, UseNonce
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import AccessTokenInfo, require_active
from incoming_payments.gnap.token import AccessToken, parse_authorization
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
    """An authenticated client, the rights of its token, and the facts that its signature proves."""

    client: ClientId
    rights: tuple[AccessRight, ...]
    proof: Proof


def authenticate(request: RequestMessage, policy: ServicePolicy, now: datetime) -> Flow[Caller]:
    """Return the caller of `request`. Spec section 5.

    Raises `TokenRefused`, `SignatureRefused` with its `evidence`, `StoreUnavailable` when no further nonce can be
    stored, or `AuthorizationServerUnavailable` when the token cannot be introspected now.

    The key is the one to which the active token is bound (RFC 9635 §7.2), never one that the request names. A nonce is
    stored only after the signature is verified, so a client without the key cannot use up nonces.
    """
    token = parse_authorization(request.values("authorization"))
    info = require_active((yield from _introspect(token)), now)
    keys: dict[str, PublicKey] = {}
    try:
        key = _load_key(info)
        keys[key.kid] = key
        caller = Caller(info.client, info.rights, verify(request, keys, policy=policy.signature, now=now))
        if caller.proof.signature_input.nonce is not None or not policy.allow_identical:
            yield from _require_new(caller, policy, now)
    except SignatureRefused as refusal:
        refusal.evidence = Evidence(request, keys, policy.signature, now)
        raise
    return caller


def _introspect(token: AccessToken) -> Flow[AccessTokenInfo | None]:
    """Introspect `token`. A timeout or a lost connection is an outage, and no fault of the introspector."""
    try:
        return (yield from IntrospectToken(token))
    except (ConnectionError, TimeoutError) as error:
        text = f"the introspector has no answer of the authorization server: {type(error).__name__}: {error}"
        raise AuthorizationServerUnavailable(text) from error


def _load_key(info: AccessTokenInfo) -> PublicKey:
    try:
        return load_jwk(info.jwk)
    except MalformedKey as error:
        raise SignatureRefused(
            "key_unusable", f"the key that is bound to the access token cannot be used: {error}"
        ) from error


def _require_new(caller: Caller, policy: ServicePolicy, now: datetime) -> Flow[None]:
    nonce = caller.proof.signature_input.nonce
    try:
        is_new = yield from UseNonce(
            replay_key(caller.proof, caller.client), fresh_until(caller.proof, policy.signature), now
        )
    except PortMissing as error:
        if nonce is None or policy.signature.nonce_required:
            raise  # the policy needs the port, so this is a mistake of the host
        text = "this service does not support the nonce parameter: leave it out"
        raise SignatureRefused("nonce_unsupported", text) from error
    if not is_new:
        if nonce is None:
            text = "this request was already used: sign it again with a nonce or a new created time"
            raise SignatureRefused("request_repeated", text)
        raise SignatureRefused("nonce_used", "the nonce was already used: sign each request with a new nonce")
