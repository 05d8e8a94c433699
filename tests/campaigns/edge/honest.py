"""The requests of an honest client and an honest peer through the proxy. Each answer is checked."""

import json
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx

from campaigns.edge.proxy import TIMEOUT_S, Edge, body_of
from incoming_payments.httpsig import RequestMessage, sign
from incoming_payments.ilp.packet import Fulfill
from kits.peers import HttpConnector, sender_for
from kits.raw_http import answers, as_bytes


def signed(edge: Edge, method: str, target: str, body: bytes = b"") -> bytes:
    """Return a signed request as bytes. `target` is added to the base URL unchanged."""
    return as_bytes(_signed(edge, method, target, body), edge.base_url)


def _signed(edge: Edge, method: str, target: str, body: bytes) -> RequestMessage:
    client = edge.client
    headers: tuple[tuple[str, str], ...] = (("Authorization", f"GNAP {client.token}"),)
    if body:
        headers += (("Content-Type", "application/json"), ("Content-Length", str(len(body))))
    request = RequestMessage(method, f"{edge.base_url}{target}", headers, body)
    return sign(request, client.key, created=datetime.now(UTC))


def create(edge: Edge) -> dict[str, object]:
    """Create a payment, and return its resource."""
    answer = edge.exchange(signed(edge, "POST", "/incoming-payments", _creation(edge)))
    assert answers(answer) == [(201, None)], answer
    return dict(body_of(answer))


def create_over(edge: Edge, connection: httpx.Client) -> None:
    """Create a payment over a kept connection."""
    request = _signed(edge, "POST", "/incoming-payments", _creation(edge))
    answer = connection.post(request.target_uri, headers=list(request.headers), content=request.body)
    assert answer.status_code == 201, answer.content


def _creation(edge: Edge) -> bytes:
    return json.dumps({"walletAddress": f"{edge.base_url}/alice"}).encode()


def kept_connection(edge: Edge) -> httpx.Client:
    """Return an HTTP client that keeps its connection."""
    return httpx.Client(trust_env=False, timeout=TIMEOUT_S, verify=edge.context)


def connector(edge: Edge) -> HttpConnector:
    """Return the peer, with one kept connection."""
    return HttpConnector(edge.base_url, edge.peer_token, kept_connection(edge))


def visit(edge: Edge, peer: HttpConnector) -> None:
    """Create a payment, pay it by two packets, and read it: signed and unsigned."""
    payment = create(edge)
    sender = sender_for(payment)
    for _ in range(2):
        assert isinstance(peer.pay(sender, 21).reply, Fulfill)
    path = str(payment["id"]).removeprefix(edge.base_url)
    read = edge.exchange(signed(edge, "GET", path))
    assert answers(read) == [(200, None)], read
    assert (body_of(read)["id"], body_of(read)["receivedAmount"]["value"]) == (payment["id"], "42")
    target = f"{urlsplit(edge.base_url).path}{path}"
    public = edge.exchange(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert body_of(public)["receivedAmount"]["value"] == "42"
