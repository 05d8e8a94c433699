"""HTTP messages as a signature sees them: what arrived, and the parts that RFC 9421 §2.2 derives components from."""

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Final
from urllib.parse import unquote_to_bytes

from attrs import Factory, field, frozen

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.reasons import Reason

# Visible ASCII in absolute form. Userinfo and fragment are no part of a request's target: RFC 9110 §4.2.4 and §7.1.
_TARGET: Final = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]+)(?::(?P<port>[0-9]*))?"
    r"(?P<path>/[!\"$->@-~]*)?(?P<query>\?[!\"$-~]*)?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
# The application/x-www-form-urlencoded percent-encode set of the URL standard: all but these.
_UNENCODED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789*-._"
_ENCODED: Final = tuple(chr(byte) if byte in _UNENCODED else f"%{byte:02X}" for byte in range(256))


def _index(headers: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, ...]]:
    lists: dict[str, list[str]] = {}
    for name, value in headers:
        lists.setdefault(name.lower(), []).append(value)
    return {name: tuple(values) for name, values in lists.items()}


# Every verification needs it, so it is made at once; it says nothing that the header fields do not say.
_FIELDS: Final = Factory(lambda message: _index(message.headers), takes_self=True)


@frozen
class Target:
    """A target URI as it is, and its parts, normalised as RFC 9421 §2.2.3 to §2.2.7 say."""

    uri: str
    scheme: str
    authority: str
    path: str
    query: str | None  # with its question mark; none when there is no question mark


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
    # The values of each field by its name in lower case, in the order received: for those who read many.
    fields: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, eq=False, default=_FIELDS)

    def values(self, name: str) -> tuple[str, ...]:
        """Every value of the field `name` (lower case) in the order received; empty when there is none."""
        return self.fields.get(name, ())

    @property
    def target(self) -> Target:
        """The parts of `target_uri`. Raises `MalformedField` when it is not an absolute http or https URI."""
        return self._target

    @property
    def query_parameters(self) -> Mapping[str, list[str]]:
        """Encoded values by encoded name, RFC 9421 §2.2.8. Raises `MalformedField` when they are not UTF-8."""
        return self._query_parameters

    @cached_property
    def _target(self) -> Target:
        return _parse_target(self.target_uri)

    @cached_property
    def _query_parameters(self) -> dict[str, list[str]]:
        return _parse_query(self.target.query or "")


@frozen
class Response:
    """An HTTP response, to the level of the signature base; `request` is what it answers, for `;req`.

    >>> Response(200, (("Content-Length", "2"),), b"{}").values("content-length")
    ('2',)
    """

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    request: Request | None = None
    fields: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, eq=False, default=_FIELDS)

    def values(self, name: str) -> tuple[str, ...]:
        """Every value of the field `name` (lower case) in the order received; empty when there is none."""
        return self.fields.get(name, ())


def _parse_target(uri: str) -> Target:
    match = _TARGET.fullmatch(uri)
    if match is None:
        raise MalformedField(
            "the target URI is not an absolute http or https URI in ASCII, without user and fragment",
            code=Reason.COMPONENT_VALUE,
        )
    scheme, host, port, path, query = match.groups()
    scheme = scheme.lower()
    authority = host.lower()
    if port and port.lstrip("0") != _DEFAULT_PORTS[scheme]:  # RFC 9421 §2.2.3: the default port is left out
        authority = f"{authority}:{port}"
    return Target(uri, scheme, authority, path or "/", query)  # RFC 9421 §2.2.6: an empty path is a slash


def _parse_query(query: str) -> dict[str, list[str]]:
    """Decode as the URL standard does a form, and encode again, so that there is one way to write each: §2.2.8."""
    parameters: dict[str, list[str]] = {}
    for pair in query[1:].split("&"):
        if pair:
            name, _, value = pair.partition("=")
            parameters.setdefault(_reencode(name), []).append(_reencode(value))
    return parameters


def _reencode(text: str) -> str:
    octets = unquote_to_bytes(text.replace("+", " "))
    try:
        octets.decode()  # the URL standard would put U+FFFD, and so make different queries look the same
    except UnicodeDecodeError as error:
        raise MalformedField("the query is not UTF-8", code=Reason.COMPONENT_VALUE) from error
    return "".join([_ENCODED[octet] for octet in octets])
