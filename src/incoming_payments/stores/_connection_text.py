"""Recognise a connection string of PostgreSQL in the place of a path, because it may contain a password."""

import re
from typing import Final

_SCHEMES: Final = ("postgresql://", "postgres://")
# A URL with any scheme, `user:password@host`, or the settings of libpq.
_PARTS: Final = re.compile(r"://|:.*@|\b(?:host|hostaddr|service|user|password|dbname)\s*=", re.IGNORECASE | re.DOTALL)


def is_url(text: str) -> bool:
    """Return whether `text` begins like a URL of PostgreSQL."""
    return text.startswith(_SCHEMES)


def may_be_connection_string(text: str) -> bool:
    """Return whether `text` may be meant as a connection string, also with a mistake in it."""
    return _PARTS.search(text) is not None
