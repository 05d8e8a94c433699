"""Tests of the flows for lists: the rights, the cursors and the pages, for clients and for the host."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from attrs import evolve

from incoming_payments.domain.listing import PaymentPage, PaymentQuery
from incoming_payments.domain.payment import HOST, IncomingPayment, PaymentId
from incoming_payments.domain.reference import Reference
from incoming_payments.domain.transitions import State
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.errors import (
    ConfigurationError,
    CursorNotFound,
    InvalidValue,
    PolicyRefused,
    StoreUnavailable,
    TokenRefused,
    WalletAddressesUnavailable,
)
from incoming_payments.flows.complete import complete
from incoming_payments.flows.create import create_for_host
from incoming_payments.flows.list import list_for_host, list_payments
from incoming_payments.flows.machinery.effects import Effect, IntrospectToken
from incoming_payments.gnap import AccessRight, AccessTokenInfo
from incoming_payments.httpsig import RequestMessage
from incoming_payments.stores.memory import MemoryStore
from kits.fake_ports import Raising
from kits.service_kit import (
    ALICE,
    BASE_URL,
    BOB,
    NOBODYS_ID,
    OTHER_SHOP,
    PATH,
    SHOP,
    Client,
    Service,
    Tokens,
    a_right,
    document,
    ed25519_key,
    refusal,
)

LIST = a_right("list")


def query_of(wallet_address: str = ALICE.url, **members: object) -> str:
    """Return the query of a list request."""
    return "&".join(
        f"{name}={quote(str(value), safe='')}" for name, value in {"wallet-address": wallet_address, **members}.items()
    )


def listing(client: Client, query: str) -> Response:
    """Send a signed list request."""
    return client.send(client.sign(Request("GET", PATH, query)))


def ids_of(response: Response) -> list[str]:
    """Return the ids of the payments on a page."""
    return [item["id"].rpartition("/")[2] for item in document(response)["result"]]


def created(service: Service, count: int, *, client: str | None = SHOP, on: str = ALICE.url, **terms: Any) -> list[str]:
    """Create payments, one in each second, and return their ids, the newest first."""
    ids: list[str] = []
    for _ in range(count):
        service.clock.advance(1)
        flow = create_for_host(wallet_address=on, client=client, policy=service.policy, clock=service.clock, **terms)
        ids.insert(0, service.run(flow).id)
    return ids


# --- clients -----------------------------------------------------------------------------------------


def test_page_of_a_client() -> None:
    """The page has the 20 newest payments without methods and `updatedAt`, and cursors for the next page."""
    service = Service()
    ids = created(service, 21, metadata={"n": 1})
    page = document(listing(service.client(LIST), query_of()))
    assert page["pagination"] == {
        "hasNextPage": True,
        "hasPreviousPage": False,
        "startCursor": ids[0],
        "endCursor": ids[19],
    }
    assert [item["id"] for item in page["result"]] == [f"{BASE_URL}{PATH}/{id}" for id in ids[:20]]
    assert sorted(page["result"][0]) == ["completed", "createdAt", "id", "metadata", "receivedAmount", "walletAddress"]


@pytest.mark.parametrize("size", [1, 2, 3, 6, 7, 8, 100])
def test_pages_forwards_and_backwards_hold_the_whole_list(size: int) -> None:
    """The client follows the cursors to the end and back, and the flags say when to stop."""
    service = Service()
    ids = created(service, 7)
    client = service.client(LIST)
    page = document(listing(client, query_of(first=size)))
    down, flags = [], []
    while True:
        down += [item["id"] for item in page["result"]]
        flags.append(page["pagination"]["hasPreviousPage"])
        if not page["pagination"]["hasNextPage"]:
            break
        page = document(listing(client, query_of(first=size, cursor=page["pagination"]["endCursor"])))
    assert [id.rpartition("/")[2] for id in down] == ids
    assert flags == [False, *[True] * (len(flags) - 1)]
    up = [item["id"] for item in page["result"]]
    while page["pagination"]["hasPreviousPage"]:
        page = document(listing(client, query_of(last=size, cursor=page["pagination"]["startCursor"])))
        assert page["pagination"]["hasNextPage"]
        up = [*(item["id"] for item in page["result"]), *up]
    assert up == down


def test_empty_pages_have_no_cursors() -> None:
    """There is nothing to list, or nothing beyond the cursor."""
    service = Service()
    client = service.client(LIST)
    none = {"pagination": {"hasNextPage": False, "hasPreviousPage": False}, "result": []}
    assert document(listing(client, query_of())) == none
    [id] = created(service, 1)
    end = document(listing(client, query_of(cursor=id)))
    assert end == {"pagination": {"hasNextPage": False, "hasPreviousPage": True}, "result": []}
    start = document(listing(client, query_of(cursor=id, last=5)))
    assert start == {"pagination": {"hasNextPage": True, "hasPreviousPage": False}, "result": []}


def test_payments_that_are_added_meanwhile_move_no_page() -> None:
    """A new payment is above every page that the client has read."""
    service = Service()
    ids = created(service, 6)
    client = service.client(LIST)
    first = ids_of(listing(client, query_of(first=3)))
    added = created(service, 2)
    assert first == ids[:3]
    assert ids_of(listing(client, query_of(first=3, cursor=first[-1]))) == ids[3:]
    assert ids_of(listing(client, query_of(last=3, cursor=first[0]))) == added


RIGHTS: list[tuple[str, list[AccessRight], str]] = [
    ("list", [LIST], "own"),
    ("list everywhere", [a_right("list", on=None)], "own"),
    ("list-all", [a_right("list-all")], "all"),
    ("list-all everywhere", [a_right("list-all", on=None)], "all"),
    ("list here and list-all there", [LIST, a_right("list-all", on=BOB)], "own"),
    ("list and list-all", [LIST, a_right("list-all")], "all"),
]


@pytest.mark.parametrize(("rights", "reach"), [row[1:] for row in RIGHTS], ids=[row[0] for row in RIGHTS])
def test_reach_of_the_rights(rights: list[AccessRight], reach: str) -> None:
    """`list` covers the payments of the client, `list-all` those of all clients and of the host."""
    service = Service()
    own, others, hosts = (created(service, 2, client=client) for client in (SHOP, OTHER_SHOP, None))
    created(service, 1, on=BOB.url)
    expected = own if reach == "own" else [*hosts, *others, *own]
    assert ids_of(listing(service.client(*rights), query_of())) == expected


@pytest.mark.parametrize(
    ("rights", "expected"),
    [
        ([a_right("create", "read", "read-all", "complete")], (401, "insufficient_rights")),
        ([a_right("list", on=BOB)], (403, "forbidden")),
        ([a_right("list-all", on=BOB)], (403, "forbidden")),
    ],
)
def test_right_that_is_too_narrow(rights: list[AccessRight], expected: tuple[int, str]) -> None:
    """Without the action the answer is 401, and for another wallet address 403, with and without a cursor."""
    service = Service()
    [id] = created(service, 1)
    client = service.client(*rights)
    for query in (query_of(), query_of(cursor=id), query_of(first=1)):
        assert refusal(listing(client, query)) == expected


def test_cursor_of_another_list_is_refused() -> None:
    """A payment of another wallet address or client is no cursor, and looks like one that does not exist."""
    service = Service()
    [own] = created(service, 1)
    [others], [bobs], [hosts] = (
        created(service, 1, client=OTHER_SHOP),
        created(service, 1, on=BOB.url),
        created(service, 1, client=None),
    )
    client = service.client(a_right("list", on=None))
    foreign = (others, bobs, hosts, NOBODYS_ID, own.upper(), "", "x", f"{BASE_URL}{PATH}/{own}", own + "\0")
    responses = [listing(client, query_of(cursor=cursor)) for cursor in foreign]
    assert {refusal(response) for response in responses} == {(400, "unknown_cursor")}
    assert len({response.body for response in responses}) == 1
    assert listing(client, query_of(cursor=own)).status == 200
    assert listing(client, query_of(BOB.url, cursor=bobs)).status == 200
    everything = service.client(a_right("list-all", on=None))
    assert [listing(everything, query_of(cursor=cursor)).status for cursor in (others, hosts, bobs)] == [200, 200, 400]


# The query of a list request, the code of its refusal, and the member that it names.
BAD_QUERIES: list[tuple[str, str, str | None]] = [
    ("", "invalid_query", "wallet-address"),
    ("first=1", "invalid_query", "wallet-address"),
    ("wallet-address=", "invalid_query", "wallet-address"),
    ("wallet-address=alice", "invalid_query", "wallet-address"),
    ("wallet-address=https%3A%2F%2Fbank.example%2Falice%00", "invalid_query", "wallet-address"),
    ("wallet-address=https%3A%2F%2Fbank.example%2Fa%CC%88", "invalid_query", "wallet-address"),
    ("wallet-address=https%3A%2F%2Fu%3Ap%40bank.example%2Falice", "invalid_query", "wallet-address"),
    ("wallet-address=%FF", "invalid_query", None),
    ("wallet-address", "invalid_query", None),
    (query_of() + "&", "invalid_query", None),
    (query_of() + "&first", "invalid_query", None),
    (query_of() + "&" + query_of(), "invalid_query", "wallet-address"),
    (query_of(first=1) + "&first=1", "invalid_query", "first"),
    (query_of(first=1, last=1), "invalid_query", "last"),
    (query_of(first=1, last=1, cursor=NOBODYS_ID), "invalid_query", "last"),
    (query_of(last=1), "invalid_query", "cursor"),
    *(
        (query_of(first=size), "invalid_query", "first")
        for size in ("", 0, -1, 101, 1000, "1.0", "1e1", "01", " 1", "+1", "٣", "x")
    ),
    *((query_of(last=size, cursor=NOBODYS_ID), "invalid_query", "last") for size in (0, 101, "ten", "9" * 400)),
    (query_of(state="pending"), "invalid_query", "state"),
    (query_of() + "&a=1&b=2&c=3&d=4", "invalid_query", None),
    (query_of(walletAddress="x"), "invalid_query", "walletAddress"),
    (query_of() + "&First=1", "invalid_query", "First"),
    (query_of() + "&%00%F0%9F%AA%99=1", "invalid_query", "\\x00\\U0001fa99"),
    (query_of(cursor="019b7a0c"), "unknown_cursor", "cursor"),
    (query_of(cursor=NOBODYS_ID), "unknown_cursor", "cursor"),
    (query_of("https://other.example/alice"), "unknown_wallet_address", "wallet-address"),
]


@pytest.mark.parametrize(("query", "code", "member"), BAD_QUERIES)
def test_bad_query_is_refused_after_the_token(query: str, code: str, member: str | None) -> None:
    """The answer is 400 for a client with the right, and the refusal of the token for every other one."""
    service = Service()
    client = service.client(a_right("list", on=None))
    response = listing(client, query)
    assert refusal(response) == (400, code)
    assert document(response, 400)["error"].get("details") == (None if member is None else {"member": member})
    request = Request("GET", PATH, query)
    assert refusal(service.handle(request)) == (401, "token_missing")
    assert refusal(listing(service.client(a_right("read")), query)) == (401, "insufficient_rights")
    forged = service.client(LIST, jwk=ed25519_key("another").public_jwk())
    assert listing(forged, query).status == 401


def test_wallet_address_has_any_spelling() -> None:
    """The query may be encoded in any way, and the wallet address spelled in any way."""
    service = Service()
    ids = created(service, 1)
    for query in (f"wallet-address={ALICE.url}", "wallet%2Daddress=HTTPS://BANK.example:443/alice/", query_of()):
        assert ids_of(listing(service.client(LIST), query)) == ids


def test_list_of_head_and_other_requests() -> None:
    """HEAD gets the answer of GET, a body is refused, and without a token there is no list."""
    service = Service()
    client = service.client(LIST)
    head = client.send(client.sign(Request("HEAD", PATH, query_of())))
    assert (head.status, head.body) == (200, listing(client, query_of()).body)
    with_body = client.sign(Request("GET", PATH, query_of(), body=b"{}"))
    assert refusal(client.send(with_body)) == (400, "unexpected_body")
    assert refusal(service.handle(Request("GET", PATH, query_of()))) == (401, "token_missing")


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (PolicyRefused("this account is frozen"), (403, "refused_by_policy")),
        (WalletAddressesUnavailable("10.0.0.7 is down"), (503, "wallet_addresses_unavailable")),
        (StoreUnavailable("locked"), (503, "store_unavailable")),
        (TimeoutError(), (503, "wallet_addresses_unavailable")),
        (ConnectionResetError(), (503, "wallet_addresses_unavailable")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failed_look_up_is_for_authenticated_clients(failure: Exception, expected: tuple[int, str]) -> None:
    """A client with a token learns why the wallet address cannot be found. Without the right, it gets its refusal."""
    service = Service()
    client = service.client(LIST)
    service.replace(wallet_addresses=Raising(failure))
    assert refusal(listing(client, query_of())) == expected
    assert refusal(listing(client, query_of(BOB.url))) == (403, "forbidden")
    assert refusal(listing(service.client(a_right("read")), query_of())) == (401, "insufficient_rights")
    stranger = service.client(LIST)
    service.replace(introspector=Tokens())
    assert refusal(listing(stranger, query_of())) == (401, "invalid_token")


def test_query_of_the_introspection() -> None:
    """The introspection names `list` and the wallet address of the query, hosted or not. It is the first step."""
    service = Service()
    eve = "https://bank.example/eve"
    for query, url in ((query_of(), ALICE.url), (query_of(eve), eve), ("x", None)):
        request = service.client(LIST).sign(Request("GET", PATH, query))
        signed = RequestMessage("GET", f"{BASE_URL}{PATH}?{query}", request.headers)
        flow = list_payments(signed, query, service.policy, service.now)
        effect: Effect[Any] = next(flow)
        assert isinstance(effect, IntrospectToken)
        assert (effect.query.action, effect.query.wallet_address) == ("list", url)
        with pytest.raises(TokenRefused):
            flow.send(AccessTokenInfo(SHOP, ed25519_key().public_jwk(), []))


# --- the host ----------------------------------------------------------------------------------------


def page_of(service: Service, **filters: Any) -> PaymentPage:
    """Return a page of the host."""
    return service.run(list_for_host(**{"now": service.now, **filters}))


def ids(page: PaymentPage) -> list[PaymentId]:
    """Return the ids of the payments on a page."""
    return [payment.id for payment in page.payments]


def test_host_lists_all_payments() -> None:
    """Without a filter, the list has the payments of every wallet address and client."""
    service = Service()
    alices, bobs, hosts = created(service, 2), created(service, 1, on=BOB.url), created(service, 1, client=None)
    assert ids(page_of(service)) == [*hosts, *bobs, *alices]
    assert ids(page_of(service, wallet_address="HTTPS://bank.example/bob/")) == bobs
    assert ids(page_of(service, client=HOST)) == hosts
    assert ids(page_of(service, client=SHOP)) == [*bobs, *alices]
    assert ids(page_of(service, client=SHOP, wallet_address=ALICE.url)) == alices


def test_host_lists_by_state_and_time() -> None:
    """The state is that of the time of the call. The filters work together."""
    service = Service()
    began = service.now
    expiring = created(service, 2, expires_at=began + timedelta(seconds=30))
    open_ones = created(service, 3)
    service.receive(open_ones[1], 5)
    service.run(complete(PaymentId(open_ones[2]), clock=service.clock))
    assert ids(page_of(service, state="pending")) == [open_ones[0], *expiring]
    assert ids(page_of(service, state=State.PROCESSING)) == [open_ones[1]]
    assert ids(page_of(service, state=State.COMPLETED)) == [open_ones[2]]
    assert ids(page_of(service, state=State.EXPIRED)) == []
    service.clock.advance(60)
    assert ids(page_of(service, state=State.EXPIRED)) == expiring
    second = {"created_from": began + timedelta(seconds=2), "created_before": began + timedelta(seconds=3)}
    assert ids(page_of(service, **second)) == [expiring[0]]
    assert ids(page_of(service, state="expired", wallet_address=ALICE.url, client=SHOP, **second)) == [expiring[0]]


class IgnoresReferences(MemoryStore):
    """A store of a host that does not know the filter."""

    def find_payments(self, query: PaymentQuery) -> Sequence[IncomingPayment]:
        """Return a page of the list without the filter."""
        return super().find_payments(evolve(query, reference=None))


def test_store_that_ignores_the_reference_is_detected() -> None:
    """The service returns no payment without the reference of the query."""
    service = Service()
    service.replace(store=IgnoresReferences())
    reference = Reference("externalRef", "INV-7")
    assert ids(page_of(service, reference=reference)) == []
    created(service, 1)
    with pytest.raises(ConfigurationError) as caught:
        page_of(service, reference=reference)
    text = "store.find_payments returned a payment without the reference of the query: filter by query.reference"
    assert (caught.value.description, caught.value.details) == (text, {"setting": "store"})


@pytest.mark.parametrize(("side", "flags"), [("first", (False, True)), ("last", (True, False))])
def test_cursor_stays_valid_when_its_payment_changes(side: str, flags: tuple[bool, bool]) -> None:
    """The place of a payment that left the state still divides the list, and both flags are exact."""
    service = Service()
    listed = created(service, 5)
    service.receive(listed[2], 5)
    page = page_of(service, state="pending", cursor=PaymentId(listed[2]), **{side: 5})
    assert ids(page) == (listed[3:] if side == "first" else listed[:2])
    assert (page.has_next, page.has_previous) == flags
    for id in listed[:2] if side == "first" else listed[3:]:
        service.receive(id, 5)
    page = page_of(service, state="pending", cursor=PaymentId(listed[2]), **{side: 1})
    assert (page.has_next, page.has_previous) == ((True, False) if side == "first" else (False, True))


def test_host_cursor_must_be_of_the_list() -> None:
    """A cursor of another wallet address or client is refused. Without these filters, each payment is a cursor."""
    service = Service()
    [alices], [bobs] = created(service, 1), created(service, 1, on=BOB.url)
    for filters in ({"wallet_address": BOB.url}, {"client": HOST}):
        with pytest.raises(CursorNotFound):
            page_of(service, cursor=PaymentId(alices), **filters)
    with pytest.raises(CursorNotFound):
        page_of(service, cursor=PaymentId(NOBODYS_ID))
    assert ids(page_of(service, cursor=PaymentId(bobs))) == [alices]


@pytest.mark.parametrize(
    ("filters", "member"),
    [
        ({"first": 0}, "first"),
        ({"first": 101}, "first"),
        ({"first": True}, "first"),
        ({"first": "5"}, "first"),
        ({"last": 0, "cursor": NOBODYS_ID}, "last"),
        ({"last": 5}, "last"),
        ({"first": 5, "last": 5, "cursor": NOBODYS_ID}, "last"),
        ({"state": "open"}, "state"),
        ({"client": ""}, "client"),
        ({"wallet_address": "alice"}, "walletAddress"),
        ({"created_from": datetime(2026, 1, 1)}, "created_from"),  # noqa: DTZ001
        ({"created_before": 5}, "created_before"),
    ],
)
def test_wrong_filters_are_refused(filters: dict[str, Any], member: str) -> None:
    """The error names the wrong argument."""
    with pytest.raises(InvalidValue) as caught:
        page_of(Service(), **filters)
    assert caught.value.details["member"] == member
