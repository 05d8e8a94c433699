"""The signature base of RFC 9421 §2: covered components, and the exact bytes that are signed.

Whatever cannot be put into a base without doubt is refused: nothing is guessed, and no parameter is ignored.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, NoReturn

import http_sf
from attrs import evolve, frozen
from http_sf.retrofit import retrofit
from http_sf.types import BareItemType

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.message import Request, Response
from incoming_payments.httpsig.reasons import Reason
from incoming_payments.limits import COMPONENTS_MAX, HEADER_BYTES_MAX, SF_FIELDS_BYTES_MAX

Parameters = tuple[tuple[str, BareItemType], ...]  # in the order in which they were sent: the order is signed too

FIELD_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")  # RFC 9421 §2.1: a token in lower case
_METHOD: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110 §9.1: a token, its case kept
SF_KEY: Final = re.compile(r"[a-z*][a-z0-9_\-.*]*")  # RFC 9651 §3.1.2
# RFC 9110 §5.3: these are no lists. When one occurs twice, two readers may act on different ones.
_SINGLETONS: Final = frozenset({"authorization", "content-length", "content-type", "date", "host"})
_UNSIGNABLE: Final = re.compile(r"[^\t\x20-\x7e]")
_UNSIGNABLE_BYTES: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_SHOWABLE: Final = re.compile(r"@?[A-Za-z0-9\-_]{1,64}")
_OBS_FOLD: Final = re.compile(r"\r\n[ \t]+")  # RFC 9112 §5.2; to look for the blanks before it is quadratic

# The type that `;sf` and `;key` need to know: RFC 9421 §2.1.1.
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


def _method_of(request: Request) -> str:
    method = request.method
    if not _METHOD.fullmatch(method):
        raise MalformedField("@method is not an HTTP method", code=Reason.COMPONENT_VALUE, component="@method")
    return method


_DERIVED: Final[Mapping[str, Callable[[Request], str]]] = {
    "@method": _method_of,  # §2.2.1
    "@target-uri": lambda request: request.target.uri,  # §2.2.2: as it is, once it is known to be one
    "@authority": lambda request: request.target.authority,  # §2.2.3
    "@scheme": lambda request: request.target.scheme,  # §2.2.4
    "@request-target": lambda request: request.target.path + (request.target.query or ""),  # §2.2.5: origin form
    "@path": lambda request: request.target.path,  # §2.2.6
    "@query": lambda request: request.target.query or "?",  # §2.2.7
}
REQUEST_COMPONENTS: Final = frozenset(_DERIVED)  # the derived components that a request has without parameters


# --- components --------------------------------------------------------------------------------


@frozen
class Component:
    """A covered component: a field or a derived component, with its parameters in the order sent. RFC 9421 §2.

    It may be one that does not exist: that is found out when a signature base is built with it.

    >>> Component("@query-param", (("name", "Pet"),)).identifier
    '"@query-param";name="Pet"'
    """

    name: str
    parameters: Parameters = ()

    @cached_property
    def is_field(self) -> bool:
        """Whether the name is that of a field, in lower case."""
        return FIELD_NAME.fullmatch(self.name) is not None

    @cached_property
    def is_plain_field(self) -> bool:
        """Whether it is a field without parameters."""
        return self.is_field and not self.parameters

    @cached_property
    def identifier(self) -> str:
        """The component identifier in its strict form. Raises `MalformedField` when it has none."""
        try:
            return _serialise(self.name) + serialise_parameters(self.parameters)
        except MalformedField as error:
            _refuse(self, Reason.COMPONENT_UNSUPPORTED, f"cannot be written: {error.description}")


@frozen
class Coverage:
    """The components that a signature covers, in order, and what is known of them without a message.

    >>> Coverage((Component("@method"), Component("date"))).inner_list
    '("@method" "date")'
    """

    components: tuple[Component, ...]

    @cached_property
    def plain(self) -> frozenset[str]:
        """The names of those without parameters. A parameter changes what is covered."""
        return frozenset([component.name for component in self.components if not component.parameters])

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all of them, whatever their parameters."""
        return frozenset([component.name for component in self.components])

    @cached_property
    def inner_list(self) -> str:
        """Their identifiers in the strict form of RFC 9651 §4.1.1.1. Raises `MalformedField` when one has none."""
        return f"({' '.join([component.identifier for component in self.components])})"

    @cached_property
    def lines(self) -> tuple[tuple[str, Component], ...]:
        """How each line of a signature base begins, and the component that it is about.

        Raises `MalformedField`, with a `Reason` as its code, when there are too many or one is repeated.
        """
        if len(self.components) > COMPONENTS_MAX:
            text = f"a signature covers more than {COMPONENTS_MAX} components"
            raise MalformedField(text, code=Reason.COMPONENT_UNSUPPORTED)
        unique: set[object] = set()
        lines = []
        for component in self.components:
            # RFC 9421 §2: two that differ in the order of their parameters only are the same.
            key = component.name, frozenset(component.parameters)
            if key in unique:
                _refuse(component, Reason.COMPONENT_REPEATED, "is named twice; each goes once (RFC 9421 §2.5)")
            unique.add(key)
            lines.append((f"{component.identifier}: ", component))
        return tuple(lines)


def serialise_parameters(parameters: Parameters) -> str:
    """Parameters in the strict form of RFC 9651 §4.1.1.2. Raises `MalformedField` when they have none.

    >>> serialise_parameters((("created", 1), ("keyid", "k"), ("sf", True)))
    ';created=1;keyid="k";sf'
    """
    text = ""
    for key, value in parameters:
        if not SF_KEY.fullmatch(key):
            raise MalformedField("the name of a parameter is lower case letters, digits and _-.* (RFC 9651 §3.1.2)")
        text += f";{key}" if value is True else f";{key}={_serialise(value)}"
    return text


def _serialise(value: BareItemType) -> str:
    try:
        return http_sf.ser(value)
    except (ValueError, TypeError) as error:
        raise MalformedField("a value cannot be written as a structured field item (RFC 9651 §4.1.3)") from error


# --- the signature base ------------------------------------------------------------------------


def signature_base(message: Request | Response, components: Sequence[Component], params: Parameters) -> bytes:
    """What a signature over `components` of `message` with the signature parameters `params` signs. RFC 9421 §2.5.

    Raises `MalformedField`, with a `Reason` as its `code`, when a component is unknown, repeated or absent,
    has a parameter that cannot be applied, or has a value that cannot be signed over: control characters, or not
    ASCII without `;bs`.

    >>> request = Request("GET", "https://ase.example/pay", (("Accept", " text/html "),))
    >>> print(signature_base(request, [Component("@path"), Component("accept")], (("created", 1),)).decode())
    "@path": /pay
    "accept": text/html
    "@signature-params": ("@path" "accept");created=1
    """
    coverage = Coverage(tuple(components))
    return BaseBuilder(message).build(coverage, coverage.inner_list + serialise_parameters(params))


class BaseBuilder:
    """Builds the signature bases of one message, reading each field once however many components name it."""

    def __init__(self, message: Request | Response) -> None:
        self.message = message
        self._structured_bytes = 0

    @cached_property
    def _structures(self) -> dict[str, http_sf.StructuredType]:
        return {}

    @cached_property
    def _values(self) -> dict[object, str]:
        return {}  # of components with parameters, which cost more

    def build(self, coverage: Coverage, signature_params: str) -> bytes:
        """As `signature_base`; `signature_params` is the value of its last line."""
        lines = [f"{start}{self.value(component)}\n" for start, component in coverage.lines]
        return f'{"".join(lines)}"@signature-params": {signature_params}'.encode("ascii")

    def value(self, component: Component) -> str:
        """The value of one component, on the right of its line. RFC 9421 §2.1 and §2.2."""
        if not component.parameters:
            return self._derived(component) if component.name.startswith("@") else self._field(component)
        # With the types, as True and 1 are equal but ;sf and ;sf=1 are not.
        key = component.name, tuple([(name, type(value), value) for name, value in component.parameters])
        if key not in self._values:
            self._values[key] = self._with_parameters(component)
        return self._values[key]

    def _with_parameters(self, component: Component) -> str:
        if any(key == "req" for key, _ in component.parameters):
            return self._of_request(component)
        if component.name.startswith("@"):
            return self._derived(component)
        return self._field_with_parameters(component)

    def _of_request(self, component: Component) -> str:
        """RFC 9421 §2.4: what a response says about the request that it answers."""
        message = self.message
        if isinstance(message, Request) or message.request is None or dict(component.parameters)["req"] is not True:
            _refuse(component, Reason.COMPONENT_UNSUPPORTED, "has ;req, which is for responses to a known request")
        without = tuple(parameter for parameter in component.parameters if parameter[0] != "req")
        return BaseBuilder(message.request).value(evolve(component, parameters=without))

    # --- fields, RFC 9421 §2.1 ---

    def _field(self, component: Component) -> str:
        value = ", ".join([_strip(line) for line in self._lines(component)])
        if _UNSIGNABLE.search(value):
            # RFC 9421 §2.5: the base is ASCII, and a newline in a value could forge a line of it.
            _refuse(component, Reason.COMPONENT_VALUE, "has control characters, or is not ASCII: cover it with ;bs")
        return value

    def _lines(self, component: Component) -> tuple[str, ...]:
        if not component.is_field:
            _refuse(component, Reason.COMPONENT_UNSUPPORTED, "is not a field name in lower case (RFC 9421 §2.1)")
        lines = self.message.values(component.name)
        if not lines:
            _refuse(component, Reason.COMPONENT_ABSENT, "is covered but not there")
        if len(lines) > 1 and component.name in _SINGLETONS:
            _refuse(component, Reason.FIELD_REPEATED, "is there more than once: send it once")
        if sum(map(len, lines)) > HEADER_BYTES_MAX:
            _refuse(component, Reason.COMPONENT_VALUE, f"is longer than {HEADER_BYTES_MAX} bytes")
        return lines

    def _field_with_parameters(self, component: Component) -> str:
        parameters = dict(component.parameters)
        _check_field_parameters(component, parameters)
        if "bs" in parameters:
            return self._binary(component)
        structure = self._structure(component)
        if "key" not in parameters:
            return http_sf.ser(structure) if structure else ""  # an empty list or dictionary has no other form
        if not isinstance(structure, dict):
            _refuse(component, Reason.COMPONENT_UNSUPPORTED, "has ;key, but is not a dictionary (RFC 9421 §2.1.2)")
        key = str(parameters["key"])
        if key not in structure:
            _refuse(component, Reason.COMPONENT_ABSENT, "does not have the member that ;key names")
        return http_sf.ser([structure[key]])  # a list of one is written as the value of its member is

    def _binary(self, component: Component) -> str:
        # RFC 9421 §2.1.3: line by line, so that a comma within a line is not taken for one between two lines
        lines = [_strip(line) for line in self._lines(component)]
        if any(map(_UNSIGNABLE_BYTES.search, lines)):
            _refuse(component, Reason.COMPONENT_VALUE, "has control characters, or is not bytes")
        return ", ".join([f":{b64encode(line.encode('latin-1')).decode()}:" for line in lines])

    def _structure(self, component: Component) -> http_sf.StructuredType:
        name = component.name
        if name not in self._structures:
            value = self._field(component)
            self._structured_bytes += len(value)
            if self._structured_bytes > SF_FIELDS_BYTES_MAX:
                text = f"makes more than {SF_FIELDS_BYTES_MAX} bytes to parse for ;sf and ;key: cover it without"
                _refuse(component, Reason.COMPONENT_VALUE, text)
            kind = _FIELD_TYPES.get(name)
            if kind is None:
                text = "is not known to be a structured field: cover it without ;sf and ;key"
                _refuse(component, Reason.COMPONENT_UNSUPPORTED, text)

            def repeated(_key: str, _where: str) -> NoReturn:
                # RFC 9651 lets the last one win; but somebody else may have read the first.
                _refuse(component, Reason.COMPONENT_VALUE, "repeats a key, so its meaning depends on the reader")

            try:
                self._structures[name] = http_sf.parse(value.encode("ascii"), None, kind, repeated)
            except http_sf.StructuredFieldError as error:
                text = f"is not the structured field that ;sf and ;key need: see position {error.position}"
                _refuse(component, Reason.COMPONENT_VALUE, text)
        return self._structures[name]

    # --- derived components, RFC 9421 §2.2 ---

    def _derived(self, component: Component) -> str:
        message = self.message
        if isinstance(message, Response):
            if component.name != "@status" or component.parameters:
                _refuse(component, Reason.COMPONENT_UNSUPPORTED, "is not a component of a response (RFC 9421 §2.2)")
            return f"{message.status:03d}"  # §2.2.9
        if component.name == "@query-param":
            return self._query_param(message, component)
        derive = _DERIVED.get(component.name)
        if derive is None or component.parameters:
            text = "is not a component of a request, or has a parameter that it cannot have (RFC 9421 §2.2)"
            _refuse(component, Reason.COMPONENT_UNSUPPORTED, text)
        return derive(message)

    def _query_param(self, request: Request, component: Component) -> str:
        parameters = dict(component.parameters)
        name = parameters.get("name")
        if parameters.keys() != {"name"} or type(name) is not str:
            _refuse(component, Reason.COMPONENT_UNSUPPORTED, "takes ;name=, a string, and nothing else")
        values = request.query_parameters.get(name, ())
        if not values:
            _refuse(component, Reason.COMPONENT_ABSENT, "names a query parameter that is not there")
        if len(values) > 1:  # RFC 9421 §2.2.8: which of them would be meant?
            _refuse(component, Reason.COMPONENT_VALUE, "names a query parameter that occurs more than once")
        return values[0]


def _check_field_parameters(component: Component, parameters: Mapping[str, BareItemType]) -> None:
    for name, value in parameters.items():
        # `;tr` among them: this library never sees trailers. A parameter that is not applied is never ignored.
        if not (type(value) is str if name == "key" else name in ("sf", "bs") and value is True):
            _refuse(component, Reason.COMPONENT_UNSUPPORTED, "has a parameter that a field cannot have here")
    if "bs" in parameters and len(parameters) > 1:
        _refuse(component, Reason.COMPONENT_UNSUPPORTED, "has ;bs with ;sf or ;key (RFC 9421 §2.1)")


def _strip(line: str) -> str:
    """One field line as RFC 9421 §2.1 wants it: no obsolete line folding, no white space around."""
    if "\r" in line:
        *folded, last = _OBS_FOLD.split(line)
        line = " ".join([*(part.rstrip(" \t") for part in folded), last])
    return line.strip(" \t")


def _refuse(component: Component, code: Reason, text: str) -> NoReturn:
    # The name is shown only when it is one that could be a component's: it comes from outside.
    named = component.name if _SHOWABLE.fullmatch(component.name) else "a covered component"
    raise MalformedField(f"{named} {text}", code=code, component=named)
