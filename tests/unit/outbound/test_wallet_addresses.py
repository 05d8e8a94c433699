"""`clients.wallet_addresses`: wallet address documents, over HTTPS from a server on loopback, sync and async."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from incoming_payments import Request
from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import InactiveWalletAddress, WalletAddress, WalletAddressUrl
from incoming_payments.errors import ConfigurationError, InvalidValue, WalletAddressesUnavailable, WalletAddressInactive
from incoming_payments.flows.create import create_for_host
from incoming_payments.limits import DOCUMENT_AGE_S_DEFAULT, DOCUMENT_COOL_DOWN_S_MIN
from incoming_payments.outbound.wallet_addresses import AsyncHttpWalletAddresses, HttpWalletAddresses
from kits.document_kit import FAULTS, Clock, Lookups, inject_resolver, looking_up
from kits.https_server import Peer, https_peer
from kits.service_kit import ALICE, AUTH_SERVER, BOB, PATH, Service, Tokens, a_right, document, refusal

BOTH: Final = [HttpWalletAddresses, AsyncHttpWalletAddresses]
ODD_PATHS: Final = ["..%2finternal%2frestart", "..%5Cinternal", "a/..%2F..", "..%252finternal", "..;/internal"]


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A service for wallet addresses, with that of Alice."""
    with https_peer() as peer:
        peer.publish(a_document(peer))
        yield peer


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture(params=BOTH)
def wallets(request: pytest.FixtureRequest, peer: Peer, clock: Clock) -> Iterator[Lookups]:
    """The port, for the wallet addresses below `/wallets`."""
    with looking_up(request.param, [peer.url("/wallets/")], clock=clock, timeout_s=0.5) as lookups:
        yield lookups


def alice(peer: Peer, name: str = "/wallets/alice") -> WalletAddressUrl:
    """Return a wallet address at the server."""
    return WalletAddressUrl(peer.url(name))


def a_document(peer: Peer, **changes: Any) -> dict[str, Any]:
    """Return the document of Alice's wallet address."""
    return {
        "id": alice(peer),
        "publicName": "Alice",
        "assetCode": "USD",
        "assetScale": 2,
        "authServer": AUTH_SERVER,
        "resourceServer": "https://bank.example/op",
        **changes,
    }


def test_wallet_address_is_that_of_the_document(wallets: Lookups, peer: Peer) -> None:
    """Asset and authorization server come from the document, which is fetched once."""
    expected = WalletAddress(alice(peer), Asset("USD", 2), AUTH_SERVER)
    assert [expected, expected] == [wallets.find(alice(peer)), wallets.find(alice(peer))]
    assert peer.paths == ["/wallets/alice"]


def test_id_may_have_another_spelling(wallets: Lookups, peer: Peer) -> None:
    """Scheme and host in upper case and a slash at the end name the same wallet address."""
    peer.publish(a_document(peer, id=peer.url("/wallets/alice/", scheme="HTTPS"), active=True))
    assert wallets.find(alice(peer)).url == alice(peer)


def test_base_url_can_be_a_wallet_address(wallets: Lookups, peer: Peer) -> None:
    """The wallet address of the whole bank lies at the base URL itself."""
    peer.publish(a_document(peer, id=alice(peer, "/wallets")))
    assert wallets.find(alice(peer, "/wallets")).url == alice(peer, "/wallets")


def test_wallet_address_elsewhere_is_not_looked_up(wallets: Lookups, peer: Peer) -> None:
    """A client chooses the URL, so only those below the base URLs cause a request."""
    for url in (alice(peer, "/other/alice"), alice(peer, "/walletsmore"), "https://client.example/wallets/alice"):
        assert wallets.find(url) is None
    assert peer.paths == []


def test_wallet_address_has_no_query(wallets: Lookups, peer: Peer) -> None:
    """Otherwise a stranger could name one wallet address by any number of URLs."""
    assert wallets.find(WalletAddressUrl(f"{alice(peer)}?n=1")) is None
    assert peer.paths == []


@pytest.mark.parametrize("path", ODD_PATHS)
def test_path_that_could_lead_outside_of_the_base_url_is_not_fetched(wallets: Lookups, peer: Peer, path: str) -> None:
    """A server may decode the path before it splits it, so the URL could lead to another part of the host."""
    peer.publish(a_document(peer, id=alice(peer, f"/wallets/{path}")))
    assert wallets.find(alice(peer, f"/wallets/{path}")) is None
    assert peer.paths == []


def test_percent_encoding_is_sent_as_it_is(wallets: Lookups, peer: Peer) -> None:
    """Another spelling may be another wallet address at that service."""
    url = alice(peer, "/wallets/caf%c3%a9|x")
    peer.publish(a_document(peer, id=url))
    found = wallets.find(url)
    assert (found.url, peer.paths) == (url, ["/wallets/caf%c3%a9|x"])


def test_unknown_wallet_address(wallets: Lookups, peer: Peer, clock: Clock) -> None:
    """404 says that there is no such wallet address, also of one that was known. It may exist later."""
    peer.publish({}, 404)
    assert wallets.find(alice(peer)) is None
    peer.publish(a_document(peer))
    assert wallets.find(alice(peer)) is None
    clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
    assert wallets.find(alice(peer)).url == alice(peer)
    peer.publish({}, 404)
    clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
    assert wallets.find(alice(peer)) is None


def test_inactive_wallet_address(wallets: Lookups, peer: Peer) -> None:
    """The flag in the document, or the status 410, makes a wallet address inactive."""
    peer.publish({"id": alice(peer), "active": False})
    assert wallets.find(alice(peer)) == InactiveWalletAddress(alice(peer))
    peer.publish({}, 410)
    assert wallets.find(alice(peer, "/wallets/bob")) == InactiveWalletAddress(alice(peer, "/wallets/bob"))


def a_wrong(**changes: Any) -> Callable[[Peer], None]:
    """Return a fault: the document with some members changed."""
    return lambda peer: peer.publish(a_document(peer, **changes))


WALLET_FAULTS: Final = {
    **FAULTS,
    "no id": a_wrong(id=None),
    "the id of another": a_wrong(id="https://bank.example/bob"),
    "no asset code": a_wrong(assetCode=None),
    "no asset scale": a_wrong(assetScale=None),
    "a scale as text": a_wrong(assetScale="2"),
    "a scale as a boolean": a_wrong(assetScale=True),
    "a large scale": a_wrong(assetScale=256),
    "no authorization server": a_wrong(authServer=None),
    "active as text": a_wrong(active="no"),
    "active as null": a_wrong(active=None),
    "inactive with the id of another": a_wrong(active=False, id="https://bank.example/bob"),
}


@pytest.mark.parametrize("fault", WALLET_FAULTS.values(), ids=WALLET_FAULTS)
def test_failed_fetch_is_an_outage(wallets: Lookups, peer: Peer, fault: Callable[[Peer], None]) -> None:
    """Without a document, nothing can be said about the wallet address."""
    fault(peer)
    with pytest.raises(WalletAddressesUnavailable) as failed:
        wallets.find(alice(peer))
    assert str(failed.value).startswith(f"{alice(peer)} cannot be used: ")


@pytest.mark.parametrize("fault", WALLET_FAULTS.values(), ids=WALLET_FAULTS)
def test_failed_fetch_keeps_the_known_document(
    wallets: Lookups, peer: Peer, fault: Callable[[Peer], None], clock: Clock
) -> None:
    """Wallet addresses that were looked up before work during an outage."""
    expected = wallets.find(alice(peer))
    fault(peer)
    clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
    assert wallets.find(alice(peer)) == expected


@pytest.mark.parametrize("cls", BOTH)
def test_private_address_needs_the_setting(cls: type, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard is that of the keys of clients."""
    inject_resolver(monkeypatch, lambda _: ["127.0.0.1"])
    base = peer.url("/wallets", host="bank.example")
    with looking_up(cls, [base], allow_private=False) as wallets, pytest.raises(WalletAddressesUnavailable):
        wallets.find(WalletAddressUrl(f"{base}/alice"))
    assert peer.paths == []


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize(
    ("base_urls", "error"),
    [
        ([], ConfigurationError),
        (["https://bank.example/?a=b"], ConfigurationError),
        (["http://bank.example"], ConfigurationError),
        (["https://bank.example/a%2Fb"], ConfigurationError),
        (["https://bank.example/a", "https://bank.example/..;"], ConfigurationError),
        ("https://bank.example", InvalidValue),
        ([7], InvalidValue),
        (["bank.example"], InvalidValue),
    ],
)
def test_wrong_base_urls_are_refused(cls: type, base_urls: Any, error: type[Exception]) -> None:
    """A wrong setting fails when the port is built."""
    with pytest.raises(error, match="base_urls"):
        cls(base_urls)


def test_inactive_wallet_address_takes_no_new_payments_and_keeps_receiving() -> None:
    """Creation is refused with 403, for clients and for the host. A payment from before is read and paid as always."""
    service = Service()
    client = service.client()
    id = client.creates()
    service.hosted.addresses[ALICE.url] = InactiveWalletAddress(ALICE.url)
    assert refusal(client.create()) == (403, "inactive_wallet_address")
    with pytest.raises(WalletAddressInactive):
        service.run(create_for_host(wallet_address=ALICE.url, policy=service.policy, clock=service.clock))
    service.receive(id, 5)
    assert document(client.get(id))["receivedAmount"]["value"] == "5"
    assert document(client.get(id))["methods"]
    public = service.handle(Request("GET", f"{PATH}/{id}"))
    assert document(public)["authServer"] == AUTH_SERVER


def test_wrong_token_does_not_learn_that_a_wallet_address_is_inactive() -> None:
    """The refusal comes after the token, the signature and the rights were accepted."""
    service = Service()
    service.hosted.addresses[ALICE.url] = InactiveWalletAddress(ALICE.url)
    for_bob = service.client(a_right("create", on=BOB))
    assert refusal(for_bob.create()) == (403, "forbidden")
    reader = service.client(a_right("read"))
    assert refusal(reader.create()) == (401, "insufficient_rights")
    stranger = service.client()
    service.replace(introspector=Tokens())
    assert refusal(stranger.create()) == (401, "invalid_token")


@pytest.mark.parametrize("cls", BOTH)
def test_outage_of_the_wallet_addresses_is_503(cls: type, peer: Peer) -> None:
    """The response has a code of its own, and does not show the failure."""
    service = Service()
    client = service.client(a_right("create", on=None))
    with looking_up(cls, [peer.url()], timeout_s=0.5) as wallets:
        service.replace(wallet_addresses=wallets)
        peer.fail()
        response = client.create(walletAddress=alice(peer))
        assert refusal(response) == (503, "wallet_addresses_unavailable")
        assert b"500" not in response.body
    assert "answered with status 500" in str(response.cause)


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("base", ["https://bank.example", "http://bank.example"])
def test_setting_of_the_wrong_type_is_refused(cls: type, base: str) -> None:
    """A text is no value of `allow_private`, not even `"no"`."""
    with pytest.raises(ConfigurationError, match="allow_private must be True or False, not of the type str"):
        cls([base], allow_private="no")
