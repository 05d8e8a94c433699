"""Warnings about settings that are valid but probably a mistake. Each warning names the setting and what to change."""

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit

from incoming_payments.domain.amount import Asset
from incoming_payments.flows.policy import COLLECTION_PATH
from incoming_payments.gnap.introspection import AccessTokenInfo
from incoming_payments.limits import UINT64_DIGITS_MAX
from incoming_payments.server.config.access import AuthorizationServerTable
from incoming_payments.server.config.setting import settings_of

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def of_values(name: str, table: object) -> Iterator[str]:
    """Yield a warning for each value in the table `name` that is outside the usual range of its setting."""
    for setting in settings_of(type(table)):
        value = getattr(table, setting.name)
        if setting.usual is not None and value is not None and not setting.usual[0] <= value <= setting.usual[1]:
            yield f"{name}.{setting.name} is {value}: {setting.usually}"


def of_listen(base_url: str, host: str, port: int, mount: str | None) -> Iterator[str]:
    """Yield a warning when clients cannot reach `base_url`, or when clients on other machines can connect directly."""
    if not is_loopback(host):
        yield (
            f"listen.host: {host} is not a loopback address, and serve has no TLS and no limits for each client: "
            "put a reverse proxy in front of serve, and let no client reach this port"
        )
    for name, text in (("base_url", base_url), ("listen.mount", mount)):
        if text is not None and text.endswith(COLLECTION_PATH):
            yield (
                f"{name} ends in {COLLECTION_PATH}, and the service would add that path once more: remove the "
                f"path from {name}"
            )
    parts = urlsplit(base_url)
    public = parts.port or _DEFAULT_PORTS[parts.scheme]
    if is_loopback(parts.hostname or "") and public != port:
        yield (
            f"base_url has port {public}, but listen.port is {port}: give both the same port, unless a proxy on this "
            f"machine listens on port {public}"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def of_access(base_url: str, *, has_tokens: bool, server: AuthorizationServerTable | None) -> Iterator[str]:
    """Yield a warning when no client has access, and when the settings for development are used in production."""
    if not has_tokens and server is None:
        yield (
            "there is no [authorization_server] and no [[token]], so every client with a token gets 401 invalid_token: "
            "add one of them"
        )
    if server is not None and server.allow_private_clients and base_url.startswith("https:"):
        yield (
            "authorization_server.allow_private_clients is true, so clients can make this service connect to private "
            "addresses: remove this setting, because base_url is an https URL as in production"
        )


def of_tokens(tokens: Sequence[AccessTokenInfo], now: datetime) -> Iterator[str]:
    """Yield a warning for each token that has expired at `now`."""
    for place, info in enumerate(tokens):
        if info.expires_at is not None and info.expires_at <= now:
            yield (
                f"token[{place}].expires_at is {info.expires_at:%Y-%m-%dT%H:%M:%SZ}, which has passed: requests with "
                "this token are refused with token_expired; write a later time, or remove the token"
            )


def of_filters(hosted: Collection[str], filters: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield a warning for each wallet address in the filter of a consumer that the service does not host.

    `filters` is from the names of tables. `hosted` is empty if another service keeps the wallet addresses.
    """
    for name, urls in filters.items():
        for place, url in enumerate(urls):
            if hosted and url not in hosted:
                yield (
                    f"{name}.wallet_addresses[{place}] is {url}, but no [[wallet_address]] has this URL, so there are "
                    "no new events for it: correct the URL, or add the wallet address"
                )


def of_assets(hosted: Mapping[str, Asset], of_peers: Mapping[str, Asset], tolerance_units: int) -> Iterator[str]:
    """Yield warnings about the assets of wallet addresses and peers. The key of each asset is the name of its table.

    `hosted` is empty if another service keeps the wallet addresses.
    """
    for name, asset in {**hosted, **of_peers}.items():
        if asset.code != asset.code.upper():
            yield (
                f'{name}.asset_code is "{asset.code}": write "{asset.code.upper()}", unless clients and peers use '
                "lower case too. The service compares codes exactly, and the codes of ISO 4217 are in upper case"
            )
        if asset.scale >= UINT64_DIGITS_MAX:
            yield (
                f"{name}.asset_scale is {asset.scale}, so the largest possible amount is less than one {asset.code}: "
                "write the number of digits after the decimal point, such as 2 for cents"
            )
    for name, asset in of_peers.items():
        if hosted and asset not in hosted.values():
            yield (
                f"{name} has the asset {asset.code} at scale {asset.scale}, but no wallet address has this asset, "
                "so this peer cannot pay: correct asset_code and asset_scale, or add a wallet address with this asset"
            )
    for name, asset in hosted.items():
        if tolerance_units > 10**asset.scale:
            yield (
                f"ilp.tolerance_units is {tolerance_units}, which is more than one {asset.code} in the minor units of "
                f"{name}: write the number of minor units by which a packet may exceed incomingAmount, such as 1"
            )
