"""The configuration file of `incoming-payments serve`: read as a whole, with errors that name the setting."""

import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from attrs import field, frozen

from incoming_payments.domain.amount import Asset, Tolerance
from incoming_payments.domain.payment import WalletAddress, WalletAddressUrl, wallet_address_url
from incoming_payments.errors import ConfigurationError, InvalidValue, Malformed
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import AccessTokenInfo, StaticIntrospector
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig import Shape, load_jwk
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.ilp_http import HttpPeer, PacketPolicy
from incoming_payments.server import declarations
from incoming_payments.server.files import PRIVATE, PUBLIC, Files
from incoming_payments.server.reader import Table, naming

# RFC 3986 §3.3: segments that are neither empty nor dots.
_SEGMENT: Final = r"(?!(?:\.|%2[Ee]){1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})+"
_MOUNT: Final = re.compile(f"(?:/{_SEGMENT})*")
_PEER_NAME: Final = re.compile(r"[A-Za-z0-9_~-]{1,64}")


class StaticWalletAddresses:
    """The wallet addresses of a configuration file: a `WalletAddresses` port."""

    def __init__(self, wallet_addresses: Sequence[WalletAddress]) -> None:
        self._by_url = {wallet_address.url: wallet_address for wallet_address in wallet_addresses}

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address with this URL, or `None`."""
        return self._by_url.get(url)


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
    mount: str
    wallet_addresses: StaticWalletAddresses
    introspector: StaticIntrospector = field(repr=False)
    methods: DerivedMethods
    packets: PacketPolicy | None = None  # `None` without peers
    tokens: tuple[ConfiguredToken, ...] = ()  # the tokens of the introspector
    explain_signatures: bool = False
    warnings: tuple[str, ...] = ()  # problems that do not keep the service from running


def load_settings(path: str | os.PathLike[str]) -> Settings:
    """Return the settings in the file at `path`. File names in it are relative to its folder.

    Raises `ConfigurationError` that names the setting when one is missing, unknown, of the wrong type or invalid.
    """
    path = Path(path)
    document = _document(path)
    try:
        return _settings(Table(document, ""), path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.description}", **error.details) from None


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))  # some editors write a byte order mark, which TOML refuses
    except FileNotFoundError:
        text = f"{path}: does not exist; create it with `incoming-payments init FOLDER`"
        raise ConfigurationError(text) from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a folder; give the file in it") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        # The message may quote a key, and a key may be a secret in the wrong place.
        reason = re.sub(r"['\"].*['\"]", "...", str(error), flags=re.DOTALL)
        raise ConfigurationError(f"{path}: is not TOML: {reason}") from None
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None


def _settings(table: Table, path: Path) -> Settings:
    files = Files(path.parent)
    files.warn_of(path, PRIVATE)
    listen = _listen(table.table("listen"))
    limits = table.table("limits")
    log = table.table("log").read(declarations.LOG)
    ilp_table, peer_tables = table.table("ilp"), table.tables("peer")
    token_tables = table.tables("token")
    wallet_address_tables = table.tables("wallet_address", least="[[wallet_address]]")
    top = table.read(declarations.TOP)
    _check_not_empty(table, "database", top["database"])

    policy = _policy(limits, top)
    wallet_addresses = _wallet_addresses(wallet_address_tables, top["auth_server"])
    tokens = [_token(entry, files, wallet_addresses) for entry in token_tables]
    with naming("token"):
        introspector = StaticIntrospector([(token.value, token.info) for token in tokens])
    methods, packets = _ilp(ilp_table, peer_tables, files)
    return Settings(
        policy=policy,
        database=files.folder / top["database"],
        host=listen["host"],
        port=listen["port"],
        mount=urlsplit(policy.base_url).path if listen["mount"] is None else listen["mount"],
        wallet_addresses=StaticWalletAddresses(list(wallet_addresses.values())),
        introspector=introspector,
        methods=methods,
        packets=packets if packets.peers else None,
        tokens=tuple(tokens),
        explain_signatures=log["explain_signatures"],
        warnings=(*files.warnings, *_useless(packets.peers, wallet_addresses.values())),
    )


def _useless(peers: Sequence[HttpPeer], wallet_addresses: Collection[WalletAddress]) -> Iterator[str]:
    paid = {wallet_address.asset for wallet_address in wallet_addresses}
    for place, account in enumerate(peers):
        asset = account.peer.asset
        if asset not in paid:
            name = f"{asset.code} at scale {asset.scale}"
            yield f"peer[{place}] has the asset {name}, but no wallet address has this asset: this peer cannot pay"


def _listen(table: Table) -> dict[str, Any]:
    listen = table.read(declarations.LISTEN)
    _check_not_empty(table, "host", listen["host"])
    if listen["mount"] and not _MOUNT.fullmatch(listen["mount"]):
        text = 'must be "", or a path such as "/op": no slash at its end, no dot segments, no query'
        raise table.wrong("mount", text)
    return listen


def _check_not_empty(table: Table, name: str, text: str) -> None:
    if not text or "\0" in text:
        raise table.wrong(name, "must not be empty, and must not contain NUL")


def _policy(table: Table, top: Mapping[str, Any]) -> ServicePolicy:
    limits = table.read(declarations.LIMITS)
    age, skew = limits.pop("signature_age_s"), limits.pop("clock_skew_s")
    shapes = limits.pop("signature_shapes")
    if not all(name in list(Shape) for name in shapes):
        known = " and ".join(map(repr, map(str, Shape)))
        raise table.wrong("signature_shapes", f"must be an array of {known}")
    signature = SignaturePolicy(max_age_s=age, clock_skew_s=skew, shapes=[Shape(name) for name in shapes])
    with naming("", base_url="base_url", auth_server="auth_server", **{name: f"limits.{name}" for name in limits}):
        return ServicePolicy(base_url=top["base_url"], auth_server=top["auth_server"], signature=signature, **limits)


def _wallet_addresses(tables: Sequence[Table], auth_server: str) -> dict[str, WalletAddress]:
    found: dict[str, WalletAddress] = {}
    for table in tables:
        entry = table.read(declarations.WALLET_ADDRESS)
        with naming(
            table.name, walletAddress="url", assetCode="asset_code", assetScale="asset_scale", authServer="auth_server"
        ):
            wallet_address = WalletAddress(
                wallet_address_url(entry["url"]),
                Asset(entry["asset_code"], entry["asset_scale"]),
                auth_server if entry["auth_server"] is None else entry["auth_server"],
            )
        if wallet_address.url in found:
            raise table.wrong("url", f"is listed twice: {wallet_address.url}")
        found[wallet_address.url] = wallet_address
    return found


def _token(table: Table, files: Files, hosted: Collection[str]) -> ConfiguredToken:
    entry = table.read(declarations.TOKEN)
    rights = [_right(right, hosted) for right in entry["rights"]]
    expires_at = entry["expires_at"]
    if expires_at is not None:
        expires_at = _in_utc(table, "expires_at", expires_at)
    with naming(f"{table.name}.jwk_file"):
        jwk = _jwk(files, entry["jwk_file"])
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


def _jwk(files: Files, name: str) -> Any:
    text = files.read(name, PUBLIC)
    if text.startswith(b"-----BEGIN"):
        raise InvalidValue(f"{files.folder / name} holds PEM: give a file with the public key as a JWK, which is JSON")
    try:
        load_jwk(text)
    except Malformed as error:
        raise InvalidValue(f"{files.folder / name} cannot be used: {error.description}") from None
    return json.loads(text)


def _right(table: Table, hosted: Collection[str]) -> AccessRight:
    entry = table.read(declarations.RIGHT)
    with naming(table.name, actions="actions", identifier="identifier"):
        right = AccessRight(entry["actions"], entry["identifier"])
    if right.identifier is not None and right.identifier not in hosted:
        raise table.wrong("identifier", f"is not a wallet address of this configuration: {right.identifier}")
    return right


def _ilp(table: Table, peer_tables: Sequence[Table], files: Files) -> tuple[DerivedMethods, PacketPolicy]:
    ilp = table.read(declarations.ILP)
    secrets = []
    for place, name in enumerate(_file_names(table, "secret_files", ilp["secret_files"])):
        with naming(f"{table.name}.secret_files[{place}]"):
            secrets.append(files.server_secret(name))
    with naming(table.name, ilpAddress="address", secrets="secret_files"):
        methods = DerivedMethods(ilp["address"], secrets)
    with naming(table.name, units="tolerance_units", basis_points="tolerance_basis_points"):
        tolerance = Tolerance(ilp["tolerance_units"], ilp["tolerance_basis_points"])
    peers = _peers(peer_tables, files, methods)
    with naming("", path="ilp.path", peers="peer", margin_ms="ilp.margin_ms"):
        receiver = Receiver(methods, tolerance, ilp["margin_ms"])
        return methods, PacketPolicy(receiver=receiver, peers=peers, path=ilp["path"])


def _peers(tables: Sequence[Table], files: Files, methods: DerivedMethods) -> list[HttpPeer]:
    found: dict[str, HttpPeer] = {}
    for table in tables:
        entry = table.read(declarations.PEER)
        name = entry["name"]
        if not _PEER_NAME.fullmatch(name):
            text = "must be 1 to 64 letters, digits and _~-, so that it can be a segment of an ILP address"
            raise table.wrong("name", text)
        if name in found:
            raise table.wrong("name", f"is listed twice: {name}")
        found[name] = _peer(table, entry, files, f"{methods.prefix}.{name}")
    return list(found.values())


def _peer(table: Table, entry: Mapping[str, Any], files: Files, address: str) -> HttpPeer:
    tokens = []
    for place, name in enumerate(_file_names(table, "token_files", entry["token_files"])):
        with naming(f"{table.name}.token_files[{place}]"):
            tokens.append(files.peer_token(name))
    given = address if entry["ilp_address"] is None else entry["ilp_address"]
    with naming(
        table.name, ilpAddress="ilp_address", assetCode="asset_code", assetScale="asset_scale", tokens="token_files"
    ):
        return HttpPeer(Peer(given, Asset(entry["asset_code"], entry["asset_scale"])), tokens)


def _file_names(table: Table, name: str, names: Sequence[Any]) -> Sequence[str]:
    if not all(isinstance(file, str) for file in names):
        raise table.wrong(name, "must be an array of file names")
    return names
