"""RFC 9421 Appendix B.2: the signature base and the signature of every example."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.errors import MalformedKey, SignatureRefused
from incoming_payments.httpsig import (
    Policy,
    Proof,
    RequestMessage,
    ResponseMessage,
    ed25519,
    load_jwk,
    parse_signature,
    parse_signature_input,
    signature_base,
    verify,
)

VECTORS: Any = json.loads((Path(__file__).parent / "rfc9421.json").read_text())
CASES = {case["section"]: case for case in VECTORS["cases"]}


@pytest.fixture(params=["OpenSSL", "PyNaCl"], autouse=True)
def _backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both libraries for Ed25519."""
    monkeypatch.setattr(ed25519, "BACKEND", request.param)


def _message(name: str) -> RequestMessage | ResponseMessage:
    vector = VECTORS[name]
    headers = tuple((name, value) for name, value in vector["headers"])
    body = vector["body"].encode()
    if name == "response":
        return ResponseMessage(vector["status"], headers, body)
    return RequestMessage(vector["method"], vector["url"], headers, body)


def _base(case: Any) -> bytes:
    given = parse_signature_input([case["signature_input"]])[case["label"]]
    return signature_base(_message(case["message"]), given.components, given.parameters)


def test_all_examples_are_present() -> None:
    """The file has the examples B.2.1 to B.2.6."""
    assert list(CASES) == [f"B.2.{number}" for number in range(1, 7)]


@pytest.mark.parametrize("section", CASES)
def test_signature_base(section: str) -> None:
    """The base equals that of the RFC byte for byte. B.2.4 is the base of a response."""
    assert _base(CASES[section]).decode() == CASES[section]["signature_base"]


@pytest.mark.parametrize("section", [section for section in CASES if section != "B.2.5"])
def test_signature(section: str) -> None:
    """The signature of the RFC verifies with the key of the RFC over this base, and over no other base."""
    case = CASES[section]
    key = load_jwk(VECTORS["keys"][case["keyid"]])
    signature = parse_signature([case["signature"]])[case["label"]]
    assert key.algorithm.registered == case["algorithm"]
    assert key.verify(signature, _base(case))
    assert not key.verify(signature, _base(case) + b" ")


def test_shared_secret_is_refused() -> None:
    """The key of B.2.5 (HMAC) is refused, because each verifier of a shared secret can sign with it."""
    with pytest.raises(MalformedKey, match="shared secret"):
        load_jwk(VECTORS["keys"][CASES["B.2.5"]["keyid"]])


def _verify(section: str, *required: str) -> Proof:
    """Run the whole verifier at the time when the example was signed."""
    case = CASES[section]
    request = _message("request")
    assert isinstance(request, RequestMessage)
    fields = (("Signature-Input", case["signature_input"]), ("Signature", case["signature"]))
    key = load_jwk(VECTORS["keys"][case["keyid"]])
    signed = evolve(request, headers=(*request.headers, *fields))
    now = datetime.fromtimestamp(1618884473, UTC)
    return verify(signed, {key.kid: key}, policy=Policy(required=required), now=now)


def test_examples_that_cover_the_body_are_accepted() -> None:
    """The verifier accepts B.2.2 and B.2.3, which cover the body."""
    assert _verify("B.2.2", "@authority", "content-digest").signature_input.label == "sig-b22"
    assert _verify("B.2.3", "@method", "@path", "@query", "content-digest").signature_input.label == "sig-b23"


@pytest.mark.parametrize(("section", "reason"), [("B.2.1", "component_not_covered"), ("B.2.6", "body_not_covered")])
def test_examples_that_do_not_cover_the_body_are_refused(section: str, reason: str) -> None:
    """B.2.1 covers no component and B.2.6 does not cover the body, so their valid signatures prove too little."""
    with pytest.raises(SignatureRefused) as caught:
        _verify(section, "@method")
    assert caught.value.code == reason
