"""Who is calling: the access token first, then the signature by the key that the token is bound to."""

from datetime import datetime

from attrs import frozen

from incoming_payments.domain.payment import ClientId
from incoming_payments.errors import MalformedKey, SignatureRefused
from incoming_payments.flows.effects import Flow, IntrospectToken
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import AccessTokenInfo, require_active
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import Proof, Request, load_jwk, verify


@frozen
class Caller:
    """A client that has proven who it is, what its token allows, and what its signature covered."""

    client: ClientId
    rights: tuple[AccessRight, ...]
    proof: Proof


def authenticate(request: Request, policy: ServicePolicy, now: datetime) -> Flow[Caller]:
    """The caller of `request`. Contract section 5.

    Raises `TokenRefused` or `SignatureRefused`. No key is looked at before the token is known to be active: the key
    is the one the token is bound to (RFC 9635 §7.2), never one that the request names.
    """
    token = parse_authorization(request.values("authorization"))
    info = require_active((yield from IntrospectToken(token)), now)
    return _prove(request, info, policy, now)


def _prove(request: Request, info: AccessTokenInfo, policy: ServicePolicy, now: datetime) -> Caller:
    try:
        key = load_jwk(info.jwk)
    except MalformedKey as error:
        raise SignatureRefused("key_unusable", f"the key bound to the access token is refused: {error}") from error
    proof = verify(request, {key.kid: key}, policy=policy.signature, now=now)
    return Caller(info.client, info.rights, proof)
