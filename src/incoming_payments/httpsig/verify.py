"""Decide whether a request is signed as the policy requires, and return the facts that the signature proves.

The checks run in the order of `Code`. The cryptographic verification is last, because it costs most.
"""

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, cast

import attrs
from attrs import field, frozen

from incoming_payments.errors import InvalidValue, MalformedField, SignatureRefused
from incoming_payments.httpsig.algorithms import Algorithm
from incoming_payments.httpsig.base import FIELD_NAME, REQUEST_COMPONENTS, BaseBuilder
from incoming_payments.httpsig.codes import Code
from incoming_payments.httpsig.digest import verify_digest
from incoming_payments.httpsig.fast import parse_signature_input
from incoming_payments.httpsig.fields import SignatureInput, parse_signature
from incoming_payments.httpsig.keys import PublicKey
from incoming_payments.httpsig.message import RequestMessage
from incoming_payments.httpsig.shapes import Shape, any_strict_form
from incoming_payments.limits import (
    CLOCK_SKEW_S_DEFAULT,
    SECRET_PIECE_CHARS_MIN,
    SIGNATURE_AGE_S_DEFAULT,
    SIGNATURES_MAX,
)

_RANKS: Final = {code: rank for rank, code in enumerate(Code)}


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(names or ())  # a tuple, because a list is not hashable


def _shapes(shapes: Iterable[Shape]) -> frozenset[Shape]:
    return frozenset(shapes)


@frozen(kw_only=True)
class Policy:
    """The facts that a signature must prove. The default is the policy of Open Payments (spec section 5).

    `required` names fields (in lower case) and derived components that a signature must cover without parameters. If
    the request has a body, the signature must also cover `content-digest`. The signature must have `created`, at most
    `max_age_s` seconds in the past and `clock_skew_s` seconds in the future. If `nonce_required` is true, the signature
    must have a nonce. If `tag` is set, the signature must have that tag. `shapes` lists the deviations from RFC 9421 §4
    that are accepted in the signature fields. All other checks stay the same.

    Raises `InvalidValue` for an invalid argument, for example when `required` is empty, a number of seconds is out of
    range, or a shape is unknown.
    """

    required: tuple[str, ...] = field(default=("@method", "@target-uri", "authorization"), converter=_names)
    max_age_s: int = field(default=SIGNATURE_AGE_S_DEFAULT)
    clock_skew_s: int = field(default=CLOCK_SKEW_S_DEFAULT)
    nonce_required: bool = field(default=False)
    tag: str | None = field(default=None)
    shapes: frozenset[Shape] = field(default=frozenset(), converter=_shapes)

    @required.validator
    def _components(self, _: object, required: tuple[str, ...]) -> None:
        if not required:
            raise InvalidValue("required must name at least one component", member="required")
        for name in required:
            if name not in REQUEST_COMPONENTS and not FIELD_NAME.fullmatch(name):
                text = f"required must name fields in lower case and derived components of a request, not {name!r}"
                raise InvalidValue(text, member="required")

    @max_age_s.validator
    @clock_skew_s.validator
    def _seconds(self, attribute: "attrs.Attribute[int]", seconds: int) -> None:
        least = int(attribute.name == "max_age_s")
        if type(seconds) is not int or seconds < least:
            text = f"{attribute.name} must be a whole number of seconds, at least {least}, not {seconds!r}"
            raise InvalidValue(text, member=attribute.name)

    @nonce_required.validator
    def _is_bool(self, _: object, required: bool) -> None:
        if type(required) is not bool:
            raise InvalidValue("nonce_required must be True or False", member="nonce_required")

    @tag.validator
    def _is_text(self, _: object, tag: object) -> None:
        if not isinstance(tag, str | None):
            raise InvalidValue("tag must be a string, or None for any tag", member="tag")

    @shapes.validator
    def _known(self, _: object, shapes: frozenset[Shape]) -> None:
        if not all(isinstance(shape, Shape) for shape in shapes):
            text = f"shapes must be members of Shape ({', '.join(map(str, Shape))})"
            raise InvalidValue(text, member="shapes")


@frozen
class Proof:
    """The facts that a signature proved. Act on a `Proof`, and never read the signature's header fields again.

    `key_id` is the `kid` of the key that made the signature. `signature_input` has the proven components and
    parameters. `verify` does not record nonces, so the caller must check that the nonce is new. `base` is the signature
    base, the bytes that were signed. Several ECDSA or RSA-PSS signatures over the same base can be valid. So identify a
    repeated request by `base`, and not by its signature.
    """

    key_id: str
    algorithm: Algorithm
    signature_input: SignatureInput
    base: bytes = field(repr=False)  # the signature base holds the access token

    @property
    def created(self) -> datetime:
        """The time of signing, in UTC."""
        return datetime.fromtimestamp(cast("int", self.signature_input.created), UTC)

    @property
    def expires(self) -> datetime | None:
        """The time at which the signature expires, in UTC, or None if the signer gave no such time."""
        expires = self.signature_input.expires
        return None if expires is None else datetime.fromtimestamp(expires, UTC)


def _immutable(keys: Mapping[str, PublicKey]) -> Mapping[str, PublicKey]:
    return MappingProxyType(dict(keys))


@frozen
class Evidence:
    """The arguments of one call of `verify`, kept so that a refusal can be diagnosed later."""

    request: RequestMessage
    keys: Mapping[str, PublicKey] = field(converter=_immutable)
    policy: Policy
    now: datetime


def verify(request: RequestMessage, keys: Mapping[str, PublicKey], *, policy: Policy, now: datetime) -> Proof:
    """Verify the signatures of `request`, and return the facts that a valid signature proves (RFC 9421 §3.2).

    `keys` are the acceptable keys by `kid`. The `keyid` of a signature must be equal to one of these `kid`s. `now` is
    the current time, with a time zone. One valid signature is enough, and labels carry no meaning. A request may have
    at most `limits.SIGNATURES_MAX` signatures by these keys. A request with a body must have a `Content-Digest`. A
    `Content-Digest` must match the body, even an empty body. Clock skew does not extend `expires`, because the signer
    chose that time.

    Raises `SignatureRefused` with a `Code`, and no other exception for any content of the request. Raises
    `InvalidValue` when `now` has no time zone.

    >>> from datetime import timedelta
    >>> from incoming_payments.httpsig import PrivateKey, sign
    >>> key, now = PrivateKey.generate_ed25519("key-1"), datetime(2030, 1, 1, tzinfo=UTC)
    >>> request = sign(RequestMessage("GET", "https://ase.example/", (("Authorization", "GNAP t"),)), key, created=now)
    >>> verify(request, {"key-1": key.public_key()}, policy=Policy(), now=now + timedelta(seconds=2)).key_id
    'key-1'
    >>> verify(request, {"key-1": key.public_key()}, policy=Policy(), now=now + timedelta(hours=1))
    Traceback (most recent call last):
    ...
    incoming_payments.errors.SignatureRefused: created is 3600 s ago, but at most 300 s are allowed: sign again
    """
    _check_arguments(keys, policy, now)
    time_s = now.timestamp()
    builder = BaseBuilder(request)
    candidates = []
    refusals = []
    for given, signature, key in _by_known_keys(request, keys, policy):
        try:
            base = _check(request, given, key, policy, time_s, builder)
            candidates.append((given, key, signature, base))
        except SignatureRefused as refusal:
            refusals.append(refusal)
    if not candidates:
        raise max(refusals, key=lambda refusal: _RANKS[Code(refusal.code)])
    # Check a digest even if there is no body, so that a wrong field does not reach the application.
    digests = request.fields.get("content-digest", ())
    if digests or request.body:
        verify_digest(digests, request.body)
    for given, key, signature, base in candidates:
        if key.verify(signature, base):
            return Proof(key.kid, key.algorithm, given, base)
    text = (
        "the signature does not fit the key and the received request: compare the values of the covered "
        "components, first @target-uri, with the values that you signed (RFC 9421 §3.2)"
    )
    raise SignatureRefused(Code.SIGNATURE_INVALID, text, target_uri=request.target_uri)


def key_ids(request: RequestMessage, policy: Policy) -> tuple[str, ...]:
    """Return the different `keyid` values of the signatures of `request`, for a look-up of the keys.

    These values are not verified. Raises `SignatureRefused` when the signature fields cannot be read, or name more than
    `limits.SIGNATURES_MAX` keys.
    """
    inputs, _ = _read_fields(request, policy)
    found = tuple(dict.fromkeys(given.key_id for given in inputs.values() if given.key_id is not None))
    if len(found) > SIGNATURES_MAX:
        text = f"the request has signatures by more than {SIGNATURES_MAX} keys: send fewer"
        raise SignatureRefused(Code.TOO_MANY_SIGNATURES, text)
    return found


def _check_arguments(keys: object, policy: object, now: object) -> None:
    values = keys.values() if isinstance(keys, Mapping) else [None]
    for key in values:
        if not isinstance(key, PublicKey):
            text = "keys must map each kid to a PublicKey: use load_jwk to load the keys"
            raise InvalidValue(text, member="keys")
    if not isinstance(policy, Policy):
        raise InvalidValue(f"policy must be a Policy, not {type(policy).__name__}", member="policy")
    if not isinstance(now, datetime) or now.utcoffset() is None:
        raise InvalidValue("now has no time zone: pass a datetime with tzinfo, such as UTC", member="now")


def _by_known_keys(
    request: RequestMessage, keys: Mapping[str, PublicKey], policy: Policy
) -> list[tuple[SignatureInput, bytes, PublicKey]]:
    """Return the signatures with a `keyid` in `keys`. Raises `SignatureRefused` if there is none."""
    inputs, signatures = _read_fields(request, policy)
    known = []
    for label, given in inputs.items():
        key_id = given.key_id
        key = keys.get(key_id or "")
        # `keyid` must equal the `kid` of the key, even if the mapping has the key under another name (spec section 5).
        if key is not None and key.kid == key_id:
            known.append((given, signatures[label], key))
    if not known:
        if all(given.key_id is None for given in inputs.values()):
            text = "the signature does not name its key: set keyid to the kid of your JWK (RFC 9421 §2.3)"
            raise SignatureRefused(Code.KEY_ID_MISSING, text)
        text = "keyid is not the kid of a known key of this client: set keyid to the kid of your JWK (RFC 9421 §2.3)"
        raise SignatureRefused(Code.KEY_UNKNOWN, text)
    if len(known) > SIGNATURES_MAX:
        text = f"the request has more than {SIGNATURES_MAX} signatures by known keys: send fewer"
        raise SignatureRefused(Code.TOO_MANY_SIGNATURES, text)
    return known


def _read_fields(request: RequestMessage, policy: Policy) -> tuple[dict[str, SignatureInput], dict[str, bytes]]:
    input_lines, signature_lines = request.fields.get("signature-input"), request.fields.get("signature")
    if not input_lines or not signature_lines:
        text = "the request is not signed: add the fields Signature-Input and Signature (RFC 9421 §4)"
        raise SignatureRefused(Code.SIGNATURE_MISSING, text)
    shaped = any_strict_form(policy.shapes, input_lines, signature_lines) if policy.shapes else None
    if shaped:
        input_lines, signature_lines = (shaped.signature_input,), (shaped.signature,)
    code = Code.SIGNATURE_INPUT_MALFORMED
    try:
        inputs = parse_signature_input(input_lines)
        code = Code.SIGNATURE_MALFORMED
        signatures = parse_signature(signature_lines)
    except MalformedField as error:
        raise SignatureRefused(code, error.description, **error.details) from error
    if inputs.keys() != signatures.keys():  # a label that is in only one field is an error (RFC 9421 §4)
        text = "Signature-Input and Signature have different labels: write each label in both fields (RFC 9421 §4)"
        raise SignatureRefused(Code.LABELS_DIFFER, text)
    if not inputs:
        text = "the fields Signature-Input and Signature are empty: sign the request (RFC 9421 §4)"
        raise SignatureRefused(Code.SIGNATURE_MISSING, text)
    if shaped:
        inputs = {label: shaped.as_signed(given) for label, given in inputs.items()}
    return inputs, signatures


def _check(
    request: RequestMessage, given: SignatureInput, key: PublicKey, policy: Policy, time_s: float, builder: BaseBuilder
) -> bytes:
    """Make all cheap checks of a signature, in the order of `Code`, and return its base."""
    alg = given.alg
    if alg is not None and alg != key.algorithm.registered:
        text = "alg is not the algorithm of the key: leave out alg, because the alg of the JWK decides (RFC 9421 §3.2)"
        raise SignatureRefused(Code.ALGORITHM_MISMATCH, text)
    size = len(request.body)
    _check_coverage(given, policy, has_body=size > 0)
    _check_times(given, policy, time_s)
    try:
        base = builder.build(given.coverage, given.signature_params)
    except MalformedField as error:
        raise SignatureRefused(error.code, _without_token(error, request)) from error
    if "content-length" in given.coverage.names and request.fields["content-length"][0].strip(" \t") != str(size):
        text = f"Content-Length does not match the received body of {size} bytes: send the length of the body"
        raise SignatureRefused(Code.CONTENT_LENGTH_MISMATCH, text)
    return base


def _without_token(error: MalformedField, request: RequestMessage) -> str:
    """Return the description of `error`.

    If the name of a component contains a piece of the token, the description does not show the name.
    """
    name, credentials = error.details.get("component"), " ".join(request.values("authorization")).lower()
    if not isinstance(name, str):
        return error.description
    starts = range(max(1, len(name) - SECRET_PIECE_CHARS_MIN + 1))
    is_secret = any(name[at : at + SECRET_PIECE_CHARS_MIN].lower() in credentials for at in starts)
    return error.description.replace(name, "a covered component", 1) if is_secret else error.description


def _check_coverage(given: SignatureInput, policy: Policy, *, has_body: bool) -> None:
    covered = given.coverage.plain
    is_body_uncovered = has_body and "content-digest" not in covered
    missing = () if covered.issuperset(policy.required) else [name for name in policy.required if name not in covered]
    if missing:
        names = ", ".join(dict.fromkeys([*missing, "content-digest"] if is_body_uncovered else missing))
        text = f"the signature does not cover {names}: add these components, without parameters (RFC 9421 §2)"
        raise SignatureRefused(Code.COMPONENT_NOT_COVERED, text, component=names)
    if is_body_uncovered:
        text = (
            'the request has a body, but the signature does not cover "content-digest": '
            "add this component, without parameters (RFC 9421 §7.2.8)"
        )
        raise SignatureRefused(Code.BODY_NOT_COVERED, text, component="content-digest")
    if policy.tag is not None and given.tag != policy.tag:
        text = f"the tag of the signature is not {policy.tag!r}: sign with this tag (RFC 9421 §2.3)"
        raise SignatureRefused(Code.TAG_MISMATCH, text)
    if policy.nonce_required and not given.nonce:
        text = "the signature has no nonce: sign each request with a new nonce (RFC 9421 §2.3)"
        raise SignatureRefused(Code.NONCE_MISSING, text)


def _check_times(given: SignatureInput, policy: Policy, time_s: float) -> None:
    created, expires = given.created, given.expires
    if created is None:
        text = "the signature has no created time: add created=<POSIX time in seconds> (RFC 9421 §2.3)"
        raise SignatureRefused(Code.CREATED_MISSING, text)
    age_s = time_s - created
    if -age_s > policy.clock_skew_s:
        ahead_s = math.ceil(-age_s)
        text = f"created is {ahead_s} s ahead of our clock, but at most {policy.clock_skew_s} s are allowed"
        raise SignatureRefused(Code.CREATED_IN_FUTURE, f"{text}: set your clock", age_s=-ahead_s)
    if age_s > policy.max_age_s:
        text = f"created is {math.ceil(age_s)} s ago, but at most {policy.max_age_s} s are allowed: sign again"
        raise SignatureRefused(Code.STALE, text, age_s=math.ceil(age_s))
    if expires is not None:
        if expires <= created:
            text = "expires is not later than created: set a later time (RFC 9421 §2.3)"
            raise SignatureRefused(Code.EXPIRES_BEFORE_CREATED, text)
        if time_s > expires:
            text = f"the signature expired {math.ceil(time_s - expires)} s ago: sign again (RFC 9421 §2.3)"
            raise SignatureRefused(Code.EXPIRED, text)
