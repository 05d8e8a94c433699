"""The TOML configuration of `incoming-payments serve`: checked as a whole, every complaint naming its setting."""

import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from attrs import field, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.lifecycle import Tolerance
from incoming_payments.domain.payment import WalletAddress, WalletAddressUrl, wallet_address_url
from incoming_payments.errors import ConfigurationError, InvalidValue, Malformed
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import AccessTokenInfo, StaticIntrospector
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig import Shape, load_jwk
from incoming_payments.ilp import DerivedMethods, Peer, Receiver
from incoming_payments.ilp_http import ILP_PATH, HttpPeer, PacketPolicy
from incoming_payments.limits import (
    CLOCK_SKEW_S_MAX,
    CLOCK_SKEW_SETTING_S_MAX,
    EXCESS_BASIS_POINTS_MAX,
    EXCESS_UNITS_MAX,
    PREPARE_MARGIN_MS_MIN,
    SERVER_SECRET_BYTES_MIN,
    SIGNATURE_AGE_S_MAX,
    SIGNATURE_AGE_SETTING_S_MAX,
)

T = TypeVar("T")

POSIX = os.name == "posix"  # modes say something about other users

_REQUIRED: Final = object()
# RFC 3986 §3.3: segments that are neither empty nor dots.
_SEGMENT: Final = r"(?!(?:\.|%2[Ee]){1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})+"
_MOUNT: Final = re.compile(f"(?:/{_SEGMENT})*")
_PEER_NAME: Final = re.compile(r"[A-Za-z0-9_~-]{1,64}")
_SHOWN: Final = re.compile(r"[a-z][a-z_-]{0,23}")  # like a setting, and unlike anything random


class StaticWalletAddresses:
    """The wallet addresses of a configuration file: a `WalletAddresses` port."""

    def __init__(self, wallet_addresses: Sequence[WalletAddress]) -> None:
        self._by_url = {wallet_address.url: wallet_address for wallet_address in wallet_addresses}

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """The wallet address with this URL, or `None`."""
        return self._by_url.get(url)


@frozen
class ConfiguredToken:
    """A `[[token]]`: the token, what it stands for, and the file with the public key of its client."""

    value: AccessToken
    info: AccessTokenInfo
    jwk_file: Path


@frozen
class Settings:
    """What a configuration file says, as the values that the service is put together from."""

    policy: ServicePolicy
    database: Path
    host: str
    port: int
    mount: str
    wallet_addresses: StaticWalletAddresses
    introspector: StaticIntrospector = field(repr=False)
    methods: DerivedMethods
    packets: PacketPolicy | None = None  # without peers there are no packets
    tokens: tuple[ConfiguredToken, ...] = ()  # what the introspector knows
    explain_signatures: bool = False  # whether the log says why a signature was refused
    warnings: tuple[str, ...] = ()  # what ought to be changed although the service can run


def load_settings(path: str | os.PathLike[str]) -> Settings:
    """The settings in the file at `path`; files they name are looked for beside it.

    Raises `ConfigurationError`, naming the setting, when one is missing, unknown, of the wrong type or of a value
    that cannot be.
    """
    path = Path(path)
    try:
        # Some editors begin a UTF-8 file with a mark, which TOML does not know.
        document = tomllib.loads(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: there is no such file: `incoming-payments init FOLDER` writes one") from None
    except IsADirectoryError:
        raise ConfigurationError(f"{path}: is a folder: name the file in it") from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise ConfigurationError(f"{path}: is nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        # It may quote a key, and a key may be a secret in the wrong place.
        said = re.sub(r"['\"].*['\"]", "...", str(error), flags=re.DOTALL)
        raise ConfigurationError(f"{path}: is not TOML: {said}") from None
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None
    try:
        return _settings(Table(document, ""), path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.description}", **error.details) from None


def _settings(table: "Table", path: Path) -> Settings:
    folder = path.parent
    files = Files(folder)
    files.warn_of(path, 0o077)
    base_url = table.text("base_url")
    auth_server = table.text("auth_server")
    database = folder / _some(table, "database", table.text("database"))
    listen = table.table("listen")
    host, port, mount = _listen(listen)
    policy = _policy(table.table("limits"), base_url, auth_server)
    wallet_addresses = _wallet_addresses(table.tables("wallet_address", least="[[wallet_address]]"), auth_server)
    tokens = [_token(entry, files, wallet_addresses) for entry in table.tables("token")]
    ilp = table.table("ilp")
    path_of_packets = ilp.text("path", ILP_PATH)
    tolerance_and_margin = _tolerance_and_margin(ilp)
    methods = _methods(ilp, files)
    peers = _peers(table.tables("peer"), files, methods)
    explain_signatures = _log(table.table("log"))
    table.finish()
    with naming("", path="ilp.path", peers="peer", margin_ms="ilp.margin_ms"):
        # The path is checked also when there is nobody to use it.
        receiver = Receiver(methods, *tolerance_and_margin)
        packets = PacketPolicy(receiver=receiver, peers=peers, path=path_of_packets)
    with naming("token"):
        introspector = StaticIntrospector([(token.value, token.info) for token in tokens])
    return Settings(
        policy=policy,
        database=database,
        host=host,
        port=port,
        mount=urlsplit(policy.base_url).path if mount is None else mount,
        wallet_addresses=StaticWalletAddresses(list(wallet_addresses.values())),
        introspector=introspector,
        methods=methods,
        packets=packets if peers else None,
        tokens=tuple(tokens),
        explain_signatures=explain_signatures,
        warnings=(*files.warnings, *_useless(peers, wallet_addresses.values())),
    )


def _useless(peers: Sequence[HttpPeer], wallet_addresses: Collection[WalletAddress]) -> Iterator[str]:
    paid = {wallet_address.asset for wallet_address in wallet_addresses}
    for place, account in enumerate(peers):
        asset = account.peer.asset
        if asset not in paid:
            counts = f"{asset.code} at scale {asset.scale}"
            yield f"peer[{place}] counts in {counts}, as no wallet address does: it can pay none"


def _listen(table: "Table") -> tuple[str, int, str | None]:
    host, port = _some(table, "host", table.text("host", "127.0.0.1")), table.integer("port", 8080)
    mount = table.take("mount", str, None)
    table.finish()
    if not 1 <= port <= 65535:
        raise table.wrong("port", "must be from 1 to 65535")
    if mount and not _MOUNT.fullmatch(mount):
        raise table.wrong(
            "mount", 'must be "", or a path such as "/op": no slash at its end, no dot segments, no query'
        )
    return host, port, mount


def _some(table: "Table", name: str, text: str) -> str:
    if not text or "\0" in text:
        raise table.wrong(name, "must not be empty, and hold no NUL")
    return text


def _policy(limits: "Table", base_url: str, auth_server: str) -> ServicePolicy:
    kinds = {
        "public_get": bool,
        "allow_identical": bool,
        "expiry_s_max": int,
        "metadata_bytes_max": int,
        "metadata_depth_max": int,
    }
    given: dict[str, Any] = {name: limits.take(name, kind) for name, kind in kinds.items() if name in limits}
    age, skew = limits.integer("signature_age_s", SIGNATURE_AGE_S_MAX), limits.integer("clock_skew_s", CLOCK_SKEW_S_MAX)
    shapes = _shapes(limits)
    limits.finish()
    for name, seconds, most in (
        ("signature_age_s", age, SIGNATURE_AGE_SETTING_S_MAX),
        ("clock_skew_s", skew, CLOCK_SKEW_SETTING_S_MAX),
    ):
        if seconds > most:
            raise limits.wrong(name, f"must be at most {most}")
    with naming(limits.name, max_age_s="signature_age_s", clock_skew_s="clock_skew_s"):
        signature = SignaturePolicy(max_age_s=age, clock_skew_s=skew, shapes=shapes)
    with naming("", base_url="base_url", auth_server="auth_server", **{name: f"limits.{name}" for name in kinds}):
        return ServicePolicy(base_url=base_url, auth_server=auth_server, signature=signature, **given)


def _shapes(limits: "Table") -> list[Shape]:
    names = limits.take("signature_shapes", list, [])
    if not all(name in list(Shape) for name in names):
        raise limits.wrong("signature_shapes", f"must be an array of {' and '.join(map(repr, map(str, Shape)))}")
    return [Shape(name) for name in names]


def _wallet_addresses(tables: Sequence["Table"], auth_server: str) -> dict[str, WalletAddress]:
    found: dict[str, WalletAddress] = {}
    for table in tables:
        wallet_address = _wallet_address(table, auth_server)
        if wallet_address.url in found:
            raise table.wrong("url", f"is listed twice: {wallet_address.url}")
        found[wallet_address.url] = wallet_address
    return found


def _wallet_address(table: "Table", auth_server: str) -> WalletAddress:
    url, code, scale = table.text("url"), table.text("asset_code"), table.integer("asset_scale")
    auth_server = table.text("auth_server", auth_server)
    table.finish()
    with naming(
        table.name, walletAddress="url", assetCode="asset_code", assetScale="asset_scale", authServer="auth_server"
    ):
        return WalletAddress(wallet_address_url(url), Asset(code, scale), auth_server)


def _token(table: "Table", files: "Files", hosted: Collection[str]) -> ConfiguredToken:
    value, client = table.text("value"), table.text("client")
    jwk_file = table.text("jwk_file")
    expires_at = table.take("expires_at", datetime, None)
    rights = [_right(right, hosted) for right in table.tables("rights", least='rights = [{ actions = ["create"] }]')]
    table.finish()
    if expires_at is not None:
        expires_at = _in_utc(table, "expires_at", expires_at)
    with naming(f"{table.name}.jwk_file"):
        jwk = _jwk(files, jwk_file)
    with naming(f"{table.name}.value"):
        token = AccessToken(value)
    with naming(table.name, client="client", rights="rights"):
        info = AccessTokenInfo(client, jwk, tuple(rights), expires_at)
    return ConfiguredToken(token, info, files.folder / jwk_file)


def _in_utc(table: "Table", name: str, moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise table.wrong(name, "needs an offset, such as the Z of 2027-01-01T00:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise table.wrong(name, "is not in the years 1 to 9999 of UTC") from None


def _jwk(files: "Files", name: str) -> Any:
    text = files.read(name, 0o022)  # a public key: who reads it learns nothing, but who writes it becomes the client
    try:
        load_jwk(text)
    except Malformed as error:
        raise InvalidValue(f"{files.folder / name} cannot be used: {error.description}") from None
    return json.loads(text)


def _right(table: "Table", hosted: Collection[str]) -> AccessRight:
    actions = table.take("actions", list)
    identifier = table.take("identifier", str, None)
    table.finish()
    with naming(table.name, actions="actions", identifier="identifier"):
        right = AccessRight(actions, identifier)
    if right.identifier is not None and right.identifier not in hosted:
        raise table.wrong("identifier", f"is none of the wallet addresses here: {right.identifier}")
    return right


def _tolerance_and_margin(table: "Table") -> tuple[Tolerance, int]:
    units = table.integer("tolerance_units", EXCESS_UNITS_MAX)
    basis_points = table.integer("tolerance_basis_points", EXCESS_BASIS_POINTS_MAX)
    with naming(table.name, units="tolerance_units", basis_points="tolerance_basis_points"):
        return Tolerance(units, basis_points), table.integer("margin_ms", PREPARE_MARGIN_MS_MIN)


def _methods(table: "Table", files: "Files") -> DerivedMethods:
    address = table.text("address")
    names = _file_names(table, "secret_files")
    table.finish()
    secrets = []
    for place, name in enumerate(names):
        with naming(f"{table.name}.secret_files[{place}]"):
            secrets.append(_secret(files, name))
    with naming(table.name, ilpAddress="address", secrets="secret_files"):
        return DerivedMethods(address, secrets)


def _peers(tables: Sequence["Table"], files: "Files", methods: DerivedMethods) -> list[HttpPeer]:
    found: dict[str, HttpPeer] = {}
    for table in tables:
        name = table.text("name")
        if not _PEER_NAME.fullmatch(name):
            raise table.wrong("name", "must be 1 to 64 letters, digits and _~-, as a segment of an ILP address is")
        if name in found:
            raise table.wrong("name", f"is listed twice: {name}")
        found[name] = _peer(table, files, f"{methods.prefix}.{name}")
    return list(found.values())


def _peer(table: "Table", files: "Files", address: str) -> HttpPeer:
    code, scale = table.text("asset_code"), table.integer("asset_scale")
    given = table.text("ilp_address", address)
    names = _file_names(table, "token_files")
    table.finish()
    tokens = []
    for place, name in enumerate(names):
        with naming(f"{table.name}.token_files[{place}]"):
            tokens.append(_peer_token(files, name))
    with naming(
        table.name, ilpAddress="ilp_address", assetCode="asset_code", assetScale="asset_scale", tokens="token_files"
    ):
        return HttpPeer(Peer(given, Asset(code, scale)), tokens)


def _peer_token(files: "Files", name: str) -> AccessToken:
    content = files.read(name, 0o077)
    try:
        return AccessToken(content.decode("ascii").strip())
    except ValueError:  # other characters, or what is no token
        text = f"{files.folder / name} must hold a token: letters, digits and -._~+/ with perhaps = at the end"
        raise InvalidValue(text) from None


def _file_names(table: "Table", name: str) -> list[str]:
    names = table.take(name, list)
    if not all(isinstance(file, str) for file in names):
        raise table.wrong(name, "must be an array of file names")
    return names


def _log(table: "Table") -> bool:
    explain_signatures = table.take("explain_signatures", bool, False)
    table.finish()
    return explain_signatures


def _secret(files: "Files", name: str) -> bytes:
    content = files.read(name, 0o077)
    try:
        secret = bytes.fromhex(content.decode("ascii"))
    except ValueError:  # other characters, or an odd number of digits
        secret = b""
    if len(secret) < SERVER_SECRET_BYTES_MIN:
        path = files.folder / name
        raise InvalidValue(f"{path} must hold {SERVER_SECRET_BYTES_MIN} bytes or more, in hexadecimal digits")
    return secret


class Files:
    """The files that a configuration names, and the warnings about who else may read or write them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warnings: list[str] = []

    def read(self, name: str, private: int) -> bytes:
        """What is in a file; there is a warning if it has one of the mode bits `private`."""
        path = self.folder / name
        try:
            content = path.read_bytes()
        except (OSError, ValueError) as error:  # a ValueError: NUL in the name
            # What names no file may be a secret that was put in the place of its file: it is not shown.
            why = getattr(error, "strerror", None) or "no file has such a name"
            raise InvalidValue(f"names a file that cannot be read: {why}") from None
        self.warn_of(path, private)
        return content

    def warn_of(self, path: Path, private: int) -> None:
        """Note that others can do to the file what `private` says they should not."""
        mode = stat.S_IMODE(path.stat().st_mode)
        text = f"{path}: other users have access (mode {mode:04o}): chmod go-{_DENY[private]} it"
        if POSIX and mode & private and text not in self.warnings:
            self.warnings.append(text)


_DENY: Final[Mapping[int, str]] = {0o077: "rwx", 0o022: "w"}


@contextmanager
def naming(setting: str, **members: str) -> Iterator[None]:
    """Turn what a value's constructor says into a `ConfigurationError` that names the setting.

    That is `setting`, or the one below it that `members` gives for the member which the constructor names.
    """
    try:
        yield
    except InvalidValue as error:
        member = str(error.details.get("member", ""))
        name = _joined(setting, members.get(member, ""))
        said = error.description.removeprefix(f"{member} ")
        text = f"{name}: {said}" if said == error.description else f"{name} {said}"
        raise ConfigurationError(text, setting=name) from None


def _joined(*names: str) -> str:
    return ".".join(name for name in names if name)


def _shown(name: str) -> str:
    """A name from the file, unless it may be a token that was put on the wrong side of the equals sign."""
    return name if _SHOWN.fullmatch(name) else "(a name that is not shown)"


class Table:
    """A TOML table that is taken apart: a member is taken once, by its type, and `finish` finds what was not."""

    def __init__(self, members: Mapping[str, Any], name: str) -> None:
        self._left = dict(members)
        self._known: list[str] = []
        self.name = name

    def __contains__(self, name: str) -> bool:
        self._known.append(name)
        return name in self._left

    def take(self, name: str, kind: type[T], default: Any = _REQUIRED) -> T:
        """The member, which has to be of exactly this type; `ConfigurationError` otherwise."""
        if name not in self:
            if default is _REQUIRED:
                raise self.wrong(name, f"is missing: give {_KINDS[kind]}{self._misspelt(name)}")
            return cast("T", default)  # the caller's own default is what it wants back
        value = self._left.pop(name)
        if type(value) is not kind:
            raise self.wrong(name, f"must be {_KINDS[kind]}")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """A member that is a string."""
        return self.take(name, str, default)

    def integer(self, name: str, default: Any = _REQUIRED) -> int:
        """A member that is an integer."""
        return self.take(name, int, default)

    def table(self, name: str) -> "Table":
        """A member that is a table; an absent one is empty, so that its members are what is missing."""
        if name not in self._left and (hint := self._misspelt(name)):
            raise self.wrong(name, f"is missing{hint}")
        return Table(self.take(name, dict, {}), _joined(self.name, name))

    def tables(self, name: str, *, least: str | None = None) -> list["Table"]:
        """A member that is an array of tables; it may be absent or empty, unless `least` shows how to write one."""
        entries = self._left.get(name, [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise self.wrong(name, f"must be an array of tables, such as {least or f'[[{name}]]'}")
        if least is not None and not entries:
            raise self.wrong(name, f"is missing: give at least one, as {least}{self._misspelt(name)}")
        path = _joined(self.name, name)
        return [Table(entry, f"{path}[{place}]") for place, entry in enumerate(self.take(name, list, []))]

    def wrong(self, name: str, why: str) -> ConfigurationError:
        """The complaint about the member `name`."""
        path = _joined(self.name, name if name in self._known else _shown(name))
        return ConfigurationError(f"{path} {why}", setting=path)

    def finish(self) -> None:
        """`ConfigurationError` when a member is left that nobody took: a misspelt setting must not be ignored."""
        for name in self._left:
            near = difflib.get_close_matches(name, self._known, 1)
            raise self.wrong(name, f"is not a setting: is {near[0]} meant?" if near else "is not a setting")

    def _misspelt(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._left, 1)
        return f" ({_shown(near[0])} is not a setting: is it misspelt?)" if near else ""


_KINDS: Final[Mapping[type, str]] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "an array",
    dict: "a table",
    datetime: "a date-time, such as 2027-01-01T00:00:00Z",
}
