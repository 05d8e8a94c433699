"""The keys of clients."""

from collections.abc import Mapping
from typing import Protocol

from incoming_payments.domain.payment import (
    ClientId,
)


class ClientKeys(Protocol):
    """The keys of clients, for access tokens that do not carry the key to which they are bound."""

    def find(self, client: ClientId, key_id: str) -> Mapping[str, object] | None:
        """Return the public JWK of `client` with the `kid` `key_id`, or `None` if `client` has no such key.

        An unverified request names `key_id`, so return only a key that belongs to `client`. The service calls this
        method after it has accepted the token. Raise `ClientKeysUnavailable` when the keys of the client cannot be read
        now.
        """


class AsyncClientKeys(Protocol):
    """`ClientKeys` with an `async def` method."""

    async def find(self, client: ClientId, key_id: str) -> Mapping[str, object] | None: ...
