"""The service of the programs `*_app.py`, with the settings and the keys that `incoming-payments init` has written.

`Bank` and the static introspector stand for systems that an ASE already has: its accounts and its authorization server.
"""

import json
import os
import sys
import tomllib
from pathlib import Path

from incoming_payments import (
    AccessRight,
    AccessToken,
    AccessTokenInfo,
    Asset,
    AsyncIncomingPayments,
    AsyncPorts,
    DerivedMethods,
    HttpPeer,
    IncomingPayments,
    PacketPolicy,
    Peer,
    Ports,
    ServicePolicy,
    StaticIntrospector,
    WalletAddress,
    WalletAddressUrl,
    wallet_address_url,
)
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore

FOLDER = Path(os.environ.get("FOLDER", "."))  # the folder of `incoming-payments init`, also for the database
try:
    settings = tomllib.loads((FOLDER / "incoming-payments.toml").read_text("utf-8"))
except OSError as error:
    sys.exit(
        f"{error.filename} cannot be read: {error.strerror}; create a folder with `incoming-payments init`, and set "
        "the environment variable FOLDER to it"
    )
BASE_URL = settings["base_url"]
AUTH_SERVER = "https://auth.bank.example"


class Bank:
    """The wallet addresses of this ASE: a `WalletAddresses` port. In production it queries the accounts."""

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address with this URL, or `None`."""
        alice = wallet_address_url(f"{BASE_URL}/alice")
        return WalletAddress(url, Asset("USD", 2), AUTH_SERVER) if url == alice else None


client = AccessTokenInfo(
    client="https://shop.example/wallet",
    jwk=json.loads((FOLDER / "client-key.jwk").read_text("utf-8")),
    rights=[AccessRight(["create", "read"], f"{BASE_URL}/alice")],
)
introspector = StaticIntrospector([(AccessToken(settings["token"][0]["value"]), client)])
methods = DerivedMethods("test.bank", [bytes.fromhex((FOLDER / "server-secret.hex").read_text("ascii"))])
connector = HttpPeer(  # the peer that sends ILP packets
    Peer("test.bank.connector", Asset("USD", 2)),
    tokens=[AccessToken((FOLDER / "peer-token.txt").read_text("ascii").strip())],
)
packets = PacketPolicy(peers=[connector])
policy = ServicePolicy(base_url=BASE_URL, auth_server=AUTH_SERVER)


def service() -> IncomingPayments:
    """Return the service for a WSGI framework."""
    store = SqliteStore(FOLDER / "payments.sqlite3")
    ports = Ports(store=store, nonces=store.nonces, wallet_addresses=Bank(), introspector=introspector, methods=methods)
    return IncomingPayments(policy=policy, ports=ports, packets=packets)


def async_service() -> tuple[AsyncIncomingPayments, AsyncSqliteStore]:
    """Return the service for an ASGI framework, and its store, to be closed at the end."""
    store = AsyncSqliteStore(FOLDER / "payments.sqlite3")
    ports = AsyncPorts(
        store=store, nonces=store.nonces, wallet_addresses=Bank(), introspector=introspector, methods=methods
    )
    return AsyncIncomingPayments(policy=policy, ports=ports, packets=packets), store
