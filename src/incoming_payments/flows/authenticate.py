"""Authenticate a request: first its access token, then its signature, then whether the request is a replay."""

from collections.abc import Mapping
from datetime import datetime

from attrs import evolve, frozen

from incoming_payments.domain.payment import ClientId
from incoming_payments.errors import (
    AuthorizationServerUnavailable,
    ClientKeysUnavailable,
    MalformedKey,
    PortMissing,
    SignatureRefused,
)
from incoming_payments.flows.effects import FindClientKey, Flow, IntrospectToken, UseNonce
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.quotas import admit
from incoming_payments.gnap.access import AccessRight, Allowance, authorize
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


@frozen
class Caller:
    """An authenticated client, the rights of its token, and the facts that its signature proves."""

    client: ClientId
    rights: tuple[AccessRight, ...]
    proof: Proof


# The arguments of one call of `verify`, from which a refusal gets its `Evidence`
_Verified = tuple[RequestMessage, Mapping[str, PublicKey], SignaturePolicy, datetime]


def authorized(
    request: RequestMessage, query: TokenQuery, policy: ServicePolicy, now: datetime, *, covered: tuple[str, ...] = ()
) -> Flow[tuple[Caller, Allowance]]:
    """Return the caller of `request`, and the rights of its token for the action of `query`. Count the request.

    Raises the exceptions of `authenticate`, `TokenRefused` for a token without the right, and `QuotaExceeded`. The
    nonce is stored last: all clients share the capacity for nonces, so each one can use it up to its quota only.
    """
    caller, verified = yield from _verified(request, query, policy, now, covered)
    allowance = authorize(caller.rights, query.action)
    yield from admit(caller.client, now)
    yield from _require_new(caller, verified, policy, now)
    return caller, allowance


def authenticate(request: RequestMessage, query: TokenQuery, policy: ServicePolicy, now: datetime) -> Flow[Caller]:
    """Return the caller of `request`, which has the token of `query`. Spec section 5.

    Raises `TokenRefused`, `SignatureRefused` with its `evidence`, `StoreUnavailable` when no further nonce can be
    stored, `ClockBehind` when a nonce cannot be checked, `AuthorizationServerUnavailable` when the token cannot be
    introspected now, or `ClientKeysUnavailable`.

    The key is the one to which the active token is bound (RFC 9635 §7.2). If the token does not carry that key, `keyid`
    chooses among the keys of the token's client. A nonce is stored only after the signature is verified, so a client
    without the key cannot use up nonces.
    """
    caller, verified = yield from _verified(request, query, policy, now, ())
    yield from _require_new(caller, verified, policy, now)
    return caller


def _verified(
    request: RequestMessage, query: TokenQuery, policy: ServicePolicy, now: datetime, covered: tuple[str, ...]
) -> Flow[tuple[Caller, _Verified]]:
    """Return the caller of `request`, which may be a replay. The signature must also cover the fields `covered`."""
    info = require_active((yield from _introspect(query)), now)
    keys: dict[str, PublicKey] = {}
    signature = _covering(policy.signature, covered) if covered else policy.signature
    try:
        yield from _find_keys(request, info, policy, keys)
        caller = Caller(info.client, info.rights, verify(request, keys, policy=signature, now=now))
    except SignatureRefused as refusal:
        refusal.evidence = Evidence(request, keys, signature, now)
        raise
    return caller, (request, keys, signature, now)


def _covering(signature: SignaturePolicy, covered: tuple[str, ...]) -> SignaturePolicy:
    """Return the policy `signature`, which also requires the components `covered`."""
    more = [name for name in covered if name not in signature.required]
    return evolve(signature, required=(*signature.required, *more))


def _introspect(query: TokenQuery) -> Flow[AccessTokenInfo | None]:
    """Introspect the token. A timeout or a lost connection is an outage, and no fault of the introspector."""
    try:
        return (yield from IntrospectToken(query))
    except (ConnectionError, TimeoutError) as error:
        text = f"the introspector has no answer of the authorization server: {type(error).__name__}: {error}"
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
    """Find a key of the client. A timeout or a lost connection is an outage, and no fault of the port."""
    try:
        return (yield from FindClientKey(client, key_id))
    except (ConnectionError, TimeoutError) as error:
        raise ClientKeysUnavailable(f"the keys of {client} cannot be read: {type(error).__name__}: {error}") from error
    except PortMissing as error:
        text = "the access token does not carry its key: request a token with a key by value (RFC 9635 §7.1)"
        refusal = SignatureRefused("key_unusable", text)
        refusal.hint = "the introspector answered without a key, and there is no port client_keys: set client_keys"
        raise refusal from error


def _load_key(jwk: Mapping[str, object]) -> PublicKey:
    try:
        return load_jwk(jwk)
    except MalformedKey as error:
        text = f"the key that is bound to the access token cannot be used: {error}"
        refusal = SignatureRefused("key_unusable", text)
        refusal.hint = f"the JWK from the introspector or from client_keys cannot be used: {error}"
        raise refusal from error


def _require_new(caller: Caller, verified: _Verified, policy: ServicePolicy, now: datetime) -> Flow[None]:
    nonce = caller.proof.signature_input.nonce
    if nonce is None and policy.allow_identical:
        return
    try:
        yield from _use_nonce(caller, nonce, policy, now)
    except SignatureRefused as refusal:
        refusal.evidence = Evidence(*verified)
        raise


def _use_nonce(caller: Caller, nonce: str | None, policy: ServicePolicy, now: datetime) -> Flow[None]:
    try:
        is_new = yield from UseNonce(
            replay_key(caller.proof, caller.client), fresh_until(caller.proof, policy.signature), now
        )
    except PortMissing as error:
        if nonce is None or policy.signature.nonce_required:
            raise  # the policy needs the port, so this is a mistake of the host
        text = "this service does not support the nonce parameter: leave it out"
        refusal = SignatureRefused("nonce_unsupported", text)
        refusal.hint = "a signature has a nonce, and there is no port nonces: pass nonces=..., such as store.nonces"
        raise refusal from error
    if not is_new:
        if nonce is None:
            text = "this request was already used: sign it again with a nonce or a new created time"
            raise SignatureRefused("request_repeated", text)
        raise SignatureRefused("nonce_used", "the nonce was already used: sign each request with a new nonce")
