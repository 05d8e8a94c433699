"""HTTP messages as received, and the parts of a target URI from which RFC 9421 §2.2 derives components."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, quote

from attrs import Factory, field, frozen

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.codes import Code
from incoming_payments.limits import QUERY_PARAMETERS_MAX

# An absolute URI in visible ASCII, which has no userinfo and no fragment (RFC 9110 §4.2.4 and §7.1).
_TARGET: Final = re.compile(
    r"(?P<scheme>[Hh][Tt][Tt][Pp][Ss]?)://"
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]+)(?::(?P<port>[0-9]*))?"
    r"(?P<path>/[!\"$->@-~]*)?(?P<query>\?[!\"$-~]*)?"
)
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


def _index(message: "RequestMessage | ResponseMessage") -> dict[str, tuple[str, ...]]:
    index: dict[str, list[str]] = {}
    for name, value in message.headers:
        index.setdefault(name.lower(), []).append(value)
    return {name: tuple(values) for name, values in index.items()}


# Each verification needs the index, so the constructor builds it. Equality ignores the index, which repeats the
# headers.
_FIELDS: Final = Factory(_index, takes_self=True)


@frozen
class Target:
    """A target URI as received, and its parts, normalised as in RFC 9421 §2.2.3 to §2.2.7."""

    uri: str
    scheme: str
    authority: str
    path: str
    query: str | None  # the query with its question mark, or None if there is no question mark


@frozen
class RequestMessage:
    """An HTTP request exactly as received: nothing is decoded or serialised again.

    `target_uri` is absolute. The application builds it from its own configuration and the raw path and query, never
    from `Host`. Header values are latin-1 text, as in WSGI. `body` is the bytes received. The constructor checks
    nothing. The functions that read a covered part refuse a malformed part.

    >>> request = RequestMessage("GET", "https://ase.example/pay?x=1", (("Accept", "a"), ("ACCEPT", "b")))
    >>> request.values("accept")
    ('a', 'b')
    """

    method: str
    target_uri: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)  # the headers hold the access token
    body: bytes = field(default=b"", repr=False)
    # the values of each field, by its name in lower case and in the order received
    fields: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, eq=False, default=_FIELDS)

    def values(self, name: str) -> tuple[str, ...]:
        """Return the values of the field `name` (lower case) in the order received, or `()` for an absent field."""
        return self.fields.get(name, ())

    @property
    def target(self) -> Target:
        """The parts of `target_uri`. Raises `MalformedField` unless it is an absolute http or https URI."""
        match = _TARGET.fullmatch(self.target_uri)
        if match is None:
            text = (
                "the target URI must be an absolute http or https URI in ASCII, and must have no userinfo and no "
                "fragment"
            )
            raise MalformedField(f"{text} (RFC 9110 §4)", code=Code.COMPONENT_VALUE)
        scheme, host, port, path, query = match.groups()
        scheme, authority = scheme.lower(), host.lower()
        if port and port.lstrip("0") != _DEFAULT_PORTS[scheme]:  # leave out the default port (RFC 9421 §2.2.3)
            authority = f"{authority}:{port}"
        # an empty path counts as a slash (RFC 9421 §2.2.6)
        return Target(self.target_uri, scheme, authority, path or "/", query)

    @property
    def query_parameters(self) -> Mapping[str, list[str]]:
        """The encoded query values by encoded name (RFC 9421 §2.2.8).

        Raises `MalformedField` when the query is not UTF-8, or has more than `limits.QUERY_PARAMETERS_MAX` parameters.
        """
        query = (self.target.query or "")[1:]
        try:
            # In the URL standard, each invalid byte becomes U+FFFD, so different queries would look the same.
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=QUERY_PARAMETERS_MAX)
        except UnicodeDecodeError as error:
            text = "the query of the target URI is not UTF-8 after percent-decoding: encode its text as UTF-8"
            raise MalformedField(text, code=Code.COMPONENT_VALUE) from error
        except ValueError as error:
            text = f"the query of the target URI has more than {QUERY_PARAMETERS_MAX} parameters: cover @query instead"
            raise MalformedField(f"{text} (RFC 9421 §2.2.7)", code=Code.COMPONENT_VALUE) from error
        parameters: dict[str, list[str]] = {}
        for name, value in pairs:
            parameters.setdefault(_encode(name), []).append(_encode(value))
        return parameters


@frozen
class ResponseMessage:
    """An HTTP response, for which `signature_base` builds a base. Components with `;req` come from `request`."""

    status: int
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(default=b"", repr=False)
    request: RequestMessage | None = None
    fields: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, eq=False, default=_FIELDS)

    def values(self, name: str) -> tuple[str, ...]:
        """Return the values of the field `name` (lower case) in the order received, or `()` for an absent field."""
        return self.fields.get(name, ())


def _encode(text: str) -> str:
    """Return `text` in the form encoding of the URL standard, but with %20 for a space."""
    return quote(text, safe="*").replace("~", "%7E")
