"""The settings of `serve`, each declared once.

The classes are the source of the reader with its errors, of the configuration that `init` writes, of the table in
`docs/server.md`, and of what SIGHUP changes. `docs/extending.md` explains how to add a setting.
"""

import ipaddress
import re
from pathlib import Path
from typing import Final, get_args

from attrs import Attribute, fields_dict, frozen

from incoming_payments.flows.policy import Wording
from incoming_payments.httpsig import Shape
from incoming_payments.limits import (
    CLOCK_SKEW_S_DEFAULT,
    CLOCK_SKEW_S_MAX,
    EXPIRY_S_MAX_DEFAULT,
    IDEMPOTENCY_KEY_S_DEFAULT,
    METADATA_BYTES_DEFAULT,
    METADATA_DEPTH_DEFAULT,
    PORT_MAX,
    QUOTA_REQUESTS_MAX,
    QUOTA_UNPAID_MAX,
    SIGNATURE_AGE_S_DEFAULT,
    SIGNATURE_AGE_S_MAX,
    WORKERS_MAX,
)
from incoming_payments.server.config.access import AuthorizationServerTable, TokenTable
from incoming_payments.server.config.packets import IlpTable, PeerTable
from incoming_payments.server.config.setting import invalid, setting, table, tables_of, toml
from incoming_payments.server.config.wallet_addresses import WalletAddressesTable, WalletAddressTable
from incoming_payments.server.output import LOG_FORMATS, LogFormat

# RFC 3986 §3.3: segments that are neither empty nor dots.
_SEGMENT: Final = r"(?!(?:\.|%2[Ee]){1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})+"
_MOUNT: Final = re.compile(f"(?:/{_SEGMENT})*")


def _check_host(_: object, attribute: "Attribute[str]", host: str) -> None:
    if not host or "\0" in host:
        raise invalid(attribute, "must not be empty, and must not contain NUL")
    if not _is_host(host):
        text = 'must be a host name or an IP address alone, such as "127.0.0.1", "::1" or, for all, "0.0.0.0"'
        raise invalid(attribute, f"{text}; the port is listen.port")


def _is_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host) is not None
    except ValueError:
        return re.search(r"[:/\[\]*]", host) is None


def _check_mount(_: object, attribute: "Attribute[str]", mount: str | None) -> None:
    if mount and not _MOUNT.fullmatch(mount):
        text = 'must be "", or a path such as "/op": no slash at its end, no dot segments, no query'
        raise invalid(attribute, text)


@frozen(kw_only=True)
class ListenTable:
    """The address to listen on."""

    host: str = setting("the host name or IP address", "127.0.0.1", check=_check_host, is_active=True)
    port: int = setting("the port", 8080, bounds=(1, PORT_MAX), written="{port}", is_active=True)
    workers: int = setting(
        "the number of processes that serve requests: use at most one for each processor, because more gain nothing; "
        "more than one excludes `[quotas]`",
        1,
        bounds=(1, WORKERS_MAX),
    )
    mount: str | None = setting(
        'the path in front of `/incoming-payments` in the requests that arrive; `""` if a proxy removes it',
        None,
        "the path of `base_url`",
        check=_check_mount,
        written='""',
    )
    health: bool = setting(
        "whether `GET /healthz` (the process answers) and `GET /readyz` (the store answers) are served, without a body",
        True,
    )
    metrics_port: int | None = setting(
        "the port of the first worker for Prometheus, on `host`, at `/metrics`; each further worker uses the next "
        "port; needs `incoming-payments[prometheus]`",
        None,
        "no metrics",
        bounds=(1, PORT_MAX),
        written="9464",
    )


@frozen(kw_only=True)
class LogTable:
    """The log."""

    explain_signatures: bool = setting("whether the log explains refused signatures, 10 times a minute at most", False)
    format: LogFormat = setting(
        f"{' or '.join(f'`{toml(form)}`' for form in LOG_FORMATS)}: lines of text, or a JSON object in each line",
        "text",
        written='"json"',
    )
    access: bool = setting("whether the log has a line for each request", False, written="true")


@frozen(kw_only=True)
class LimitsTable:
    """Limits and policies."""

    public_get: bool = setting("whether a payment's URL alone shows how much the payment has received", True)
    public_cors: bool = setting("whether scripts of any website may read the public view", True)
    allow_identical: bool = setting(
        "whether a signed request without nonce may be repeated while fresh; `false` breaks payments from Rafiki, "
        "which reads a payment twice in one second with identical requests",
        True,
    )
    expiry_s_max: int = setting(
        "how many seconds ahead `expiresAt` may lie",
        EXPIRY_S_MAX_DEFAULT,
        usual=(60, 10 * EXPIRY_S_MAX_DEFAULT),
        unusual="it is in seconds, and clients that request a longer time are refused",
    )
    idempotency_key_s: int = setting(
        "for how many seconds a repeated `Idempotency-Key` returns the first payment instead of a second one",
        IDEMPOTENCY_KEY_S_DEFAULT,
        usual=(600, 31 * IDEMPOTENCY_KEY_S_DEFAULT),
        unusual="it is in seconds, and a retry after that time creates a second payment",
    )
    default_expiry_s: int | None = setting(
        "after how many seconds a payment without `incomingAmount` and `expiresAt` expires, at most `expiry_s_max`",
        None,
        "never",
        written="2592000",
    )
    metadata_bytes_max: int = setting("the size of `metadata` as compact JSON, in bytes", METADATA_BYTES_DEFAULT)
    metadata_depth_max: int = setting("the depth of `metadata`", METADATA_DEPTH_DEFAULT)
    signature_age_s: int = setting(
        "how old a signature may be, in seconds",
        SIGNATURE_AGE_S_DEFAULT,
        bounds=(1, SIGNATURE_AGE_S_MAX),
        usual=(10, 3600),
        unusual="a short limit refuses requests that travel slowly, and a long limit keeps a stolen request valid",
    )
    clock_skew_s: int = setting(
        "how many seconds a client's clock may be ahead", CLOCK_SKEW_S_DEFAULT, bounds=(0, CLOCK_SKEW_S_MAX)
    )
    signature_shapes: tuple[Shape, ...] = setting(
        f"any of {', '.join(f'`{toml(shape)}`' for shape in Shape)}: also accept the non-standard signature "
        "fields of this SDK. All other checks still apply",
        (),
    )
    wording: Wording = setting(
        f"{' or '.join(f'`{toml(wording)}`' for wording in get_args(Wording))}: the second gives refusals the "
        "descriptions that the Web Monetization extension expects. Their codes stay the same",
        "plain",
    )


@frozen(kw_only=True)
class QuotasTable:
    """The quotas of each client, counted in this process."""

    requests_per_minute: int | None = setting(
        "the requests of one client", None, "no quota", bounds=(1, QUOTA_REQUESTS_MAX), written="600"
    )
    unpaid_payments: int | None = setting(
        "the payments of one client that have received nothing, and are neither completed nor expired",
        None,
        "no quota",
        bounds=(1, QUOTA_UNPAID_MAX),
        written="100",
    )


@frozen(kw_only=True)
class Configuration:
    """All settings: those in front of the first table, and the tables."""

    base_url: str = setting(
        "the public URL of the service for clients: the ids of payments begin with it, and signatures cover it",
        written='"{base_url}"',
    )
    auth_server: str = setting("where clients request grants (GNAP)", written='"{auth_server}"')
    database: Path = setting(
        "the SQLite file for the payments; other processes may use it at the same time", written='"payments.sqlite3"'
    )
    listen: ListenTable = table("The address to listen on.", ListenTable())
    wallet_address: tuple[WalletAddressTable, ...] = table(
        "A wallet address that is hosted here. It excludes [wallet_addresses].",
        (),
        least="one or more tables, or `[wallet_addresses]`",
        reloads=True,
    )
    wallet_addresses: WalletAddressesTable | None = table(
        "The service that keeps your wallet addresses. It excludes [[wallet_address]].",
        None,
        least="at most one",
        reloads=True,
    )
    token: tuple[TokenTable, ...] = table(
        "An access token for development. It excludes [authorization_server], which production needs.",
        (),
        least="any number",
        reloads=True,
    )
    authorization_server: AuthorizationServerTable | None = table(
        "The authorization server, which says for each request whether its token is active. It excludes [[token]].",
        None,
        least="at most one",
    )
    ilp: IlpTable = table("The receiver of ILP packets.", reloads=True)
    peer: tuple[PeerTable, ...] = table(
        "A peer, which sends ILP packets. The service trusts a peer's token to settle the money of its packets. In "
        "production, create a token of your own, and protect it like money.",
        (),
        least="any number of peers; without a peer, the service accepts no packets",
        reloads=True,
    )
    log: LogTable = table("The log, on standard error.", LogTable())
    limits: LimitsTable = table("Limits and policies.", LimitsTable())
    quotas: QuotasTable = table(
        "The quotas of each client, counted in this process. A client that exceeds one gets 429.", QuotasTable()
    )


TABLES: Final = tables_of(Configuration)
_RELOADED: Final = {table.name for table in TABLES if table.reloads}
NEED_RESTART: Final = tuple(name for name in fields_dict(Configuration) if name not in _RELOADED)
