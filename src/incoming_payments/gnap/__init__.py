"""GNAP for a resource server: access tokens, their access rights, and the challenge (RFC 9635 and RFC 9767)."""

from incoming_payments.gnap.access import AccessRight, Action, read_access
from incoming_payments.gnap.introspection import (
    AccessTokenInfo,
    Dialect,
    StaticIntrospector,
    TokenQuery,
    read_introspection,
)
from incoming_payments.gnap.token import AccessToken

__all__ = [
    "AccessRight",
    "AccessToken",
    "AccessTokenInfo",
    "Action",
    "Dialect",
    "StaticIntrospector",
    "TokenQuery",
    "read_access",
    "read_introspection",
]
