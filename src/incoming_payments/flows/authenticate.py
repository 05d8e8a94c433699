"""Authenticate a request: check its access token, then its signature, and then that it is not a replay."""

from collections.abc import Mapping
from datetime import datetime

from attrs import evolve

from incoming_payments.domain.payment import ClientId
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    ClientKeysUnavailable,
    MalformedKey,
    PortMissing,
    SignatureRefused,
)
from incoming_payments.flows.machinery.effects import FindClientKey, Flow, IntrospectToken, UseNonce
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.quotas import admit
from incoming_payments.gnap.access import Allowance, authorize
from incoming_payments.gnap.introspection import AccessTokenInfo, TokenQuery, require_active
from incoming_payments.httpsig import (
    Evidence,
    Proof,
    PublicKey,
    RequestMessage,
    fresh_until,
    key_ids,
    load_jwk,
    replay_key,
    verify,
)
from incoming_payments.httpsig import Policy as SignaturePolicy


def authorized(
    request: RequestMessage, query: TokenQuery, policy: ServicePolicy, now: datetime, *, covered: tuple[str, ...] = ()
) -> Flow[tuple[ClientId, Allowance]]:
    """Return the client that sent `request` with the token of `query`, and its rights for the action of `query`.

    See spec section 5. The signature must also cover the fields `covered`. The request counts against the quota of the
    client.

    Raises `TokenRefused`, which includes a missing access right, `SignatureRefused` with its `evidence`, and
    `QuotaExceeded`. Raises `StoreUnavailable` when the nonce store is full, `ClockBehind` when a nonce cannot be
    checked, `AuthorizationServerUnavailable` when the token cannot be introspected now, and `ClientKeysUnavailable`.

    The signature must be by the key to which the active token is bound (RFC 9635 §7.2). If the introspection answer
    does not contain that key, `keyid` chooses a key of the token's client. The nonce is stored last, because all
    clients share the nonce store. So only a client that has the key can store a nonce, and only up to its quota.
    """
    info = require_active((yield from _introspect(query)), now)
    keys: dict[str, PublicKey] = {}
    signature = _covering(policy.signature, covered) if covered else policy.signature
    try:
        yield from _find_keys(request, info, policy, keys)
        proof = verify(request, keys, policy=signature, now=now)
        allowance = authorize(info.rights, query.action)
        yield from admit(info.client, now)
        yield from _require_new(info.client, proof, policy, now)
    except SignatureRefused as refusal:
        refusal.evidence = Evidence(request, keys, signature, now)
        raise
    return info.client, allowance


def _covering(signature: SignaturePolicy, covered: tuple[str, ...]) -> SignaturePolicy:
    """Return the policy `signature`, which also requires the components `covered`."""
    more = [name for name in covered if name not in signature.required]
    return evolve(signature, required=(*signature.required, *more))


def _introspect(query: TokenQuery) -> Flow[AccessTokenInfo | None]:
    """Introspect the token.

    A timeout or a lost connection counts as an outage, and not as a defect of the introspector.
    """
    try:
        return (yield from IntrospectToken(query))
    except (ConnectionError, TimeoutError) as error:
        text = f"the introspector got no answer from the authorization server: {type(error).__name__}: {error}"
        raise AuthorizationServerUnavailable(text) from error


def _find_keys(
    request: RequestMessage, info: AccessTokenInfo, policy: ServicePolicy, keys: dict[str, PublicKey]
) -> Flow[None]:
    """Add to `keys` the keys that may sign `request`: the key of the token, or else the keys of its client."""
    if info.jwk is not None:
        key = _load_key(info.jwk)
        keys[key.kid] = key
        return
    for key_id in key_ids(request, policy.signature):
        jwk = yield from _find_key(info.client, key_id)
        if jwk is not None:
            keys[key_id] = _load_key(jwk)


def _find_key(client: ClientId, key_id: str) -> Flow[Mapping[str, object] | None]:
    """Find a key of the client. A timeout or a lost connection counts as an outage, and not as a defect of the port."""
    try:
        return (yield from FindClientKey(client, key_id))
    except (ConnectionError, TimeoutError) as error:
        raise ClientKeysUnavailable(f"the keys of {client} cannot be read: {type(error).__name__}: {error}") from error
    except PortMissing as error:
        text = "the access token is not bound to a key by value: request a token with a key by value (RFC 9635 §7.1)"
        hint = "the introspector gave no key for the token, and ports has no client_keys: pass client_keys=..."
        raise SignatureRefused("key_unusable", text, hint=hint) from error


def _load_key(jwk: Mapping[str, object]) -> PublicKey:
    try:
        return load_jwk(jwk)
    except MalformedKey as error:
        text = f"the key that is bound to the access token cannot be used: {error}"
        hint = f"the JWK from the introspector or from client_keys cannot be used: {error}"
        raise SignatureRefused("key_unusable", text, hint=hint) from error


def _require_new(client: ClientId, proof: Proof, policy: ServicePolicy, now: datetime) -> Flow[None]:
    """Raise `SignatureRefused` when the request was used before, or has a nonce that cannot be recorded."""
    nonce = proof.signature_input.nonce
    if nonce is None and policy.allow_identical:
        return
    try:
        is_new = yield from UseNonce(replay_key(proof, client), fresh_until(proof, policy.signature), now)
    except PortMissing as error:
        if nonce is None or policy.signature.nonce_required:
            raise  # the policy requires nonces, so the host must pass the port
        text = "this service does not support the nonce parameter: leave out nonce"
        hint = "a signature has a nonce, and ports has no nonces: pass Ports(nonces=store.nonces)"
        raise SignatureRefused("nonce_unsupported", text, hint=hint) from error
    if not is_new:
        if nonce is None:
            text = "this request was already used: sign the request again with a nonce or a new created time"
            raise SignatureRefused("request_repeated", text)
        raise SignatureRefused("nonce_used", "the nonce was already used: sign each request with a new nonce")
