"""The shapes of two SDKs: read where a policy names them, and nowhere else; and nothing but the shape is loosened."""

import re
from base64 import b64encode
from typing import Any

import pytest
from attrs import evolve

from characters import DIGITS, LETTERS, LOWER, PRINTABLE, accepted_characters
from frozen_values import assert_frozen
from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import Policy, Reason, Request, Shape, verify
from incoming_payments.httpsig.shapes import StrictForm, strict_form
from signed_requests import BODY, KEY, KEYS, NOW, NOW_S, URL, get, post, put, signed_get, signed_post

STRICT = Policy()
PHP = Policy(shapes=[Shape.PHP_SDK])
RUST = Policy(shapes=[Shape.RUST_SDK])
BOTH = Policy(shapes=Shape)


def php(request: Request) -> Request:
    """`request`, signed already, as the PHP SDK writes its signature: without colons."""
    (signature,) = request.values("signature")
    return put(request, "Signature", signature.replace(":", ""))


def rust(request: Request, *covered: str, written: str = f';created={NOW_S};keyid="key-1"') -> Request:
    """`request` signed as the Rust SDK does it: no quotes, also in what is signed; neither label nor colons."""
    names = ["@method", "@target-uri", "content-type", "authorization", *covered]
    derived = {"@method": request.method, "@target-uri": request.target_uri}
    params = f"({' '.join(names)}){written}"
    lines = [f'"{name}": {derived[name] if name in derived else request.values(name)[0]}' for name in names]
    signature = b64encode(KEY.sign("\n".join([*lines, f'"@signature-params": {params}']).encode())).decode()
    return put(put(request, "Signature-Input", f"sig1={params}"), "Signature", signature)


PHP_GET, PHP_POST = php(signed_get()), php(signed_post())
RUST_GET = rust(get(("Content-Type", "application/json")))
DIGEST = ("Content-Digest", signed_post().values("content-digest")[0])
RUST_POST = rust(post(DIGEST), "content-digest", "content-length")


def test_values_do_not_change() -> None:
    """What is looked at is what is parsed."""
    form = strict_form(Shape.PHP_SDK, ['sig1=("@method")'], ["sig1=AQID"])
    assert form is not None
    assert_frozen(form)


SHAPES = {
    # of each shape: the two lines with a # for the character, and what may stand there
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
def test_each_character_of_a_shape(shape: Shape, input_line: str, signature: str, expected: set[str]) -> None:
    """It is loosened by the characters that the SDK writes, and by no other."""

    def form(character: str) -> object:
        return strict_form(shape, [input_line.replace("#", character)], [signature.replace("#", character)])

    assert accepted_characters(form, InvalidValue) == expected


@pytest.mark.parametrize("shape", Shape)
@pytest.mark.parametrize(
    ("input_lines", "signature_lines"),
    [([], ["AQID"]), (["a=(a);a"], []), (["a=(a);a"] * 2, ["AQID"]), (["a=(a);a"], ["a=AQID"] * 2), ([], ["a=AQID"])],
)
def test_a_shape_is_one_line_of_each(shape: Shape, input_lines: list[str], signature_lines: list[str]) -> None:
    """None and two are not the SDK's."""
    assert strict_form(shape, input_lines, signature_lines) is None


def test_the_least_of_a_shape() -> None:
    """One component, no parameter; and a padding of up to two."""
    for base64 in ("AQID", "AQI=", "AQ=="):
        assert strict_form(Shape.RUST_SDK, ["a=(@b c-1);"], [base64]) == StrictForm(
            'a=("@b" "c-1");', f"a=:{base64}:", "(@b c-1)"
        )
        assert strict_form(Shape.PHP_SDK, ["x"], [f"a={base64}"]) == StrictForm("x", f"a=:{base64}:", None)
    for base64 in ("", "=", "AQID===", "A=Q="):
        assert strict_form(Shape.RUST_SDK, ["a=(a);"], [base64]) is None
        assert strict_form(Shape.PHP_SDK, ["x"], [f"a={base64}"]) is None


def test_what_the_php_sdk_itself_sends() -> None:
    """Made by `createHeaders` of interledger/open-payments-php, of June 2026, with our key and time."""
    (signature_input,), (signature,) = PHP_POST.values("signature-input"), PHP_POST.values("signature")
    assert signature_input == (
        'sig1=("@method" "@target-uri" "authorization" "content-digest" "content-length" "content-type")'
        ';keyid="key-1";created=1893499200'
    )
    assert signature == "sig1=APMETfFii+R6ivP+gPOFPP7RnBhS2RqlSPvaYKYNC6vwtKOtcjmzyXVqLid4UF77jy2S+iQdTcMdQAVhtrJ1AA=="
    assert PHP_GET.values("signature") == (
        "sig1=L9bx+oOeGNyQiP+xBtHZ/qc6SNcxiIFUeitRvtwbnqNZWniZ4OSCuBuijIkC4LmOBj83gt8Ogl8U3kQQYKRGBQ==",
    )


def reason(request: Request, policy: Policy) -> Reason:
    """Why `request` is refused."""
    with pytest.raises(SignatureRefused) as caught:
        verify(request, KEYS, policy=policy, now=NOW)
    return Reason(caught.value.reason)


@pytest.mark.parametrize(
    ("request_", "policy"),
    [(PHP_GET, PHP), (PHP_POST, PHP), (PHP_POST, BOTH), (RUST_GET, RUST), (RUST_POST, RUST), (RUST_POST, BOTH)],
)
def test_a_shape_is_read_where_it_is_named(request_: Request, policy: Policy) -> None:
    """And what is proven is what is proven of everybody else."""
    proof = verify(request_, KEYS, policy=policy, now=NOW)
    assert (proof.label, proof.key_id, proof.created) == ("sig1", "key-1", NOW)
    assert {"@method", "@target-uri", "authorization"} <= {component.name for component in proof.components}


@pytest.mark.parametrize(
    ("request_", "policy", "expected"),
    [
        (PHP_GET, STRICT, Reason.SIGNATURE_MALFORMED),
        (PHP_GET, RUST, Reason.SIGNATURE_MALFORMED),
        (RUST_GET, STRICT, Reason.SIGNATURE_INPUT_MALFORMED),
        (RUST_GET, PHP, Reason.SIGNATURE_INPUT_MALFORMED),
    ],
)
def test_a_shape_is_not_read_elsewhere(request_: Request, policy: Policy, expected: Reason) -> None:
    """Strict is the default, and one shape does not bring the other."""
    assert reason(request_, policy) is expected


@pytest.mark.parametrize("request_", [signed_get(), signed_post()])
@pytest.mark.parametrize("policy", [PHP, RUST, BOTH])
def test_the_strict_form_is_always_read(request_: Request, policy: Policy) -> None:
    """As it is without shapes."""
    assert verify(request_, KEYS, policy=policy, now=NOW) == verify(request_, KEYS, policy=STRICT, now=NOW)


def edited(request: Request, name: str, pattern: str, new: str) -> Request:
    """`request` with what `pattern` finds first in the field `name` exchanged for `new`."""
    (value,) = request.values(name.lower())
    changed, count = re.subn(pattern, new, value, count=1)
    assert count == 1
    return put(request, name, changed)


# What is changed in each of the shapes, and the reason that it has in the strict form too
CHANGES: list[tuple[str, Any, Reason]] = [
    ("a label repeated", lambda r: put(r, "Signature", *r.values("signature") * 2), Reason.SIGNATURE_MALFORMED),
    ("not canonical base64", lambda r: edited(r, "Signature", "[AQgw]==(:?)$", r"x==\1"), Reason.SIGNATURE_MALFORMED),
    ("no padding", lambda r: edited(r, "Signature", "==(:?)$", r"\1"), Reason.SIGNATURE_MALFORMED),
    ("a newline after it", lambda r: edited(r, "Signature", "$", "\n"), Reason.SIGNATURE_MALFORMED),
    ("a parameter after it", lambda r: edited(r, "Signature", "$", ";a"), Reason.SIGNATURE_MALFORMED),
    ("created is a string", lambda r: edited(r, "Signature-Input", "created=([0-9]+)", r'created="\1"'),
     Reason.SIGNATURE_INPUT_MALFORMED),
    ("a parameter repeated", lambda r: edited(r, "Signature-Input", "$", ";created=1"),
     Reason.SIGNATURE_INPUT_MALFORMED),
    ("another input", lambda r: edited(r, "Signature-Input", "$", ', sig2=("@method")'), Reason.LABELS_DIFFER),
    ("another key", lambda r: edited(r, "Signature-Input", "key-1", "key-2"), Reason.KEY_UNKNOWN),
    ("the method not covered", lambda r: edited(r, "Signature-Input", '"?@method"? ', ""),
     Reason.COMPONENT_NOT_COVERED),
    ("a body added", lambda r: evolve(r, body=BODY), Reason.BODY_NOT_COVERED),
    ("created long ago", lambda r: edited(r, "Signature-Input", "created=[0-9]+", "created=1"), Reason.STALE),
    ("a component twice", lambda r: edited(r, "Signature-Input", r'\(("?@method"?)', r"(\1 \1"),
     Reason.COMPONENT_REPEATED),
    ("a component that is none", lambda r: edited(r, "Signature-Input", r'\(("?)', r"(\1@x\1 \1"),
     Reason.COMPONENT_UNSUPPORTED),
    ("the token taken away", lambda r: put(r, "Authorization"), Reason.COMPONENT_ABSENT),
    ("the token twice", lambda r: put(r, "Authorization", "GNAP token", "GNAP other"), Reason.FIELD_REPEATED),
    ("another token", lambda r: put(r, "Authorization", "GNAP other"), Reason.SIGNATURE_INVALID),
    ("another target", lambda r: evolve(r, target_uri=f"{URL}/x"), Reason.SIGNATURE_INVALID),
    ("another time", lambda r: edited(r, "Signature-Input", str(NOW_S), str(NOW_S + 1)), Reason.SIGNATURE_INVALID),
    ("zeros", lambda r: edited(r, "Signature", "[A-Za-z0-9+/]{86}==", "A" * 86 + "=="), Reason.SIGNATURE_INVALID),
    ("one octet less", lambda r: edited(r, "Signature", "[A-Za-z0-9+/]{4}(?=.{2}==:?$)", ""),
     Reason.SIGNATURE_INVALID),
]  # fmt: skip


@pytest.mark.parametrize(("change", "expected"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
@pytest.mark.parametrize(
    ("request_", "policy"), [(PHP_GET, PHP), (RUST_GET, RUST), (signed_get(), BOTH)], ids=["php", "rust", "strict"]
)
def test_nothing_else_is_loosened(request_: Request, policy: Policy, change: Any, expected: Reason) -> None:
    """The same attack is refused for the same reason in each shape."""
    assert reason(change(request_), policy) in {expected, *_EARLIER.get(expected, ())}


# A field that has no shape any more is not of the strict form either, and that is found sooner.
_EARLIER = {
    Reason.SIGNATURE_MALFORMED: {Reason.SIGNATURE_INPUT_MALFORMED},
    Reason.SIGNATURE_INVALID: {Reason.SIGNATURE_MALFORMED},
}


def test_the_body_is_checked_in_each_shape() -> None:
    """The digest is covered, and holds for the very bytes received."""
    for request, policy in ((PHP_POST, PHP), (RUST_POST, RUST)):
        assert reason(evolve(request, body=BODY.replace(b"alice", b"bobby")), policy) is Reason.DIGEST_MISMATCH
        assert reason(put(request, "Content-Length", "5"), policy) is Reason.CONTENT_LENGTH_MISMATCH
    uncovered = rust(post(DIGEST))
    assert reason(uncovered, RUST) is Reason.BODY_NOT_COVERED


def test_a_signature_holds_in_the_shape_that_was_signed_only() -> None:
    """What was signed with quotes is not good without, nor the other way round: they are other bytes."""
    unquoted = put(signed_get(), "Signature-Input", signed_get().values("signature-input")[0].replace('" "', " "))
    unquoted = edited(edited(unquoted, "Signature-Input", r'\("', "("), "Signature-Input", r'"\)', ")")
    bare = put(unquoted, "Signature", signed_get().values("signature")[0][6:-1])
    assert reason(bare, RUST) is Reason.SIGNATURE_INVALID
    (sent,), (signature,) = RUST_GET.values("signature-input"), RUST_GET.values("signature")
    quoted = put(RUST_GET, "Signature-Input", re.sub(r"([@a-z][a-z\-]+)(?=[ )])", r'"\1"', sent))
    assert reason(put(quoted, "Signature", f"sig1=:{signature}:"), BOTH) is Reason.SIGNATURE_INVALID


@pytest.mark.parametrize("zeros", ["", "000"])
@pytest.mark.parametrize("space", ["", " "])
def test_parameters_are_signed_in_the_strict_form(space: str, zeros: str) -> None:
    """RFC 9421 §2.5: in this shape as in any, what is signed is the serialisation of what was read."""
    request = rust(get(("Content-Type", "application/json")), written=f';{space}created={zeros}{NOW_S};keyid="key-1"')
    if space or zeros:
        assert reason(request, RUST) is Reason.SIGNATURE_INVALID
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
        (Shape.PHP_SDK, [INPUT], [f"sig1={BASE64}", f"sig2={BASE64}"]),
        (Shape.PHP_SDK, [INPUT, INPUT], [f"sig1={BASE64}"]),
        (Shape.PHP_SDK, [], []),
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
        (Shape.RUST_SDK, [RUST_INPUT], [BASE64, BASE64]),
    ],
)
def test_what_is_near_to_a_shape_is_not_of_it(shape: Shape, input_lines: list[str], signature_lines: list[str]) -> None:
    """One signature, one line a field, and to the letter."""
    assert strict_form(shape, input_lines, signature_lines) is None


def test_strict_form_of_the_rust_sdk() -> None:
    """Quotes, label and colons are put in; what was signed stays as it was sent."""
    form = strict_form(Shape.RUST_SDK, [RUST_INPUT], [BASE64])
    assert form is not None
    assert (form.signature_input, form.signature) == ('sig1=("@method" "a-b");created=1', f"sig1=:{BASE64}:")
    assert form.components == "(@method a-b)"


def test_a_policy_takes_known_shapes_only() -> None:
    """A name is not a shape: settings turn one into the other."""
    with pytest.raises(InvalidValue, match="shapes are of php-sdk, rust-sdk"):
        Policy(shapes=["php-sdk"])  # type: ignore[list-item]
