"""`Signature-Input` read by both paths: the fast path of `httpsig.fast`, and the specification that it stands for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import SignatureInput, fast, fields


def both(lines: Sequence[str]) -> tuple[str, str]:
    """Return the values of `lines` on both paths, or their errors, as text."""
    return _outcome(fast.parse_signature_input, lines), _outcome(fields.parse_signature_input, lines)


def _outcome(parse: Callable[[Sequence[str]], Mapping[str, SignatureInput]], lines: Sequence[str]) -> str:
    # As text, because 1 and True are equal, and so are a string and a Token.
    try:
        return repr(list(parse(lines).items()))
    except MalformedField as error:
        return repr((error.code, error.description, error.details))


class OnSlowPath(Exception):
    """The specification was called."""


@contextmanager
def only_fast_path() -> Iterator[None]:
    """Raise `OnSlowPath` when the fast path calls the specification."""

    def fails(*_: object) -> Any:
        raise OnSlowPath

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "parse_signature_input", fails)
        yield
