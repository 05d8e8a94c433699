"""The signature base of RFC 9421 §2: the covered components, and the exact bytes that are signed.

The functions refuse a component or value that readers could interpret in two ways, and ignore no parameter.
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
from incoming_payments.httpsig.codes import Code
from incoming_payments.httpsig.message import RequestMessage, ResponseMessage
from incoming_payments.limits import COMPONENTS_MAX, HEADER_BYTES_MAX, SF_PARTS_MAX, SF_STRICT_CHARS_MAX

# names and values in the order sent, because the signature covers this order
Parameters = tuple[tuple[str, BareItemType], ...]

FIELD_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")  # a token in lower case (RFC 9421 §2.1)
_METHOD: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # a token, which is case-sensitive (RFC 9110 §9.1)
SF_KEY: Final = re.compile(r"[a-z*][a-z0-9_\-.*]*")  # RFC 9651 §3.1.2
# The fields that are not lists (RFC 9110 §5.3). If such a field occurs twice, readers may act on different values.
_SINGLETONS: Final = frozenset({"authorization", "content-length", "content-type", "date", "host"})
_UNSIGNABLE: Final = re.compile(r"[^\t\x20-\x7e]")
_UNSIGNABLE_BYTES: Final = re.compile(r"[^\t\x20-\x7e\x80-\xff]")
_SHOWABLE: Final = re.compile(r"@?[A-Za-z0-9\-_]{1,64}")
# Obsolete line folding (RFC 9112 §5.2). A pattern that also matched the blanks before the line break would take
# quadratic time.
_OBS_FOLD: Final = re.compile(r"\r\n[ \t]+")

# The characters in front of the parts of a structured field: members, items, parameters, escapes and white space.
_BEFORE_PARTS: Final = " \t,;\\%"

# The types of structured fields, which `;sf` and `;key` need (RFC 9421 §2.1.1).
_DICTIONARIES: Final = (
    *("accept-signature", "signature", "signature-input"),  # RFC 9421
    *("content-digest", "repr-digest", "want-content-digest", "want-repr-digest"),  # RFC 9530
)
_FIELD_TYPES: Final[Mapping[str, str]] = {
    **retrofit,
    **dict.fromkeys(_DICTIONARIES, "dictionary"),
    "client-cert": "item",
    "client-cert-chain": "list",
    "deprecation": "item",  # RFC 9440 and RFC 9745
}


def _method_of(request: RequestMessage) -> str:
    method = request.method
    if not _METHOD.fullmatch(method):
        text = "@method is not an HTTP method: use letters, digits and !#$%&'*+-.^_`|~ only (RFC 9110 §9.1)"
        raise MalformedField(text, code=Code.COMPONENT_VALUE, component="@method")
    return method


# the derived components of a request that need no parameters
REQUEST_COMPONENTS: Final[Mapping[str, Callable[[RequestMessage], str]]] = {
    "@method": _method_of,  # §2.2.1
    "@target-uri": lambda request: request.target.uri,  # §2.2.2: the URI as given, after `target` has checked it
    "@authority": lambda request: request.target.authority,  # §2.2.3
    "@scheme": lambda request: request.target.scheme,  # §2.2.4
    "@request-target": lambda request: request.target.path + (request.target.query or ""),  # §2.2.5: origin form
    "@path": lambda request: request.target.path,  # §2.2.6
    "@query": lambda request: request.target.query or "?",  # §2.2.7
}


@frozen
class Component:
    """A covered field or derived component, known or unknown, with its parameters in the order sent.

    >>> Component("@query-param", (("name", "Pet"),)).identifier
    '"@query-param";name="Pet"'
    """

    name: str
    parameters: Parameters = ()

    @property
    def is_field(self) -> bool:
        """Whether the name is a field name in lower case."""
        return FIELD_NAME.fullmatch(self.name) is not None

    @property
    def identifier(self) -> str:
        """The component identifier in its strict form. Raises `MalformedField` for an invalid name or parameter."""
        try:
            return _serialise(self.name) + serialise_parameters(self.parameters)
        except MalformedField as error:
            _refuse(self, Code.COMPONENT_UNSUPPORTED, f"cannot be written: {error.description}")


@frozen
class Coverage:
    """The covered components in order, and the values computed from them without a message."""

    components: tuple[Component, ...]

    @cached_property
    def plain(self) -> frozenset[str]:
        """The names of the components that have no parameters. A component with a parameter covers another value."""
        return frozenset([component.name for component in self.components if not component.parameters])

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all components, with or without parameters."""
        return frozenset([component.name for component in self.components])

    @cached_property
    def inner_list(self) -> str:
        """The identifiers as an inner list (RFC 9651 §4.1.1.1). Raises `MalformedField` for an invalid identifier."""
        return f"({' '.join([component.identifier for component in self.components])})"

    @cached_property
    def lines(self) -> tuple[tuple[str, Component], ...]:
        """The start of each line of a signature base, and the component whose value follows in that line.

        Raises `MalformedField` with a `Code` when there are too many components, or a component is repeated.
        """
        if len(self.components) > COMPONENTS_MAX:
            text = f"the signature covers more than {COMPONENTS_MAX} components: cover fewer"
            raise MalformedField(text, code=Code.COMPONENT_UNSUPPORTED)
        unique: set[object] = set()
        lines = []
        for component in self.components:
            # RFC 9421 §2: components that differ only in the order of their parameters are equal.
            key = component.name, frozenset(component.parameters)
            if key in unique:
                _refuse(
                    component, Code.COMPONENT_REPEATED, "is covered twice: cover this component once (RFC 9421 §2.5)"
                )
            unique.add(key)
            lines.append((f"{component.identifier}: ", component))
        return tuple(lines)


def serialise_parameters(parameters: Parameters) -> str:
    """Return `parameters` in the form of RFC 9651 §4.1.1.2. Raises `MalformedField` for an invalid parameter."""
    text = ""
    for key, value in parameters:
        if not SF_KEY.fullmatch(key):
            raise MalformedField(
                "the name of a parameter must consist of lower case letters, digits and _-.* (RFC 9651 §3.1.2)"
            )
        text += f";{key}" if value is True else f";{key}={_serialise(value)}"
    return text


def _serialise(value: BareItemType) -> str:
    try:
        return http_sf.ser(value)
    except (ValueError, TypeError) as error:
        text = "a parameter value must be a structured field item, such as a string or a number (RFC 9651 §4.1.3)"
        raise MalformedField(text) from error


def signature_base(
    message: RequestMessage | ResponseMessage, components: Sequence[Component], params: Parameters
) -> bytes:
    """Return the bytes to sign over `components` of `message`, with the signature parameters `params`. RFC 9421 §2.5.

    Raises `MalformedField`, with a `Code` as its `code`, when a component is unknown, repeated or absent, or
    has a parameter that does not apply to it. It also raises this error when a value has control
    characters or is not ASCII. Such a value is allowed if the component has `;bs`.

    >>> request = RequestMessage("GET", "https://ase.example/pay", (("Accept", " text/html "),))
    >>> print(signature_base(request, [Component("@path"), Component("accept")], (("created", 1),)).decode())
    "@path": /pay
    "accept": text/html
    "@signature-params": ("@path" "accept");created=1
    """
    coverage = Coverage(tuple(components))
    return BaseBuilder(message).build(coverage, coverage.inner_list + serialise_parameters(params))


class BaseBuilder:
    """Build the signature bases of one message.

    Each field is parsed only once, and each line is written only once, even if several signatures cover the component.
    """

    def __init__(self, message: RequestMessage | ResponseMessage) -> None:
        self.message = message
        self._structured_parts = self._structured_chars = 0
        self._structures: dict[str, http_sf.StructuredType] = {}
        self._lines: dict[str, str] = {}  # the written lines, by their start

    @cached_property
    def _query_parameters(self) -> Mapping[str, list[str]]:
        return self.message.query_parameters  # type: ignore[union-attr] # only asked of a request

    def build(self, coverage: Coverage, signature_params: str) -> bytes:
        """Return the signature base, as `signature_base` does. `signature_params` is the value of its last line."""
        for start, component in coverage.lines:
            if start not in self._lines:
                self._lines[start] = f"{start}{self.value(component)}\n"
        lines = [self._lines[start] for start, _ in coverage.lines]
        return f'{"".join(lines)}"@signature-params": {signature_params}'.encode("ascii")

    def value(self, component: Component) -> str:
        """Return the value of one component as it appears in the signature base. RFC 9421 §2.1 and §2.2."""
        parameters = dict(component.parameters)
        if "req" in parameters:
            return self._of_request(component, parameters)
        if component.name.startswith("@"):
            return self._derived(component)
        return self._field_with_parameters(component, parameters) if parameters else self._field(component)

    def _of_request(self, component: Component, parameters: Mapping[str, BareItemType]) -> str:
        """Return the value of a component with `;req`: a component of the request that was answered. RFC 9421 §2.4."""
        request = None if isinstance(self.message, RequestMessage) else self.message.request
        if request is None or parameters["req"] is not True:
            text = "has ;req, which only the signature of a response can have (RFC 9421 §2.4): leave out ;req"
            _refuse(component, Code.COMPONENT_UNSUPPORTED, text)
        without = tuple(parameter for parameter in component.parameters if parameter[0] != "req")
        return BaseBuilder(request).value(evolve(component, parameters=without))

    def _field(self, component: Component) -> str:
        value = ", ".join([_strip(line) for line in self._field_lines(component)])
        if _UNSIGNABLE.search(value):
            # The signature base is ASCII, and a newline in a value could forge another line (RFC 9421 §2.5).
            text = (
                "has control characters or is not ASCII: send plain ASCII, or cover the field with ;bs (RFC 9421 "
                "§2.1.3)"
            )
            _refuse(component, Code.COMPONENT_VALUE, text)
        return value

    def _field_lines(self, component: Component) -> tuple[str, ...]:
        if not component.is_field:
            _refuse(
                component,
                Code.COMPONENT_UNSUPPORTED,
                "is not a field name in lower case: write the name in lower case (RFC 9421 §2.1)",
            )
        lines = self.message.values(component.name)
        if not lines:
            _refuse(
                component,
                Code.COMPONENT_ABSENT,
                "is covered but absent: send this component, or do not cover it (RFC 9421 §2.5)",
            )
        if len(lines) > 1 and component.name in _SINGLETONS:
            _refuse(component, Code.FIELD_REPEATED, "occurs more than once: send this field once (RFC 9110 §5.3)")
        if sum(map(len, lines)) > HEADER_BYTES_MAX:
            _refuse(component, Code.COMPONENT_VALUE, f"is longer than {HEADER_BYTES_MAX} bytes: send a shorter value")
        return lines

    def _field_with_parameters(self, component: Component, parameters: Mapping[str, BareItemType]) -> str:
        _check_field_parameters(component, parameters)
        if "bs" in parameters:
            return self._binary(component)
        return self._write(component, parameters)

    def _write(self, component: Component, parameters: Mapping[str, BareItemType]) -> str:
        """Return a structured field, or the member that `;key` names, in the strict form (RFC 9651 §4.1)."""
        structure = self._structure(component)
        if "key" not in parameters:
            return http_sf.ser(structure) if structure else ""  # `ser` refuses an empty list or dictionary
        if not isinstance(structure, dict):
            text = "has ;key, but is not a dictionary: leave out ;key (RFC 9421 §2.1.2)"
            _refuse(component, Code.COMPONENT_UNSUPPORTED, text)
        key = str(parameters["key"])
        if key not in structure:
            text = (
                "does not have the member that ;key names: send this member, or do not cover the member (RFC "
                "9421 §2.1.2)"
            )
            _refuse(component, Code.COMPONENT_ABSENT, text)
        return http_sf.ser([structure[key]])  # a list of one member has the same form as the member

    def _binary(self, component: Component) -> str:
        # Encode each line by itself, so that a comma in a line differs from a comma between lines (RFC 9421 §2.1.3).
        lines = [_strip(line) for line in self._field_lines(component)]
        if any(map(_UNSIGNABLE_BYTES.search, lines)):
            text = "has control characters, or characters outside latin-1: send other characters"
            _refuse(component, Code.COMPONENT_VALUE, text)
        return ", ".join([f":{b64encode(line.encode('latin-1')).decode()}:" for line in lines])

    def _structure(self, component: Component) -> http_sf.StructuredType:
        name = component.name
        if name not in self._structures:
            value = self._field(component)
            self._structured_parts += count_parts(value)
            self._structured_chars += len(value)
            if self._structured_parts > SF_PARTS_MAX or self._structured_chars > SF_STRICT_CHARS_MAX:
                text = (
                    f"exceeds the limit of {SF_PARTS_MAX} items and parameters, or that of {SF_STRICT_CHARS_MAX} "
                    "characters, for all fields with ;sf and ;key in one message: leave out ;sf and ;key"
                )
                _refuse(component, Code.COMPONENT_VALUE, text)
            self._structures[name] = _parse(component, value)
        return self._structures[name]

    def _derived(self, component: Component) -> str:
        message = self.message
        if isinstance(message, ResponseMessage):
            if component != Component("@status"):
                text = "is not a component of a response: do not cover this component (RFC 9421 §2.2)"
                _refuse(component, Code.COMPONENT_UNSUPPORTED, text)
            return f"{message.status:03d}"  # §2.2.9
        if component.name == "@query-param":
            return self._query_param(component)
        derive = REQUEST_COMPONENTS.get(component.name)
        if derive is None or component.parameters:
            text = "is not a component of a request, or has an undefined parameter: do not cover it (RFC 9421 §2.2)"
            _refuse(component, Code.COMPONENT_UNSUPPORTED, text)
        return derive(message)

    def _query_param(self, component: Component) -> str:
        parameters = dict(component.parameters)
        name = parameters.get("name")
        if parameters.keys() != {"name"} or type(name) is not str:
            text = "must have the parameter ;name= with a string, and no other parameter (RFC 9421 §2.2.8)"
            _refuse(component, Code.COMPONENT_UNSUPPORTED, text)
        values = self._query_parameters.get(name, ())
        if not values:
            text = "names a query parameter that the target URI does not have: encode the name as RFC 9421 §2.2.8 says"
            _refuse(component, Code.COMPONENT_ABSENT, text)
        if len(values) > 1:  # a repeated parameter must not be covered (RFC 9421 §2.2.8)
            text = "names a query parameter that occurs more than once: cover @query instead (RFC 9421 §2.2.8)"
            _refuse(component, Code.COMPONENT_VALUE, text)
        return values[0]


def count_parts(field_text: str) -> int:
    """Return the largest possible number of parts of a structured field. The parser runs Python code for each part."""
    return 1 + sum(map(field_text.count, _BEFORE_PARTS))


def _parse(component: Component, value: str) -> http_sf.StructuredType:
    kind = _FIELD_TYPES.get(component.name)
    if kind is None:
        text = "is not a known structured field: leave out ;sf and ;key (RFC 9421 §2.1.1)"
        _refuse(component, Code.COMPONENT_UNSUPPORTED, text)

    def repeated(_key: str, _where: str) -> NoReturn:
        # A reader that obeys RFC 9651 §4.2.2 uses the last value, but another reader may use the first value.
        _refuse(
            component,
            Code.COMPONENT_VALUE,
            "repeats a key, so two readers may see different values: send each key once",
        )

    try:
        return http_sf.parse(value.encode("ascii"), None, kind, repeated)
    except http_sf.StructuredFieldError as error:
        text = (
            f"is not a valid structured {kind} from position {error.position} on (RFC 9651 §4.2): correct the "
            "field, or leave out ;sf and ;key"
        )
        _refuse(component, Code.COMPONENT_VALUE, text)


def _check_field_parameters(component: Component, parameters: Mapping[str, BareItemType]) -> None:
    for name, value in parameters.items():
        # Refuse `;tr` too, because this library never sees trailers, and may ignore no parameter.
        if not (type(value) is str if name == "key" else name in ("sf", "bs") and value is True):
            text = (
                "has a parameter other than ;sf, ;bs and ;key=, or a parameter with a wrong value: remove this "
                "parameter (RFC 9421 §2.1)"
            )
            _refuse(component, Code.COMPONENT_UNSUPPORTED, text)
    if "bs" in parameters and len(parameters) > 1:
        text = "has ;bs together with ;sf or ;key: leave out one of them (RFC 9421 §2.1)"
        _refuse(component, Code.COMPONENT_UNSUPPORTED, text)


def _strip(line: str) -> str:
    """Return a field line without line folding and without leading and trailing white space (RFC 9421 §2.1)."""
    if "\r" in line:
        *folded, last = _OBS_FOLD.split(line)
        line = " ".join([*(part.rstrip(" \t") for part in folded), last])
    return line.strip(" \t")


def _refuse(component: Component, code: Code, text: str) -> NoReturn:
    # The name comes from the client, so show the name only if it looks like the name of a component.
    named = component.name if _SHOWABLE.fullmatch(component.name) else "a covered component"
    raise MalformedField(f"{named} {text}", code=code, component=named)
