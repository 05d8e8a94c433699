"""Why a request was refused, in words for the log of whoever refused it: what a client is never told.

`explain` rebuilds the signature base with one mistake after the other made on purpose, and sees whether the signature
holds then. What it says is safe in a log: no secret is in it, nothing that could break a line, and no more than
`limits.EXPLAIN_CHARS_MAX` characters.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve, field, frozen

from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig._case import Case, Line, Signed, open_case
from incoming_payments.httpsig._hypotheses import ADVICE, HYPOTHESES
from incoming_payments.httpsig._redaction import Redactor
from incoming_payments.httpsig.keys import PublicKey
from incoming_payments.httpsig.message import Request
from incoming_payments.httpsig.reasons import Reason
from incoming_payments.httpsig.verify import Policy, verify
from incoming_payments.limits import (
    EXPLAIN_CAUSES_MAX,
    EXPLAIN_CHARS_MAX,
    EXPLAIN_VALUE_CHARS_MAX,
    EXPLAIN_VERIFICATIONS_MAX,
)

_SIGNATURE_FIELDS: Final = frozenset({"signature-input", "signature"})
_FIELD_LINES_MAX: Final = 4  # shown of a field that could not be read
_DESCRIPTION_CHARS_MAX: Final = 4 * EXPLAIN_VALUE_CHARS_MAX  # of a refusal: our own words


@frozen
class Cause:
    """A cause of a refusal. `proved`: with this mistake made on purpose the signature holds, or the digest matches.

    `name` is stable, and `text` is for people.
    """

    name: str
    proved: bool
    text: str

    def __str__(self) -> str:
        return f"{'proved' if self.proved else 'likely'}: {self.text}"


@frozen
class ExplainedSignature:
    """One signature of a refused request, as it may stand in a log.

    `key_id` is what it says, and None when it says nothing; `rule` is the reason for which this one was refused, None
    when it was not. `base` is the signature base as it was built here, its values redacted, a line each; where a value
    could not be had the line says why. `holds` is whether the key signed this base; None when that could not be tried.
    `age_s` is how many seconds ago it says that it was made, negative when that is ahead of our clock.
    """

    label: str
    key_id: str | None
    rule: str | None
    base: tuple[str, ...]
    holds: bool | None
    age_s: float | None


@frozen
class Report:
    """Why a request was refused. `str(report)`, which is `text`, goes into a log as it is.

    `reason` is that of the refusal, and None when the request is signed as it should be. `causes` are the likeliest,
    best first: those that are proved before those that are not. There is always one for a refusal. `signatures` are
    those that could be read, at most `limits.SIGNATURES_MAX`.
    """

    reason: str | None
    description: str
    causes: tuple[Cause, ...]
    signatures: tuple[ExplainedSignature, ...]
    text: str = field(repr=False)

    def __str__(self) -> str:
        return self.text


def explain(
    request: Request,
    keys: Mapping[str, PublicKey],
    *,
    policy: Policy,
    now: datetime,
    refusal: SignatureRefused | None = None,
) -> Report:
    """Why `verify` refuses `request`, given the same arguments; for a log, and never for the client.

    `refusal` is what was raised; without it the request is verified once more. It may have another reason than those
    of `Reason`, as a host has rules of its own. At most `limits.EXPLAIN_VERIFICATIONS_MAX` signatures are computed, and
    some more for a request that has several.

    Raises `InvalidValue` when `now` has no zone, as `verify` does, and nothing else whatever the request holds.

    >>> from datetime import UTC
    >>> from incoming_payments.httpsig import PrivateKey, sign
    >>> key, now = PrivateKey.generate_ed25519("key-1"), datetime(2030, 1, 1, tzinfo=UTC)
    >>> sent = Request("GET", "http://ase.example/pay", (("Authorization", "GNAP OS9M2PMHKUR64TB8"),))
    >>> received = evolve(sign(sent, key, created=now), target_uri="https://ase.example/pay")
    >>> print(explain(received, {"key-1": key.public_key()}, policy=Policy(), now=now).causes[0])
    proved: the client signed http://ase.example/pay: has base_url the scheme that clients use?
    """
    if now.utcoffset() is None:
        raise InvalidValue("now needs a time zone", member="now")
    refusal = refusal or _refusal(request, keys, policy, now)
    redactor = Redactor(request)
    reason = None if refusal is None else str(refusal.reason)
    description = "it is signed as it should be" if refusal is None else refusal.description
    case = open_case(request, keys, policy, now.timestamp(), reason or "", redactor)
    causes = () if refusal is None else tuple(_causes(case))
    signatures = tuple(_explained(case, signed, _rule(case, signed, refusal, now)) for signed in case.signed)
    shown = redactor.show(_words(description), _DESCRIPTION_CHARS_MAX)
    report = Report(reason, shown, causes, signatures, "")
    return evolve(report, text=_bounded(_lines(case, report)))


def _refusal(request: Request, keys: Mapping[str, PublicKey], policy: Policy, now: datetime) -> SignatureRefused | None:
    try:
        verify(request, keys, policy=policy, now=now)
    except SignatureRefused as refusal:
        return refusal
    return None


def _causes(case: Case) -> Sequence[Cause]:
    """What fits, proved first; one proof by the curve is enough, as a signature holds over one base only."""
    causes: list[Cause] = []
    for row in HYPOTHESES:
        if case.reason in row.reasons and (found := row.look(case)):
            text = row.words.format(said=case.redactor.mask(found.said))
            causes.append(Cause(row.name, found.proved, _words(text)))
            if found.proved and case.reason == Reason.SIGNATURE_INVALID:
                break
    causes.sort(key=lambda cause: not cause.proved)
    if not causes:
        advice = ADVICE.get(case.reason, "a rule of this host: see the description")
        causes.append(Cause("advice", False, _words(advice)))
    return causes[:EXPLAIN_CAUSES_MAX]


def _words(text: str) -> str:
    """Our own words, in ASCII as everything in a report, for logs of any encoding."""
    return text.replace("§", "section ")


def _rule(case: Case, signed: Signed, refusal: SignatureRefused | None, now: datetime) -> str | None:
    """Why this one signature is refused, which is what the request is refused for when it is the only one."""
    if len(case.signed) + case.left_out == 1:
        return None if refusal is None else str(refusal.reason)
    label = signed.given.label
    inputs = f"{label}={signed.draft.params}"
    kept = tuple(header for header in case.request.headers if header[0].lower() not in _SIGNATURE_FIELDS)
    fields = (("Signature-Input", inputs), ("Signature", f"{label}=:{b64encode(signed.signature).decode()}:"))
    alone = _refusal(evolve(case.request, headers=(*kept, *fields)), case.keys, case.policy, now)
    return None if alone is None else str(alone.reason)


def _explained(case: Case, signed: Signed, rule: str | None) -> ExplainedSignature:
    redactor, given = case.redactor, signed.given
    holds = None
    if signed.key is not None and signed.draft.is_complete:
        holds = signed.key.verify(signed.signature, signed.draft.base())
    identifiers = " ".join([redactor.identifier(line.component) for line in signed.draft.lines])
    if not given.signature_params.startswith(given.coverage.inner_list):  # a shape that has no quotes
        identifiers = identifiers.replace('"', "")
    params = f'"@signature-params": ({identifiers}){redactor.parameters(given.parameters)}'
    return ExplainedSignature(
        redactor.show(given.label),
        None if given.key_id is None else redactor.show(given.key_id),
        rule,
        tuple(redactor.mask(line) for line in (*(_line(redactor, line) for line in signed.draft.lines), params)),
        holds,
        None if given.created is None else case.now_s - given.created,
    )


def _line(redactor: Redactor, line: Line) -> str:
    value = f"<{_words(line.problem)}>" if line.value is None else redactor.value(line.component, line.value)
    return f"{redactor.identifier(line.component)}: {value}"


# --- as text -----------------------------------------------------------------------------------


def _lines(case: Case, report: Report) -> list[str]:
    lines = [f"signature refused, {report.reason}: {report.description}" if report.reason else report.description]
    lines += [f"  {cause}" for cause in report.causes]
    for signature in report.signatures:
        lines.append(f"  {_heading(signature)}; the base as we built it:")
        lines += [f"    {line}" for line in signature.base]
    if case.left_out:
        lines.append(f"  and {case.left_out} signatures more")
    if case.is_exhausted:
        lines.append(f"  more than {EXPLAIN_VERIFICATIONS_MAX} hypotheses: not all of them were tried")
    if not report.signatures:
        lines += [f"  {line}" for line in _unread(case)]
    return lines


def _heading(signature: ExplainedSignature) -> str:
    key = "without keyid" if signature.key_id is None else f'by keyid "{signature.key_id}"'
    made = "without created"
    if signature.age_s is not None:
        made = f"made {abs(signature.age_s):.0f} s {'ago' if signature.age_s >= 0 else 'ahead of our clock'}"
    holds = {None: "it could not be tried", True: "it holds over this base", False: "it does not hold over this base"}
    return f"{signature.label} {key}, {made}: {signature.rule or 'nothing is wrong with it'}; {holds[signature.holds]}"


def _unread(case: Case) -> list[str]:
    """What may be shown of fields that could not be read: of `Signature` how long it is, and no more."""
    shown = case.redactor.unread(case.text("signature-input"))
    lengths = [str(len(value)) for value in case.request.values("signature")[:_FIELD_LINES_MAX]]
    return [
        f"Signature-Input: {shown or 'absent or empty'}",
        f"Signature: {' and '.join(lengths)} characters" if lengths else "Signature: absent",
    ]


def _bounded(lines: Sequence[str]) -> str:
    text = "\n".join(lines)
    if len(text) <= EXPLAIN_CHARS_MAX:
        return text
    return f"{text[:EXPLAIN_CHARS_MAX]}... ({len(text) - EXPLAIN_CHARS_MAX} characters left out)"
