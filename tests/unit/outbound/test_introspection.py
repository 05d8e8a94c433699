"""`clients.introspection`: the sync and the async introspector, against servers that fail in every way."""

import asyncio
import contextlib
import gc
import json
import re
import socket
import ssl
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from incoming_payments.errors import AuthorizationServerUnavailable, ConfigurationError, PortUnavailable, TokenRefused
from incoming_payments.gnap import AccessToken, AccessTokenInfo, Action, TokenQuery
from incoming_payments.httpsig import Policy, RequestMessage, load_jwk, verify
from incoming_payments.limits import (
    BREAKER_FAILURES_MAX,
    BREAKER_OPEN_S_MAX,
    BREAKER_OPEN_S_MIN,
    INTROSPECTION_CACHED_BYTES_MAX,
    LOOK_UPS_MAX,
)
from incoming_payments.outbound import _aiohttp, _http, introspection
from incoming_payments.outbound._aiohttp import AsyncHttpClient
from incoming_payments.outbound._breaker import Breaker, SingleFlight
from incoming_payments.outbound._http import HttpFailed, LookUps, MayConnect, failed
from incoming_payments.outbound.introspection import AsyncHttpIntrospector, HttpIntrospector
from kits.document_kit import inject_resolver
from kits.http_clients import SharedClient, send
from kits.https_server import contexts
from kits.introspectors import ISSUER, QUERY, RAFIKI, RFC, Async, Crowd, Sync
from kits.odd_answers import OF_RAFIKI, OVER_HTTP, Answered, Serve, an_answer, authorization_server, octets
from kits.scripted_server import Exchange, scripted_server
from kits.service_kit import ALICE, Service, ed25519_key

Script = Callable[[Exchange, int], None]


Kind = type[Sync] | type[Async]
Open = Callable[..., Sync | Async]


@pytest.fixture(params=[Sync, Async])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return the sync and the async clients."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def connect(kind: Kind) -> Iterator[Open]:
    """Return a function that makes introspectors, which the fixture closes."""
    with contextlib.ExitStack() as stack:

        def connect(url: str, **settings: Any) -> Sync | Async:
            made = kind(url, **settings)
            stack.callback(made.close)
            return made

        yield connect


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait shortly before a retry."""
    monkeypatch.setattr(introspection, "CLIENT_RETRY_S_MAX", 0.01)


def active(exchange: Exchange, _: int = 0) -> None:
    """Answer that the token is active."""
    exchange.answer(an_answer())


def closes(*_: object) -> None:
    """Close the connection without an answer."""
    raise ConnectionResetError


def says(content: bytes) -> Script:
    """Return a script that sends `content` and closes the connection."""

    def answer(exchange: Exchange, _: int) -> None:
        exchange.send(content)
        closes()

    return answer


# --- requests --------------------------------------------------------------------------------------


def test_request_of_rfc_9767(connect: Open) -> None:
    """The request names the token, the proof and the resource server, and no access: the answer has all of it."""
    with scripted_server(active) as server:
        info = connect(server.url).introspect()
    assert info is not None
    assert info.rights[0].identifier == ALICE.url
    [request] = server.requests
    assert request.head.startswith("POST /introspect HTTP/1.1\r\n")
    assert "content-type: application/json" in request.head.lower()
    assert "signature" not in request.head.lower()
    assert request.json() == {"access_token": "T0KEN", "proof": "httpsig", "resource_server": "bank"}


@pytest.mark.parametrize("name", [None, "bank"])
def test_request_is_signed_by_the_key_of_the_resource_server(connect: Open, name: str | None) -> None:
    """RFC 9635 §7.3.1: the signature covers the request and its body, and has the tag `gnap` and a new nonce."""
    key = ed25519_key("bank-key")
    with scripted_server(active) as server:
        introspector = connect(server.url, key=key, resource_server=name)
        introspector.introspect()
        introspector.introspect()
    nonces = set()
    for request in server.requests:
        shown = {"key": {"proof": "httpsig", "jwk": key.public_jwk()}}
        assert request.json()["resource_server"] == (name or shown)
        fields = tuple(tuple(line.split(": ", 1)) for line in request.head.split("\r\n")[1:])
        message = RequestMessage("POST", server.url, fields, request.body)  # type: ignore[arg-type] # they are pairs
        policy = Policy(required=("@method", "@target-uri", "content-type"), nonce_required=True, tag="gnap")
        proof = verify(message, {key.kid: load_jwk(key.public_jwk())}, policy=policy, now=datetime.now(UTC))
        nonces.add(proof.signature_input.nonce)
    assert len(nonces) == 2


@pytest.mark.parametrize("url", [ALICE.url, None])
def test_request_of_rafiki(connect: Open, url: Any) -> None:
    """Rafiki answers only for the access in the request, so the request has the action and the wallet address."""
    with scripted_server(active) as server:
        query = TokenQuery(AccessToken("T0KEN"), "read", url)
        connect(server.url, **RAFIKI).introspect(query)
    access = {"type": "incoming-payment", "actions": ["read"], **({"identifier": url} if url else {})}
    assert server.requests[0].json() == {"access_token": "T0KEN", "access": [access]}


def test_connection_is_kept(connect: Open) -> None:
    """Requests use a connection again, and repeat each query without a cache. An active token has a reserved one."""
    with scripted_server(active) as server:
        introspector = connect(server.url)
        for _ in range(4):
            introspector.introspect()
    assert (len(server.requests), server.connections) == (4, 2)


# --- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("serve", "answered"), OVER_HTTP.values(), ids=OVER_HTTP)
def test_every_answer_has_its_response(connect: Open, serve: Serve, answered: Answered) -> None:
    """The service answers 401 or 503 for each odd answer, never 500, and follows no redirect."""
    service = Service()
    with authorization_server(serve) as server:
        where = server()
        introspector = connect(f"http://{where.host}:{where.port}/", timeout_s=min(where.timeout or 5, 5))
        service.replace(introspector=introspector)
        assert response_to_create(service) == answered


def test_interim_response_does_not_give_a_token_the_answer_of_another(connect: Open) -> None:
    """Some servers send an interim response while they work. The answer behind it is for its own token only."""

    def script(exchange: Exchange, _: int) -> None:
        exchange.send(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        exchange.ended.wait(0.05)
        exchange.answer({"active": False} if exchange.json()["access_token"] == "REVOKED" else an_answer())

    with scripted_server(script) as server:
        introspector = connect(server.url)
        for _ in range(2):
            assert introspector.introspect() is not None
            assert introspector.introspect(TokenQuery(AccessToken("REVOKED"), "create")) is None


@pytest.mark.parametrize(("content", "answered"), OF_RAFIKI.values(), ids=OF_RAFIKI)
def test_every_answer_of_rafiki_has_its_response(connect: Open, content: object, answered: Answered) -> None:
    """The service answers 201 or 401 for each answer of Rafiki."""
    service = Service()
    with scripted_server(lambda exchange, _: exchange.answer(content)) as server:
        service.replace(introspector=connect(server.url, **RAFIKI))
        assert response_to_create(service) == answered


def response_to_create(service: Service) -> Answered:
    """Return the status and the error code of the response to a create request."""
    response = service.client().create()
    if response.status == 503:
        assert ("Retry-After", "1") in response.headers
    return response.status, json.loads(response.body).get("error", {}).get("code")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"error": "invalid_request"}, "answered 400 invalid_request"),
        (
            {"error": {"code": "invalid_resource_server", "description": "T0KEN"}},
            "answered 400 invalid_resource_server",
        ),
        ({"error": {"code": "T0KEN"}}, "answered 400"),
        ({"error": {}}, "answered 400"),
        ({"error": 7}, "answered 400"),
        (["T0KEN"], "answered 400"),
        (b"T0KEN", "answered 400"),
    ],
)
def test_failure_shows_no_token(connect: Open, content: object, shown: str) -> None:
    """The failure names the endpoint, the status and a known error code. It does not repeat the answer."""
    with (
        scripted_server(lambda exchange, _: exchange.answer(content, 400)) as server,
        pytest.raises(AuthorizationServerUnavailable) as raised,
    ):
        connect(server.url).introspect()
    assert str(raised.value) == f"the introspection endpoint {server.url} {shown}"


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_answer_to_a_wrong_url_or_identity_names_the_settings(connect: Open, status: int) -> None:
    """The log of the host says which settings to check."""
    with (
        scripted_server(lambda exchange, _: exchange.answer({}, status)) as server,
        pytest.raises(AuthorizationServerUnavailable, match=f"answered {status}: check url, key and resource_server"),
    ):
        connect(server.url).introspect()


# --- time, size, connections -----------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"


def silent(exchange: Exchange, _: int) -> None:
    """Answer nothing until the test ends."""
    exchange.ended.wait()


@pytest.mark.parametrize(
    "script",
    [
        silent,
        lambda exchange, _: exchange.drip(HEAD),
        lambda exchange, _: (exchange.send(HEAD), exchange.drip(b"x" * 900)),
    ],
    ids=["silence", "slow head", "slow body"],
)
def test_time_is_bounded(connect: Open, script: Script) -> None:
    """The time of the whole exchange is bounded, also when each byte arrives soon. The request is not repeated."""
    with scripted_server(script) as server:
        introspector = connect(server.url, timeout_s=0.3)
        start = time.monotonic()
        with pytest.raises(AuthorizationServerUnavailable, match=r"did not answer within 0\.\d+ s"):
            introspector.introspect()
        assert 0.2 < time.monotonic() - start < 1.5
    assert len(server.requests) == 1


def test_time_includes_the_wait_for_a_connection(kind: Kind) -> None:
    """A request that finds all connections in use fails in time too."""
    with scripted_server(silent) as server:
        introspector = kind(server.url, timeout_s=0.3, connections=1)
        other = TokenQuery(AccessToken("0THER"), "create")
        start = time.monotonic()
        outcomes = introspector.together(QUERY, other)
        assert time.monotonic() - start < 1.5
        introspector.close()
    assert [type(outcome) for outcome in outcomes] == [AuthorizationServerUnavailable] * 2


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (lambda exchange, _: exchange.answer(b"x" * 1001), "larger than 1000 bytes"),
        (says(HEAD + b"x"), "gave no valid TLS or HTTP answer"),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n"), "gave no valid TLS or HTTP answer"),
    ],
    ids=["too large", "cut off", "no HTTP"],
)
def test_answer_that_cannot_be_used(script: Script, text: str) -> None:
    """An answer that is too large, cut off or not HTTP is a failure, and the connection is given back."""
    with scripted_server(script) as server:
        for _ in range(2):
            with pytest.raises(HttpFailed, match=text) as raised:
                send(RequestMessage("POST", server.url, (), b"{}"), connections=1)
            assert not raised.value.is_connection
    assert len(server.requests) == 2


def test_redirects_cookies_and_codings_are_left_alone() -> None:
    """The client returns the answer unchanged. It sends no cookie back."""
    fields = "Location: http://127.0.0.1:1/", "Set-Cookie: a=b", "Content-Encoding: gzip"
    with scripted_server(lambda exchange, _: exchange.answer(b"not gzip", 307, *fields)) as server:
        answer = send(RequestMessage("GET", f"{server.url}?q=%2F", ()), times=2)
    assert (answer.status, answer.body, answer.headers["location"]) == (307, b"not gzip", "http://127.0.0.1:1/")
    for request in server.requests:
        assert request.head.startswith("GET /introspect?q=%2F HTTP/1.1\r\n")
        assert re.search(r"(?im)^accept-encoding: identity\r?$", request.head)
        assert "cookie" not in request.head.lower()


def test_addresses_can_be_refused() -> None:
    """A refused address gets no connection, whatever name leads to it."""
    asked = []

    def refuse(address: Any) -> bool:
        asked.append(address)
        return False

    may_connect: MayConnect = refuse
    with scripted_server(active) as server:
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            with pytest.raises(HttpFailed, match="may not connect to the address") as raised:
                send(RequestMessage("GET", url, ()), may_connect=may_connect)
            assert raised.value.is_connection
    assert server.connections == 0
    assert ip_address("127.0.0.1") in asked


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}/", "https://no-such-host.invalid/"])
def test_server_that_cannot_be_reached_is_a_failure(url: str) -> None:
    """A refused connection and a name that is not in the DNS are failures before any byte of an answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(HttpFailed, match="cannot be reached") as raised:
        send(RequestMessage("GET", url.format(port=port), ()))
    assert raised.value.is_connection


def test_host_without_addresses_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resolver may return an empty list."""
    inject_resolver(monkeypatch, lambda _: [])
    with pytest.raises(HttpFailed, match="has no address"):
        send(RequestMessage("GET", "http://bank.example/", ()))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_request_is_sent_once(method: str) -> None:
    """Neither library repeats a request, on a new connection or on a kept one that the server closes."""

    def answer(exchange: Exchange, number: int) -> None:
        exchange.answer(b"") if number == 0 else closes()

    with scripted_server(answer) as server:
        for times in (2, 1):
            with pytest.raises(HttpFailed) as failed:
                send(RequestMessage(method, server.url, (), b"{}" if method == "POST" else b""), times=times)
            assert failed.value.is_connection
            assert ": ClientConnectionError: " in str(failed.value)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    "target", ["/a%2fb%c3%a9", "/%61%zz", "/a|b^c", "/a//b", "//evil.example/a", "/a?b=%2f&c=|", "/~a'(b)"]
)
def test_target_is_sent_as_it_is(target: str) -> None:
    """The spelling of a URL names a wallet address, so no library may change it."""
    with scripted_server(active) as server:
        url = server.url.removesuffix("/introspect")
        assert send(RequestMessage("GET", f"{url}{target}", ()), bytes_max=10_000).status == 200
    assert [request.head.partition("\r\n")[0] for request in server.requests] == [f"GET {target} HTTP/1.1"]
    assert ":path" not in server.requests[0].head


def test_slow_resolver_takes_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with a slow resolver do not use up the threads of the process. One name takes one thread."""
    ended = threading.Event()
    names: list[str] = []

    def look_up(host: str, *_: Any, **_options: Any) -> list[Any]:
        names.append(host)
        ended.wait()
        raise OSError(2, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    client = SharedClient(bytes_max=1000)
    urls = [f"http://{n}.example/" for n in range(LOOK_UPS_MAX)]
    begin = time.monotonic()
    try:
        failures = client.send_all([*urls, *urls], timeout_s=0.3)
        assert all("did not answer within" in str(failure) for failure in failures)
        assert sorted(names) == sorted(f"{n}.example" for n in range(LOOK_UPS_MAX))
        (failure,) = client.send_all(["http://another.example/"], timeout_s=5)
        assert f"{LOOK_UPS_MAX} other names are being looked up" in str(failure)
        assert time.monotonic() - begin < 4
        ended.set()
        while any(thread.name.startswith("look up") for thread in threading.enumerate()):
            time.sleep(0.01)
        (failure,) = client.send_all(["http://another.example/"], timeout_s=5)
        assert "no such name" in str(failure)
    finally:
        ended.set()
        client.close()


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A resolver that never answers for names that begin with `slow`."""
    ended = threading.Event()

    def look_up(host: str, *_: Any, **_options: Any) -> list[Any]:
        if host.startswith("slow"):
            ended.wait()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    ended.set()


@pytest.mark.usefixtures("stuck")
def test_look_ups_of_hostile_names_are_bounded() -> None:
    """The owner of a domain makes as many names as it likes. Each of several domains takes a small share."""
    look_ups = LookUps()
    first = look_ups.start("slow.attacker.example", 1)
    assert look_ups.start("slow.attacker.example", 1) is first
    for number in range(LOOK_UPS_MAX):
        with contextlib.suppress(OSError):
            look_ups.start(f"slow{number}.a.Attacker.example", 1)
    for name in ("slow.attacker.example.", "attacker.example", "c.attacker.EXAMPLE"):
        with pytest.raises(OSError, match=r"other names of attacker\.example are being looked up"):
            look_ups.start(name, 1)
    assert look_ups.start("honest.example", 1).result(10) == []
    for number in range(LOOK_UPS_MAX):
        with contextlib.suppress(OSError):
            look_ups.start(f"slow.{number}.example", 1)
    with pytest.raises(OSError, match="other names are being looked up"):
        look_ups.start("honest.example", 1)


def test_missing_thread_for_a_look_up_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without more threads is an outage, and no defect. The next request tries again."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    look_ups = LookUps()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        for _ in range(2):
            with pytest.raises(OSError, match="can't start new thread"):
                look_ups.start("localhost", 1)
    assert look_ups.start("localhost", 1).result(10)


def test_name_with_many_addresses_does_not_exceed_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a name can give it thousands of addresses that do not answer."""
    with socket.socket() as full, contextlib.ExitStack() as waiting:
        full.bind(("0.0.0.0", 0))  # noqa: S104 - for all of 127.0.0.0/8
        full.listen(0)
        port = full.getsockname()[1]
        for _ in range(3):  # the queue of the listener is full, so it answers no other connection
            connection = waiting.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
        addresses = [f"127.0.{n // 250}.{n % 250 + 1}" for n in range(4000)]
        inject_resolver(monkeypatch, lambda _: addresses)
        begin = time.monotonic()
        with pytest.raises(HttpFailed, match="did not answer"):
            send(RequestMessage("GET", f"http://many.example:{port}/", ()), timeout_s=0.3)
        assert time.monotonic() - begin < 2


@pytest.mark.parametrize("text", [b"HTTP/1.1 \x1b[2J\r\n2026 CRITICAL forged\n\r\n", b"x" * 5000 + b"\r\n\r\n"])
def test_text_of_a_server_stays_in_its_line_of_the_log(text: bytes) -> None:
    """A hostile server cannot write a line of its own into the log, control a terminal, or fill the log."""
    with scripted_server(says(text)) as server, pytest.raises(HttpFailed) as failure:
        send(RequestMessage("GET", server.url, ()))
    assert str(failure.value).isprintable()
    assert len(str(failure.value)) < 1000


def test_line_break_in_an_error_of_a_library_stays_out_of_the_log() -> None:
    """The libraries repeat the text of a server, in part as it is."""
    assert str(failed("https://a.example", OSError("1,\x852\n\x1b[2J"), is_connection=False)).isprintable()


def test_tls_is_verified() -> None:
    """A server without TLS at an https URL is a failure that is not repeated."""
    with scripted_server(says(b"HTTP/1.1 400 No TLS here\r\n\r\n")) as server:
        url = server.url.replace("http:", "https:")
        for tls in (None, ssl.create_default_context()):
            with pytest.raises(HttpFailed, match="SSL") as raised:
                send(RequestMessage("GET", url, ()), tls=tls)
            assert not raised.value.is_connection


# --- retries, one request in flight, circuit breaker -----------------------------------------------


@pytest.mark.parametrize(("failures", "succeeds"), [(1, True), (2, True), (3, False)])
def test_failed_connection_is_tried_again(connect: Open, failures: int, succeeds: bool) -> None:
    """A connection that closes without an answer is tried again twice."""
    with scripted_server(lambda exchange, n: closes() if n < failures else active(exchange)) as server:
        introspector = connect(server.url)
        if succeeds:
            assert introspector.introspect() is not None
        else:
            with pytest.raises(AuthorizationServerUnavailable, match="cannot be reached"):
                introspector.introspect()
    assert len(server.requests) == min(failures + 1, 3)


def test_no_retry_begins_after_the_deadline(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that ends after the deadline is not begun."""
    monkeypatch.setattr("incoming_payments.outbound.introspection.random.uniform", lambda _low, _high: 9.0)
    with scripted_server(closes) as server, pytest.raises(AuthorizationServerUnavailable):
        connect(server.url).introspect()
    assert len(server.requests) == 1


def test_one_request_is_in_flight_for_one_token(connect: Open) -> None:
    """Queries for one token at the same time share a request, and other tokens have their own."""

    def slow(exchange: Exchange, _: int) -> None:
        exchange.ended.wait(0.1)
        active(exchange)

    with scripted_server(slow) as server:
        introspector = connect(server.url)
        other = TokenQuery(AccessToken("0THER"), "create")
        answers = introspector.together(QUERY, QUERY, other, QUERY)
        assert len(server.requests) == 2
        assert len(set(map(repr, answers))) == 1
        assert isinstance(answers[0], AccessTokenInfo)
        introspector.introspect()
        assert len(server.requests) == 3


def test_rafiki_gets_a_request_for_each_access(connect: Open) -> None:
    """An answer of Rafiki for one wallet address or action is not used for another."""
    with scripted_server(active) as server:
        introspector = connect(server.url, **RAFIKI, cache_s=60)
        for query in (QUERY, QUERY, TokenQuery(QUERY.token, "read", ALICE.url), TokenQuery(QUERY.token, "create")):
            introspector.introspect(query)
    assert len(server.requests) == 3


def test_failure_is_shared_too(connect: Open) -> None:
    """Queries that wait for a request that fails fail with it."""

    def fails(exchange: Exchange, _: int) -> None:
        exchange.ended.wait(0.1)
        exchange.answer(b"", 500)

    with scripted_server(fails) as server:
        outcomes = connect(server.url).together(QUERY, QUERY)
        assert len(server.requests) == 1
    assert [getattr(outcome, "code", None) for outcome in outcomes] == ["authorization_server_unavailable"] * 2


def test_cancelled_query_does_not_fail_the_others() -> None:
    """When the query with the request is cancelled, one of the waiting queries sends its own, and the rest share it."""

    are_cancelled = threading.Event()

    def slow(exchange: Exchange, _: int) -> None:
        are_cancelled.wait(10)
        active(exchange)

    async def main(url: str) -> list[object]:
        introspector = AsyncHttpIntrospector(url, allow_http=True, **RFC)  # type: ignore[arg-type] # a mapping of settings
        calls = [asyncio.create_task(introspector.introspect(QUERY)) for _ in range(5)]
        for count, cancelled in ((1, calls[0]), (2, calls[3])):  # the one with the request, and one that waits
            while len(server.requests) < count:  # noqa: ASYNC110 - another thread counts them
                await asyncio.sleep(0.01)
            cancelled.cancel()
        await asyncio.sleep(0)
        are_cancelled.set()
        outcomes: list[object] = [*await asyncio.gather(*calls, return_exceptions=True)]
        await introspector.aclose()
        return outcomes

    with scripted_server(slow) as server:
        outcomes = asyncio.run(main(server.url))
        assert len(server.requests) == 2
    stopped = asyncio.CancelledError
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds == [stopped, AccessTokenInfo, AccessTokenInfo, stopped, AccessTokenInfo]


def test_query_that_sends_a_second_request_keeps_its_deadline() -> None:
    """A query waits no longer than its time, also when the query before it was cancelled."""

    async def main(url: str) -> float:
        introspector = AsyncHttpIntrospector(url, allow_http=True, timeout_s=0.5, **RFC)  # type: ignore[arg-type] # see above
        begin = time.monotonic()
        calls = [asyncio.create_task(introspector.introspect(QUERY)) for _ in range(2)]
        await asyncio.sleep(0.4)
        calls[0].cancel()
        with pytest.raises(AuthorizationServerUnavailable):
            await calls[1]
        await introspector.aclose()
        return time.monotonic() - begin

    with scripted_server(silent) as server:
        assert asyncio.run(main(server.url)) < 0.85
        assert len(server.requests) == 2


def test_failure_without_a_waiting_query_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """Asyncio does not log the failure of a shared request as unretrieved."""

    async def fail() -> int:
        raise PortUnavailable("the other system is down")

    async def main() -> None:
        with pytest.raises(PortUnavailable):
            await SingleFlight[int]().run("key", fail)
        gc.collect()

    asyncio.run(main())
    assert not caplog.records


def test_breaker_opens_and_closes() -> None:
    """After five failures in a row a probe decides. The breaker probes after each pause, and closes at an answer."""
    breaker = Breaker()
    now = 100.0
    for _ in range(BREAKER_FAILURES_MAX - 1):
        breaker.failed(now)
    assert not breaker.takes_probe(now)
    breaker.failed(now)
    assert breaker.takes_probe(now)
    assert not breaker.takes_probe(now)
    assert breaker.wait_s(now) == 0  # the others are not stopped before the probe has failed
    breaker.probe_failed(now, now)
    pauses = []
    for _ in range(8):
        pause = breaker.wait_s(now)
        pauses.append(pause)
        assert not breaker.takes_probe(now)
        now += pause
        assert breaker.takes_probe(now)  # one caller tries the server
        assert not breaker.takes_probe(now)
        assert breaker.wait_s(now) > 0  # the others still wait
        breaker.probe_failed(now, now)
    assert pauses[:3] == [BREAKER_OPEN_S_MIN, 2 * BREAKER_OPEN_S_MIN, 4 * BREAKER_OPEN_S_MIN]
    assert max(pauses) == pauses[-1] == BREAKER_OPEN_S_MAX
    breaker.succeeded(now)
    assert breaker.wait_s(now) == 0
    breaker.failed(now)
    assert not breaker.takes_probe(now)
    assert breaker.wait_s(now) == 0


def test_requests_that_wait_in_vain_do_not_open_the_breaker() -> None:
    """A stranger sends more requests than the connections can carry. The server answers some of them meanwhile."""
    breaker = Breaker()
    breaker.succeeded(100.5)
    for _ in range(BREAKER_FAILURES_MAX):
        breaker.failed(100.0)
    assert not breaker.takes_probe(101.0)
    for _ in range(BREAKER_FAILURES_MAX):
        breaker.failed(101.0)
    assert breaker.takes_probe(102.0)
    breaker.probe_failed(102.5, 100.0)  # it waited in vain too
    assert breaker.wait_s(102.5) == 0


async def cancelled_soon(introspector: AsyncHttpIntrospector, name: str) -> None:
    """Ask about the token `name`, and cancel the query after 50 ms."""
    query = asyncio.create_task(introspector.introspect(TokenQuery(AccessToken(name), Action.READ)))
    await asyncio.sleep(0.05)
    query.cancel()
    with pytest.raises(asyncio.CancelledError):
        await query


def test_cancelled_queries_open_the_breaker() -> None:
    """A host with a shorter limit than the introspector is not kept waiting by a server that does not answer."""

    async def main(url: str) -> None:
        introspector = AsyncHttpIntrospector(url, allow_http=True, timeout_s=0.2, **RFC)  # type: ignore[arg-type] # see above
        for number in range(BREAKER_FAILURES_MAX + 1):  # the last one probes
            await cancelled_soon(introspector, f"token-{number}")
        await asyncio.sleep(0.3)
        with pytest.raises(AuthorizationServerUnavailable, match="this service sends it no request"):
            await introspector.introspect(QUERY)
        await introspector.aclose()

    with scripted_server(silent) as server:
        asyncio.run(main(server.url))
        assert len(server.requests) == BREAKER_FAILURES_MAX + 1


def test_probe_goes_on_when_its_query_is_cancelled() -> None:
    """Queries that are cancelled do not keep the service from a server that has recovered."""

    def recovered(exchange: Exchange, _: int) -> None:
        exchange.ended.wait(0.1)
        active(exchange)

    async def main(url: str) -> None:
        introspector = AsyncHttpIntrospector(url, allow_http=True, **RFC)  # type: ignore[arg-type] # see above
        begin_s = time.monotonic()
        for _ in range(BREAKER_FAILURES_MAX):
            introspector._breaker.failed(begin_s)
        introspector._breaker.probe_failed(begin_s - BREAKER_OPEN_S_MIN, begin_s)
        await cancelled_soon(introspector, "token")  # it probes
        await asyncio.sleep(0.2)
        assert await introspector.introspect(QUERY)
        await introspector.aclose()

    with scripted_server(recovered) as server:
        asyncio.run(main(server.url))


@pytest.mark.parametrize("fails", [closes, lambda exchange, _: exchange.answer(b"", 503)], ids=["closes", "503"])
def test_server_that_fails_gets_a_rest(connect: Open, fails: Script) -> None:
    """After five failures and a failed probe, the server gets no request for some time. Then the service resumes."""
    up = threading.Event()

    def answer(exchange: Exchange, number: int) -> None:
        active(exchange) if up.is_set() else fails(exchange, number)

    with scripted_server(answer) as server:
        introspector = connect(server.url)
        for _ in range(BREAKER_FAILURES_MAX):
            with pytest.raises(AuthorizationServerUnavailable, match=r"answered 503$|cannot be reached"):
                introspector.introspect()
        with pytest.raises(AuthorizationServerUnavailable, match="failed repeatedly, and a probe failed too"):
            introspector.introspect()
        requests = len(server.requests)
        assert server.requests[-1].json()["access_token"] != QUERY.token.value
        for _ in range(5):
            with pytest.raises(AuthorizationServerUnavailable, match="this service sends it no request"):
                introspector.introspect()
        assert len(server.requests) == requests
        up.set()
        time.sleep(BREAKER_OPEN_S_MIN)
        assert introspector.introspect() is not None
        assert introspector.introspect() is not None


def hangs(exchange: Exchange, _: int) -> None:
    """Answer nothing for longer than the client waits."""
    exchange.ended.wait(0.5)


HARMS: dict[str, Script] = {
    "closes": closes,
    "503": lambda exchange, _: exchange.answer(b"", 503),
    "hangs": hangs,
}


@pytest.mark.parametrize("harms", HARMS.values(), ids=HARMS)
def test_token_that_harms_the_server_does_not_open_the_breaker(connect: Open, harms: Script) -> None:
    """A stranger sends only tokens that the server, or a filter in front of it, does not answer. Others are served."""

    def answer(exchange: Exchange, number: int) -> None:
        token = exchange.json()["access_token"]
        if token.startswith("POISON"):
            harms(exchange, number)
        elif token == QUERY.token.value:
            active(exchange)
        else:
            exchange.answer({"active": False})

    with scripted_server(answer) as server:
        introspector = connect(server.url, timeout_s=0.3)
        poison = [TokenQuery(AccessToken(f"POISON-{number}"), "create") for number in range(BREAKER_FAILURES_MAX)]
        for _ in range(3):
            for failure in introspector.together(*poison):
                assert isinstance(failure, AuthorizationServerUnavailable)
                assert "this service sends it no request" not in str(failure)
        assert introspector.introspect() is not None


@pytest.mark.parametrize("harms", HARMS.values(), ids=HARMS)
def test_unknown_tokens_without_an_answer_do_not_stop_active_ones(connect: Open, harms: Script) -> None:
    """A server that answers no unknown token fails each probe. A server that is down gets a rest all the same."""
    is_down = False

    def answer(exchange: Exchange, number: int) -> None:
        if exchange.json()["access_token"] == QUERY.token.value and not is_down:
            active(exchange)
        else:
            harms(exchange, number)

    def strangers() -> None:
        queries = [TokenQuery(AccessToken(f"STRANGER-{n}"), "create") for n in range(BREAKER_FAILURES_MAX + 2)]
        for together in (queries[:-2], queries[-2:-1], queries[-1:]):  # the second probes
            failures = introspector.together(*together)
            assert {type(failure) for failure in failures} == {AuthorizationServerUnavailable}

    with scripted_server(answer) as server:
        introspector = connect(server.url, timeout_s=0.3)
        assert introspector.introspect() is not None
        for _ in range(3):
            strangers()
            assert introspector.introspect() is not None
        is_down = True
        strangers()
        failures = []
        for _ in range(5):
            with pytest.raises(AuthorizationServerUnavailable) as failed:
                introspector.introspect()
            failures.append(str(failed.value))
        assert "this service sends it no request" in " ".join(failures)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_answers_about_a_token_do_not_open_the_breaker(connect: Open, status: int) -> None:
    """A stranger chooses the token. If it makes the server answer an error, other clients must not suffer."""
    with scripted_server(lambda exchange, _: exchange.answer(b"", status)) as server:
        introspector = connect(server.url)
        for _ in range(2 * BREAKER_FAILURES_MAX):
            with pytest.raises(AuthorizationServerUnavailable, match=f"answered {status}"):
                introspector.introspect()
    assert len(server.requests) == 2 * BREAKER_FAILURES_MAX


# --- strangers -------------------------------------------------------------------------------------


def test_strangers_do_not_keep_an_active_token_waiting(connect: Open) -> None:
    """Random tokens cannot occupy all connections. A token gets a reserved connection once it was active."""
    crowd = Crowd()
    with scripted_server(crowd) as server:
        introspector = connect(server.url, connections=4, timeout_s=20)
        assert not crowd.lets_through(QUERY, introspector, within_s=0.3)
        introspector.introspect()  # it is active from now on
        assert crowd.lets_through(QUERY, introspector, within_s=5)


@pytest.mark.parametrize("refused", [{"active": False}, an_answer(key=...)], ids=["revoked", "no key"])
def test_token_that_is_not_active_any_more_waits_with_the_strangers(connect: Open, refused: object) -> None:
    """The reserved connections are not for a token that was refused since."""
    crowd = Crowd()
    with scripted_server(crowd) as server:
        introspector = connect(server.url, connections=2, timeout_s=20)
        assert isinstance(introspector.introspect(), AccessTokenInfo)
        crowd.answer = refused
        with contextlib.suppress(TokenRefused):
            assert introspector.introspect() is None
        assert not crowd.lets_through(QUERY, introspector, within_s=0.3)


def test_strangers_occupy_few_threads() -> None:
    """Half as many threads as there are connections wait for tokens that were not active. An active token passes."""
    released = threading.Event()

    def script(exchange: Exchange, _: int) -> None:
        is_stranger = exchange.json()["access_token"].startswith("STRANGER")
        assert not is_stranger or released.wait(20)
        exchange.answer({"active": False} if is_stranger else an_answer())

    first, second, third = (TokenQuery(AccessToken(f"STRANGER-{number}"), "create") for number in range(3))
    with scripted_server(script) as server, ThreadPoolExecutor() as pool:
        introspector = Sync(server.url, connections=4, timeout_s=20)
        introspector.introspect()
        waiting = [pool.submit(introspector.introspect, query) for query in (first, second)]
        while len(server.requests) < 3:
            time.sleep(0.01)
        with pytest.raises(AuthorizationServerUnavailable, match="too many other threads wait"):
            introspector.introspect(third)
        assert isinstance(introspector.introspect(), AccessTokenInfo)
        released.set()
        assert [future.result() for future in waiting] == [None, None]
        assert introspector.introspect(third) is None
        introspector.close()


def test_few_active_tokens_are_remembered(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory for active tokens is bounded. The token whose last introspection is the oldest leaves it."""
    monkeypatch.setattr(introspection, "ACTIVE_TOKENS_MAX", 2)
    crowd = Crowd()
    first, second, third = (TokenQuery(AccessToken(name), "create") for name in ("FIRST", "SECOND", "THIRD"))
    with scripted_server(crowd) as server:
        introspector = connect(server.url, connections=2, timeout_s=20)
        for query in (first, second, first, third):
            introspector.introspect(query)
        assert crowd.lets_through(first, introspector, within_s=5)
        assert crowd.lets_through(third, introspector, within_s=5)
        assert not crowd.lets_through(second, introspector, within_s=0.3)


def test_client_with_many_tokens_displaces_only_its_own(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of other clients keep their reserved connections."""
    monkeypatch.setattr(introspection, "ACTIVE_TOKENS_MAX", 4)
    monkeypatch.setattr(introspection, "ACTIVE_TOKENS_OF_CLIENT_MAX", 2)
    crowd = Crowd()
    many = [TokenQuery(AccessToken(f"MANY-{number}"), "create") for number in range(9)]
    with scripted_server(crowd) as server:
        introspector = connect(server.url, connections=2, timeout_s=20)
        introspector.introspect()
        crowd.answer = an_answer(client="https://other.example/many")
        for query in many:
            introspector.introspect(query)
        assert crowd.lets_through(many[-2], introspector, within_s=5)
        crowd.answer = an_answer()
        assert crowd.lets_through(QUERY, introspector, within_s=5)
        assert crowd.lets_through(many[-3], introspector, within_s=5)
        assert not crowd.lets_through(many[-4], introspector, within_s=0.3)


def test_client_keeps_many_tokens_while_there_is_room(connect: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of a client counts only when the memory is full. It counts again after some tokens have ended."""
    monkeypatch.setattr(introspection, "ACTIVE_TOKENS_MAX", 3)
    monkeypatch.setattr(introspection, "ACTIVE_TOKENS_OF_CLIENT_MAX", 1)
    crowd = Crowd()
    first, second, third = (TokenQuery(AccessToken(name), "create") for name in ("FIRST", "SECOND", "THIRD"))
    with scripted_server(crowd) as server:
        introspector = connect(server.url, connections=2, timeout_s=20)
        for query in (first, second, third):
            introspector.introspect(query)
        assert crowd.lets_through(first, introspector, within_s=5)
        crowd.answer = {"active": False}
        for query in (second, third):
            introspector.introspect(query)
        crowd.answer = an_answer(client="https://other.example/other")
        for name in ("OTHER-1", "OTHER-2", "OTHER-3"):
            introspector.introspect(TokenQuery(AccessToken(name), "create"))
        crowd.answer = an_answer()
        assert crowd.lets_through(first, introspector, within_s=5)


# --- cache -----------------------------------------------------------------------------------------


def test_active_token_is_cached(connect: Open) -> None:
    """An active token is answered from the cache, also while the server is down."""
    with scripted_server(lambda exchange, n: active(exchange) if n == 0 else closes(exchange)) as server:
        introspector = connect(server.url, cache_s=60)
        assert introspector.introspect() == introspector.introspect(TokenQuery(QUERY.token, "read"))
        with pytest.raises(AuthorizationServerUnavailable):
            introspector.introspect(TokenQuery(AccessToken("0THER"), "read"))
    assert introspector.introspect() is not None


@pytest.mark.parametrize(
    ("cache_s", "exp_s", "requests"),
    [(60, 3600, 1), (60, None, 1), (0, 3600, 2), (60, 0.05, 2), (0.05, 3600, 2), (60, -1, 2)],
)
def test_cache_ends_with_its_time_and_with_the_token(
    connect: Open, cache_s: float, exp_s: float | None, requests: int
) -> None:
    """An entry ends after `cache_s` seconds and at the `exp` of the token, at the earlier of the two."""
    exp = None if exp_s is None else (datetime.now(UTC) + timedelta(seconds=exp_s)).timestamp()
    with scripted_server(lambda exchange, _: exchange.answer(an_answer(exp=exp))) as server:
        introspector = connect(server.url, cache_s=cache_s)
        introspector.introspect()
        time.sleep(0.06)
        introspector.introspect()
    assert len(server.requests) == requests


@pytest.mark.parametrize(
    ("content", "status", "error"),
    [
        ({"active": False}, 200, None),
        (b"{", 200, AuthorizationServerUnavailable),
        (b"", 500, AuthorizationServerUnavailable),
        (an_answer(key=...), 200, TokenRefused),
    ],
)
def test_nothing_else_is_cached(connect: Open, content: object, status: int, error: type[Exception] | None) -> None:
    """Inactive tokens, failures and refused tokens are introspected again."""
    answers = [(content, status), (an_answer(), 200)]
    with scripted_server(lambda exchange, n: exchange.answer(*answers[n])) as server:
        introspector = connect(server.url, cache_s=60)
        if error is None:
            assert introspector.introspect() is None
        else:
            with pytest.raises(error):
                introspector.introspect()
        assert introspector.introspect() is not None


def test_cache_is_bounded(connect: Open) -> None:
    """The oldest entry leaves a full cache."""
    with scripted_server(active) as server:
        introspector = connect(server.url, cache_s=60, cache_tokens=2)
        for name in ("A", "B", "B", "C", "B", "A"):
            introspector.introspect(TokenQuery(AccessToken(name), "read"))
    assert [request.json()["access_token"] for request in server.requests] == ["A", "B", "C", "A"]


@pytest.mark.parametrize(
    "flags", [["x" * 8000], [[]] * 990, [{"a": {"a": {}}}] * 400], ids=["text", "arrays", "objects"]
)
def test_large_answer_is_not_cached(connect: Open, flags: list[object]) -> None:
    """A client that gets tokens with very many rights, or with an odd key, cannot fill the memory with its tokens."""
    large = an_answer(flags=flags)
    with scripted_server(lambda exchange, _: exchange.answer(large)) as server:
        introspector = connect(server.url, cache_s=60)
        assert introspector.introspect() == introspector.introspect()
    assert len(server.requests) == 2


def test_cached_answer_takes_about_its_bytes(connect: Open) -> None:
    """A client that chooses an odd key, which takes many times its bytes when it is read, cannot fill the memory."""

    def odd(exchange: Exchange, number: int) -> None:
        begin = an_answer(instance_id=f"{number:04}", key={"jwk": {"kid": "\N{GRINNING FACE}"}})
        free = INTROSPECTION_CACHED_BYTES_MAX - len(json.dumps(begin))
        exchange.answer(begin | {"key": {"jwk": {"kid": "\N{GRINNING FACE}" + free * "k"}}})

    with scripted_server(odd) as server:
        introspector = connect(server.url, cache_s=60)
        tracemalloc.start()
        try:
            for number in range(100):
                assert introspector.introspect(TokenQuery(AccessToken(f"T{number}"), "read")) is not None
            gc.collect()
            held_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        requests = len(server.requests)
        assert introspector.introspect(TokenQuery(AccessToken("T99"), "read")) is not None
        assert len(server.requests) == requests  # the answer is cached
    assert held_bytes < 100 * 3 * INTROSPECTION_CACHED_BYTES_MAX


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "setting", "text"),
    [
        ({"url": "auth.bank.example"}, "url", "must be an absolute http or https URL"),
        ({"url": "https://me:pw@auth.bank.example"}, "url", "must not contain a user name"),
        ({"url": "http://auth.bank.example"}, "url", "must be an https URL"),
        ({"dialect": "oauth"}, "dialect", "must be one of rfc9767, rafiki, not 'oauth'"),
        ({"issuer": None}, "issuer", "is missing: set the grant endpoint URL"),
        (
            RAFIKI | {"issuer": ISSUER},
            "issuer",
            "must not be set for the dialect rafiki, because the answers of Rafiki have no iss: leave it out",
        ),
        ({"resource_server": None}, "resource_server", "is missing: set the name"),
        ({"timeout_s": 0}, "timeout_s", "must be a number from 0.01 to 30"),
        ({"timeout_s": "3"}, "timeout_s", "must be a number from 0.01 to 30"),
        ({"cache_s": 301}, "cache_s", "must be a number from 0 to 300"),
        ({"cache_tokens": 0}, "cache_tokens", "must be a whole number of at least 1"),
        ({"cache_tokens": 1.5}, "cache_tokens", "must be a whole number of at least 1"),
        ({"connections": 0}, "connections", "must be a whole number of at least 1"),
        ({"connections": True}, "connections", "must be a whole number of at least 1"),
        ({"allow_http": "no"}, "allow_http", "must be True or False, not of the type str"),
        ({"audience": 3}, "audience", "must be a string, not of the type int"),
        ({"key": {"kty": "OKP"}}, "key", "must be of the type PrivateKey, not of the type dict"),
        ({"tls": True}, "tls", "must be an ssl.SSLContext, not of the type bool"),
    ],
)
@pytest.mark.parametrize("introspector", [HttpIntrospector, AsyncHttpIntrospector])
def test_wrong_settings_are_refused(introspector: Any, settings: dict[str, Any], setting: str, text: str) -> None:
    """A wrong setting is named when the introspector is made."""
    with pytest.raises(ConfigurationError, match=re.escape(text)) as raised:
        introspector(**{"url": f"{ISSUER}/introspect", **RFC, **settings})
    assert raised.value.details == {"setting": setting}


def test_client_may_move_to_another_loop() -> None:
    """An async client serves the event loop that calls it."""
    with scripted_server(active) as server:
        client = AsyncHttpClient(bytes_max=10_000)
        request = RequestMessage("POST", server.url, (), b"{}")

        async def send() -> int:
            try:
                return (await client.send(request, timeout_s=5)).status
            finally:
                await client.aclose()

        assert [asyncio.run(send()), asyncio.run(send())] == [200, 200]


def test_body_without_a_length_is_read_to_its_end() -> None:
    """A server may end the body by closing the connection."""
    body = octets(an_answer())
    with scripted_server(says(b"HTTP/1.1 200 OK\r\n\r\n" + body)) as server:
        assert send(RequestMessage("POST", server.url, (), b"{}")).body == body


UNBOUNDED = 1 << 40  # so that only the time ends a flood


def floods(exchange: Exchange, _: int) -> None:
    """Send interim responses without an end and without a pause."""
    while not exchange.ended.is_set():
        exchange.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def test_time_is_bounded_for_a_server_that_never_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time ends also when each read finds bytes."""
    monkeypatch.setattr(_http, "INTERIM_RESPONSES_MAX", UNBOUNDED)
    monkeypatch.setattr(_http, "ANSWER_LINES_MAX", UNBOUNDED)
    with scripted_server(floods) as server:
        begin = time.monotonic()
        with pytest.raises(HttpFailed, match=r"did not answer within 0\.3 s"):
            send(RequestMessage("GET", server.url, ()), timeout_s=0.3, bytes_max=UNBOUNDED)
        assert time.monotonic() - begin < 5


def longest_stop_s() -> float:
    """Return the longest processor time for which eight floods have stopped an event loop."""

    async def send() -> float:
        longest_s = 0.0
        client = AsyncHttpClient(bytes_max=UNBOUNDED)
        request = RequestMessage("GET", server.url, ())
        calls = [asyncio.create_task(client.send(request, timeout_s=0.5)) for _ in range(8)]
        while not all(call.done() for call in calls):
            begin = time.thread_time()
            await asyncio.sleep(0.001)
            longest_s = max(longest_s, time.thread_time() - begin)
        assert {type(call.exception()) for call in calls} == {HttpFailed}
        await client.aclose()
        return longest_s

    with scripted_server(floods) as server:
        return asyncio.run(send())


def test_floods_do_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several servers that never pause leave time to the other requests of the loop.

    The test compares processor times of one run: 0.09 s with the buffer of the client, and 0.7 s with a large one.
    """
    monkeypatch.setattr(_http, "INTERIM_RESPONSES_MAX", UNBOUNDED)
    monkeypatch.setattr(_http, "ANSWER_LINES_MAX", UNBOUNDED)
    short_s = longest_stop_s()
    monkeypatch.setattr(_aiohttp, "_RECEIVED_BYTES_MAX", 1 << 22)
    assert short_s < longest_stop_s()


def test_tls_connections_take_turns() -> None:
    """Bytes of TLS are read in small pieces, because a hostile server can cause much work with few bytes."""
    is_asked, stands_still, is_sent = threading.Event(), threading.Event(), threading.Event()

    def script(exchange: Exchange, _: int) -> None:
        is_asked.set()
        stands_still.wait(10)
        exchange.answer(bytes(12_000))
        is_sent.set()

    async def turns() -> int:
        client = AsyncHttpClient(bytes_max=20_000, tls=contexts()[1])
        call = asyncio.create_task(client.send(RequestMessage("GET", server.url, ()), timeout_s=20))
        await asyncio.to_thread(is_asked.wait)
        stands_still.set()
        is_sent.wait(10)  # the event loop does nothing until all bytes have arrived
        count = 0
        while not call.done():
            await asyncio.sleep(0)
            count += 1
        assert (await call).status == 200
        await client.aclose()
        return count

    with scripted_server(script, tls=contexts()[0]) as server:
        assert asyncio.run(turns()) > 4


@pytest.mark.parametrize("timeout_s", [0, -0.01])
def test_time_that_is_over_ends_the_request(timeout_s: float) -> None:
    """A busy loop can begin a retry after the deadline. Such a retry does not wait for ever."""

    async def send() -> None:
        client = AsyncHttpClient(bytes_max=1000)
        try:
            await asyncio.wait_for(client.send(RequestMessage("GET", server.url, ()), timeout_s=timeout_s), 5)
        finally:
            await client.aclose()

    with scripted_server(silent) as server, pytest.raises(HttpFailed, match="did not answer"):
        asyncio.run(send())


def test_answer_that_is_too_large_does_not_open_the_breaker(connect: Open) -> None:
    """An answer that is too large is an answer. Otherwise the client of one large grant could stop all others."""

    def answer(exchange: Exchange, _: int) -> None:
        if exchange.json()["access_token"] == "LARGE":
            exchange.answer(b" " * 70_000)
        else:
            active(exchange)

    with scripted_server(answer) as server:
        introspector = connect(server.url)
        for _ in range(BREAKER_FAILURES_MAX):
            with pytest.raises(AuthorizationServerUnavailable, match="larger than"):
                introspector.introspect(TokenQuery(AccessToken("LARGE"), "create"))
        assert introspector.introspect() is not None


def test_work_of_a_loop_that_has_ended_is_not_awaited() -> None:
    """A loop can be closed without the end of its tasks. The next loop starts the work again."""
    flights: SingleFlight[int] = SingleFlight()

    async def wait() -> int:
        await asyncio.sleep(60)
        return 1

    async def work() -> int:
        return 2

    async def begin() -> "asyncio.Task[int]":
        task = asyncio.create_task(flights.run("name", wait))
        await asyncio.sleep(0)
        return task

    async def go_on() -> int:
        return await asyncio.wait_for(flights.run("name", work), 5)

    loop = asyncio.new_event_loop()
    left = loop.run_until_complete(begin())
    assert asyncio.run(go_on()) == 2
    left.cancel()
    loop.run_until_complete(asyncio.gather(left, return_exceptions=True))
    loop.close()


# --- the thread of a sync port -----------------------------------------------------------------------


def test_thread_that_cannot_be_started_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without more threads is an outage, and no defect. The next call tries again."""

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with scripted_server(active) as server, contextlib.closing(Sync(server.url)) as introspector:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            with pytest.raises(AuthorizationServerUnavailable, match="can't start new thread"):
                introspector.introspect()
        assert introspector.introspect() is not None


def test_close_ends_the_requests_of_other_threads() -> None:
    """They fail at once, and a later call starts another thread."""
    arrived = threading.Event()

    def hangs_once(exchange: Exchange, number: int) -> None:
        if number:
            active(exchange)
        else:
            arrived.set()
            exchange.ended.wait(20)

    with scripted_server(hangs_once) as server, ThreadPoolExecutor() as pool:
        introspector = Sync(server.url, timeout_s=20)
        call = pool.submit(introspector.introspect)
        arrived.wait()
        introspector.close()
        with pytest.raises(AuthorizationServerUnavailable, match="the client was closed"):
            call.result(5)
        assert introspector.introspect() is not None
        introspector.close()
        introspector.close()  # it may be repeated


def test_thread_ends_with_its_introspector() -> None:
    """A host may forget to close the introspector."""
    before = threading.enumerate()
    with scripted_server(active) as server:
        introspector = Sync(server.url)
        introspector.introspect()
        (thread,) = [one for one in threading.enumerate() if one not in before and one.name.endswith("-requests")]
        del introspector
        gc.collect()
        thread.join(5)
        assert not thread.is_alive()
