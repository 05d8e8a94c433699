"""Shapes of the signature fields that are no structured fields, but that two SDKs of Open Payments send.

Each is read only where a policy names it. It is put into the strict form, and goes the way of all signatures from
there: the shape is all that is loosened. Each shape is one signature, in one field line of each kind.
"""

import enum
import re
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from incoming_payments.httpsig.base import SF_KEY


class Shape(enum.StrEnum):
    """A known way to write `Signature-Input` and `Signature` that RFC 9421 §4 does not know, by who writes it.

    >>> Shape("php-sdk")
    <Shape.PHP_SDK: 'php-sdk'>
    """

    # interledger/open-payments-php: no colons around the base64. `Signature: sig1=bGFiZWw=`
    PHP_SDK = "php-sdk"
    # interledger/open-payments: no label and no colons, and no quotes around the components, also where they are
    # signed. `Signature: bGFiZWw=` and `Signature-Input: sig1=(@method @target-uri);created=1;keyid="k"`
    RUST_SDK = "rust-sdk"


@frozen
class StrictForm:
    """The two field lines in the form of RFC 9421 §4, and the list of components that is signed, if another."""

    signature_input: str
    signature: str
    components: str | None

    def signature_params(self, inner_list: str, strict: str) -> str:
        """The value of `@signature-params` that is signed; in the `strict` form, it begins with `inner_list`.

        >>> StrictForm("", "", "(@method)").signature_params('("@method")', '("@method");created=1')
        '(@method);created=1'
        """
        return strict if self.components is None else self.components + strict.removeprefix(inner_list)


_LABEL: Final = SF_KEY.pattern
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_PHP_SIGNATURE: Final = re.compile(f"({_LABEL})=({_BASE64})")
_RUST_SIGNATURE: Final = re.compile(_BASE64)
_RUST_INPUT: Final = re.compile(rf"({_LABEL})=\((@?[a-z][a-z0-9\-]*(?: @?[a-z][a-z0-9\-]*)*)\)(;[ -~]*)")


def strict_form(shape: Shape, input_lines: Sequence[str], signature_lines: Sequence[str]) -> StrictForm | None:
    """The field lines in their strict form, when they are of this `shape` to the letter; None when they are not.

    What comes out is not checked yet. It may be anything that has the shape.

    >>> strict_form(Shape.PHP_SDK, ['sig1=("@method")'], ["sig1=AQID"]).signature
    'sig1=:AQID:'
    """
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
