"""Requests that a real Rafiki sent, recorded from Rafiki 884c4bc, against the service at the time of the recording.

`rafiki_requests.jsonl` has the raw header fields and bodies, and the answers then. `rafiki_setting.json` has the key
sets, the tokens with their clients, and the server secret, all made for the recording only.
"""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from campaigns.interop.published_schema import PACKAGE, VERSION, complaints
from incoming_payments import AccessToken, HttpPeer, IncomingPayments, PacketPolicy, Ports, ServicePolicy
from incoming_payments.domain.payment import ClientId, WalletAddress, client_id, payment_id, wallet_address_url
from incoming_payments.endpoints.open_payments import Request, Response
from incoming_payments.gnap import AccessRight, AccessTokenInfo, Action, StaticIntrospector
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.ildcp import Peer
from incoming_payments.ilp.packet import Fulfill
from incoming_payments.stores.memory import MemoryNonces, MemoryStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.replies import decode_reply
from kits import node_packages
from kits.service_kit import USD, Hosted

FOLDER: Final = Path(__file__).parent
SETTING: Final = json.loads((FOLDER / "rafiki_setting.json").read_text("utf-8"))
RECORDED: Final = [json.loads(line) for line in (FOLDER / "rafiki_requests.jsonl").read_text("utf-8").splitlines()]
BASE_URL: Final = SETTING["base_url"]
ALICE: Final = WalletAddress(wallet_address_url(SETTING["wallet_address"]["url"]), USD, SETTING["auth_server"])
SHOP: Final = "https://rafiki.test/shop"
RAFIKI: Final = "https://rafiki.test/.well-known/pay"
# The payments that the requests name, each with its client and its terms.
PAYMENTS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "01a20636-abf5-7419-be1f-36d9bce38967": (SHOP, {"limit": 2500}),
    "01a20637-2bd0-799f-b321-ad8966af3a70": (SHOP, {"limit": 2500}),
    "01a20637-41e9-795e-bf11-5deae8fbf0c8": (
        RAFIKI,
        {"limit": 4000, "expires_in_s": 600, "metadata": '{"description":"an invoice"}'},
    ),
    "01a2063a-d75b-7d6b-a7b8-f2a3fe3a2930": (RAFIKI, {}),
}
REPEATED: Final = RECORDED[-1]  # it was refused, because the service ran with `allow_identical = false` then
_ID: Final = re.compile(r"(?<=/incoming-payments/)[^/?]+")


class Keys:
    """A `ClientKeys` port with the recorded key sets."""

    def find(self, client: ClientId, key_id: str) -> Mapping[str, object] | None:
        """Return the public key of `client` with this `kid`, or `None`."""
        return next((jwk for jwk in SETTING["key_sets"].get(client, []) if jwk["kid"] == key_id), None)


class Replay:
    """The service of the recording with its payments. The time is that of the request that it answers."""

    def __init__(self, *, allow_identical: bool = True) -> None:
        self.now = at(RECORDED[0])
        rights = [AccessRight(list(Action), ALICE.url)]
        tokens = {AccessToken(token): client for token, client in SETTING["client_of_token"].items()}
        introspector = StaticIntrospector(
            [(token, AccessTokenInfo(client, None, rights)) for token, client in tokens.items()]
        )
        methods = DerivedMethods(SETTING["ilp_address"], [bytes.fromhex(SETTING["server_secret_hex"])])
        peer = HttpPeer(Peer(f"{SETTING['ilp_address']}.rafiki", USD), tokens=[AccessToken(SETTING["peer_token"])])
        store, hosted = MemoryStore(), Hosted()
        hosted.addresses[ALICE.url] = ALICE
        for id, (client, terms) in PAYMENTS.items():
            store.insert(
                a_creation(id=payment_id(id), wallet_address=ALICE, client=client_id(client), now=self.now, **terms)
            )
        self._service = IncomingPayments(
            policy=ServicePolicy(
                base_url=SETTING["base_url"], auth_server=SETTING["auth_server"], allow_identical=allow_identical
            ),
            ports=Ports(
                store=store,
                wallet_addresses=hosted,
                introspector=introspector,
                client_keys=Keys(),
                nonces=MemoryNonces(),
                methods=methods,
            ),
            packets=PacketPolicy(peers=[peer]),
            clock=lambda: self.now,
        )

    def answer(self, recorded: dict[str, Any]) -> Response:
        """Return the answer to a recorded request."""
        self.now = at(recorded)
        path, _, query = recorded["target"].partition("?")
        fields = recorded["headers"]
        headers = tuple(zip(fields[::2], fields[1::2], strict=True))
        return self._service.handle(Request(recorded["method"], path, query, headers, octets(recorded["body"])))


def at(recorded: dict[str, Any]) -> datetime:
    """Return the time of the recorded request."""
    return datetime.fromtimestamp(recorded["at"] / 1000, UTC)


def octets(body: dict[str, str]) -> bytes:
    """Return the bytes of a recorded body."""
    return base64.b64decode(body["base64"]) if "base64" in body else body["text"].encode()


@pytest.fixture(scope="module")
def answers() -> list[Response]:
    """Return the answers to all recorded requests, in their order."""
    replay = Replay()
    return [replay.answer(recorded) for recorded in RECORDED]


def test_every_request_of_rafiki_is_accepted(answers: list[Response]) -> None:
    """The statuses are those of the recording. Without `allow_identical = false`, the last one is 200 too."""
    assert [answer.status for answer in answers] == [*(recorded["status"] for recorded in RECORDED[:-1]), 200]


def test_members_are_those_of_the_recording(answers: list[Response]) -> None:
    """Each JSON answer has the members that Rafiki got."""
    compared = 0
    for recorded, answer in list(zip(RECORDED, answers, strict=True))[:-1]:
        if recorded["target"] != "/ilp":
            assert json.loads(octets(recorded["answer"])).keys() == json.loads(answer.body).keys()
            compared += 1
    assert compared == 11


def test_packets_get_the_recorded_replies(answers: list[Response]) -> None:
    """Rafiki gets a quote for each probe, and the same fulfillment for the packet with the money."""
    found = []
    for recorded, answer in zip(RECORDED, answers, strict=True):
        if recorded["target"] == "/ilp":
            reply, before = decode_reply(answer.body), decode_reply(octets(recorded["answer"]))
            if isinstance(before, Fulfill):
                assert isinstance(reply, Fulfill)
                assert reply.fulfillment == before.fulfillment
                found.append("Fulfill")
            else:
                assert not isinstance(reply, Fulfill)
                assert reply.code == before.code
                found.append(f"Reject {reply.code}")
    assert found == [recorded["kind"] for recorded in RECORDED if recorded["target"] == "/ilp"]


def test_the_payment_is_completed_by_the_packet(answers: list[Response]) -> None:
    """The client of the payment reads the whole amount after the packet."""
    paid = next(index for index, recorded in enumerate(RECORDED) if recorded["kind"] == "Fulfill")
    payment = json.loads(answers[paid + 1].body)
    assert (payment["receivedAmount"]["value"], payment["completed"]) == ("2500", True)


def test_identical_requests_of_rafiki_need_the_default() -> None:
    """Rafiki repeats a signed request within a second. `allow_identical = false` refuses the second one."""
    allowing, refusing = Replay(), Replay(allow_identical=False)
    assert [allowing.answer(REPEATED).status for _ in range(2)] == [200, 200]
    first, second = (refusing.answer(REPEATED) for _ in range(2))
    assert first.status == 200
    assert (second.status, json.loads(second.body)["error"]["code"]) == (401, "request_repeated")


def test_published_document_accepts_every_answer(
    answers: list[Response], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rafiki checks the answers with the published OpenAPI document, which accepts all of them."""
    installed = node_packages.installed({PACKAGE: VERSION}, request, tmp_path_factory)
    responses = [
        {
            "path": _ID.sub("{id}", recorded["target"].partition("?")[0]),
            "method": recorded["method"].lower(),
            "status": answer.status,
            "body": json.loads(answer.body),
        }
        for recorded, answer in zip(RECORDED, answers, strict=True)
        if recorded["target"] != "/ilp"
    ]
    assert complaints(installed, responses) == [None] * 12
