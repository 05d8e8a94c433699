"""One service with one payment, and a client with its book: for tests of what happens to a few packets."""

from contextlib import closing
from datetime import UTC, datetime
from http import HTTPStatus

import httpx

from campaigns.crash.books import CALL, CREATE, Asked, Book
from campaigns.crash.clients import USD, Line, Payable, new_packet, said_to, token_of
from campaigns.crash.service import Service
from incoming_payments import Amount, Ports, receive, receive_packet, run
from incoming_payments.domain.payment import PaymentId
from incoming_payments.ilp.packet import decode_reply
from incoming_payments.server.init import CONFIGURATION
from incoming_payments.server.settings import Settings, load_settings
from incoming_payments.stores.sqlite import SqliteStore
from incoming_payments.testing import a_creation
from kits.processes import HttpClient


class Scene:
    """A service with one payment, and a client with its book who knows of it."""

    def __init__(self, service: Service, *, limit: int) -> None:
        self.service = service
        self.settings: Settings = load_settings(service.folder / CONFIGURATION)
        self.path = service.folder / "client-1.book"
        self.book = Book(self.path)
        created = a_creation(limit=limit, now=datetime.now(UTC))
        self.id: PaymentId = created.answer.id
        self.book.asked(kind=CREATE, key="create-1")
        with SqliteStore(service.database) as store:
            store.insert(created)
        self.book.answered("create-1", "created", payment=self.id)
        credentials = self.settings.methods.derive(self.id)
        self._payable = Payable(self.id, credentials.ilp_address, credentials.shared_secret)
        self._sequence = 0

    def packet(self, amount: int) -> Asked:
        """A new one, in the book."""
        self._sequence += 1
        return new_packet(self.book, self._payable, amount, self._sequence)

    def send(self, asked: Asked) -> str:
        """What the service says to a packet, over HTTP, once; into the book, too."""
        with closing(Line(self.service.port, token_of(self.service.folder))) as line:
            said = said_to(asked, line.send(bytes.fromhex(asked.packet)))
        self.book.answered(asked.key, said)
        return said

    def send_here(self, asked: Asked, store: SqliteStore) -> str:
        """What this process answers with the settings of the service, as the next one to be started."""
        packets = self.settings.packets
        assert packets is not None
        peer, now = packets.peer_of([f"Bearer {token_of(self.service.folder)}"]), datetime.now(UTC)
        reply = run(
            receive_packet(bytes.fromhex(asked.packet), peer=peer, receiver=packets.receiver, clock=lambda: now),
            Ports(store=store),
        )
        said = said_to(asked, decode_reply(reply))
        self.book.answered(asked.key, said)
        return said

    def book_here(self, amount: int, store: SqliteStore) -> None:
        """Book money by another rail, in this process."""
        self._sequence += 1
        asked = self.book.asked(kind=CALL, key=f"wire-{self._sequence}", payment=self.id, amount=amount)
        money = Amount(amount, USD)
        run(receive(self.id, credit=asked.key, amount=money, now=datetime.now(UTC)), Ports(store=store))
        self.book.answered(asked.key, "booked")

    def ask(self, client: HttpClient, key: str) -> httpx.Response:
        """Ask for another payment, signed, for the first time or again."""
        self.book.asked(kind=CREATE, key=key)
        response = client.create()
        if response.status_code == HTTPStatus.CREATED:
            self.book.answered(key, "created", payment=response.json()["id"].rpartition("/")[2])
        else:
            self.book.answered(key, response.json()["error"]["code"])
        return response
