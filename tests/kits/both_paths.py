"""A field read by both paths: the fast path of `httpsig.fast`, and the specification that it stands for."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pytest

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import fast, fields

Parser = Callable[[Sequence[str]], Any]
Paths = tuple[Parser, Parser]  # the fast path, and the specification

SIGNATURE_INPUT: Final[Paths] = (fast.parse_signature_input, fields.parse_signature_input)
SIGNATURE: Final[Paths] = (fast.parse_signature, fields.parse_signature)


def both(paths: Paths, lines: Sequence[str]) -> tuple[str, str]:
    """Return the values of `lines` on both paths, or their errors, as text."""
    return _outcome(paths[0], lines), _outcome(paths[1], lines)


def _outcome(parse: Parser, lines: Sequence[str]) -> str:
    # As text, because 1 and True are equal, and so are a string and a Token.
    try:
        return repr(list(parse(lines).items()))
    except MalformedField as error:
        return repr((error.code, error.description, error.details))


class OnSlowPath(Exception):
    """The specification was called."""


@contextmanager
def only_fast_paths() -> Iterator[None]:
    """Raise `OnSlowPath` when a fast path calls the specification."""

    def fails(*_: object) -> Any:
        raise OnSlowPath

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((fields, "parse_signature_input"), (fields, "parse_signature")):
            patch.setattr(module, name, fails)
        yield
