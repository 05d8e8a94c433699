"""A payer of one payment at one service, for tests that follow a few packets."""

from contextlib import closing
from datetime import UTC, datetime
from http import HTTPStatus

import httpx

from campaigns.crash.clients import USD, Payable, PeerConnection, answer_in, new_packet, token_of
from campaigns.crash.records import CALL, CREATE, ClientRecord, SentRequest
from campaigns.crash.service import Service
from incoming_payments import Amount, Ports
from incoming_payments.domain.payment import PaymentId
from incoming_payments.flows.machinery.run import run
from incoming_payments.flows.receive import receive
from incoming_payments.flows.receive_packet import receive_packet
from incoming_payments.server.config.settings import Settings, load_settings
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation
from incoming_payments.testing.replies import decode_reply
from kits.processes import HttpClient


class Payer:
    """A client of a service with one payment. It knows the payment and keeps a record."""

    def __init__(self, service: Service, *, limit: int) -> None:
        self.service = service
        self.settings: Settings = load_settings(service.folder / CONFIGURATION)
        self.path = service.folder / "client-1.record"
        self.record = ClientRecord(self.path)
        created = a_creation(limit=limit, now=datetime.now(UTC))
        self.id: PaymentId = created.answer.id
        self.record.sent(kind=CREATE, key="create-1")
        with SqliteStore(service.database) as store:
            store.insert(created)
        self.record.answered("create-1", "created", payment=self.id)
        credentials = self.settings.receiver.methods.derive(self.id)
        self._payable = Payable(self.id, credentials.ilp_address, credentials.shared_secret)
        self._sequence = 0

    def packet(self, amount: int) -> SentRequest:
        """Return a new packet, and record it."""
        self._sequence += 1
        return new_packet(self.record, self._payable, amount, self._sequence)

    def send(self, request: SentRequest) -> str:
        """Send a packet once over HTTP, record the answer, and return it."""
        with closing(PeerConnection(self.service.port, token_of(self.service.folder))) as connection:
            answer = answer_in(request, connection.send(bytes.fromhex(request.packet)))
        self.record.answered(request.key, answer)
        return answer

    def send_here(self, request: SentRequest, store: SqliteStore) -> str:
        """Handle a packet in this process with the settings of the service, record the answer, and return it.

        The next process of the service would give the same answer.
        """
        packets = self.settings.packets
        assert packets is not None
        peer, now = packets.peer_of([f"Bearer {token_of(self.service.folder)}"]), datetime.now(UTC)
        packet, receiver = bytes.fromhex(request.packet), self.settings.receiver
        reply = run(receive_packet(packet, peer=peer, receiver=receiver, clock=lambda: now), Ports(store=store))
        answer = answer_in(request, decode_reply(reply))
        self.record.answered(request.key, answer)
        return answer

    def credit_here(self, amount: int, store: SqliteStore) -> None:
        """Credit money by another rail, in this process."""
        self._sequence += 1
        request = self.record.sent(kind=CALL, key=f"wire-{self._sequence}", payment=self.id, amount=amount)
        money = Amount(amount, USD)
        run(receive(self.id, credit_id=request.key, amount=money, clock=lambda: datetime.now(UTC)), Ports(store=store))
        self.record.answered(request.key, "credited")

    def create_another(self, client: HttpClient, key: str) -> httpx.Response:
        """Send a signed request for another payment, for the first time or again."""
        self.record.sent(kind=CREATE, key=key)
        response = client.create()
        if response.status_code == HTTPStatus.CREATED:
            self.record.answered(key, "created", payment=response.json()["id"].rpartition("/")[2])
        else:
            self.record.answered(key, response.json()["error"]["code"])
        return response
