"""Diagnosis of a refused signature, for the log of a host and never for the client.

For each known mistake of clients, `explain` builds the signature base with this mistake, and checks whether the
signature is valid for this base. Only hosts import this package.
"""

from attrs import frozen

from incoming_payments.errors import SignatureRefused
from incoming_payments.httpsig.codes import Code
from incoming_payments.httpsig.explain._case import Case, Cause, ReadSignature, open_case
from incoming_payments.httpsig.explain._hypotheses import HYPOTHESES, Hypothesis, find_causes
from incoming_payments.httpsig.verify import Evidence
from incoming_payments.limits import EXPLAIN_CHARS_MAX, EXPLAIN_VALUE_CHARS_MAX

__all__ = ["HYPOTHESES", "Cause", "Diagnosis", "Hypothesis", "explain"]


@frozen
class Diagnosis:
    """The reasons for a refusal. `str(diagnosis)` is fit for a log: printable ASCII, bounded, and without secrets."""

    code: str
    causes: tuple[Cause, ...]  # at least one cause, with the proved causes first
    text: str

    def __str__(self) -> str:
        return self.text


def explain(refusal: SignatureRefused, evidence: Evidence) -> Diagnosis:
    """Return the reasons why `verify`, or a rule of the host, refused the request in `evidence`.

    At most `limits.EXPLAIN_VERIFICATIONS_MAX` trials run. Raises no exception for any content of the request.

    >>> from datetime import UTC, datetime
    >>> from incoming_payments.httpsig import Policy, RequestMessage
    >>> request = RequestMessage("GET", "https://ase.example/pay", (("Signature", "undefined"),))
    >>> evidence = Evidence(request, {}, Policy(), datetime(2030, 1, 1, tzinfo=UTC))
    >>> print(explain(SignatureRefused("signature_missing", "the request is not signed"), evidence).causes[0])
    likely: Signature is the text undefined: the HTTP client repeated the request without a new signature
    """
    cause = refusal.__cause__  # the refusal by `verify`, if its caller has replaced it
    case = open_case(evidence, cause.code if isinstance(cause, SignatureRefused) else refusal.code)
    causes, is_complete = find_causes(case)
    if not causes:
        is_of_verify = refusal.code in set(Code)
        advice = "compare this signature base with that of the client" if is_of_verify else "see the reason above"
        causes = [Cause("unknown", False, f"no known mistake explains the refusal: {advice}")]
    description = case.redactor.show(refusal.description.replace("§", "section "), 4 * EXPLAIN_VALUE_CHARS_MAX)
    lines = [f"signature refused, {case.redactor.show(refusal.code)}: {description}"]
    lines += [f"  {cause}" for cause in causes]
    for one in case.signatures:
        lines += [case.redactor.mask(line) for line in _signature_lines(case, one)]
    if not case.signatures:
        lines.append("  no signature could be read")
    if not is_complete:
        lines.append("  there were too many possible mistakes to try all of them")
    text = "\n".join(lines)
    if len(text) > EXPLAIN_CHARS_MAX:
        text = f"{text[:EXPLAIN_CHARS_MAX]}... ({len(text) - EXPLAIN_CHARS_MAX} characters left out)"
    return Diagnosis(refusal.code, tuple(causes), text)


def _signature_lines(case: Case, one: ReadSignature) -> list[str]:
    show, given = case.redactor, one.given
    age = "without created"
    if given.created is not None:
        age_s = case.evidence.now.timestamp() - given.created
        age = f"made {abs(age_s):.0f} s {'ago' if age_s >= 0 else 'ahead of our clock'}"
    holds = "this signature could not be verified"
    if one.key is not None and not one.draft.missing:
        verb = "is" if one.key.verify(one.octets, one.draft.base()) else "is not"
        holds = f"this signature {verb} valid for the base"
    by = "without keyid" if given.key_id is None else f"by keyid {show.quote(given.key_id)}"
    lines = [f"  {show.show(given.label)} {by}, {age}: {holds}. The service built this base:"]
    for component, value in one.draft.lines:
        shown = "<no value>" if value is None else show.value(component, value)
        lines.append(f"    {show.identifier(component)}: {shown}")
    names = " ".join([show.identifier(component) for component in given.components])
    # In this signature base, the component names have no quotes, as the signer sent them.
    if not given.signature_params.startswith(given.coverage.inner_list):
        names = names.replace('"', "")
    return [*lines, f'    "@signature-params": ({names}){show.parameters(given.parameters)}']
