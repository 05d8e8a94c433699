"""`gnap.access`: which rights allow what."""

from itertools import product

import pytest
from attrs import evolve

from frozen_values import assert_frozen
from incoming_payments.domain.payment import ClientId, WalletAddressUrl
from incoming_payments.errors import AccessForbidden, InvalidValue, PaymentNotFound, TokenRefused
from incoming_payments.gnap.access import (
    RIGHT_TYPE,
    AccessRight,
    Action,
    Allowance,
    Reach,
    authorize,
    payment_not_found,
    require_payment,
    require_wallet_address,
)
from incoming_payments.testing import a_creation

ALICE = WalletAddressUrl("https://bank.example/alice")
BOB = WalletAddressUrl("https://bank.example/bob")
SHOP = "https://shop.example"
ELSEWHERE = "the access token is for another wallet address: ask for a grant that names this one"
ANOTHER_CLIENT = "another client created this payment, and the access token is for your own"
NOT_FOUND = "there is no such incoming payment: check the id"


def test_the_wires_names() -> None:
    """Type and actions are Open Payments' own."""
    assert RIGHT_TYPE == "incoming-payment"
    assert [action.value for action in Action] == ["create", "read", "read-all", "complete", "list", "list-all"]
    assert [reach.value for reach in Reach] == ["own", "all"]


def test_values_do_not_change() -> None:
    """What a token allows is decided once."""
    assert_frozen(AccessRight(["read"]), authorize([AccessRight(["read"])], Action.READ))


# --- rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("identifier", ["https://bank.example/alice", "HTTPS://Bank.example:443/alice/"])
def test_right(identifier: str) -> None:
    """A right takes actions by name, and its wallet address in any spelling; names that repeat count once."""
    right = AccessRight(["read", "create", "read"], identifier)
    assert right.actions == {Action.CREATE, Action.READ}
    assert right.identifier == ALICE


@pytest.mark.parametrize("actions", [["write"], ["READ"], ["read", ""], [None], "read"])
def test_right_refuses_unknown_actions(actions: object) -> None:
    """An action that nobody knows is refused, and so is a name in place of a list of them."""
    with pytest.raises(InvalidValue) as caught:
        AccessRight(actions)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == "actions must be among create, read, read-all, complete, list, list-all"
    assert caught.value.details == {"member": "actions"}


def test_right_needs_an_action() -> None:
    """A right to nothing is a mistake."""
    with pytest.raises(InvalidValue) as caught:
        AccessRight([])
    assert str(caught.value) == "a right needs at least one action"
    assert caught.value.details == {"member": "actions"}


@pytest.mark.parametrize("identifier", ["", "alice", "https://bank.example/#alice"])
def test_right_refuses_an_identifier_that_is_no_url(identifier: str) -> None:
    """A right whose wallet address cannot be read does not become one on all of them."""
    with pytest.raises(InvalidValue) as caught:
        AccessRight(["read"], identifier)
    assert caught.value.details == {"member": "identifier"}


@pytest.mark.parametrize(
    ("identifier", "url", "covers"), [(None, ALICE, True), (ALICE, ALICE, True), (ALICE, BOB, False)]
)
def test_right_covers(identifier: str | None, url: WalletAddressUrl, covers: bool) -> None:
    """A right with an identifier holds there and nowhere else, one without holds everywhere."""
    assert AccessRight(["read"], identifier).covers(url) is covers


# --- what they allow -------------------------------------------------------------------------------

ALLOWS = {
    Action.CREATE: {Action.CREATE: Reach.OWN},
    Action.READ: {Action.READ: Reach.OWN},
    Action.READ_ALL: {Action.READ: Reach.ALL, Action.READ_ALL: Reach.OWN},
    Action.COMPLETE: {Action.COMPLETE: Reach.OWN},
    Action.LIST: {Action.LIST: Reach.OWN},
    Action.LIST_ALL: {Action.LIST: Reach.ALL, Action.LIST_ALL: Reach.OWN},
}


@pytest.mark.parametrize(("held", "asked"), list(product(Action, Action)))
def test_authorize(held: Action, asked: Action) -> None:
    """Each action allows itself, and the `-all` form the plain one for every client; no other allows anything."""
    rights = [AccessRight([held])]
    reach = ALLOWS[held].get(asked)
    if reach is None:
        with pytest.raises(TokenRefused) as caught:
            authorize(rights, asked)
        assert caught.value.code == "insufficient_rights"
        assert str(caught.value) == f"the access token has no right to {asked}: ask for a grant with that action"
        assert caught.value.details == {"action": asked.value}
        assert type(caught.value.details["action"]) is str
    else:
        assert authorize(rights, asked).reach(ALICE) is reach


def test_a_token_without_rights_allows_nothing() -> None:
    """An empty list of rights is no list of all rights."""
    with pytest.raises(TokenRefused):
        authorize([], Action.CREATE)


def test_authorize_reads_rights_once() -> None:
    """Rights may come from anything that can be looped over."""
    allowance = authorize(iter([AccessRight(["read"]), AccessRight(["read-all"], BOB)]), Action.READ)
    assert allowance == Allowance(own=(AccessRight(["read"]),), all=(AccessRight(["read-all"], BOB),))


@pytest.mark.parametrize(
    ("rights", "reach"),
    [
        pytest.param([AccessRight(["read-all"])], Reach.ALL, id="all everywhere"),
        pytest.param([AccessRight(["read"]), AccessRight(["read-all"], ALICE)], Reach.ALL, id="the wider wins"),
        pytest.param([AccessRight(["read"], ALICE), AccessRight(["read-all"], BOB)], Reach.OWN, id="own here"),
        pytest.param([AccessRight(["read"], BOB), AccessRight(["read"], ALICE)], Reach.OWN, id="the second right"),
        pytest.param([AccessRight(["read"], BOB)], None, id="own elsewhere"),
        pytest.param([AccessRight(["read-all"], BOB)], None, id="all elsewhere"),
        pytest.param([AccessRight(["create"], ALICE), AccessRight(["read"], BOB)], None, id="another action here"),
    ],
)
def test_reach(rights: list[AccessRight], reach: Reach | None) -> None:
    """Action and identifier have to come from one right."""
    assert authorize(rights, Action.READ).reach(ALICE) is reach


def test_require_wallet_address() -> None:
    """A right for this wallet address is enough, one for another is not."""
    allowance = authorize([AccessRight(["create"], ALICE)], Action.CREATE)
    require_wallet_address(allowance, ALICE)
    with pytest.raises(AccessForbidden) as caught:
        require_wallet_address(allowance, BOB)
    assert str(caught.value) == ELSEWHERE


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
    """Who may not know of a wallet address learns nothing of its payments; who may, sees its own or all."""
    payment = evolve(a_creation().answer, client=ClientId(SHOP))
    allowance = authorize([right], Action.READ)
    if refusal is None:
        assert require_payment(allowance, payment, client) is payment
        return
    with pytest.raises(refusal) as caught:
        require_payment(allowance, payment, client)
    assert type(caught.value) is refusal
    assert str(caught.value) == message
    assert caught.value.details == {}


def test_payment_not_found_has_one_wording() -> None:
    """A payment that never existed and one that is hidden are told in the same words."""
    assert str(payment_not_found()) == NOT_FOUND
    assert payment_not_found().details == {}
