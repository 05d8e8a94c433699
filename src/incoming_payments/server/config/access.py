"""The part of a configuration that gives clients access: tokens for development, or an authorization server."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, get_args

from attrs import field, frozen

from incoming_payments.domain.payment import WalletAddressUrl
from incoming_payments.errors import InvalidValue, MalformedKey
from incoming_payments.gnap import Dialect
from incoming_payments.gnap.access import AccessRight, Action
from incoming_payments.gnap.introspection import AccessTokenInfo
from incoming_payments.gnap.token import AccessToken
from incoming_payments.httpsig import PrivateKey
from incoming_payments.limits import (
    INTROSPECTION_CACHE_S_MAX,
    INTROSPECTION_S_DEFAULT,
    INTROSPECTION_S_MAX,
    KEY_ID_CHARS_MAX,
)
from incoming_payments.server.config.client_key import ClientKey
from incoming_payments.server.config.files import Pem
from incoming_payments.server.config.reader import Once, naming, refused
from incoming_payments.server.config.setting import setting, toml
from incoming_payments.server.config.wallet_addresses import AUTH_SERVER, StaticWalletAddresses, WalletAddressesTable

_OWN: Final = [action for action in Action if not action.endswith("-all")]  # the rights of the token that `init` writes


@frozen(kw_only=True)
class RightTable:
    """A right of a token."""

    actions: tuple[Action, ...] = setting(
        f"a list of the allowed actions: {', '.join(f'`{action}`' for action in Action)}"
    )
    identifier: WalletAddressUrl | None = setting(
        "the wallet address for which the right is valid", None, "all wallet addresses"
    )


@frozen(kw_only=True)
class TokenTable:
    """An access token for development."""

    value: AccessToken = setting("the access token", written='"{token}"')
    client: str = setting(
        "the id of the client, which owns the payments that it creates", written='"{base_url}/a-client"'
    )
    jwk_file: ClientKey = setting(
        "a file with the client's public key as a JWK, which verifies the signatures of requests with this "
        "token. The command `sign` reads the private key from the file with the same name and the ending .pem",
        written='"{jwk}"',
    )
    rights: tuple[RightTable, ...] = setting(
        "the rights of the token, as an array of `rights` tables",
        written="[{{ actions = " + toml(_OWN) + ', identifier = "{base_url}/alice" }}]',
        least="one or more tables in each token",
        example='rights = [{ actions = ["create"] }]',
    )
    expires_at: datetime | None = setting("when the token expires", None, "never", written="2027-01-01T00:00:00Z")


@frozen(kw_only=True)
class AuthorizationServerTable:
    """The authorization server."""

    url: str = setting("the URL of the introspection endpoint", written='"{introspection}"')
    dialect: Dialect = setting(
        f"{' or '.join(f'`{toml(dialect)}`' for dialect in get_args(Dialect))}: the form of the introspection answers",
        written='"{dialect}"',
    )
    issuer: str | None = setting(
        "the `iss` of the introspection answers, which is the URL of the grant endpoint; only for the dialect "
        "`rfc9767`",
        None,
        AUTH_SERVER,
        written='"https://auth.bank.example"',
    )
    audience: str | None = setting(
        "the name of this service in `aud`. The service refuses a token whose `aud` names only other services",
        None,
        "the service refuses every token with `aud`",
        written='"incoming-payments"',
    )
    key_file: Pem | None = setting(
        "a file with the private key of this service in PEM, for signing introspection requests; give `key_id` too",
        None,
        "introspection requests are not signed",
        written='"{service_key}"',
    )
    key_id: str | None = setting("the key id of the key in `key_file`", None, "no key", written='"{service_key_id}"')
    resource_server: str | None = setting(
        "the name of this service at the authorization server; only for the dialect `rfc9767`",
        None,
        "the public key that belongs to `key_file`",
        written='"incoming-payments"',
    )
    timeout_s: int = setting(
        "how many seconds an introspection may take; after that, the response is 503",
        int(INTROSPECTION_S_DEFAULT),
        bounds=(1, int(INTROSPECTION_S_MAX)),
    )
    cache_s: int = setting(
        "for how many seconds an active token is cached. A revoked token stays usable for that long",
        0,
        bounds=(0, int(INTROSPECTION_CACHE_S_MAX)),
    )
    client_keys: bool = setting(
        "whether the service reads the key of a client from `jwks.json` below the wallet address of the "
        "client, if the introspection answer does not contain the key",
        True,
    )
    allow_http: bool = setting(
        "whether `url` may be an http URL, which lets the network read the tokens", False, written="true"
    )
    allow_private_clients: bool = setting(
        "for development: whether `jwks.json` may be read over http, at any port, and from private addresses",
        False,
        written="true",
    )
    key: PrivateKey | None = field(init=False, eq=False, repr=False)

    @key.default
    def _load_key(self) -> PrivateKey | None:
        if (self.key_file is None) != (self.key_id is None):
            missing, given = ("key_file", "key_id") if self.key_file is None else ("key_id", "key_file")
            text = f"{missing} is missing: give {given} and {missing} together, or neither of them"
            raise InvalidValue(text, member=missing)
        if self.key_file is None or self.key_id is None:
            return None
        try:
            return PrivateKey.from_pem(self.key_file.content, kid=self.key_id)
        except MalformedKey as error:
            if error.details.get("member") == "kid":
                text = f"key_id must be 1 to {KEY_ID_CHARS_MAX} printable ASCII characters"
                raise InvalidValue(text, member="key_id") from None
            text = f"{self.key_file.path} cannot be used: {error.description}"
            raise InvalidValue(text, member="key_file") from None


@frozen
class ConfiguredToken:
    """A table `[[token]]`: the token, its client and rights, and the file with the public key of the client."""

    value: AccessToken
    info: AccessTokenInfo
    jwk_file: Path


def tokens_of(
    tables: Sequence[TokenTable], hosted: StaticWalletAddresses | WalletAddressesTable
) -> tuple[ConfiguredToken, ...]:
    """Return the tokens of `[[token]]`.

    Raises `ConfigurationError`, for example for a right to a wallet address that is not in `hosted`.
    """
    once = Once()
    for place, table in enumerate(tables):
        once.add(table.value, f"token[{place}].value", "give each token a different value")
    return tuple(_token(f"token[{place}]", table, hosted) for place, table in enumerate(tables))


def _token(path: str, table: TokenTable, hosted: StaticWalletAddresses | WalletAddressesTable) -> ConfiguredToken:
    rights = []
    for place, right in enumerate(table.rights):
        path_of_right = f"{path}.rights[{place}]"
        with naming(path_of_right, right):
            rights.append(AccessRight(right.actions, right.identifier))
        if right.identifier is not None and not hosted.may_host(right.identifier):
            text = f"is not a wallet address of this configuration: {right.identifier}; use one {hosted.described()}"
            raise refused(f"{path_of_right}.identifier", text)
    with naming(path, table):
        info = AccessTokenInfo(table.client, table.jwk_file.jwk, rights, table.expires_at)
    return ConfiguredToken(table.value, info, table.jwk_file.path)
