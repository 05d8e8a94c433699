"""The part of a configuration that lists the wallet addresses, or names the service that keeps them."""

from collections.abc import Iterable, Iterator
from typing import Final

from attrs import Attribute, field, frozen

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.payment import WalletAddress, WalletAddressUrl, wallet_address_url
from incoming_payments.domain.urls import has_plain_path
from incoming_payments.errors import ConfigurationError
from incoming_payments.limits import DOCUMENT_AGE_S_DEFAULT, DOCUMENT_COOL_DOWN_S_MIN, DOCUMENT_STALE_S_MAX
from incoming_payments.outbound.wallet_addresses import checked_base_urls, is_below
from incoming_payments.server.config.reader import Once, naming
from incoming_payments.server.config.setting import invalid, setting

AUTH_SERVER: Final = "the `auth_server` of the service"  # the default of some settings, in words


def read_wallet_address_url(url: str) -> WalletAddressUrl:
    """Return the canonical spelling of `url`.

    Raises `ConfigurationError` for a payment pointer, and `InvalidValue` for other invalid text.
    """
    if url.startswith("$"):
        raise ConfigurationError("is a payment pointer: write a URL, with https:// in place of $")
    return wallet_address_url(url)


def _check_url(_: object, attribute: "Attribute[str]", url: str) -> None:
    if not has_plain_path(url):
        text = "must not contain %2F, %5C, %25 or a dot segment, because servers interpret them in different ways"
        raise invalid(attribute, text)


@frozen(kw_only=True)
class WalletAddressTable:
    """A wallet address that this service hosts."""

    url: WalletAddressUrl = setting("its URL", check=_check_url, written='"{base_url}/alice"')
    asset_code: str = setting("the code of the asset of the wallet address", written='"USD"')
    asset_scale: int = setting("the scale of the asset of the wallet address: 2 for cents", written="2")
    auth_server: str | None = setting(
        "the URL where clients request grants for this wallet address",
        None,
        AUTH_SERVER,
        written='"https://auth.bank.example"',
    )


@frozen(kw_only=True)
class WalletAddressesTable:
    """The service that keeps the wallet addresses."""

    base_urls: tuple[str, ...] = setting(
        "the base URLs of your wallet addresses. The service reads the document of each wallet address from its URL",
        written='["https://wallet.bank.example"]',
    )
    max_age_s: int = setting(
        "after how many seconds the service fetches a document again. A closed wallet address stays usable "
        "for that long",
        int(DOCUMENT_AGE_S_DEFAULT),
        bounds=(int(DOCUMENT_COOL_DOWN_S_MIN), int(DOCUMENT_STALE_S_MAX)),
    )
    allow_private: bool = setting(
        "whether `base_urls` may be http URLs, and may lead to private addresses", False, written="true"
    )
    bases: tuple[str, ...] = field(init=False)  # `base_urls` in their canonical spelling

    @bases.default
    def _canonical(self) -> tuple[str, ...]:
        return checked_base_urls(self.base_urls, allow_http=self.allow_private)

    def may_host(self, url: str) -> bool:
        """Return whether `url` may be a wallet address of this configuration."""
        return is_below(url, self.bases)

    def described(self) -> str:
        """Return where the wallet addresses are, as a text that follows the word "one"."""
        return f"below {', '.join(self.bases)}"


class StaticWalletAddresses:
    """A `WalletAddresses` port with the wallet addresses of a configuration file."""

    def __init__(self, wallet_addresses: Iterable[WalletAddress]) -> None:
        self._by_url = {wallet_address.url: wallet_address for wallet_address in wallet_addresses}

    def find(self, url: WalletAddressUrl) -> WalletAddress | None:
        """Return the wallet address with this URL, or `None`."""
        return self._by_url.get(url)

    def __iter__(self) -> Iterator[WalletAddress]:
        return iter(self._by_url.values())

    def may_host(self, url: str) -> bool:
        """Return whether `url` is a wallet address of this configuration."""
        return url in self._by_url

    def described(self) -> str:
        """Return the wallet addresses as a text that follows the word "one"."""
        return f"of {', '.join(self._by_url)}"


def listed(tables: Iterable[WalletAddressTable], auth_server: str) -> StaticWalletAddresses:
    """Return the wallet addresses of `[[wallet_address]]`. Raises `ConfigurationError`."""
    once = Once()
    found = []
    for place, table in enumerate(tables):
        path = f"wallet_address[{place}]"
        once.add(table.url, f"{path}.url", f"list {table.url} only once")
        with naming(path, table):
            asset = Asset(table.asset_code, table.asset_scale)
            own = auth_server if table.auth_server is None else table.auth_server
            found.append(WalletAddress(table.url, asset, own))
    return StaticWalletAddresses(found)
