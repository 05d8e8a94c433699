"""Signing: what is added to a request, and what is refused."""

from datetime import timedelta
from typing import Literal

import pytest

from incoming_payments.errors import InvalidValue, MalformedField
from incoming_payments.httpsig import (
    Algorithm,
    Component,
    Policy,
    PrivateKey,
    Reason,
    Request,
    content_digest,
    parse_signature_input,
    sign,
    verify,
)
from signed_requests import BODY, KEY, KEYS, NOW, NOW_S, URL, get, post, put, signed_get, signed_post
from signing_keys import private


def test_adds_fields_and_touches_no_other() -> None:
    """The digest and the two signature fields come after what was there; body, method and target stay."""
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
        (Request("GET", URL, ()), ["@method", "@target-uri"]),
        (
            post(),
            ["@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type"],
        ),
        (Request("POST", URL, (), b"x"), ["@method", "@target-uri", "content-digest"]),
    ],
)
def test_default_components(request_: Request, expected: list[str]) -> None:
    """Those of npm @interledger/open-payments, of which the fields only when they are there."""
    signed = sign(request_, KEY, created=NOW)
    given = parse_signature_input(signed.values("signature-input"))["sig1"]
    assert [component.name for component in given.components] == expected


def test_all_parameters() -> None:
    """Each argument becomes its parameter; datetimes lose their fraction, and integers are taken as they are."""
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


def test_components_with_parameters() -> None:
    """A component can be given with its parameters."""
    request = get(url=f"{URL}?a=1")
    components = ("@method", "@target-uri", "authorization", Component("@query-param", (("name", "a"),)))
    signed = sign(request, KEY, created=NOW, components=components)
    assert verify(signed, KEYS, policy=Policy(), now=NOW).components[3] == components[3]


@pytest.mark.parametrize("algorithm", ["sha-256", "sha-512"])
def test_digest_replaces_one_that_is_there(algorithm: Literal["sha-256", "sha-512"]) -> None:
    """A stale digest does not survive; the algorithm is the caller's."""
    signed = sign(put(post(), "CONTENT-DIGEST", "sha-256=:AQID:"), KEY, created=NOW, digest=algorithm)
    assert signed.values("content-digest") == (content_digest(BODY, algorithm),)
    assert verify(signed, KEYS, policy=Policy(), now=NOW).key_id == "key-1"


def test_digest_none_leaves_what_is_there() -> None:
    """A caller may have made the digest itself, or want none."""
    assert sign(post(), KEY, created=NOW, digest=None).values("content-digest") == ()
    own = ("Content-Digest", f"{content_digest(BODY)}, {content_digest(BODY, 'sha-256')}")
    signed = sign(post(own), KEY, created=NOW, digest=None)
    assert signed.values("content-digest") == (own[1],)
    assert verify(signed, KEYS, policy=Policy(), now=NOW).key_id == "key-1"


def test_a_second_signature() -> None:
    """Another label is added after the first; the same again is refused."""
    other = PrivateKey.generate_ed25519("other")
    signed = sign(signed_get(), other, created=NOW, label="sig2")
    assert len(signed.values("signature")) == 2
    assert verify(signed, KEYS, policy=Policy(), now=NOW).label == "sig1"
    assert verify(signed, {"other": other.public_key()}, policy=Policy(), now=NOW).label == "sig2"
    with pytest.raises(InvalidValue, match="label"):
        sign(signed, other, created=NOW, label="sig2")


@pytest.mark.parametrize("label", ["Sig", "", "a b", "a=();x, b"])
def test_labels_that_cannot_be_written(label: str) -> None:
    """A label is a key of RFC 9651 §3.1.2, and can smuggle nothing in."""
    with pytest.raises(InvalidValue) as caught:
        sign(get(), KEY, created=NOW, label=label)
    assert caught.value.details == {"member": "label"}


@pytest.mark.parametrize(
    ("field", "value"),
    [("Signature-Input", 'sig1=("@method")'), ("Signature", "sig1=:AQID:")],
    ids=["input", "signature"],
)
def test_a_label_that_one_field_has(field: str, value: str) -> None:
    """It is in use, whichever of the two fields it stands in; another one is not."""
    request = get((field, value))
    with pytest.raises(InvalidValue, match="label"):
        sign(request, KEY, created=NOW)
    assert len(sign(request, KEY, created=NOW, label="sig2").values(field.lower())) == 2


def test_no_digest_without_a_body() -> None:
    """There is nothing to digest."""
    assert [name for name, _ in signed_get().headers] == ["Authorization", "Signature-Input", "Signature"]


def test_times_need_a_zone() -> None:
    """A naive datetime is refused by the name of its argument."""
    naive = NOW.replace(tzinfo=None)
    with pytest.raises(InvalidValue, match=r"^created") as caught:
        sign(get(), KEY, created=naive)
    assert caught.value.details == {"member": "created"}
    with pytest.raises(InvalidValue, match=r"^expires"):
        sign(get(), KEY, created=NOW, expires=naive)


def test_alg_for_a_key_whose_algorithm_has_no_name() -> None:
    """There is nothing that PS256 could be called."""
    key = PrivateKey("k", Algorithm.PS256, None)
    with pytest.raises(InvalidValue, match="PS256") as caught:
        sign(get(), key, created=NOW, alg_param=True)
    assert caught.value.details == {"member": "alg_param"}


def test_a_key_whose_algorithm_has_no_name() -> None:
    """It signs, as `alg` is left out unless it is asked for."""
    key = private(Algorithm.PS256)
    proof = verify(sign(get(), key, created=NOW), {"key-1": key.public_key()}, policy=Policy(), now=NOW)
    assert proof.algorithm is Algorithm.PS256


def test_what_cannot_be_signed_over() -> None:
    """An absent component, a nonce that is no String, a time out of range."""
    with pytest.raises(MalformedField) as caught:
        sign(get(), KEY, created=NOW, components=("x-absent",))
    assert caught.value.code is Reason.COMPONENT_ABSENT
    for nonce in ("\n", "é", "n" * 300):
        with pytest.raises(MalformedField):
            sign(get(), KEY, created=NOW, nonce=nonce)
    with pytest.raises(MalformedField):
        sign(get(), KEY, created=-1)
