"""Example values for tests. Each argument has a default, so that a test states only the values that matter for it."""

import itertools
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from attrs import evolve, frozen

from incoming_payments.domain import lifecycle
from incoming_payments.domain.amount import Amount, Asset
from incoming_payments.domain.idempotency import IdempotencyKey, KeyedCreation
from incoming_payments.domain.lifecycle import Decision
from incoming_payments.domain.payment import (
    PAYMENT_ID_RANDOM_BYTES,
    ClientId,
    Credit,
    CreditId,
    IncomingPayment,
    MetadataJson,
    PaymentId,
    WalletAddress,
    WalletAddressUrl,
    client_id,
    new_payment_id,
    wallet_address_url,
)
from incoming_payments.ports import Decide

# a time with a microsecond, to detect code that rounds times
NOW: Final = datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=UTC)

_counter = itertools.count(1)


def a_wallet_address(url: str = "https://bank.example/alice", *, asset: Asset | None = None) -> WalletAddress:
    """Return a hosted wallet address. Its asset is US dollars by default."""
    return WalletAddress(wallet_address_url(url), asset or Asset("USD", 2), "https://auth.bank.example/")


@frozen
class AnyWalletAddress:
    """A `WalletAddresses` port with every wallet address. Its asset is US dollars.

    >>> AnyWalletAddress().find(wallet_address_url("https://bank.example/bob")).asset
    Asset(code='USD', scale=2)
    """

    def find(self, url: WalletAddressUrl) -> WalletAddress:
        """Return the wallet address with this URL."""
        return a_wallet_address(url)


def a_creation(
    *,
    id: PaymentId | None = None,
    limit: int | None = None,
    expires_in_s: float | None = None,
    metadata: str | None = None,
    wallet_address: WalletAddress | None = None,
    client: ClientId | None = None,
    now: datetime = NOW,
    key: str | None = None,
    fingerprint: str = "0" * 64,
    kept_s: float = 60,
) -> Decision[IncomingPayment]:
    """Return the decision of `lifecycle.create` for a new payment, as the argument of a store's `insert`.

    `limit` is in minor units of the wallet address's asset. The payment expires `expires_in_s` seconds after `now`.
    Each call in a process gives another id. The payment is the decision's `answer`. `key` is an idempotency key of the
    client, which the store keeps for `kept_s` seconds with `fingerprint`.

    >>> a_creation(limit=2500).answer.limit
    Amount(value=2500, asset=Asset(code='USD', scale=2))
    """
    wallet_address = wallet_address or a_wallet_address()
    client = client or client_id("https://shop.example/")
    decision = lifecycle.create(
        id=id or new_payment_id(now, next(_counter).to_bytes(PAYMENT_ID_RANDOM_BYTES)),
        wallet_address=wallet_address,
        client=client,
        limit=None if limit is None else Amount(limit, wallet_address.asset),
        expires_at=None if expires_in_s is None else now + timedelta(seconds=expires_in_s),
        metadata=None if metadata is None else MetadataJson(metadata),
        now=now,
    )
    if key is None:
        return decision
    until = now + timedelta(seconds=kept_s)
    return evolve(decision, keyed=KeyedCreation(client, IdempotencyKey(key), fingerprint, decision.answer.id, until))


def crediting(id: str, value: int, *, now: datetime = NOW, asset: Asset | None = None) -> Decide[Credit]:
    """Return the decision to credit `value` minor units with the credit id `id`, as the argument of a store's `update`.

    >>> from incoming_payments.stores.memory import MemoryStore
    >>> store, created = MemoryStore(), a_creation()
    >>> store.insert(created)
    >>> store.update(created.answer.id, crediting("wire-1", 500), CreditId("wire-1")).received.value
    500
    """
    return partial(lifecycle.credit, credit_id=CreditId(id), amount=Amount(value, asset or Asset("USD", 2)), now=now)
