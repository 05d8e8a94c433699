"""`clients.client_keys`: the key sets of clients, over HTTPS from a server on loopback, sync and async."""

import asyncio
import errno
import itertools
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from ipaddress import ip_address
from typing import Any, Final

import pytest

from incoming_payments.domain.payment import ClientId
from incoming_payments.errors import ClientKeysUnavailable, ConfigurationError
from incoming_payments.gnap import read_introspection
from incoming_payments.httpsig import PrivateKey, RequestMessage
from incoming_payments.limits import (
    ANSWER_VALUES_MAX,
    CLIENT_KEYS_MAX,
    DOCUMENT_AGE_S_DEFAULT,
    DOCUMENT_COOL_DOWN_S_MIN,
    DOCUMENT_STALE_S_MAX,
    LOGGED_A_MINUTE_MAX,
    LOOK_UP_ADDRESSES_MAX,
    REQUEST_SOCKETS_MAX,
)
from incoming_payments.outbound import _documents
from incoming_payments.outbound._aiohttp import AsyncHttpClient
from incoming_payments.outbound._documents import is_public
from incoming_payments.outbound._http import HttpFailed
from incoming_payments.outbound.client_keys import AsyncHttpClientKeys, HttpClientKeys
from kits.document_kit import FAULTS, Clock, Lookups, inject_resolver, looking_up
from kits.https_server import Peer, contexts, https_peer
from kits.service_kit import Service, Tokens, ed25519_key, es256_key, ps512_key, refusal

BOTH: Final = [HttpClientKeys, AsyncHttpClientKeys]
OLD, NEW = ed25519_key("old").public_jwk(), ed25519_key("new").public_jwk()


@pytest.fixture
def peer() -> Iterator[Peer]:
    """A client's wallet that publishes the key `old`."""
    with https_peer() as peer:
        peer.publish({"keys": [OLD]})
        yield peer


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture(params=BOTH)
def keys(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Lookups]:
    """The port, with loopback allowed."""
    with looking_up(request.param, clock=clock, timeout_s=0.5) as lookups:
        yield lookups


def client(peer: Peer, name: str = "/alice", **options: Any) -> ClientId:
    """Return the wallet address of a client at the server."""
    return ClientId(peer.url(name, **options))


# --- the key set -------------------------------------------------------------------------------------


def test_key_is_the_one_with_the_kid(keys: Lookups, peer: Peer) -> None:
    """A client can have several keys of several kinds. All come from one fetch of `jwks.json`."""
    several = [OLD, NEW, es256_key().public_jwk(), ps512_key().public_jwk()]
    peer.publish({"keys": several})
    assert several == [keys.find(client(peer), str(jwk["kid"])) for jwk in several]
    assert keys.find(client(peer), "none") is None
    assert peer.paths == ["/alice/jwks.json"]


def test_wallet_address_has_one_spelling(keys: Lookups, peer: Peer) -> None:
    """A client of the host's own introspector may have another spelling. A wallet address may have no path."""
    assert keys.find(client(peer, "/alice/", scheme="HTTPS"), "old") == OLD
    assert keys.find(client(peer), "old") == OLD
    assert keys.find(client(peer, ""), "old") == OLD
    assert peer.paths == ["/alice/jwks.json", "/jwks.json"]


def test_bad_keys_do_not_harm_good_ones(keys: Lookups, peer: Peer) -> None:
    """Keys that cannot be used are left out, and so are members that a verifier does not need."""
    bad: list[Any] = [
        7,
        None,
        {},
        [],
        {"kty": "oct", "k": "c2VjcmV0", "kid": "new"},
        {**NEW, "x": "AA"},
        {**NEW, "d": "x"},
    ]
    peer.publish({"keys": [*bad, {**OLD, "x5c": ["A" * 1000], "use": "sig"}], "more": 1})
    assert keys.find(client(peer), "old") == OLD
    assert keys.find(client(peer), "new") is None


@pytest.mark.parametrize("key", [OLD, es256_key().public_jwk(), ps512_key().public_jwk()], ids=["OKP", "EC", "RSA"])
def test_members_of_another_kind_of_key_are_left_out(keys: Lookups, peer: Peer, key: dict[str, Any]) -> None:
    """Nobody checks such a member, so a client could publish a long list in it, and fill the cache."""
    several: dict[str, Any] = {name: [[]] * 100 for name in ("crv", "x", "y", "n", "e")}
    peer.publish({"keys": [several | key]})
    assert keys.find(client(peer), key["kid"]) == key


def test_first_good_key_with_a_kid_counts(keys: Lookups, peer: Peer) -> None:
    """A key set with one `kid` twice yields the first of them that can be used."""
    other = {**NEW, "kid": "old"}
    peer.publish({"keys": [{**OLD, "x": "AA"}, other, OLD]})
    assert keys.find(client(peer), "old") == other


def test_only_the_first_keys_of_a_large_set_count(keys: Lookups, peer: Peer) -> None:
    """A key set cannot fill the cache."""
    peer.publish({"keys": [{**OLD, "kid": str(n)} for n in range(CLIENT_KEYS_MAX + 1)]})
    assert keys.find(client(peer), str(CLIENT_KEYS_MAX - 1))
    assert keys.find(client(peer), str(CLIENT_KEYS_MAX)) is None


@pytest.mark.parametrize("status", [404, 410])
def test_client_without_a_key_set_has_no_key(keys: Lookups, peer: Peer, status: int) -> None:
    """Nothing was ever published there, so this is a mistake of the client and no outage."""
    peer.publish({}, status)
    assert keys.find(client(peer), "old") is None


@pytest.mark.parametrize(
    "name",
    [
        "urn:ietf:params:oauth:jwk-thumbprint:sha-256:NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs",
        "018f3c2e-1b2c-7000-8000-000000000000",
        "file:///etc/passwd",
    ],
)
def test_client_without_a_wallet_address_has_no_key(keys: Lookups, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thumbprint, an opaque name and a URL without a host cause no look-up."""
    names = inject_resolver(monkeypatch, lambda _: ["127.0.0.1"])
    assert keys.find(ClientId(name), "old") is None
    assert names == []


# --- the cache ---------------------------------------------------------------------------------------


def test_keys_are_fetched_again_when_they_are_old(keys: Lookups, peer: Peer, clock: Clock) -> None:
    """A key that the client withdrew is valid for the age of the cache at most."""
    keys.find(client(peer), "old")
    peer.publish({"keys": [NEW]})
    clock.now_s += DOCUMENT_AGE_S_DEFAULT
    assert keys.find(client(peer), "old") == OLD
    clock.now_s += 1
    assert keys.find(client(peer), "old") is None
    assert keys.find(client(peer), "new") == NEW
    assert len(peer.paths) == 2


def test_unknown_kid_fetches_the_keys_again(keys: Lookups, peer: Peer, clock: Clock) -> None:
    """A client that rotates its keys waits for the cool-down at most."""
    keys.find(client(peer), "old")
    peer.publish({"keys": [OLD, NEW]})
    clock.now_s += DOCUMENT_COOL_DOWN_S_MIN - 1
    assert keys.find(client(peer), "new") is None
    clock.now_s += 1
    assert keys.find(client(peer), "new") == NEW
    assert keys.find(client(peer), "old") == OLD
    assert len(peer.paths) == 2


def test_storm_of_unknown_ids_costs_one_fetch(keys: Lookups, peer: Peer, clock: Clock) -> None:
    """The cool-down begins with the end of a fetch. Concurrent look-ups share the fetch in flight."""
    keys.find(client(peer), "old")
    clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
    peer.delay_s = 0.1
    assert keys.find_all((client(peer), f"unknown-{n}") for n in range(100)) == [None] * 100
    assert len(peer.paths) == 2


def test_one_fetch_is_in_flight_for_one_client(keys: Lookups, peer: Peer) -> None:
    """All waiting callers get the answer of the fetch. Another client has a fetch of its own."""
    peer.delay_s = 0.1
    calls = [(client(peer, name), "old") for name in ("/a", "/b") * 20]
    assert keys.find_all(calls) == [OLD] * 40
    assert sorted(peer.paths) == ["/a/jwks.json", "/b/jwks.json"]


def test_thread_of_fetches_rests_after_much_work(peer: Peer) -> None:
    """Answers that arrive together are much work at once. The thread rests twice as long, also in later turns."""
    ends_s = []

    def busy_clock() -> float:
        if threading.current_thread() is not threading.main_thread():
            until_s = time.thread_time() + 0.2
            while time.thread_time() < until_s:
                pass
            ends_s.append(time.monotonic())
        return 0.0

    with looking_up(HttpClientKeys, clock=busy_clock, timeout_s=5.0) as keys:
        keys.port.find(client(peer), "old")
        keys.port.find(client(peer, "/bob"), "old")
    first_s, second_s = ends_s
    assert second_s - first_s >= 0.2 + 0.4


def test_full_cache_keeps_the_clients_with_keys(keys: Lookups, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients without keys do not drop the keys of others. The least recently used client with keys is dropped."""
    monkeypatch.setattr(_documents, "DOCUMENTS_MAX", 3)
    keys.find(client(peer, "/a"), "old")
    keys.find(client(peer, "/b"), "old")
    keys.find(client(peer, "/a"), "old")
    peer.publish({}, 404)
    for n in range(9):
        assert keys.find(client(peer, f"/{n}"), "old") is None
    peer.publish({"keys": [NEW]})
    assert keys.find(client(peer, "/b"), "old") == OLD
    assert keys.find(client(peer, "/c"), "new") == NEW
    assert keys.find(client(peer, "/d"), "new") == NEW
    assert keys.find(client(peer, "/a"), "old") is None  # dropped, and fetched again


def test_full_cache_remembers_failed_fetches(keys: Lookups, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other clients have filled the cache. Two clients with failing servers then cause one fetch each, and not more."""
    monkeypatch.setattr(_documents, "DOCUMENTS_MAX", 3)
    for name in "abc":
        keys.find(client(peer, f"/{name}"), "old")
    peer.publish({}, 500)
    for _ in range(3):
        for name in "xy":
            with pytest.raises(ClientKeysUnavailable):
                keys.find(client(peer, f"/{name}"), "old")
    assert len(peer.paths) == 3 + 2


def test_least_recent_failure_is_forgotten_first(keys: Lookups, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_documents, "MISSING_DOCUMENTS_MAX", 2)
    peer.publish({}, 404)
    for name in ("/a", "/b", "/a", "/c", "/a", "/b"):
        assert keys.find(client(peer, name), "old") is None
    assert [path.split("/")[1] for path in peer.paths] == ["a", "b", "c", "b"]


def test_new_client_stays_in_a_full_cache_while_its_keys_are_fetched(
    peer: Peer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another client begins a fetch in the meantime. The new client's keys are then known all the same."""
    monkeypatch.setattr(_documents, "DOCUMENTS_MAX", 3)
    with looking_up(AsyncHttpClientKeys, clock=clock, timeout_s=10.0) as keys:
        for name in "abc":
            keys.find(client(peer, f"/{name}"), "old")
        peer.delay_s = 0.05
        keys.find_all([(client(peer, "/new"), "old"), (client(peer, "/other"), "old")])
        assert keys.find(client(peer, "/new"), "old") == OLD
    assert peer.paths.count("/new/jwks.json") == 1


def test_fetches_in_flight_do_not_drop_keys(peer: Peer, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many look-ups at the same time do not drop the keys of others, which may be needed in an outage."""
    monkeypatch.setattr(_documents, "DOCUMENTS_MAX", 3)
    with looking_up(AsyncHttpClientKeys, clock=clock, timeout_s=10.0) as keys:
        keys.find(client(peer), "old")
        peer.delay_s = 0.05
        keys.find_all([(client(peer, f"/{n}"), "none") for n in range(5)])
        assert keys.find(client(peer), "old") == OLD
        assert peer.paths.count("/alice/jwks.json") == 1


# --- failures ----------------------------------------------------------------------------------------

KEY_FAULTS: Final = {
    **FAULTS,
    "no keys": lambda peer: peer.publish({}),
    "keys as an object": lambda peer: peer.publish({"keys": {"old": OLD}}),
    "too many values": lambda peer: peer.publish({"keys": [OLD], "more": [0] * ANSWER_VALUES_MAX}),
}


@pytest.mark.parametrize("fault", KEY_FAULTS.values(), ids=KEY_FAULTS)
def test_failed_fetch_is_an_outage(keys: Lookups, peer: Peer, fault: Callable[[Peer], None], clock: Clock) -> None:
    """Without known keys, nothing can be said about a signature. The next fetch waits for the cool-down."""
    fault(peer)
    for _ in range(3):
        with pytest.raises(ClientKeysUnavailable) as failed:
            keys.find(client(peer), "old")
        assert str(failed.value).startswith(f"{client(peer)}/jwks.json cannot be used: ")
    assert len(peer.paths) == 1

    peer.publish({"keys": [OLD]})
    clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
    assert keys.find(client(peer), "old") == OLD


@pytest.mark.parametrize("fault", [*KEY_FAULTS.values(), lambda peer: peer.publish({}, 404)], ids=[*KEY_FAULTS, "404"])
def test_failed_fetch_never_drops_good_keys(
    keys: Lookups, peer: Peer, fault: Callable[[Peer], None], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The known keys stay in use, and the log says so. Whether another key is good is not known."""
    keys.find(client(peer), "old")
    fault(peer)
    clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
    with caplog.at_level(logging.WARNING, "incoming_payments.outbound"):
        assert keys.find(client(peer), "old") == OLD
        assert keys.find(client(peer), "old") == OLD
        with pytest.raises(ClientKeysUnavailable):
            keys.find(client(peer), "new")
    (line,) = caplog.records
    assert line.__dict__["event"] == "document_refresh_failed"
    start = "incoming payments: a document could not be fetched again, so the cached document, which is 301 s old, "
    start += "stays in use: "
    start += f"{client(peer)}/jwks.json cannot be used: "
    assert line.getMessage().startswith(start)


def test_log_lines_about_failed_fetches_are_limited(
    keys: Lookups, peer: Peer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Many clients with failing servers cannot fill the log: the lines of a minute are limited, and then counted."""
    clients = [ClientId(f"{client(peer)}/{number}") for number in range(LOGGED_A_MINUTE_MAX + 2)]
    for each in clients:
        keys.find(each, "old")
    peer.fail()
    clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
    for each in clients:
        assert keys.find(each, "old") == OLD
    assert [line.__dict__["event"] for line in caplog.records] == ["document_refresh_failed"] * LOGGED_A_MINUTE_MAX
    clock.now_s += 60
    keys.find(clients[0], "old")
    assert [line.__dict__["event"] for line in caplog.records[-2:]] == ["lines_suppressed", "document_refresh_failed"]
    assert caplog.messages[-2] == "incoming payments: 2 more failed refreshes of documents were not logged"


def test_key_set_that_is_gone_drops_the_keys(keys: Lookups, peer: Peer, clock: Clock) -> None:
    """410 says that the key set was withdrawn for good. The client may publish another one later."""
    keys.find(client(peer), "old")
    peer.publish({}, 410)
    clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
    assert keys.find(client(peer), "old") is None
    peer.fail()
    clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
    with pytest.raises(ClientKeysUnavailable):
        keys.find(client(peer), "old")
    peer.publish({"keys": [NEW]})
    clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
    assert keys.find(client(peer), "new") == NEW


def test_few_unknown_key_sets_are_fetched_at_the_same_time(keys: Lookups, peer: Peer, clock: Clock) -> None:
    """The fetches beyond the limit are an outage at once. Known keys are used and fetched again meanwhile."""
    with looking_up(type(keys.port), clock=clock, fetches=2) as few:
        few.find(client(peer), "old")
        peer.publish({}, 404)
        assert [few.find(client(peer, f"/{n}"), "old") for n in range(4)] == [None] * 4  # one after the other
        peer.publish({"keys": [OLD]})
        clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
        peer.paths.clear()
        peer.delay_s = 0.2
        calls = [(client(peer, f"/{n}", host=host), "old") for n in range(5) for host in ("127.0.0.1", "localhost")]
        outcomes = few.find_all([*calls, (client(peer), "old")], catch=ClientKeysUnavailable)
        refused = [outcome for outcome in outcomes if isinstance(outcome, ClientKeysUnavailable)]
        assert len(refused) == 8
        assert all("too many other documents" in str(error) for error in refused)
        assert outcomes[-1] == OLD
        assert len(peer.paths) == 3
        peer.delay_s = 0
        assert [few.find(*call) for call in calls] == [OLD] * 10  # a refused look-up has no cool-down


@pytest.mark.parametrize("cls", BOTH)
def test_slow_servers_of_one_domain_do_not_take_the_only_two_fetches(cls: type, peer: Peer) -> None:
    """A server with eight threads has two fetches of unknown key sets at the same time."""
    with https_peer() as slow, looking_up(cls, fetches=2, timeout_s=1) as keys:
        slow.hang()
        hostile = [(client(slow, f"/{n}"), "old") for n in range(3)]
        outcomes = keys.find_all([*hostile, (client(peer, host="localhost"), "old")], catch=ClientKeysUnavailable)
    assert [type(outcome) for outcome in outcomes[:-1]] == [ClientKeysUnavailable] * 3
    assert outcomes[-1] == OLD


@pytest.mark.parametrize(("is_known", "outcome"), [(False, ClientKeysUnavailable), (True, dict)])
def test_few_threads_wait_for_a_slow_key_set(peer: Peer, clock: Clock, is_known: bool, outcome: type) -> None:
    """One slow key server does not occupy all threads. A known key is used without waiting."""
    released = threading.Event()

    def answer(out: Any) -> None:
        released.wait(5)
        out.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(peer.body), peer.body))

    with looking_up(HttpClientKeys, clock=clock, fetches=2, timeout_s=5) as keys, ThreadPoolExecutor(8) as pool:
        if is_known:
            keys.find(client(peer), "old")
            clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
        peer.answer = answer
        calls = [pool.submit(keys.port.find, client(peer), "old") for _ in range(8)]
        early = list(itertools.islice(as_completed(calls, timeout=5), 5))
        assert {type(call.exception() or call.result()) for call in early} == {outcome}
        released.set()
        assert [call.result(5) for call in calls if call not in early] == [OLD] * 3


def test_fetch_in_flight_stays_in_a_full_cache(peer: Peer, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many look-ups of unknown clients do not lead to a second fetch of the same URL."""
    monkeypatch.setattr(_documents, "DOCUMENTS_MAX", 3)

    async def flood() -> list[Any]:
        port = AsyncHttpClientKeys(allow_private=True, tls=contexts()[1], clock=clock)
        peer.publish({}, 404)
        for n in range(3):
            await port.find(client(peer, f"/before-{n}"), "old")
        peer.publish({"keys": [OLD]})
        peer.delay_s = 0.2
        first = asyncio.create_task(port.find(client(peer), "old"))
        await asyncio.sleep(0.05)
        others = [asyncio.create_task(port.find(client(peer, f"/{n}"), "old")) for n in range(2)]
        await asyncio.sleep(0.05)
        found = await asyncio.gather(first, port.find(client(peer), "old"), *others)
        await port.aclose()
        return found

    assert asyncio.run(flood()) == [OLD] * 4
    assert peer.paths.count("/alice/jwks.json") == 1


# Hosts of attackers
ATTACKERS: Final = {
    "one domain": [f"slow-{n}.attacker.example" for n in range(200)],
    "thirty domains": [f"slow-{n}.attacker-{m}.example" for m in range(30) for n in range(7)],
    "IP addresses": [f"127.0.{n}.{n}" for n in range(200)],
}


@pytest.mark.parametrize("attacker", [ATTACKERS["one domain"], ATTACKERS["thirty domains"]], ids=["one", "thirty"])
@pytest.mark.parametrize("cls", BOTH)
def test_slow_names_do_not_keep_new_clients_out(
    cls: type, peer: Peer, attacker: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the look-ups of many hostile names hang, the first look-ups of other clients are answered.

    The look-ups hang longer than the fetches that need them.
    """
    ended = threading.Event()

    def resolve(host: str) -> list[str]:
        if host.startswith("slow"):
            ended.wait()
        return ["127.0.0.1"]

    inject_resolver(monkeypatch, resolve)
    hostile = [(client(peer, host=host), "old") for host in attacker]
    try:
        with looking_up(cls, timeout_s=1.0) as keys:
            for host in ("client.example", "bank.example"):
                honest = [(client(peer, f"/{n}", host=host), "old") for n in range(2)]
                outcomes = keys.find_all([*hostile, *honest], catch=ClientKeysUnavailable)
                assert {type(outcome) for outcome in outcomes[:-2]} == {ClientKeysUnavailable}
                assert outcomes[-2:] == [OLD, OLD]
    finally:
        ended.set()


@pytest.mark.parametrize("attacker", ATTACKERS.values(), ids=ATTACKERS)
@pytest.mark.parametrize("cls", BOTH)
def test_silent_servers_do_not_keep_new_clients_out(
    cls: type, peer: Peer, attacker: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While many first fetches from hostile servers hang, those of other clients are answered."""
    silent = socket.create_server(("0.0.0.0", 0), backlog=1000)  # noqa: S104 - for all of 127.0.0.0/8
    silent_port = silent.getsockname()[1]

    def end_silence() -> None:
        for _ in honest:
            peer.asked.acquire(timeout=10)
        silent.close()

    inject_resolver(monkeypatch, lambda host: [host if host.startswith("127.") else "127.0.0.1"])
    hostile = [(ClientId(f"https://{host}:{silent_port}/alice"), "old") for host in attacker]
    honest = [(client(peer, f"/{n}", host="client.example"), "old") for n in range(2)]
    with looking_up(cls, timeout_s=5.0) as keys, ThreadPoolExecutor() as pool:
        pool.submit(end_silence)
        outcomes = keys.find_all([*hostile, *honest], catch=ClientKeysUnavailable)
    assert {type(outcome) for outcome in outcomes[:-2]} == {ClientKeysUnavailable}
    assert outcomes[-2:] == [OLD, OLD]


@pytest.mark.parametrize("cls", BOTH)
def test_many_new_clients_of_one_domain_are_served(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Honest clients share a domain at a wallet provider. A new process meets many of them at the same time."""

    def resolve(_: str) -> list[str]:
        time.sleep(0.1)
        return ["127.0.0.1"]

    inject_resolver(monkeypatch, resolve)
    with https_peer(tls=False) as provider, looking_up(cls, timeout_s=20.0) as keys:
        provider.publish({"keys": [OLD]})
        provider.delay_s = 0.1
        shops = [client(provider, host=f"shop-{n}.provider.example", scheme="http") for n in range(40)]
        assert keys.find_all([(shop, "old") for shop in shops]) == [OLD] * 40


def test_known_clients_with_silent_servers_do_not_keep_new_clients_out(
    peer: Peer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker publishes many key sets, and then lets each refresh hang. The known keys stay in use."""
    inject_resolver(monkeypatch, lambda _: ["127.0.0.1"])

    def hang(_: Any) -> None:
        attacker.release.wait()

    async def attack() -> list[Any]:
        port = AsyncHttpClientKeys(allow_private=True, tls=contexts()[1], clock=clock, timeout_s=20.0)
        hostile = [client(attacker, host=f"{n}.attacker.example", scheme="http") for n in range(300)]
        for each in hostile:
            assert await port.find(each, "old") == OLD
        attacker.answer = hang
        clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
        calls = [port.find(each, key_id) for each, key_id in zip(hostile, ("old", "another") * 150, strict=True)]
        tasks = [asyncio.create_task(call) for call in calls]
        await asyncio.sleep(0)
        assert await asyncio.wait_for(port.find(client(peer), "old"), 10) == OLD
        attacker.release.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        await port.aclose()
        return outcomes

    with https_peer(tls=False) as attacker:
        attacker.publish({"keys": [OLD]})
        outcomes = asyncio.run(attack())
    assert outcomes[::2] == [OLD] * 150
    assert {type(outcome) for outcome in outcomes[1::2]} == {ClientKeysUnavailable}


@pytest.mark.parametrize("cls", BOTH)
def test_fetch_that_does_not_end_is_an_outage(cls: type, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch belongs to a thread or a loop that may have stopped. The other callers wait for a bounded time."""
    monkeypatch.setattr(_documents, "_SLACK_S", 0.1)
    with looking_up(cls, timeout_s=0.2) as keys:
        entry, flight, is_mine = keys.port._fetcher._documents.begin(f"{client(peer)}/jwks.json", lambda _: True)
        assert is_mine
        begin = time.monotonic()
        with pytest.raises(ClientKeysUnavailable, match="is still fetching"):
            keys.find(client(peer), "old")
        assert time.monotonic() - begin < 2
        keys.port._fetcher._documents.end(entry, flight, _documents._INTERRUPTED)


def test_known_keys_do_not_stay_for_ever(keys: Lookups, peer: Peer, clock: Clock) -> None:
    """After a day without a good answer, the client might have withdrawn the key."""
    keys.find(client(peer), "old")
    peer.fail()
    clock.now_s += DOCUMENT_AGE_S_DEFAULT + DOCUMENT_STALE_S_MAX
    assert keys.find(client(peer), "old") == OLD
    clock.now_s += 1
    with pytest.raises(ClientKeysUnavailable):
        keys.find(client(peer), "old")


def test_refused_connection_is_an_outage(keys: Lookups) -> None:
    """The failure names the URL."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ClientKeysUnavailable, match=rf"^https://127\.0\.0\.1:{port}/jwks\.json cannot be used: "):
        keys.find(ClientId(f"https://127.0.0.1:{port}"), "old")


@pytest.mark.parametrize("name", ["a" * 64, f"{'a' * 70}.example", "a..b", "xn--0"])
def test_impossible_host_name_is_an_outage(keys: Lookups, name: str) -> None:
    """A client can name a host that no DNS can hold."""
    with pytest.raises(ClientKeysUnavailable):
        keys.find(ClientId(f"https://{name}/alice"), "old")


def test_cancelled_request_does_not_cancel_the_fetch_of_others(peer: Peer) -> None:
    """The fetch goes on for the other callers, also when the caller that began it has gone."""

    async def three() -> list[Any]:
        port = AsyncHttpClientKeys(allow_private=True, tls=contexts()[1])
        peer.delay_s = 0.2
        calls = [asyncio.create_task(port.find(client(peer), "old")) for _ in range(3)]
        await asyncio.sleep(0.05)
        calls[0].cancel()
        calls[1].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await port.aclose()
        return answers

    first, second, third = asyncio.run(three())
    assert isinstance(first, asyncio.CancelledError)
    assert isinstance(second, asyncio.CancelledError)
    assert third == OLD
    assert len(peer.paths) == 1


# --- where the client connects to ------------------------------------------------------------------

PRIVATE: Final = [
    "127.0.0.1", "127.8.8.8", "0.0.0.1", "10.0.0.7", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
    "192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1", "203.0.113.9", "224.0.0.1", "239.1.1.1", "240.0.0.1",
    "255.255.255.255", "3fff::1",
    "::", "::1", "fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1", "100::1",
    "::ffff:127.0.0.1", "::ffff:9.9.9.9", "::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2002:a00:1::1",
    "2001:0:53aa:64c::1", "4000::1",
]  # fmt: skip


@pytest.mark.parametrize("address", ["9.9.9.9", "1.1.1.1", "198.41.0.4", "2620:fe::9", "2a00:1450:4001::8"])
def test_public_addresses(address: str) -> None:
    """Addresses of ordinary hosts are public."""
    assert is_public(ip_address(address))


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize("address", PRIVATE)
def test_name_of_a_private_address_gets_no_connection(cls: type, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can let its name resolve to an address inside of the network of the service."""
    names = inject_resolver(monkeypatch, lambda _: [address])
    with looking_up(cls, allow_private=False) as keys, pytest.raises(ClientKeysUnavailable, match="may not connect"):
        keys.find(ClientId("https://client.example/alice"), "old")
    assert names == ["client.example"]


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "2130706433", "0x7f.1", "0", "localhost"]
)
def test_private_address_in_the_url_gets_no_connection(cls: type, host: str) -> None:
    """Other spellings of a loopback address are refused too."""
    text = "may not connect|canonical IPv4"  # aiohttp refuses other spellings of IPv4 addresses itself
    with looking_up(cls, allow_private=False) as keys, pytest.raises(ClientKeysUnavailable, match=text):
        keys.find(ClientId(f"https://{host}/alice"), "old")


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize(
    "url",
    [
        "https://client.example:8443/alice",
        "https://client.example:25",
        "https://me@client.example/alice",
        "https://me:pw@client.example/alice",
        "https://client.example/alice?to=https://10.0.0.7",
        "https://client.example/alice#x",
        "https://client.example\\@10.0.0.7/alice",
        "https://client.example/../alice",
        "https://client.example/wallets/..%2Finternal",
        "https://client.example/wallets/..%5cinternal",
        "https://client.example/wallets/%252e%252e%252finternal",
        "https://client.example/wallets/..;/internal",
        "ftp://client.example/alice",
        "http://client.example/alice",
    ],
)
def test_odd_urls_are_not_fetched(cls: type, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wallet address has no port, user, query, fragment or odd path, so a client cannot lead to other services."""
    names = inject_resolver(monkeypatch, lambda _: ["9.9.9.9"])
    with looking_up(cls, allow_private=False) as keys:
        assert keys.find(ClientId(url), "old") is None
    assert names == []


@pytest.mark.parametrize("cls", BOTH)
def test_default_port_may_be_written(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """`:443` is another spelling of the same wallet address."""
    names = inject_resolver(monkeypatch, lambda _: ["10.0.0.7"])
    with looking_up(cls, allow_private=False) as keys, pytest.raises(ClientKeysUnavailable, match="may not connect"):
        keys.find(ClientId("https://client.example:443/alice"), "old")
    assert names == ["client.example"]


@pytest.mark.parametrize("cls", BOTH)
def test_public_address_beside_a_private_one_is_not_replaced(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with several addresses gets a connection only to those that are public."""
    tried: list[Any] = []
    inject_resolver(monkeypatch, lambda _: ["10.0.0.7", "::ffff:10.0.0.7", "9.9.9.9"])

    def refuse(_: socket.socket, address: Any) -> None:
        tried.append(address[0])
        raise ConnectionRefusedError

    async def async_refuse(_loop: Any, sock: socket.socket, address: Any) -> None:
        refuse(sock, address)

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", async_refuse)
    with looking_up(cls, allow_private=False) as keys, pytest.raises(ClientKeysUnavailable):
        keys.find(ClientId("https://client.example/alice"), "old")
    assert set(tried) == {"9.9.9.9"}


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("cls", BOTH)
def test_fetch_leaves_no_connection_open(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker publishes key sets on many hosts, and closes no connection. A refresh works as the first fetch does.

    The rest of the process needs descriptors too.
    """
    inject_resolver(monkeypatch, lambda _: ["127.0.0.1"])
    clock = Clock()
    with https_peer(tls=False) as attacker, looking_up(cls, clock=clock) as keys:
        attacker.publish({"keys": [OLD]})
        hostile = [(client(attacker, host=f"{n}.attacker.example", scheme="http"), "old") for n in range(40)]
        keys.find_all([(ClientId("http://127.0.0.1:1/alice"), "old")], catch=ClientKeysUnavailable)  # opens the loop
        before = descriptors()
        assert keys.find_all(hostile) == [OLD] * 40
        clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
        assert keys.find_all(hostile) == [OLD] * 40
        end = time.monotonic() + 10
        while descriptors() > before and time.monotonic() < end:
            time.sleep(0.01)
        assert descriptors() <= before


@pytest.mark.parametrize("cls", BOTH)
def test_name_with_many_silent_addresses_takes_few_descriptors(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker gives a name many addresses that never answer. The rest of the process needs descriptors too."""
    inject_resolver(monkeypatch, lambda _: ["127.0.0.1"] * LOOK_UP_ADDRESSES_MAX)
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.02):
            most = max(most, descriptors())

    with socket.socket() as silent, socket.socket() as queued, looking_up(cls, timeout_s=1.5) as keys:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        queued.connect(silent.getsockname())  # the queue is full: no further connection is accepted
        keys.find_all([(ClientId("https://client.example:1/alice"), "old")], catch=ClientKeysUnavailable)  # the loop
        before = descriptors()
        watcher = threading.Thread(target=watch)
        watcher.start()
        with pytest.raises(ClientKeysUnavailable, match="did not answer"):
            keys.find(ClientId(f"https://client.example:{silent.getsockname()[1]}/alice"), "old")
        ended.set()
        watcher.join()
    assert before < most <= before + REQUEST_SOCKETS_MAX


def test_late_tls_leaves_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker finishes the TLS handshake in the moment at which the fetch ends, and then never sends a byte."""
    inject_resolver(monkeypatch, lambda _: ["127.0.0.1"])
    server_tls, client_tls = contexts()
    ended = threading.Event()

    def finish_late(listener: socket.socket) -> None:
        with listener.accept()[0] as accepted:
            time.sleep(0.2)
            with server_tls.wrap_socket(accepted, server_side=True):
                ended.wait(60)

    async def fetch(port: int) -> None:
        http = AsyncHttpClient(bytes_max=1000, tls=client_tls)
        request = RequestMessage("GET", f"https://client.example:{port}/alice", ())
        before = descriptors()
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.5)  # the loop sees both at once: TLS and the timeout
        with pytest.raises(HttpFailed, match="did not answer"):
            await http.send(request, timeout_s=0.4)
        async with asyncio.timeout(10):
            while descriptors() > before + 1:  # noqa: ASYNC110 - the server, in this process, keeps its end open
                await asyncio.sleep(0.01)
        await http.aclose()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=finish_late, args=(listener,))
        server.start()
        try:
            asyncio.run(fetch(listener.getsockname()[1]))
        finally:
            ended.set()
            server.join()


def test_addresses_that_refuse_do_not_hide_a_good_one(
    keys: Lookups, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is found behind addresses that refuse a connection, however many they are."""
    inject_resolver(monkeypatch, lambda _: ["127.0.0.2"] * (LOOK_UP_ADDRESSES_MAX - 1) + ["127.0.0.1"])
    assert keys.find(client(peer, host="client.example"), "old") == OLD


def test_connection_goes_to_the_address_that_was_checked(
    keys: Lookups, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is resolved once for one fetch, so a second answer of the DNS cannot lead elsewhere."""
    answers = iter([["127.0.0.1"]])
    names = inject_resolver(monkeypatch, lambda _: next(answers))
    assert keys.find(client(peer, host="client.example"), "old") == OLD
    assert names == ["client.example"]


def test_addresses_are_not_remembered(keys: Lookups, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fetch resolves its name again: clients choose the names, and could fill the memory with their addresses."""
    answers = iter([["127.0.0.2"], ["127.0.0.1"]])
    inject_resolver(monkeypatch, lambda _: next(answers))
    with pytest.raises(ClientKeysUnavailable, match="cannot be reached"):
        keys.find(client(peer, "/alice", host="client.example"), "old")
    assert keys.find(client(peer, "/bob", host="client.example"), "old") == OLD


def test_certificate_must_be_for_the_host_of_the_wallet_address(
    keys: Lookups, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address is pinned, but TLS verifies the name."""
    inject_resolver(monkeypatch, lambda _: ["127.0.0.1"])
    with pytest.raises(ClientKeysUnavailable, match=r"(?i)certificate"):
        keys.find(client(peer, host="other.example"), "old")
    assert peer.paths == []


@pytest.mark.parametrize("cls", BOTH)
def test_unknown_authority_is_refused(cls: type, peer: Peer) -> None:
    """Without the test CA, the certificate of the server is not trusted."""
    with looking_up(cls, tls=None) as keys, pytest.raises(ClientKeysUnavailable, match=r"(?i)certificate"):
        keys.find(client(peer), "old")


@pytest.mark.parametrize("cls", BOTH)
def test_http_is_for_development(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker on the network could replace a key that comes over http. `allow_private` allows http."""
    with https_peer(tls=False) as plain, looking_up(cls) as development, looking_up(cls, allow_private=False) as keys:
        plain.publish({"keys": [OLD]})
        assert development.find(client(plain, scheme="http"), "old") == OLD
        names = inject_resolver(monkeypatch, lambda _: ["127.0.0.1"])
        assert keys.find(client(plain, scheme="http"), "old") is None
        assert (names, len(plain.paths)) == ([], 1)


# --- the whole way of a request ----------------------------------------------------------------------


@pytest.mark.parametrize("cls", BOTH)
def test_client_rotates_its_keys_and_its_server_fails(cls: type, peer: Peer, clock: Clock) -> None:
    """A token names its client as Rafiki does. The old key and the new one verify, and another client's never does."""
    service, alice = Service(), client(peer)
    answer = {"active": True, "access": [{"type": "incoming-payment", "actions": ["create"]}], "client": alice}
    info = read_introspection(json.dumps(answer).encode(), dialect="rafiki")
    assert info is not None
    old, new, stolen = (
        service.client(key=key) for key in (ed25519_key("old"), ed25519_key("new"), PrivateKey.generate_ed25519("old"))
    )
    tokens = Tokens()
    for sender in (old, new, stolen):
        tokens.add(sender.token, info)
    with looking_up(cls, clock=clock, timeout_s=0.5) as keys:
        service.replace(introspector=tokens, client_keys=keys)
        assert old.create().status == 201
        assert refusal(new.create()) == (401, "key_unknown")  # not yet published
        peer.publish({"keys": [OLD, NEW]})
        clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
        assert [old.create().status, new.create().status] == [201, 201]
        assert refusal(stolen.create()) == (401, "signature_invalid")
        peer.fail()
        clock.now_s += DOCUMENT_AGE_S_DEFAULT + 1
        assert [old.create().status, new.create().status] == [201, 201]
        clock.now_s += DOCUMENT_STALE_S_MAX
        assert refusal(old.create()) == (503, "client_keys_unavailable")
        peer.publish({"keys": [NEW]})
        clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
        assert new.create().status == 201
        assert refusal(old.create()) == (401, "key_unknown")


def test_clients_that_are_keys_see_only_their_own_payments() -> None:
    """Rafiki gives no wallet address for such a client. Its key identifies it, in all its tokens and under any kid."""
    service, tokens = Service(), Tokens()
    keys = [ed25519_key("one"), ed25519_key("other")]
    clients = [service.client(key=key) for key in keys * 2]
    for sender in clients:
        jwk = {**sender.key.public_jwk(), "use": "sig"}
        access = [{"type": "incoming-payment", "actions": ["create", "read"]}]
        answer = {"active": True, "grant": "7b0d", "access": access, "client": {"jwk": jwk}}
        info = read_introspection(json.dumps(answer).encode(), dialect="rafiki")
        assert info is not None
        tokens.add(sender.token, info)
    service.replace(introspector=tokens)
    id = clients[0].creates()
    assert [sender.get(id).status for sender in clients] == [200, 403, 200, 403]


@pytest.mark.parametrize("cls", BOTH)
@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"timeout_s": "3"}, "timeout_s must be a number from 0.01 to 30"),
        ({"timeout_s": 0}, "timeout_s must be a number from 0.01 to 30"),
        ({"fetches": 0}, "fetches must be a number from 1 to 128"),
        ({"timeout_s": float("nan")}, "timeout_s must be a number from 0.01 to 30"),
        ({"max_age_s": 9}, "max_age_s must be a number from 10 to 86400"),
        ({"max_age_s": float("inf")}, "max_age_s must be a number from 10 to 86400"),
        ({"allow_private": "no"}, "allow_private must be True or False, not of the type str"),
        ({"tls": True}, "tls must be an ssl.SSLContext, not of the type bool"),
    ],
)
def test_wrong_settings_are_refused(cls: type, settings: dict[str, Any], text: str) -> None:
    """A wrong setting is named when the port is made, and not at the first request."""
    with pytest.raises(ConfigurationError, match=text) as raised:
        cls(**settings)
    assert raised.value.details == {"setting": next(iter(settings))}


@pytest.mark.parametrize("cls", [HttpClientKeys, AsyncHttpClientKeys])
def test_missing_extra_is_named(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which extra to install."""
    monkeypatch.delitem(sys.modules, "incoming_payments.outbound._aiohttp", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^aiohttp is not installed: run pip install 'incoming-payments\[outbound\]'"
    ):
        cls()


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (threading.Thread, "start", RuntimeError("can't start new thread")),
        (asyncio, "SelectorEventLoop", OSError(errno.EMFILE, "Too many open files")),
    ],
)
def test_system_without_threads_or_descriptors_is_an_outage(
    peer: Peer, clock: Clock, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception
) -> None:
    """A port that cannot start its thread is no defect. A later call for the same key set tries again."""

    def fail(*_: Any) -> None:
        raise error

    with looking_up(HttpClientKeys, clock=clock) as keys:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fail)
            with pytest.raises(ClientKeysUnavailable, match=str(error.args[-1])):
                keys.port.find(client(peer), "old")
        clock.now_s += DOCUMENT_COOL_DOWN_S_MIN
        assert keys.find(client(peer), "old") == OLD


def test_close_ends_the_fetches_of_other_threads(peer: Peer) -> None:
    """They fail at once."""
    peer.hang()
    with looking_up(HttpClientKeys, timeout_s=20) as keys, ThreadPoolExecutor() as pool:
        call = pool.submit(keys.port.find, client(peer), "old")
        while not keys.port._fetcher._documents._first:
            time.sleep(0.01)
        time.sleep(0.1)
        keys.port.close()
        with pytest.raises(ClientKeysUnavailable, match="the fetch was interrupted"):
            call.result(5)
