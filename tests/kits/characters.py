"""Find the characters that a function accepts. It tries each of the first 256, so no edge of a set is missed."""

import string
from collections.abc import Callable
from typing import Final

LOWER: Final = string.ascii_lowercase
UPPER: Final = string.ascii_uppercase
LETTERS: Final = string.ascii_letters
DIGITS: Final = string.digits
PRINTABLE: Final = " " + string.punctuation + DIGITS + LETTERS
TCHAR: Final = "!#$%&'*+-.^_`|~" + DIGITS + LETTERS  # RFC 9110 §5.6.2
HIGH: Final = "".join(map(chr, range(128, 256)))


def accepted_characters(attempt: Callable[[str], object], refusal: type[Exception]) -> set[str]:
    """Return the characters for which `attempt` neither raises `refusal` nor returns False or None."""
    found = set()
    for character in map(chr, range(256)):
        try:
            if attempt(character) not in (False, None):
                found.add(character)
        except refusal:
            continue
    return found
