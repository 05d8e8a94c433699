"""Random requests and how to sign them. The same seed makes the same case.

A case stays within the `Range` of a peer, which leaves out the known deviations of the peer from RFC 9421;
`interop/test_cross_checks.py` lists them. `changes` makes copies of a signed request whose signature is invalid.
"""

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, TypeVar
from urllib.parse import quote

from attrs import evolve, frozen
from http_sf.types import BareItemType

from incoming_payments.httpsig import Algorithm, Code, Component, PrivateKey, RequestMessage, content_digest
from incoming_payments.httpsig.base import serialise_parameters
from incoming_payments.httpsig.fields import parse_signature, parse_signature_input
from kits.signed_requests import put
from kits.signing_keys import private

Header = tuple[str, str]
T = TypeVar("T")

# Created in the past and expiring far in the future, so that a peer that reads the clock accepts the times.
_CREATED_S_MAX: Final = 1_700_000_000
_EXPIRES_S: Final = (4_000_000_000, 253_402_300_799)

_LOWER: Final = "abcdefghijklmnopqrstuvwxyz"
_DIGITS: Final = "0123456789"
_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F)))
_TOKEN: Final = f"!#$%&'*+-.^_`|~{_DIGITS}{_LOWER}"
_PCHARS: Final = f"{_LOWER}{_LOWER.upper()}{_DIGITS}-._~!$&()*+,;=:@"
_BLANKS: Final = ("", "", "", " ", "\t", "  ", " \t ")
_FOLDS: Final = ("\r\n ", " \r\n\t", "\t \r\n  \r\n ")

FOREIGN: Final = "proxy"  # the label of an earlier signature, by an unknown key
ORDER: Final = ("keyid", "created", "expires", "nonce", "alg", "tag")  # the order in which this library writes them


@frozen(kw_only=True)
class Range:
    """The features that a peer implements as RFC 9421 defines them. Cases use only these."""

    algorithms: tuple[Algorithm, ...]
    derived: tuple[str, ...]
    field_parameters: tuple[str, ...] = ()
    parameters: tuple[str, ...] | None = ORDER  # the order in which the peer writes them; None for any order
    query: str = f"{_PCHARS}/?'%"  # the characters of names and values in a query, plain or encoded
    methods: tuple[str, ...] = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "M-SEARCH", "X!#~")
    bytes_in_bs: str = _PRINTABLE
    label: str | None = None  # the only label that the peer supports
    empty_query: bool = True  # whether the peer distinguishes an empty query from no query
    folds: bool = False  # whether the peer supports obsolete line folding
    blanks: bool = True  # whether the peer strips white space around field values
    unread: re.Pattern[str] | None = None  # text in a structured field that the peer cannot parse
    foreign: bool = True  # whether the peer supports several signatures
    open_payments: bool = False  # whether the peer requires a JSON body, its fields, and the Open Payments coverage


@frozen(kw_only=True)
class Case:
    """A request and how to sign it. `order` is the order of all signature parameters, including absent ones."""

    request: RequestMessage
    key: PrivateKey
    label: str
    components: tuple[Component, ...]
    created: int
    expires: int | None = None
    nonce: str | None = None
    tag: str | None = None
    alg: bool = False
    order: tuple[str, ...] = ORDER

    @property
    def parameters(self) -> tuple[tuple[str, int | str], ...]:
        """The signature parameters that are present, in order."""
        values: dict[str, int | str | None] = {
            "keyid": self.key.kid,
            "created": self.created,
            "expires": self.expires,
            "nonce": self.nonce,
            "alg": self.key.algorithm.registered if self.alg else None,
            "tag": self.tag,
        }
        return tuple((name, value) for name in self.order if (value := values[name]) is not None)


# --- pieces ------------------------------------------------------------------------------------


def _some(random: Random, alphabet: str, least: int, most: int) -> str:
    return "".join(random.choices(alphabet, k=random.randint(least, most)))


def _maybe(random: Random, value: T) -> T | None:
    return value if random.random() < 0.5 else None


def _label(random: Random) -> str:
    label = random.choice(f"{_LOWER}*") + _some(random, f"{_LOWER}{_DIGITS}_-.*", 0, 12)
    return f"{label}1" if label == FOREIGN else label


def _letter_cases(random: Random, text: str) -> str:
    return "".join([random.choice((letter, letter.upper())) for letter in text])


def _line(random: Random, range_: Range, inner: str) -> str:
    """Return `inner` with white space around it."""
    return f"{random.choice(_BLANKS)}{inner}{random.choice(_BLANKS)}" if range_.blanks else inner


def _plain_line(random: Random, range_: Range) -> str:
    inner = _some(random, _PRINTABLE + "\t" if range_.blanks else _PRINTABLE, 0, 12).strip()
    if range_.folds and random.random() < 0.2:
        inner = inner.replace(random.choice(inner or "x"), random.choice(_FOLDS), 1)
    return _line(random, range_, inner)


def _encoded(random: Random, text: str) -> str:
    """Encode `text` for a query, with a random spelling of each character."""
    written = []
    for character in text:
        as_is = character in _PCHARS and character not in "&=+"
        encoded = "".join([f"%{octet:02{random.choice('Xx')}}" for octet in character.encode()])
        written.append("+" if character == " " and random.random() < 0.5 else encoded)
        if as_is and random.random() < 0.8:
            written[-1] = character
    return "".join(written)


def _query_name(text: str) -> str:
    """Encode the name of a query parameter as a component has it: RFC 9421 §2.2.8."""
    return quote(text, safe="*").replace("~", "%7E")


def _query(random: Random, range_: Range) -> tuple[str, list[str]]:
    """Return a query with its question mark, or an empty string; and the names that occur once in it."""
    if random.random() < 0.3:
        return random.choice(("", "?")) if range_.empty_query else "", []
    text = f"{range_.query} äß€😀"
    pairs = [(_some(random, text, 0, 4), _some(random, text, 0, 8)) for _ in range(random.randint(1, 4))]
    written = [
        _encoded(random, name) + (f"={_encoded(random, value)}" if value or not name or random.random() < 0.5 else "")
        for name, value in pairs
    ]
    names = [name for name, _ in pairs]
    query = random.choice(("&", "&", "&&")).join(written)
    return f"?{query}", [name for name in dict.fromkeys(names) if names.count(name) == 1]


def _target(random: Random, range_: Range) -> tuple[str, list[str]]:
    """Return a target URI, and the names that occur once in its query."""
    scheme = random.choice(("https", "https", "http", "HTTPS", "Http"))
    host = random.choice(
        ("bank.example", "BANK.Example", "a-b.c", "xn--bcher-kva.example", "127.0.0.1", "[2001:DB8::1]")
    )
    default = 443 if scheme.lower() == "https" else 80
    port = random.choice(("", "", "", ":", f":{default}", f":0{default}", f":{523 - default}", ":8443", ":1"))
    segments = [_some(random, _PCHARS, 0, 6) for _ in range(random.randint(0, 4))]
    path = "".join([f"/{'x' if set(segment) <= {'.'} and segment else segment}" for segment in segments])
    query, names = _query(random, range_)
    return f"{scheme}://{host}{port}{path or '/'}{query}", names


# --- structured fields -------------------------------------------------------------------------


def _string(random: Random) -> str:
    escaped = _some(random, _PRINTABLE, 0, 8).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


_BARE_ITEMS: Final[Sequence[Callable[[Random], str]]] = (
    lambda random: str(random.randint(-(10**15) + 1, 10**15 - 1)),
    lambda random: f"{random.randint(-999_999, 999_999)}.{random.randint(0, 99):02}{random.randint(1, 9)}",
    _string,
    lambda random: random.choice("*aZ") + _some(random, f"{_TOKEN}:/", 0, 6),
    lambda random: f":{b64encode(random.randbytes(random.randint(0, 9))).decode()}:",
    lambda random: random.choice(("?0", "?1")),
    lambda random: f"@{random.randint(-(10**10), 10**10)}",
    lambda random: f'%"{random.choice(("", "a", "f%c3%bc", "%e2%82%ac b"))}"',
)


def _sf_key(random: Random) -> str:
    return random.choice(f"{_LOWER}*") + _some(random, f"{_LOWER}{_DIGITS}_-.*", 0, 4)


def _bare_item(random: Random) -> str:
    return random.choice(_BARE_ITEMS)(random)


def _sf_parameters(random: Random) -> str:
    keys = {_sf_key(random) for _ in range(random.choice((0, 0, 0, 1, 2)))}
    gap = random.choice(("", " "))
    return "".join(
        [f";{gap}{key}" + (f"={_bare_item(random)}" if random.random() < 0.7 else "") for key in sorted(keys)]
    )


def _item(random: Random) -> str:
    return _bare_item(random) + _sf_parameters(random)


def _member(random: Random) -> str:
    if random.random() < 0.75:
        return _item(random)
    items = random.choice((" ", "  ")).join([_item(random) for _ in range(random.randint(0, 3))])
    blank = random.choice(("", " "))
    return f"({blank}{items}{blank}){_sf_parameters(random)}"


def _members(random: Random) -> list[str]:
    return [_member(random) for _ in range(random.randint(1, 4))]


def _dictionary(random: Random) -> list[str]:
    keys = list(dict.fromkeys([_sf_key(random) for _ in range(random.randint(1, 4))]))
    first, *others = keys
    written = [key + (f"={_member(random)}" if random.random() < 0.7 else _sf_parameters(random)) for key in others]
    return [f"{first}={_member(random)}", *written]


# Structured fields whose type all peers know
STRUCTURED: Final[dict[str, Callable[[Random], list[str]]]] = {
    "accept": _members,
    "vary": _members,
    "cache-control": _dictionary,
    "priority": _dictionary,
    "age": lambda random: [_item(random)],
    "sf-date": lambda random: [_item(random)],
}


def _structured(random: Random, range_: Range, make: Callable[[Random], list[str]]) -> list[str]:
    """Return the members from `make` as one list, split into lines at some of its commas."""
    while True:
        first, *others = make(random)
        lines = [first]
        for member in others:
            if random.random() < 0.3:
                lines.append(member)
            else:
                lines[-1] += f"{random.choice(_BLANKS)},{random.choice(_BLANKS)}{member}"
        lines = [_line(random, range_, line) for line in lines]
        if range_.unread is None or not range_.unread.search(", ".join(lines)):
            return lines


# --- a whole case ------------------------------------------------------------------------------


def _plain_fields(random: Random, range_: Range) -> Iterator[tuple[str, list[str]]]:
    for _ in range(random.randint(0, 3)):
        lines = [_plain_line(random, range_) for _ in range(random.choice((1, 1, 1, 2, 3)))]
        yield f"x-{_some(random, _TOKEN, 1, 6)}", lines


def _body(random: Random, range_: Range) -> tuple[bytes, list[Header]]:
    """Return a body, which may be empty, and its fields."""
    if random.random() < 0.5:
        return b"", []
    text = json.dumps({"value": _some(random, f"{_PRINTABLE}ä€😀", 0, 20)}, separators=(",", ":"), ensure_ascii=False)
    body = text.encode() if range_.open_payments or random.random() < 0.5 else random.randbytes(random.randint(1, 40))
    both = [content_digest(body, "sha-512"), content_digest(body, "sha-256")]
    digests = random.choice((both, both[:1], both[1:]))
    framing = [("Content-Length", f"{len(body)}"), ("Content-Type", random.choice(("application/json", "a/b; c=d")))]
    lines = _structured(random, evolve(range_, blanks=False), lambda _: digests)  # a server has stripped white space
    headers = [("Content-Digest", line) for line in lines]
    return body, headers + (framing if range_.open_payments else framing[: random.randint(0, 2)])


def _with_parameters(random: Random, range_: Range, fields: dict[str, list[str]]) -> Iterator[Component]:
    """Yield components of `fields` with parameters that apply to them."""
    flags = [flag for flag in ("sf", "bs") if flag in range_.field_parameters]
    for name in fields:
        flag = random.choice([*flags, None])
        if flag == "bs" or (flag == "sf" and name in STRUCTURED):
            yield Component(name, ((flag, True),))
        members = ", ".join(fields[name])
        if "key" in range_.field_parameters and name in ("cache-control", "priority", "content-digest"):
            key = members.strip().partition("=")[0]
            also = (("sf", True),) if "sf" in range_.field_parameters and random.random() < 0.3 else ()
            pair = [("key", key), *also]
            yield Component(name, tuple(random.sample(pair, len(pair))))


def _fields(random: Random, range_: Range) -> dict[str, list[str]]:
    fields = dict(_plain_fields(random, range_))
    if range_.field_parameters:
        chosen = random.sample(sorted(STRUCTURED), random.randint(0, 3))
        fields |= {name: _structured(random, range_, STRUCTURED[name]) for name in chosen}
    if "bs" in range_.field_parameters and random.random() < 0.3:
        fields["x-bytes"] = [_line(random, range_, f"-{_some(random, range_.bytes_in_bs, 0, 9)}-")]
    if random.random() < 0.6:
        fields["authorization"] = [_line(random, range_, f"GNAP {_some(random, f'{_LOWER}{_DIGITS}', 1, 20)}")]
    return fields


def _components(random: Random, range_: Range, fields: dict[str, list[str]], names: list[str]) -> list[Component]:
    plain = [
        *(name for name in range_.derived if name != "@query-param"),
        *(name for name in fields if name != "x-bytes"),
    ]
    chosen = [Component(name) for name in random.sample(plain, random.randint(1, len(plain)))]
    chosen += [component for component in _with_parameters(random, range_, fields) if random.random() < 0.7]
    if "@query-param" in range_.derived:
        chosen += [Component("@query-param", (("name", _query_name(name)),)) for name in names]
    return chosen


def _required_components(range_: Range, fields: dict[str, list[str]]) -> list[Component]:
    """Return the components that must be covered: the digest of a body, and those of the Open Payments clients."""
    names = ["content-digest"]
    if range_.open_payments:
        names += ["@method", "@target-uri", "authorization"]
    return [Component(name) for name in names if name in fields or name.startswith("@")]


def _headers(random: Random, fields: dict[str, list[str]]) -> list[Header]:
    """Return the lines of all fields in random order, but keep the order of the lines of one field."""
    waiting = {name: list(lines) for name, lines in fields.items()}
    order = random.sample(names := [name for name, lines in fields.items() for _ in lines], len(names))
    return [(_letter_cases(random, name), waiting[name].pop(0)) for name in order]


def a_case(random: Random, range_: Range) -> Case:
    """Return a random case within `range_`."""
    algorithm = random.choice(range_.algorithms)
    key = evolve(private(algorithm), kid=_some(random, _PRINTABLE, 1, 20))
    target, names = _target(random, range_)
    body, framing = _body(random, range_)
    fields = _fields(random, range_)
    for name, line in framing:
        fields.setdefault(name.lower(), []).append(line)
    components = _components(random, range_, fields, names)
    missing = [component for component in _required_components(range_, fields) if component not in components]
    request = RequestMessage(random.choice(range_.methods), target, tuple(_headers(random, fields)), body)
    if range_.foreign and random.random() < 0.2:
        request = _signed_before(request)
        if "key" in range_.field_parameters:
            components.append(Component("signature", (("key", FOREIGN),)))
    order = random.sample(ORDER, len(ORDER)) if range_.parameters is None else range_.parameters
    return Case(
        request=request,
        key=key,
        label=range_.label or _label(random),
        components=tuple(random.sample(components + missing, len(components + missing))),
        created=random.randint(1, _CREATED_S_MAX),
        expires=_maybe(random, random.randint(*_EXPIRES_S)),
        nonce=_maybe(random, _some(random, _PRINTABLE, 1, 20)),
        tag=_maybe(random, _some(random, _PRINTABLE, 1, 20)),
        alg=random.random() < 0.5,
        order=tuple(order),
    )


def an_open_payments_case(random: Random, range_: Range) -> Case:
    """Return a random case of an Open Payments client, whose signer adds the content fields."""
    authorization = [(random.choice(("Authorization", "authorization")), f"GNAP {_some(random, _LOWER, 1, 9)}")]
    other = [("Accept", "application/json")]
    headers = random.choice((authorization, other, [*authorization, *other], [*other, *authorization]))
    body, framing = _body(random, range_)
    names = ["@method", "@target-uri", *(["authorization"] if headers != other else [])]
    names += ["content-digest", "content-length", "content-type"] if framing else []
    target, _ = _target(random, range_)
    request = RequestMessage(random.choice(range_.methods), target, tuple(headers), body)
    key = evolve(private(Algorithm.ED25519), kid=_some(random, _PRINTABLE, 1, 20))
    return Case(
        request=request,
        key=key,
        label="sig1",
        components=tuple(Component(name) for name in names),
        created=random.randint(1, _CREATED_S_MAX),
    )


def _signed_before(request: RequestMessage) -> RequestMessage:
    fields = (
        ("Signature-Input", f'{FOREIGN}=("@method");created=1;keyid="nobody\'s"'),
        ("Signature", f"{FOREIGN}=:AQID:"),
    )
    return evolve(request, headers=(*request.headers, *fields))


# --- changes -----------------------------------------------------------------------------------

Change = tuple[str, RequestMessage, set[Code]]  # the name of the change, the changed request, and its possible reasons

_INVALID: Final = {Code.SIGNATURE_INVALID}
_SINGLE: Final = {"authorization", "content-type"}
_CHECKED: Final = {"content-digest", "content-length"}  # also compared with the body


def changes(random: Random, case: Case, signed: RequestMessage) -> list[Change]:
    """Return changed copies of `signed`. Each change makes the signature of `case` invalid."""
    return [
        *_changed_parts(case, signed),
        *_changed_fields(random, case, signed),
        *_changed_coverage(random, case, signed),
    ]


def _changed_parts(case: Case, signed: RequestMessage) -> Iterator[Change]:
    covered = {component.name for component in case.components}
    before, mark, query = signed.target_uri.partition("?")
    scheme, _, rest = before.partition("://")
    path = rest[rest.index("/") :]
    if "@method" in covered:
        yield "method", evolve(signed, method=f"{signed.method}X"), _INVALID
    if covered & {"@target-uri", "@request-target", "@path"}:
        yield "path", evolve(signed, target_uri=f"{before}/x{mark}{query}"), _INVALID
    if covered & {"@target-uri", "@request-target", "@query"}:
        yield "query", evolve(signed, target_uri=f"{signed.target_uri}{'&' if mark else '?'}changed=1"), _INVALID
    if "@query-param" in covered:
        yield "query parameter", evolve(signed, target_uri=before), {Code.COMPONENT_ABSENT}
    if covered & {"@target-uri", "@authority"}:
        yield "authority", evolve(signed, target_uri=f"{scheme}://other.example{path}{mark}{query}"), _INVALID
    if signed.body:
        yield "body", evolve(signed, body=signed.body + b"x"), {Code.DIGEST_MISMATCH, Code.CONTENT_LENGTH_MISMATCH}


def _changed_fields(random: Random, case: Case, signed: RequestMessage) -> Iterator[Change]:
    plain = {component.name for component in case.components if not component.parameters}
    names = sorted({component.name for component in case.components if component.is_field} - {"signature"})
    if not names:
        return
    name = random.choice(names)
    lines = signed.values(name)
    yield "field removed", put(signed, name), {Code.COMPONENT_ABSENT}
    if name in plain - _CHECKED:
        # The change may make a structured field malformed.
        reasons = _INVALID | {Code.COMPONENT_VALUE} if name in STRUCTURED else _INVALID
        yield "field changed", put(signed, name, f"{lines[0]}x", *lines[1:]), reasons
        reasons = {Code.FIELD_REPEATED} if name in _SINGLE else reasons
        yield "field with one more line", put(signed, name, *lines, "x"), reasons


def _changed_coverage(random: Random, case: Case, signed: RequestMessage) -> Iterator[Change]:
    inputs = parse_signature_input(signed.values("signature-input"))
    components, parameters = list(case.components), dict(inputs[case.label].parameters)

    def rewritten(components: Sequence[Component], parameters: Mapping[str, BareItemType]) -> RequestMessage:
        others = {label: _written(given.components, dict(given.parameters)) for label, given in inputs.items()}
        members = {**others, case.label: _written(components, parameters)}
        return put(signed, "Signature-Input", ", ".join([f"{label}={member}" for label, member in members.items()]))

    later = {**parameters, "created": int(str(parameters["created"])) + 1}
    yield "created", rewritten(components, later), _INVALID
    yield "order of the parameters", rewritten(components, dict(reversed(parameters.items()))), _INVALID
    optional = [component for component in components if component != required(case)]
    optional = [component for component in optional if component != Component("content-digest")]
    if optional:
        left = list(components)
        left.remove(random.choice(optional))
        yield "one component less", rewritten(left, parameters), _INVALID
    if len(components) > 1:
        yield "order of the components", rewritten(components[1:] + components[:1], parameters), _INVALID
    signatures = parse_signature(signed.values("signature"))
    octets = bytearray(signatures[case.label])
    octets[random.randrange(len(octets))] ^= 1 << random.randrange(8)
    written = {**signatures, case.label: bytes(octets)}
    line = ", ".join(f"{label}=:{b64encode(value).decode()}:" for label, value in written.items())
    yield "signature", put(signed, "Signature", line), _INVALID


def required(case: Case) -> Component:
    """Return a component that a policy can require: the first one covered without parameters."""
    return next(component for component in case.components if not component.parameters)


def _written(components: Sequence[Component], parameters: Mapping[str, BareItemType]) -> str:
    identifiers = " ".join([component.identifier for component in components])
    return f"({identifiers}){serialise_parameters(tuple(parameters.items()))}"
