"""Access rights (RFC 9635 §8) with the type and the actions of Open Payments, and the operations that they allow.

An action allows an operation on the payments that the client created. The `-all` form of the action allows the
operation on the payments of all clients. A right with an `identifier` applies only to that wallet address. A right that
has no `identifier` applies to all wallet addresses.
"""

import enum
from collections.abc import Iterable
from itertools import islice
from typing import Final, Literal

from attrs import field, frozen

from incoming_payments.domain.payment import IncomingPayment, WalletAddressUrl
from incoming_payments.domain.urls import canonical_url
from incoming_payments.errors import AccessForbidden, InvalidValue, PaymentNotFound, TokenRefused
from incoming_payments.limits import ACCESS_RIGHTS_MAX


class Action(enum.StrEnum):
    """An action that a right allows. The value is its name in JSON."""

    CREATE = "create"
    READ = "read"
    READ_ALL = "read-all"
    COMPLETE = "complete"
    LIST = "list"
    LIST_ALL = "list-all"


_ACTIONS: Final = frozenset(Action)


def _actions(actions: Iterable[str]) -> frozenset[Action]:
    try:
        return frozenset(map(Action, actions))
    except (ValueError, TypeError):
        raise InvalidValue(f"each of actions must be one of {', '.join(Action)}", member="actions") from None


_TYPE: Final = "incoming-payment"
# The members that narrow a right in ways that this service does not support (RFC 9635 §8, and `limits` of Open
# Payments).
_NARROWING: Final = frozenset({"locations", "datatypes", "privileges", "limits"})


def _identifier(identifier: str | None) -> WalletAddressUrl | None:
    return None if identifier is None else WalletAddressUrl(canonical_url(identifier, member="identifier"))


@frozen
class AccessRight:
    """The right to `actions` on the payments of one wallet address, or of all if `identifier` is `None`.

    Raises `InvalidValue` when an action is unknown, `actions` is empty, or `identifier` is not a wallet address URL.
    The type of the right is always `incoming-payment`. `read_access` reads the rights of an introspection answer.
    """

    actions: frozenset[Action] = field(converter=_actions)
    identifier: WalletAddressUrl | None = field(default=None, converter=_identifier)

    @actions.validator
    def _some(self, _: object, actions: frozenset[Action]) -> None:
        if not actions:
            raise InvalidValue("a right needs at least one action", member="actions")

    def covers(self, url: WalletAddressUrl) -> bool:
        """Return whether the right applies to this wallet address."""
        return self.identifier is None or self.identifier == url


def read_access(access: object) -> tuple[AccessRight, ...]:
    """Return the rights on incoming payments in `access`, a member of an introspection answer (RFC 9767 §3.3).

    An authorization server may know more than this service, so this function ignores unknown content. It ignores rights
    of other types, references to rights, and unknown actions. It ignores rights that have no known action, or have
    `locations`, `datatypes`, `privileges` or `limits`. It ignores rights whose `identifier` is `null` or not a wallet
    address URL, and rights after the first `limits.ACCESS_RIGHTS_MAX`. This function raises no error, and makes no
    right wider.

    >>> read_access([{"type": "incoming-payment", "actions": ["read", "refund"]}, {"type": "quote"}, "a-reference"])
    (AccessRight(actions=frozenset({<Action.READ: 'read'>}), identifier=None),)
    """
    rights = filter(None, map(_read_right, access)) if isinstance(access, list) else ()
    return tuple(islice(rights, ACCESS_RIGHTS_MAX))


def _read_right(right: object) -> AccessRight | None:
    if not isinstance(right, dict) or right.get("type") != _TYPE or not isinstance(right.get("actions"), list):
        return None
    if not _NARROWING.isdisjoint(right):
        return None
    if right.get("identifier", "") is None:  # a null must not widen the right to all wallet addresses
        return None
    actions = [action for action in right["actions"] if isinstance(action, str) and action in _ACTIONS]
    try:
        return AccessRight(actions, right.get("identifier"))
    except InvalidValue:
        return None


Reach = Literal["own", "all"]  # the payments of the client itself, or the payments of all clients


@frozen
class Allowance:
    """The rights of a token to one action.

    `own` has the rights to the action itself, and `all` has the rights to the action with the suffix `-all`.
    """

    own: tuple[AccessRight, ...]
    all: tuple[AccessRight, ...]

    def reach(self, url: WalletAddressUrl) -> Reach | None:
        """Return which payments of this wallet address the rights cover, or `None` if they cover no payment."""
        if any(right.covers(url) for right in self.all):
            return "all"
        if any(right.covers(url) for right in self.own):
            return "own"
        return None


def authorize(rights: Iterable[AccessRight], action: Action) -> Allowance:
    """Return the rights among `rights` that allow `action`.

    Raises `TokenRefused` (`insufficient_rights`) if `rights` do not name `action`.
    """
    rights = tuple(rights)
    own = tuple([right for right in rights if action in right.actions])
    every = tuple([right for right in rights if f"{action}-all" in right.actions])
    if not own and not every:
        text = f"the access token has no right to {action}: request a grant with this action"
        raise TokenRefused("insufficient_rights", text, action=str(action))
    return Allowance(own, every)


def require_wallet_address(allowance: Allowance, url: WalletAddressUrl) -> None:
    """Raise `AccessForbidden` unless `allowance` applies to this wallet address."""
    if allowance.reach(url) is None:
        raise AccessForbidden("the access token is for another wallet address: request a grant for this wallet address")


def require_payment(allowance: Allowance, payment: IncomingPayment, client: str) -> IncomingPayment:
    """Return `payment` if `client` may use it.

    Raises `PaymentNotFound` when `allowance` does not apply to the wallet address of the payment. The message is the
    same as for a payment that does not exist, so the client cannot learn that the payment exists. Raises
    `AccessForbidden` when another client created the payment and the right covers only the client's own payments.
    """
    reach = allowance.reach(payment.wallet_address)
    if reach is None:
        raise payment_not_found()
    if reach == "own" and payment.client != client:
        text = (
            "another client created this payment, but the access token covers only payments of your client: "
            "request a grant with the -all form of the action"
        )
        raise AccessForbidden(text)
    return payment


def payment_not_found() -> PaymentNotFound:
    """Return the error for a payment that does not exist, or that must be hidden.

    The error is the same in both cases, so that a client cannot distinguish them.
    """
    return PaymentNotFound("there is no such incoming payment: check the id")
