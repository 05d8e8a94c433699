"""Read the wallet addresses that another service of the ASE keeps, as Open Payments documents over HTTP.

```
ports = Ports(store=..., wallet_addresses=HttpWalletAddresses(["https://wallet.bank.example"]))
```

The cache and the limits are the same as in `client_keys`.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable
from typing import Final

from incoming_payments.domain.amount import Asset
from incoming_payments.domain.checks import all_of
from incoming_payments.domain.payment import (
    InactiveWalletAddress,
    WalletAddress,
    WalletAddressUrl,
    wallet_address_url,
)
from incoming_payments.domain.urls import canonical_url, has_plain_path
from incoming_payments.errors import ConfigurationError, InvalidValue, WalletAddressesUnavailable
from incoming_payments.limits import (
    DOCUMENT_AGE_S_DEFAULT,
    DOCUMENT_FETCH_S_DEFAULT,
    DOCUMENTS_MAX,
    WALLET_FETCHES_MAX,
)
from incoming_payments.outbound._documents import Documents, Fetcher, read_object
from incoming_payments.outbound._http import HttpAnswer, HttpFailed
from incoming_payments.outbound._settings import check_types

Found = WalletAddress | InactiveWalletAddress
_GONE: Final = 410
_OF_OWN_DOMAIN: Final = DOCUMENTS_MAX  # no limit for a domain, because all fetches go to the hosts of `base_urls`


class _WalletAddresses:
    """The settings and the documents of both ports."""

    def __init__(
        self,
        base_urls: Iterable[str],
        *,
        timeout_s: float = DOCUMENT_FETCH_S_DEFAULT,
        max_age_s: float = DOCUMENT_AGE_S_DEFAULT,
        allow_private: bool = False,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._base_urls = checked_base_urls(base_urls, allow_http=allow_private)
        self._fetcher = Fetcher(
            Documents(_read, WalletAddressesUnavailable, max_age_s, clock, WALLET_FETCHES_MAX, _OF_OWN_DOMAIN),
            timeout_s=timeout_s,
            allow_private=allow_private,
            tls=tls,
        )


class HttpWalletAddresses(_WalletAddresses):
    """A `WalletAddresses` port that reads the documents of wallet addresses. Threads may share a port.

    The wallet addresses of this ASE begin with one of the URLs in `base_urls`, have no query, and have a path that all
    servers interpret in the same way. Any other wallet address is not hosted here, and causes no fetch. The other
    arguments are the same as in `HttpClientKeys`. Set `allow_private` if the service for wallet addresses has a private
    IP address. Close the port with `close`.

    A wallet address is inactive if its document has `"active": false`, or the answer is 410. A wallet address is
    unknown if the answer is 404. Raises `ConfigurationError` if `base_urls` is empty, or has an http URL although
    `allow_private` is false. Raises `InvalidValue` if a base URL is not a URL.
    """

    async_class = "AsyncHttpWalletAddresses"

    def find(self, url: WalletAddressUrl) -> Found | None:
        """Return the wallet address with this URL, or `None` if it is not hosted here.

        Raises `WalletAddressesUnavailable`.
        """
        return self._fetcher.look_up(url, _suffices) if is_below(url, self._base_urls) else None

    def close(self) -> None:
        """Close the connections."""
        self._fetcher.close()


class AsyncHttpWalletAddresses(_WalletAddresses):
    """`HttpWalletAddresses` for asyncio, with the same arguments."""

    async def find(self, url: WalletAddressUrl) -> Found | None:
        """Return the wallet address with this URL. See `HttpWalletAddresses.find`."""
        return await self._fetcher.look_up_async(url, _suffices) if is_below(url, self._base_urls) else None

    async def aclose(self) -> None:
        """Close the connections."""
        await asyncio.to_thread(self._fetcher.close)


def checked_base_urls(urls: Iterable[str], *, allow_http: bool) -> tuple[str, ...]:
    """Return base URLs in their canonical spelling. Raises `ConfigurationError` or `InvalidValue` for a wrong URL."""
    check_types(bool, {"allow_private": allow_http})
    bases = tuple(canonical_url(url, member="base_urls") for url in all_of(str, urls, member="base_urls"))
    if not bases or any("?" in base for base in bases):
        text = "base_urls must list one or more URLs that have no query: give the base URLs of your wallet addresses"
        raise ConfigurationError(text, setting="base_urls")
    if not all(map(has_plain_path, bases)):
        text = (
            "base_urls must not contain %2F, %5C, %25 or dot segments, because servers interpret them in different ways"
        )
        raise ConfigurationError(text, setting="base_urls")
    if not allow_http and any(base.startswith("http:") for base in bases):
        raise ConfigurationError("base_urls must be https URLs, unless allow_private is true", setting="base_urls")
    return bases


def is_below(url: str, bases: tuple[str, ...]) -> bool:
    """Return whether `url` may be a wallet address of this ASE, which has a plain path and no query."""
    return "?" not in url and has_plain_path(url) and any(url == base or url.startswith(f"{base}/") for base in bases)


def _suffices(_: Found) -> bool:
    return True


def _read(url: str, answer: HttpAnswer, _: Found | None) -> Found | None:
    """Return the wallet address in an answer. The `publicName` and `resourceServer` of the document are for clients."""
    if answer.status == 404:
        return None
    url = wallet_address_url(url)
    if answer.status == _GONE:
        return InactiveWalletAddress(url)
    members = read_object(answer)
    active = members.get("active", True)
    try:
        if wallet_address_url(members.get("id", "")) != url:
            raise InvalidValue(
                "the id in the wallet address document must be the URL of the wallet address", member="id"
            )
        if active is False:
            return InactiveWalletAddress(url)
        if active is not True:
            raise InvalidValue(
                "active in the wallet address document must be true or false, or be left out", member="active"
            )
        asset = Asset(members.get("assetCode", ""), members.get("assetScale", -1))
        return WalletAddress(url, asset, members.get("authServer", ""))
    except InvalidValue as error:
        raise HttpFailed(f"the wallet address document is invalid: {error.description}") from error
