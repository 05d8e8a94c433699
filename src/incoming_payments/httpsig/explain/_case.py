"""The parts of a refused request: its signatures, and the lines of the signature base of each signature."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from attrs import evolve, frozen

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig.base import BaseBuilder, Component
from incoming_payments.httpsig.explain._redaction import Redactor
from incoming_payments.httpsig.fast import parse_signature_input
from incoming_payments.httpsig.fields import SignatureInput, parse_signature
from incoming_payments.httpsig.keys import PublicKey
from incoming_payments.httpsig.message import RequestMessage
from incoming_payments.httpsig.shapes import StrictForm, any_strict_form
from incoming_payments.httpsig.verify import Evidence
from incoming_payments.limits import HEADER_BYTES_MAX, SIGNATURES_MAX


@frozen
class Cause:
    """A cause of a refusal."""

    name: str  # a stable name for programs
    proved: bool  # whether a trial has shown that the client made this mistake
    text: str  # the description for people

    def __str__(self) -> str:
        return f"{'proved' if self.proved else 'likely'}: {self.text}"


@frozen
class Trial:
    """A possible cause of the refusal."""

    said: str = ""  # the words to insert into the text of the hypothesis
    # a function that returns whether the cause is proved, or None for a cause that is only likely
    holds: Callable[[], bool] | None = None


@frozen
class Draft:
    """A signature base whose values can be replaced (RFC 9421 §2.5)."""

    lines: tuple[tuple[Component, str | None], ...]  # each component, with its value or None
    params: str  # the value of `@signature-params`, the last line

    @property
    def missing(self) -> list[str]:
        """The names of the components that have no value. A draft with such a component has no signature base."""
        return [component.name for component, value in self.lines if value is None]

    def base(self) -> bytes:
        """Return the signature base."""
        lines = [f"{component.identifier}: {value}" for component, value in self.lines]
        return "\n".join([*lines, f'"@signature-params": {self.params}']).encode("utf-8", "replace")

    def with_values(self, values: Mapping[str, str]) -> "Draft":
        """Return a draft in which the components without parameters have `values`, by component name."""
        return self._with(lambda component: None if component.parameters else values.get(component.name))

    def of_target(self, request: RequestMessage) -> "Draft":
        """Return a draft with the derived components of `request`."""
        builder = BaseBuilder(request)
        try:
            return self._with(lambda one: builder.value(one) if one.name.startswith("@") else None)
        except MalformedField:  # the target URI is not valid, but a client may have signed it
            return self.with_values({"@target-uri": request.target_uri})

    def _with(self, other: Callable[[Component], str | None]) -> "Draft":
        lines = [(component, other(component), value) for component, value in self.lines]
        return evolve(self, lines=tuple([(one, old if new is None else new) for one, new, old in lines]))


@frozen
class ReadSignature:
    """One signature of the request, its base, and the key that its `keyid` names, if the client has that key."""

    given: SignatureInput
    octets: bytes
    key: PublicKey | None
    draft: Draft

    def made_over(self, base: bytes, said: str = "", key: PublicKey | None = None, octets: bytes = b"") -> Trial:
        """Return the trial that tests whether the key signed `base`. If there is no key, the trial cannot be proved."""
        signer = key or self.key
        return Trial(said, partial(signer.verify, octets or self.octets, base) if signer else None)


@frozen
class Case:
    """The parts of a refused request that the hypotheses use."""

    evidence: Evidence
    code: str
    redactor: Redactor
    signatures: tuple[ReadSignature, ...]  # at most `limits.SIGNATURES_MAX` signatures, with those by known keys first

    def text(self, name: str) -> str:
        """Return all lines of the field `name` as one text of bounded length. An absent field gives an empty text."""
        return ", ".join(self.evidence.request.values(name))[:HEADER_BYTES_MAX]

    def names(self, names: Sequence[str]) -> str:
        """Return a few names from the request in quotes."""
        return ", ".join([self.redactor.quote(name) for name in names[:4]])


def open_case(evidence: Evidence, code: str) -> Case:
    """Split the request into its parts. Raises no exception."""
    request, shapes = evidence.request, evidence.policy.shapes
    lines = request.values("signature-input"), request.values("signature")
    form = any_strict_form(shapes, *lines) or StrictForm(", ".join(lines[0]), ", ".join(lines[1]), None)
    read = read_signatures(evidence, form)
    return Case(evidence, code, Redactor(request), tuple(read))


def read_signatures(evidence: Evidence, form: StrictForm) -> list[ReadSignature]:
    """Return the signatures, with those by known keys first. If a field is unreadable, the list is empty."""
    try:
        given, octets_of = parse_signature_input([form.signature_input]), parse_signature([form.signature])
    except MalformedField:
        return []
    both = [form.as_signed(one) for label, one in given.items() if label in octets_of]
    both.sort(key=lambda one: one.key_id not in evidence.keys)
    builder = BaseBuilder(evidence.request)
    return [
        ReadSignature(one, octets_of[one.label], evidence.keys.get(one.key_id or ""), _draft(builder, one))
        for one in both[:SIGNATURES_MAX]
    ]


def _draft(builder: BaseBuilder, given: SignatureInput) -> Draft:
    lines: list[tuple[Component, str | None]] = []
    for component in given.components:
        try:
            lines.append((component, builder.value(component)))
        except MalformedField:
            lines.append((component, None))
    return Draft(tuple(lines), given.signature_params)
