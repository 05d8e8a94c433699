"""The wallet addresses of `serve`: listed in its configuration, or read over HTTP from the service that keeps them."""

from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen

from incoming_payments.clients.wallet_addresses import AsyncHttpWalletAddresses, checked_base_urls, is_below
from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import WalletAddress, WalletAddressUrl, wallet_address_url
from incoming_payments.domain.urls import has_plain_path
from incoming_payments.errors import ConfigurationError
from incoming_payments.server import declarations
from incoming_payments.server.reader import Table, naming


class StaticWalletAddresses:
    """The wallet addresses of a configuration file: a `WalletAddresses` port."""

    def __init__(self, wallet_addresses: Mapping[str, WalletAddress]) -> None:
        self._by_url = wallet_addresses

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address with this URL, or `None`."""
        return self._by_url.get(url)

    def __iter__(self) -> Iterator[WalletAddress]:
        return iter(self._by_url.values())

    def may_host(self, url: str) -> bool:
        """Return whether `url` is a wallet address of this configuration."""
        return url in self._by_url

    def described(self) -> str:
        """Return the wallet addresses as a text after "one"."""
        return f"of {', '.join(self._by_url)}"


@frozen
class WalletAddressService:
    """The settings of `[wallet_addresses]`. `docs/server.md` explains them."""

    base_urls: tuple[str, ...]
    max_age_s: int
    allow_private: bool

    def may_host(self, url: str) -> bool:
        """Return whether `url` may be a wallet address of this configuration."""
        return is_below(url, self.base_urls)

    def described(self) -> str:
        """Return where the wallet addresses are, as a text after "one"."""
        return f"below {', '.join(self.base_urls)}"


class WalletAddressPorts:
    """The ports for wallet addresses over HTTP: one for each value of the settings, so that a reload keeps its cache.

    A request in flight may still use the port of old settings. So all of them stay open until `aclose`.
    """

    def __init__(self) -> None:
        self._ports: dict[WalletAddressService, AsyncHttpWalletAddresses] = {}

    def of(self, service: WalletAddressService) -> AsyncHttpWalletAddresses:
        """Return the port for `service`. It connects with the first request.

        Raises `ConfigurationError` when the extra `clients` is not installed.
        """
        if service not in self._ports:
            try:
                self._ports[service] = AsyncHttpWalletAddresses(
                    service.base_urls,
                    max_age_s=service.max_age_s,
                    allow_private=service.allow_private,
                )
            except ImportError:
                text = "wallet_addresses needs aiohttp: pip install 'incoming-payments[clients]'"
                raise ConfigurationError(text, setting="wallet_addresses") from None
        return self._ports[service]

    async def aclose(self) -> None:
        """Close the connections."""
        for port in list(self._ports.values()):
            await port.aclose()


def read_service(table: Table) -> WalletAddressService:
    """Return the settings of `[wallet_addresses]`. Raises `ConfigurationError`."""
    values = table.read(declarations.WALLET_ADDRESSES)
    with naming(table.name, base_urls="base_urls"):
        try:
            base_urls = checked_base_urls(values.pop("base_urls"), allow_http=values["allow_private"])
        except ConfigurationError as error:
            raise table.wrong("base_urls", error.description.removeprefix("base_urls ")) from None
    return WalletAddressService(base_urls, **values)


def read_listed(tables: Sequence[Table], auth_server: str) -> dict[str, WalletAddress]:
    """Return the wallet addresses of `[[wallet_address]]` by their URLs. Raises `ConfigurationError`."""
    found: dict[str, WalletAddress] = {}
    for table in tables:
        entry = table.read(declarations.WALLET_ADDRESS)
        check_no_pointer(table, "url", entry["url"])
        scale = {"assetScale": entry["asset_scale"]}
        with naming(
            table.name,
            scale,
            walletAddress="url",
            assetCode="asset_code",
            assetScale="asset_scale",
            authServer="auth_server",
        ):
            wallet_address = WalletAddress(
                wallet_address_url(entry["url"]),
                Asset(entry["asset_code"], entry["asset_scale"]),
                auth_server if entry["auth_server"] is None else entry["auth_server"],
            )
        if not has_plain_path(wallet_address.url):
            raise table.wrong("url", "must not hold %2F, %5C, %25 or a dot segment, which servers read in several ways")
        if wallet_address.url in found:
            raise table.wrong("url", f"is listed twice: {wallet_address.url}")
        found[wallet_address.url] = wallet_address
    return found


def check_no_pointer(table: Table, name: str, url: str) -> None:
    """Raise `ConfigurationError` if the setting `name` is a payment pointer in place of a URL."""
    if url.startswith("$"):
        raise table.wrong(name, "is a payment pointer: write its URL, with https:// in place of $")
