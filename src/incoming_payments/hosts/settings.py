"""The TOML configuration of `incoming-payments serve`:

read whole, checked whole, every complaint naming its setting.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from attrs import field, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import WalletAddress, WalletAddressUrl, wallet_address_url
from incoming_payments.errors import ConfigurationError, InvalidValue, Malformed
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.access import AccessRight
from incoming_payments.gnap.introspection import AccessTokenInfo, StaticIntrospector
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.httpsig import load_jwk
from incoming_payments.ilp.credentials import DerivedMethods
from incoming_payments.limits import CLOCK_SKEW_S_MAX, SIGNATURE_AGE_S_MAX
from incoming_payments.wire import read_json

T = TypeVar("T")

_REQUIRED: Final = object()


class StaticWalletAddresses:
    """The wallet addresses of a configuration file: a `WalletAddresses` port."""

    def __init__(self, wallet_addresses: Sequence[WalletAddress]) -> None:
        self._by_url = {wallet_address.url: wallet_address for wallet_address in wallet_addresses}

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """The wallet address with this URL, or `None`."""
        return self._by_url.get(url)


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


def load_settings(path: str | os.PathLike[str]) -> Settings:
    """The settings in the file at `path`; files they name are looked for beside it.

    Raises `ConfigurationError`, naming the setting, when one is missing, unknown, of the wrong type or of a value
    that cannot be.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: is not TOML: {error}") from None
    try:
        return _settings(Table(document, ""), path.parent)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.description}", **error.details) from None


def _settings(table: "Table", folder: Path) -> Settings:
    base_url = table.text("base_url")
    auth_server = table.text("auth_server")
    database = folder / table.text("database")
    listen = table.table("listen")
    host, port = listen.text("host", "127.0.0.1"), listen.integer("port", 8080)
    mount = listen.text("mount", urlsplit(base_url).path.rstrip("/"))
    listen.finish()
    policy = _policy(table.table("limits"), base_url, auth_server)
    wallet_addresses = [_wallet_address(entry, auth_server) for entry in table.tables("wallet_address")]
    if not wallet_addresses:
        raise ConfigurationError("[[wallet_address]] is missing: list at least one", setting="wallet_address")
    tokens = [_token(entry, folder) for entry in table.tables("token")]
    methods = _methods(table.table("ilp"), folder)
    table.finish()
    with naming("token"):
        introspector = StaticIntrospector(tokens)
    return Settings(
        policy=policy,
        database=database,
        host=host,
        port=port,
        mount=mount,
        wallet_addresses=StaticWalletAddresses(wallet_addresses),
        introspector=introspector,
        methods=methods,
    )


def _policy(limits: "Table", base_url: str, auth_server: str) -> ServicePolicy:
    given = {
        name: limits.take(name, kind)
        for name, kind in (
            ("public_get", bool),
            ("expiry_s_max", int),
            ("metadata_bytes_max", int),
            ("metadata_depth_max", int),
        )
        if name in limits
    }
    age, skew = limits.integer("signature_age_s", SIGNATURE_AGE_S_MAX), limits.integer("clock_skew_s", CLOCK_SKEW_S_MAX)
    limits.finish()
    with naming("limits"):
        signature = SignaturePolicy(max_age_s=age, clock_skew_s=skew)
    with naming(""):
        return ServicePolicy(base_url=base_url, auth_server=auth_server, signature=signature, **given)


def _wallet_address(table: "Table", auth_server: str) -> WalletAddress:
    url, code, scale = table.text("url"), table.text("asset_code"), table.integer("asset_scale")
    auth_server = table.text("auth_server", auth_server)
    table.finish()
    with naming(table.name):
        return WalletAddress(wallet_address_url(url), Asset(code, scale), auth_server)


def _token(table: "Table", folder: Path) -> tuple[AccessToken, AccessTokenInfo]:
    value, client = table.text("value"), table.text("client")
    jwk_file = table.text("jwk_file")
    expires_at = table.take("expires_at", datetime, None)
    rights = [_right(right) for right in table.tables("rights")]
    table.finish()
    with naming(f"{table.name}.jwk_file"):
        jwk = read_json(_read(folder / jwk_file))
        load_jwk(jwk)
    with naming(table.name):
        info = AccessTokenInfo(client, jwk, tuple(rights), expires_at and expires_at.astimezone(UTC))
        return AccessToken(value), info


def _right(table: "Table") -> AccessRight:
    actions = table.take("actions", list)
    identifier = table.take("identifier", str, None)
    table.finish()
    with naming(table.name):
        return AccessRight(actions, identifier)


def _methods(table: "Table", folder: Path) -> DerivedMethods:
    address = table.text("address")
    files = table.take("secret_files", list)
    table.finish()
    with naming("ilp.secret_files"):
        if not all(isinstance(name, str) for name in files):
            raise InvalidValue("must be a list of file names")
        secrets = [_secret(folder / name) for name in files]
    with naming("ilp"):
        return DerivedMethods(address, secrets)


def _secret(path: Path) -> bytes:
    try:
        return bytes.fromhex(_read(path).decode("ascii"))
    except ValueError:
        raise InvalidValue(f"{path} must hold hexadecimal digits") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidValue(f"{path} cannot be read: {error.strerror or error}") from None


@contextmanager
def naming(setting: str) -> Iterator[None]:
    """Turn what a value's constructor says into a `ConfigurationError` that names `setting`."""
    try:
        yield
    except (InvalidValue, Malformed) as error:
        name = setting or str(error.details.get("member", ""))
        raise ConfigurationError(f"{name}: {error.description}", setting=name) from None


class Table:
    """A TOML table that is taken apart: a member is taken once, by its type, and `finish` finds what was not."""

    def __init__(self, members: Mapping[str, Any], name: str) -> None:
        self._left = dict(members)
        self.name = name

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def take(self, name: str, kind: type[T], default: Any = _REQUIRED) -> T:
        """The member, which has to be of exactly this type; `ConfigurationError` otherwise."""
        path = f"{self.name}.{name}" if self.name else name
        if name not in self._left:
            if default is _REQUIRED:
                raise ConfigurationError(f"{path} is missing: give {_KINDS[kind]}", setting=path)
            return default  # type: ignore[no-any-return] # the caller's own default is what it wants back
        value = self._left.pop(name)
        if type(value) is not kind:
            raise ConfigurationError(f"{path} must be {_KINDS[kind]}", setting=path)
        return value  # type: ignore[no-any-return] # its type was just compared

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """A member that is a string."""
        return self.take(name, str, default)

    def integer(self, name: str, default: Any = _REQUIRED) -> int:
        """A member that is an integer."""
        return self.take(name, int, default)

    def table(self, name: str) -> "Table":
        """A member that is a table; an absent one is empty, so that its members are what is missing."""
        return Table(self.take(name, dict, {}), f"{self.name}.{name}" if self.name else name)

    def tables(self, name: str) -> list["Table"]:
        """A member that is an array of tables, or absent."""
        path = f"{self.name}.{name}" if self.name else name
        entries = self.take(name, list, [])
        if not all(isinstance(entry, dict) for entry in entries):
            raise ConfigurationError(f"{path} must be an array of tables", setting=path)
        return [Table(entry, f"{path}[{place}]") for place, entry in enumerate(entries)]

    def finish(self) -> None:
        """`ConfigurationError` when a member is left that nobody took: a misspelt setting must not be ignored."""
        for name in self._left:
            path = f"{self.name}.{name}" if self.name else name
            raise ConfigurationError(f"{path} is not a setting: check its spelling", setting=path)


_KINDS: Final[Mapping[type, str]] = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    list: "an array",
    dict: "a table",
    datetime: "a date-time with an offset",
}
