"""Token introspection by the authorization server."""

from typing import Protocol

from incoming_payments.gnap.introspection import AccessTokenInfo, TokenQuery


class Introspector(Protocol):
    """Token introspection by the authorization server. RFC 9767 §3.3."""

    def introspect(self, query: TokenQuery) -> AccessTokenInfo | None:
        """Return the information about the token, or `None` when it is not active.

        Send the action and the wallet address of `query` only to an authorization server whose answer depends on them.
        """


class AsyncIntrospector(Protocol):
    """`Introspector` with an `async def` method."""

    async def introspect(self, query: TokenQuery) -> AccessTokenInfo | None: ...
