"""The settings of `serve`, each declared once.

These tables are the source of the configuration that `init` writes, of the reader with its errors, and of the table in
`docs/server.md`. `docs/extending.md` explains how to add a setting.
"""

import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from attrs import frozen

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
    METADATA_BYTES_MAX,
    METADATA_DEPTH_MAX,
    PREPARE_MARGIN_MS_MIN,
    PREPARE_MARGIN_SETTING_MS_MAX,
    SIGNATURE_AGE_S_MAX,
    SIGNATURE_AGE_SETTING_S_MAX,
)

REQUIRED: Final = object()  # the default of a setting that must be given


@frozen
class Setting:
    """One setting.

    `default` is its value when it is left out. `REQUIRED` means that a missing setting is an error. `None` means
    that `otherwise` describes the default. `bounds` are its least and greatest value. A value outside `usual` gets a
    warning that gives the reason in `unusual`. `written` is its value in the configuration of `init`, as TOML with
    placeholders in braces. Without `written`, `init` writes the default. `init` writes an optional setting as a
    comment.
    """

    name: str
    type: type
    meaning: str
    default: Any = REQUIRED
    otherwise: str = ""
    bounds: tuple[int, int] | None = None
    usual: tuple[int, int] | None = None
    unusual: str = ""
    written: str | None = None
    is_active: bool = False  # whether `init` sets it although it is optional
    example: str = ""  # for an array of tables with at least one table: how to write it

    @property
    def values(self) -> str:
        """Return the allowed and the usual values as text."""
        parts = [f"from {self.bounds[0]} to {self.bounds[1]}"] if self.bounds else []
        parts += [f"usually {self.usual[0]} to {self.usual[1]}"] if self.usual else []
        return ", ".join(parts)

    @property
    def usually(self) -> str:
        """Return the usual values with the reason, or `""` if every value is usual."""
        return f"usually it is {self.usual[0]} to {self.usual[1]}, because {self.unusual}" if self.usual else ""

    @property
    def line(self) -> str:
        """Return the line of `init` for this setting."""
        line = f"{self.name} = {self.written if self.written is not None else toml(self.default)}"
        return line if self.default is REQUIRED or self.is_active else f"# {line}"


@frozen
class TableOf:
    """One TOML table of settings. `header` is its name with brackets, and `least` is the required number of tables."""

    name: str
    header: str
    meaning: str
    settings: tuple[Setting, ...]
    least: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the settings."""
        return tuple(setting.name for setting in self.settings)


def toml(value: object) -> str:
    """Return a setting's default as TOML.

    >>> toml(True), toml("a"), toml([])
    ('true', '"a"', '[]')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


_AUTH_SERVER: Final = "the `auth_server` of the service"

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
        Setting("auth_server", str, "where clients request grants (GNAP)", written='"{base_url}/auth"'),
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
        Setting("port", int, "the port", 8080, bounds=(1, 65535), written="{port}", is_active=True),
        Setting(
            "mount",
            str,
            'the path of requests in front of `/incoming-payments`: `""` behind a proxy that removes it',
            None,
            "the path of `base_url`",
            written='""',
        ),
    ),
)
WALLET_ADDRESS: Final = TableOf(
    "wallet_address",
    "[[wallet_address]]",
    "A wallet address that is hosted here.",
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
    least="one or more",
)
TOKEN: Final = TableOf(
    "token",
    "[[token]]",
    "An access token for development. In production, an introspector queries the authorization server.",
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
            written='[{{ actions = ["create", "read"], identifier = "{base_url}/alice" }}]',
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
            "explain_signatures",
            bool,
            "whether the log explains refused signatures, 10 times a minute at most",
            False,
        ),
    ),
)
LIMITS: Final = TableOf(
    "limits",
    "[limits]",
    "Limits and policies.",
    (
        Setting("public_get", bool, "whether a payment's URL alone shows how much the payment has received", True),
        Setting("public_cors", bool, "whether scripts of any website may read this public view", True),
        Setting("allow_identical", bool, "whether a signed request without nonce may be repeated while fresh", True),
        Setting(
            "expiry_s_max",
            int,
            "how many seconds ahead `expiresAt` may lie",
            EXPIRY_S_MAX,
            usual=(60, 10 * EXPIRY_S_MAX),
            unusual="it is in seconds, and clients that request a longer time are refused",
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
            f"any of {', '.join(f'`{toml(str(shape))}`' for shape in Shape)}: also read signature fields in the shape "
            "that this SDK sends, which is no structured field. Every other check stays",
            [],
        ),
    ),
)

TABLES: Final = (TOP, LISTEN, WALLET_ADDRESS, TOKEN, RIGHT, ILP, PEER, LOG, LIMITS)


def documented() -> str:
    """Return all settings as a Markdown table, for `docs/server.md`."""
    lines = ["| table | setting | type | meaning | when left out |", "|---|---|---|---|---|"]
    for table in TABLES:
        heading = f"`{table.header}`" + (f", {table.least}" if table.least else "") if table.header else ""
        for setting in table.settings:
            meaning = setting.meaning + (f"; {setting.values}" if setting.values else "")
            cells = [heading, f"`{setting.name}`", TYPES[setting.type], meaning, _otherwise(setting)]
            lines.append(f"| {' | '.join(cells)} |")
            heading = ""
    return "\n".join(lines)


def _otherwise(setting: Setting) -> str:
    if setting.default is REQUIRED:
        return "error"
    return setting.otherwise or f"`{toml(setting.default)}`"


def template(**values: object) -> str:
    """Return the configuration that `init` writes, with `values` for the placeholders."""
    return "\n".join(_template_lines()).format(**values) + "\n"


def _template_lines() -> Iterator[str]:
    yield "# The configuration of `incoming-payments serve`."
    for table in TABLES:
        if table is RIGHT:  # written in its token
            continue
        yield from _comment(table.meaning, "# ")
        yield from [table.header] * bool(table.header)
        for setting in table.settings:
            values = f" ({setting.values})" if setting.values else ""
            yield from _comment(setting.meaning.replace("`", "") + values, "#   ")
            yield setting.line
        yield ""


def _comment(text: str, start: str) -> Iterator[str]:
    yield from textwrap.wrap(text, 118, initial_indent=start, subsequent_indent=start, break_on_hyphens=False)


TYPES: Final = {
    str: "string",
    int: "integer",
    bool: "boolean",
    list: "array",
    datetime: "date-time",
}
