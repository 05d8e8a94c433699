"""A refused request taken apart, so that hypotheses about it can be tried: each costs one use of a bounded budget."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import evolve, field, frozen

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig._redaction import Redactor
from incoming_payments.httpsig.base import BaseBuilder, Component
from incoming_payments.httpsig.fields import SignatureInput, parse_signature, parse_signature_input
from incoming_payments.httpsig.keys import PublicKey
from incoming_payments.httpsig.message import Request
from incoming_payments.httpsig.shapes import Shape, strict_form
from incoming_payments.httpsig.verify import Policy, as_signed
from incoming_payments.limits import EXPLAIN_VERIFICATIONS_MAX, HEADER_BYTES_MAX, SIGNATURES_MAX

_PARAMS: Final = '"@signature-params"'  # RFC 9421 §2.5


@frozen
class Line:
    """One line of a signature base; without `value`, `problem` says why there is none."""

    component: Component
    identifier: str
    value: str | None
    problem: str = ""


@frozen
class Draft:
    """A signature base in pieces, so that one can be exchanged for what a client may have signed instead.

    `params` is the text of the last line, RFC 9421 §2.3.
    """

    lines: tuple[Line, ...]
    params: str

    @property
    def is_complete(self) -> bool:
        """Whether each line has a value, as otherwise there is no base."""
        return all(line.value is not None for line in self.lines)

    def pairs(self) -> list[tuple[str, str]]:
        """Identifier and value of each line, the last one included."""
        return [*((line.identifier, line.value or "") for line in self.lines), (_PARAMS, self.params)]

    def base(self) -> bytes:
        """The signature base. RFC 9421 §2.5."""
        return octets("\n".join([f"{identifier}: {value}" for identifier, value in self.pairs()]))

    def with_values(self, values: Mapping[str, str]) -> "Draft":
        """With other values of the components that have these names, and no parameters."""
        return evolve(
            self,
            lines=tuple(
                evolve(line, value=values[line.component.name])
                if line.component.name in values and not line.component.parameters
                else line
                for line in self.lines
            ),
        )

    def of_request(self, request: Request) -> "Draft":
        """With the derived components of another request. Raises `MalformedField` when it has none."""
        builder = BaseBuilder(request)
        return evolve(
            self,
            lines=tuple(
                evolve(line, value=builder.value(line.component))
                if line.value is not None and line.component.name.startswith("@")
                else line
                for line in self.lines
            ),
        )


def octets(text: str) -> bytes:
    """What a client that knows nothing of latin-1 signs."""
    return text.encode("utf-8", "replace")


@frozen
class Signed:
    """One signature of the request: what it says, and the key that it names, if this client has it."""

    given: SignatureInput
    signature: bytes
    key: PublicKey | None
    draft: Draft


@frozen
class Trial:
    """What a client may have signed, and in which words; another signature or key where that is the hypothesis."""

    base: bytes
    said: str = ""
    signature: bytes | None = None
    key: PublicKey | None = None


@frozen
class Case:
    """A refused request: everything that hypotheses look at."""

    request: Request
    keys: Mapping[str, PublicKey]
    policy: Policy
    now_s: float
    reason: str
    redactor: Redactor
    signed: tuple[Signed, ...]  # at most `limits.SIGNATURES_MAX`, those by known keys first
    left_out: int  # signatures that are not among them
    _spent: list[int] = field(factory=lambda: [0])

    def text(self, name: str) -> str:
        """The field `name` as one text, as far as it may be read; empty when it is not there."""
        return ", ".join(self.request.values(name))[:HEADER_BYTES_MAX]

    def by_known_keys(self) -> Iterator[tuple[Signed, PublicKey]]:
        """The signatures whose base could be built and whose key is known."""
        for signed in self.signed:
            if signed.key is not None and signed.draft.is_complete:
                yield signed, signed.key

    def holds(self, key: PublicKey, signature: bytes, base: bytes) -> bool:
        """Whether it is a signature by this key over this base; no when the budget is spent."""
        self._spent[0] += 1
        return self._spent[0] <= EXPLAIN_VERIFICATIONS_MAX and key.verify(signature, base)

    @property
    def is_exhausted(self) -> bool:
        """Whether a hypothesis was not tried because the budget was spent."""
        return self._spent[0] > EXPLAIN_VERIFICATIONS_MAX


def open_case(
    request: Request, keys: Mapping[str, PublicKey], policy: Policy, now_s: float, reason: str, redactor: Redactor
) -> Case:
    """Take the request apart. Raises nothing."""
    inputs, signatures = read_fields(request.values("signature-input"), request.values("signature"), policy.shapes)
    both = sorted(
        (label for label in inputs if label in signatures), key=lambda label: inputs[label].key_id not in keys
    )
    builder = Drafter(request)
    signed = tuple(
        Signed(inputs[label], signatures[label], keys.get(inputs[label].key_id or ""), builder.draft(inputs[label]))
        for label in both[:SIGNATURES_MAX]
    )
    return Case(request, keys, policy, now_s, reason, redactor, signed, len(both) - len(signed))


def read_fields(
    inputs: Sequence[str], signatures: Sequence[str], shapes: Iterable[Shape] = ()
) -> tuple[dict[str, SignatureInput], dict[str, bytes]]:
    """What can be read of the two fields, in a strict form or in one of the `shapes`: nothing unless both can."""
    try:
        for shape in shapes:
            if form := strict_form(shape, inputs, signatures):
                given = parse_signature_input([form.signature_input])
                signed = {label: as_signed(form, one) for label, one in given.items()}
                return signed, parse_signature([form.signature])
        return parse_signature_input(inputs), parse_signature(signatures)
    except MalformedField:
        return {}, {}


class Drafter:
    """Makes the drafts of one request, each value once."""

    def __init__(self, request: Request) -> None:
        self._builder = BaseBuilder(request)
        self._lines: dict[tuple[str, str], Line] = {}

    def draft(self, given: SignatureInput, params: str | None = None) -> Draft:
        """The base of one signature, in pieces; `params` stands in place of the text of its last line."""
        lines = tuple([self._line(component) for component in given.components])
        return Draft(lines, params or given.signature_params)

    def _line(self, component: Component) -> Line:
        key = component.name, repr(component.parameters)
        if key not in self._lines:
            identifier, value, problem = component.identifier, None, ""
            try:
                value = self._builder.value(component)
            except MalformedField as error:
                problem = error.description
            self._lines[key] = Line(component, identifier, value, problem)
        return self._lines[key]
