"""Shapes of the signature fields that two SDKs of Open Payments send. These shapes are not structured fields.

Only a policy that names a shape accepts it. `strict_form` rewrites the shape into the form of RFC 9421 §4, and `verify`
then makes all its checks. A shape has one signature, in one line of each field.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from typing import Final

from attrs import evolve, frozen

from incoming_payments.httpsig.base import SF_KEY
from incoming_payments.httpsig.fields import SignatureInput


class Shape(enum.StrEnum):
    """A way to write `Signature-Input` and `Signature` that deviates from RFC 9421 §4, named after its SDK."""

    # interledger/open-payments-php writes no colons around the base64: `Signature: sig1=bGFiZWw=`
    PHP_SDK = "php-sdk"
    # interledger/open-payments writes no label, no colons, and no quotes around the components, even in the signature
    # base: `Signature: bGFiZWw=` and `Signature-Input: sig1=(@method @target-uri);created=1;keyid="k"`
    RUST_SDK = "rust-sdk"


@frozen
class StrictForm:
    """The two field lines in the form of RFC 9421 §4."""

    signature_input: str
    signature: str
    # the list of components as the signer signed it, or None if the signer signed the strict form
    components: str | None

    def as_signed(self, given: SignatureInput) -> SignatureInput:
        """Return `given`, which was parsed from the strict form, with the component list as the signer signed it."""
        if self.components is None:
            return given
        parameters = given.signature_params.removeprefix(given.coverage.inner_list)
        return evolve(given, signature_params=self.components + parameters)


_LABEL: Final = SF_KEY.pattern
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_PHP_SIGNATURE: Final = re.compile(f"({_LABEL})=({_BASE64})")
_RUST_SIGNATURE: Final = re.compile(_BASE64)
_RUST_INPUT: Final = re.compile(rf"({_LABEL})=\((@?[a-z][a-z0-9\-]*(?: @?[a-z][a-z0-9\-]*)*)\)(;[ -~]*)")


def any_strict_form(
    shapes: Iterable[Shape], input_lines: Sequence[str], signature_lines: Sequence[str]
) -> StrictForm | None:
    """Return the field lines in their strict form, or None if the lines have none of `shapes`."""
    forms = (strict_form(shape, input_lines, signature_lines) for shape in shapes)
    return next(filter(None, forms), None)


def strict_form(shape: Shape, input_lines: Sequence[str], signature_lines: Sequence[str]) -> StrictForm | None:
    """Convert the field lines to the form of RFC 9421, without validation. Return `None` if they lack this `shape`."""
    if len(input_lines) != 1 or len(signature_lines) != 1:
        return None
    [input_line], [signature_line] = input_lines, signature_lines
    if shape is Shape.PHP_SDK:
        php = _PHP_SIGNATURE.fullmatch(signature_line)
        return php and StrictForm(input_line, f"{php[1]}=:{php[2]}:", None)
    given, signature = _RUST_INPUT.fullmatch(input_line), _RUST_SIGNATURE.fullmatch(signature_line)
    if given is None or signature is None:
        return None
    label, names, parameters = given.groups()
    components = " ".join([f'"{name}"' for name in names.split(" ")])
    return StrictForm(f"{label}=({components}){parameters}", f"{label}=:{signature[0]}:", f"({names})")
