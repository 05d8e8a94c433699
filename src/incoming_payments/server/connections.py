"""The ports of `serve` that reach other services over HTTP: the authorization server, clients and wallet addresses."""

from collections.abc import Iterator
from contextlib import contextmanager

from incoming_payments.errors import ConfigurationError
from incoming_payments.outbound.client_keys import AsyncHttpClientKeys
from incoming_payments.outbound.introspection import AsyncHttpIntrospector
from incoming_payments.outbound.wallet_addresses import AsyncHttpWalletAddresses
from incoming_payments.server.config.access import AuthorizationServerTable
from incoming_payments.server.config.tables import Configuration
from incoming_payments.server.config.wallet_addresses import WalletAddressesTable


class Connections:
    """The ports for the services in a configuration. Each port connects with its first request.

    Raises `ConfigurationError` when a setting is wrong, or when the extra `outbound` is not installed.
    """

    def __init__(self, given: Configuration) -> None:
        self.introspector: AsyncHttpIntrospector | None = None
        self.client_keys: AsyncHttpClientKeys | None = None
        self._wallet_addresses: dict[WalletAddressesTable, AsyncHttpWalletAddresses] = {}
        if given.authorization_server is not None:
            self._connect(given.authorization_server, given.auth_server)
        if given.wallet_addresses is not None:
            self.wallet_addresses(given.wallet_addresses)

    def _connect(self, server: AuthorizationServerTable, auth_server: str) -> None:
        """Make the ports for the authorization server. `auth_server` is the default of `issuer`."""
        issuer = auth_server if server.issuer is None and server.dialect == "rfc9767" else server.issuer
        with _naming("authorization_server"):
            self.introspector = AsyncHttpIntrospector(
                server.url,
                dialect=server.dialect,
                issuer=issuer,
                audience=server.audience,
                resource_server=server.resource_server,
                key=server.key,
                allow_http=server.allow_http,
                timeout_s=server.timeout_s,
                cache_s=server.cache_s,
            )
            if server.client_keys:
                self.client_keys = AsyncHttpClientKeys(allow_private=server.allow_private_clients)

    def wallet_addresses(self, service: WalletAddressesTable) -> AsyncHttpWalletAddresses:
        """Return the port for `service`. The same settings get the same port, so a reload keeps its cache.

        A request in flight may still use the port of old settings, so all ports stay open until `aclose`.
        """
        if service not in self._wallet_addresses:
            with _naming("wallet_addresses"):
                self._wallet_addresses[service] = AsyncHttpWalletAddresses(
                    service.bases, max_age_s=service.max_age_s, allow_private=service.allow_private
                )
        return self._wallet_addresses[service]

    async def aclose(self) -> None:
        """Close the connections."""
        for port in (self.introspector, self.client_keys, *self._wallet_addresses.values()):
            if port is not None:
                await port.aclose()


@contextmanager
def _naming(table: str) -> Iterator[None]:
    """Turn an error about a port into a `ConfigurationError` that names the table of the port's settings."""
    try:
        yield
    except ImportError:
        text = f"{table} needs aiohttp: run pip install 'incoming-payments[outbound]'"
        raise ConfigurationError(text, setting=table) from None
    except ConfigurationError as error:
        text, setting = f"{table}.{error.description}", f"{table}.{error.details['setting']}"
        raise ConfigurationError(text, setting=setting) from None
