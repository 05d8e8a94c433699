"""Trials that the client signed something else: for one signature, the bases that one mistake leads to."""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import quote, unquote, unquote_to_bytes

from attrs import evolve
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from incoming_payments.httpsig.algorithms import Algorithm
from incoming_payments.httpsig.digest import content_digest
from incoming_payments.httpsig.explain._case import Case, ReadSignature, Trial

SignatureTrials = Callable[[Case, ReadSignature], Iterator[Trial]]

_URI: Final = re.compile(r"(https?)://([^/?]*)([^?]*)(\?.*)?", re.IGNORECASE | re.DOTALL)
_HOST: Final = re.compile(r"[A-Za-z0-9\-._:\[\]]{1,255}")
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9\-._~%]{1,64}){1,4}")


def _schemes(_case: Case, scheme: str) -> Iterator[str]:
    yield "http" if scheme.lower() == "https" else "https"


def _hosts(case: Case, authority: str) -> Iterator[str]:
    for name in ("host", "x-forwarded-host"):
        yield from filter(_HOST.fullmatch, case.evidence.request.values(name)[:1])
    bare = re.sub(r":[0-9]*$", "", authority)
    yield from [bare] if bare != authority else [f"{authority}:80", f"{authority}:443"]
    yield authority.lower()


def _paths(case: Case, path: str) -> Iterator[str]:
    segments = path.split("/")[1:]
    unmounted = ["/" + "/".join(segments[count:]) for count in range(1, min(4, len(segments)))]
    yield from unmounted[:1]
    yield path[:-1] if path.endswith("/") else f"{path}/"
    yield from unmounted[1:]
    for prefix in filter(_PREFIX.fullmatch, case.evidence.request.values("x-forwarded-prefix")[:1]):
        yield f"{prefix}{path}"
    yield re.sub(r"/\.(?=/|$)|/[^/]+/\.\.(?=/|$)", "", path)  # dot segments resolved, one level deep
    yield quote(unquote_to_bytes(path), safe="/:@!$&'()*+,;=~-._")
    yield unquote(path)


def _queries(_case: Case, query: str) -> Iterator[str]:
    yield from ["", query.replace("%20", "+"), query.replace("+", "%20")] if query else ["?"]


PARTS: Final = {"scheme": _schemes, "host": _hosts, "path": _paths, "query": _queries}


def target(*names: str, others_max: int = 16) -> SignatureTrials:
    """Return the trials with another target URI, in which all of these parts or at least two of them differ."""

    def trials(case: Case, one: ReadSignature) -> Iterator[Trial]:
        if match := _URI.fullmatch(case.evidence.request.target_uri):
            ours = match.groups(default="")
            options = [
                dict.fromkeys([part, *itertools.islice(others(case, part), others_max if name in names else 0)])
                for part, (name, others) in zip(ours, PARTS.items(), strict=True)
            ]
            for parts in itertools.product(*options):
                if sum(map(str.__ne__, ours, parts)) >= min(2, len(names)):
                    scheme, authority, path, query = parts
                    uri = f"{scheme}://{authority}{path}{query}"
                    draft = one.draft.of_target(evolve(case.evidence.request, target_uri=uri))
                    yield one.made_over(draft.base(), case.redactor.uri(uri))

    return trials


def method(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield the method in another case, and GET and POST, which a redirect or HEAD changes."""
    ours = case.evidence.request.method
    for other in dict.fromkeys((ours.upper(), ours.lower(), "GET", "POST")):
        if other != ours:
            yield one.made_over(one.draft.with_values({"@method": other}).base(), case.redactor.quote(other))


def token(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield the access token under another scheme, without scheme, or absent."""
    for value in case.evidence.request.values("authorization")[:1]:
        scheme, _, secret = value.strip(" ").partition(" ")
        for other, said in (
            (secret, "the token alone, without GNAP before it"),
            (f"Bearer {secret}", "Bearer, and not as GNAP"),
            (f"{scheme.upper()} {secret}", "the scheme in upper case"),
            (f"{scheme.lower()} {secret}", "the scheme in lower case"),
            ("", "an empty value"),
            (scheme, "the scheme without a token"),
        ):
            if other != value:
                yield one.made_over(one.draft.with_values({"authorization": other}).base(), said)


def lost_field(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield values for the fields that did not arrive, or arrived more than once."""
    request, missing = case.evidence.request, one.draft.missing
    lines = {name: request.values(name) for name in missing}
    how = " once, and it arrived more than once" if any(lines.values()) else ", which did not arrive"
    sent = {
        "content-length": str(len(request.body)),
        "content-type": "application/json",
        "host": request.target_uri.partition("://")[2].partition("/")[0],
    }
    for values, said in (
        ({**sent, "content-digest": content_digest(request.body)}, how),
        ({**sent, "content-digest": content_digest(request.body, "sha-256")}, how),
        (dict.fromkeys(missing, ""), " as an empty value, and did not send it"),
        (dict.fromkeys(missing, "undefined"), " as the text undefined, and did not send it"),
        ({name: "".join(lines[name][:1]) for name in missing}, how),
        ({name: "".join(lines[name][-1:]) for name in missing}, how),
    ):
        draft = one.draft.with_values(values)
        if not draft.missing:
            yield one.made_over(draft.base(), f"{case.names(missing)}{said}")


def created(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield `created` in milliseconds, as a string, or as a second next to it."""
    sent = one.given.created or 0
    for other in (f"{sent * 1000}", f'"{sent}"', f"{sent - 1}", f"{sent + 1}"):
        params = one.draft.params.replace(f";created={sent}", f";created={other}")
        yield one.made_over(evolve(one.draft, params=params).base(), f"created={other}, and sent created={sent}")


def other_key(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield the other keys of this client."""
    for kid, key in list(case.evidence.keys.items())[:4]:
        if kid != one.given.key_id:
            yield one.made_over(one.draft.base(), case.redactor.quote(kid), key=key)


def other_algorithm(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield the other algorithms that an RSA key can be used with."""
    rsa = (Algorithm.RS256, Algorithm.PS512, Algorithm.PS256, Algorithm.PS384)
    for algorithm in rsa if one.key and one.key.algorithm in rsa else ():
        if one.key and algorithm is not one.key.algorithm:
            yield one.made_over(one.draft.base(), algorithm.value, key=evolve(one.key, algorithm=algorithm))


def der(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield an ECDSA signature that was sent in DER as r and s. RFC 9421 §3.3.4 and §3.3.5."""
    for size in (32, 48):
        try:
            r, s = decode_dss_signature(one.octets)
            yield one.made_over(one.draft.base(), octets=r.to_bytes(size) + s.to_bytes(size))
        except (ValueError, OverflowError):
            continue
