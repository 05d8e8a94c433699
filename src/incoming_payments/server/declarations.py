"""The settings of `serve`, each declared once.

These tables are the source of the configuration that `init` writes, of the reader with its errors, and of the table in
`docs/server.md`. `docs/extending.md` explains how to add a setting.
"""

from datetime import datetime
from typing import Final, get_args

from incoming_payments.flows.policy import Wording
from incoming_payments.gnap.access import Action
from incoming_payments.httpsig import Shape
from incoming_payments.ilp_http import ILP_PATH
from incoming_payments.limits import (
    CLOCK_SKEW_S_MAX,
    CLOCK_SKEW_SETTING_S_MAX,
    EXCESS_BASIS_POINTS_MAX,
    EXCESS_BASIS_POINTS_SETTING_MAX,
    EXCESS_UNITS_MAX,
    EXPIRY_S_MAX,
    IDEMPOTENCY_KEY_S_MAX,
    METADATA_BYTES_MAX,
    METADATA_DEPTH_MAX,
    PORT_MAX,
    PREPARE_MARGIN_MS_MIN,
    PREPARE_MARGIN_SETTING_MS_MAX,
    QUOTA_REQUESTS_MAX,
    QUOTA_UNPAID_MAX,
    SIGNATURE_AGE_S_MAX,
    SIGNATURE_AGE_SETTING_S_MAX,
    WORKERS_MAX,
)
from incoming_payments.server._services import AUTHORIZATION_SERVER, WALLET_ADDRESS, WALLET_ADDRESSES
from incoming_payments.server.output import LOG_FORMATS
from incoming_payments.server.setting import Setting, TableOf, toml

__all__ = [
    "AUTHORIZATION_SERVER",
    "ILP",
    "LIMITS",
    "LISTEN",
    "LOG",
    "PEER",
    "RIGHT",
    "TABLES",
    "TOKEN",
    "TOP",
    "WALLET_ADDRESS",
    "WALLET_ADDRESSES",
]

TOP: Final = TableOf(
    "",
    "",
    "Keep this file private: it holds a token. File names are relative to the folder of this file.",
    (
        Setting(
            "base_url",
            str,
            "the public URL of the service for clients: the ids of payments begin with it, and signatures cover it",
            written='"{base_url}"',
        ),
        Setting("auth_server", str, "where clients request grants (GNAP)", written='"{auth_server}"'),
        Setting(
            "database",
            str,
            "the SQLite file for the payments; other processes may use it at the same time",
            written='"payments.sqlite3"',
        ),
    ),
)
LISTEN: Final = TableOf(
    "listen",
    "[listen]",
    "The address to listen on.",
    (
        Setting("host", str, "the host name or IP address", "127.0.0.1", is_active=True),
        Setting("port", int, "the port", 8080, bounds=(1, PORT_MAX), written="{port}", is_active=True),
        Setting(
            "workers",
            int,
            "the number of processes that serve requests, at most one for each processor; more than one excludes "
            "`[quotas]`",
            1,
            bounds=(1, WORKERS_MAX),
        ),
        Setting(
            "mount",
            str,
            'the path of requests in front of `/incoming-payments`: `""` behind a proxy that removes it',
            None,
            "the path of `base_url`",
            written='""',
        ),
        Setting(
            "health",
            bool,
            "whether `GET /healthz` (the process answers) and `GET /readyz` (the store answers) are served, without "
            "a body",
            True,
        ),
        Setting(
            "metrics_port",
            int,
            "the port of the first worker for Prometheus, on `host`, at `/metrics`; each further worker uses the next "
            "port; needs `incoming-payments[prometheus]`",
            None,
            "no metrics",
            bounds=(1, PORT_MAX),
            written="9464",
        ),
    ),
)
TOKEN: Final = TableOf(
    "token",
    "[[token]]",
    "An access token for development. It excludes [authorization_server], which production needs.",
    (
        Setting("value", str, "the access token", written='"{token}"'),
        Setting("client", str, "the client: it sees the payments of its own `client`", written='"{base_url}/a-client"'),
        Setting(
            "jwk_file",
            str,
            "a file with the client's public key, a JWK, for the signatures of requests with this token; `sign` "
            "expects the private key in the file of the same name that ends in .pem",
            written='"{jwk}"',
        ),
        Setting(
            "rights",
            list,
            "the rights of the token, an array of tables; see `rights`",
            written='[{{ actions = ["create", "read", "complete", "list"], identifier = "{base_url}/alice" }}]',
            example='rights = [{ actions = ["create"] }]',
        ),
        Setting("expires_at", datetime, "when the token expires", None, "never", written="2027-01-01T00:00:00Z"),
    ),
    least="any number",
)
RIGHT: Final = TableOf(
    "rights",
    "rights",
    "",
    (
        Setting("actions", list, f"some of {', '.join(f'`{action}`' for action in Action)}"),
        Setting("identifier", str, "the wallet address, one of those above", None, "all of them"),
    ),
    least="one or more in a token",
)
ILP: Final = TableOf(
    "ilp",
    "[ilp]",
    "The receiver of ILP packets.",
    (
        Setting(
            "address",
            str,
            "the ILP address of this service; the address of a payment is one segment longer",
            written='"test.bank"',
        ),
        Setting(
            "secret_files",
            list,
            "files with 32 random bytes or more in hexadecimal, newest first: addresses and shared secrets are derived "
            "from them, and each of them can read STREAM packets. To rotate, put a new file in front. Remove the last "
            "secret when no payment that was created with it can still receive money",
            written='["{secret}"]',
        ),
        Setting(
            "path", str, "where peers send ILP packets, below `base_url`; not below `/incoming-payments`", ILP_PATH
        ),
        Setting(
            "tolerance_units",
            int,
            "by how many minor units a packet may exceed `incomingAmount`, unless `tolerance_basis_points` allows more",
            EXCESS_UNITS_MAX,
        ),
        Setting(
            "tolerance_basis_points",
            int,
            "by how many hundredths of a percent a packet may exceed `incomingAmount`, unless `tolerance_units` allows "
            "more",
            EXCESS_BASIS_POINTS_MAX,
            bounds=(0, EXCESS_BASIS_POINTS_SETTING_MAX),
            usual=(0, 1000),
            unusual="100 is one percent, and senders may pay that much too much by mistake",
        ),
        Setting(
            "margin_ms",
            int,
            "the milliseconds that a packet must have left when it is credited: to commit, and for the reply to travel "
            "back. A peer does not pay for a packet with a late reply",
            PREPARE_MARGIN_MS_MIN,
            bounds=(0, PREPARE_MARGIN_SETTING_MS_MAX),
            usual=(100, 10_000),
            unusual="a small margin loses the money of packets that are answered late, and a large one refuses packets "
            "that have enough time",
        ),
    ),
)
PEER: Final = TableOf(
    "peer",
    "[[peer]]",
    "A peer, which sends ILP packets. The service trusts a peer's token to settle the money of its packets. In "
    "production, create a token of your own, and protect it like money.",
    (
        Setting("name", str, "1 to 64 letters, digits and `_~-`", written='"connector"'),
        Setting(
            "asset_code",
            str,
            "the asset of the account with this peer: the peer can pay payments in the same asset only",
            written='"USD"',
        ),
        Setting("asset_scale", int, "the scale of that asset", written="2"),
        Setting(
            "token_files",
            list,
            "1 to 8 files, each with one bearer token of 16 characters or more. Each token is valid. To change one, "
            "add the new token, let the peer switch to it, and remove the old one",
            written='["{peer_token}"]',
        ),
        Setting(
            "ilp_address",
            str,
            "the ILP address that the peer gets when it requests one (ILDCP)",
            None,
            "its `name` below the `address` of the service",
            written='"test.bank.connector"',
        ),
    ),
    least="any number; without a peer, the service accepts no packets",
)
LOG: Final = TableOf(
    "log",
    "[log]",
    "The log, on standard error.",
    (
        Setting(
            "explain_signatures", bool, "whether the log explains refused signatures, 10 times a minute at most", False
        ),
        Setting(
            "format",
            str,
            f"{' or '.join(f'`{toml(form)}`' for form in LOG_FORMATS)}: lines of text, or a JSON object in each line",
            "text",
            written='"json"',
        ),
        Setting("access", bool, "whether the log has a line for each request", False, written="true"),
    ),
)
LIMITS: Final = TableOf(
    "limits",
    "[limits]",
    "Limits and policies.",
    (
        Setting("public_get", bool, "whether a payment's URL alone shows how much the payment has received", True),
        Setting("public_cors", bool, "whether scripts of any website may read this public view", True),
        Setting(
            "allow_identical",
            bool,
            "whether a signed request without nonce may be repeated while fresh; `false` breaks payments from Rafiki, "
            "which reads a payment twice in one second with identical requests",
            True,
        ),
        Setting(
            "expiry_s_max",
            int,
            "how many seconds ahead `expiresAt` may lie",
            EXPIRY_S_MAX,
            usual=(60, 10 * EXPIRY_S_MAX),
            unusual="it is in seconds, and clients that request a longer time are refused",
        ),
        Setting(
            "idempotency_key_s",
            int,
            "how many seconds an `Idempotency-Key` protects a created payment from a second one",
            IDEMPOTENCY_KEY_S_MAX,
            usual=(600, 31 * IDEMPOTENCY_KEY_S_MAX),
            unusual="it is in seconds, and a retry after that time creates a second payment",
        ),
        Setting(
            "default_expiry_s",
            int,
            "after how many seconds a payment without `incomingAmount` and `expiresAt` expires, at most `expiry_s_max`",
            None,
            "never",
            written="2592000",
        ),
        Setting("metadata_bytes_max", int, "the size of `metadata` as compact JSON, in bytes", METADATA_BYTES_MAX),
        Setting("metadata_depth_max", int, "the depth of `metadata`", METADATA_DEPTH_MAX),
        Setting(
            "signature_age_s",
            int,
            "how old a signature may be, in seconds",
            SIGNATURE_AGE_S_MAX,
            bounds=(1, SIGNATURE_AGE_SETTING_S_MAX),
            usual=(10, 3600),
            unusual="a short limit refuses requests that travel slowly, and a long limit keeps a stolen request valid",
        ),
        Setting(
            "clock_skew_s",
            int,
            "how many seconds a client's clock may be ahead",
            CLOCK_SKEW_S_MAX,
            bounds=(0, CLOCK_SKEW_SETTING_S_MAX),
        ),
        Setting(
            "signature_shapes",
            list,
            f"any of {', '.join(f'`{toml(str(shape))}`' for shape in Shape)}: also accept the non-standard signature "
            "fields of this SDK. All other checks still apply",
            [],
        ),
        Setting(
            "wording",
            str,
            f"{' or '.join(f'`{toml(wording)}`' for wording in get_args(Wording))}: the second gives refusals the "
            "descriptions that the Web Monetization extension compares. The codes stay",
            "plain",
        ),
    ),
)

QUOTAS: Final = TableOf(
    "quotas",
    "[quotas]",
    "The quotas of each client, counted in this process. A client that exceeds one gets 429.",
    (
        Setting(
            "requests_per_minute",
            int,
            "the requests of one client",
            None,
            "no quota",
            (1, QUOTA_REQUESTS_MAX),
            written="600",
        ),
        Setting(
            "unpaid_payments",
            int,
            "the payments of one client that have received nothing, and are neither completed nor expired",
            None,
            "no quota",
            (1, QUOTA_UNPAID_MAX),
            written="100",
        ),
    ),
)

TABLES: Final = (
    TOP,
    LISTEN,
    WALLET_ADDRESS,
    WALLET_ADDRESSES,
    TOKEN,
    RIGHT,
    AUTHORIZATION_SERVER,
    ILP,
    PEER,
    LOG,
    LIMITS,
    QUOTAS,
)
