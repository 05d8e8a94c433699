"""Why a request may have been refused: one table, a row for each mistake that clients and their hosts make.

A row has a name, the reasons for which it is tried, how it is tried, and its words. What is found is proved, when the
signature holds or the digest matches once the mistake is made on purpose; or it is likely, when it was recognised only.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from attrs import frozen

from incoming_payments.httpsig import _trials
from incoming_payments.httpsig._bodies import Variant, claims, match, nothing, other_bytes, other_json
from incoming_payments.httpsig._case import Case, Drafter, Signed, Trial, read_fields
from incoming_payments.httpsig.algorithms import Algorithm
from incoming_payments.httpsig.keys import PublicKey
from incoming_payments.httpsig.reasons import Reason

_HOUR_S: Final = 3600
_YEAR_S: Final = 366 * 24 * _HOUR_S
_ZONE_S: Final = 1800  # nearly all zones of the world are half hours apart
_ZONE_OFF_S_MAX: Final = 120  # how far a clock that is right but for its zone may be off besides
_ZONE_S_MAX: Final = 15 * _HOUR_S
_SHOWN_MAX: Final = 6  # names in one sentence


@frozen
class Found:
    """A row that fits: whether that is proved, and what goes into its words."""

    proved: bool
    said: str = ""


@frozen
class Hypothesis:
    """One row: `look` says whether the case is one of it, and `words`, with what was found, say it to the host."""

    name: str
    reasons: frozenset[str]
    look: Callable[[Case], Found | None]
    words: str


# --- by the signature --------------------------------------------------------------------------


def _signed(trials: _trials.Trials) -> Callable[[Case], Found | None]:
    """Proved when the signature holds over one of the bases."""
    return lambda case: _first(case, trials, case.by_known_keys())


def _likely(look: Callable[[Case], Found | None]) -> Callable[[Case], Found | None]:
    """For what a signature that holds makes likely, and does not prove."""

    def likely(case: Case) -> Found | None:
        found = look(case)
        return found and Found(False, found.said)

    return likely


def _signed_without(trials: _trials.Trials) -> Callable[[Case], Found | None]:
    """The same for signatures over something that is not in the request."""

    def look(case: Case) -> Found | None:
        pairs = [(signed, signed.key) for signed in case.signed if signed.key and not signed.draft.is_complete]
        return _first(case, trials, pairs)

    return look


def _first(case: Case, trials: _trials.Trials, pairs: Iterable[tuple[Signed, PublicKey]]) -> Found | None:
    for signed, key in pairs:
        for trial in trials(case, signed):
            signature = signed.signature if trial.signature is None else trial.signature
            if case.holds(trial.key or key, signature, trial.base):
                return Found(True, trial.said)
            if case.is_exhausted:  # to make more bases costs as well
                return None
    return None


def _by_another_kid(case: Case) -> Found | None:
    """The key that made a signature which names none, or another."""
    for signed in case.signed:
        if signed.draft.is_complete and signed.key is None:
            for key in list(case.keys.values())[:_SHOWN_MAX]:
                if case.holds(key, signed.signature, signed.draft.base()):
                    return Found(True, case.redactor.quote(key.kid))
    return None


# --- by the digest -----------------------------------------------------------------------------


def _digest_of(variants: Callable[[bytes], Iterator[Variant]]) -> Callable[[Case], Found | None]:
    """Proved when the digest, read in any of the ways it may be meant, is that of another body."""

    def look(case: Case) -> Found | None:
        sent = case.request.body
        others = (variant for variant in variants(sent) if variant[0] != sent)
        if found := match(claims(case.text("content-digest")), others):
            claim, said = found
            besides = f"; besides, it {claim.flaws}" if claim.flaws else ""
            return Found(True, f"{said}, and not of the bytes sent{besides}")
        return None

    return look


def _one_of_two(case: Case) -> Found | None:
    claimed = claims(case.text("content-digest"))
    right = [claim.matches(case.request.body) for claim in claimed]
    return Found(True) if any(right) and not all(right) else None


def _digest_form(case: Case) -> Found | None:
    """The digest of the body as it is, in another form."""
    flawed = [claim for claim in claims(case.text("content-digest")) if claim.flaws]
    found = match(flawed, [(case.request.body, "")])
    return Found(True, found[0].flaws) if found else None


def _legacy_digest(case: Case) -> Found | None:
    text = case.text("digest")
    if not text or case.request.values("content-digest"):
        return None
    return Found(match(claims(text), [(case.request.body, "")]) is not None)


def _length_alone(case: Case) -> Found | None:
    found = match(claims(case.text("content-digest")), [(case.request.body, "")])
    return Found(True) if found else None


def _length_in_characters(case: Case) -> Found | None:
    text = case.request.body.decode("utf-8", "replace")
    claimed = case.text("content-length").strip()
    utf16 = len(text.encode("utf-16-le", "replace")) // 2  # as JavaScript counts
    return Found(False) if claimed != str(len(case.request.body)) and claimed in {str(len(text)), str(utf16)} else None


# --- by the form of the fields -----------------------------------------------------------------

_LABEL: Final = r"[A-Za-z*][A-Za-z0-9_\-.*]{0,63}"
_BASE64: Final = r"[A-Za-z0-9+/_\-]{16,2000}={0,2}"
_ONE_SIGNATURE: Final = re.compile(rf"\s*(?:({_LABEL})=)?([:\"']?)({_BASE64})([:\"']?)\s*")
_ONE_INPUT: Final = re.compile(rf"\s*({_LABEL})=(\(([^()]*)\)((?:;[^;,\"]*(?:\"[^\"]*\")?)*))")
_CREATED_MS: Final = re.compile(r";created=\"?([0-9]{12,16})\"?(?=;|\s|$)")
_CREATED_ODD: Final = re.compile(r";created=\"?([0-9]{9,11})(?:\.[0-9]{1,9})?\"?(?=;|\s|$)")
_CAVAGE: Final = re.compile(r"keyid=\"", re.IGNORECASE)
_NO_TEXT: Final = frozenset({"undefined", "null", "[object object]", "none", "nan"})


def _repaired(
    recognise: Callable[[str, str], tuple[str, str] | None],
) -> Callable[[Case], Found | None]:
    """Recognised by the form of `Signature-Input` and `Signature`; proved when the signature holds over what was meant.

    `recognise` gives the two as they should have been. The base still ends in what the client wrote.
    """

    def look(case: Case) -> Found | None:
        written, signature = case.text("signature-input"), case.text("signature")
        meant = recognise(written, signature)
        if meant is None:
            return None
        inputs, signatures = read_fields([meant[0]], [meant[1]])
        drafter = Drafter(case.request)
        for label in [label for label in inputs if label in signatures][:1]:
            key = case.keys.get(inputs[label].key_id or "")
            match = _ONE_INPUT.fullmatch(written)
            for params in dict.fromkeys((match and match[2], None)):
                draft = drafter.draft(inputs[label], params)
                if key is not None and case.holds(key, signatures[label], draft.base()):
                    return Found(True)
        return Found(False)

    return look


def _php(written: str, signature: str) -> tuple[str, str] | None:
    match = _ONE_SIGNATURE.fullmatch(signature)
    if match is None or not match[1] or match[2] or match[4]:
        return None
    return written, f"{match[1]}=:{match[3]}:"


def _rust(written: str, signature: str) -> tuple[str, str] | None:
    input_, bare = _ONE_INPUT.fullmatch(written), _bare(written, signature)
    if input_ is None or bare is None or '"' in input_[3]:
        return None
    return f"{input_[1]}=({_in_quotes(input_[3].split())}){input_[4]}", bare[1]


def _bare(written: str, signature: str) -> tuple[str, str] | None:
    input_, match = _ONE_INPUT.fullmatch(written), _ONE_SIGNATURE.fullmatch(signature)
    return None if input_ is None or match is None or match[1] else (written, f"{input_[1]}=:{match[3]}:")


def _unquoted(written: str, signature: str) -> tuple[str, str] | None:
    match = _ONE_INPUT.fullmatch(written)
    names = [] if match is None else match[3].replace("'", "").replace(",", " ").split()
    if match is None or all(name.startswith('"') for name in names):
        return None
    return f"{match[1]}=({_in_quotes(names)}){match[4]}", signature


def _in_quotes(names: Iterable[str]) -> str:
    return " ".join([name if name.startswith('"') else f'"{name}"' for name in names])


def _base64url(written: str, signature: str) -> tuple[str, str] | None:
    match = _ONE_SIGNATURE.fullmatch(signature)
    if match is None or match[2] != ":":
        return None
    digits = match[3].rstrip("=").replace("-", "+").replace("_", "/")
    padded = digits + "=" * (-len(digits) % 4)
    return None if padded == match[3] else (written, f"{match[1]}=:{padded}:")


def _quoted(written: str, signature: str) -> tuple[str, str] | None:
    match = _ONE_SIGNATURE.fullmatch(signature)
    if match is None or match[2] not in ("'", '"'):
        return None
    return written, f"{match[1]}=:{match[3]}:"


def _label_case(written: str, signature: str) -> tuple[str, str] | None:
    input_, match = _ONE_INPUT.fullmatch(written), _ONE_SIGNATURE.fullmatch(signature)
    if input_ is None or match is None or not match[1] or input_[1] + match[1] == (input_[1] + match[1]).lower():
        return None
    return f"{input_[1].lower()}={input_[2]}", f"{match[1].lower()}=:{match[3]}:"


def _labels(written: str, signature: str) -> tuple[str, str] | None:
    input_, match = _ONE_INPUT.fullmatch(written), _ONE_SIGNATURE.fullmatch(signature)
    return (written, f"{input_[1]}=:{match[3]}:") if input_ and match else None


def _key_id_case(written: str, signature: str) -> tuple[str, str] | None:
    meant = re.sub(r";keyid=", ";keyid=", written, flags=re.IGNORECASE)
    return None if meant == written else (meant, signature)


def _created_odd(written: str, signature: str) -> tuple[str, str] | None:
    meant, count = _CREATED_ODD.subn(r";created=\1", written)
    return (meant, signature) if count and meant != written else None


def _created_ms(case: Case) -> Found | None:
    match = _CREATED_MS.search(case.text("signature-input"))
    if match is None or abs(int(match[1]) / 1000 - case.now_s) > _YEAR_S:
        return None
    # Only whether the signature holds over what was written is looked at here, and not the time.
    look = _repaired(lambda written, signature: (_CREATED_MS.sub(";created=0", written), signature))
    return look(case)


def _undefined(case: Case) -> Found | None:
    for name in ("signature", "signature-input"):
        text = case.text(name).rpartition("=")[2].strip(' :"')  # what is before it may be a signature
        if text.lower() in _NO_TEXT:
            return Found(False, f"{name.title()} is the text {case.redactor.show(text)}")
    return None


def _cavage(case: Case) -> Found | None:
    given = (case.text("signature"), case.text("authorization") if not case.text("signature-input") else "")
    return Found(False) if any(_CAVAGE.search(text) and "headers=" in text.lower() for text in given) else None


def _one_field(case: Case) -> Found | None:
    there = [name for name in ("Signature", "Signature-Input") if case.text(name.lower())]
    return Found(False, there[0]) if len(there) == 1 else None


# --- by the key --------------------------------------------------------------------------------


def _near_kid(case: Case) -> Found | None:
    for signed in case.signed:
        given = signed.given.key_id or ""
        for kid in list(case.keys)[:_SHOWN_MAX]:
            if given != kid and given.strip().casefold() == kid.strip().casefold():
                return Found(False, f"the kid is {case.redactor.quote(kid)}: case and white space count")
            if given.endswith((f"#{kid}", f"/{kid}")):
                return Found(False, f"the kid is {case.redactor.quote(kid)}, and not a URL that ends in it")
    return None


def _thumbprint(case: Case) -> Found | None:
    pattern = re.compile(r"(?:urn:ietf:params:oauth:jwk-thumbprint:sha-256:)?[A-Za-z0-9_\-]{43}")
    return Found(False) if any(pattern.fullmatch(signed.given.key_id or "") for signed in case.signed) else None


def _url_kid(case: Case) -> Found | None:
    urls = [signed for signed in case.signed if (signed.given.key_id or "").startswith(("http://", "https://"))]
    return Found(False) if urls else None


def _jose_name(case: Case) -> Found | None:
    names = {algorithm.value for algorithm in Algorithm} | {"Ed25519"}
    return _alg_among(case, lambda alg: alg in names)


def _shared_secret(case: Case) -> Found | None:
    return _alg_among(case, lambda alg: alg.lower().startswith(("hmac", "hs")))


def _alg_among(case: Case, is_one: Callable[[str], bool]) -> Found | None:
    for signed in case.signed:
        if signed.key is not None and signed.given.alg and is_one(signed.given.alg):
            name = signed.key.algorithm.registered
            return Found(False, "leave it out" if name is None else f'leave it out, or write alg="{name}"')
    return None


# --- by what is covered ------------------------------------------------------------------------


def _missing(case: Case) -> Found | None:
    """All that has to be covered and is not, of the first signature by a known key."""
    for signed in case.signed:
        covered = {line.component.name for line in signed.draft.lines if not line.component.parameters}
        required = (*case.policy.required, *(("content-digest",) if case.request.body else ()))
        missing = [f'"{name}"' for name in required if name not in covered]
        if signed.key is not None and missing:
            return Found(True, ", ".join(missing))
    return None


def _covered_names(case: Case) -> Iterator[str]:
    for signed in case.signed:
        for line in signed.draft.lines:
            yield line.component.name


def _upper_case(case: Case) -> Found | None:
    wanted = {*case.policy.required, "content-digest"}
    for name in _covered_names(case):
        if name not in wanted and name.lower() in wanted:
            return Found(False, case.redactor.quote(name))
    return None


def _with_parameters(case: Case) -> Found | None:
    wanted = {*case.policy.required, "content-digest"}
    for signed in case.signed:
        for line in signed.draft.lines:
            if line.component.name in wanted and line.component.parameters:
                return Found(False, case.redactor.identifier(line.component))
    return None


def _old_names(case: Case) -> Found | None:
    instead = {"@request-target", "(request-target)", "@path", "@authority", "host", "@request-uri"}
    names = [name for name in _covered_names(case) if name.lower() in instead]
    if "@target-uri" in _covered_names(case) or not names:
        return None
    return Found(False, case.redactor.quote(names[0]))


# --- by the time -------------------------------------------------------------------------------


def _age_s(case: Case) -> float | None:
    """How long ago `created` is, of the first signature by a known key that has one; negative when it is ahead."""
    ages = [
        case.now_s - signed.given.created for signed in case.signed if signed.key and signed.given.created is not None
    ]
    return ages[0] if ages else None


def _time_zone(case: Case) -> Found | None:
    age_s = _age_s(case)
    if age_s is None or not _ZONE_S - _ZONE_OFF_S_MAX <= abs(age_s) <= _ZONE_S_MAX:
        return None
    halves = round(age_s / _ZONE_S)
    if abs(age_s - halves * _ZONE_S) > _ZONE_OFF_S_MAX:
        return None
    return Found(False, f"created is {abs(halves) / 2:g} h {'behind' if age_s > 0 else 'ahead'}")


def _skew(case: Case) -> Found | None:
    age_s = _age_s(case)
    if age_s is None:
        return None
    proved = _signed(_as_sent)(case) is not None  # then it was the signer who said so
    return Found(proved, f"clock skew {-age_s:.0f} s: created is {-age_s:.0f} s in the future")


def _resent(case: Case) -> Found | None:
    age_s = _age_s(case)
    return None if age_s is None else Found(False, f"{age_s:.0f} s")


def _no_time(case: Case) -> Found | None:
    created = [signed.given.created for signed in case.signed if signed.given.created is not None]
    return Found(False, str(created[0])) if created and created[0] < _YEAR_S else None


def _duration(case: Case) -> Found | None:
    expires = [signed.given.expires for signed in case.signed if signed.given.expires is not None]
    return Found(False, str(expires[0])) if expires and expires[0] < _YEAR_S else None


# --- whether the rest is in order --------------------------------------------------------------


def _as_sent(_case: Case, signed: Signed) -> Iterator[Trial]:
    yield Trial(signed.draft.base())


def _length_of_signature(case: Case) -> Found | None:
    expected = {Algorithm.ED25519: 64, Algorithm.ES256: 64, Algorithm.ES384: 96}
    for signed, key in case.by_known_keys():
        octets = expected.get(key.algorithm)
        if octets is not None and len(signed.signature) != octets:
            return Found(False, f"{len(signed.signature)} bytes, and one by {key.algorithm.value} has {octets}")
    return None


# --- the table ---------------------------------------------------------------------------------

_INVALID: Final = frozenset({Reason.SIGNATURE_INVALID})
_FORM: Final = frozenset({Reason.SIGNATURE_INPUT_MALFORMED, Reason.SIGNATURE_MALFORMED})
_DIGEST: Final = frozenset(
    {Reason.DIGEST_MISMATCH, Reason.DIGEST_MALFORMED, Reason.DIGEST_UNSUPPORTED, Reason.CONTENT_LENGTH_MISMATCH}
)
_COVERAGE: Final = frozenset({Reason.COMPONENT_NOT_COVERED, Reason.BODY_NOT_COVERED})
_TIME: Final = frozenset({Reason.STALE, Reason.CREATED_IN_FUTURE})
_TARGETS: Final = (_trials.scheme, _trials.host, _trials.port, _trials.slash, _trials.mount, _trials.query)


def _of(*reasons: str) -> frozenset[str]:
    return frozenset(reasons)


# In the order in which they are tried: the commonest first, and what is proved stands before what is likely.
HYPOTHESES: Final[tuple[Hypothesis, ...]] = (
    # --- the form of the two fields
    Hypothesis("undefined", _FORM | {Reason.SIGNATURE_MISSING}, _undefined,
        "{said}: a layer under the signer of the client sent the request again, without a signature; the Node client"
        " does that after 408, 429, 500, 502, 503"),
    Hypothesis("cavage", _FORM | {Reason.SIGNATURE_MISSING}, _cavage,
        "the client signs as draft-cavage-http-signatures has it (keyId, headers), and not as RFC 9421"),
    Hypothesis("one_field", _of(Reason.SIGNATURE_MISSING), _one_field,
        "only {said} arrived: something on the way dropped the other of the two fields, or the client sends one"),
    Hypothesis("rust_sdk", _FORM, _repaired(_rust),
        "the form of the Rust SDK: a Signature without label and colons, components without quotes; a policy can allow"
        " it (rust-sdk)"),
    Hypothesis("bare_signature", _FORM, _repaired(_bare), "the signature has no label; write sig1=:...:"),
    Hypothesis("php_sdk", _FORM, _repaired(_php),
        "the form of the PHP SDK: the base64 of the signature is not between colons; write sig1=:...:, or a policy can"
        " allow it (php-sdk)"),
    Hypothesis("base64url", _FORM, _repaired(_base64url),
        "the signature is in base64url, or without padding, and not in base64"),
    Hypothesis("quoted_signature", _FORM, _repaired(_quoted),
        "the signature is in quotes and not between colons; write sig1=:...:"),
    Hypothesis("created_ms", _FORM, _created_ms, "created is in milliseconds; it is in seconds"),
    Hypothesis("created_form", _FORM, _repaired(_created_odd),
        "created is in quotes or has a fraction; it is an integer of seconds"),
    Hypothesis("keyid_case", _FORM, _repaired(_key_id_case), "keyid is written with upper-case letters: keyid=..."),
    Hypothesis("label_case", _FORM, _repaired(_label_case), "the label has upper-case letters: write sig1"),
    Hypothesis("unquoted_components", _FORM, _repaired(_unquoted), "the components are not in double quotes"),
    Hypothesis("labels", _of(Reason.LABELS_DIFFER), _repaired(_labels),
        "the same signature has one label in Signature-Input and another in Signature"),
    # --- the key
    Hypothesis("another_kid", _of(Reason.KEY_UNKNOWN, Reason.KEY_ID_MISSING), _by_another_kid,
        "it was signed with the key whose kid is {said}: keyid has to say so"),
    Hypothesis("near_kid", _of(Reason.KEY_UNKNOWN), _near_kid, "keyid is nearly right: {said}"),
    Hypothesis("url_kid", _of(Reason.KEY_UNKNOWN), _url_kid, "keyid is a URL; it has to be the kid of the JWK"),
    Hypothesis("thumbprint", _of(Reason.KEY_UNKNOWN), _thumbprint,
        "keyid looks like a JWK thumbprint (RFC 7638); it has to be the kid of the JWK"),
    Hypothesis("alg_jose", _of(Reason.ALGORITHM_MISMATCH), _jose_name, "alg is a name of JOSE: {said}"),
    Hypothesis("alg_secret", _of(Reason.ALGORITHM_MISMATCH), _shared_secret,
        "alg is one for shared secrets, and the client has a key pair: {said}"),
    # --- the coverage
    Hypothesis("legacy_digest", _of(Reason.BODY_NOT_COVERED, Reason.COMPONENT_ABSENT, Reason.DIGEST_MISSING),
        _legacy_digest, "there is the old Digest field (RFC 3230), and no Content-Digest (RFC 9530)"),
    Hypothesis("names_upper_case", _COVERAGE | {Reason.COMPONENT_UNSUPPORTED}, _upper_case,
        "{said} is covered: names are in lower case"),
    Hypothesis("names_with_parameters", _COVERAGE, _with_parameters,
        "{said} is covered, which is not the same as the component without parameters"),
    Hypothesis("old_target", _of(Reason.COMPONENT_NOT_COVERED), _old_names,
        '{said} is covered in place of "@target-uri"'),
    Hypothesis("not_covered", _COVERAGE, _missing, "the signature does not cover {said}"),
    # --- the time
    Hypothesis("no_time", _of(Reason.STALE), _no_time, "created={said} is no time of today: the client has no clock"),
    Hypothesis("time_zone", _TIME, _time_zone, "{said}: a clock, theirs or ours, is in the wrong time zone"),
    Hypothesis("clock_skew", _of(Reason.CREATED_IN_FUTURE), _skew, "{said}; set the clock, theirs or ours, by NTP"),
    Hypothesis("resent", _of(Reason.STALE), _resent,
        "the request was sent again {said} after it was signed, by a retry, a queue or a cache; or a clock is wrong"),
    Hypothesis("duration", _of(Reason.EXPIRES_BEFORE_CREATED), _duration,
        "expires={said} is a duration, and has to be a time: created plus that"),
    # --- the signature base
    Hypothesis("field_dropped", _of(Reason.COMPONENT_ABSENT), _signed_without(_trials.dropped),
        "the client sent and signed {said}, which did not arrive: a proxy took it away"),
    Hypothesis("field_absent", _of(Reason.COMPONENT_ABSENT), _signed_without(_trials.absent),
        "the client signed {said}, and did not send it"),
    Hypothesis("repeated_on_purpose", _of(Reason.FIELD_REPEATED), _signed_without(_trials.repeated),
        "the client itself sent {said} more than once, and signed it so"),
    Hypothesis("repeated_on_the_way", _of(Reason.FIELD_REPEATED), _signed_without(_trials.doubled),
        "the client signed {said} once: it was added a second time afterwards, on the way or by the client"),
    # --- the body
    Hypothesis("digest_form", _DIGEST, _digest_form, "the digest is that of the body, but it {said}"),
    Hypothesis("content_length_lies", _of(Reason.CONTENT_LENGTH_MISMATCH), _length_alone,
        "the digest is that of the body received, so Content-Length alone is wrong"),
    Hypothesis("digest_of_bytes", _DIGEST, _digest_of(other_bytes), "the digest is that of {said}"),
    Hypothesis("digest_of_json", _DIGEST, _digest_of(other_json), "the digest is that of {said}"),
    Hypothesis("digest_of_nothing", _DIGEST, _digest_of(nothing), "the digest is that of {said}"),
    Hypothesis("one_digest_wrong", _DIGEST, _one_of_two, "one of the digests is that of the body, and another is not"),
    Hypothesis("length_in_characters", _of(Reason.CONTENT_LENGTH_MISMATCH), _length_in_characters,
        "Content-Length is the number of characters of the body, and not of bytes"),
    Hypothesis("body_changed", _of(Reason.DIGEST_MISMATCH), _likely(_signed(_as_sent)),
        "the signature holds, so the client signed this very Content-Digest: the body was changed after that,"
        " on the way or by the client, or the digest is of something else"),
    # --- the curve
    Hypothesis("scheme", _INVALID, _signed(_trials.targets(_trials.scheme)),
        "the client signed {said}: has base_url the scheme that clients use?"),
    Hypothesis("host", _INVALID, _signed(_trials.targets(_trials.host)),
        "the client signed {said}: has base_url the host that clients use?"),
    Hypothesis("port", _INVALID, _signed(_trials.targets(_trials.port)),
        "the client signed {said}: has base_url the port that clients write?"),
    Hypothesis("trailing_slash", _INVALID, _signed(_trials.targets(_trials.slash)),
        "the client signed {said}: the paths differ in the slash at the end"),
    Hypothesis("dot_segments", _INVALID, _signed(_trials.targets(_trials.dots)),
        "the client signed {said}, and sent dot segments"),
    Hypothesis("mount", _INVALID, _signed(_trials.targets(_trials.mount)),
        "the client signed {said}: has base_url the path that clients use?"),
    Hypothesis("query", _INVALID, _signed(_trials.targets(_trials.query)),
        "the client signed {said}: the queries differ"),
    Hypothesis("percent_encoding", _INVALID, _signed(_trials.targets(_trials.percent)),
        "the client signed {said}: something changed the percent-encoding"),
    Hypothesis("method", _INVALID, _signed(_trials.method), "the client signed the method as {said}"),
    Hypothesis("token", _INVALID, _signed(_trials.token), "the client signed authorization as {said}"),
    Hypothesis("other_key", _INVALID, _signed(_trials.other_key),
        "it was signed with another key of this client, whose kid is {said}"),
    Hypothesis("other_algorithm", _INVALID, _signed(_trials.other_algorithm),
        "it was signed with the right key, by {said}: that is not the alg of its JWK"),
    Hypothesis("signature_encoding", _INVALID, _signed(_trials.encoding), "the signature {said}"),
    Hypothesis("created_twice", _INVALID, _signed(_trials.created_twice),
        "the client signed {said}: it read its clock twice, once for the base and once for the field"),
    Hypothesis("created_ms_signed", _INVALID, _signed(_trials.created_in_ms), "the client signed {said}"),
    Hypothesis("parameter_order", _INVALID, _signed(_trials.parameter_order),
        "the client signed the parameters in another order than it sent them: {said}"),
    Hypothesis("parameter_left_out", _INVALID, _signed(_trials.parameter_left_out),
        "the client signed without a parameter that it sent: {said}"),
    Hypothesis("component_order", _INVALID, _signed(_trials.component_order),
        "the client signed the components in another order than it sent them: {said}"),
    Hypothesis("lines_joined", _INVALID, _signed(_trials.joined),
        "a field arrived more than once, and the client signed {said}"),
    Hypothesis("white_space", _INVALID, _signed(_trials.white_space),
        "the client signed the white space around a value; it is left out (RFC 9421 §2.1)"),
    Hypothesis("base_shape", _INVALID, _signed(_trials.shape), "the client signed a base {said} (RFC 9421 §2.5)"),
    Hypothesis("base_hashed", _INVALID, _signed(_trials.hashed), "the client signed not the base but {said}"),
    Hypothesis("direct", _INVALID, _signed(_trials.targets(_trials.direct)),
        "the client signed {said}: it calls us past the address in base_url"),
    Hypothesis("two_targets", _INVALID, _signed(_trials.targets(_trials.in_pairs(*_TARGETS))),
        "the client signed {said}: is base_url the URL that clients use?"),
    Hypothesis("signature_length", _INVALID, _length_of_signature, "the signature has {said}"),
)  # fmt: skip

# What to do about a refusal for which none of the rows fits: one for each reason.
ADVICE: Final[Mapping[str, str]] = {
    Reason.SIGNATURE_MISSING: "the client does not sign its requests, or a proxy took both fields away",
    Reason.SIGNATURE_INPUT_MALFORMED: "Signature-Input is not written as RFC 9421 §4.1 has it",
    Reason.SIGNATURE_MALFORMED: "Signature is not written as RFC 9421 §4.2 has it: sig1=:base64:",
    Reason.LABELS_DIFFER: "a proxy or a second signer added to one of the fields only",
    Reason.KEY_ID_MISSING: "the client leaves keyid out",
    Reason.KEY_UNKNOWN: "the client has a new key, and its token is bound to the old one; or it uses another's token",
    Reason.TOO_MANY_SIGNATURES: "something signs the request again and again",
    Reason.ALGORITHM_MISMATCH: "the client names an algorithm that its key is not for",
    Reason.COMPONENT_NOT_COVERED: "the client covers less than has to be covered",
    Reason.BODY_NOT_COVERED: "the client does not sign bodies, or one was added on the way",
    Reason.TAG_MISMATCH: "the signature was made for another application",
    Reason.NONCE_MISSING: "the client makes no nonces, and the policy asks for them",
    Reason.CREATED_MISSING: "the client leaves created out",
    Reason.CREATED_IN_FUTURE: "a clock is wrong, theirs or ours",
    Reason.STALE: "a clock is wrong, theirs or ours, or the request was on its way for too long",
    Reason.EXPIRES_BEFORE_CREATED: "the client computes expires from another time than created",
    Reason.EXPIRED: "the client gives its signatures a short life, and the request or a clock was slow",
    Reason.COMPONENT_UNSUPPORTED: "the client covers what no request has, or in a form that is not read here",
    Reason.COMPONENT_REPEATED: "the client lists a component twice",
    Reason.COMPONENT_ABSENT: "a proxy took the field away, or the client signs what it does not send",
    Reason.COMPONENT_VALUE: "the value cannot stand in a signature base: whoever signed it did not follow RFC 9421",
    Reason.FIELD_REPEATED: "a proxy added the field a second time",
    Reason.CONTENT_LENGTH_MISMATCH: "the body was changed on the way, or the client counted another one",
    Reason.DIGEST_MISSING: "the client sends a body without its digest",
    Reason.DIGEST_MALFORMED: "Content-Digest is not written as RFC 9530 has it: sha-512=:base64:",
    Reason.DIGEST_UNSUPPORTED: "the client makes digests by an algorithm that proves nothing any more",
    Reason.DIGEST_MISMATCH: "the body was changed on the way, or the digest is of something else",
    Reason.SIGNATURE_INVALID: "another private key signed than the one whose public half is known here, or a covered"
    " value was changed on the way: have the client print its signature base, and compare it with ours line by line",
    "key_unusable": "the JWK that the token is bound to cannot be used: see the description; the client has to register"
    " another key, or the introspector gives it in another form",
    "nonce_used": "the client sent the same signed request again, or draws the same nonce twice: sign each time",
    "nonce_unsupported": "no port remembers nonces: give the host one (nonces=...), or have the client leave them out",
    "request_repeated": "the client sent the same signed request again, or signed two equal ones within a second: sign"
    " each time, with a nonce; or set allow_identical",
}
