"""Access rights, and what they allow. RFC 9635 §8; the type and the actions are Open Payments' own.

Who may do what:

| action | allows |
|---|---|
| `create` | creating payments |
| `read`, `list` | seeing the payments that this client created |
| `read-all`, `list-all` | seeing those of every client |
| `complete` | completing the payments that this client created |

A right with an `identifier` holds for that wallet address only, one without for every wallet address of the service.
"""

import enum
from collections.abc import Iterable
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.payment import IncomingPayment, WalletAddressUrl
from incoming_payments.domain.urls import canonical_url
from incoming_payments.errors import AccessForbidden, InvalidValue, PaymentNotFound, TokenRefused

RIGHT_TYPE: Final = "incoming-payment"


class Action(enum.StrEnum):
    """What a right allows; the wire's own spelling."""

    CREATE = "create"
    READ = "read"
    READ_ALL = "read-all"
    COMPLETE = "complete"
    LIST = "list"
    LIST_ALL = "list-all"


def _actions(actions: Iterable[str]) -> frozenset[Action]:
    try:
        return frozenset(Action(action) for action in actions)
    except ValueError:
        known = ", ".join(Action)
        raise InvalidValue(f"actions must be among {known}", member="actions") from None


def _identifier(identifier: str | None) -> WalletAddressUrl | None:
    return None if identifier is None else WalletAddressUrl(canonical_url(identifier, member="identifier"))


@frozen
class AccessRight:
    """One right on incoming payments: some `actions`, on one wallet address or, without `identifier`, on all.

    Raises `InvalidValue` when an action is unknown, there is none, or `identifier` is no wallet address URL. Rights of
    another type than `incoming-payment` mean nothing here; whoever reads them from a token leaves them out.

    >>> AccessRight({"create", "read"}, "https://bank.example/alice/").identifier
    'https://bank.example/alice'
    """

    actions: frozenset[Action] = field(converter=_actions)
    identifier: WalletAddressUrl | None = field(default=None, converter=_identifier)

    @actions.validator
    def _some(self, _: object, actions: frozenset[Action]) -> None:
        if not actions:
            raise InvalidValue("a right needs at least one action", member="actions")

    def covers(self, url: WalletAddressUrl) -> bool:
        """Whether the right holds for this wallet address."""
        return self.identifier is None or self.identifier == url


class Reach(enum.Enum):
    """How far a right on existing payments goes."""

    OWN = "own"  # what this client created
    ALL = "all"  # what any client created


_ALL_FORM: Final = {Action.READ: Action.READ_ALL, Action.LIST: Action.LIST_ALL}


@frozen
class Allowance:
    """What a token allows for one operation: the rights that name its action, or the `-all` form of it."""

    own: tuple[AccessRight, ...]
    all: tuple[AccessRight, ...]

    def reach(self, url: WalletAddressUrl) -> Reach | None:
        """How far it goes on this wallet address; `None` when it does not hold there."""
        if any(right.covers(url) for right in self.all):
            return Reach.ALL
        if any(right.covers(url) for right in self.own):
            return Reach.OWN
        return None


def authorize(rights: Iterable[AccessRight], action: Action) -> Allowance:
    """What `rights` allow for `action`.

    Raises `TokenRefused` (`insufficient_rights`) when they do not name it at all.
    """
    rights = tuple(rights)
    wide = _ALL_FORM.get(action)
    own = tuple(right for right in rights if action in right.actions)
    every = tuple(right for right in rights if wide in right.actions)
    if not own and not every:
        raise TokenRefused(
            "insufficient_rights",
            f"the access token has no right to {action}: ask for a grant with that action",
            action=str(action),
        )
    return Allowance(own, every)


def require_wallet_address(allowance: Allowance, url: WalletAddressUrl) -> None:
    """Raises `AccessForbidden` unless `allowance` holds for this wallet address."""
    if allowance.reach(url) is None:
        raise AccessForbidden("the access token is for another wallet address: ask for a grant that names this one")


def require_payment(allowance: Allowance, payment: IncomingPayment, client: str) -> IncomingPayment:
    """`payment`, if `client` may see it.

    Raises `PaymentNotFound` when it belongs to a wallet address that the caller cannot see, in the very words of one
    that does not exist; and `AccessForbidden` when another client created it and the right is for the caller's own.
    """
    reach = allowance.reach(payment.wallet_address)
    if reach is None:
        raise payment_not_found()
    if reach is Reach.OWN and payment.client != client:
        raise AccessForbidden("another client created this payment, and the access token is for your own")
    return payment


def payment_not_found() -> PaymentNotFound:
    """The one way to say that there is no such payment, whatever the reason: it must not tell them apart."""
    return PaymentNotFound("there is no such incoming payment: check the id")
