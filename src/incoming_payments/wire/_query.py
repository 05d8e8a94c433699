"""The query of a list request."""

import re
from typing import Final
from urllib.parse import parse_qsl

from attrs import frozen

from incoming_payments.domain.payment import PaymentId, WalletAddressUrl, payment_id, wallet_address_url
from incoming_payments.errors import CursorNotFound, InvalidValue, MalformedQuery
from incoming_payments.limits import PAGE_PAYMENTS_DEFAULT, PAGE_PAYMENTS_MAX
from incoming_payments.wire._json import printable

_SIZE: Final = re.compile("[1-9][0-9]{0,2}", re.ASCII)


@frozen
class ListRequest:
    """The checked query of a list request.

    The page has `limit` payments after `cursor`. If `backwards` is true, it has `limit` payments before `cursor`.
    """

    wallet_address: WalletAddressUrl
    cursor: PaymentId | None = None
    limit: int = PAGE_PAYMENTS_DEFAULT
    backwards: bool = False


def read_list_request(query: str) -> ListRequest:
    """Read the raw `query` of a list request.

    The query has `wallet-address`, and optionally `cursor` and either `first` or `last`.

    Raises `MalformedQuery`, which names the wrong member, and `CursorNotFound` for a cursor that no list can have.

    >>> read_list_request("wallet-address=https%3A%2F%2Fbank.example%2Falice&first=10").limit
    10
    """
    members = _members(query)
    if "wallet-address" not in members:
        raise MalformedQuery(
            "wallet-address is missing: give the wallet address whose payments to list", member="wallet-address"
        )
    if "first" in members and "last" in members:
        raise MalformedQuery("first and last exclude each other: leave out one of them", member="last")
    if "last" in members and "cursor" not in members:
        raise MalformedQuery("last needs a cursor: pass the startCursor of a page, or use first", member="cursor")
    return ListRequest(
        _wallet_address(members["wallet-address"]),
        _cursor(members["cursor"]) if "cursor" in members else None,
        _size(members, "last" if "last" in members else "first"),
        "last" in members,
    )


_NAMES: Final = ("wallet-address", "cursor", "first", "last")


def _members(query: str) -> dict[str, str]:
    """Return the members of `query`, percent-decoded."""
    try:
        # The limit matters because the client is not authenticated yet.
        pairs = parse_qsl(
            query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=len(_NAMES)
        )
    except ValueError:  # a member has no "=", the bytes are not UTF-8, or there are too many members
        text = f"the query must have the form name=value&name=value, with at most {len(_NAMES)} members"
        raise MalformedQuery(f"{text}, in percent-encoded UTF-8") from None
    members: dict[str, str] = {}
    for name, value in pairs:
        if name not in _NAMES:
            shown = printable(name)
            raise MalformedQuery(f"{shown} is unknown: pass only {', '.join(_NAMES)}", member=shown)
        if name in members:
            raise MalformedQuery(f"{name} occurs twice: pass this member once", member=name)
        members[name] = value
    return members


def _wallet_address(text: str) -> WalletAddressUrl:
    try:
        return wallet_address_url(text)
    except InvalidValue as error:
        text = error.description.replace("walletAddress", "wallet-address", 1)
        raise MalformedQuery(text, member="wallet-address") from None


def _size(members: dict[str, str], name: str) -> int:
    text = members.get(name, str(PAGE_PAYMENTS_DEFAULT))
    if not _SIZE.fullmatch(text) or int(text) > PAGE_PAYMENTS_MAX:
        raise MalformedQuery(f"{name} must be an integer from 1 to {PAGE_PAYMENTS_MAX}", member=name)
    return int(text)


def _cursor(text: str) -> PaymentId:
    try:
        return payment_id(text)
    except InvalidValue:
        raise cursor_not_found() from None


def cursor_not_found() -> CursorNotFound:
    """Return the error for a wrong cursor.

    The error is the same for a malformed cursor, a cursor of another list, and an unknown cursor, so that a client
    cannot distinguish these cases.
    """
    text = "the cursor is not a payment of this list: pass the startCursor or the endCursor of a page of this list"
    return CursorNotFound(text, member="cursor")
