"""Sign a request: the fields that `sign` adds, and the arguments that it refuses."""

from datetime import timedelta
from typing import Literal

import pytest

from incoming_payments.errors import InvalidValue, MalformedField
from incoming_payments.httpsig import (
    Algorithm,
    Code,
    Component,
    Policy,
    PrivateKey,
    RequestMessage,
    content_digest,
    parse_signature_input,
    sign,
    verify,
)
from kits.signed_requests import BODY, KEY, KEYS, NOW, NOW_S, URL, get, post, put, signed_get, signed_post
from kits.signing_keys import private, rsa_key


def test_sign_only_adds_fields() -> None:
    """`sign` adds the digest and the two signature fields at the end. Body, method and target do not change."""
    request, unsigned = signed_post(), post()
    assert request.headers[: len(unsigned.headers)] == unsigned.headers
    added = [name for name, _ in request.headers[len(unsigned.headers) :]]
    assert added == ["Content-Digest", "Signature-Input", "Signature"]
    assert request.values("content-digest") == (content_digest(BODY),)
    assert (request.method, request.target_uri, request.body) == ("POST", URL, BODY)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (get(), ["@method", "@target-uri", "authorization"]),
        (get(("Content-Type", "x")), ["@method", "@target-uri", "authorization"]),
        (RequestMessage("GET", URL, ()), ["@method", "@target-uri"]),
        (
            post(),
            ["@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type"],
        ),
        (RequestMessage("POST", URL, (), b"x"), ["@method", "@target-uri", "content-digest"]),
    ],
)
def test_default_components(request_: RequestMessage, expected: list[str]) -> None:
    """By default `sign` covers the components that npm @interledger/open-payments covers, if they are present."""
    for also in ([], ["@path"]):
        signed = sign(request_, KEY, created=NOW, also=also)
        given = parse_signature_input(signed.values("signature-input"))["sig1"]
        assert [component.name for component in given.components] == expected + also


def test_all_parameters() -> None:
    """Each argument becomes a signature parameter. A datetime loses its fraction of a second."""
    signed = sign(
        get(),
        KEY,
        created=NOW + timedelta(microseconds=999_999),
        expires=NOW_S + 5,
        nonce='"n"',
        tag="t",
        alg_param=True,
        label="x",
        components=("@method", Component("@query-param", (("name", "a"),)))[:1],
    )
    assert signed.values("signature-input") == (
        f'x=("@method");keyid="key-1";created={NOW_S};expires={NOW_S + 5};nonce="\\"n\\"";alg="ed25519";tag="t"',
    )


def test_component_with_parameters() -> None:
    """`sign` covers a component with its parameters."""
    request = get(url=f"{URL}?a=1")
    components = ("@method", "@target-uri", "authorization", Component("@query-param", (("name", "a"),)))
    signed = sign(request, KEY, created=NOW, components=components)
    assert verify(signed, KEYS, policy=Policy(), now=NOW).signature_input.components[3] == components[3]


@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_existing_digest_is_replaced(algorithm: Literal["sha-256", "sha-512"]) -> None:
    """`sign` replaces an existing digest, with the algorithm that the caller chooses."""
    signed = sign(put(post(), "CONTENT-DIGEST", "sha-256=:AQID:"), KEY, created=NOW, digest=algorithm)
    assert signed.values("content-digest") == (content_digest(BODY, algorithm),)
    assert verify(signed, KEYS, policy=Policy(), now=NOW).key_id == "key-1"


def test_digest_none_keeps_the_field() -> None:
    """With `digest=None` the caller sets `Content-Digest` itself, or sends none."""
    assert sign(post(), KEY, created=NOW, digest=None).values("content-digest") == ()
    own = ("Content-Digest", f"{content_digest(BODY)}, {content_digest(BODY, 'sha-256')}")
    signed = sign(post(own), KEY, created=NOW, digest=None)
    assert signed.values("content-digest") == (own[1],)
    assert verify(signed, KEYS, policy=Policy(), now=NOW).key_id == "key-1"


def test_second_signature_needs_another_label() -> None:
    """A second signature with another label is added. A label that is in use is refused."""
    other = PrivateKey.generate_ed25519("other")
    signed = sign(signed_get(), other, created=NOW, label="sig2")
    assert len(signed.values("signature")) == 2
    assert verify(signed, KEYS, policy=Policy(), now=NOW).signature_input.label == "sig1"
    assert verify(signed, {"other": other.public_key()}, policy=Policy(), now=NOW).signature_input.label == "sig2"
    with pytest.raises(InvalidValue, match="label"):
        sign(signed, other, created=NOW, label="sig2")


@pytest.mark.parametrize("label", ["Sig", "", "a b", "a=();x, b"])
def test_malformed_label_is_refused(label: str) -> None:
    """A label must be a key of RFC 9651 §3.1.2, so it cannot inject other members into the field."""
    with pytest.raises(InvalidValue) as caught:
        sign(get(), KEY, created=NOW, label=label)
    assert str(caught.value).startswith("label must consist of lower case letters, digits and _-.* (RFC 9651 §3.1.2),")
    assert caught.value.details == {"member": "label"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("Signature-Input", 'sig1=("@method")'), ("Signature", "sig1=:AQID:")],
    ids=["input", "signature"],
)
def test_label_in_one_of_the_fields_is_in_use(field: str, value: str) -> None:
    """A label is in use if one of the two signature fields has it. Another label is accepted."""
    request = get((field, value))
    with pytest.raises(InvalidValue, match="label"):
        sign(request, KEY, created=NOW)
    assert len(sign(request, KEY, created=NOW, label="sig2").values(field.lower())) == 2


def test_no_digest_without_a_body() -> None:
    """`sign` adds no digest to a request without a body."""
    assert [name for name, _ in signed_get().headers] == ["Authorization", "Signature-Input", "Signature"]


def test_time_without_zone_is_refused() -> None:
    """A datetime without a time zone is refused, and the refusal names the argument."""
    naive = NOW.replace(tzinfo=None)
    with pytest.raises(InvalidValue, match=r"^created") as caught:
        sign(get(), KEY, created=naive)
    assert caught.value.details == {"member": "created"}
    with pytest.raises(InvalidValue, match=r"^expires"):
        sign(get(), KEY, created=NOW, expires=naive)


def test_alg_param_for_an_unregistered_algorithm_is_refused() -> None:
    """`alg_param` is refused for PS256, which has no name in the registry of RFC 9421."""
    key = PrivateKey("k", Algorithm.PS256, rsa_key())
    with pytest.raises(InvalidValue, match="PS256") as caught:
        sign(get(), key, created=NOW, alg_param=True)
    assert caught.value.details == {"member": "alg_param"}


def test_unregistered_algorithm_signs_without_alg() -> None:
    """A PS256 key signs, because `sign` leaves `alg` out by default."""
    key = private(Algorithm.PS256)
    proof = verify(sign(get(), key, created=NOW), {"key-1": key.public_key()}, policy=Policy(), now=NOW)
    assert proof.algorithm is Algorithm.PS256


def test_request_that_cannot_be_signed_is_refused() -> None:
    """An absent component, a nonce that is not a String, and a time out of range are refused."""
    with pytest.raises(MalformedField) as caught:
        sign(get(), KEY, created=NOW, components=("x-absent",))
    assert caught.value.code is Code.COMPONENT_ABSENT
    for nonce in ("\n", "é", "n" * 300):
        with pytest.raises(MalformedField):
            sign(get(), KEY, created=NOW, nonce=nonce)
    with pytest.raises(MalformedField):
        sign(get(), KEY, created=-1)
