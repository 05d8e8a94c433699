"""Verify a request: what a proof contains, and one row for each attack, ordered by the precedence of its code."""

import itertools
import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from campaigns.attacks.rows import Attack
from campaigns.attacks.signatures import attacks
from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import (
    Algorithm,
    Code,
    Component,
    Policy,
    Proof,
    PublicKey,
    RequestMessage,
    Shape,
    content_digest,
    load_jwk,
    sign,
    signature_base,
    verify,
)
from incoming_payments.limits import SIGNATURES_MAX
from kits.signed_requests import (
    KEY,
    KEYS,
    NOW,
    NOW_S,
    OTHER,
    SCENE,
    URL,
    both,
    get,
    post,
    put,
    replace,
    signed_get,
    signed_post,
)
from kits.signing_keys import private

ALSO_OTHER = {**KEYS, OTHER.kid: OTHER.public_key()}


def check(
    request: RequestMessage,
    *,
    keys: Mapping[str, PublicKey] = KEYS,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    now: datetime = NOW,
) -> Proof:
    """Call `verify` with the arguments that most tests use."""
    return verify(request, keys, policy=policy, now=now)


def code_of(request: RequestMessage, **options: Any) -> Code:
    """Return the code of the refusal of `request`."""
    with pytest.raises(SignatureRefused) as caught:
        check(request, **options)
    return Code(caught.value.code)


forge, lines, get_with = SCENE.forge, SCENE.lines, SCENE.get_with
covering, post_covering, digested = SCENE.get_covering, SCENE.post_covering, SCENE.digested


# --- proofs ------------------------------------------------------------------------------------


def test_proof_of_a_post_by_the_node_client() -> None:
    """A POST as npm @interledger/open-payments signs it is verified, and the proof has its parameters."""
    request = signed_post()
    names = ("@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type")
    assert request.values("signature-input") == (
        "sig1=(" + " ".join(f'"{name}"' for name in names) + f');keyid="key-1";created={NOW_S}',
    )
    proof = check(request)
    assert (proof.signature_input.label, proof.key_id, proof.algorithm) == ("sig1", "key-1", Algorithm.ED25519)
    assert proof.signature_input.components == tuple(Component(name) for name in names)
    assert (proof.created, proof.expires, proof.signature_input.nonce, proof.signature_input.tag) == (
        NOW,
        None,
        None,
        None,
    )


def test_repr_of_a_proof_does_not_show_the_base() -> None:
    """The `repr` of a proof, which may be logged, does not show the access token."""
    assert "GNAP" not in repr(verify(signed_post(), KEYS, policy=Policy(), now=NOW))


def test_proof_has_the_base_and_not_the_signature() -> None:
    """Two different ECDSA signatures over one request have the same base; one second later the base differs."""
    key = private(Algorithm.ES256)
    policy = Policy()
    proofs = [
        verify(
            sign(get(), key, created=NOW + timedelta(seconds=late)), {key.kid: key.public_key()}, policy=policy, now=NOW
        )
        for late in (0, 0, 1)
    ]
    bases = [proof.base for proof in proofs]
    assert bases[0] == bases[1] != bases[2]
    assert bases[0] == signature_base(
        get(), proofs[0].signature_input.components, (("keyid", key.kid), ("created", NOW_S))
    )
    assert len({proof.signature_input.signature_params for proof in proofs}) == 2


def test_proof_has_the_signed_parameters() -> None:
    """A proof has `created` and `expires` as datetimes in UTC, and the nonce and tag as signed."""
    request = sign(get(), KEY, created=NOW, expires=NOW + timedelta(seconds=9), nonce="n", tag="t", alg_param=True)
    proof = check(request, now=NOW.astimezone(timezone(timedelta(hours=-7))))
    assert (proof.created, proof.expires) == (NOW, NOW + timedelta(seconds=9))
    assert repr(proof.expires).endswith("tzinfo=datetime.timezone.utc)")
    assert (proof.signature_input.nonce, proof.signature_input.tag) == ("n", "t")


def test_complete_request_of_the_node_client() -> None:
    """The Node client sends `complete` with a Content-Type and no body, and does not cover the Content-Type."""
    request = RequestMessage(
        "POST", f"{URL}/1/complete", (("Authorization", "GNAP t"), ("Content-Type", "application/json"))
    )
    assert len(check(sign(request, KEY, created=NOW)).signature_input.components) == 3


def test_order_and_additional_components_are_free() -> None:
    """A signer may choose the order, and add components and unknown parameters, if it covers the required ones."""
    extra = [('"x-a";bs', ":MQ==:"), ('"authorization"', "GNAP token"), ('"@path"', "/incoming-payments")]
    request = forge(get(("X-A", "1")), [*extra, *lines()[:2]], f';x=tok;created={NOW_S};keyid="key-1"')
    assert [component.name for component in check(request).signature_input.components] == [
        "x-a",
        "authorization",
        "@path",
        "@method",
        "@target-uri",
    ]


def test_unchanged_request_of_the_attack_helpers_is_accepted() -> None:
    """A request of the attack helpers without an attack is accepted, so each attack below fails for its change."""
    assert check(covering()).key_id == "key-1"
    assert check(post_covering(digested(), "content-digest")).key_id == "key-1"
    assert check(post_covering(digested(), "content-digest", "content-length", "content-type")).key_id == "key-1"


# --- attacks -----------------------------------------------------------------------------------

ATTACKS = list(attacks(SCENE))


def refusal(attack: Attack, policy: Policy = Policy()) -> SignatureRefused:  # noqa: B008 - frozen
    """Return the refusal of `attack`."""
    with pytest.raises(SignatureRefused) as caught:
        check(attack.request, keys={attack.key.kid: attack.key.public_key()}, policy=policy)
    return caught.value


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_attack_is_refused(attack: Attack) -> None:
    """Each attack is refused with the code in its row."""
    assert refusal(attack).code == attack.code


# Rows that have the shape of an SDK: by name, None if the request is valid in that shape, or its code there
SHAPES = {"no colons, as PHP sends it": None, "hexadecimal digits": Code.SIGNATURE_INVALID}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_attack_is_refused_where_shapes_are_accepted(attack: Attack) -> None:
    """A policy that accepts all shapes refuses each attack, except the row that only has such a shape."""
    policy = Policy(shapes=Shape)
    if (expected := SHAPES.get(attack.name, attack.code)) is None:
        assert check(attack.request, policy=policy).key_id == "key-1"
    else:
        assert refusal(attack, policy).code == expected


def test_attacks_cover_every_reason() -> None:
    """Every code is in the table or has its own test below. No two rows have the same name or the same request."""
    elsewhere = {Code.TAG_MISMATCH, Code.NONCE_MISSING, Code.DIGEST_MISSING}
    assert {attack.code for attack in ATTACKS} == set(Code) - elsewhere
    assert len({attack.kind for attack in ATTACKS}) >= 90
    assert len({attack.id for attack in ATTACKS}) == len(ATTACKS)
    for first, second in itertools.combinations(ATTACKS, 2):
        assert (first.request, first.key) != (second.request, second.key), (first.id, second.id)


def test_attacks_of_a_class_are_in_order_of_precedence() -> None:
    """The rows of a class of attacks are in the order of the verifier's checks."""
    order = list(Code)
    for _, rows in itertools.groupby(ATTACKS, lambda attack: attack.kind):
        ranks = [order.index(attack.code) for attack in rows]
        assert ranks == sorted(ranks)


def test_two_failing_signatures_report_the_later_check() -> None:
    """A GET with two attacks, in either order, is refused with the code of the later check."""
    order = list(Code)
    of_each_class = {
        (attack.kind, attack.code): attack
        for attack in ATTACKS
        if order.index(attack.code) >= order.index(Code.KEY_ID_MISSING)
        and put(put(attack.request, "Signature"), "Signature-Input") == get()
        and len(attack.request.values("signature")) == 1
        and attack.key == KEY
    }
    assert len({attack.code for attack in of_each_class.values()}) > 10
    for first, second in itertools.permutations(of_each_class.values(), 2):
        last = max(first.code, second.code, key=order.index)
        assert code_of(both(relabelled(first.request), second.request)) is last, (first.id, second.id)


def relabelled(request: RequestMessage) -> RequestMessage:
    """Return `request` with another label on its signature. A label is not signed."""
    return replace(replace(request, "Signature-Input", "sig1=", "sig2="), "Signature", "sig1=", "sig2=")


def test_refusal_does_not_repeat_a_secret() -> None:
    """Neither the description nor the details of a refusal have the token or a signature."""
    for attack in ATTACKS:
        refused = refusal(attack)
        said = refused.description + repr(refused.details)
        assert "GNAP token" not in said, attack.id
        for signature in attack.request.values("signature"):
            assert len(signature) < 20 or signature[6:20] not in said, attack.id
        assert 5 < len(refused.description) < 200, attack.id


@pytest.mark.parametrize(
    "name", ["os9m2pmhkur64tb8n6bw7oz8", "OS9M2PMHKUR64TB8N6BW7OZ8", "x-os9m2pmh", "ur64tb8n-x", "6bw7oz8"]
)
def test_refusal_does_not_repeat_a_token_in_a_component_name(name: str) -> None:
    """A client that covers its token by mistake gets a refusal that shows no piece of the token."""
    unsigned = RequestMessage("GET", URL, (("Authorization", "GNAP OS9M2PMHKUR64TB8N6BW7OZ8"),))
    signed = sign(unsigned, KEY, created=NOW)
    with pytest.raises(SignatureRefused) as caught:
        check(replace(signed, "Signature-Input", '"@method"', f'"@method" "{name}"'))
    refused = caught.value
    assert refused.description.startswith("a covered component is ")
    assert name not in f"{refused.description}{refused.details}"


def test_refusal_shows_the_name_of_a_component_without_a_token() -> None:
    """A client that covers a field which it does not send learns its name."""
    with pytest.raises(SignatureRefused, match=r"^x-absent is covered but absent"):
        check(replace(signed_get(), "Signature-Input", '"@method"', '"@method" "x-absent"'))


# --- several signatures ------------------------------------------------------------------------


STALE = forge(get(), lines(), f';keyid="key-1";created={NOW_S - 301}', label="stale")
GOOD = forge(get(), lines(), label="good")
WRONG = forge(get(), lines(), by=OTHER.sign, label="wrong")
STRANGER = forge(get(), lines(), f';keyid="key-2";created={NOW_S}', by=OTHER.sign, label="stranger")
PARTIAL = forge(get(), lines()[:1], label="partial")


@pytest.mark.parametrize("other", [STALE, WRONG, STRANGER, PARTIAL], ids=["stale", "wrong", "stranger", "partial"])
def test_one_valid_signature_is_enough(other: RequestMessage) -> None:
    """A valid signature is found before or after an invalid one."""
    assert check(both(other, GOOD)).signature_input.label == "good"
    assert check(both(GOOD, other)).signature_input.label == "good"


def test_valid_signature_by_an_unknown_key_is_refused() -> None:
    """A valid signature by a key that is not the client's does not help a stale one."""
    assert code_of(both(STALE, STRANGER)) is Code.STALE
    assert check(both(STALE, STRANGER), keys=ALSO_OTHER).key_id == "key-2"


def test_two_signatures_do_not_share_their_coverage() -> None:
    """Two signatures that cover the required components only together are refused."""
    rest = forge(get(), lines()[1:], label="rest")
    assert code_of(both(PARTIAL, rest)) is Code.COMPONENT_NOT_COVERED


def test_number_of_signatures_is_limited() -> None:
    """At most `SIGNATURES_MAX` signatures by known keys are accepted. Those by unknown keys do not count."""
    request = GOOD
    for number in range(SIGNATURES_MAX - 1):
        request = both(forge(get(), lines(), by=OTHER.sign, label=f"s{number}"), request)
    for number in range(SIGNATURES_MAX):
        stranger = forge(get(), lines(), f';keyid="stranger";created={NOW_S}', label=f"x{number}")
        request = both(request, stranger)
    assert check(request).signature_input.label == "good"
    assert code_of(both(request, PARTIAL)) is Code.TOO_MANY_SIGNATURES


def test_signature_is_computed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is refused with another code costs no cryptographic verification."""
    monkeypatch.setattr(PublicKey, "verify", lambda *_: pytest.fail("a signature was computed"))
    for attack in ATTACKS:
        if attack.code is not Code.SIGNATURE_INVALID:
            assert refusal(attack).code == attack.code


# --- keys, policy, time ------------------------------------------------------------------------


def test_missing_keyid_beside_an_unknown_key() -> None:
    """If any signature has a `keyid`, the code names the unknown key and not the missing `keyid`."""
    nameless = forge(get(), lines(), f";created={NOW_S}", label="nameless")
    assert code_of(both(nameless, STRANGER)) is Code.KEY_UNKNOWN
    assert code_of(nameless) is Code.KEY_ID_MISSING


def test_keyid_must_equal_the_kid_of_the_key() -> None:
    """Spec section 5: `keyid` must equal the `kid`, even if the mapping has the key under another name."""
    assert code_of(get_with(f';keyid="alias";created={NOW_S}'), keys={"alias": KEY.public_key()}) is Code.KEY_UNKNOWN
    assert code_of(GOOD, keys={}) is Code.KEY_UNKNOWN


def test_any_alg_for_an_unregistered_algorithm_is_refused() -> None:
    """PS256 and PS384 are not in the registry of RFC 9421, so every value of `alg` is refused."""
    vectors = json.loads((Path(__file__).parents[1] / "vectors" / "rfc9421.json").read_text())
    key = load_jwk({**vectors["keys"]["test-key-rsa-pss"], "alg": "PS256", "kid": "key-1"})
    for alg in ("rsa-pss-sha512", "PS256", "", "None"):
        request = get_with(f';keyid="key-1";created={NOW_S};alg="{alg}"')
        assert code_of(request, keys={"key-1": key}) is Code.ALGORITHM_MISMATCH


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(-61, Code.CREATED_IN_FUTURE), (-60, None), (0, None), (300, None), (301, Code.STALE)],
)
def test_limits_of_created(age_s: int, expected: Code | None) -> None:
    """`created` may be `max_age_s` seconds old and `clock_skew_s` seconds ahead, and not one second more."""
    now = NOW + timedelta(seconds=age_s)
    if expected is None:
        assert check(GOOD, now=now).key_id == "key-1"
    else:
        assert code_of(GOOD, now=now) is expected


@pytest.mark.parametrize(("later_s", "age_s"), [(300.1, 301), (300.9, 301), (301.0, 301), (-60.1, -61), (-61.0, -61)])
def test_age_of_a_refused_signature_is_in_whole_seconds(later_s: float, age_s: int) -> None:
    """`age_s` is rounded away from zero, so that it is always beyond the limit in the description."""
    with pytest.raises(SignatureRefused) as caught:
        check(GOOD, now=NOW + timedelta(seconds=later_s))
    assert caught.value.details == {"age_s": age_s}
    assert type(caught.value.details["age_s"]) is int
    assert f"created is {abs(age_s)} s " in caught.value.description


def test_skew_does_not_extend_expires() -> None:
    """A signature is accepted until the second of `expires`, without an allowance for clock skew."""
    request = sign(get(), KEY, created=NOW, expires=NOW_S + 9)
    assert check(request, now=NOW + timedelta(seconds=9)).expires == NOW + timedelta(seconds=9)
    assert code_of(request, now=NOW + timedelta(seconds=9, microseconds=1)) is Code.EXPIRED


@pytest.mark.parametrize(
    ("later_s", "words"),
    [
        (-61, "created is 61 s ahead of our clock, but at most 60 s are allowed"),
        (301, "created is 301 s ago, but at most 300 s are allowed"),
        (11.5, "the signature expired 3 s ago"),
    ],
)
def test_refusal_of_a_time_says_how_far_it_is_off(later_s: float, words: str) -> None:
    """The description has the seconds by which a time is off, so that the client can compare its clock."""
    request = sign(get(), KEY, created=NOW, expires=NOW_S + 9) if later_s == 11.5 else GOOD
    with pytest.raises(SignatureRefused) as caught:
        check(request, now=NOW + timedelta(seconds=later_s))
    assert caught.value.description.startswith(words)


def test_now_without_zone_raises_invalid_value() -> None:
    """A time without a zone is a mistake of the caller, so it raises `InvalidValue` and not a refusal."""
    with pytest.raises(InvalidValue, match="zone") as caught:
        check(GOOD, now=NOW.replace(tzinfo=None))
    assert caught.value.details == {"member": "now"}


def test_policy_with_another_window() -> None:
    """A policy may have a shorter maximum age and no clock skew."""
    policy = Policy(max_age_s=5, clock_skew_s=0)
    assert check(GOOD, policy=policy, now=NOW + timedelta(seconds=5)).key_id == "key-1"
    assert code_of(GOOD, policy=policy, now=NOW + timedelta(seconds=6)) is Code.STALE
    assert code_of(GOOD, policy=policy, now=NOW - timedelta(seconds=1)) is Code.CREATED_IN_FUTURE


def test_refusal_names_all_components_that_are_not_covered() -> None:
    """One refusal names everything that is missing."""
    policy = Policy(required=("@method", "x-order"))
    request = RequestMessage("POST", URL, (("X-Order", '"a"'),), b"{}")
    for components, expected, named in (
        (("@method", "content-digest", "x-order"), None, ""),
        (("@method", "content-digest"), Code.COMPONENT_NOT_COVERED, "x-order"),
        (("@method", "content-digest", Component("x-order", (("bs", True),))), Code.COMPONENT_NOT_COVERED, "x-order"),
        (("@method",), Code.COMPONENT_NOT_COVERED, "x-order, content-digest"),
        (("content-digest",), Code.COMPONENT_NOT_COVERED, "@method, x-order"),
        (("@method", "x-order"), Code.BODY_NOT_COVERED, "content-digest"),
    ):  # fmt: skip
        signed = sign(request, KEY, created=NOW, components=components)
        if expected is None:
            assert check(signed, policy=policy).key_id == "key-1"
            continue
        with pytest.raises(SignatureRefused) as caught:
            check(signed, policy=policy)
        assert (caught.value.code, caught.value.details["component"]) == (expected, named)


def test_policy_with_a_list_of_components() -> None:
    """A list of components becomes a tuple, so that a policy has a hash and does not change with the list."""
    names = ["@method", "x-a"]
    policy = Policy(required=names)
    names.append("x-b")
    assert policy == Policy(required=("@method", "x-a"))
    assert hash(policy) == hash(Policy(required=("@method", "x-a")))


def test_policy_with_a_tag() -> None:
    """A policy with a tag refuses a signature without that tag."""
    policy = Policy(tag="pay")
    assert check(sign(get(), KEY, created=NOW, tag="pay"), policy=policy).signature_input.tag == "pay"
    for tag in (None, "Pay", ""):
        assert code_of(sign(get(), KEY, created=NOW, tag=tag), policy=policy) is Code.TAG_MISMATCH


def test_policy_that_requires_a_nonce() -> None:
    """A policy that requires a nonce refuses a missing or empty one."""
    policy = Policy(nonce_required=True)
    assert check(sign(get(), KEY, created=NOW, nonce="n"), policy=policy).signature_input.nonce == "n"
    for nonce in (None, ""):
        assert code_of(sign(get(), KEY, created=NOW, nonce=nonce), policy=policy) is Code.NONCE_MISSING


@pytest.mark.parametrize(
    "arguments",
    [
        {"required": ()},
        {"required": ("Authorization",)},
        {"required": ("@status",)},
        {"required": ("@query-param",)},
        {"required": ("",)},
        {"required": ("@method", "authorization, date")},
        {"max_age_s": 0},
        {"max_age_s": -1},
        {"max_age_s": 1.5},
        {"max_age_s": True},
        {"clock_skew_s": -1},
        {"clock_skew_s": "1"},
        {"clock_skew_s": False},
        {"shapes": ["php-sdk"]},
        {"shapes": [Shape.PHP_SDK, None]},
    ],
)
def test_malformed_policy_is_refused(arguments: dict[str, Any]) -> None:
    """A policy with a malformed setting is refused, and the refusal names the setting."""
    with pytest.raises(InvalidValue) as caught:
        Policy(**arguments)
    assert caught.value.details == {"member": next(iter(arguments))}


def test_default_policy() -> None:
    """The default policy is Spec section 5. A policy keeps its own copy of the shapes, and takes keywords only."""
    policy = Policy()
    assert (policy.required, policy.max_age_s) == (("@method", "@target-uri", "authorization"), 300)
    assert (policy.clock_skew_s, policy.nonce_required, policy.tag, policy.shapes) == (60, False, None, frozenset())
    shapes = [Shape.PHP_SDK]
    policy = Policy(shapes=shapes)
    shapes.append(Shape.RUST_SDK)
    assert policy.shapes == {Shape.PHP_SDK}
    assert hash(policy) == hash(Policy(shapes=[Shape.PHP_SDK]))
    with pytest.raises(TypeError):
        Policy(("@method",))  # type: ignore[call-arg] # keywords only, so that two numbers cannot be swapped


@pytest.mark.parametrize(
    ("request_", "details"),
    [
        (forge(get(), lines()[1:]), {"component": "@method"}),
        (forge(post(), lines()), {"component": "content-digest"}),
        (get_with(f';keyid="key-1";created={NOW_S - 301}'), {"age_s": 301}),
        (get_with(f';keyid="key-1";created={NOW_S + 61}'), {"age_s": -61}),
        (forge(post(), lines()[:1]), {"component": "@target-uri, authorization, content-digest"}),
        (SCENE.meant_for("https://ase.example/other"), {"target_uri": get().target_uri}),
        (put(signed_get(), "Signature-Input", "sig1=("), {"field": "Signature-Input", "position": 6}),
        (put(signed_get(), "Signature", "sig1=:A:"), {"field": "Signature", "position": 7}),
    ],
    ids=["component", "body", "stale", "ahead", "components", "invalid", "input", "signature"],
)
def test_refusal_has_details(request_: RequestMessage, details: dict[str, object]) -> None:
    """The details of a refusal name the component, field or position at fault, for programs."""
    with pytest.raises(SignatureRefused) as caught:
        check(request_)
    assert caught.value.details == details


def test_digest_of_an_empty_body_is_accepted() -> None:
    """A request without a body may have a correct digest, covered or not."""
    assert check(covering(headers=[("Content-Digest", content_digest(b""))])).key_id == "key-1"
    field = ("Content-Digest", content_digest(b""))
    assert check(covering(('"content-digest"', field[1]), headers=[field])).key_id == "key-1"


def test_body_of_one_byte_must_be_covered() -> None:
    """A body of one byte must be covered like any other."""
    assert code_of(forge(post(body=b"1"), [('"@method"', "POST"), *lines()[1:]])) is Code.BODY_NOT_COVERED


@pytest.mark.parametrize("around", [("", ""), (" ", ""), ("", " "), ("\t", ""), ("", "\t"), (" \t", "\t ")])
def test_white_space_around_content_length_is_ignored(around: tuple[str, str]) -> None:
    """RFC 9110 §5.5: white space around a field value is not part of it."""
    request = digested()
    value = f"{around[0]}{len(request.body)}{around[1]}"
    signed = sign(put(request, "Content-Length", value), KEY, created=NOW)
    assert "content-length" in {component.name for component in check(signed).signature_input.components}


def test_content_length_that_is_not_covered_is_ignored() -> None:
    """A `Content-Length` that is not covered proves nothing, so the verifier leaves it to the HTTP server."""
    assert check(post_covering(put(digested(), "Content-Length", "5"), "content-digest")).key_id == "key-1"
