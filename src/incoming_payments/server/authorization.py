"""The authorization server of `serve`: its table in the configuration, and the ports that reach it over HTTP."""

from typing import TYPE_CHECKING, Any, get_args

from attrs import field, frozen

from incoming_payments.errors import ConfigurationError, InvalidValue, MalformedKey
from incoming_payments.gnap import Dialect
from incoming_payments.httpsig import PrivateKey
from incoming_payments.limits import KEY_ID_CHARS_MAX
from incoming_payments.server import declarations
from incoming_payments.server.files import PRIVATE, Files
from incoming_payments.server.reader import Table, naming

if TYPE_CHECKING:
    from incoming_payments.clients.client_keys import AsyncHttpClientKeys
    from incoming_payments.clients.introspection import AsyncHttpIntrospector


@frozen(kw_only=True)
class AuthorizationServer:
    """The settings of `[authorization_server]`. `docs/server.md` explains them."""

    url: str
    dialect: Dialect
    issuer: str | None
    audience: str | None
    resource_server: str | None
    key: PrivateKey | None = field(repr=False, eq=lambda key: None if key is None else key.public_jwk())
    timeout_s: int
    cache_s: int
    client_keys: bool
    allow_http: bool
    allow_private_clients: bool


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


def read_authorization_server(table: Table, files: Files, auth_server: str) -> AuthorizationServer:
    """Return the settings in `table`. The default of `issuer` is `auth_server`. Raises `ConfigurationError`."""
    values = table.read(declarations.AUTHORIZATION_SERVER)
    if values["dialect"] not in get_args(Dialect):
        raise table.wrong("dialect", f"must be {' or '.join(map(repr, get_args(Dialect)))}")
    if values["dialect"] == "rfc9767" and values["issuer"] is None:
        values["issuer"] = auth_server
    return AuthorizationServer(key=_key(table, values, files), **values)


def _key(table: Table, values: dict[str, Any], files: Files) -> PrivateKey | None:
    """Take the names of the key out of `values`, and return the key."""
    name, kid = values.pop("key_file"), values.pop("key_id")
    if (name is None) != (kid is None):
        missing, given = ("key_file", "key_id") if name is None else ("key_id", "key_file")
        raise table.wrong(missing, f"is missing: give {given} and {missing} together, or none of them")
    if name is None:
        return None
    with naming(f"{table.name}.key_file"):
        pem = files.read(name, PRIVATE)
        try:
            return PrivateKey.from_pem(pem, kid=kid)
        except MalformedKey as error:
            if error.details.get("member") == "kid":
                raise table.wrong("key_id", f"must be 1 to {KEY_ID_CHARS_MAX} printable ASCII characters") from None
            raise InvalidValue(f"{files.folder / name} cannot be used: {error.description}") from None


def connect(server: AuthorizationServer) -> Connections:
    """Return the ports for `server`. They connect with the first request.

    Raises `ConfigurationError` when a setting is wrong, or the extra `clients` is not installed.
    """
    from incoming_payments.clients.client_keys import AsyncHttpClientKeys
    from incoming_payments.clients.introspection import AsyncHttpIntrospector

    try:
        introspector = AsyncHttpIntrospector(
            server.url,
            dialect=server.dialect,
            issuer=server.issuer,
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
