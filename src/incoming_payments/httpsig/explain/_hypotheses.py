"""The table of the mistakes that clients and hosts make, with their trials, and the loop that makes the trials."""

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final
from urllib.parse import quote, unquote, unquote_to_bytes

from attrs import evolve, frozen
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from incoming_payments.httpsig.algorithms import Algorithm
from incoming_payments.httpsig.codes import Code
from incoming_payments.httpsig.digest import content_digest
from incoming_payments.httpsig.explain._bodies import claims, is_digest_of, other_bodies
from incoming_payments.httpsig.explain._case import Case, Cause, ReadSignature, Trial, read_signatures
from incoming_payments.httpsig.shapes import Shape, StrictForm, strict_form
from incoming_payments.limits import EXPLAIN_CAUSES_MAX, EXPLAIN_VERIFICATIONS_MAX

_HOUR_S: Final = 3600
_YEAR_S: Final = 366 * 24 * _HOUR_S
_ZONE_OFF_S_MAX: Final = 120  # the margin around whole hours that shows a wrong time zone
# the length of a good nonce, because shorter random nonces repeat within some thousand requests
_NONCE_CHARS_MIN: Final = 8
_PIECES_OF_TARGET: Final = ("@request-target", "(request-target)", "@path", "@authority", "host")


@frozen
class Hypothesis:
    """A row of the table: a mistake, the codes that it may cause, its trials, and the text for the host."""

    name: str
    codes: Collection[str]
    trials: Callable[[Case], Iterator[Trial]]
    words: str
    proves: bool = True  # whether a successful trial proves the mistake


def find_causes(case: Case) -> tuple[list[Cause], bool]:
    """Return the matching causes, with the proved causes first, and whether every hypothesis was tried."""
    causes: list[Cause] = []
    budget = EXPLAIN_VERIFICATIONS_MAX
    for row in HYPOTHESES:
        for trial in row.trials(case) if case.code in row.codes and budget >= 0 else ():
            budget -= trial.holds is not None
            if budget < 0:
                break
            if trial.holds is None or trial.holds():
                text = row.words.format(said=case.redactor.mask(trial.said))
                causes.append(Cause(row.name, row.proves and trial.holds is not None, text))
                break
        if case.code == Code.SIGNATURE_INVALID and causes and causes[-1].proved:
            break  # a signature is valid for a single base
    return sorted(causes, key=lambda cause: not cause.proved)[:EXPLAIN_CAUSES_MAX], budget >= 0


_SignatureTrials = Callable[[Case, ReadSignature], Iterable[Trial]]


def _each(trials: _SignatureTrials, *, complete: bool = True) -> Callable[[Case], Iterator[Trial]]:
    """Return the trials of the signatures by known keys, of which the base is complete or not, as `complete` says."""
    return lambda case: (
        trial
        for one in case.signatures
        if one.key and bool(one.draft.missing) is not complete
        for trial in trials(case, one)
    )


_LABEL: Final = r"[A-Za-z*][A-Za-z0-9_\-.*]{0,63}"
_INPUT: Final = re.compile(rf"\s*({_LABEL})=(\([^()]*\)(?:;[^;,\"]*(?:\"[^\"]*\")?)*)")
_SIGNATURE: Final = re.compile(rf"\s*(?:({_LABEL})=)?[:\"']?([A-Za-z0-9+/_\-]{{16,2000}})={{0,2}}[:\"']?\s*")
_REPAIRS: Final = (  # a pattern of a mistake in Signature-Input, the correct form, and the description of the mistake
    (re.compile(r";created=\"?([0-9]{9,11})[0-9]{3}\"?(?=;|\s|$)"), r";created=\1", "created is in milliseconds"),
    (re.compile(r";created=\"?([0-9]+)(?:\"|\.[0-9]+\"?)"), r";created=\1", "created is in quotes or has a fraction"),
    (re.compile(r";keyid=", re.IGNORECASE), ";keyid=", "keyid has upper-case letters"),
    (re.compile(r"(?<=[( ])([@a-z][a-z0-9\-]*)(?=[ )])"), r'"\1"', "the components are not in quotes"),
)


def _form(case: Case) -> Iterator[Trial]:
    """Yield corrected forms of the two signature fields. If the signature of a form is valid, its mistake is proved."""
    inputs, signatures = case.text("signature-input"), case.text("signature")
    written, signature = _INPUT.fullmatch(inputs), _SIGNATURE.fullmatch(signatures)
    if written is None or signature is None:
        return
    shapes = [shape for shape in Shape if strict_form(shape, [inputs], [signatures])]
    flaws = [f"they have the shape {shape}, which the policy can allow" for shape in shapes]
    params = written[2]
    for pattern, meant, flaw in _REPAIRS:
        before, params = params, pattern.sub(meant, params)
        flaws += [flaw] if params != before else []
    base64 = signature[2].replace("-", "+").replace("_", "/")
    strict = f"=:{base64}{'=' * (-len(base64) % 4)}:"
    flaws += ["the label has upper-case letters"] if written[1] != written[1].lower() else []
    flaws += ["Signature is not of the form label=:base64:"] if signatures.strip() != f"{signature[1]}{strict}" else []
    flaws += ["the two fields have different labels"] if signature[1] not in (None, written[1]) else []
    said, form = "; ".join(flaws), StrictForm(f"sig1={params}", f"sig1{strict}", None)
    for one in read_signatures(case.evidence, form) if flaws else ():
        for signed in (written[2], one.draft.params):
            if one.key is not None:
                yield one.made_over(evolve(one.draft, params=signed).base(), said)
        yield Trial(said)


def _undefined(case: Case) -> Iterator[Trial]:
    for name in ("signature", "signature-input"):
        text = case.text(name).rpartition("=")[2].strip(' :"').lower()
        if text in {"undefined", "null", "[object object]"}:
            yield Trial(f"{name.title()} is the text {text}")


def _cavage(case: Case) -> Iterator[Trial]:
    given = case.text("signature") + ("" if case.text("signature-input") else case.text("authorization"))
    if 'keyid="' in given.lower() and "signature=" in given.lower():
        yield Trial()


def _fields_missing(case: Case) -> Iterator[Trial]:
    empty = [name for name in ("Signature-Input", "Signature") if not case.text(name.lower()).strip()]
    said = f"there is no {' and no '.join(empty) or 'signature in the fields'}"
    yield Trial(said + (", but a Content-Digest" if case.text("content-digest") else ""))


def _repeated(case: Case) -> Iterator[Trial]:
    """Yield possible reasons for a replay, from the nonce of the first signature."""
    nonces = [len(one.given.nonce) for one in case.signatures if one.given.nonce]
    if nonces and nonces[0] < _NONCE_CHARS_MIN:
        yield Trial(f"a nonce of this client has only {nonces[0]} characters, and short nonces repeat")
    yield Trial(
        "the client, its HTTP library or a proxy sent a request again, or the client signed two equal requests "
        "within a second"
    )


def _keyid(case: Case) -> Iterator[Trial]:
    keys = list(case.evidence.keys.values())[:4]
    for one in case.signatures:
        for key in keys if not one.draft.missing and one.key is None else ():
            yield one.made_over(
                one.draft.base(), f"the key of this signature has the kid {case.names([key.kid])}", key=key
            )
    for given in [one.given.key_id or "" for one in case.signatures]:
        for kid in [key.kid for key in keys]:
            if given.strip().casefold() == kid.strip().casefold():
                yield Trial(f"it differs only in case or white space from the kid {case.names([kid])}")
            if given.endswith((f"#{kid}", f"/{kid}")):
                yield Trial(f"the keyid is a URL that ends in the kid {case.names([kid])}")
        if given.startswith(("http://", "https://", "urn:")) or len(given) == 43:
            yield Trial("the keyid is a URL or a JWK thumbprint (RFC 7638)")


def _alg(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    alg, meant = one.given.alg or "", one.key and one.key.algorithm.registered
    advice = f'leave out alg, or write alg="{meant}"' if meant else "leave out alg"
    if alg in {"Ed25519", *[algorithm.value for algorithm in Algorithm]}:
        yield Trial(f"has a name from JOSE: {advice}")
    if alg.lower().startswith(("hmac", "hs")):
        yield Trial(f"names an algorithm for shared secrets, but the client has a key pair: {advice}")


def _not_covered(case: Case) -> Iterator[Trial]:
    required = (*case.evidence.policy.required, *(("content-digest",) if case.evidence.request.body else ()))
    for one in case.signatures:
        missing = [name for name in required if name not in one.given.coverage.plain]
        if one.key is not None and missing:
            yield Trial(case.names(missing), lambda: True)


def _covered_instead(case: Case) -> Iterator[Trial]:
    wanted = {*case.evidence.policy.required, "content-digest"}
    covered = [(component, one.given.coverage.names) for one in case.signatures for component in one.given.components]
    for component, names in covered:
        shown = case.redactor.identifier(component)
        if component.name.lower() in wanted and component.name not in wanted:
            yield Trial(f"{shown} is covered, but component names must be in lower case")
        if component.name in wanted and component.parameters:
            yield Trial(f"{shown} is covered, but the policy needs this component without parameters")
        if component.name in _PIECES_OF_TARGET and "@target-uri" not in names:
            yield Trial(f"{shown} is covered, but @target-uri is not")
    if case.text("digest") and not case.text("content-digest"):
        yield Trial("the request has the old field Digest (RFC 3230) instead of Content-Digest (RFC 9530)")


def _clock(case: Case, one: ReadSignature) -> Iterator[Trial]:
    age_s = case.evidence.now.timestamp() - (one.given.created or 0)
    hours = round(abs(age_s) * 2 / _HOUR_S) / 2
    side = "behind" if age_s > 0 else "ahead"
    if (one.given.created or 0) < _YEAR_S:
        yield Trial(f"created={one.given.created} is in the year 1970: the clock of the client is not set")
    if 0 < hours <= 14 and abs(abs(age_s) - hours * _HOUR_S) <= _ZONE_OFF_S_MAX:
        yield Trial(f"created is {hours:g} h {side}: a clock is in the wrong time zone")
    advice = "or a queue, a cache or a retry sent an old request" if age_s > 0 else "synchronise both clocks with NTP"
    yield Trial(f"created is {abs(age_s):.0f} s {side}: a clock is wrong, {advice}")


def _digest_form(case: Case) -> Iterator[Trial]:
    right = "is correct, so Content-Length is wrong" if case.code == Code.CONTENT_LENGTH_MISMATCH else ""
    for digest, flaw in claims(case.text("content-digest")):
        if said := flaw or right:
            yield Trial(said, partial(is_digest_of, digest, case.evidence.request.body))


def _digest_of(case: Case) -> Iterator[Trial]:
    for body, said in other_bodies(case.evidence.request.body):
        for digest, _ in claims(case.text("content-digest")) if body != case.evidence.request.body else ():
            yield Trial(said, partial(is_digest_of, digest, body))


_URI: Final = re.compile(r"(https?)://([^/?]*)([^?]*)(\?.*)?", re.IGNORECASE | re.DOTALL)
_HOST: Final = re.compile(r"[A-Za-z0-9\-._:\[\]]{1,255}")
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9\-._~%]{1,64}){1,4}")


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
    yield re.sub(r"/\.(?=/|$)|/[^/]+/\.\.(?=/|$)", "", path)  # the path with dot segments resolved to a depth of one
    yield quote(unquote_to_bytes(path), safe="/:@!$&'()*+,;=~-._")
    yield unquote(path)


# functions that return other values for each part of the URI
_PARTS: Final[Mapping[str, Callable[[Case, str], Iterable[str]]]] = {
    "scheme": lambda _, scheme: ["http" if scheme.lower() == "https" else "https"],
    "host": _hosts,
    "path": _paths,
    "query": lambda _, query: ["", query.replace("%20", "+"), query.replace("+", "%20")] if query else ["?"],
}


def _target(*names: str, others_max: int = 16) -> _SignatureTrials:
    """Return the trials of other target URIs.

    If `names` has one part, the URIs differ in this part. If not, they differ in two or more of the parts.
    """

    def trials(case: Case, one: ReadSignature) -> Iterator[Trial]:
        if match := _URI.fullmatch(case.evidence.request.target_uri):
            ours = match.groups(default="")
            options = [
                dict.fromkeys([part, *itertools.islice(others(case, part), others_max if name in names else 0)])
                for part, (name, others) in zip(ours, _PARTS.items(), strict=True)
            ]
            for parts in itertools.product(*options):
                if sum(map(str.__ne__, ours, parts)) >= min(2, len(names)):
                    scheme, authority, path, query = parts
                    uri = f"{scheme}://{authority}{path}{query}"
                    draft = one.draft.of_target(evolve(case.evidence.request, target_uri=uri))
                    yield one.made_over(draft.base(), case.redactor.uri(uri))

    return trials


def _body_changed(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    yield one.made_over(one.draft.base(), "this Content-Digest")
    if "content-length" in one.given.coverage.plain:
        yield Trial("another Content-Length")


def _method(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield the method in another case, and also GET and POST, because a redirect or HEAD changes these methods."""
    ours = case.evidence.request.method
    for other in dict.fromkeys((ours.upper(), ours.lower(), "GET", "POST")):
        if other != ours:
            yield one.made_over(one.draft.with_values({"@method": other}).base(), case.redactor.quote(other))


def _token(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield other values of `Authorization`, for example with another scheme or without the token."""
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


def _lost_field(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield values that the client may have signed for fields that did not arrive, or arrived more than once."""
    request, missing = case.evidence.request, one.draft.missing
    lines = {name: request.values(name) for name in missing}
    how = " once, but the field arrived more than once" if any(lines.values()) else ", which did not arrive"
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


def _created(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield wrong values of `created`: in milliseconds, as a string, and with an error of one second."""
    sent = one.given.created or 0
    for other in (f"{sent * 1000}", f'"{sent}"', f"{sent - 1}", f"{sent + 1}"):
        params = one.draft.params.replace(f";created={sent}", f";created={other}")
        yield one.made_over(evolve(one.draft, params=params).base(), f"created={other}, and sent created={sent}")


def _other_key(case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield the other keys of this client."""
    for kid, key in list(case.evidence.keys.items())[:4]:
        if kid != one.given.key_id:
            yield one.made_over(one.draft.base(), case.redactor.quote(kid), key=key)


def _other_algorithm(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Yield the other algorithms that an RSA key can be used with."""
    rsa = (Algorithm.RS256, Algorithm.PS512, Algorithm.PS256, Algorithm.PS384)
    for algorithm in rsa if one.key and one.key.algorithm in rsa else ():
        if one.key and algorithm is not one.key.algorithm:
            yield one.made_over(one.draft.base(), algorithm.value, key=evolve(one.key, algorithm=algorithm))


def _der(_case: Case, one: ReadSignature) -> Iterator[Trial]:
    """Convert an ECDSA signature in DER to the form r || s (RFC 9421 §3.3.4 and §3.3.5), and yield it."""
    for size in (32, 48):
        try:
            r, s = decode_dss_signature(one.octets)
            yield one.made_over(one.draft.base(), octets=r.to_bytes(size) + s.to_bytes(size))
        except (ValueError, OverflowError):
            continue


_FORM: Final = {Code.SIGNATURE_MISSING, Code.SIGNATURE_INPUT_MALFORMED, Code.SIGNATURE_MALFORMED, Code.LABELS_DIFFER}
_COVERAGE: Final = {Code.COMPONENT_NOT_COVERED, Code.BODY_NOT_COVERED}
_ABSENT: Final = {Code.COMPONENT_ABSENT, Code.FIELD_REPEATED}
_CHANGED: Final = {Code.DIGEST_MISMATCH, Code.CONTENT_LENGTH_MISMATCH}
_DIGEST: Final = _CHANGED | {Code.DIGEST_MALFORMED, Code.DIGEST_UNSUPPORTED}
_INVALID: Final = {Code.SIGNATURE_INVALID}
_REPLAYED: Final = {"nonce_used", "request_repeated"}  # codes of `flows.authenticate`

HYPOTHESES: Final[tuple[Hypothesis, ...]] = (  # in the order of the trials, the most common mistake first
    Hypothesis("undefined", _FORM, _undefined,
        "{said}: the HTTP client repeated the request without a new signature"),
    Hypothesis("cavage", _FORM, _cavage,
        "the client signs in the form of draft-cavage-http-signatures instead of RFC 9421"),
    Hypothesis("form", _FORM, _form, "the signature fields do not have the form of RFC 9421 section 4: {said}"),
    Hypothesis("fields_missing", {Code.SIGNATURE_MISSING}, _fields_missing, "{said}: the client did not sign the"
        " request, or a proxy or a framework removed these fields"),
    Hypothesis("repeated", _REPLAYED, _repeated, "the client must make a new signature for each"
        " request and each retry: {said}"),
    Hypothesis("no_nonces", {"nonce_unsupported"}, lambda _: iter([Trial()]),
        "ports has no nonces: pass Ports(nonces=store.nonces)"),
    Hypothesis("keyid", {Code.KEY_UNKNOWN, Code.KEY_ID_MISSING}, _keyid,
        "keyid must be the kid of a key of the client: {said}"),
    Hypothesis("alg", {Code.ALGORITHM_MISMATCH}, _each(_alg), "the alg parameter {said}"),
    Hypothesis("not_covered", _COVERAGE, _not_covered, "the signature does not cover {said}"),
    Hypothesis("covered_instead", _COVERAGE | _ABSENT | {Code.COMPONENT_UNSUPPORTED}, _covered_instead,
        "another component is covered instead of a required one: {said}"),
    Hypothesis("clock", {Code.STALE, Code.CREATED_IN_FUTURE}, _each(_clock), "the clocks differ: {said}"),
    Hypothesis("lost_field", _ABSENT, _each(_lost_field, complete=False), "the client signed {said}"),
    Hypothesis("digest_form", _DIGEST, _digest_form, "the digest of the body {said}"),
    Hypothesis("digest_of", _DIGEST, _digest_of, "the digest belongs to {said}, and not to the received bytes"),
    Hypothesis("body_changed", _CHANGED, _each(_body_changed),
        "the client signed {said}: a proxy or the client changed the body afterwards", proves=False),
    *(Hypothesis(part, _INVALID, _each(_target(part)), f"the client signed {{said}}: another {part} than the"
        " service expects; compare base_url and the settings of the proxy") for part in _PARTS),
    Hypothesis("method", _INVALID, _each(_method), "the client signed the method as {said}"),
    Hypothesis("token", _INVALID, _each(_token), "the client signed authorization as {said}"),
    Hypothesis("other_key", _INVALID, _each(_other_key),
        "the client signed with its key {said}, but sent another keyid"),
    Hypothesis("algorithm", _INVALID, _each(_other_algorithm), "the client signed with {said}, but the JWK names"
        " another algorithm"),
    Hypothesis("der", _INVALID, _each(_der), "the signature is in DER: send r and s as raw bytes, one after the other"),
    Hypothesis("created", _INVALID, _each(_created), "the client signed another created time: {said}"),
    Hypothesis("target", _INVALID, _each(_target("scheme", "host", "path", "query", others_max=3)),
        "the client signed {said}: base_url must be the URL that clients use"),
)  # fmt: skip
