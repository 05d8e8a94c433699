"""The configuration file of `incoming-payments serve`: read as a whole, with errors that name the setting."""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from incoming_payments.clock import utc_now
from incoming_payments.domain.amount import Asset, Tolerance
from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.access import AccessRight, Action
from incoming_payments.gnap.introspection import AccessTokenInfo, StaticIntrospector
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig import Shape
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.ilp_http import HttpPeer, PacketPolicy
from incoming_payments.limits import PEER_TOKENS_MAX, PORT_MAX, SERVER_SECRETS_MAX
from incoming_payments.server import advice, declarations
from incoming_payments.server.authorization import AuthorizationServer, read_authorization_server
from incoming_payments.server.client_key import read_client_key
from incoming_payments.server.files import PRIVATE, Files, read_bounded
from incoming_payments.server.output import LOG_FORMATS, LogFormat
from incoming_payments.server.reader import HARMLESS_NAME, Once, Table, naming
from incoming_payments.server.wallet_addresses import (
    StaticWalletAddresses,
    WalletAddressService,
    check_no_pointer,
    read_listed,
    read_service,
)
from incoming_payments.stores.quotas import MemoryQuotas

# RFC 3986 §3.3: segments that are neither empty nor dots.
_SEGMENT: Final = r"(?!(?:\.|%2[Ee]){1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})+"
_MOUNT: Final = re.compile(f"(?:/{_SEGMENT})*")
_TOML_HINTS: Final = {  # the hints, by the start of a message of `tomllib`
    "Invalid value": "write strings in quotes, and true and false in lower case",
    "Expected newline": "write strings and addresses in quotes",
    "Unescaped": "write / in place of \\ in a path",
    "Cannot overwrite": "the setting is given twice",
    "Cannot declare": "the table is given twice: put its settings under one header",
}
_TABLE: Final = re.compile(rf"\('({HARMLESS_NAME.pattern})',\)")  # a table in a message of `tomllib`
_LISTED: Final = "[[wallet_address]], or give [wallet_addresses]"
_PEER_NAME: Final = re.compile(r"[A-Za-z0-9_~-]{1,64}")


@frozen
class ConfiguredToken:
    """A `[[token]]`: the token, its client and rights, and the file with the public key of its client."""

    value: AccessToken
    info: AccessTokenInfo
    jwk_file: Path


@frozen
class Settings:
    """The values of a configuration file, as the library's own types."""

    policy: ServicePolicy
    database: Path
    host: str
    port: int
    mount: str | None  # `None`: the path of the base URL
    wallet_addresses: StaticWalletAddresses
    introspector: StaticIntrospector = field(repr=False)
    methods: DerivedMethods
    path: Path  # the configuration file
    wallet_address_service: WalletAddressService | None = None  # `None`: the listed wallet addresses only
    authorization_server: AuthorizationServer | None = None  # `None`: the tokens of the introspector only
    packets: PacketPolicy | None = None  # `None` without peers
    tokens: tuple[ConfiguredToken, ...] = ()  # the tokens of the introspector
    explain_signatures: bool = False
    log_format: LogFormat = "text"
    access_log: bool = False
    health: bool = True
    workers: int = 1  # number of processes
    metrics_port: int | None = None  # the port of the first worker; `None`: no metrics
    quotas: MemoryQuotas | None = None  # `None` without a quota
    warnings: tuple[str, ...] = ()  # problems that do not keep the service from running


def load_settings(path: str | os.PathLike[str], *, clock: Callable[[], datetime] = utc_now) -> Settings:
    """Return the settings in the file at `path`. File names in it are relative to its folder.

    `clock` returns the current time, for the warnings about expired tokens.

    Raises `ConfigurationError` that names the setting when one is missing, unknown, of the wrong type or invalid.
    """
    path = Path(path)
    document = _document(path)
    try:
        return _settings(Table(document, ""), path, clock())
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.description}", **error.details) from None


def _document(path: Path) -> dict[str, Any]:
    try:
        # Some editors write a byte order mark, which TOML refuses.
        return tomllib.loads(read_bounded(path).decode("utf-8-sig"))
    except FileNotFoundError:
        text = "does not exist; give another file with --config, or create it with `incoming-payments init FOLDER`"
        raise ConfigurationError(f"{path} {text}") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path} is a folder; give the file in it") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} {error.description}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {_toml_error(str(error))}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except ValueError as error:  # a number of thousands of digits
        raise ConfigurationError(f"{path} is not TOML: {error}") from None


def _toml_error(reason: str) -> str:
    """Return a message of `tomllib` with a hint. It may quote a key, and a key may be a secret in the wrong place."""
    start = next((start for start in _TOML_HINTS if reason.startswith(start)), None)
    reason = reason.replace("Expected '='", "Expected =")
    reason = _TABLE.sub(r"[\1]", reason)
    reason = re.sub(r"['\"].*['\"]", "...", reason, flags=re.DOTALL)
    return reason if start is None else f"{reason}; {_TOML_HINTS[start]}"


def _settings(table: Table, path: Path, now: datetime) -> Settings:
    files = Files(path.parent)
    files.warn_of(path, PRIVATE)
    files.warn_of_folder(path.parent)
    listen = _listen(table.table("listen"))
    limits_table, ilp_table, peer_tables = table.table("limits"), table.table("ilp"), table.tables("peer")
    log_table = table.table("log")
    log = log_table.read(declarations.LOG)
    if log["format"] not in LOG_FORMATS:
        raise log_table.wrong("format", f"must be {' or '.join(map(repr, LOG_FORMATS))}")
    quotas = MemoryQuotas(**table.table("quotas").read(declarations.QUOTAS))
    if listen["workers"] > 1 and quotas != MemoryQuotas():
        reason = "because each worker counts alone; remove [quotas], or set workers = 1"
        text = f"listen.workers is {listen['workers']}, but [quotas] needs one process, {reason}"
        raise ConfigurationError(text, setting="listen.workers")
    token_tables = table.tables("token")
    server_table = table.table("authorization_server") if table.has("authorization_server") else None
    if token_tables and server_table:
        text = "and authorization_server exclude each other: remove one, because a listed token needs no introspection"
        raise table.wrong("token", text)
    service_table = table.table("wallet_addresses") if table.has("wallet_addresses") else None
    listed_tables = table.tables("wallet_address", least=None if service_table else _LISTED)
    if listed_tables and service_table:
        reason = "because the other service could not close a listed wallet address"
        text = f"and wallet_addresses exclude each other: remove one, {reason}"
        raise table.wrong("wallet_address", text)
    top = table.read(declarations.TOP)
    _check_not_empty(table, "database", top["database"])
    _check_database(table, top["database"], files.folder)
    limits, ilp = limits_table.read(declarations.LIMITS), ilp_table.read(declarations.ILP)

    database = files.folder / top["database"]
    files.warn_of_database(database)
    policy = _policy(limits, top)
    listed = StaticWalletAddresses(read_listed(listed_tables, top["auth_server"]))
    service = None if service_table is None else read_service(service_table)
    tokens = _tokens(token_tables, files, service or listed)
    server = None if server_table is None else read_authorization_server(server_table, files, top["auth_server"])
    methods, packets = _ilp(ilp, peer_tables, files)
    advised = (
        *advice.of_listen(policy.base_url, listen["host"], listen["port"], listen["mount"]),
        *advice.of_access(policy.base_url, has_tokens=bool(tokens), server=server),
        *advice.of_values(declarations.LIMITS, limits),
        *advice.of_values(declarations.ILP, ilp),
        *advice.of_tokens([token.info for token in tokens], now),
        *advice.of_assets(
            {f"wallet_address[{place}]": hosted.asset for place, hosted in enumerate(listed)},
            {f"peer[{place}]": account.peer.asset for place, account in enumerate(packets.peers)},
            ilp["tolerance_units"],
        ),
    )
    return Settings(
        policy=policy,
        database=database,
        host=listen["host"],
        port=listen["port"],
        mount=listen["mount"],
        wallet_addresses=listed,
        introspector=StaticIntrospector([(token.value, token.info) for token in tokens]),
        methods=methods,
        path=path,
        wallet_address_service=service,
        authorization_server=server,
        packets=packets if packets.peers else None,
        tokens=tuple(tokens),
        explain_signatures=log["explain_signatures"],
        log_format=log["format"],
        access_log=log["access"],
        health=listen["health"],
        workers=listen["workers"],
        metrics_port=listen["metrics_port"],
        quotas=None if quotas == MemoryQuotas() else quotas,
        warnings=(*files.warnings, *(f"{path}: {text}" for text in advised)),
    )


def _check_database(table: Table, name: str, folder: Path) -> None:
    if name == ":memory:":
        text = 'is ":memory:", but payments must survive a restart: give a file, such as "payments.sqlite3"'
    elif "://" in name or name.startswith("file:"):
        text = (
            'must be the name of a file, such as "payments.sqlite3", and no URL: serve stores payments in SQLite only'
        )
    elif name.startswith("~"):
        text = "begins with ~, which is not expanded: write the whole path"
    elif name.endswith("/") or os.path.isdir(folder / name):
        text = f"is the folder {folder / name}: give the name of a file in it"
    else:
        return
    raise table.wrong("database", text)


def _is_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host) is not None
    except ValueError:
        return re.search(r"[:/\[\]*]", host) is None


def _listen(table: Table) -> dict[str, Any]:
    listen = table.read(declarations.LISTEN)
    _check_not_empty(table, "host", listen["host"])
    if not _is_host(listen["host"]):
        text = 'must be a host name or an IP address alone, such as "127.0.0.1", "::1" or, for all, "0.0.0.0"'
        raise table.wrong("host", f"{text}; the port is listen.port")
    if listen["mount"] and not _MOUNT.fullmatch(listen["mount"]):
        text = 'must be "", or a path such as "/op": no slash at its end, no dot segments, no query'
        raise table.wrong("mount", text)
    port, further = listen["metrics_port"] or 0, listen["workers"] - 1
    if port + further > PORT_MAX:
        need = f"so the {listen['workers']} workers would need ports up to {port + further}"
        raise table.wrong("metrics_port", f"is {port}, {need}; give at most {PORT_MAX - further}")
    return listen


def _check_not_empty(table: Table, name: str, text: str) -> None:
    if not text or "\0" in text:
        raise table.wrong(name, "must not be empty, and must not contain NUL")


def _policy(limits: Mapping[str, Any], top: Mapping[str, Any]) -> ServicePolicy:
    limits = dict(limits)
    age, skew = limits.pop("signature_age_s"), limits.pop("clock_skew_s")
    shapes = limits.pop("signature_shapes")
    if not all(name in list(Shape) for name in shapes):
        known = " and ".join(map(repr, map(str, Shape)))
        name = "limits.signature_shapes"
        raise ConfigurationError(f"{name} must be an array of {known}", setting=name)
    signature = SignaturePolicy(max_age_s=age, clock_skew_s=skew, shapes=[Shape(name) for name in shapes])
    members = {name: f"limits.{name}" for name in limits}
    with naming("", limits, base_url="base_url", auth_server="auth_server", **members):
        return ServicePolicy(base_url=top["base_url"], auth_server=top["auth_server"], signature=signature, **limits)


def _tokens(
    tables: Sequence[Table], files: Files, hosted: StaticWalletAddresses | WalletAddressService
) -> list[ConfiguredToken]:
    tokens, once = [], Once()
    for table in tables:
        token = _token(table, files, hosted)
        once.add(token.value, f"{table.name}.value", "give each token a value of its own")
        tokens.append(token)
    return tokens


def _token(table: Table, files: Files, hosted: StaticWalletAddresses | WalletAddressService) -> ConfiguredToken:
    entry = table.read(declarations.TOKEN)
    rights = [_right(right, hosted) for right in entry["rights"]]
    expires_at = entry["expires_at"]
    if expires_at is not None:
        expires_at = _in_utc(table, "expires_at", expires_at)
    with naming(f"{table.name}.jwk_file"):
        jwk = read_client_key(files, entry["jwk_file"])
    with naming(f"{table.name}.value"):
        value = AccessToken(entry["value"])
    with naming(table.name, client="client", rights="rights"):
        info = AccessTokenInfo(entry["client"], jwk, tuple(rights), expires_at)
    return ConfiguredToken(value, info, files.folder / entry["jwk_file"])


def _in_utc(table: Table, name: str, time: datetime) -> datetime:
    if time.tzinfo is None:
        raise table.wrong(name, "needs an offset, such as the Z of 2027-01-01T00:00:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise table.wrong(name, "must be in the years 1 to 9999 of UTC") from None


def _right(table: Table, hosted: StaticWalletAddresses | WalletAddressService) -> AccessRight:
    entry = table.read(declarations.RIGHT)
    known = list(Action)
    for action in entry["actions"]:
        if action not in known:
            near = difflib.get_close_matches(str(action).lower(), known, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            raise table.wrong("actions", f"must be among {', '.join(known)}{hint}")
    if entry["identifier"] is not None:
        check_no_pointer(table, "identifier", entry["identifier"])
    with naming(table.name, actions="actions", identifier="identifier"):
        right = AccessRight(entry["actions"], entry["identifier"])
    if right.identifier is not None and not hosted.may_host(right.identifier):
        text = f"is not a wallet address of this configuration: {right.identifier}; use one {hosted.described()}"
        raise table.wrong("identifier", text)
    return right


def _ilp(ilp: Mapping[str, Any], peer_tables: Sequence[Table], files: Files) -> tuple[DerivedMethods, PacketPolicy]:
    secrets, once = [], Once()
    for setting, name in _file_names("ilp.secret_files", ilp["secret_files"], SERVER_SECRETS_MAX):
        with naming(setting):
            secrets.append(files.server_secret(name))
        once.add(secrets[-1].hex(), setting, "give each secret once")
    with naming("ilp", ilpAddress="address"):
        methods = DerivedMethods(ilp["address"], secrets)
    with naming("ilp", {"units": ilp["tolerance_units"]}, units="tolerance_units"):
        tolerance = Tolerance(ilp["tolerance_units"], ilp["tolerance_basis_points"])
    peers = _peers(peer_tables, files, methods, once)
    with naming("ilp", path="path"):
        receiver = Receiver(methods, tolerance, ilp["margin_ms"])
        return methods, PacketPolicy(receiver=receiver, peers=peers, path=ilp["path"])


def _peers(tables: Sequence[Table], files: Files, methods: DerivedMethods, once: Once) -> list[HttpPeer]:
    found: dict[str, HttpPeer] = {}
    for table in tables:
        entry = table.read(declarations.PEER)
        name = entry["name"]
        if not _PEER_NAME.fullmatch(name):
            text = "must be 1 to 64 letters, digits and _~-, so that it can be a segment of an ILP address"
            raise table.wrong("name", text)
        if name in found:
            raise table.wrong("name", f"is listed twice: {name}")
        found[name] = _peer(table, entry, files, f"{methods.prefix}.{name}", once)
    return list(found.values())


def _peer(table: Table, entry: Mapping[str, Any], files: Files, address: str, once: Once) -> HttpPeer:
    tokens = []
    for setting, name in _file_names(f"{table.name}.token_files", entry["token_files"], PEER_TOKENS_MAX):
        with naming(setting):
            tokens.append(files.peer_token(name))
        once.add(tokens[-1].value, setting, "give each file a token of its own")
    given = address if entry["ilp_address"] is None else entry["ilp_address"]
    scale = {"assetScale": entry["asset_scale"]}
    with naming(table.name, scale, ilpAddress="ilp_address", assetCode="asset_code", assetScale="asset_scale"):
        return HttpPeer(Peer(given, Asset(entry["asset_code"], entry["asset_scale"])), tokens)


def _file_names(setting: str, names: Sequence[Any], most: int) -> Iterator[tuple[str, str]]:
    """Yield each file name with the name of its place in the array."""
    if not all(isinstance(file, str) for file in names):
        raise ConfigurationError(f"{setting} must be an array of file names", setting=setting)
    if not 1 <= len(names) <= most:
        raise ConfigurationError(f"{setting} must name 1 to {most} files, not {len(names)}", setting=setting)
    for place, name in enumerate(names):
        yield f"{setting}[{place}]", name
