"""List the payments of a wallet address for a client, or any payments for the host."""

from collections.abc import Sequence
from datetime import datetime

from attrs import evolve

from incoming_payments.domain.listing import PaymentPage, PaymentQuery, Place
from incoming_payments.domain.payment import (
    HOST,
    IncomingPayment,
    PaymentId,
    client_id,
    wallet_address_url,
)
from incoming_payments.domain.reference import Reference
from incoming_payments.domain.transitions import State
from incoming_payments.errors import (
    ConfigurationError,
    CursorNotFound,
    InvalidValue,
    MalformedQuery,
    PaymentNotFound,
    WalletAddressNotFound,
)
from incoming_payments.flows.authenticate import authorized
from incoming_payments.flows.machinery.effects import FindPayments, Flow, LoadPayment, find_wallet_address, flow
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.flows.views import page_view
from incoming_payments.gnap.access import Action, require_wallet_address
from incoming_payments.gnap.introspection import TokenQuery
from incoming_payments.gnap.token import parse_authorization
from incoming_payments.httpsig import RequestMessage
from incoming_payments.limits import PAGE_PAYMENTS_DEFAULT, PAGE_PAYMENTS_MAX
from incoming_payments.wire import PageView, cursor_not_found, read_list_request


@flow
def list_payments(request: RequestMessage, query: str, policy: ServicePolicy, now: datetime) -> Flow[PageView]:
    """Return the page that the `query` of the signed `request` describes.

    A token with the right `list` gets the payments that the client itself created, and a token with `list-all` gets the
    payments of all clients. The flow reports errors in the query, and looks up the wallet address, only after the
    caller is authenticated. Raises `TokenRefused`, `SignatureRefused`, `QuotaExceeded`, `MalformedQuery`,
    `CursorNotFound`, `AccessForbidden`, `WalletAddressNotFound`.
    """
    token = parse_authorization(request.values("authorization"))
    try:
        wanted = read_list_request(query)
    except (MalformedQuery, CursorNotFound):
        yield from authorized(request, TokenQuery(token, Action.LIST), policy, now)
        raise
    url = wanted.wallet_address
    client, allowance = yield from authorized(request, TokenQuery(token, Action.LIST, url), policy, now)
    require_wallet_address(allowance, url)
    if (yield from find_wallet_address(url)) is None:
        text = "this service does not host the wallet address: check the URL"
        raise WalletAddressNotFound(text, member="wallet-address")
    listed = client if allowance.reach(url) == "own" else None
    every = PaymentQuery(now=now, limit=wanted.limit + 1, wallet_address=url, client=listed)
    page = yield from _page(every, wanted.cursor, backwards=wanted.backwards)
    return page_view(page, policy)


@flow
def list_for_host(
    *,
    wallet_address: str | None = None,
    state: State | str | None = None,
    client: str | None = None,
    reference: Reference | None = None,
    created_from: datetime | None = None,
    created_before: datetime | None = None,
    cursor: PaymentId | None = None,
    first: int | None = None,
    last: int | None = None,
    now: datetime,
) -> Flow[PaymentPage]:
    """Return a page of the payments that meet every filter, for the host's own app. See `IncomingPayments.list`."""
    if last is not None and (first is not None or cursor is None):
        raise InvalidValue(
            "last needs a cursor, and excludes first: pass cursor too, and leave out first", member="last"
        )
    size = (
        _size("last", last) if last is not None else _size("first", PAGE_PAYMENTS_DEFAULT if first is None else first)
    )
    every = PaymentQuery(
        now=now,
        limit=size + 1,
        wallet_address=None if wallet_address is None else wallet_address_url(wallet_address),
        state=state,
        client=None if client is None else HOST if client == HOST else client_id(client),
        reference=reference,
        created_from=created_from,
        created_before=created_before,
    )
    return (yield from _page(every, cursor, backwards=last is not None))


def _size(name: str, size: int) -> int:
    if type(size) is not int or not 1 <= size <= PAGE_PAYMENTS_MAX:
        raise InvalidValue(f"{name} must be an integer from 1 to {PAGE_PAYMENTS_MAX}", member=name)
    return size


def _page(query: PaymentQuery, cursor: PaymentId | None, *, backwards: bool) -> Flow[PaymentPage]:
    """Return the page of `query` after the payment `cursor`, or before it if `backwards` is true.

    The limit of `query` is the size of the page plus one, which shows whether other payments follow.
    """
    size, place, others = query.limit - 1, None, False
    if cursor is not None:
        payment = yield from _listed(query, cursor)
        place, others = Place.of(payment), query.admits(payment)
        query = evolve(query, newer_than=place) if backwards else evolve(query, older_than=place)
    found = yield from _find(query)
    payments = tuple(found[-size:] if backwards else found[:size])
    # The payment of the cursor lies on the other side of the page. If the state of this payment no longer matches the
    # filter, look for another payment on that side.
    if place is not None and not others:
        other_side = evolve(query, limit=1, older_than=query.newer_than, newer_than=query.older_than)
        others = bool((yield from _find(other_side)))
    is_cut = len(found) > size
    has_next, has_previous = (others, is_cut) if backwards else (is_cut, others)
    return PaymentPage(payments, has_next=has_next, has_previous=has_previous)


def _find(query: PaymentQuery) -> Flow[Sequence[IncomingPayment]]:
    """Return the payments of `query`. Raises `ConfigurationError` when the store ignores the reference of `query`."""
    found = yield from FindPayments(query)
    if not all(map(query.has_reference, found)):
        text = f"{FindPayments.method} returned a payment without the reference of the query: filter by query.reference"
        raise ConfigurationError(text, setting="store")
    return found


def _listed(query: PaymentQuery, cursor: PaymentId) -> Flow[IncomingPayment]:
    """Return the payment `cursor`. Raises `CursorNotFound` for a payment of another wallet address or client.

    So a cursor cannot lead into another list, or show that a payment exists in another list. So a cursor needs no
    signature. The wallet address and the client never change, so a cursor never becomes invalid.
    """
    try:
        payment = yield from LoadPayment(cursor)
    except PaymentNotFound:
        raise cursor_not_found() from None
    if not query.is_of(payment):
        raise cursor_not_found()
    return payment
