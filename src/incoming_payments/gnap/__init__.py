"""GNAP for a resource server: access tokens, their access rights, and the challenge. RFC 9635 and RFC 9767."""

from incoming_payments.gnap.access import AccessRight, read_access
from incoming_payments.gnap.introspection import AccessTokenInfo, StaticIntrospector, read_introspection
from incoming_payments.gnap.token import AccessToken

__all__ = ["AccessRight", "AccessToken", "AccessTokenInfo", "StaticIntrospector", "read_access", "read_introspection"]
