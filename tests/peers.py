"""A peer that sends packets over real HTTP, and a sender for a payment that was created there."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import httpx
from attrs import field, frozen

from incoming_payments.domain.payment import PaymentId
from incoming_payments.ilp import StreamCredentials, ilp_address
from incoming_payments.ilp.packet import Fulfill, Prepare, Reject, decode_reply, encode
from incoming_payments.ilp.stream import condition_of
from incoming_payments.server.init import PEER_TOKEN
from stream_kit import Answer, Sender

_TIMEOUT_S: Final = 60.0


def sender_for(payment: Mapping[str, Any]) -> Sender:
    """Whoever was told the payment details in `payment`, the JSON of a payment that can receive."""
    [method] = payment["methods"]
    secret = method["sharedSecret"]
    return Sender(
        StreamCredentials(
            PaymentId(str(payment["id"]).rpartition("/")[2]),
            ilp_address(method["ilpAddress"]),
            base64.urlsafe_b64decode(secret + "=" * (-len(secret) % 4)),
        )
    )


@frozen
class HttpConnector:
    """A peer with a connection that is kept. Its clock is the wall clock, and its packets last a minute."""

    base_url: str
    token: str = field(repr=False)
    client: httpx.Client = field(factory=lambda: httpx.Client(trust_env=False, timeout=_TIMEOUT_S), repr=False)

    @classmethod
    def of(cls, folder: Path, base_url: str) -> Self:
        """The peer whose token `init` wrote to `folder`."""
        return cls(base_url, (folder / PEER_TOKEN).read_text("ascii").strip())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        """The response to `body`; `headers` are added to those that a packet has, or take their place."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"content-type": "application/octet-stream", "authorization": f"Bearer {self.token}"}
        return self.client.post(f"{self.base_url}/ilp", content=body, headers={**given, **named})

    def reply(self, packet: bytes) -> Fulfill | Reject:
        """The reply to a packet, once the response is as it has to be."""
        response = self.post(packet)
        assert (response.status_code, response.headers["content-type"]) == (200, "application/octet-stream")
        return decode_reply(response.content)

    def send(self, sender: Sender, prepare: Prepare) -> Answer:
        """The reply to a Prepare of `sender`'s, and what it says to it."""
        reply = self.reply(encode(prepare))
        if isinstance(reply, Fulfill):
            assert condition_of(reply.fulfillment) == prepare.condition
        return Answer(reply, sender.read(reply) if len(reply.data) > 16 else None)  # 16: the amounts of an F08

    def pay(self, sender: Sender, amount: int, **options: Any) -> Answer:
        """What becomes of a packet of `amount`."""
        return self.send(sender, sender.prepare(amount, **{"expires_at": soon(), **options}))


def soon() -> datetime:
    """A minute from now."""
    return datetime.now(UTC) + timedelta(minutes=1)
