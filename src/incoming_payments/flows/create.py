"""Create an incoming payment. Spec section 4.1."""

from datetime import datetime

from incoming_payments.domain import lifecycle
from incoming_payments.domain.payment import PAYMENT_ID_RANDOM_BYTES, new_payment_id
from incoming_payments.errors import WalletAddressNotFound
from incoming_payments.flows.authenticate import authenticate
from incoming_payments.flows.effects import AllocateMethods, DrawRandomness, FindWalletAddress, Flow, InsertPayment
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import check_methods, view_of
from incoming_payments.gnap.access import Action, authorize, require_wallet_address
from incoming_payments.httpsig import RequestMessage
from incoming_payments.wire import PaymentView, read_create_request


def create_payment(request: RequestMessage, policy: ServicePolicy, now: datetime) -> Flow[PaymentView]:
    """Create the payment that the signed `request` describes, and return the resource.

    The payment methods are allocated before the payment is stored. A crash between the two leaves unused payment
    methods, which no client has seen. In the other order it could leave a payment that cannot be paid. Raises
    `TokenRefused`, `SignatureRefused`, `MalformedJson`, `AccessForbidden`, `WalletAddressNotFound`, `AssetMismatch`,
    `TermsRefused`.
    """
    caller = yield from authenticate(request, policy, now)
    allowance = authorize(caller.rights, Action.CREATE)
    creation = read_create_request(
        request.body, metadata_bytes_max=policy.metadata_bytes_max, metadata_depth_max=policy.metadata_depth_max
    )
    require_wallet_address(allowance, creation.wallet_address)
    wallet_address = yield from FindWalletAddress(creation.wallet_address)
    if wallet_address is None or wallet_address.url != creation.wallet_address:
        raise WalletAddressNotFound("this service does not host walletAddress: check the URL", member="walletAddress")
    randomness = yield from DrawRandomness(PAYMENT_ID_RANDOM_BYTES)
    decision = lifecycle.create(
        id=new_payment_id(now, randomness),
        wallet_address=wallet_address,
        client=caller.client,
        limit=creation.incoming_amount,
        expires_at=creation.expires_at,
        metadata=creation.metadata,
        now=now,
        expiry_s_max=policy.expiry_s_max,
    )
    methods = check_methods((yield from AllocateMethods(decision.answer)))
    yield from InsertPayment(decision)
    return view_of(decision.answer, policy.payment_url(decision.answer.id), methods, now)
