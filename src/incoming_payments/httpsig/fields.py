"""The `Signature-Input` and `Signature` fields as typed values: RFC 9421 §4 on the structured fields of RFC 9651.

One function a field, and out of each comes a value or `MalformedField`, never anything else.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, cast

import http_sf
from attrs import frozen
from http_sf.types import BareItemType

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.base import Component, Coverage, Parameters, serialise_parameters
from incoming_payments.limits import (
    COMPONENTS_MAX,
    HEADER_BYTES_MAX,
    KEY_ID_CHARS_MAX,
    NONCE_CHARS_MAX,
    SF_MEMBERS_MAX,
    SF_PARAMETERS_MAX,
)

POSIX_TIME_MAX: Final = 253_402_300_799  # the last second of the year 9999, where calendars and `datetime` end
# The signature parameters of RFC 9421 §2.3: the times, and how many characters the others may have.
_TIMES: Final = frozenset({"created", "expires"})
_STRINGS: Final = {
    "keyid": KEY_ID_CHARS_MAX,
    "alg": KEY_ID_CHARS_MAX,
    "nonce": NONCE_CHARS_MAX,
    "tag": NONCE_CHARS_MAX,
}
Member = tuple[Any, Mapping[str, BareItemType]]  # an item, or a list of items that are pairs in turn; its parameters

# What can stand in a well-formed field, so that a byte sequence is told from a colon within something else.
_BYTE_SEQUENCES: Final = re.compile(
    r'%"[^"]*"'  # a Display String
    r'|"(?:[^"\\]|\\.)*"'  # a String
    r"|[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*"  # a Token or a key
    r"|:([^:]*):"
)


@frozen
class SignatureInput:
    """One member of `Signature-Input`: what a signature covers, and its parameters. RFC 9421 §2.3.

    `values` are those of all parameters by name, the unknown ones too, because all of them are signed.
    `signature_params` is the value of the component of that name, the last line of the signature base: coverage and
    parameters in their strict form, in the order sent. `created` and `expires` are POSIX times in seconds.
    """

    label: str
    coverage: Coverage
    values: Mapping[str, BareItemType]
    signature_params: str

    @property
    def components(self) -> tuple[Component, ...]:
        """What the signature covers, in the order sent."""
        return self.coverage.components

    @property
    def parameters(self) -> Parameters:
        """All parameters, in the order sent."""
        return tuple(self.values.items())

    @property
    def created(self) -> int | None:
        """When the signature was made."""
        return self.values.get("created")  # type: ignore[return-value] # as was seen to when it was parsed

    @property
    def expires(self) -> int | None:
        """When the signer takes it back."""
        return self.values.get("expires")  # type: ignore[return-value] # as was seen to when it was parsed

    @property
    def key_id(self) -> str | None:
        """Which key it says it is by: `keyid`."""
        return self.values.get("keyid")  # type: ignore[return-value] # as was seen to when it was parsed

    @property
    def alg(self) -> str | None:
        """By which algorithm, when it says so."""
        return self.values.get("alg")  # type: ignore[return-value] # as was seen to when it was parsed

    @property
    def nonce(self) -> str | None:
        """What is unique to this signature."""
        return self.values.get("nonce")  # type: ignore[return-value] # as was seen to when it was parsed

    @property
    def tag(self) -> str | None:
        """The application that it is for."""
        return self.values.get("tag")  # type: ignore[return-value] # as was seen to when it was parsed


def parse_signature_input(lines: Sequence[str]) -> dict[str, SignatureInput]:
    """The members of `Signature-Input` by label, in order; `lines` are the values of the field, one a line received.

    Raises `MalformedField` when they are not a dictionary of inner lists of strings, a label or parameter is repeated,
    a parameter of RFC 9421 §2.3 has another type than it should, or there is more of anything than `limits` allows.

    >>> parse_signature_input(['sig1=("@method");created=5;keyid="k"'])["sig1"].created
    5
    """
    members = parse_dictionary(lines, "Signature-Input")
    return {label: _member(label, member) for label, member in members.items()}


def parse_signature(lines: Sequence[str]) -> dict[str, bytes]:
    """The signatures of a `Signature` field by label, in order.

    Raises `MalformedField` when `lines` are not a dictionary of byte sequences, in canonical base64, or a label is
    repeated.

    >>> parse_signature(["sig1=:AQID:"])
    {'sig1': b'\\x01\\x02\\x03'}
    """
    signatures = {}
    for label, (value, parameters) in parse_dictionary(lines, "Signature").items():
        if type(value) is not bytes or parameters:
            text = "each member of Signature is a byte sequence and no more: label=:base64: (RFC 9421 §4.2)"
            raise MalformedField(text, field="Signature")
        signatures[label] = value
    return signatures


def parse_dictionary(lines: Sequence[str], name: str) -> dict[str, Member]:
    """The members of the dictionary field `name`, by key and in order, each with its parameters. RFC 9651 §4.2.2.

    Stricter than RFC 9651 where a second reader could find something else: no key or parameter is repeated, and base64
    is canonical. Raises `MalformedField` otherwise, with the position in `details` where it is known.
    """
    text = ", ".join(lines)  # RFC 9651 §4.2: lines are one list
    if len(text) > HEADER_BYTES_MAX:
        raise MalformedField(f"{name} is longer than {HEADER_BYTES_MAX} bytes", field=name)

    def repeated(_key: str, where: str) -> NoReturn:
        # RFC 9651 lets the last one win; but somebody else may have read the first.
        raise MalformedField(f"{name} repeats a key of a {where}: each goes once", field=name)

    try:
        parsed = http_sf.parse(text.encode("ascii"), None, "dictionary", repeated)
    except UnicodeEncodeError as error:
        raise MalformedField(f"{name} is not ASCII (RFC 9651 §4.2)", field=name, position=error.start) from None
    except http_sf.StructuredFieldError as error:
        # Its own words may quote a piece of the field, and that piece may be a signature.
        position = error.position
        text = f"{name} cannot be read as a structured field dictionary from position {position} on (RFC 9651 §3.2)"
        raise MalformedField(text, field=name, position=position) from None
    members = cast("dict[str, Member]", parsed)
    if len(members) > SF_MEMBERS_MAX:
        raise MalformedField(f"{name} has more than {SF_MEMBERS_MAX} members", field=name)
    if ":" in text:
        _check_base64(text, name)
    return members


def _check_base64(text: str, name: str) -> None:
    # http_sf takes what RFC 9651 §4.2.7 asks parsers to take: missing padding, and bits set past the last byte.
    for match in _BYTE_SEQUENCES.finditer(text):
        base64 = match[1]
        if base64 and b64encode(b64decode(base64 + "==")) != base64.encode():
            raise MalformedField(
                f"{name} has base64 that is not canonical: pad it with = and set no bit past the last byte",
                field=name,
                position=match.start(1),
            )


def _member(label: str, member: Member) -> SignatureInput:
    items, parameters = member
    if not isinstance(items, list):
        raise _malformed('each member is a list of components in parentheses: label=("@method" ...)')
    if len(items) > COMPONENTS_MAX:
        raise _malformed(f"a signature covers at most {COMPONENTS_MAX} components")
    _check_count(parameters)
    coverage = Coverage(tuple([_component(*item) for item in items]))
    text = coverage.inner_list + serialise_parameters(tuple(parameters.items()))
    return signature_input(label, coverage, parameters, text)


def signature_input(
    label: str, coverage: Coverage, parameters: Mapping[str, BareItemType], signature_params: str
) -> SignatureInput:
    """Return a member of `Signature-Input`. Raises `MalformedField` when a parameter is not of its type."""
    for name, value in parameters.items():
        if name in _STRINGS:
            if type(value) is not str or len(value) > _STRINGS[name]:
                raise _malformed(f"{name} is a string in double quotes of at most {_STRINGS[name]} characters")
        elif name in _TIMES and (type(value) is not int or not 0 <= value <= POSIX_TIME_MAX):  # `type`: True is an int
            raise _malformed(f"{name} is a whole number of seconds since 1970, written without quotes")
    return SignatureInput(label, coverage, parameters, signature_params)


def _component(name: BareItemType, parameters: Mapping[str, BareItemType]) -> Component:
    if type(name) is not str:
        raise _malformed("a component is a string, in double quotes")
    if not parameters:
        return Component(name)
    _check_count(parameters)
    return Component(name, tuple(parameters.items()))


def _check_count(parameters: Mapping[str, BareItemType]) -> None:
    if len(parameters) > SF_PARAMETERS_MAX:
        raise _malformed(f"there are at most {SF_PARAMETERS_MAX} parameters on one thing")


def _malformed(text: str) -> MalformedField:
    return MalformedField(f"Signature-Input: {text} (RFC 9421 §4.1)", field="Signature-Input")
