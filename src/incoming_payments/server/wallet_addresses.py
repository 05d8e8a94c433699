"""The ports for the wallet addresses of `serve` that another service keeps."""

from incoming_payments.clients.wallet_addresses import AsyncHttpWalletAddresses
from incoming_payments.errors import ConfigurationError
from incoming_payments.server.config.wallet_addresses import WalletAddressesTable


class WalletAddressPorts:
    """The ports for wallet addresses over HTTP: one for each value of the settings, so that a reload keeps its cache.

    A request in flight may still use the port of old settings. So all of them stay open until `aclose`.
    """

    def __init__(self) -> None:
        self._ports: dict[WalletAddressesTable, AsyncHttpWalletAddresses] = {}

    def of(self, service: WalletAddressesTable) -> AsyncHttpWalletAddresses:
        """Return the port for `service`. It connects with the first request.

        Raises `ConfigurationError` when the extra `clients` is not installed.
        """
        if service not in self._ports:
            try:
                self._ports[service] = AsyncHttpWalletAddresses(
                    service.bases,
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
