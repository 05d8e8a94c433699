"""The fixed values of every simulation: a wallet address, a client, two peers and the service's configuration."""

from datetime import timedelta
from typing import Final

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import WalletAddress, client_id, wallet_address_url
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, StaticIntrospector
from incoming_payments.httpsig import PrivateKey, load_private_jwk
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.ildcp import Peer

USD: Final = Asset("USD", 2)
EUR: Final = Asset("EUR", 2)

WALLET: Final = WalletAddress(wallet_address_url("https://bank.example/alice"), USD, "https://auth.bank.example")
POLICY: Final = ServicePolicy(base_url="https://bank.example/op", auth_server="https://auth.bank.example")
METHODS: Final = DerivedMethods("test.bank", [b"a fixed server secret, for simulations"])

PEER: Final = Peer("test.bank.connector", USD)
FOREIGN_PEER: Final = Peer("test.bank.abroad", EUR)
PREPARE_LIFETIME: Final = timedelta(seconds=30)
MARGIN: Final = timedelta(seconds=1)  # the time that must remain until a Prepare expires when it is accepted

CLIENT: Final = client_id("https://shop.example/")
TOKEN: Final = "OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1LT0"  # noqa: S105 - a fixed value, for simulations
# the published key of RFC 8032 §7.1, test 1, so that a seed gives the same signatures everywhere
_JWK: Final = {
    "kty": "OKP",
    "crv": "Ed25519",
    "alg": "EdDSA",
    "kid": "key-1",
    "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
}
CLIENT_KEY: Final[PrivateKey] = load_private_jwk({**_JWK, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"})
INTROSPECTOR: Final = StaticIntrospector(
    [
        (
            AccessToken(TOKEN),
            AccessTokenInfo(
                client=CLIENT,
                jwk=_JWK,
                rights=[AccessRight(["create", "read", "complete", "list"], WALLET.url)],
            ),
        )
    ]
)
