"""What a client may have signed instead: each function gives, for one signature, the bases that one mistake leads to.

Whether the signature holds over one of them is for the caller to try.
"""

import hashlib
import itertools
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar
from urllib.parse import quote, unquote_to_bytes

from attrs import evolve
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig._case import Case, Draft, Signed, Trial, octets
from incoming_payments.httpsig.algorithms import CURVES, Algorithm
from incoming_payments.httpsig.base import Parameters, serialise_parameters
from incoming_payments.httpsig.digest import content_digest
from incoming_payments.httpsig.message import Request

T = TypeVar("T")
Trials = Callable[[Case, Signed], Iterator[Trial]]
Uris = Callable[[Case, str], Iterator[str]]

_URI: Final = re.compile(r"(https?)://([^/?]*)([^?]*)(\?.*)?", re.IGNORECASE | re.DOTALL)
_HOST: Final = re.compile(r"[A-Za-z0-9\-._:\[\]]{1,255}")
_PATH: Final = re.compile(r"(?:/[A-Za-z0-9\-._~%]{1,64}){1,4}")
_PORTS: Final = {"http": ":80", "https": ":443"}
_UNRESERVED: Final = "/:@!$&'()*+,;=~-._"
_MOUNTS_MAX: Final = 3  # segments that are taken away from the front of a path
_PERMUTED_MAX: Final = 3  # of more things there are too many orders
_REPEATED_MAX: Final = 4  # repeated fields whose lines are joined otherwise
_LEFT_OUT_MAX: Final = 8  # parameters that are left out, one at a time
_SHOWN_MAX: Final = 4  # names in one sentence
_USUAL_ORDER: Final = (  # of the Open Payments clients
    "@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type",
    "keyid", "created", "expires", "nonce", "alg", "tag",
)  # fmt: skip


# --- the target --------------------------------------------------------------------------------


def scheme(_case: Case, uri: str) -> Iterator[str]:
    """The other of http and https."""
    name, _, rest = uri.partition(":")
    yield f"{'http' if name.lower() == 'https' else 'https'}:{rest}"


def host(case: Case, uri: str) -> Iterator[str]:
    """The hosts that the request itself names, and our own in lower case."""
    scheme, authority, path, query = _parts(uri)
    for other in (*_hosts(case.request), authority.lower()):
        if other != authority:
            yield f"{scheme}://{other}{path}{query}"


def port(_case: Case, uri: str) -> Iterator[str]:
    """With the default port said, or without the port."""
    scheme, authority, path, query = _parts(uri)
    bare = re.sub(r":[0-9]*$", "", authority)
    yield f"{scheme}://{bare if bare != authority else authority + _PORTS.get(scheme.lower(), '')}{path}{query}"


def slash(_case: Case, uri: str) -> Iterator[str]:
    """With another slash at the end of the path, or with one less."""
    scheme, authority, path, query = _parts(uri)
    yield f"{scheme}://{authority}{path[:-1] if path.endswith('/') else path + '/'}{query}"


def mount(case: Case, uri: str) -> Iterator[str]:
    """Without the first segments of the path, or with those that a proxy says it took away."""
    scheme, authority, path, query = _parts(uri)
    for other in _without_mount(path):
        yield f"{scheme}://{authority}{other}{query}"
    for prefix in case.request.values("x-forwarded-prefix"):
        if _PATH.fullmatch(prefix):
            yield f"{scheme}://{authority}{prefix}{path}{query}"


def query(_case: Case, uri: str) -> Iterator[str]:
    """Without the query, with an empty one, or with spaces written otherwise."""
    bare, _, query = uri.partition("?")
    if query:
        yield bare
        yield uri.replace("%20", "+")
        yield f"{bare}?{query.replace('+', '%20')}"
    else:
        yield f"{bare}?"


def percent(_case: Case, uri: str) -> Iterator[str]:
    """With percent-encoding written otherwise: needless ones undone, the digits in another case, all decoded."""
    scheme, authority, path, query = _parts(uri)
    for other in (
        quote(unquote_to_bytes(path), safe=_UNRESERVED),
        re.sub(r"%[0-9A-Fa-f]{2}", lambda match: match[0].upper(), path),
        re.sub(r"%[0-9A-Fa-f]{2}", lambda match: match[0].lower(), path),
        unquote_to_bytes(path).decode("utf-8", "replace"),
    ):
        yield f"{scheme}://{authority}{other}{query}"


def dots(_case: Case, uri: str) -> Iterator[str]:
    """With dot segments resolved."""
    scheme, authority, path, query = _parts(uri)
    segments: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del segments[max(1, len(segments) - 1) :]
        elif segment != ".":
            segments.append(segment)
    yield f"{scheme}://{authority}{'/'.join(segments)}{query}"


def direct(case: Case, uri: str) -> Iterator[str]:
    """What a client signs that reaches us past the proxy: our own address, on http, without the mount."""
    _, _, path, query = _parts(uri)
    for scheme, authority, other in itertools.product(
        ("http", "https"), _hosts(case.request), (path, *_without_mount(path))
    ):
        yield f"{scheme}://{authority}{other}{query}"


def in_pairs(*mistakes: Uris) -> Uris:
    """Two mistakes at once."""

    def both(case: Case, uri: str) -> Iterator[str]:
        for first, second in itertools.combinations(mistakes, 2):
            for once in first(case, uri):
                yield from second(case, once)

    return both


def targets(uris: Uris) -> Trials:
    """Trials with the target URIs that `uris` makes of ours; each once."""

    def trials(case: Case, signed: Signed) -> Iterator[Trial]:
        uri = case.request.target_uri
        seen = {uri}
        for other in uris(case, uri) if _URI.fullmatch(uri) else ():
            if other not in seen:
                seen.add(other)
                try:
                    draft = signed.draft.of_request(evolve(case.request, target_uri=other))
                except MalformedField:  # it cannot be a target, but a client may have signed it as one
                    draft = signed.draft.with_values({"@target-uri": other})
                yield Trial(draft.base(), case.redactor.uri(other))

    return trials


def _parts(uri: str) -> tuple[str, str, str, str]:
    match = _URI.fullmatch(uri)
    scheme, authority, path, query = match.groups(default="") if match else ("", "", uri, "")
    return scheme, authority, path, query


def _hosts(request: Request) -> list[str]:
    named = [value for name in ("host", "x-forwarded-host") for value in request.values(name)[:2]]
    return [value for value in named if _HOST.fullmatch(value)]


def _without_mount(path: str) -> list[str]:
    segments = path.split("/")[1:]
    return ["/" + "/".join(segments[count:]) for count in range(1, min(_MOUNTS_MAX, len(segments) - 1) + 1)]


# --- the method and the fields -----------------------------------------------------------------


def method(case: Case, signed: Signed) -> Iterator[Trial]:
    """The method in another case, or another one: a redirect or a HEAD changes it."""
    ours = case.request.method
    for other in dict.fromkeys((ours.upper(), ours.lower(), ours.capitalize(), "GET", "POST")):
        if other != ours:
            yield Trial(signed.draft.with_values({"@method": other}).base(), case.redactor.quote(other))


def token(case: Case, signed: Signed) -> Iterator[Trial]:
    """The token in another frame, or none."""
    for value in case.request.values("authorization")[:1]:
        scheme, _, token = value.strip(" ").partition(" ")
        for other, said in (
            (token, "the token alone, without GNAP before it"),
            (f"Bearer {token}", "Bearer, and not as GNAP"),
            (f"GNAP {token}", "GNAP in upper case"),
            (f"gnap {token}", "gnap in lower case"),
            ("", "nothing: it was empty"),
            (scheme, "the scheme without a token"),
            (f"{scheme} ", "the scheme and an empty token"),
            (f"{scheme} undefined", "undefined"),
            ("undefined", "undefined"),
        ):
            if other != value:
                yield Trial(signed.draft.with_values({"authorization": other}).base(), said)


def joined(case: Case, signed: Signed) -> Iterator[Trial]:
    """The lines of a repeated field put together otherwise than RFC 9421 §2.1 says."""
    names = {line.component.name for line in signed.draft.lines if not line.component.parameters}
    for name in [name for name in sorted(names) if len(case.request.values(name)) > 1][:_REPEATED_MAX]:
        lines = [line.strip(" \t") for line in case.request.values(name)]
        shown = case.redactor.quote(name)
        for value, said in (
            (lines[0], "the first line alone"),
            (lines[-1], "the last line alone"),
            (",".join(lines), "the lines with a comma between them, and no space"),
            (", ".join(reversed(lines)), "the lines the other way round"),
            ("; ".join(lines), "the lines with a semicolon between them"),
            ("\n".join(lines), "the lines with a newline between them"),
        ):
            yield Trial(signed.draft.with_values({name: value}).base(), f"{shown}: {said}")


def white_space(case: Case, signed: Signed) -> Iterator[Trial]:
    """The fields with the white space around their values."""
    names = [line.component.name for line in signed.draft.lines if line.component.is_field]
    yield Trial(signed.draft.with_values({name: case.text(name) for name in names}).base())


def dropped(case: Case, signed: Signed) -> Iterator[Trial]:
    """The fields that did not arrive, as they have to have been."""
    body, missing = case.request.body, _missing(signed.draft)
    for digest in (content_digest(body), content_digest(body, "sha-256")):
        likely = {
            "content-digest": digest,
            "content-length": str(len(body)),
            "content-type": "application/json",
            "host": _parts(case.request.target_uri)[1],
        }
        draft = signed.draft.with_values(likely)
        if draft.is_complete:
            yield Trial(draft.base(), ", ".join(missing))


def repeated(case: Case, signed: Signed) -> Iterator[Trial]:
    """The fields that may occur once, as they arrived: more than once, and joined."""
    missing = _missing(signed.draft)
    draft = signed.draft.with_values({name: _one_line(case.request, name) for name in missing})
    yield Trial(draft.base(), ", ".join(map(case.redactor.quote, missing[:_SHOWN_MAX])))


def doubled(case: Case, signed: Signed) -> Iterator[Trial]:
    """The same with one of the lines that arrived."""
    missing = _missing(signed.draft)
    names = ", ".join(map(case.redactor.quote, missing[:_SHOWN_MAX]))
    for place in (0, -1):
        lines = {name: (case.request.values(name) or ("",))[place] for name in missing}
        draft = signed.draft.with_values({name: line.strip(" \t") for name, line in lines.items()})
        yield Trial(draft.base(), names)


def _one_line(request: Request, name: str) -> str:
    return ", ".join([line.strip(" \t") for line in request.values(name)])


def absent(case: Case, signed: Signed) -> Iterator[Trial]:
    """The fields that are not there, as clients sign what they do not have."""
    missing = _missing(signed.draft)
    names = ", ".join(map(case.redactor.quote, missing[:_SHOWN_MAX]))
    for value, said in (("", "empty"), ("undefined", "the text undefined"), ("null", "the text null")):
        draft = signed.draft.with_values(dict.fromkeys(missing, value))
        if draft.is_complete:
            yield Trial(draft.base(), f"{names} as {said}")


def _missing(draft: Draft) -> list[str]:
    return [line.component.name for line in draft.lines if line.value is None and not line.component.parameters]


# --- the parameters and the base ---------------------------------------------------------------


def created_twice(_case: Case, signed: Signed) -> Iterator[Trial]:
    """Another second in the base than in the field."""
    created = signed.given.created or 0
    for off_s in (-1, 1, -2, 2):
        yield _with_parameters(signed, _with(signed, "created", created + off_s), f"created={created + off_s}")


def created_in_ms(_case: Case, signed: Signed) -> Iterator[Trial]:
    """`created` in milliseconds in the base, though not in the field."""
    for ms in (signed.given.created or 0) * 1000, str(signed.given.created):
        yield _with_parameters(
            signed, _with(signed, "created", ms), f"created={serialise_parameters((('a', ms),))[3:]}"
        )


def parameter_order(case: Case, signed: Signed) -> Iterator[Trial]:
    """The parameters in another order."""
    for parameters in _orders(signed.given.parameters, lambda pair: pair[0]):
        names = ", ".join([name for name, _ in parameters])
        yield _with_parameters(signed, parameters, case.redactor.show(names))


def parameter_left_out(case: Case, signed: Signed) -> Iterator[Trial]:
    """The base without one of the parameters, or without all."""
    parameters = signed.given.parameters
    for name, _ in parameters[:_LEFT_OUT_MAX]:
        yield _with_parameters(signed, tuple(pair for pair in parameters if pair[0] != name), case.redactor.show(name))
    yield _with_parameters(signed, (), "all of them")


def component_order(case: Case, signed: Signed) -> Iterator[Trial]:
    """The components in another order."""
    for lines in _orders(signed.draft.lines, lambda line: line.component.name):
        identifiers = " ".join([line.identifier for line in lines])
        params = f"({identifiers}){serialise_parameters(signed.given.parameters)}"
        shown = " ".join([case.redactor.identifier(line.component) for line in lines[: len(_USUAL_ORDER)]])
        yield Trial(Draft(lines, params).base(), shown)
        yield Trial(Draft(lines, signed.draft.params).base(), shown)


def shape(_case: Case, signed: Signed) -> Iterator[Trial]:
    """The base put together otherwise than RFC 9421 §2.5 says."""
    pairs = signed.draft.pairs()
    *lines, (last, params) = pairs
    base = signed.draft.base().decode()
    plain = [identifier.replace('"', "") for identifier, _ in pairs]
    for text, said in (
        (f"{base}\n", "closed with a newline"),
        (base.replace("\n", "\r\n"), "with CRLF between the lines"),
        ("\n".join([f"{identifier}:{value}" for identifier, value in pairs]), "without the space after each colon"),
        (_joined([*lines, (last, f"{signed.given.label}={params}")]), "with the label in its last line"),
        (_joined(lines), "without its last line, @signature-params"),
        (_joined(zip(plain, [value for _, value in pairs], strict=True)), "without quotes around the names"),
        (_joined([*lines, ("@signature-params", params)]), "without quotes around @signature-params"),
        (_joined([(identifier.title(), value) for identifier, value in lines] + [(last, params)]),
         "with names in upper case"),
    ):  # fmt: skip
        yield Trial(octets(text), said)


def hashed(_case: Case, signed: Signed) -> Iterator[Trial]:
    """A digest of the base in its place."""
    base = signed.draft.base()
    for name, hash_ in (("SHA-256", hashlib.sha256), ("SHA-512", hashlib.sha512)):
        digest = hash_(base)
        yield Trial(digest.digest(), f"its {name}")
        yield Trial(digest.hexdigest().encode(), f"its {name} in hexadecimal digits")


def _joined(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join([f"{identifier}: {value}" for identifier, value in pairs])


def _with(signed: Signed, name: str, value: int | str) -> Parameters:
    return tuple((key, value if key == name else old) for key, old in signed.given.parameters)


def _with_parameters(signed: Signed, parameters: Parameters, said: str) -> Trial:
    identifiers = " ".join([line.identifier for line in signed.draft.lines])
    params = f"({identifiers}){serialise_parameters(parameters)}"
    return Trial(evolve(signed.draft, params=params).base(), said)


def _orders(things: Sequence[T], name: Callable[[T], str]) -> Iterator[tuple[T, ...]]:
    """The other orders of a few things; of many, those that programs make."""
    if len(things) <= _PERMUTED_MAX:
        yield from itertools.islice(itertools.permutations(things), 1, None)
        return
    usual = {known: place for place, known in enumerate(_USUAL_ORDER)}
    yield tuple(sorted(things, key=lambda thing: usual.get(name(thing), len(usual))))
    yield tuple(sorted(things, key=name))
    yield tuple(reversed(things))


# --- the signature -----------------------------------------------------------------------------


def other_key(case: Case, signed: Signed) -> Iterator[Trial]:
    """Another key that this client has."""
    for kid, key in list(case.keys.items())[:4]:
        if kid != signed.given.key_id:
            yield Trial(signed.draft.base(), case.redactor.quote(kid), key=key)


def other_algorithm(_case: Case, signed: Signed) -> Iterator[Trial]:
    """The same key, used otherwise."""
    key = signed.key
    if key is not None and key.algorithm in _RSA:
        for algorithm in _RSA:
            if algorithm is not key.algorithm:
                yield Trial(signed.draft.base(), algorithm.value, key=evolve(key, algorithm=algorithm))


_RSA: Final = (Algorithm.RS256, Algorithm.PS512, Algorithm.PS256, Algorithm.PS384)


def encoding(_case: Case, signed: Signed) -> Iterator[Trial]:
    """The signature in another form."""
    base = signed.draft.base()
    for decode, said in (
        (_from_der_256, "is in DER, as many libraries give it, and not r and s alone (RFC 9421 §3.3.4)"),
        (_from_der_384, "is in DER, as many libraries give it, and not r and s alone (RFC 9421 §3.3.5)"),
        (_from_hex, "is base64 of its hexadecimal digits"),
        (_from_base64, "is in base64 twice"),
    ):
        try:
            signature = decode(signed.signature)
        except (ValueError, OverflowError):
            continue
        yield Trial(base, said, signature=signature)


def _from_der(signature: bytes, octets: int) -> bytes:
    r, s = decode_dss_signature(signature)
    return r.to_bytes(octets) + s.to_bytes(octets)


def _from_der_256(signature: bytes) -> bytes:
    return _from_der(signature, CURVES["P-256"][1])


def _from_der_384(signature: bytes) -> bytes:
    return _from_der(signature, CURVES["P-384"][1])


def _from_hex(signature: bytes) -> bytes:
    return bytes.fromhex(signature.decode("ascii"))


def _from_base64(signature: bytes) -> bytes:
    return b64decode(signature, validate=True)
