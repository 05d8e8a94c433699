"""`gnap.access`: the operations that access rights allow."""

from itertools import product

import pytest

from incoming_payments.domain.payment import ClientId, WalletAddressUrl
from incoming_payments.errors import AccessForbidden, InvalidValue, PaymentNotFound, TokenRefused
from incoming_payments.gnap.access import (
    AccessRight,
    Action,
    Allowance,
    Reach,
    authorize,
    payment_not_found,
    read_access,
    require_payment,
    require_wallet_address,
)
from incoming_payments.testing import a_creation
from kits.changed_payments import changed
from kits.frozen_values import assert_frozen

ALICE = WalletAddressUrl("https://bank.example/alice")
BOB = WalletAddressUrl("https://bank.example/bob")
SHOP = "https://shop.example"
ANOTHER_WALLET = "the access token is for another wallet address: request a grant for this wallet address"
ANOTHER_CLIENT = (
    "another client created this payment, but the access token covers only payments of your client: request a "
    "grant with the -all form of the action"
)
NOT_FOUND = "there is no such incoming payment: check the id"


def test_names_in_json() -> None:
    """The actions are spelled as Open Payments spells them."""
    assert [action.value for action in Action] == ["create", "read", "read-all", "complete", "list", "list-all"]


def test_rights_are_immutable() -> None:
    """A right and an allowance cannot be changed after the decision."""
    assert_frozen(AccessRight(["read"]), authorize([AccessRight(["read"])], Action.READ))


# --- rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("identifier", ["https://bank.example/alice", "HTTPS://Bank.example:443/alice/"])
def test_right(identifier: str) -> None:
    """A right accepts its actions by name and its wallet address in any spelling. A repeated name counts once."""
    right = AccessRight(["read", "create", "read"], identifier)
    assert right.actions == {Action.CREATE, Action.READ}
    assert right.identifier == ALICE


@pytest.mark.parametrize(
    ("access", "rights"),
    [
        ([{"type": "incoming-payment", "actions": ["read"]}], [AccessRight(["read"])]),
        ([{"type": "incoming-payment", "actions": ["read", "refund", 7, None, ["list"]]}], [AccessRight(["read"])]),
        ([{"type": "incoming-payment", "actions": ["read"], "identifier": ALICE}], [AccessRight(["read"], ALICE)]),
        ([{"type": "incoming-payment", "actions": ["read"], "identifier": None}], []),
        (
            [
                {"type": "incoming-payment", "actions": ["read-all"], "identifier": None},
                {"type": "incoming-payment", "actions": ["read"], "identifier": ALICE},
            ],
            [AccessRight(["read"], ALICE)],
        ),
        ([{"type": "incoming-payment", "actions": ["read"], "identifier": "alice"}], []),
        ([{"type": "incoming-payment", "actions": ["read"], "locations": ["https://other.example"]}], []),
        ([{"type": "incoming-payment", "actions": ["read"], "limits": {}}], []),
        ([{"type": "incoming-payment", "actions": ["read"], "identifier": 7}], []),
        ([{"type": "incoming-payment", "actions": ["refund"]}], []),
        ([{"type": "incoming-payment", "actions": []}], []),
        ([{"type": "incoming-payment", "actions": "read"}], []),
        ([{"type": "incoming-payment"}], []),
        ([{"type": "quote", "actions": ["read"]}, {"actions": ["read"]}, {}, "a-reference", 7, None], []),
        ([{"type": "incoming-payment", "actions": ["read"]}] * 65, [AccessRight(["read"])] * 64),
        ("incoming-payment", []),
        ({"type": "incoming-payment", "actions": ["read"]}, []),
        (None, []),
    ],
)
def test_unknown_content_of_access_is_ignored(access: object, rights: list[AccessRight]) -> None:
    """`read_access` keeps the rights that it knows, widens none, and raises nothing."""
    assert read_access(access) == tuple(rights)


@pytest.mark.parametrize("actions", [["write"], ["READ"], ["read", ""], [None], "read"])
def test_right_refuses_unknown_actions(actions: object) -> None:
    """A right with an unknown action is refused, and so is a single name in place of a list."""
    with pytest.raises(InvalidValue) as caught:
        AccessRight(actions)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == f"each of actions must be one of {', '.join(Action)}"
    assert caught.value.details == {"member": "actions"}


def test_right_needs_an_action() -> None:
    """A right without actions is refused."""
    with pytest.raises(InvalidValue) as caught:
        AccessRight([])
    assert str(caught.value) == "a right needs at least one action"
    assert caught.value.details == {"member": "actions"}


@pytest.mark.parametrize("identifier", ["", "alice", "https://bank.example/#alice"])
def test_right_refuses_an_identifier_that_is_no_url(identifier: str) -> None:
    """A right with a malformed wallet address is refused, so it cannot become a right on all wallet addresses."""
    with pytest.raises(InvalidValue) as caught:
        AccessRight(["read"], identifier)
    assert caught.value.details == {"member": "identifier"}


@pytest.mark.parametrize(
    ("identifier", "url", "covers"), [(None, ALICE, True), (ALICE, ALICE, True), (ALICE, BOB, False)]
)
def test_right_covers(identifier: str | None, url: WalletAddressUrl, covers: bool) -> None:
    """A right with an identifier applies to that wallet address only. A right without one applies to all."""
    assert AccessRight(["read"], identifier).covers(url) is covers


# --- allowances ----------------------------------------------------------------------------------

ALL_FORMS = {(Action.READ_ALL, Action.READ), (Action.LIST_ALL, Action.LIST)}


@pytest.mark.parametrize(("held", "required"), list(product(Action, Action)))
def test_authorize(held: Action, required: Action) -> None:
    """An action allows itself, and its `-all` form allows it on the payments of all clients. Nothing else does."""
    rights = [AccessRight([held])]
    reach = "all" if (held, required) in ALL_FORMS else "own" if held is required else None
    if reach is None:
        with pytest.raises(TokenRefused) as caught:
            authorize(rights, required)
        assert caught.value.code == "insufficient_rights"
        assert str(caught.value) == f"the access token has no right to {required}: request a grant with this action"
        assert caught.value.details == {"action": required.value}
        assert type(caught.value.details["action"]) is str
    else:
        assert authorize(rights, required).reach(ALICE) == reach


def test_token_without_rights_allows_nothing() -> None:
    """An empty list of rights allows no action."""
    with pytest.raises(TokenRefused):
        authorize([], Action.CREATE)


def test_authorize_accepts_an_iterator() -> None:
    """`authorize` reads the rights once, so they may come from an iterator."""
    allowance = authorize(iter([AccessRight(["read"]), AccessRight(["read-all"], BOB)]), Action.READ)
    assert allowance == Allowance(own=(AccessRight(["read"]),), all=(AccessRight(["read-all"], BOB),))


@pytest.mark.parametrize(
    ("rights", "reach"),
    [
        pytest.param([AccessRight(["read-all"])], "all", id="read-all on all wallets"),
        pytest.param([AccessRight(["read"]), AccessRight(["read-all"], ALICE)], "all", id="the wider right"),
        pytest.param([AccessRight(["read"], ALICE), AccessRight(["read-all"], BOB)], "own", id="read on this one"),
        pytest.param([AccessRight(["read"], BOB), AccessRight(["read"], ALICE)], "own", id="the second right"),
        pytest.param([AccessRight(["read"], BOB)], None, id="read on another wallet"),
        pytest.param([AccessRight(["read-all"], BOB)], None, id="read-all on another wallet"),
        pytest.param([AccessRight(["create"], ALICE), AccessRight(["read"], BOB)], None, id="another action"),
    ],
)
def test_reach(rights: list[AccessRight], reach: Reach | None) -> None:
    """A right must have both the action and the wallet address: two rights cannot be combined."""
    assert authorize(rights, Action.READ).reach(ALICE) == reach


def test_require_wallet_address() -> None:
    """A right on this wallet address is enough; a right on another one is refused."""
    allowance = authorize([AccessRight(["create"], ALICE)], Action.CREATE)
    require_wallet_address(allowance, ALICE)
    with pytest.raises(AccessForbidden) as caught:
        require_wallet_address(allowance, BOB)
    assert str(caught.value) == ANOTHER_WALLET


@pytest.mark.parametrize(
    ("right", "client", "refusal", "message"),
    [
        (AccessRight(["read-all"], BOB), SHOP, PaymentNotFound, NOT_FOUND),
        (AccessRight(["read"], BOB), SHOP, PaymentNotFound, NOT_FOUND),
        (AccessRight(["read"], BOB), "https://other.example", PaymentNotFound, NOT_FOUND),
        (AccessRight(["read"], ALICE), "https://other.example", AccessForbidden, ANOTHER_CLIENT),
        (AccessRight(["read"], ALICE), SHOP, None, ""),
        (AccessRight(["read"]), SHOP, None, ""),
        (AccessRight(["read-all"], ALICE), "https://other.example", None, ""),
        (AccessRight(["read-all"]), "https://other.example", None, ""),
    ],
)
def test_require_payment(
    right: AccessRight, client: str, refusal: type[AccessForbidden | PaymentNotFound] | None, message: str
) -> None:
    """A client without a right on the wallet address gets 404; with a right, it gets its own payments or all."""
    payment = changed(a_creation().answer, client=ClientId(SHOP))
    allowance = authorize([right], Action.READ)
    if refusal is None:
        assert require_payment(allowance, payment, client) is payment
        return
    with pytest.raises(refusal) as caught:
        require_payment(allowance, payment, client)
    assert type(caught.value) is refusal
    assert str(caught.value) == message
    assert caught.value.details == {}


def test_payment_not_found_has_one_message() -> None:
    """A payment that does not exist and one that is hidden have the same message."""
    assert str(payment_not_found()) == NOT_FOUND
    assert payment_not_found().details == {}
