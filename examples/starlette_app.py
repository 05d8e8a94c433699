"""The incoming payment service inside a Starlette application.

    pip install . starlette uvicorn
    incoming-payments init my-bank --port 8000
    FOLDER=my-bank uvicorn --app-dir examples starlette_app:app --port 8000
    python examples/client.py my-bank          # in a second terminal

`Bank` and the static introspector stand for systems that an ASE already has: its accounts and its authorization server.
The base URL, the tokens and the keys are those that `incoming-payments init` has written.
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

FOLDER = Path(os.environ.get("FOLDER", "."))  # the folder of `incoming-payments init`, also for the database
settings = tomllib.loads((FOLDER / "incoming-payments.toml").read_text("utf-8"))
BASE_URL = settings["base_url"]
TOKEN = settings["token"][0]["value"]
AUTH_SERVER = "https://auth.bank.example"


class Bank:
    """The wallet addresses of this ASE: a `WalletAddresses` port. In production it queries the accounts."""

    async def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address with this URL, or `None`."""
        alice = wallet_address_url(f"{BASE_URL}/alice")
        return WalletAddress(url, Asset("USD", 2), AUTH_SERVER) if url == alice else None


server_secret = bytes.fromhex((FOLDER / "server-secret.hex").read_text("ascii"))
client = AccessTokenInfo(
    client="https://shop.example/wallet",
    jwk=json.loads((FOLDER / "client-key.jwk").read_text("utf-8")),
    rights=[AccessRight(["create", "read"], f"{BASE_URL}/alice")],
)
connector = HttpPeer(  # the peer that sends ILP packets
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
    """Pass every request below /incoming-payments, and every packet of a peer, to the service."""
    answer = await service.answer(request.scope, request.receive)
    return Response(answer.body, answer.status, dict(answer.headers))


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Close the store when the server stops."""
    async with store:
        yield


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]  # for other methods, the service answers 405
app = Starlette(
    routes=[
        Route("/ilp", incoming_payments, methods=METHODS),
        Route("/incoming-payments", incoming_payments, methods=METHODS),
        Route("/incoming-payments/{id:path}", incoming_payments, methods=METHODS),
    ],
    lifespan=lifespan,
)
