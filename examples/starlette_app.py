"""The incoming payment service inside a Starlette application.

    pip install . starlette uvicorn
    incoming-payments init my-bank --port 8000
    FOLDER=my-bank uvicorn --app-dir examples starlette_app:app --port 8000
    python examples/client.py my-bank          # elsewhere, once it runs

`Bank` and the static introspector stand for what an ASE has already: its accounts, and its authorization server. Base
URL, tokens and keys are those that `incoming-payments init` makes.
"""

import json
import os
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from incoming_payments import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    Asset,
    AsyncPorts,
    DerivedMethods,
    HttpPeer,
    PacketPolicy,
    Peer,
    Receiver,
    ServicePolicy,
    StaticIntrospector,
    WalletAddress,
    wallet_address_url,
)
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.hosts.asgi import AsgiApplication
from incoming_payments.stores.sqlite import AsyncSqliteStore

FOLDER = Path(os.environ.get("FOLDER", "."))  # where `incoming-payments init` wrote; the database goes there too
settings = tomllib.loads((FOLDER / "incoming-payments.toml").read_text("utf-8"))
BASE_URL = settings["base_url"]
TOKEN = settings["token"][0]["value"]
AUTH_SERVER = "https://auth.bank.example"


class Bank:
    """Which wallet addresses are ours: a `WalletAddresses` port. A real one asks the accounts, and may wait."""

    async def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """The wallet address with this URL, or `None`."""
        alice = wallet_address_url(f"{BASE_URL}/alice")
        return WalletAddress(url, Asset("USD", 2), AUTH_SERVER) if url == alice else None


server_secret = bytes.fromhex((FOLDER / "server-secret.hex").read_text("ascii"))
client = AccessTokenInfo(
    client="https://shop.example/wallet",
    jwk=json.loads((FOLDER / "client-key.jwk").read_text("utf-8")),
    rights=[AccessRight(["create", "read"], f"{BASE_URL}/alice")],
)
connector = HttpPeer(  # who sends us ILP packets
    Peer("test.bank.connector", Asset("USD", 2)),
    tokens=[AccessToken((FOLDER / "peer-token.txt").read_text("ascii").strip())],
)
methods = DerivedMethods("test.bank", [server_secret])
store = AsyncSqliteStore(FOLDER / "payments.sqlite3")
ports = AsyncPorts(
    store=store,
    nonces=store.nonces,
    wallet_addresses=Bank(),
    introspector=StaticIntrospector([(AccessToken(TOKEN), client)]),
    methods=methods,
)
service = AsgiApplication(
    policy=ServicePolicy(base_url=BASE_URL, auth_server=AUTH_SERVER),
    ports=ports,
    packets=PacketPolicy(receiver=Receiver(methods), peers=[connector]),
)


async def incoming_payments(request: Request) -> Response:
    """Everything below /incoming-payments goes to the service, and the packets of peers."""
    answer = await service.answer(request.scope, request.receive)
    return Response(answer.body, answer.status, dict(answer.headers))


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """The store is closed when the server stops."""
    async with store:
        yield


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]  # the service itself says 405
app = Starlette(
    routes=[
        Route("/ilp", incoming_payments, methods=METHODS),
        Route("/incoming-payments", incoming_payments, methods=METHODS),
        Route("/incoming-payments/{id:path}", incoming_payments, methods=METHODS),
    ],
    lifespan=lifespan,
)
