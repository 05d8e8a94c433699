"""Sign requests, for clients, tools and tests."""

from collections.abc import Sequence
from datetime import datetime

import http_sf
from attrs import evolve

from incoming_payments.errors import InvalidValue
from incoming_payments.httpsig.base import SF_KEY, BaseBuilder, Component, Coverage, serialise_parameters
from incoming_payments.httpsig.digest import DigestAlgorithm, content_digest
from incoming_payments.httpsig.fields import parse_signature, parse_signature_input
from incoming_payments.httpsig.keys import PrivateKey
from incoming_payments.httpsig.message import RequestMessage


def sign(
    request: RequestMessage,
    key: PrivateKey,
    *,
    created: datetime | int,
    components: Sequence[Component | str] | None = None,
    also: Sequence[Component | str] = (),
    label: str = "sig1",
    expires: datetime | int | None = None,
    nonce: str | None = None,
    tag: str | None = None,
    alg_param: bool = False,
    digest: DigestAlgorithm | None = "sha-512",
) -> RequestMessage:
    """Return `request` with a signature, in the fields `Signature-Input` and `Signature` after its other header fields.

    If the request has a body, `sign` sets `Content-Digest` with the algorithm `digest`, and replaces an existing field.
    If `digest` is None, `sign` does not change `Content-Digest`. It changes no other field. `created` and `expires` are
    POSIX times in seconds, or datetimes with a time zone. Fractions are dropped. If `alg_param` is true, the signature
    has the `alg` parameter.

    By default, `components` are the components that Open Payments clients cover: `@method`, `@target-uri` and, if
    present, `authorization`. If the request has a body, `content-digest`, `content-length` and `content-type` are
    added, if present. `also` names further components.

    Raises `InvalidValue` when the label is malformed or in use, a time has no zone, or the key's algorithm has no
    registered name for `alg`. Raises `MalformedField` when a component or a parameter cannot be signed.

    >>> key = PrivateKey.generate_ed25519("key-1")
    >>> signed = sign(RequestMessage("GET", "https://ase.example/pay", ()), key, created=1_700_000_000)
    >>> signed.values("signature-input")
    ('sig1=("@method" "@target-uri");keyid="key-1";created=1700000000',)
    """
    inputs, signatures = request.values("signature-input"), request.values("signature")
    _check_key(key)
    labels = {*parse_signature_input(inputs), *parse_signature(signatures)}
    if not SF_KEY.fullmatch(label) or label in labels:
        text = (
            "label must consist of lower case letters, digits and _-.* (RFC 9651 §3.1.2), and must not be the "
            "label of another signature"
        )
        raise InvalidValue(text, member="label")
    if request.body and digest is not None:
        others = tuple(header for header in request.headers if header[0].lower() != "content-digest")
        request = evolve(request, headers=(*others, ("Content-Digest", content_digest(request.body, digest))))
    chosen = default_components(request) if components is None else components
    coverage = Coverage(tuple([one if isinstance(one, Component) else Component(one) for one in (*chosen, *also)]))
    alg = key.algorithm.registered if alg_param else None
    if alg_param and alg is None:
        text = (
            f"{key.algorithm.value} has no registered name for the alg parameter (RFC 9421 §6.2): leave out alg_param"
        )
        raise InvalidValue(text, member="alg_param")
    times = {"created": _posix_time(created, "created"), "expires": _posix_time(expires, "expires")}
    given = {"keyid": key.kid, **times, "nonce": nonce, "alg": alg, "tag": tag}
    parameters = tuple([(name, value) for name, value in given.items() if value is not None])
    signature_params = coverage.inner_list + serialise_parameters(parameters)
    signature_input = f"{label}={signature_params}"
    signature = key.sign(BaseBuilder(request).build(coverage, signature_params))
    parse_signature_input([signature_input])  # refuse a field that a receiver would refuse
    fields = ("Signature-Input", signature_input), ("Signature", f"{label}={http_sf.ser(signature)}")
    return evolve(request, headers=(*request.headers, *fields))


def default_components(request: RequestMessage) -> tuple[str, ...]:
    """Return the names of the components that `sign` covers by default, once `request` has a `Content-Digest`."""
    of_body = ("content-digest", "content-length", "content-type") if request.body else ()
    return "@method", "@target-uri", *(name for name in ("authorization", *of_body) if request.values(name))


def _check_key(key: object) -> None:
    if not isinstance(key, PrivateKey):
        text = (
            f"key must be a PrivateKey, not {type(key).__name__}: load the key with PrivateKey.from_pem or "
            "load_private_jwk"
        )
        raise InvalidValue(text, member="key")


def _posix_time(time: datetime | int | None, member: str) -> int | None:
    if not isinstance(time, datetime):
        return time
    if time.utcoffset() is None:
        raise InvalidValue(f"{member} has no time zone: pass a datetime with tzinfo, such as UTC", member=member)
    return int(time.timestamp())
