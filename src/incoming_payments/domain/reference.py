"""The reference of a payment: the text of one member of its metadata, such as an invoice number.

A setting of the store names the member. A reference is a text of 1 to `limits.REFERENCE_CHARS_MAX` characters, without
NUL and lone surrogates, which metadata never has. Clients choose the metadata, so two payments of different wallet
addresses can have the same reference.
"""

import json
import re
from typing import Final

from attrs import field, frozen

from incoming_payments.domain.payment import MetadataJson
from incoming_payments.errors import InvalidValue
from incoming_payments.limits import REFERENCE_CHARS_MAX

_TEXT: Final = re.compile(f"[^\0\ud800-\udfff]{{1,{REFERENCE_CHARS_MAX}}}")


def reference_text(text: str, *, member: str = "reference") -> str:
    """Return `text`, which is the value of the argument `member`. Raises `InvalidValue` if it cannot be a reference."""
    if not _is_reference(text):
        wanted = f"must be a text of 1 to {REFERENCE_CHARS_MAX} characters, without NUL and lone surrogates"
        raise InvalidValue(f"{member} {wanted}", member=member)
    return text


def reference_of(metadata: MetadataJson | None, member: str) -> str | None:
    """Return the reference in `member` of `metadata`, or `None` if there is none.

    >>> reference_of(MetadataJson('{"externalRef":"INV-7"}'), "externalRef")
    'INV-7'
    """
    value = None if metadata is None else json.loads(metadata).get(member)
    return value if _is_reference(value) else None


@frozen
class Reference:
    """The reference `text` in the member `member` of the metadata. Raises `InvalidValue` for an invalid text."""

    member: str = field(converter=reference_text)
    text: str = field(converter=reference_text)

    def is_in(self, metadata: MetadataJson | None) -> bool:
        """Return whether `metadata` has this reference."""
        return reference_of(metadata, self.member) == self.text


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and _TEXT.fullmatch(value) is not None
