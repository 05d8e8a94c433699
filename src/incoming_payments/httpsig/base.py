"""The signature base of RFC 9421 §2: messages, components, and the exact bytes that are signed.

Whatever cannot be put into a base without doubt is refused, nothing is guessed, and no parameter is ignored.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, NoReturn
from urllib.parse import unquote_to_bytes

import http_sf
from attrs import evolve, field, frozen
from http_sf.retrofit import retrofit
from http_sf.types import BareItemType

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.reasons import Reason
from incoming_payments.limits import COMPONENTS_MAX, HEADER_BYTES_MAX

Parameters = tuple[tuple[str, BareItemType], ...]  # in the order in which they were sent, which is signed too

_FIELD_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")  # RFC 9421 §2.1: a token in lower case
_METHOD: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 §9.1: a token, case kept
_KEY: Final = re.compile(r"[a-z*][a-z0-9_\-.*]*")  # RFC 9651 §3.1.2
_PLAIN_STRING: Final = re.compile(r"[ !#-\[\]-~]*")  # what a String holds without escapes
_UNSIGNABLE: Final = re.compile(r"[^\t\x20-\x7e]")
_UNSIGNABLE_BYTES: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_OBS_FOLD: Final = re.compile(r"[ \t]*\r\n[ \t]+")  # RFC 9112 §5.2
# Visible ASCII in origin form. Userinfo and fragments are no part of a request's target: RFC 9110 §4.2.4, §7.1.
_TARGET: Final = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]+)(?::(?P<port>[0-9]*))?"
    r"(?P<path>/[!-~]*?)?(?P<query>\?[!-~]*)?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}

# The types that `;sf` and `;key` need to know. RFC 9421 §2.1.1: without one, the value cannot be serialised strictly.
_FIELD_TYPES: Final[Mapping[str, str]] = {
    **retrofit,
    "accept-signature": "dictionary",  # RFC 9421 §5.1
    "client-cert": "item",  # RFC 9440
    "client-cert-chain": "list",
    "content-digest": "dictionary",  # RFC 9530
    "deprecation": "item",  # RFC 9745
    "repr-digest": "dictionary",
    "signature": "dictionary",
    "signature-input": "dictionary",
    "want-content-digest": "dictionary",
    "want-repr-digest": "dictionary",
}


# --- messages ----------------------------------------------------------------------------------


def _index(headers: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Field lines by lower-case name, in the order received."""
    index: dict[str, list[str]] = {}
    for name, value in headers:
        index.setdefault(name.lower(), []).append(value)
    return index


@frozen
class Request:
    """An HTTP request as the verifier sees it: exactly what arrived, nothing decoded or re-serialised.

    `target_uri` is absolute, and the application builds it from its own configuration and the raw path and query,
    never from `Host`. Header values are latin-1 text, as WSGI has them; `body` is the bytes that were received. Nothing
    is checked here, because it is the client's to get wrong: a component that cannot be signed over is refused when
    it is needed.

    >>> request = Request("GET", "https://ase.example/pay?x=1", (("Accept", "a"), ("ACCEPT", "b")))
    >>> request.values("accept")
    ('a', 'b')
    """

    method: str
    target_uri: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)  # one of them is the access token
    body: bytes = field(default=b"", repr=False)

    def values(self, name: str) -> tuple[str, ...]:
        """Every value of the field `name` (lower case) in the order received; empty when there is none."""
        return tuple(self._lines.get(name, ()))

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        return _index(self.headers)


@frozen
class Response:
    """An HTTP response, to the level of the signature base; `request` is what it answers, for `;req`."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    request: Request | None = None

    def values(self, name: str) -> tuple[str, ...]:
        """Every value of the field `name` (lower case) in the order received; empty when there is none."""
        return tuple(self._lines.get(name, ()))

    @cached_property
    def _lines(self) -> dict[str, list[str]]:
        return _index(self.headers)


# --- components --------------------------------------------------------------------------------


@frozen
class Component:
    """A covered component: a field or derived component, with its parameters in the order sent. RFC 9421 §2.

    >>> Component("@query-param", (("name", "Pet"),)).identifier
    '"@query-param";name="Pet"'
    """

    name: str
    parameters: Parameters = ()

    @property
    def identifier(self) -> str:
        """The serialised component identifier. Raises `MalformedField` if it has none."""
        if not self.parameters and _PLAIN_STRING.fullmatch(self.name):
            return f'"{self.name}"'
        return _serialise(self.name) + serialise_parameters(self.parameters)


def serialise_parameters(parameters: Parameters) -> str:
    """Parameters in the strict form of RFC 9651 §4.1.1.2. Raises `MalformedField` for what has none."""
    return "".join([_serialise_parameter(key, value) for key, value in parameters])


def _serialise_parameter(key: str, value: BareItemType) -> str:
    if not _KEY.fullmatch(key):
        raise MalformedField("a parameter's name has to be lower case letters, digits and _-.* (RFC 9651 §3.1.2)")
    return f";{key}" if value is True else f";{key}={_serialise(value)}"


def _serialise(value: BareItemType) -> str:
    # The short cut gives what http_sf gives, four times as fast, for the strings that everybody sends.
    if type(value) is str and _PLAIN_STRING.fullmatch(value):
        return f'"{value}"'
    try:
        return http_sf.ser(value)
    except (ValueError, TypeError) as error:
        raise MalformedField("a parameter's value cannot be written as a structured field item") from error


def _refuse(reason: Reason, description: str, component: Component) -> NoReturn:
    raise MalformedField(description, reason=reason, component=component.name[:64])


# --- the signature base ------------------------------------------------------------------------


def signature_base(message: Request | Response, components: Sequence[Component], params: Parameters) -> bytes:
    """The bytes that a signature over `components` of `message` with signature parameters `params` signs. RFC 9421 §2.5.

    Raises `MalformedField`, with `details["reason"]` (a `Reason`) and `details["component"]`, when a component is
    unknown, repeated, absent, has a parameter that is not applied, or has a value that cannot be signed over.

    >>> request = Request("GET", "https://ase.example/pay", (("Accept", " text/html "),))
    >>> print(signature_base(request, [Component("@path"), Component("accept")], (("created", 1),)).decode())
    "@path": /pay
    "accept": text/html
    "@signature-params": ("@path" "accept");created=1
    """
    return BaseBuilder(message).build(components, params)


class BaseBuilder:
    """Builds the bases of one message, and reads each of its parts once however many components name it."""

    def __init__(self, message: Request | Response) -> None:
        self.message = message
        self._parsed: dict[str, http_sf.StructuredType] = {}

    def build(self, components: Sequence[Component], params: Parameters) -> bytes:
        """As `signature_base`."""
        if len(components) > COMPONENTS_MAX:
            raise MalformedField(
                f"cover at most {COMPONENTS_MAX} components", reason=Reason.COMPONENT_UNSUPPORTED
            )
        seen: set[object] = set()
        identifiers: list[str] = []
        lines: list[str] = []
        for component in components:
            value = self._value(component)
            # RFC 9421 §2: each component once; the order of its parameters makes no difference to that.
            unique = (component.name, frozenset(component.parameters)) if component.parameters else component.name
            if unique in seen:
                _refuse(Reason.COMPONENT_REPEATED, "name each covered component once (RFC 9421 §2.5)", component)
            seen.add(unique)
            identifier = component.identifier
            identifiers.append(identifier)
            lines.append(f"{identifier}: {value}\n")
        inner_list = f"({' '.join(identifiers)}){serialise_parameters(params)}"
        return f'{"".join(lines)}"@signature-params": {inner_list}'.encode("ascii")

    def _value(self, component: Component) -> str:
        if component.name.startswith("@"):
            return self._derived(component)
        if not component.parameters:
            return self._field(component)
        return self._field_with_parameters(component)

    # --- fields, RFC 9421 §2.1 ---

    def _field(self, component: Component) -> str:
        lines = self.message.values(component.name)
        if not lines:
            _refuse_name(component)
        value = _strip(lines[0]) if len(lines) == 1 else ", ".join(map(_strip, lines))
        # `isprintable` says yes to the ASCII from space to tilde; only a tab needs the closer look.
        if not (value.isascii() and value.isprintable()) and _UNSIGNABLE.search(value):
            # RFC 9421 §2.5: the base is ASCII, and a newline in a value could forge a line of it.
            text = "send it without control characters, and in ASCII or covered with ;bs"
            _refuse(Reason.COMPONENT_VALUE, f"a covered field has a value that cannot be signed over: {text}", component)
        if len(value) > HEADER_BYTES_MAX:
            _refuse(Reason.COMPONENT_VALUE, f"a covered field is longer than {HEADER_BYTES_MAX} bytes", component)
        if not _FIELD_NAME.fullmatch(component.name):
            _refuse_name(component)
        return value

    def _field_with_parameters(self, component: Component) -> str:
        parameters = dict(component.parameters)
        if "req" in parameters:
            return self._of_request(component)
        _check_field_parameters(component, parameters)
        if "bs" in parameters:
            return self._binary(component)
        structure = self._structure(component)
        if "key" not in parameters:
            return http_sf.ser(structure) if structure not in ({}, []) else ""
        if not isinstance(structure, dict):
            _refuse(Reason.COMPONENT_UNSUPPORTED, ";key is for fields that are dictionaries", component)
        member = structure.get(str(parameters["key"]))
        if member is None:
            _refuse(Reason.COMPONENT_ABSENT, "the dictionary member that ;key names is not in the field", component)
        return http_sf.ser([member])  # as a list of one: the serialisation of the member alone, RFC 9421 §2.1.2

    def _binary(self, component: Component) -> str:
        # RFC 9421 §2.1.3: each line on its own, so that no comma inside a value can be taken for one between two
        lines = [_strip(line) for line in self.message.values(component.name)]
        if not lines:
            _refuse_name(component)
        if any(map(_UNSIGNABLE_BYTES.search, lines)):
            text = "a field covered with ;bs has control characters, or is not bytes"
            _refuse(Reason.COMPONENT_VALUE, text, component)
        return ", ".join([f":{b64encode(line.encode('latin-1')).decode()}:" for line in lines])

    def _structure(self, component: Component) -> http_sf.StructuredType:
        name = component.name
        if name not in self._parsed:
            value = self._field(component)
            kind = _FIELD_TYPES.get(name)
            if kind is None:
                text = "not known to be a structured field: cover it without ;sf and ;key"
                _refuse(Reason.COMPONENT_UNSUPPORTED, text, component)

            # RFC 9651 would let the last one win; somebody else may read the first.
            def repeated(_key: str, _where: str) -> NoReturn:
                _refuse(Reason.COMPONENT_VALUE, "a structured field repeats a key", component)

            try:
                self._parsed[name] = http_sf.parse(value.encode("ascii"), tltype=kind, on_duplicate_key=repeated)
            except http_sf.StructuredFieldError as error:
                text = "covered with ;sf or ;key, but not a structured field of its type"
                raise MalformedField(text, reason=Reason.COMPONENT_VALUE, component=name[:64]) from error
        return self._parsed[name]

    # --- derived components, RFC 9421 §2.2 ---

    def _derived(self, component: Component) -> str:
        if component.parameters and component.parameters[0][0] != "name" and "req" in dict(component.parameters):
            return self._of_request(component)
        message = self.message
        if isinstance(message, Response):
            if component.name != "@status" or component.parameters:
                _refuse(Reason.COMPONENT_UNSUPPORTED, "not a component of a response (RFC 9421 §2.2)", component)
            return f"{message.status:03d}"
        if component.name == "@query-param":
            return self._query_param(message, component)
        derive = _DERIVED.get(component.name)
        if derive is None or component.parameters:
            text = "not a derived component of a request, or one with a parameter it does not have (RFC 9421 §2.2)"
            _refuse(Reason.COMPONENT_UNSUPPORTED, text, component)
        return derive(self, message, component)
