"""Packets over real HTTP: a signed request creates a payment, and peers pay it through `incoming-payments serve`."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.domain.amount import Asset
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Fulfill, Prepare, Reject, encode
from incoming_payments.ilp.stream import ConnectionAssetDetails, ConnectionNewAddress, StreamClose, StreamData
from incoming_payments.limits import ILP_DATA_BYTES_MAX, ILP_PREPARE_BYTES_MAX
from incoming_payments.server.init import CONFIGURATION, PEER_TOKEN
from incoming_payments.testing.replies import ildcp_request, read_amounts, read_ildcp_response
from kits.peers import HttpConnector, sender_for, soon
from kits.processes import COMMAND, HttpClient, code_of, free_port, run_command, serving, unsigned

CONNECTIONS: Final = 64
YEN_TOKEN: Final = "a-token-of-the-yen-peer"
YEN: Final = """
[[wallet_address]]
url = "http://127.0.0.1/bob"
asset_code = "JPY"
asset_scale = 0

[[peer]]
name = "yen"
asset_code = "JPY"
asset_scale = 0
token_files = ["new-yen.txt", "yen.txt"]
ilp_address = "test.elsewhere.yen"
"""


@contextmanager
def a_bank(folder: Path) -> Iterator[tuple[HttpClient, HttpConnector]]:
    """Run `serve` with the files in `folder`, which are made once; yield a client and a peer."""
    port_file = folder / "port"
    if not port_file.exists():
        port_file.write_text(str(free_port()), "ascii")
    port = int(port_file.read_text("ascii"))
    if not (folder / CONFIGURATION).exists():
        assert run_command("init", folder, "--port", str(port)).returncode == 0
        path = folder / CONFIGURATION
        text = path.read_text("utf-8").replace(f', identifier = "http://127.0.0.1:{port}/alice"', "")
        path.write_text(text.replace("\n[ilp]", f"{YEN}\n[ilp]"), "utf-8")
        for name, token in (("yen.txt", YEN_TOKEN), ("new-yen.txt", f"{YEN_TOKEN}-2")):
            (folder / name).write_text(token, "ascii")
    log = folder / "log"
    base_url = f"http://127.0.0.1:{port}"
    with (
        serving([*COMMAND, "serve", "--config", folder / CONFIGURATION], port, log),
        HttpConnector.of(folder, base_url) as connector,
    ):
        yield HttpClient.of(folder, base_url), connector
    assert "Traceback" not in log.read_text("utf-8")


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HttpClient, HttpConnector]]:
    """Run one server for the tests that need no own one."""
    with a_bank(tmp_path_factory.mktemp("bank")) as bank:
        yield bank


def dollars(cents: int) -> dict[str, Any]:
    """Return an amount on the wire."""
    return {"value": str(cents), "assetCode": "USD", "assetScale": 2}


def received(client: HttpClient, url: str) -> tuple[str, bool]:
    """Return the received amount of the payment, and whether it is completed."""
    payment = client.get(url).json()
    return payment["receivedAmount"]["value"], payment["completed"]


def fulfillment(reply: Fulfill | Reject) -> bytes:
    """Return the fulfillment of a Fulfill."""
    assert isinstance(reply, Fulfill), reply
    return reply.fulfillment


# --- one payment --------------------------------------------------------------------------------------


def test_a_payment_is_paid_in_full(bank: tuple[HttpClient, HttpConnector]) -> None:
    """A payment is created, quoted and paid in two packets. It refuses too much money, and is closed afterwards."""
    client, connector = bank
    created = client.create(incomingAmount=dollars(2500)).json()
    sender = sender_for(created)

    quote = connector.send(sender, sender.probe(10**12, expires_at=soon(), frames=[ConnectionNewAddress("")]))
    assert (quote.code, quote.frames and quote.frames[-1]) == ("F99", ConnectionAssetDetails("USD", 2))
    assert quote.said is not None
    assert quote.said.amount == 10**12
    assert connector.pay(sender, 1000, least=1000).code == "fulfilled"
    assert received(client, created["id"]) == ("1000", False)
    too_much = connector.pay(sender, 1600)
    assert (too_much.code, read_amounts(too_much.reply.data)) == ("F08", (1600, 1500))
    assert connector.pay(sender, 1500).code == "fulfilled"
    assert received(client, created["id"]) == ("2500", True)
    after = connector.pay(sender, 1)
    assert (after.code, [type(frame) for frame in after.frames or ()]) == ("F07", [StreamClose])
    assert received(client, created["id"]) == ("2500", True)


def test_duplicate_packet_is_credited_once(bank: tuple[HttpClient, HttpConnector]) -> None:
    """A duplicate packet gets the same fulfillment, and is credited once."""
    client, connector = bank
    created = client.create().json()
    sender = sender_for(created)
    packet = encode(sender.prepare(7, expires_at=soon()))
    assert fulfillment(connector.reply(packet)) == fulfillment(connector.reply(packet))
    assert received(client, created["id"]) == ("7", False)


def test_payments_and_packets_survive_a_restart(tmp_path: Path) -> None:
    """After a restart the credit is there, an earlier packet is fulfilled again, and the payment goes on."""
    with a_bank(tmp_path) as (client, connector):
        created = client.create(incomingAmount=dollars(100)).json()
        sender = sender_for(created)
        packet = encode(sender.prepare(40, expires_at=soon()))
        before = fulfillment(connector.reply(packet))
    with a_bank(tmp_path) as (client, connector):
        assert fulfillment(connector.reply(packet)) == before
        assert received(client, created["id"]) == ("40", False)
        assert connector.pay(sender, 60, sequence=2).code == "fulfilled"
        assert received(client, created["id"]) == ("100", True)


# --- peers --------------------------------------------------------------------------------------------


def test_two_peers_with_assets_of_their_own(bank: tuple[HttpClient, HttpConnector]) -> None:
    """Each peer gets its own address and asset, and pays payments in that asset. Each of its tokens works."""
    client, connector = bank
    in_dollars, in_yen = client.create().json(), client.create(walletAddress="http://127.0.0.1/bob").json()
    expected = {
        connector.token: Peer("test.bank.connector", Asset("USD", 2)),
        YEN_TOKEN: Peer("test.elsewhere.yen", Asset("JPY", 0)),
        f"{YEN_TOKEN}-2": Peer("test.elsewhere.yen", Asset("JPY", 0)),
    }
    for number, (token, peer) in enumerate(expected.items(), start=1):
        with HttpConnector(client.base_url, token) as each:
            assert read_ildcp_response(each.reply(encode(ildcp_request(soon()))).data) == peer
            codes = [each.pay(sender_for(it), 1, sequence=number).code for it in (in_dollars, in_yen)]
            assert codes == (["fulfilled", "F07"] if peer.asset.code == "USD" else ["F07", "fulfilled"])
    assert received(client, in_dollars["id"]) == ("1", False)
    assert received(client, in_yen["id"]) == ("2", False)


def test_request_without_a_peer_token_is_refused(bank: tuple[HttpClient, HttpConnector]) -> None:
    """Without a peer's token nothing is credited, with any other token or none."""
    client, connector = bank
    created = client.create().json()
    packet = encode(sender_for(created).prepare(1, expires_at=soon()))
    for authorization, reason in (
        (f"Bearer {connector.token}x", "invalid_token"),
        (f"Bearer {client.token}", "invalid_token"),
        (f"GNAP {client.token}", "invalid_token"),
        (f"GNAP {connector.token}", "invalid_token"),
    ):
        refused = connector.post(packet, authorization=authorization)
        assert (code_of(refused), refused.headers["www-authenticate"]) == ((401, reason), "Bearer")
    missing = unsigned(
        "POST", f"{client.base_url}/ilp", content=packet, headers={"content-type": "application/octet-stream"}
    )
    assert code_of(missing) == (401, "token_missing")
    assert received(client, created["id"]) == ("0", False)


def test_token_of_a_peer_is_refused_for_payments(bank: tuple[HttpClient, HttpConnector]) -> None:
    """The token of a peer is accepted for packets only."""
    client, connector = bank
    assert code_of(HttpClient(client.base_url, connector.token, client.key).create()) == (401, "invalid_token")


def test_request_that_is_no_packet_is_refused(bank: tuple[HttpClient, HttpConnector]) -> None:
    """A wrong size, type or method is refused by HTTP status, and bytes that are no packet by an ILP Reject."""
    client, connector = bank
    assert code_of(connector.post(bytes(ILP_PREPARE_BYTES_MAX + 1))) == (413, "body_too_large")
    assert code_of(connector.post(b"", content_type="application/json")) == (415, "unsupported_media_type")
    refused = unsigned("GET", f"{client.base_url}/ilp")
    assert (code_of(refused), refused.headers["allow"]) == ((405, "method_not_allowed"), "POST")
    for body in (b"", b"\x00", bytes(ILP_PREPARE_BYTES_MAX), b"\x0c\x84\xff\xff\xff\xff"):
        assert getattr(connector.reply(body), "code", None) == "F01"
    other_type = connector.post(b"", content_type="application/ilp+octet-stream")
    assert (other_type.status_code, other_type.headers["content-type"]) == (200, "application/octet-stream")


def test_service_without_peers_has_no_ilp_path(tmp_path: Path) -> None:
    """A service without peers accepts no packets."""
    port = free_port()
    assert run_command("init", tmp_path, "--port", str(port)).returncode == 0
    path = tmp_path / CONFIGURATION
    head, _, rest = path.read_text("utf-8").partition("[[peer]]")
    path.write_text(head + rest[rest.index("[limits]") :], "utf-8")
    base_url = f"http://127.0.0.1:{port}"
    with (
        serving([*COMMAND, "serve", "--config", path], port, tmp_path / "log"),
        HttpConnector.of(tmp_path, base_url) as connector,
    ):
        assert code_of(connector.post(b"")) == (404, "not_found")
    assert (tmp_path / PEER_TOKEN).exists()
    assert "/ilp" not in (tmp_path / "log").read_text("utf-8")


# --- concurrent packets -------------------------------------------------------------------------------------


def test_many_packets_at_once(bank: tuple[HttpClient, HttpConnector]) -> None:
    """Over 64 connections each packet is credited once, and reads succeed while the payment is filled."""
    client, connector = bank
    each, wanted = 20, CONNECTIONS * 20 - 5
    created = client.create(incomingAmount=dollars(wanted)).json()
    sender = sender_for(created)
    packets = [encode(sender.prepare(1, expires_at=soon())) for _ in range(CONNECTIONS * each)]
    start = threading.Barrier(CONNECTIONS)

    def send(place: int) -> Counter[str]:
        with HttpConnector(connector.base_url, connector.token) as peer:
            start.wait(60)
            return Counter(
                str(getattr(peer.reply(packet), "code", "fulfilled")) for packet in packets[place::CONNECTIONS]
            )

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        sent = [threads.submit(send, place) for place in range(CONNECTIONS)]
        totals = [int(received(client, created["id"])[0]) for _ in range(5)]
        counted = sum((future.result() for future in sent), Counter())

    # One unit more is within the tolerance, but a completed payment accepts none.
    assert counted == {"fulfilled": wanted, "F07": 5}
    assert received(client, created["id"]) == (str(wanted), True)
    assert totals == sorted(totals)


def test_packets_of_the_largest_size(bank: tuple[HttpClient, HttpConnector]) -> None:
    """Many connections send a Prepare with as much data as ILP allows."""
    client, connector = bank
    created = client.create().json()
    sender = sender_for(created)

    def largest(number: int) -> Prepare:
        room = ILP_DATA_BYTES_MAX - len(sender.prepare(1, frames=[StreamData(1, 0, bytes(1000))]).data) + 1000
        return sender.prepare(1, sequence=number, expires_at=soon(), frames=[StreamData(1, 0, bytes(room - 8))])

    packets = [encode(largest(number)) for number in range(1000, 1016)]
    assert min(map(len, packets)) > 32_700

    def send(packet: bytes) -> str:
        with HttpConnector(connector.base_url, connector.token) as peer:
            return str(getattr(peer.reply(packet), "code", "fulfilled"))

    with ThreadPoolExecutor(len(packets)) as threads:
        assert set(threads.map(send, packets)) == {"fulfilled"}
    assert received(client, created["id"]) == (str(len(packets)), False)
