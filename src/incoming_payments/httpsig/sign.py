"""Signing: the other half, for clients, tools and tests. What it makes, `verify` takes."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import http_sf
from attrs import evolve

from incoming_payments.errors import InvalidValue
from incoming_payments.httpsig.base import SF_KEY, Component, Parameters, serialise_parameters, signature_base
from incoming_payments.httpsig.digest import DigestAlgorithm, content_digest
from incoming_payments.httpsig.fields import parse_signature, parse_signature_input
from incoming_payments.httpsig.keys import PrivateKey
from incoming_payments.httpsig.message import Request

# What npm @interledger/open-payments covers: always; when there; and when there is a body, of those that are there.
_ALWAYS: Final = ("@method", "@target-uri")
_WHEN_THERE: Final = ("authorization",)
_WITH_BODY: Final = ("content-digest", "content-length", "content-type")


def sign(
    request: Request,
    key: PrivateKey,
    *,
    created: datetime | int,
    components: Sequence[Component | str] | None = None,
    label: str = "sig1",
    expires: datetime | int | None = None,
    nonce: str | None = None,
    tag: str | None = None,
    alg_param: bool = False,
    digest: DigestAlgorithm | None = "sha-512",
) -> Request:
    """`request` with a signature: `Signature-Input` and `Signature` are added after the header fields that it has.

    When there is a body, `Content-Digest` is set by the algorithm `digest`, in place of one that is there; None leaves
    the header fields as they are. No other field is touched. `created` and `expires` are POSIX times in seconds, or
    datetimes with a zone, of which the fraction of a second is dropped. `components` are by default those that the
    Open Payments clients cover: `@method`, `@target-uri`, `authorization` when there is one, and with a body
    `content-digest`, `content-length` and `content-type` when they are there. `alg_param` adds the `alg` parameter.

    Raises `InvalidValue` for a label that is none or in use, a time without zone, or a key whose algorithm has no
    registered name for `alg`; `MalformedField` when a component cannot be signed over or a parameter not be written.

    >>> key = PrivateKey.generate_ed25519("key-1")
    >>> signed = sign(Request("GET", "https://ase.example/pay", ()), key, created=1_700_000_000)
    >>> signed.values("signature-input")
    ('sig1=("@method" "@target-uri");keyid="key-1";created=1700000000',)
    """
    if not SF_KEY.fullmatch(label) or label in _labels(request):
        text = "label is lower case letters, digits and _-.* (RFC 9651 §3.1.2), and not in use in the request"
        raise InvalidValue(text, member="label")
    if request.body and digest is not None:
        others = tuple(header for header in request.headers if header[0].lower() != "content-digest")
        request = evolve(request, headers=(*others, ("Content-Digest", content_digest(request.body, digest))))
    covered = default_components(request) if components is None else components
    pieces = [piece if isinstance(piece, Component) else Component(piece) for piece in covered]
    parameters = _parameters(key, created, expires, nonce, tag, alg_param=alg_param)
    signature = key.sign(signature_base(request, pieces, parameters))
    inner_list = f"({' '.join([piece.identifier for piece in pieces])}){serialise_parameters(parameters)}"
    fields = (
        ("Signature-Input", f"{label}={inner_list}"),
        ("Signature", f"{label}={http_sf.ser(signature)}"),
    )
    parse_signature_input([fields[0][1]])  # what a receiver could not read is refused here
    return evolve(request, headers=(*request.headers, *fields))


def _labels(request: Request) -> Iterable[str]:
    inputs = parse_signature_input(request.values("signature-input"))
    return inputs.keys() | parse_signature(request.values("signature")).keys()


def default_components(request: Request) -> tuple[str, ...]:
    """The names of what `sign` covers in `request`, as it is, when it is not told otherwise.

    >>> default_components(Request("GET", "https://ase.example/pay", (("Authorization", "GNAP t"),)))
    ('@method', '@target-uri', 'authorization')
    """
    names = _WHEN_THERE + (_WITH_BODY if request.body else ())
    return _ALWAYS + tuple(name for name in names if request.values(name))


def _parameters(
    key: PrivateKey,
    created: datetime | int,
    expires: datetime | int | None,
    nonce: str | None,
    tag: str | None,
    *,
    alg_param: bool,
) -> Parameters:
    if alg_param and key.algorithm.registered is None:
        text = f"{key.algorithm.value} has no registered name: leave the alg parameter out (RFC 9421 §6.2)"
        raise InvalidValue(text, member="alg_param")
    given = (
        ("keyid", key.kid),
        ("created", _posix_time(created, "created")),
        ("expires", None if expires is None else _posix_time(expires, "expires")),
        ("nonce", nonce),
        ("alg", key.algorithm.registered if alg_param else None),
        ("tag", tag),
    )
    return tuple((name, value) for name, value in given if value is not None)


def _posix_time(moment: datetime | int, member: str) -> int:
    if not isinstance(moment, datetime):
        return moment
    if moment.utcoffset() is None:
        raise InvalidValue(f"{member} needs a time zone", member=member)
    return int(moment.timestamp())
