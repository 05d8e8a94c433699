"""The decision: is this request signed as the policy demands, and what exactly does the signature prove?

Everything cheap is looked at before the curve. The order of the checks is that of `Reason`.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, cast

import attrs
from attrs import evolve, field, frozen

from incoming_payments.errors import InvalidValue, MalformedField, SignatureRefused
from incoming_payments.httpsig.algorithms import Algorithm
from incoming_payments.httpsig.base import FIELD_NAME, REQUEST_COMPONENTS, BaseBuilder, Component
from incoming_payments.httpsig.fast import build_base, parse_signature, parse_signature_input, verify_digest
from incoming_payments.httpsig.fields import SignatureInput
from incoming_payments.httpsig.keys import PublicKey
from incoming_payments.httpsig.message import Request
from incoming_payments.httpsig.reasons import Reason
from incoming_payments.httpsig.shapes import Shape, StrictForm, strict_form
from incoming_payments.limits import CLOCK_SKEW_S_MAX, SIGNATURE_AGE_S_MAX, SIGNATURES_MAX

__all__ = ["Evidence", "Policy", "Proof", "Reason", "verify"]

_RANKS: Final = {code: rank for rank, code in enumerate(Reason)}


def _shapes(shapes: Iterable[Shape]) -> frozenset[Shape]:
    return frozenset(shapes)


@frozen(kw_only=True)
class Policy:
    """What a signature has to prove. The default is that of Open Payments: contract section 5.

    `required` names fields (lower case) and derived components that have to be covered in their plain form, without
    parameters; whenever there is a body, `content-digest` has to be covered as well. `created` has to be there, at
    most `max_age_s` seconds in the past and `clock_skew_s` in the future. `tag`, when given, is what a signature's own
    has to be. `shapes` are those of clients that do not write the fields as RFC 9421 §4 has them; they loosen the shape
    of the fields and nothing else. Raises `InvalidValue` for a policy that could not mean anything.

    >>> Policy(required=("@method", "@path"), max_age_s=60).clock_skew_s
    60
    """

    required: tuple[str, ...] = field(default=("@method", "@target-uri", "authorization"))
    max_age_s: int = field(default=SIGNATURE_AGE_S_MAX)
    clock_skew_s: int = field(default=CLOCK_SKEW_S_MAX)
    nonce_required: bool = False
    tag: str | None = None
    shapes: frozenset[Shape] = field(default=frozenset(), converter=_shapes)

    @required.validator
    def _components(self, _: object, required: tuple[str, ...]) -> None:
        if not required:
            raise InvalidValue("required names at least one component", member="required")
        for name in required:
            if name not in REQUEST_COMPONENTS and not FIELD_NAME.fullmatch(name):
                text = f"required names fields in lower case and derived components of a request, not {name!r}"
                raise InvalidValue(text, member="required")

    @max_age_s.validator
    @clock_skew_s.validator
    def _seconds(self, attribute: "attrs.Attribute[int]", seconds: int) -> None:
        if type(seconds) is not int or seconds < (attribute.name == "max_age_s"):
            raise InvalidValue(f"{attribute.name} is a whole number of seconds", member=attribute.name)

    @shapes.validator
    def _known(self, _: object, shapes: frozenset[Shape]) -> None:
        if not all(isinstance(shape, Shape) for shape in shapes):
            raise InvalidValue(f"shapes are of {', '.join(map(str, Shape))}", member="shapes")


@frozen
class Proof:
    """What a signature proved. Act on this, and never on the header fields again.

    `key_id` is the `kid` of the key that it is by. `signature_input` is what the signer said of it, now proven; the
    most of it is at hand here. Whether `nonce` was used before is for the caller to know: nothing is remembered
    here. `base` is the signature base: what was signed, whatever the signature looks like. Two ECDSA or PSS signatures
    over the same have the same one.
    """

    key_id: str
    algorithm: Algorithm
    signature_input: SignatureInput
    base: bytes = field(repr=False)  # with the access token in it

    @property
    def components(self) -> tuple[Component, ...]:
        """What is covered, in the order signed."""
        return self.signature_input.coverage.components

    @property
    def created(self) -> datetime:
        """When the signature was made, in UTC."""
        return datetime.fromtimestamp(cast("int", self.signature_input.created), UTC)

    @property
    def expires(self) -> datetime | None:
        """When the signer took it back, in UTC; None: never said so."""
        expires = self.signature_input.expires
        return None if expires is None else datetime.fromtimestamp(expires, UTC)

    @property
    def label(self) -> str:
        """The signature's label, which carries no meaning."""
        return self.signature_input.label

    @property
    def nonce(self) -> str | None:
        """What is unique to this signature, when the signer gave something."""
        return self.signature_input.nonce

    @property
    def tag(self) -> str | None:
        """The application that the signature is for, when the signer said it."""
        return self.signature_input.tag


def _immutable(keys: Mapping[str, PublicKey]) -> Mapping[str, PublicKey]:
    return MappingProxyType(dict(keys))


@frozen
class Evidence:
    """The arguments of one call of `verify`, kept so that a refusal can be diagnosed later."""

    request: Request
    keys: Mapping[str, PublicKey] = field(converter=_immutable)
    policy: Policy
    now: datetime


# A signature by a known key that has passed all checks but the last two, body and curve; with its base
_Candidate = tuple[SignatureInput, PublicKey, bytes, bytes]


def verify(request: Request, keys: Mapping[str, PublicKey], *, policy: Policy, now: datetime) -> Proof:
    """What the signatures of `request` prove, when one of them is good under `policy`. RFC 9421 §3.2.

    `keys` are those that may have signed, by `kid`; a signature's `keyid` has to be one of them to the letter. `now` is
    the time, with its zone. One good signature is enough, and labels carry no meaning; but at most
    `limits.SIGNATURES_MAX` by these keys are looked at.

    The body is checked against `Content-Digest` here, whenever there is a body or such a field. `expires` gets no
    allowance for skew, because it is the signer's own wish.

    Raises `SignatureRefused` with a `Reason`, and nothing else whatever the request holds; `InvalidValue` when `now`
    has no zone.

    >>> from datetime import timedelta
    >>> from incoming_payments.httpsig import PrivateKey, sign
    >>> key, now = PrivateKey.generate_ed25519("key-1"), datetime(2030, 1, 1, tzinfo=UTC)
    >>> request = sign(Request("GET", "https://ase.example/", (("Authorization", "GNAP t"),)), key, created=now)
    >>> verify(request, {"key-1": key.public_key()}, policy=Policy(), now=now + timedelta(seconds=2)).key_id
    'key-1'
    >>> verify(request, {"key-1": key.public_key()}, policy=Policy(), now=now + timedelta(hours=1))
    Traceback (most recent call last):
    ...
    incoming_payments.errors.SignatureRefused: created is 3600 s ago, and at most 300 are allowed: sign each time
    """
    if now.utcoffset() is None:
        raise InvalidValue("now needs a time zone", member="now")
    time_s = now.timestamp()
    builder = BaseBuilder(request)
    candidates: list[_Candidate] = []
    refusals: list[SignatureRefused] = []
    for given, signature, key in _by_known_keys(request, keys, policy):
        try:
            candidates.append(_admit(request, given, signature, key, policy, time_s, builder))
        except SignatureRefused as refusal:
            refusals.append(refusal)
    if not candidates:
        raise max(refusals, key=lambda refusal: _RANKS[Reason(refusal.code)])
    _check_body(request)
    for given, key, signature, base in candidates:
        if key.verify(signature, base):
            return Proof(key.kid, key.algorithm, given, base)
    raise SignatureRefused(
        Reason.SIGNATURE_INVALID,
        "the signature does not fit the key and what was received: compare the covered components, above all "
        "@target-uri, with what was signed",
    )


def _by_known_keys(
    request: Request, keys: Mapping[str, PublicKey], policy: Policy
) -> list[tuple[SignatureInput, bytes, PublicKey]]:
    """The signatures that say they are by one of `keys`; at least one."""
    inputs, signatures = _read_fields(request, policy)
    known = []
    for label, given in inputs.items():
        key_id = given.key_id
        key = None if key_id is None else keys.get(key_id)
        # Contract section 5: `keyid` equals the `kid`, also when the mapping would have it otherwise.
        if key is not None and key.kid == key_id:
            known.append((given, signatures[label], key))
    if not known:
        if all(given.key_id is None for given in inputs.values()):
            raise SignatureRefused(Reason.KEY_ID_MISSING, "name the key: keyid is the kid of your JWK")
        raise SignatureRefused(Reason.KEY_UNKNOWN, "keyid is not the kid of any key that this client has")
    if len(known) > SIGNATURES_MAX:
        text = f"at most {SIGNATURES_MAX} signatures by known keys are looked at: send fewer"
        raise SignatureRefused(Reason.TOO_MANY_SIGNATURES, text)
    return known


def _read_fields(request: Request, policy: Policy) -> tuple[dict[str, SignatureInput], dict[str, bytes]]:
    input_lines, signature_lines = request.fields.get("signature-input"), request.fields.get("signature")
    if not input_lines or not signature_lines:
        raise SignatureRefused(
            Reason.SIGNATURE_MISSING, "sign the request: it needs the fields Signature-Input and Signature"
        )
    shaped = _of_shape(policy.shapes, input_lines, signature_lines) if policy.shapes else None
    if shaped:
        input_lines, signature_lines = (shaped.signature_input,), (shaped.signature,)
    code = Reason.SIGNATURE_INPUT_MALFORMED
    try:
        inputs = parse_signature_input(input_lines)
        code = Reason.SIGNATURE_MALFORMED
        signatures = parse_signature(signature_lines)
    except MalformedField as error:
        raise SignatureRefused(code, error.description, **error.details) from error
    if inputs.keys() != signatures.keys():  # RFC 9421 §4: a label in one field only is an error
        raise SignatureRefused(
            Reason.LABELS_DIFFER, "Signature-Input and Signature have to have the same labels (RFC 9421 §4)"
        )
    if not inputs:
        raise SignatureRefused(Reason.SIGNATURE_MISSING, "sign the request: the signature fields are empty")
    if shaped:
        inputs = {label: as_signed(shaped, given) for label, given in inputs.items()}
    return inputs, signatures


def as_signed(form: StrictForm, given: SignatureInput) -> SignatureInput:
    """What was read of a strict form, with the text that is signed: the list of components in it may be another."""
    params = form.signature_params(given.coverage.inner_list, given.signature_params)
    return evolve(given, signature_params=params)


def _of_shape(shapes: Iterable[Shape], input_lines: Sequence[str], signature_lines: Sequence[str]) -> StrictForm | None:
    forms = [strict_form(shape, input_lines, signature_lines) for shape in shapes]
    return next(filter(None, forms), None)  # no two shapes are alike, and none is strict


def _admit(
    request: Request,
    given: SignatureInput,
    signature: bytes,
    key: PublicKey,
    policy: Policy,
    time_s: float,
    builder: BaseBuilder,
) -> _Candidate:
    """All checks of one signature that cost little, in the order of `Reason`."""
    alg = given.alg
    if alg is not None and alg != key.algorithm.registered:
        text = "alg is not what the key is for; leave it out, the JWK decides (contract section 5)"
        raise SignatureRefused(Reason.ALGORITHM_MISMATCH, text)
    size = len(request.body)
    _check_coverage(given, policy, has_body=size > 0)
    _check_times(given, policy, time_s)
    try:
        base = build_base(builder, given.coverage, given.signature_params)
    except MalformedField as error:
        raise SignatureRefused(error.code, error.description) from error
    if "content-length" in given.coverage.names and request.values("content-length")[0].strip(" \t") != str(size):
        text = f"Content-Length is not the {size} bytes that were received"
        raise SignatureRefused(Reason.CONTENT_LENGTH_MISMATCH, text)
    return given, key, signature, base


def _check_coverage(given: SignatureInput, policy: Policy, *, has_body: bool) -> None:
    covered = given.coverage.plain
    for name in policy.required:
        if name not in covered:
            text = f'cover "{name}", without parameters'
            raise SignatureRefused(Reason.COMPONENT_NOT_COVERED, text, component=name)
    if has_body and "content-digest" not in covered:
        text = 'cover "content-digest", without parameters: there is a body (contract section 5)'
        raise SignatureRefused(Reason.BODY_NOT_COVERED, text, component="content-digest")
    if policy.tag is not None and given.tag != policy.tag:
        raise SignatureRefused(Reason.TAG_MISMATCH, f"give the signature the tag {policy.tag!r}")
    if policy.nonce_required and not given.nonce:
        raise SignatureRefused(Reason.NONCE_MISSING, "give the signature a nonce, a new one each time")


def _check_times(given: SignatureInput, policy: Policy, time_s: float) -> None:
    created, expires = given.created, given.expires
    if created is None:
        raise SignatureRefused(Reason.CREATED_MISSING, "say when the signature was made: created=<POSIX time>")
    age_s = time_s - created
    if -age_s > policy.clock_skew_s:
        text = f"created is {-age_s:.0f} s ahead of our clock, and at most {policy.clock_skew_s} are allowed"
        raise SignatureRefused(Reason.CREATED_IN_FUTURE, f"{text}: set the clock", age_s=age_s)
    if age_s > policy.max_age_s:
        text = f"created is {age_s:.0f} s ago, and at most {policy.max_age_s} are allowed: sign each time"
        raise SignatureRefused(Reason.STALE, text, age_s=age_s)
    if expires is not None:
        if expires <= created:
            raise SignatureRefused(Reason.EXPIRES_BEFORE_CREATED, "expires has to be later than created")
        if time_s > expires:
            raise SignatureRefused(Reason.EXPIRED, f"expires passed {time_s - expires:.0f} s ago: sign anew")


def _check_body(request: Request) -> None:
    # A digest that is there is checked even when there is no body: a field that lies is not passed on.
    digests = request.fields.get("content-digest", ())
    if digests or request.body:
        verify_digest(digests, request.body)
