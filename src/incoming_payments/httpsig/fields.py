"""Parse the `Signature-Input` and `Signature` fields of RFC 9421 §4, which are structured fields of RFC 9651.

Each field has one function, which returns a value or raises `MalformedField`, and no other exception.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, cast

import http_sf
from attrs import frozen
from http_sf.types import BareItemType

from incoming_payments import limits
from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.base import (
    SF_KEY,
    Component,
    Coverage,
    Parameters,
    count_parts,
    serialise_parameters,
)

POSIX_TIME_MAX: Final = 253_402_300_799  # the last second of the year 9999, which is the last that `datetime` can hold
# The signature parameters of RFC 9421 §2.3: those with a time, and the greatest length in characters of the others.
_TIMES: Final = frozenset({"created", "expires"})
_STRINGS: Final = {
    **dict.fromkeys(("keyid", "alg"), limits.KEY_ID_CHARS_MAX),
    **dict.fromkeys(("nonce", "tag"), limits.NONCE_CHARS_MAX),
}
Member = tuple[Any, Mapping[str, BareItemType]]  # an item or an inner list, with its parameters

# a dictionary of one byte sequence in canonical base64, the form in which honest clients send Signature and
# Content-Digest
_ONE_BYTE_SEQUENCE: Final = re.compile(
    rf"({SF_KEY.pattern})="
    r":((?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=|[A-Za-z0-9+/][AQgw]==)?):"
)
# The parts of a well-formed field that may contain a colon. The group captures only byte sequences.
_BYTE_SEQUENCES: Final = re.compile(
    r'%"[^"]*"'  # a Display String
    r'|"(?:[^"\\]|\\.)*"'  # a String
    r"|[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*"  # a Token or a key
    r"|:([^:]*):"
)


@frozen
class SignatureInput:
    """One member of `Signature-Input`: the covered components of a signature, and its parameters (RFC 9421 §2.3).

    `values` holds all parameters by name, including unknown ones, because all of them are signed. `signature_params` is
    the value of `@signature-params`, the last line of the signature base. It has the components and parameters in their
    strict form, in the order sent. The properties from `created` on are the known parameters. An absent parameter is
    None. The parser of the field has checked the types of the parameters.
    """

    label: str
    coverage: Coverage
    values: Mapping[str, Any]
    signature_params: str

    @property
    def components(self) -> tuple[Component, ...]:
        """The covered components, in the order sent."""
        return self.coverage.components

    @property
    def parameters(self) -> Parameters:
        """All parameters, in the order sent."""
        return tuple(self.values.items())

    @property
    def created(self) -> int | None:
        """The time of signing, a POSIX time in seconds."""
        return self.values.get("created")

    @property
    def expires(self) -> int | None:
        """The time at which the signature expires, a POSIX time in seconds."""
        return self.values.get("expires")

    @property
    def key_id(self) -> str | None:
        """The `keyid` of the signature."""
        return self.values.get("keyid")

    @property
    def alg(self) -> str | None:
        """The name of the algorithm in the registry of RFC 9421 §6.2."""
        return self.values.get("alg")

    @property
    def nonce(self) -> str | None:
        """The text that is unique to this signature."""
        return self.values.get("nonce")

    @property
    def tag(self) -> str | None:
        """The name of the application for which the signature is."""
        return self.values.get("tag")


def parse_signature_input(lines: Sequence[str]) -> dict[str, SignatureInput]:
    """Return the members of `Signature-Input` by label, in order. `lines` are the values of its received lines.

    Raises `MalformedField` when the field is not a dictionary of inner lists of strings, or exceeds a bound in
    `limits`. Also raises it when a label or parameter is repeated, or a parameter of RFC 9421 §2.3 has the wrong type.

    >>> parse_signature_input(['sig1=("@method");created=5;keyid="k"'])["sig1"].created
    5
    """
    members = parse_dictionary(lines, "Signature-Input")
    return {label: _member(label, member) for label, member in members.items()}


def parse_signature(lines: Sequence[str]) -> dict[str, bytes]:
    """Return the signatures of a `Signature` field by label, in order.

    Raises `MalformedField` unless `lines` are a dictionary of byte sequences in canonical base64, with different
    labels.

    >>> parse_signature(["sig1=:AQID:"])
    {'sig1': b'\\x01\\x02\\x03'}
    """
    signatures = {}
    for label, (value, parameters) in parse_dictionary(lines, "Signature").items():
        if type(value) is not bytes or parameters:
            text = "a member of Signature is not a byte sequence: write each member as label=:BASE64: (RFC 9421 §4.2)"
            raise MalformedField(text, field="Signature")
        signatures[label] = value
    return signatures


def parse_string(lines: Sequence[str], name: str) -> str:
    """Return the String (RFC 9651 §3.3.3) in the field `name`, and ignore its parameters.

    Raises `MalformedField` unless `lines` is one line of at most `limits.SF_STRING_BYTES_MAX` bytes with one String.

    >>> parse_string(['"text/html"'], "Accept-Name")
    'text/html'
    """
    value = None
    with suppress(ValueError):  # `http_sf` and `encode` also raise `ValueError`
        [line] = lines  # a field that RFC 9651 §4.2 joins from two lines could be one String, so refuse several lines
        if len(line) <= limits.SF_STRING_BYTES_MAX:
            value, _ = cast("Member", http_sf.parse(line.encode("ascii"), None, "item"))
    if type(value) is not str:
        text = f"send {name} once, as one string in double quotes, in at most {limits.SF_STRING_BYTES_MAX} bytes"
        raise MalformedField(f"{text} (RFC 9651 §3.3.3)", field=name)
    return value


def parse_dictionary(lines: Sequence[str], name: str) -> dict[str, Member]:
    """Return the members of the dictionary field `name` by key, in order, each with its parameters. RFC 9651 §4.2.2.

    The function is stricter than RFC 9651, so that two readers cannot find different values: a key or parameter may
    occur only once, and base64 must be canonical. Raises `MalformedField` for any other text, with the position in
    `details` if the position is known.
    """
    text = ", ".join(lines)  # several lines form one list (RFC 9651 §4.2)
    if len(text) > limits.HEADER_BYTES_MAX:
        raise MalformedField(f"{name} is longer than {limits.HEADER_BYTES_MAX} bytes: send a shorter field", field=name)

    # `http_sf` also parses this form, but more slowly.
    if one := _ONE_BYTE_SEQUENCE.fullmatch(text):
        return {one[1]: (b64decode(one[2]), {})}
    # The client has a token, but no quota counts a request with a wrong signature.
    if len(text) > limits.SF_CHARS_MAX:
        raise MalformedField(
            f"{name} is longer than {limits.SF_CHARS_MAX} characters: send a shorter field", field=name
        )
    if count_parts(text) > limits.SF_PARTS_MAX:
        text = f"{name} has more than {limits.SF_PARTS_MAX} members, items and parameters: send fewer"
        raise MalformedField(text, field=name)

    def repeated(_key: str, where: str) -> NoReturn:
        # A reader that obeys RFC 9651 §4.2.2 uses the last value, but another reader may use the first value.
        raise MalformedField(f"{name} repeats a key of a {where}: send each key once", field=name)

    try:
        parsed = http_sf.parse(text.encode("ascii"), None, "dictionary", repeated)
    except UnicodeEncodeError as error:
        text = f"{name} is not ASCII at position {error.start}: send ASCII only (RFC 9651 §4.2)"
        raise MalformedField(text, field=name, position=error.start) from None
    except http_sf.StructuredFieldError as error:
        # Do not repeat the parser's message, because the message may quote a part of the field, such as a signature.
        position = error.position
        text = (
            f"{name} is not a valid structured field dictionary from position {position} on: correct the field "
            "(RFC 9651 §3.2)"
        )
        raise MalformedField(text, field=name, position=position) from None
    members = cast("dict[str, Member]", parsed)
    if len(members) > limits.SF_MEMBERS_MAX:
        raise MalformedField(f"{name} has more than {limits.SF_MEMBERS_MAX} members: send fewer", field=name)
    _check_base64(text, name)
    return members


def _check_base64(field_text: str, name: str) -> None:
    # http_sf accepts missing padding and set bits after the last byte, as RFC 9651 §4.2.7 recommends.
    for match in _BYTE_SEQUENCES.finditer(field_text):
        base64 = match[1]
        if base64 and b64encode(b64decode(base64 + "==")) != base64.encode():
            text = f"{name} has base64 that is not canonical: add the padding =, and set no bits after the last byte"
            raise MalformedField(f"{text} (RFC 4648 §3.5)", field=name, position=match.start(1))


def _member(label: str, member: Member) -> SignatureInput:
    items, parameters = member
    if not isinstance(items, list):
        raise _malformed(
            'a member is not a list of components in parentheses: write each member as label=("@method" ...)'
        )
    if len(items) > limits.COMPONENTS_MAX:
        raise _malformed(f"a signature covers more than {limits.COMPONENTS_MAX} components: cover fewer")
    _check_count(parameters)
    coverage = Coverage(tuple([_component(*item) for item in items]))
    text = coverage.inner_list + serialise_parameters(tuple(parameters.items()))
    _check_types(parameters)
    return SignatureInput(label, coverage, parameters, text)


def _check_types(parameters: Mapping[str, BareItemType]) -> None:
    for name, value in parameters.items():
        if name in _STRINGS:
            if type(value) is not str or len(value) > _STRINGS[name]:
                raise _malformed(f"{name} must be a string in double quotes of at most {_STRINGS[name]} characters")
        # `isinstance` would accept True
        elif name in _TIMES and (type(value) is not int or not 0 <= value <= POSIX_TIME_MAX):
            raise _malformed(f"{name} must be a whole number of seconds since 1970, written without quotes")


def _component(name: BareItemType, parameters: Mapping[str, BareItemType]) -> Component:
    if type(name) is not str:
        raise _malformed("a component must be a string in double quotes")
    _check_count(parameters)
    return Component(name, tuple(parameters.items()))


def _check_count(parameters: Mapping[str, BareItemType]) -> None:
    if len(parameters) > limits.SF_PARAMETERS_MAX:
        raise _malformed(f"a component or a member has more than {limits.SF_PARAMETERS_MAX} parameters: send fewer")


def _malformed(text: str) -> MalformedField:
    return MalformedField(f"Signature-Input: {text} (RFC 9421 §4.1)", field="Signature-Input")
