"""Create an incoming payment. Spec section 4.1."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount
from incoming_payments.domain.checks import check_time, name_of
from incoming_payments.domain.lifecycle import Decision
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
from incoming_payments.errors import (
    IncomingPaymentsError,
    InvalidValue,
    MalformedJson,
    SignatureRefused,
    WalletAddressInactive,
    WalletAddressNotFound,
)
from incoming_payments.flows.approval import require_approval
from incoming_payments.flows.authenticate import authorized
from incoming_payments.flows.idempotency import (
    IDEMPOTENCY_KEY,
    KeyedRequest,
    find_created,
    key_not_covered,
    keyed_request,
    load_created,
    read_key,
    with_key,
)
from incoming_payments.flows.machinery.effects import (
    AllocateMethods,
    DrawRandomness,
    Flow,
    InsertPayment,
    ReleaseUnpaid,
    find_wallet_address,
    flow,
)
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.quotas import reserve
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.gnap.access import Action, require_wallet_address
from incoming_payments.gnap.introspection import TokenQuery
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import RequestMessage
from incoming_payments.ports.approval import ProposedPayment
from incoming_payments.wire import CreateRequest, PaymentView, peek_wallet_address, read_create_request, write_json


@flow
def create_payment(
    request: RequestMessage, policy: ServicePolicy, now: datetime, clock: Callable[[], datetime]
) -> Flow[PaymentView]:
    """Create the payment that the signed `request` describes, and return the resource.

    `now` is the time for the token and the signature of `request`. `clock` returns the time in UTC for the payment. The
    flow calls `clock` again directly before the insert (see `_insert`).

    The authorization server may decide by the wallet address, so the flow reads this member of the body before it
    introspects the token. The flow reads the whole body, and looks up the wallet address, only after the caller is
    authenticated, because a look-up may be a request to another server. The quota of unpaid payments comes next. The
    approval of the host is last, so that the host decides only about payments that would be stored.

    A retry with the same `Idempotency-Key` gets the payment of the first request, in the state of its creation. A retry
    does not look up the wallet address, so it succeeds even if the wallet address now accepts no new payments. The
    retry counts as a request. It needs no approval, and does not count as an unpaid payment.

    The payment methods are allocated before the payment is stored. A crash in between leaves unused payment methods,
    which no client has seen. In the other order, a crash could leave a payment that cannot be paid. Raises
    `TokenRefused`, `SignatureRefused`, `MalformedJson`, `AccessForbidden`, `MalformedIdempotencyKey`,
    `IdempotencyKeyReused`, `WalletAddressNotFound`, `WalletAddressInactive`, `AssetMismatch`, `TermsRefused`,
    `QuotaExceeded`, `PolicyRefused`, `ApprovalPending`, `ApprovalUnavailable`.
    """
    token = parse_authorization(request.values("authorization"))
    covered = (IDEMPOTENCY_KEY,) if request.values(IDEMPOTENCY_KEY) else ()
    query = TokenQuery(token, Action.CREATE, peek_wallet_address(request.body))
    try:
        client, allowance = yield from authorized(request, query, policy, now, covered=covered)
    except SignatureRefused as refusal:
        if refusal.details.get("component") == IDEMPOTENCY_KEY:  # only this component is missing in the signature
            raise key_not_covered(refusal) from refusal
        raise
    creation = read_create_request(
        request.body, metadata_bytes_max=policy.metadata_bytes_max, metadata_depth_max=policy.metadata_depth_max
    )
    require_wallet_address(allowance, creation.wallet_address)
    keyed = read_key(request, client)
    earlier = yield from find_created(keyed, now)
    if earlier is not None:
        payment, methods = yield from _with_methods(earlier)
    else:
        hosted = yield from _hosted(creation.wallet_address)
        decide = yield from _decision(creation, hosted, client, policy, clock)
        proposed = decide(now=clock()).answer
        yield from _reserve_approved(proposed)
        payment, methods = yield from _insert(decide, proposed, keyed, policy, clock, reserved=True)
    return view_of(payment, policy.payment_url(payment.id), methods)


def _reserve_approved(payment: IncomingPayment) -> Flow[None]:
    """Count `payment` as unpaid, and return when the host has approved it.

    If the host does not approve, release the payment.
    """
    yield from reserve(payment)
    try:
        yield from require_approval(ProposedPayment(payment))
    except IncomingPaymentsError:
        yield from ReleaseUnpaid(payment.client, payment.id)
        raise


def _hosted(url: WalletAddressUrl) -> Flow[WalletAddress]:
    wallet_address = yield from find_wallet_address(url)
    if wallet_address is None:
        text = "this service does not host walletAddress: check the URL"
        raise WalletAddressNotFound(text, member="walletAddress")
    if isinstance(wallet_address, InactiveWalletAddress):
        text = "walletAddress accepts no new payments: use another wallet address"
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
    idempotency_key: str | None = None,
    policy: ServicePolicy,
    clock: Callable[[], datetime],
) -> Flow[IncomingPayment]:
    """Create a payment for the host's own app, with the limits of a create request. See `IncomingPayments.create`."""
    now = check_time(clock())
    if expires_at is not None:
        check_time(expires_at, member="expiresAt")
    owner = HOST if client is None else client_id(client)
    text = None if metadata is None else _metadata_json(metadata, policy)
    url = wallet_address_url(wallet_address)
    limit = None if incoming_amount is None else check_amount(incoming_amount)
    creation, keyed = CreateRequest(url, limit, expires_at, text), None
    if idempotency_key is not None:
        keyed = keyed_request(HOST, idempotency_key, _canonical(creation, owner))
    payment = yield from find_created(keyed, now)
    if payment is None:
        hosted = yield from _hosted(url)
        decide = yield from _decision(creation, hosted, owner, policy, clock)
        payment, _ = yield from _insert(decide, decide(now=clock()).answer, keyed, policy, clock, reserved=False)
    return payment


def _canonical(creation: CreateRequest, owner: ClientId) -> bytes:
    """Return the arguments of a creation by the host as bytes. Equal arguments give equal bytes."""
    limit, expires_at, metadata = creation.incoming_amount, creation.expires_at, creation.metadata
    return json.dumps(
        [
            owner,
            creation.wallet_address,
            None if limit is None else [limit.text, limit.asset.code, limit.asset.scale],
            None if expires_at is None else expires_at.isoformat(),
            None if metadata is None else json.loads(metadata),
        ],
        sort_keys=True,
    ).encode()


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


def _decision(
    creation: CreateRequest,
    wallet_address: WalletAddress,
    client: ClientId,
    policy: ServicePolicy,
    clock: Callable[[], datetime],
) -> Flow["partial[Decision[IncomingPayment]]"]:
    """Return the decision to create the payment that `creation` describes, as a function of the time `now`."""
    randomness = yield from DrawRandomness(PAYMENT_ID_RANDOM_BYTES)
    return partial(
        lifecycle.create,
        id=new_payment_id(clock(), randomness),
        wallet_address=wallet_address,
        client=client,
        limit=creation.incoming_amount,
        expires_at=creation.expires_at,
        metadata=creation.metadata,
        expiry_s_max=policy.expiry_s_max,
        default_expiry_s=policy.default_expiry_s,
    )


def _insert(
    decide: "partial[Decision[IncomingPayment]]",
    proposed: IncomingPayment,
    keyed: KeyedRequest | None,
    policy: ServicePolicy,
    clock: Callable[[], datetime],
    *,
    reserved: bool,
) -> Flow[tuple[IncomingPayment, Sequence[IlpPaymentMethod]]]:
    """Store the new payment, and return it with its payment methods.

    Lists are in the order of creation times. If the flow read the time before it waits for another system, a client
    that polls a list could miss the payment. So this function decides again, with the time directly before the insert.
    `proposed` is the payment of the decision before the waits.

    If a concurrent request with the same idempotency key was faster, return the payment of that request. The new
    payment is then not stored. If the new payment is `reserved` in the quota of its client, release it.
    """
    _, methods = yield from _with_methods(proposed)
    decision = decide(now=clock())
    first = yield from InsertPayment(with_key(decision, keyed, idempotency_key_s=policy.idempotency_key_s))
    if keyed is None or first is None:
        return decision.answer, methods
    if reserved:
        yield from ReleaseUnpaid(proposed.client, proposed.id)
    return (yield from _with_methods((yield from load_created(keyed, first))))


def _with_methods(payment: IncomingPayment) -> Flow[tuple[IncomingPayment, Sequence[IlpPaymentMethod]]]:
    return payment, check_methods((yield from AllocateMethods(payment)))
