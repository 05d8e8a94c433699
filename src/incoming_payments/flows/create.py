"""Create an incoming payment. Spec section 4.1."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import check_time, name_of
from incoming_payments.domain.methods import IlpPaymentMethod
from incoming_payments.domain.payment import (
    HOST,
    PAYMENT_ID_RANDOM_BYTES,
    ClientId,
    InactiveWalletAddress,
    IncomingPayment,
    MetadataJson,
    WalletAddress,
    WalletAddressUrl,
    check_amount,
    client_id,
    new_payment_id,
    wallet_address_url,
)
from incoming_payments.errors import InvalidValue, MalformedJson, Refused, WalletAddressInactive, WalletAddressNotFound
from incoming_payments.flows.authenticate import Caller, authenticate
from incoming_payments.flows.effects import (
    AllocateMethods,
    DrawRandomness,
    FindWalletAddress,
    Flow,
    InsertPayment,
    flow,
)
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.gnap.access import Action, Allowance, authorize, require_wallet_address
from incoming_payments.gnap.introspection import TokenQuery
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import RequestMessage
from incoming_payments.wire import CreateRequest, PaymentView, read_create_request, write_json


@flow
def create_payment(request: RequestMessage, policy: ServicePolicy, now: datetime) -> Flow[PaymentView]:
    """Create the payment that the signed `request` describes, and return the resource.

    The authorization server may decide by the wallet address, so the body is read before the token is introspected.
    What the body and the look-up reveal is raised only after the caller is authenticated.

    The payment methods are allocated before the payment is stored. A crash between the two leaves unused payment
    methods, which no client has seen. In the other order, a crash could leave a payment that cannot be paid. Raises
    `TokenRefused`, `SignatureRefused`, `MalformedJson`, `AccessForbidden`, `WalletAddressNotFound`,
    `WalletAddressInactive`, `AssetMismatch`, `TermsRefused`.
    """
    token = parse_authorization(request.values("authorization"))
    creation = _read(request, policy)
    if isinstance(creation, MalformedJson):
        yield from _authorize(request, TokenQuery(token, Action.CREATE), policy, now)
        raise creation
    hosted = yield from _look_up(creation.wallet_address)
    url = None if isinstance(hosted, WalletAddressNotFound) else creation.wallet_address
    caller, allowance = yield from _authorize(request, TokenQuery(token, Action.CREATE, url), policy, now)
    require_wallet_address(allowance, creation.wallet_address)
    if isinstance(hosted, Refused):
        raise hosted
    payment, methods = yield from _open(creation, hosted, caller.client, policy, now)
    return view_of(payment, policy.payment_url(payment.id), methods, now)


def _authorize(
    request: RequestMessage, query: TokenQuery, policy: ServicePolicy, now: datetime
) -> Flow[tuple[Caller, Allowance]]:
    caller = yield from authenticate(request, query, policy, now)
    return caller, authorize(caller.rights, query.action)


def _read(request: RequestMessage, policy: ServicePolicy) -> CreateRequest | MalformedJson:
    """Return the body of `request`, or why it cannot be read."""
    try:
        return read_create_request(
            request.body, metadata_bytes_max=policy.metadata_bytes_max, metadata_depth_max=policy.metadata_depth_max
        )
    except MalformedJson as error:
        return error


def _look_up(url: WalletAddressUrl) -> Flow[WalletAddress | Refused]:
    """Return the wallet address, or why it cannot be used."""
    try:
        return (yield from _hosted(url))
    except Refused as error:
        return error


def _hosted(url: WalletAddressUrl) -> Flow[WalletAddress]:
    wallet_address = yield from FindWalletAddress(url)
    if wallet_address is None or wallet_address.url != url:
        raise WalletAddressNotFound("this service does not host walletAddress: check the URL", member="walletAddress")
    if isinstance(wallet_address, InactiveWalletAddress):
        text = "walletAddress takes no new payments: use another one"
        raise WalletAddressInactive(text, member="walletAddress")
    return wallet_address


@flow
def create_for_host(
    *,
    wallet_address: str,
    incoming_amount: Amount | None = None,
    expires_at: datetime | None = None,
    metadata: Mapping[str, object] | None = None,
    client: str | None = None,
    policy: ServicePolicy,
    now: datetime,
) -> Flow[IncomingPayment]:
    """Create a payment for the host's own app, with the limits of a create request. See `IncomingPayments.create`."""
    check_time(now)
    if expires_at is not None:
        _check_expiry(expires_at)
    owner = HOST if client is None else client_id(client)
    text = None if metadata is None else _metadata_json(metadata, policy)
    url = wallet_address_url(wallet_address)
    limit = None if incoming_amount is None else check_amount(incoming_amount)
    hosted = yield from _hosted(url)
    payment, _ = yield from _open(CreateRequest(url, limit, expires_at, text), hosted, owner, policy, now)
    return payment


def _check_expiry(expires_at: datetime) -> None:
    try:
        check_time(expires_at)
    except InvalidValue as error:
        raise InvalidValue(error.description, member="expiresAt") from None


def _metadata_json(metadata: Mapping[str, object], policy: ServicePolicy) -> MetadataJson | None:
    """Return `metadata` as text that has passed the checks of a create request."""
    given: object = metadata
    if not isinstance(given, Mapping):
        raise InvalidValue(f"metadata must be a mapping, not {name_of(given)}", member="metadata")
    try:
        body = write_json({"walletAddress": "https://host.example", "metadata": dict(metadata)})
        return read_create_request(
            body, metadata_bytes_max=policy.metadata_bytes_max, metadata_depth_max=policy.metadata_depth_max
        ).metadata
    except (TypeError, ValueError, RecursionError, MalformedJson) as error:
        raise InvalidValue(f"metadata must be a JSON object: {error}", member="metadata") from error


def _open(
    creation: CreateRequest, wallet_address: WalletAddress, client: ClientId, policy: ServicePolicy, now: datetime
) -> Flow[tuple[IncomingPayment, Sequence[IlpPaymentMethod]]]:
    """Store the payment that `creation` describes, and return it with its payment methods."""
    randomness = yield from DrawRandomness(PAYMENT_ID_RANDOM_BYTES)
    decision = lifecycle.create(
        id=new_payment_id(now, randomness),
        wallet_address=wallet_address,
        client=client,
        limit=creation.incoming_amount,
        expires_at=creation.expires_at,
        metadata=creation.metadata,
        now=now,
        expiry_s_max=policy.expiry_s_max,
        default_expiry_s=policy.default_expiry_s,
    )
    methods = check_methods((yield from AllocateMethods(decision.answer)))
    yield from InsertPayment(decision)
    return decision.answer, methods
