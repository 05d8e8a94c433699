"""`docs/nginx.conf` on a real nginx before a real `serve`: it changes no request, and keeps attacks outside."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaigns.edge.attack import ATTACKS, HIDDEN, POST, SMUGGLED, UNKNOWN_TOKENS
from campaigns.edge.attackers import attacked
from campaigns.edge.honest import connector, create, signed, visit
from campaigns.edge.proxy import NGINX, Edge, body_of, edge, introspecting_edge
from incoming_payments.limits import BODY_BYTES_MAX, KEEP_ALIVE_S_MAX
from kits.processes import ROOT
from kits.raw_http import answers

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed: apt-get install nginx")

UNDER_ATTACK_S = 3.0  # the duration of honest requests


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """Run the service behind nginx."""
    with edge(tmp_path_factory.mktemp("edge")) as running:
        yield running
        log = (running.folder / "serve.log").read_text("utf-8")
    assert "Traceback" not in log


def test_signed_requests_and_packets_arrive(behind: Edge) -> None:
    """A client creates and reads a payment over TLS, and a peer pays it."""
    with connector(behind) as peer:
        visit(behind, peer)


# The text behind the path of a payment, and the answer to a signed request for the whole.
TARGETS = [
    ("", (200, None)),
    ("?a=%62&c=%2F+%20", (200, None)),
    ("?a=b?c=//d", (200, None)),
    ("?", (401, "signature_invalid")),  # no server distinguishes an empty query from none
    ("/", (404, "not_found")),
    ("/..%2f", (404, "not_found")),
    ("/../x", (404, "not_found")),
    ("%2F", (404, "payment_not_found")),
    ("%20", (404, "payment_not_found")),
    ("%c3%a9", (404, "payment_not_found")),
    ("//", (404, "not_found")),
    (";x=1", (404, "payment_not_found")),
]


@pytest.mark.parametrize(("more", "expected"), TARGETS)
def test_path_and_query_arrive_as_sent(behind: Edge, more: str, expected: tuple[int, str | None]) -> None:
    """nginx decodes nothing, merges no slashes and resolves no dots. The path of the base URL is encoded, too."""
    path = str(create(behind)["id"]).removeprefix(behind.base_url)
    assert answers(behind.exchange(signed(behind, "GET", path + more))) == [expected]


def test_several_requests_on_one_connection(behind: Edge) -> None:
    """Pipelined requests are answered in order."""
    get = signed(behind, "GET", str(create(behind)["id"]).removeprefix(behind.base_url))
    kept = get.replace(b"Connection: close\r\n", b"")
    missing = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    assert answers(behind.exchange(kept + missing + get)) == [(200, None), (404, "not_found"), (200, None)]


def test_chunked_body_arrives_with_a_length(behind: Edge) -> None:
    """nginx reads the chunks, and `serve` gets the whole body at once."""
    body = b"1\r\nx\r\n" * 100 + b"0\r\n\r\n"
    head = POST + f"Authorization: Bearer {behind.peer_token}\r\nConnection: close\r\n".encode()
    answer = behind.exchange(head + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    assert [status for status, _ in answers(answer)] == [200]  # a Reject, because the body is no Prepare


@pytest.mark.parametrize("size", [BODY_BYTES_MAX, BODY_BYTES_MAX + 1])
def test_body_over_the_limit_stays_outside(behind: Edge, size: int) -> None:
    """The limit of nginx is that of the service."""
    head = f"POST /incoming-payments HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    found = answers(behind.exchange(head.encode() + bytes(size)))
    assert found == [(401, "token_missing") if size == BODY_BYTES_MAX else (413, None)]


@pytest.mark.parametrize("number", range(len(SMUGGLED)))
def test_hidden_request_is_not_answered(behind: Edge, number: int) -> None:
    """No request within the body of another gets an answer, from nginx or from `serve`."""
    received = behind.exchange(POST.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + SMUGGLED[number])
    assert len(answers(received)) == 1
    assert b"not_found" not in received
    assert HIDDEN not in received


def test_nothing_is_sent_twice() -> None:
    """The configuration never repeats a request, and `serve` keeps its connections longer than nginx."""
    text = (ROOT / "docs" / "nginx.conf").read_text("utf-8")
    assert "proxy_next_upstream off;" in text
    assert "keepalive_timeout 60s;" in text
    assert KEEP_ALIVE_S_MAX > 60


@pytest.mark.parametrize("name", ATTACKS)
def test_honest_requests_are_answered_under_attack(behind: Edge, name: str) -> None:
    """During an attack from other addresses, each request of a client and of a peer succeeds."""
    visits = 0
    with attacked(behind, name):
        until = time.monotonic() + UNDER_ATTACK_S
        while time.monotonic() < until or visits < 3:
            with connector(behind) as peer:
                visit(behind, peer)
            visits += 1
    payment = create(behind)
    assert body_of(behind.exchange(signed(behind, "GET", str(payment["id"]).removeprefix(behind.base_url)))) == payment


def test_known_tokens_are_answered_while_unknown_ones_take_long(tmp_path: Path) -> None:
    """Strangers whose tokens take the authorization server long do not keep out a client that was there before."""
    with introspecting_edge(tmp_path) as running, connector(running) as peer:
        visit(running, peer)
        with attacked(running, UNKNOWN_TOKENS):
            until = time.monotonic() + UNDER_ATTACK_S
            while time.monotonic() < until:
                visit(running, peer)
