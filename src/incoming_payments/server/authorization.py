"""The ports that reach the authorization server of `serve` over HTTP."""

from typing import TYPE_CHECKING

from attrs import frozen

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.config.access import AuthorizationServerTable

if TYPE_CHECKING:
    from incoming_payments.clients.client_keys import AsyncHttpClientKeys
    from incoming_payments.clients.introspection import AsyncHttpIntrospector


@frozen
class Connections:
    """The ports for an authorization server and the keys of its clients. Close them with `aclose`."""

    introspector: "AsyncHttpIntrospector"
    client_keys: "AsyncHttpClientKeys | None"

    async def aclose(self) -> None:
        """Close the connections."""
        await self.introspector.aclose()
        if self.client_keys is not None:
            await self.client_keys.aclose()


def connect(server: AuthorizationServerTable, auth_server: str) -> Connections:
    """Return the ports for `server`. They connect with the first request. `auth_server` is the default of `issuer`.

    Raises `ConfigurationError` when a setting is wrong, or the extra `clients` is not installed.
    """
    from incoming_payments.clients.client_keys import AsyncHttpClientKeys
    from incoming_payments.clients.introspection import AsyncHttpIntrospector

    issuer = auth_server if server.issuer is None and server.dialect == "rfc9767" else server.issuer
    try:
        introspector = AsyncHttpIntrospector(
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
        keys = AsyncHttpClientKeys(allow_private=server.allow_private_clients) if server.client_keys else None
    except ImportError:
        text = "authorization_server needs aiohttp: pip install 'incoming-payments[clients]'"
        raise ConfigurationError(text, setting="authorization_server") from None
    except ConfigurationError as error:
        setting = f"authorization_server.{error.details['setting']}"
        raise ConfigurationError(f"authorization_server.{error.description}", setting=setting) from None
    return Connections(introspector, keys)
