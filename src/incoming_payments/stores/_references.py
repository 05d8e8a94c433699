"""The references of payments, as the stores on SQL databases index them.

The database holds a digest of the reference, so that an erasure leaves no text in an index.
"""

import hashlib
from typing import Final

from incoming_payments.domain.payment import MetadataJson
from incoming_payments.domain.reference import reference_of, reference_text
from incoming_payments.errors import ConfigurationError

_DIGEST_BYTES: Final = 16


def digest(text: str) -> bytes:
    """Return the digest of a reference, as in the column."""
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]


def digest_in(metadata: MetadataJson | None, member: str | None) -> bytes | None:
    """Return the value of the column if the database indexes `member`."""
    text = None if member is None else reference_of(metadata, member)
    return None if text is None else digest(text)


def checked_member(reference: str | None) -> str | None:
    """Return the setting `reference` if it can be the name of a member. Raises `ConfigurationError`."""
    try:
        return None if reference is None else reference_text(reference)
    except ValueError as error:
        raise ConfigurationError(str(error), setting="reference") from None
