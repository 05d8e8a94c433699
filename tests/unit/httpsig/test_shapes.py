"""The shapes of two SDKs: only a policy that names them accepts them, and all other checks stay the same."""

import re
from typing import Any

import pytest
from attrs import evolve

from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import Code, Policy, RequestMessage, Shape, verify
from incoming_payments.httpsig.shapes import StrictForm, strict_form
from kits.characters import DIGITS, LETTERS, LOWER, PRINTABLE, accepted_characters
from kits.signed_requests import (
    BODY,
    KEYS,
    NOW,
    NOW_S,
    PHP_GET,
    RUST_GET,
    URL,
    get,
    php,
    post,
    put,
    rust,
    signed_get,
    signed_post,
)

STRICT = Policy()
PHP = Policy(shapes=[Shape.PHP_SDK])
RUST = Policy(shapes=[Shape.RUST_SDK])
BOTH = Policy(shapes=Shape)


PHP_POST = php(signed_post())
DIGEST = ("Content-Digest", signed_post().values("content-digest")[0])
RUST_POST = rust(post(DIGEST), "content-digest", "content-length")


SHAPES = {
    # For each shape: the two lines with a # for the character, and the characters that are accepted there
    "php, label": (Shape.PHP_SDK, "sig1=()", "#=AQID", {*LOWER, "*"}),
    "php, rest of the label": (Shape.PHP_SDK, "sig1=()", "a#=AQID", {*LOWER, *DIGITS, *"_-.*"}),
    "php, base64": (Shape.PHP_SDK, "sig1=()", "a=#QID", {*LETTERS, *DIGITS, *"+/"}),
    "php, end": (Shape.PHP_SDK, "sig1=()", "a=AQID#", {*LETTERS, *DIGITS, *"+/="}),
    "rust, label": (Shape.RUST_SDK, "#=(a);a", "AQID", {*LOWER, "*"}),
    "rust, rest of the label": (Shape.RUST_SDK, "a#=(a);a", "AQID", {*LOWER, *DIGITS, *"_-.*"}),
    "rust, name": (Shape.RUST_SDK, "a=(#a);a", "AQID", {*LOWER, "@"}),
    "rust, name alone": (Shape.RUST_SDK, "a=(#);a", "AQID", {*LOWER}),
    "rust, rest of the name": (Shape.RUST_SDK, "a=(a#b);a", "AQID", {*LOWER, *DIGITS, *"- "}),
    "rust, second name": (Shape.RUST_SDK, "a=(a #b);a", "AQID", {*LOWER, "@"}),
    "rust, second name alone": (Shape.RUST_SDK, "a=(a #);a", "AQID", {*LOWER}),
    "rust, rest of the second name": (Shape.RUST_SDK, "a=(a b#c);a", "AQID", {*LOWER, *DIGITS, *"- "}),
    "rust, parameters": (Shape.RUST_SDK, "a=(a);#", "AQID", {*PRINTABLE}),
    "rust, base64": (Shape.RUST_SDK, "a=(a);a", "#QID", {*LETTERS, *DIGITS, *"+/"}),
}


@pytest.mark.parametrize(("shape", "input_line", "signature", "expected"), SHAPES.values(), ids=SHAPES)
def test_characters_of_a_shape(shape: Shape, input_line: str, signature: str, expected: set[str]) -> None:
    """A shape accepts exactly the characters that the SDK writes."""

    def form(character: str) -> object:
        return strict_form(shape, [input_line.replace("#", character)], [signature.replace("#", character)])

    assert accepted_characters(form, InvalidValue) == expected


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize(
    ("input_lines", "signature_lines"),
    [([], ["AQID"]), (["a=(a);a"], []), (["a=(a);a"] * 2, ["AQID"]), (["a=(a);a"], ["a=AQID"] * 2), ([], ["a=AQID"])],
)
def test_shape_has_one_line_of_each_field(shape: Shape, input_lines: list[str], signature_lines: list[str]) -> None:
    """Fields with no line or with two lines do not have the shape of an SDK."""
    assert strict_form(shape, input_lines, signature_lines) is None


def test_smallest_shape() -> None:
    """A shape has at least one component, needs no parameter, and may have up to two characters of padding."""
    for base64 in ("AQID", "AQI=", "AQ=="):
        assert strict_form(Shape.RUST_SDK, ["a=(@b c-1);"], [base64]) == StrictForm(
            'a=("@b" "c-1");', f"a=:{base64}:", "(@b c-1)"
        )
        assert strict_form(Shape.PHP_SDK, ["x"], [f"a={base64}"]) == StrictForm("x", f"a=:{base64}:", None)
    for base64 in ("", "=", "AQID===", "A=Q="):
        assert strict_form(Shape.RUST_SDK, ["a=(a);"], [base64]) is None
        assert strict_form(Shape.PHP_SDK, ["x"], [f"a={base64}"]) is None


def test_request_of_the_php_sdk() -> None:
    """`createHeaders` of interledger/open-payments-php (June 2026) makes these fields with the same key and time."""
    (signature_input,), (signature,) = PHP_POST.values("signature-input"), PHP_POST.values("signature")
    assert signature_input == (
        'sig1=("@method" "@target-uri" "authorization" "content-digest" "content-length" "content-type")'
        ';keyid="key-1";created=1893499200'
    )
    assert signature == "sig1=APMETfFii+R6ivP+gPOFPP7RnBhS2RqlSPvaYKYNC6vwtKOtcjmzyXVqLid4UF77jy2S+iQdTcMdQAVhtrJ1AA=="
    assert PHP_GET.values("signature") == (
        "sig1=L9bx+oOeGNyQiP+xBtHZ/qc6SNcxiIFUeitRvtwbnqNZWniZ4OSCuBuijIkC4LmOBj83gt8Ogl8U3kQQYKRGBQ==",
    )


def code_of(request: RequestMessage, policy: Policy) -> Code:
    """Return the code of the refusal of `request`."""
    with pytest.raises(SignatureRefused) as caught:
        verify(request, KEYS, policy=policy, now=NOW)
    return Code(caught.value.code)


@pytest.mark.parametrize(
    ("request_", "policy"),
    [(PHP_GET, PHP), (PHP_POST, PHP), (PHP_POST, BOTH), (RUST_GET, RUST), (RUST_POST, RUST), (RUST_POST, BOTH)],
)
def test_named_shape_is_accepted(request_: RequestMessage, policy: Policy) -> None:
    """A policy that names a shape accepts it, and the proof has the same facts as for a strict signature."""
    proof = verify(request_, KEYS, policy=policy, now=NOW)
    assert (proof.signature_input.label, proof.key_id, proof.created) == ("sig1", "key-1", NOW)
    assert {"@method", "@target-uri", "authorization"} <= {
        component.name for component in proof.signature_input.components
    }


@pytest.mark.parametrize(
    ("request_", "policy", "expected"),
    [
        (PHP_GET, STRICT, Code.SIGNATURE_MALFORMED),
        (PHP_GET, RUST, Code.SIGNATURE_MALFORMED),
        (RUST_GET, STRICT, Code.SIGNATURE_INPUT_MALFORMED),
        (RUST_GET, PHP, Code.SIGNATURE_INPUT_MALFORMED),
    ],
)
def test_shape_that_is_not_named_is_refused(request_: RequestMessage, policy: Policy, expected: Code) -> None:
    """The default policy accepts no shape, and a policy with one shape does not accept the other."""
    assert code_of(request_, policy) is expected


@pytest.mark.parametrize("request_", [signed_get(), signed_post()])
@pytest.mark.parametrize("policy", [PHP, RUST, BOTH])
def test_strict_form_is_always_accepted(request_: RequestMessage, policy: Policy) -> None:
    """A strict signature has the same proof under a policy with shapes as under one without."""
    assert verify(request_, KEYS, policy=policy, now=NOW) == verify(request_, KEYS, policy=STRICT, now=NOW)


def edited(request: RequestMessage, name: str, pattern: str, new: str) -> RequestMessage:
    """Return `request` with the first match of `pattern` in the field `name` replaced by `new`."""
    (value,) = request.values(name.lower())
    changed, count = re.subn(pattern, new, value, count=1)
    assert count == 1
    return put(request, name, changed)


# Changes that each shape refuses, with the code, which is the same as in the strict form
CHANGES: list[tuple[str, Any, Code]] = [
    ("a label repeated", lambda r: put(r, "Signature", *r.values("signature") * 2), Code.SIGNATURE_MALFORMED),
    ("not canonical base64", lambda r: edited(r, "Signature", "[AQgw]==(:?)$", r"x==\1"), Code.SIGNATURE_MALFORMED),
    ("no padding", lambda r: edited(r, "Signature", "==(:?)$", r"\1"), Code.SIGNATURE_MALFORMED),
    ("a newline after it", lambda r: edited(r, "Signature", "$", "\n"), Code.SIGNATURE_MALFORMED),
    ("a parameter after it", lambda r: edited(r, "Signature", "$", ";a"), Code.SIGNATURE_MALFORMED),
    ("created is a string", lambda r: edited(r, "Signature-Input", "created=([0-9]+)", r'created="\1"'),
     Code.SIGNATURE_INPUT_MALFORMED),
    ("a parameter repeated", lambda r: edited(r, "Signature-Input", "$", ";created=1"),
     Code.SIGNATURE_INPUT_MALFORMED),
    ("another input", lambda r: edited(r, "Signature-Input", "$", ', sig2=("@method")'), Code.LABELS_DIFFER),
    ("another key", lambda r: edited(r, "Signature-Input", "key-1", "key-2"), Code.KEY_UNKNOWN),
    ("the method not covered", lambda r: edited(r, "Signature-Input", '"?@method"? ', ""),
     Code.COMPONENT_NOT_COVERED),
    ("a body added", lambda r: evolve(r, body=BODY), Code.BODY_NOT_COVERED),
    ("created long ago", lambda r: edited(r, "Signature-Input", "created=[0-9]+", "created=1"), Code.STALE),
    ("a component twice", lambda r: edited(r, "Signature-Input", r'\(("?@method"?)', r"(\1 \1"),
     Code.COMPONENT_REPEATED),
    ("a component that is none", lambda r: edited(r, "Signature-Input", r'\(("?)', r"(\1@x\1 \1"),
     Code.COMPONENT_UNSUPPORTED),
    ("the token removed", lambda r: put(r, "Authorization"), Code.COMPONENT_ABSENT),
    ("the token twice", lambda r: put(r, "Authorization", "GNAP token", "GNAP other"), Code.FIELD_REPEATED),
    ("another token", lambda r: put(r, "Authorization", "GNAP other"), Code.SIGNATURE_INVALID),
    ("another target", lambda r: evolve(r, target_uri=f"{URL}/x"), Code.SIGNATURE_INVALID),
    ("another time", lambda r: edited(r, "Signature-Input", str(NOW_S), str(NOW_S + 1)), Code.SIGNATURE_INVALID),
    ("zeros", lambda r: edited(r, "Signature", "[A-Za-z0-9+/]{86}==", "A" * 86 + "=="), Code.SIGNATURE_INVALID),
    ("one octet less", lambda r: edited(r, "Signature", "[A-Za-z0-9+/]{4}(?=.{2}==:?$)", ""),
     Code.SIGNATURE_INVALID),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
@pytest.mark.parametrize(
    ("request_", "policy"), [(PHP_GET, PHP), (RUST_GET, RUST), (signed_get(), BOTH)], ids=["php", "rust", "strict"]
)
def test_change_is_refused_in_each_shape(request_: RequestMessage, policy: Policy, change: Any, expected: Code) -> None:
    """A change is refused with the same code in each shape as in the strict form."""
    assert code_of(change(request_), policy) in {expected, *_EARLIER.get(expected, ())}


# A changed field that no longer has the shape does not have the strict form either, so it is refused earlier.
_EARLIER = {
    Code.SIGNATURE_MALFORMED: {Code.SIGNATURE_INPUT_MALFORMED},
    Code.SIGNATURE_INVALID: {Code.SIGNATURE_MALFORMED},
}


def test_body_is_checked_in_each_shape() -> None:
    """In each shape the digest must be covered and match the body received."""
    for request, policy in ((PHP_POST, PHP), (RUST_POST, RUST)):
        assert code_of(evolve(request, body=BODY.replace(b"alice", b"bobby")), policy) is Code.DIGEST_MISMATCH
        assert code_of(put(request, "Content-Length", "5"), policy) is Code.CONTENT_LENGTH_MISMATCH
    uncovered = rust(post(DIGEST))
    assert code_of(uncovered, RUST) is Code.BODY_NOT_COVERED


def test_signature_is_valid_only_in_the_shape_signed() -> None:
    """A signature made with quotes is refused without them, and the reverse, because the signed bytes differ."""
    unquoted = put(signed_get(), "Signature-Input", signed_get().values("signature-input")[0].replace('" "', " "))
    unquoted = edited(edited(unquoted, "Signature-Input", r'\("', "("), "Signature-Input", r'"\)', ")")
    bare = put(unquoted, "Signature", signed_get().values("signature")[0][6:-1])
    assert code_of(bare, RUST) is Code.SIGNATURE_INVALID
    (sent,), (signature,) = RUST_GET.values("signature-input"), RUST_GET.values("signature")
    quoted = put(RUST_GET, "Signature-Input", re.sub(r"([@a-z][a-z\-]+)(?=[ )])", r'"\1"', sent))
    assert code_of(put(quoted, "Signature", f"sig1=:{signature}:"), BOTH) is Code.SIGNATURE_INVALID


@pytest.mark.parametrize("zeros", ["", "000"])
@pytest.mark.parametrize("space", ["", " "])
def test_parameters_are_signed_in_the_strict_form(space: str, zeros: str) -> None:
    """RFC 9421 §2.5: the Rust SDK, too, must sign the parameters in their strict serialisation."""
    request = rust(get(("Content-Type", "application/json")), written=f';{space}created={zeros}{NOW_S};keyid="key-1"')
    if space or zeros:
        assert code_of(request, RUST) is Code.SIGNATURE_INVALID
    else:
        assert verify(request, KEYS, policy=RUST, now=NOW).created == NOW


INPUT, BASE64 = 'sig1=("@method");created=1', "bGFiZWw="
RUST_INPUT = "sig1=(@method a-b);created=1"


@pytest.mark.parametrize(
    ("shape", "input_lines", "signature_lines"),
    [
        (Shape.PHP_SDK, [INPUT], [f"sig1=:{BASE64}:"]),
        (Shape.PHP_SDK, [INPUT], [BASE64]),
        (Shape.PHP_SDK, [INPUT], [f"Sig1={BASE64}"]),
        (Shape.PHP_SDK, [INPUT], [f"sig1={BASE64}=="]),
        (Shape.PHP_SDK, [INPUT], ["sig1="]),
        (Shape.PHP_SDK, [INPUT], [f"sig1={BASE64}, sig2={BASE64}"]),
        (Shape.PHP_SDK, [INPUT], [f" sig1={BASE64}"]),
        (Shape.RUST_SDK, [RUST_INPUT], [f"sig1={BASE64}"]),
        (Shape.RUST_SDK, [RUST_INPUT], [f":{BASE64}:"]),
        (Shape.RUST_SDK, [INPUT], [BASE64]),
        (Shape.RUST_SDK, [RUST_INPUT.removeprefix("sig1=")], [BASE64]),
        (Shape.RUST_SDK, [RUST_INPUT.replace(" ", "  ")], [BASE64]),
        (Shape.RUST_SDK, [RUST_INPUT.replace("a-b", "A-b")], [BASE64]),
        (Shape.RUST_SDK, [RUST_INPUT.replace("a-b", 'a-b" "c')], [BASE64]),
        (Shape.RUST_SDK, [RUST_INPUT.replace("a-b", "a-b;sf")], [BASE64]),
        (Shape.RUST_SDK, ["sig1=();created=1"], [BASE64]),
        (Shape.RUST_SDK, ["sig1=(@method)"], [BASE64]),
        (Shape.RUST_SDK, [RUST_INPUT + "\n"], [BASE64]),
    ],
)
def test_similar_fields_do_not_have_the_shape(shape: Shape, input_lines: list[str], signature_lines: list[str]) -> None:
    """Fields that differ from a shape in one character, or have several signatures or lines, do not have it."""
    assert strict_form(shape, input_lines, signature_lines) is None
