"""The incoming payment service inside a Flask application.

    pip install . flask
    incoming-payments init my-bank --port 5000
    FOLDER=my-bank flask --app examples/flask_app run --port 5000
    python examples/client.py my-bank          # in a second terminal

`Bank` and the static introspector stand for systems that an ASE already has: its accounts and its authorization server.
The base URL, the tokens and the keys are those that `incoming-payments init` has written.
"""

import json
import os
import tomllib
from pathlib import Path

import flask

from incoming_payments import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    Asset,
    DerivedMethods,
    HttpPeer,
    PacketPolicy,
    Peer,
    Ports,
    Receiver,
    ServicePolicy,
    StaticIntrospector,
    WalletAddress,
    wallet_address_url,
)
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.hosts.wsgi import WsgiApplication
from incoming_payments.stores.sqlite import SqliteStore

FOLDER = Path(os.environ.get("FOLDER", "."))  # the folder of `incoming-payments init`, also for the database
settings = tomllib.loads((FOLDER / "incoming-payments.toml").read_text("utf-8"))
BASE_URL = settings["base_url"]
TOKEN = settings["token"][0]["value"]
AUTH_SERVER = "https://auth.bank.example"


class Bank:
    """The wallet addresses of this ASE: a `WalletAddresses` port. In production it queries the accounts."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
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
store = SqliteStore(FOLDER / "payments.sqlite3")
ports = Ports(
    store=store,
    nonces=store.nonces,
    wallet_addresses=Bank(),
    introspector=StaticIntrospector([(AccessToken(TOKEN), client)]),
    methods=methods,
)
service = WsgiApplication(
    policy=ServicePolicy(base_url=BASE_URL, auth_server=AUTH_SERVER),
    ports=ports,
    packets=PacketPolicy(receiver=Receiver(methods), peers=[connector]),
)

app = flask.Flask(__name__)
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]  # for other methods, the service answers 405


@app.route("/ilp", methods=METHODS, provide_automatic_options=False)
@app.route("/incoming-payments", methods=METHODS, provide_automatic_options=False)
@app.route("/incoming-payments/<path:_>", methods=METHODS, provide_automatic_options=False)
def incoming_payments(_: str = "") -> flask.Response:
    """Pass every request below /incoming-payments, and every packet of a peer, to the service."""
    answer = service.answer(flask.request.environ)
    return flask.Response(answer.body, answer.status, answer.headers)
