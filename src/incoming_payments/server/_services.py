"""The declared settings of wallet addresses and of the authorization server. See `declarations`."""

from typing import Final, get_args

from incoming_payments.gnap import Dialect
from incoming_payments.limits import (
    DOCUMENT_AGE_S_MAX,
    DOCUMENT_COOL_DOWN_S_MIN,
    DOCUMENT_STALE_S_MAX,
    INTROSPECTION_CACHE_S_MAX,
    INTROSPECTION_S_MAX,
    INTROSPECTION_SETTING_S_MAX,
)
from incoming_payments.server.setting import Setting, TableOf, toml

_AUTH_SERVER: Final = "the `auth_server` of the service"

WALLET_ADDRESS: Final = TableOf(
    "wallet_address",
    "[[wallet_address]]",
    "A wallet address that is hosted here. It excludes [wallet_addresses].",
    (
        Setting("url", str, "its URL", written='"{base_url}/alice"'),
        Setting("asset_code", str, "the code of its asset", written='"USD"'),
        Setting("asset_scale", int, "the scale of its asset: 2 for cents", written="2"),
        Setting(
            "auth_server",
            str,
            "where clients request grants for this wallet address",
            None,
            _AUTH_SERVER,
            written='"https://auth.bank.example"',
        ),
    ),
    least="one or more, or `[wallet_addresses]`",
)
WALLET_ADDRESSES: Final = TableOf(
    "wallet_addresses",
    "[wallet_addresses]",
    "The service that keeps your wallet addresses. It excludes [[wallet_address]].",
    (
        Setting(
            "base_urls",
            list,
            "the URLs below which your wallet addresses lie: the service reads the document at the URL of each one",
            written='["https://wallet.bank.example"]',
        ),
        Setting(
            "max_age_s",
            int,
            "after how many seconds a document is fetched again: a closed wallet address stays usable for that long",
            int(DOCUMENT_AGE_S_MAX),
            bounds=(int(DOCUMENT_COOL_DOWN_S_MIN), int(DOCUMENT_STALE_S_MAX)),
        ),
        Setting(
            "allow_private",
            bool,
            "whether `base_urls` may be http URLs, and lead to private addresses",
            False,
            written="true",
        ),
    ),
    least="at most one",
)
AUTHORIZATION_SERVER: Final = TableOf(
    "authorization_server",
    "[authorization_server]",
    "The authorization server, which says for each request whether its token is active. It excludes [[token]].",
    (
        Setting("url", str, "its introspection endpoint", written='"{introspection}"'),
        Setting(
            "dialect",
            str,
            f"{' or '.join(f'`{toml(dialect)}`' for dialect in get_args(Dialect))}: the form of its answers",
            written='"{dialect}"',
        ),
        Setting(
            "issuer",
            str,
            "the `iss` of its answers, which is the URL of its grant endpoint; only with `rfc9767`",
            None,
            _AUTH_SERVER,
            written='"https://auth.bank.example"',
        ),
        Setting(
            "audience",
            str,
            "the name of this service in `aud`: a token for other services only is refused",
            None,
            "a token with `aud` is refused",
            written='"incoming-payments"',
        ),
        Setting(
            "key_file",
            str,
            "a file with the private key of this service, in PEM, which signs the requests; give `key_id` too",
            None,
            "the requests are not signed",
            written='"{service_key}"',
        ),
        Setting("key_id", str, "the key id of that key", None, "no key", written='"{service_key_id}"'),
        Setting(
            "resource_server",
            str,
            "the name of this service at the authorization server; only with `rfc9767`",
            None,
            "the public key of `key_file`",
            written='"incoming-payments"',
        ),
        Setting(
            "timeout_s",
            int,
            "how many seconds an introspection may take; then the response is 503",
            int(INTROSPECTION_S_MAX),
            bounds=(1, int(INTROSPECTION_SETTING_S_MAX)),
        ),
        Setting(
            "cache_s",
            int,
            "for how many seconds an active token is remembered: a revoked token stays usable for that long",
            0,
            bounds=(0, int(INTROSPECTION_CACHE_S_MAX)),
        ),
        Setting(
            "client_keys",
            bool,
            "whether the service reads the key of a client from `jwks.json` below the wallet address of the client, if "
            "the token does not carry it",
            True,
        ),
        Setting(
            "allow_http",
            bool,
            "whether `url` may be an http URL, which shows the tokens to the network",
            False,
            written="true",
        ),
        Setting(
            "allow_private_clients",
            bool,
            "for development: whether `jwks.json` may be read over http, at any port, and from private addresses",
            False,
            written="true",
        ),
    ),
    least="at most one",
)
