"""A peer that sends packets over HTTP, and a sender for a payment created over HTTP."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self

import httpx
from attrs import field, frozen

from incoming_payments.domain.payment import PaymentId
from incoming_payments.ilp import StreamCredentials, ilp_address
from incoming_payments.ilp.packet import Fulfill, Prepare, Reject, encode
from incoming_payments.ilp.stream import condition_of
from incoming_payments.server.init import PEER_TOKEN
from incoming_payments.testing.replies import decode_reply
from kits.stream_kit import Answer, Sender

_TIMEOUT_S: Final = 60.0


def sender_for(payment: Mapping[str, Any]) -> Sender:
    """Return a sender for `payment`, the JSON of a payment that can receive."""
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
    """A peer with a persistent connection and a real clock. Its packets expire after a minute."""

    base_url: str
    token: str = field(repr=False)
    client: httpx.Client = field(factory=lambda: httpx.Client(trust_env=False, timeout=_TIMEOUT_S), repr=False)

    @classmethod
    def of(cls, folder: Path, base_url: str) -> Self:
        """Return the peer with the token that `init` wrote to `folder`."""
        return cls(base_url, (folder / PEER_TOKEN).read_text("ascii").strip())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def post(self, body: bytes, **headers: str) -> httpx.Response:
        """Post `body`. `headers` are added to the header fields of a packet, or replace them."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"content-type": "application/octet-stream", "authorization": f"Bearer {self.token}"}
        return self.client.post(f"{self.base_url}/ilp", content=body, headers={**given, **named})

    def reply(self, packet: bytes) -> Fulfill | Reject:
        """Return the reply to a packet, and check the status and media type of the response."""
        response = self.post(packet)
        assert (response.status_code, response.headers["content-type"]) == (200, "application/octet-stream")
        return decode_reply(response.content)

    def send(self, sender: Sender, prepare: Prepare) -> Answer:
        """Send a Prepare of `sender`. Return the reply and its decrypted data."""
        reply = self.reply(encode(prepare))
        if isinstance(reply, Fulfill):
            assert condition_of(reply.fulfillment) == prepare.condition
        return Answer(reply, sender.read(reply) if len(reply.data) > 16 else None)  # 16: the amounts of an F08

    def pay(self, sender: Sender, amount: int, **options: Any) -> Answer:
        """Send a packet of `amount`, and return the answer."""
        return self.send(sender, sender.prepare(amount, **{"expires_at": soon(), **options}))


def soon() -> datetime:
    """Return the time in one minute."""
    return datetime.now(UTC) + timedelta(minutes=1)
