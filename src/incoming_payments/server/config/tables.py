"""Declare the settings of `serve`.

The reader, its errors, the configuration that `init` writes, the tables in `docs/settings.md` and the reload on SIGHUP
all use these classes. `docs/extending.md` explains how to add a setting.
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
    DRAIN_S_MAX,
    EXPIRY_S_MAX_DEFAULT,
    IDEMPOTENCY_KEY_S_DEFAULT,
    METADATA_BYTES_DEFAULT,
    METADATA_DEPTH_DEFAULT,
    PORT_MAX,
    QUOTA_REQUESTS_MAX,
    QUOTA_UNPAID_MAX,
    REFERENCE_CHARS_MAX,
    SIGNATURE_AGE_S_DEFAULT,
    SIGNATURE_AGE_S_MAX,
    WORKERS_MAX,
)
from incoming_payments.server.config.access import AuthorizationServerTable, TokenTable
from incoming_payments.server.config.events import ConsumerTable, EventsTable
from incoming_payments.server.config.packets import IlpTable, PeerTable
from incoming_payments.server.config.postgres import PostgresDatabase, PostgresTable
from incoming_payments.server.config.setting import invalid, setting, table, tables_of, toml
from incoming_payments.server.config.sweep import SweepTable
from incoming_payments.server.config.wallet_addresses import WalletAddressesTable, WalletAddressTable
from incoming_payments.server.config.webhooks import WebhookTable
from incoming_payments.server.output import LOG_FORMATS, LogFormat

# a path segment (RFC 3986 §3.3) that is neither empty nor a dot segment
_SEGMENT: Final = r"(?!(?:\.|%2[Ee]){1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})+"
_MOUNT: Final = re.compile(f"(?:/{_SEGMENT})*")


def _check_host(_: object, attribute: "Attribute[str]", host: str) -> None:
    if not host or "\0" in host:
        raise invalid(attribute, "must not be empty, and must not contain NUL")
    if not _is_host(host):
        text = (
            'must be only a host name or an IP address, such as "127.0.0.1", "::1", or "0.0.0.0" for all IPv4 addresses'
        )
        raise invalid(attribute, f"{text}: write the port in listen.port")


def _is_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host) is not None
    except ValueError:
        return re.search(r"[:/\[\]*]", host) is None


def _check_mount(_: object, attribute: "Attribute[str]", mount: str | None) -> None:
    if mount and not _MOUNT.fullmatch(mount):
        text = 'must be "", or a path such as "/op" that has no slash at the end, no dot segments and no query'
        raise invalid(attribute, text)


def _check_reference(_: object, attribute: "Attribute[str]", member: str | None) -> None:
    if member is not None and not 1 <= len(member) <= REFERENCE_CHARS_MAX:
        raise invalid(attribute, f"must have 1 to {REFERENCE_CHARS_MAX} characters")


@frozen(kw_only=True)
class ListenTable:
    """The address to listen on."""

    host: str = setting("the host name or IP address to listen on", "127.0.0.1", check=_check_host, is_active=True)
    port: int = setting("the port", 8080, bounds=(1, PORT_MAX), written="{port}", is_active=True)
    workers: int = setting(
        "the number of processes that serve requests, at most one for each processor",
        1,
        bounds=(1, WORKERS_MAX),
    )
    drain_s: int = setting(
        "the seconds after SIGTERM in which the service still accepts requests and `/readyz` answers 503, so that a "
        "proxy switches to other instances; see [rolling restarts](production.md#rolling-restarts)",
        0,
        bounds=(0, DRAIN_S_MAX),
    )
    mount: str | None = setting(
        'the path in front of `/incoming-payments` in requests that reach this service; `""` if a proxy '
        "removes the path",
        None,
        "the path of `base_url`",
        check=_check_mount,
        written='""',
    )
    health: bool = setting(
        "whether the service answers `GET /healthz` (200 if the process works) and `GET /readyz` (200 if the "
        "store works)",
        True,
    )
    metrics_port: int | None = setting(
        "the port on `host` where the first worker serves Prometheus metrics at `/metrics`. Each further "
        "worker uses the next port. This setting needs `incoming-payments[prometheus]`",
        None,
        "no metrics",
        bounds=(1, PORT_MAX),
        written="9464",
    )


@frozen(kw_only=True)
class LogTable:
    """The log."""

    explain_signatures: bool = setting("whether the log explains refused signatures, at most 10 times a minute", False)
    format: LogFormat = setting(
        f"{' or '.join(f'`{toml(form)}`' for form in LOG_FORMATS)}: write lines of text, or a JSON object in each line",
        "text",
        written='"json"',
    )
    access: bool = setting("whether the log has a line for each request", False, written="true")


@frozen(kw_only=True)
class LimitsTable:
    """Limits and policies of the service."""

    public_get: bool = setting("whether clients without a token may read how much a payment has received", True)
    public_cors: bool = setting("whether scripts of any website may read the public view", True)
    allow_identical: bool = setting(
        "whether a client without nonces may repeat a signed request, until its signature is too old. "
        "`false` breaks payments from Rafiki, which reads a payment twice in one second with identical requests",
        True,
    )
    expiry_s_max: int = setting(
        "how many seconds in the future `expiresAt` may be",
        EXPIRY_S_MAX_DEFAULT,
        usual=(60, 10 * EXPIRY_S_MAX_DEFAULT),
        unusual="the value is in seconds, and the service refuses clients that request a longer time",
    )
    idempotency_key_s: int = setting(
        "for how many seconds a repeated `Idempotency-Key` returns the first payment and creates no second payment",
        IDEMPOTENCY_KEY_S_DEFAULT,
        usual=(600, 31 * IDEMPOTENCY_KEY_S_DEFAULT),
        unusual="the value is in seconds, and a retry after that time creates a second payment",
    )
    default_expiry_s: int | None = setting(
        "after how many seconds a payment that has neither `incomingAmount` nor `expiresAt` expires, at most "
        "`expiry_s_max`",
        None,
        "never",
        written="2592000",
    )
    metadata_bytes_max: int = setting("the size limit of `metadata` as compact JSON, in bytes", METADATA_BYTES_DEFAULT)
    metadata_depth_max: int = setting("the limit on nested levels of `metadata`", METADATA_DEPTH_DEFAULT)
    signature_age_s: int = setting(
        "the greatest age of a signature, in seconds",
        SIGNATURE_AGE_S_DEFAULT,
        bounds=(1, SIGNATURE_AGE_S_MAX),
        usual=(10, 3600),
        unusual="a short limit refuses requests that arrive late, and a long limit keeps a stolen request "
        "valid for longer",
    )
    clock_skew_s: int = setting(
        "how many seconds a client's clock may be ahead of the service's clock",
        CLOCK_SKEW_S_DEFAULT,
        bounds=(0, CLOCK_SKEW_S_MAX),
    )
    signature_shapes: tuple[Shape, ...] = setting(
        f"any of {', '.join(f'`{toml(shape)}`' for shape in Shape)}: for each SDK in this list, the service "
        f"also accepts its non-standard signature fields. All other checks still apply",
        (),
    )
    trailing_slash: bool = setting(
        "whether one slash may follow the path of a request, as some Java clients send it. `false` answers 404",
        False,
    )
    wording: Wording = setting(
        f"{' or '.join(f'`{toml(wording)}`' for wording in get_args(Wording))}: the descriptions in error "
        'responses. `"web-monetization"` selects those that the Web Monetization extension expects. The error '
        "codes stay the same",
        "plain",
    )


@frozen(kw_only=True)
class QuotasTable:
    """The quotas of each client, which all workers share."""

    requests_per_minute: int | None = setting(
        "how many requests a client may send in a minute",
        None,
        "no quota",
        bounds=(1, QUOTA_REQUESTS_MAX),
        written="600",
    )
    unpaid_payments: int | None = setting(
        "how many payments a client may have that have received nothing, and are neither completed nor expired",
        None,
        "no quota",
        bounds=(1, QUOTA_UNPAID_MAX),
        written="100",
    )


@frozen(kw_only=True)
class Configuration:
    """All settings: the top-level settings, and the tables."""

    base_url: str = setting(
        "the URL at which clients reach the service. The ids of payments begin with this URL, and signatures cover it",
        written='"{base_url}"',
    )
    auth_server: str = setting("the URL where clients request grants (GNAP)", written='"{auth_server}"')
    database: Path | PostgresDatabase = setting(
        "the SQLite file for the payments, or a URL of PostgreSQL such as `postgresql://bank@db.internal/bank`. Other "
        "processes may use the database at the same time",
        written="{database}",
    )
    reference: str | None = setting(
        "the member of `metadata` by which your own app finds payments, such as `externalRef`. If the database has "
        "payments, run `incoming-payments reindex` after a change",
        None,
        "the member that the database indexes",
        check=_check_reference,
        written='"externalRef"',
    )
    postgres: PostgresTable = table("The connections to PostgreSQL, if `database` is a URL.", PostgresTable())
    listen: ListenTable = table("The address to listen on.", ListenTable())
    wallet_address: tuple[WalletAddressTable, ...] = table(
        "A wallet address that this service hosts. This table excludes [wallet_addresses].",
        (),
        least="one or more tables, or `[wallet_addresses]`",
        reloads=True,
    )
    wallet_addresses: WalletAddressesTable | None = table(
        "The service that keeps your wallet addresses. This table excludes [[wallet_address]].",
        None,
        least="at most one",
        reloads=True,
    )
    token: tuple[TokenTable, ...] = table(
        "An access token for development. This table excludes [authorization_server], which production needs.",
        (),
        least="any number",
        reloads=True,
    )
    authorization_server: AuthorizationServerTable | None = table(
        "The authorization server, which knows the active tokens. This table excludes [[token]].",
        None,
        least="at most one",
    )
    ilp: IlpTable = table("The receiver of ILP packets.", reloads=True)
    peer: tuple[PeerTable, ...] = table(
        "A peer, which sends ILP packets. The service accepts the packets that come with the peer's token, "
        "and trusts the peer to settle the money. In production, create a new token, and protect it like money.",
        (),
        least="any number of tables. If there is none, the service accepts no packets",
        reloads=True,
    )
    webhooks: tuple[WebhookTable, ...] = table(
        "An endpoint that gets webhooks about the events of payments.",
        (),
        least="any number",
    )
    log: LogTable = table("The log, which goes to standard error.", LogTable())
    limits: LimitsTable = table("Limits and policies of the service.", LimitsTable())
    quotas: QuotasTable = table(
        "The quotas of each client, which all workers share. A client that exceeds a quota gets 429.", QuotasTable()
    )
    sweep: SweepTable = table(
        "The sweep, which writes `expired` events, erases old metadata, and deletes old deliveries.", SweepTable()
    )
    events: EventsTable = table("The feed of events over HTTP.", EventsTable())
    consumer: tuple[ConsumerTable, ...] = table(
        "A consumer, which pulls its events over HTTP. This table needs the port of [events].",
        (),
        least="any number",
    )


TABLES: Final = tables_of(Configuration)
_RELOADED: Final = {table.name for table in TABLES if table.reloads}
NEED_RESTART: Final = tuple(name for name in fields_dict(Configuration) if name not in _RELOADED)
