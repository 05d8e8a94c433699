"""Other implementations of RFC 9421 that sign a case and verify a request: two from npm, one from PyPI."""

import json
import re
import subprocess
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final, Protocol, Self

from attrs import evolve, frozen
from http_message_signatures import (
    HTTPMessageSignaturesException,
    HTTPMessageSigner,
    HTTPMessageVerifier,
    MappingKeyResolver,
    algorithms,
)

from incoming_payments.httpsig import Algorithm, Component, RequestMessage
from incoming_payments.httpsig.base import REQUEST_COMPONENTS
from kits.signature_cases import ORDER, Case, Range, a_case, an_open_payments_case
from kits.signing_keys import pem, private

DHENSBY: Final = "http-message-signatures"
INTERLEDGER: Final = "@interledger/http-signature-utils"
VERSIONS: Final = {DHENSBY: "1.0.6", INTERLEDGER: "2.0.3"}
DRIVER: Final = Path(__file__).parents[1] / "campaigns" / "interop" / "cross_checks.mjs"

ALGORITHMS: Final = (Algorithm.ED25519, Algorithm.ES256, Algorithm.ES384, Algorithm.PS512, Algorithm.RS256)
DERIVED: Final = (*sorted(REQUEST_COMPONENTS), "@query-param")


class Peer(Protocol):
    """Another implementation."""

    reads_body: ClassVar[bool]  # whether the peer compares the body with `Content-Digest`

    def to_sign(self, random: Random) -> Case:
        """Return a random case that the peer can sign."""

    def to_verify(self, random: Random) -> Case:
        """Return a random case that the peer can verify after this library has signed it."""

    def sign(self, case: Case) -> RequestMessage:
        """Return the request of `case`, signed by the peer."""

    def verify(self, request: RequestMessage, case: Case) -> bool:
        """Return whether the peer accepts the signature of `case` on `request`."""


# --- npm ---------------------------------------------------------------------------------------


@frozen
class Node:
    """A running Node.js process that does one job after another."""

    _process: "subprocess.Popen[str]"

    def run(self, peer: str, action: str, case: Case, **job: object) -> Any:
        """Return the result of one job. Raises `RuntimeError` with the error of the process if the job failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"peer": peer, "action": action, "now": case.created, **job}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]


@contextmanager
def running_node(installed: Path) -> Iterator[Node]:
    """Start the driver with the packages in the folder `installed`. It ends with its input."""
    keys = {algorithm.registered: pem(private(algorithm)._key).decode() for algorithm in ALGORITHMS}
    arguments = ["node", str(DRIVER), json.dumps({"installed": str(installed), "keys": keys})]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True, encoding="utf-8") as process:
        yield Node(process)


def _message(request: RequestMessage) -> dict[str, object]:
    return {
        "method": request.method,
        "url": request.target_uri,
        "headers": request.headers,
        "body": request.body.decode("utf-8", "replace") or None,
    }


def _key(case: Case) -> dict[str, object]:
    return {"alg": case.key.algorithm.registered, "id": case.key.kid}


_DHENSBY: Final = Range(
    algorithms=ALGORITHMS,
    derived=DERIVED,
    field_parameters=("sf", "key", "bs"),
    parameters=None,
    query="abcxyzABC0189-._*$&+,;=:@/?%",
    empty_query=False,
    unread=re.compile(r"^ *\t|\t *$|@-?\d+\D"),  # tabs around a field, and text after a Date
)


@frozen
class Dhensby:
    """npm http-message-signatures, with which @interledger/http-signature-utils signs."""

    _node: Node
    reads_body: ClassVar[bool] = False

    def to_sign(self, random: Random) -> Case:
        """As `Peer` defines."""
        return a_case(random, _DHENSBY)

    def to_verify(self, random: Random) -> Case:
        """As `Peer` defines."""
        return a_case(random, evolve(_DHENSBY, parameters=ORDER))

    def sign(self, case: Case, *, as_it_comes: bool = False) -> RequestMessage:
        """Sign as `Peer.sign` does. With `as_it_comes`, the peer chooses its own salt length for rsa-pss-sha512."""
        headers = self._node.run(
            DHENSBY,
            "sign",
            case,
            message=_message(case.request),
            key={**_key(case), "asItComes": as_it_comes},
            label=case.label,
            components=[component.identifier for component in case.components],
            parameters=case.parameters,
        )
        return evolve(case.request, headers=tuple((name, line) for name, line in headers))

    def verify(self, request: RequestMessage, case: Case) -> bool:
        """As `Peer` defines."""
        return _verdict(self._node, DHENSBY, case, message=_message(request), key=_key(case))

    def value(self, request: RequestMessage, component: Component) -> str | None:
        """Return the value that the peer signs for `component`; None if the peer refuses it."""
        case = Case(request=request, key=private(Algorithm.ED25519), label="sig1", components=(component,), created=1)
        try:
            return str(
                self._node.run(DHENSBY, "value", case, message=_message(request), component=component.identifier)
            )
        except RuntimeError:
            return None


_INTERLEDGER: Final = Range(
    algorithms=(Algorithm.ED25519,),
    derived=("@method", "@target-uri"),
    label="sig1",
    blanks=False,
    foreign=False,
    open_payments=True,
)


@frozen
class Interledger:
    """npm @interledger/http-signature-utils, which the Open Payments clients and Rafiki use."""

    _node: Node
    reads_body: ClassVar[bool] = True

    def to_sign(self, random: Random) -> Case:
        """As `Peer` defines."""
        return an_open_payments_case(random, _INTERLEDGER)

    def to_verify(self, random: Random) -> Case:
        """As `Peer` defines."""
        return a_case(random, _INTERLEDGER)

    def sign(self, case: Case) -> RequestMessage:
        """As `Peer` defines."""
        headers = self._node.run(INTERLEDGER, "sign", case, message=_message(case.request), key=_key(case))
        return evolve(case.request, headers=tuple((name, line) for name, line in headers))

    def verify(self, request: RequestMessage, case: Case) -> bool:
        """As `Peer` defines."""
        return _verdict(self._node, INTERLEDGER, case, message=_message(request), jwk=case.key.public_jwk())


def _verdict(node: Node, peer: str, case: Case, **job: object) -> bool:
    try:
        verdict = node.run(peer, "verify", case, **job)
    except RuntimeError:
        return False
    assert type(verdict) is bool, verdict
    return verdict


# --- PyPI --------------------------------------------------------------------------------------


class _Lines:
    """Header fields in the form that the library accepts, which keeps every line."""

    def __init__(self, lines: Iterable[tuple[str, str]]) -> None:
        self._lines = list(lines)

    def items(self) -> list[tuple[str, str]]:
        """Return each name with its value."""
        return list(self._lines)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._lines))

    def __contains__(self, name: str) -> bool:
        return name in dict(self._lines)

    def __setitem__(self, name: str, line: str) -> None:
        self._lines.append((name, line))

    def __delitem__(self, name: str) -> None:
        self._lines = [line for line in self._lines if line[0] != name]


@frozen
class _Message:
    """A request in the form that the library accepts."""

    method: str
    url: str
    headers: _Lines

    @classmethod
    def of(cls, request: RequestMessage) -> Self:
        """Convert `request` to this form."""
        return cls(request.method, request.target_uri, _Lines(request.headers))


class _Verifier(HTTPMessageVerifier):
    """Verifies only the signature with the label of the case."""

    allow_label_only_selection = True


_PYPI_ALGORITHMS: Final = {
    Algorithm.ED25519: algorithms.ED25519,
    Algorithm.ES256: algorithms.ECDSA_P256_SHA256,
    Algorithm.ES384: algorithms.ECDSA_P384_SHA384,
    Algorithm.PS512: algorithms.RSA_PSS_SHA512,
    Algorithm.RS256: algorithms.RSA_V1_5_SHA256,
}


_PYAUTH: Final = Range(
    algorithms=ALGORITHMS,
    derived=DERIVED,
    field_parameters=("sf", "key", "bs"),
    folds=True,
    bytes_in_bs="".join(map(chr, [*range(0x20, 0x7F), *range(0x80, 0x100)])),
)


@frozen
class PyAuth:
    """PyPI http-message-signatures, by pyauth."""

    reads_body: ClassVar[bool] = True

    def to_sign(self, random: Random) -> Case:
        """As `Peer` defines."""
        return a_case(random, evolve(_PYAUTH, parameters=("created", "keyid", "alg", "expires", "nonce", "tag")))

    def to_verify(self, random: Random) -> Case:
        """As `Peer` defines."""
        return a_case(random, _PYAUTH)

    def sign(self, case: Case) -> RequestMessage:
        """As `Peer` defines."""
        algorithm = _PYPI_ALGORITHMS[case.key.algorithm]
        keys = MappingKeyResolver(public_keys={}, private_keys={case.key.kid: case.key._key})
        message = _Message.of(case.request)
        HTTPMessageSigner(signature_algorithm=algorithm, key_resolver=keys).sign(
            message,
            key_id=case.key.kid,
            created=datetime.fromtimestamp(case.created, UTC),
            expires=None if case.expires is None else datetime.fromtimestamp(case.expires, UTC),
            nonce=case.nonce,
            tag=case.tag,
            label=case.label,
            include_alg=case.alg,
            covered_component_ids=[component.identifier for component in case.components],
            append_if_signature_exists=True,
            use_existing_digest=bool(case.request.values("content-digest")),
        )
        return evolve(case.request, headers=tuple(message.headers.items()))

    def verify(self, request: RequestMessage, case: Case) -> bool:
        """As `Peer` defines."""
        algorithm = _PYPI_ALGORITHMS[case.key.algorithm]
        keys = MappingKeyResolver(public_keys={case.key.kid: case.key._key.public_key()}, private_keys={})
        verifier = _Verifier(signature_algorithm=algorithm, key_resolver=keys)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library warns that selecting by label proves little
            try:
                verifier.verify(_Message.of(request), max_age=None, expect_label=case.label, body=request.body)
            except HTTPMessageSignaturesException:
                return False
        return True

    def value(self, request: RequestMessage, component: Component) -> str | None:
        """Return the value that the peer signs for `component`; None if the peer refuses it."""
        signer = HTTPMessageSigner(signature_algorithm=algorithms.ED25519)
        try:
            prepared = signer.prepare(
                _Message.of(request),
                key_id="key-1",
                covered_component_ids=[component.identifier],
                use_existing_digest=bool(request.values("content-digest")),
            )
        except HTTPMessageSignaturesException:
            return None
        first, _, _ = prepared.signature_base.decode().partition("\n")
        return first.removeprefix(f"{component.identifier}: ")
