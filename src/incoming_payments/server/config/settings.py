"""Read the configuration file of `incoming-payments serve`. Each error names the setting at fault."""

import os
import re
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve, field, fields_dict, frozen, has

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.endpoints.packets import PacketPolicy
from incoming_payments.endpoints.pull import PullPolicy
from incoming_payments.errors import ConfigurationError
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.gnap.introspection import StaticIntrospector
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import Policy as SignaturePolicy
from incoming_payments.ilp import Receiver
from incoming_payments.limits import PORT_MAX
from incoming_payments.ports.clock import utc_now
from incoming_payments.server.config import advice
from incoming_payments.server.config.access import ConfiguredToken, tokens_of
from incoming_payments.server.config.client_key import ClientKey, read_client_key
from incoming_payments.server.config.events import pull_of
from incoming_payments.server.config.files import (
    PRIVATE,
    Files,
    PeerToken,
    Pem,
    ServerSecret,
    WebhookSecretText,
    read_bounded,
)
from incoming_payments.server.config.packets import packets_of
from incoming_payments.server.config.postgres import DatabasePassword, PostgresDatabase, PostgresTable
from incoming_payments.server.config.reader import HARMLESS_NAME, Once, naming, read, refused
from incoming_payments.server.config.setting import differences
from incoming_payments.server.config.tables import NEED_RESTART, Configuration, LimitsTable
from incoming_payments.server.config.wallet_addresses import StaticWalletAddresses, listed, read_wallet_address_url
from incoming_payments.server.config.webhooks import endpoints_of

if TYPE_CHECKING:
    from incoming_payments.outbound.webhooks import WebhookEndpoint

_TOML_HINTS: Final = {  # hints for messages of `tomllib`, which begin with these texts
    "Invalid value": "write strings in quotes, and true and false in lower case",
    "Expected newline": "write strings and addresses in quotes",
    "Unescaped": "write / in place of \\ in a path",
    "Cannot overwrite": "the setting occurs twice: remove one of the two lines",
    "Cannot declare": "the table occurs twice: put its settings under one header",
}
_TABLE: Final = re.compile(rf"\('({HARMLESS_NAME.pattern})',\)")  # a table in a message of `tomllib`


@frozen
class Settings:
    """The values of a configuration file, as the library's own types."""

    path: Path  # the configuration file
    given: Configuration  # the configuration as given in the file
    policy: ServicePolicy
    wallet_addresses: StaticWalletAddresses
    tokens: tuple[ConfiguredToken, ...]
    introspector: StaticIntrospector = field(repr=False)  # the introspector for the tokens in the file
    receiver: Receiver
    packets: PacketPolicy | None  # `None` if there are no peers
    pull: PullPolicy | None  # `None` if there are no consumers
    webhooks: "tuple[WebhookEndpoint, ...]"
    warnings: tuple[str, ...] = ()  # problems with which the service can still run


def load_settings(path: str | os.PathLike[str], *, clock: Callable[[], datetime] = utc_now) -> Settings:
    """Return the settings in the file at `path`. File names in the file are relative to its folder.

    `clock` returns the current time, for the warnings about expired tokens.

    Raises `ConfigurationError` when a setting is missing, unknown, of the wrong type or invalid. The error names the
    setting.
    """
    path = Path(path)
    document = _document(path)
    files = Files(path.parent)
    files.warn_of(path, PRIVATE)
    files.warn_of_folder(path.parent)
    try:
        configuration = read(Configuration, document, _hooks(files))
        _check_relations(configuration)
        settings = _settings(configuration, path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.description}", **error.details) from None
    return evolve(settings, warnings=(*files.warnings, *(f"{path}: {text}" for text in _advice(settings, clock()))))


def reloaded(old: Settings, new: Settings) -> tuple[Settings, list[str]]:
    """Return `new`, but with the old values of settings that need a restart, and the names of those that changed."""
    fixed = {name: getattr(old.given, name) for name in NEED_RESTART}
    settings = _settings(evolve(new.given, **fixed), new.path)
    names = [changed for name, value in fixed.items() for changed in differences(name, value, getattr(new.given, name))]
    return settings, names


def _document(path: Path) -> dict[str, Any]:
    how = "give another file with --config, or create it with `incoming-payments init FOLDER`"
    try:
        # Some editors write a byte order mark, which TOML refuses.
        return tomllib.loads(read_bounded(path, if_missing=how).decode("utf-8-sig"))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} {error.description}") from None
    except RecursionError:
        raise ConfigurationError(f"{path} is nested too deeply: use fewer levels of arrays and tables") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {_toml_error(str(error))}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} is not TOML: byte {error.start} is not UTF-8; save the file as UTF-8"
        ) from None
    except ValueError as error:  # a TOML number can have thousands of digits
        raise ConfigurationError(f"{path} is not TOML: {error}") from None


def _toml_error(reason: str) -> str:
    """Return a message of `tomllib` with a hint.

    A key in the message is hidden, because the key may be a misplaced secret.
    """
    start = next((start for start in _TOML_HINTS if reason.startswith(start)), None)
    reason = reason.replace("Expected '='", "Expected =")
    reason = _TABLE.sub(r"[\1]", reason)
    reason = re.sub(r"['\"].*['\"]", "...", reason, flags=re.DOTALL)
    return reason if start is None else f"{reason}; {_TOML_HINTS[start]}"


def _hooks(files: Files) -> dict[Any, Callable[[Any], object]]:
    """Return the functions that read the settings of this library's own types, by type."""
    return {
        AccessToken: AccessToken,
        ClientKey: partial(read_client_key, files),
        Path | PostgresDatabase: files.database,
        DatabasePassword: files.password,
        PeerToken: files.peer_token,
        Pem: files.pem,
        ServerSecret: files.server_secret,
        WebhookSecretText: files.webhook_secret,
        WalletAddressUrl: read_wallet_address_url,
        datetime: _in_utc,
    }


def _in_utc(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ConfigurationError("has no offset from UTC: add one, such as the Z in 2027-01-01T00:00:00Z")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError("must be in the years 1 to 9999 of UTC") from None


def _check_relations(given: Configuration) -> None:
    """Raise `ConfigurationError` for settings that exclude each other."""
    listen = given.listen
    port, further = listen.metrics_port or 0, listen.workers - 1
    if port + further > PORT_MAX:
        need = f"so {listen.workers} workers would need ports up to {port + further}"
        raise refused("listen.metrics_port", f"is {port}, {need}: give a port of at most {PORT_MAX - further}")
    ports, instead = Once(), "give each of them a port of its own, and one port to each worker for metrics"
    ports.add(listen.port, "listen.port", instead)
    for used in range(port, port + listen.workers) if port else ():
        ports.add(used, "listen.metrics_port", instead)
    if given.events.port is not None:
        ports.add(given.events.port, "events.port", instead)
    if given.token and given.authorization_server:
        reason = "because a listed token needs no introspection"
        raise refused("token", f"and authorization_server exclude each other, {reason}: remove one of them")
    if given.wallet_address and given.wallet_addresses:
        reason = "a listed wallet address would stay open after the other service has closed it"
        how = (
            "remove [[wallet_address]] if the other service keeps your wallet addresses, or else remove "
            "[wallet_addresses]"
        )
        raise refused("wallet_address", f"and wallet_addresses are both given, but {reason}: {how}")
    if not given.wallet_address and not given.wallet_addresses:
        text = "is missing: add at least one table [[wallet_address]], or the table [wallet_addresses]"
        raise refused("wallet_address", text)


def _settings(given: Configuration, path: Path) -> Settings:
    policy = _policy(given)
    wallet_addresses = listed(given.wallet_address, given.auth_server)
    tokens = tokens_of(given.token, given.wallet_addresses or wallet_addresses)
    receiver, packets = packets_of(given.ilp, given.peer)
    return Settings(
        path=path,
        given=given,
        policy=policy,
        wallet_addresses=wallet_addresses,
        tokens=tokens,
        introspector=StaticIntrospector([(token.value, token.info) for token in tokens]),
        receiver=receiver,
        packets=packets if packets.peers else None,
        pull=pull_of(given.events, given.consumer, given.webhooks),
        webhooks=endpoints_of(given.webhooks),
    )


def _policy(given: Configuration) -> ServicePolicy:
    limits = given.limits
    signature = SignaturePolicy(
        max_age_s=limits.signature_age_s, clock_skew_s=limits.clock_skew_s, shapes=limits.signature_shapes
    )
    with naming("", given):
        policy = ServicePolicy(base_url=given.base_url, auth_server=given.auth_server, signature=signature)
    names = fields_dict(LimitsTable).keys() - {"signature_age_s", "clock_skew_s", "signature_shapes"}
    with naming("limits", limits):
        return evolve(policy, **{name: getattr(limits, name) for name in names})


def _advice(settings: Settings, now: datetime) -> Iterator[str]:
    given, base_url = settings.given, settings.policy.base_url
    yield from advice.of_listen(base_url, given.listen.host, given.listen.port, given.listen.mount)
    yield from advice.of_access(base_url, has_tokens=bool(given.token), server=given.authorization_server)
    for name in fields_dict(Configuration):
        if has(type(table := getattr(given, name))):
            yield from advice.of_values(name, table)
    if isinstance(given.database, Path) and given.postgres != PostgresTable():
        yield "[postgres] has no effect, because database is an SQLite file: remove the settings, or give a URL"
    yield from advice.of_tokens([token.info for token in settings.tokens], now)
    yield from advice.of_assets(
        {f"wallet_address[{place}]": hosted.asset for place, hosted in enumerate(settings.wallet_addresses)},
        {f"peer[{place}]": Asset(peer.asset_code, peer.asset_scale) for place, peer in enumerate(given.peer)},
        given.ilp.tolerance_units,
    )
    tables = {f"webhooks[{place}]": table.wallet_addresses for place, table in enumerate(given.webhooks)}
    tables |= {f"consumer[{place}]": table.wallet_addresses for place, table in enumerate(given.consumer)}
    yield from advice.of_filters({hosted.url for hosted in settings.wallet_addresses}, tables)
