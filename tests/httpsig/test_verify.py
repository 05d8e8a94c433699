"""The decision: what is proven, and one row for each attack, by the precedence of its reason."""

import itertools
import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from attacks.rows import Attack
from attacks.signatures import attacks
from frozen_values import assert_frozen
from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import (
    Algorithm,
    Component,
    Policy,
    Proof,
    PublicKey,
    Reason,
    Request,
    Shape,
    content_digest,
    load_jwk,
    sign,
    signature_base,
    verify,
)
from incoming_payments.limits import SIGNATURES_MAX
from signed_requests import (
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
from signing_keys import private

ALSO_OTHER = {**KEYS, OTHER.kid: OTHER.public_key()}


def check(
    request: Request,
    *,
    keys: Mapping[str, PublicKey] = KEYS,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    now: datetime = NOW,
) -> Proof:
    """`verify` with what most tests give it."""
    return verify(request, keys, policy=policy, now=now)


def reason(
    request: Request,
    *,
    keys: Mapping[str, PublicKey] = KEYS,
    policy: Policy = Policy(),  # noqa: B008 - frozen
    now: datetime = NOW,
) -> Reason:
    """Why `request` is refused."""
    with pytest.raises(SignatureRefused) as caught:
        verify(request, keys, policy=policy, now=now)
    return Reason(caught.value.code)


forge, lines, get_with = SCENE.forge, SCENE.lines, SCENE.get_with
covering, post_covering, digested = SCENE.get_covering, SCENE.post_covering, SCENE.digested


# --- what is proven ----------------------------------------------------------------------------


def test_proof_of_the_node_clients_post() -> None:
    """The shape that npm @interledger/open-payments sends is proven, and the proof says what was."""
    request = signed_post()
    names = ("@method", "@target-uri", "authorization", "content-digest", "content-length", "content-type")
    assert request.values("signature-input") == (
        "sig1=(" + " ".join(f'"{name}"' for name in names) + f');keyid="key-1";created={NOW_S}',
    )
    proof = check(request)
    assert (proof.label, proof.key_id, proof.algorithm) == ("sig1", "key-1", Algorithm.ED25519)
    assert proof.components == tuple(Component(name) for name in names)
    assert (proof.created, proof.expires, proof.nonce, proof.tag) == (NOW, None, None, None)


def test_values_do_not_change() -> None:
    """What is proven is not changed by who acts on it, and a policy not between two requests."""
    assert_frozen(Policy(), verify(signed_post(), KEYS, policy=Policy(), now=NOW))


def test_a_proof_does_not_show_what_was_signed() -> None:
    """The access token is in it, and proofs may be logged."""
    assert "GNAP" not in repr(verify(signed_post(), KEYS, policy=Policy(), now=NOW))


def test_proof_names_what_was_signed_and_not_the_signature() -> None:
    """Two ECDSA signatures differ, over the same base; the next second has another."""
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
    assert bases[0] == signature_base(get(), proofs[0].components, (("keyid", key.kid), ("created", NOW_S)))
    assert len({proof.signature_input.signature_params for proof in proofs}) == 2


def test_proof_has_the_times_in_utc_and_the_rest() -> None:
    """`created` and `expires` are datetimes in UTC; nonce and tag come as they were signed."""
    request = sign(get(), KEY, created=NOW, expires=NOW + timedelta(seconds=9), nonce="n", tag="t", alg_param=True)
    proof = check(request, now=NOW.astimezone(timezone(timedelta(hours=-7))))
    assert (proof.created, proof.expires) == (NOW, NOW + timedelta(seconds=9))
    assert repr(proof.expires).endswith("tzinfo=datetime.timezone.utc)")
    assert (proof.nonce, proof.tag) == ("n", "t")


def test_complete_of_the_node_client() -> None:
    """Its `complete` has no body but a Content-Type, which is not covered then."""
    request = Request("POST", f"{URL}/1/complete", (("Authorization", "GNAP t"), ("Content-Type", "application/json")))
    assert len(check(sign(request, KEY, created=NOW)).components) == 3


def test_order_and_extra_components_are_the_signers() -> None:
    """Any order, further components, parameters that nobody knows: what counts is that the required ones are there."""
    extra = [('"x-a";bs', ":MQ==:"), ('"authorization"', "GNAP token"), ('"@path"', "/incoming-payments")]
    request = forge(get(("X-A", "1")), [*extra, *lines()[:2]], f';x=tok;created={NOW_S};keyid="key-1"')
    assert [component.name for component in check(request).components] == [
        "x-a",
        "authorization",
        "@path",
        "@method",
        "@target-uri",
    ]


def test_labels_carry_no_meaning() -> None:
    """Any label will do."""
    assert check(sign(get(), KEY, created=NOW, label="*anything")).label == "*anything"


def test_a_forged_request_of_the_tests_is_good_when_nothing_is_wrong() -> None:
    """So that each attack below fails for what it does, and not for how the tests make it."""
    assert check(covering()).key_id == "key-1"
    assert check(post_covering(digested(), "content-digest")).key_id == "key-1"
    assert check(post_covering(digested(), "content-digest", "content-length", "content-type")).key_id == "key-1"


# --- attacks -----------------------------------------------------------------------------------

ATTACKS = list(attacks(SCENE))


def refusal(attack: Attack, policy: Policy = Policy()) -> SignatureRefused:  # noqa: B008 - frozen
    """How `attack` is refused."""
    with pytest.raises(SignatureRefused) as caught:
        check(attack.request, keys={attack.key.kid: attack.key.public_key()}, policy=policy)
    return caught.value


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_attack(attack: Attack) -> None:
    """Each is refused, for the reason that it is an attack."""
    assert refusal(attack).code == attack.reason


# What is the shape itself, and then good; and what can be read as one.
SHAPES = {"no colons, as PHP sends it": None, "hexadecimal digits": Reason.SIGNATURE_INVALID}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.id)
def test_attack_where_other_shapes_are_read(attack: Attack) -> None:
    """A policy that reads what some clients write otherwise lets no attack through, but for the shape itself."""
    policy = Policy(shapes=Shape)
    if (expected := SHAPES.get(attack.name, attack.reason)) is None:
        assert check(attack.request, policy=policy).key_id == "key-1"
    else:
        assert refusal(attack, policy).code == expected


def test_attacks_are_of_many_kinds_and_leave_no_reason_out() -> None:
    """Every reason is in the table, or in a test of its own below; no two rows have one name, or are one request."""
    elsewhere = {Reason.TAG_MISMATCH, Reason.NONCE_MISSING, Reason.DIGEST_MISSING}
    assert {attack.reason for attack in ATTACKS} == set(Reason) - elsewhere
    assert len({attack.kind for attack in ATTACKS}) >= 90
    assert len({attack.id for attack in ATTACKS}) == len(ATTACKS)
    for first, second in itertools.combinations(ATTACKS, 2):
        assert (first.request, first.key) != (second.request, second.key), (first.id, second.id)


def test_rows_of_a_class_stand_by_precedence() -> None:
    """So that a table reads in the order in which the verifier looks."""
    order = list(Reason)
    for _, rows in itertools.groupby(ATTACKS, lambda attack: attack.kind):
        ranks = [order.index(attack.reason) for attack in rows]
        assert ranks == sorted(ranks)


def test_a_request_that_is_wrong_in_two_ways_is_refused_for_what_comes_last() -> None:
    """Whichever two attacks on the same GET meet in one request, in either order: the one that came furthest counts."""
    order = list(Reason)
    of_each_class = {
        (attack.kind, attack.reason): attack
        for attack in ATTACKS
        if order.index(attack.reason) >= order.index(Reason.KEY_ID_MISSING)
        and put(put(attack.request, "Signature"), "Signature-Input") == get()
        and len(attack.request.values("signature")) == 1
        and attack.key == KEY
    }
    assert len({attack.reason for attack in of_each_class.values()}) > 10
    for first, second in itertools.permutations(of_each_class.values(), 2):
        last = max(first.reason, second.reason, key=order.index)
        assert reason(both(relabelled(first.request), second.request)) is last, (first.id, second.id)


def relabelled(request: Request) -> Request:
    """`request` with another label on its signature, which is not signed."""
    return replace(replace(request, "Signature-Input", "sig1=", "sig2="), "Signature", "sig1=", "sig2=")


def test_no_refusal_repeats_a_secret() -> None:
    """Neither the token nor a signature is in what a refusal says."""
    for attack in ATTACKS:
        refused = refusal(attack)
        said = refused.description + repr(refused.details)
        assert "GNAP token" not in said, attack.id
        for signature in attack.request.values("signature"):
            assert len(signature) < 20 or signature[6:20] not in said, attack.id
        assert 5 < len(refused.description) < 200, attack.id


# --- several signatures ------------------------------------------------------------------------


STALE = forge(get(), lines(), f';keyid="key-1";created={NOW_S - 301}', label="stale")
GOOD = forge(get(), lines(), label="good")
WRONG = forge(get(), lines(), by=OTHER.sign, label="wrong")
STRANGER = forge(get(), lines(), f';keyid="key-2";created={NOW_S}', by=OTHER.sign, label="stranger")
PARTIAL = forge(get(), lines()[:1], label="partial")


@pytest.mark.parametrize("other", [STALE, WRONG, STRANGER, PARTIAL], ids=["stale", "wrong", "stranger", "partial"])
def test_one_good_signature_is_enough(other: Request) -> None:
    """Whatever stands before or after it, the good one is found and proven."""
    assert check(both(other, GOOD)).label == "good"
    assert check(both(GOOD, other)).label == "good"


def test_a_good_signature_under_another_key_proves_nothing() -> None:
    """One is incomplete, the other by a key that is not the client's: both are no."""
    assert reason(both(STALE, STRANGER)) is Reason.STALE
    assert check(both(STALE, STRANGER), keys=ALSO_OTHER).key_id == "key-2"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (STALE, PARTIAL, Reason.STALE),
        (PARTIAL, STALE, Reason.STALE),
        (STRANGER, PARTIAL, Reason.COMPONENT_NOT_COVERED),
        (WRONG, STALE, Reason.SIGNATURE_INVALID),
        (STALE, WRONG, Reason.SIGNATURE_INVALID),
    ],
)
def test_the_reason_of_the_one_that_came_furthest(first: Request, second: Request, expected: Reason) -> None:
    """When all fail, what is reported is the one that failed last by the order of the checks."""
    assert reason(both(first, second)) is expected


def test_covered_by_two_signatures_together_is_not_covered() -> None:
    """Each signature stands for itself: two halves are not a whole."""
    rest = forge(get(), lines()[1:], label="rest")
    assert reason(both(PARTIAL, rest)) is Reason.COMPONENT_NOT_COVERED


def test_not_more_signatures_than_the_limit() -> None:
    """At most so many are computed; strangers' do not count, for they cost nothing."""
    request = GOOD
    for number in range(SIGNATURES_MAX - 1):
        request = both(forge(get(), lines(), by=OTHER.sign, label=f"s{number}"), request)
    for number in range(SIGNATURES_MAX):
        stranger = forge(get(), lines(), f';keyid="stranger";created={NOW_S}', label=f"x{number}")
        request = both(request, stranger)
    assert check(request).label == "good"
    assert reason(both(request, PARTIAL)) is Reason.TOO_MANY_SIGNATURES


def test_no_signature_is_computed_before_the_rest_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is refused for another reason never reaches the curve."""
    monkeypatch.setattr(PublicKey, "verify", lambda *_: pytest.fail("the curve was asked"))
    for attack in ATTACKS:
        if attack.reason is not Reason.SIGNATURE_INVALID:
            assert refusal(attack).code == attack.reason


# --- keys, policy, time ------------------------------------------------------------------------


def test_one_signature_without_keyid_beside_a_stranger() -> None:
    """The reason is that the key is unknown, when there is any `keyid`: that is what can be put right."""
    nameless = forge(get(), lines(), f";created={NOW_S}", label="nameless")
    assert reason(both(nameless, STRANGER)) is Reason.KEY_UNKNOWN
    assert reason(nameless) is Reason.KEY_ID_MISSING


def test_keyid_is_the_kid_whatever_the_mapping_says() -> None:
    """Contract section 5: `keyid` MUST equal the `kid`, also when a key was filed under another name."""
    assert reason(get_with(f';keyid="alias";created={NOW_S}'), keys={"alias": KEY.public_key()}) is Reason.KEY_UNKNOWN
    assert reason(GOOD, keys={}) is Reason.KEY_UNKNOWN


def test_alg_for_a_key_whose_algorithm_has_no_name() -> None:
    """PS256 and PS384 are not in the registry of RFC 9421, so that no `alg` can be right."""
    vectors = json.loads((Path(__file__).parents[1] / "vectors" / "rfc9421.json").read_text())
    key = load_jwk({**vectors["keys"]["test-key-rsa-pss"], "alg": "PS256", "kid": "key-1"})
    for alg in ("rsa-pss-sha512", "PS256", "", "None"):
        request = get_with(f';keyid="key-1";created={NOW_S};alg="{alg}"')
        assert reason(request, keys={"key-1": key}) is Reason.ALGORITHM_MISMATCH


@pytest.mark.parametrize(
    ("age_s", "expected"),
    [(-61, Reason.CREATED_IN_FUTURE), (-60, None), (0, None), (300, None), (301, Reason.STALE)],
)
def test_edges_of_the_window(age_s: int, expected: Reason | None) -> None:
    """`created` may be as old as the policy says, and as far ahead as its skew: to the second."""
    now = NOW + timedelta(seconds=age_s)
    if expected is None:
        assert check(GOOD, now=now).key_id == "key-1"
    else:
        assert reason(GOOD, now=now) is expected


@pytest.mark.parametrize("micros", [1, 999_999])
def test_edges_of_the_window_within_a_second(micros: int) -> None:
    """A fraction of a second past the window is past it."""
    part = timedelta(microseconds=micros)
    assert reason(GOOD, now=NOW + timedelta(seconds=300) + part) is Reason.STALE
    assert reason(GOOD, now=NOW - timedelta(seconds=60) - part) is Reason.CREATED_IN_FUTURE


def test_expires_is_taken_at_its_word() -> None:
    """Good until the second it names, and no skew after it."""
    request = sign(get(), KEY, created=NOW, expires=NOW_S + 9)
    assert check(request, now=NOW + timedelta(seconds=9)).expires == NOW + timedelta(seconds=9)
    assert reason(request, now=NOW + timedelta(seconds=9, microseconds=1)) is Reason.EXPIRED


def test_now_needs_a_zone() -> None:
    """A naive time is the caller's mistake, and not the client's."""
    with pytest.raises(InvalidValue, match="zone") as caught:
        check(GOOD, now=NOW.replace(tzinfo=None))
    assert caught.value.details == {"member": "now"}


def test_policy_with_a_window_of_its_own() -> None:
    """A narrower window and no skew."""
    policy = Policy(max_age_s=5, clock_skew_s=0)
    assert check(GOOD, policy=policy, now=NOW + timedelta(seconds=5)).key_id == "key-1"
    assert reason(GOOD, policy=policy, now=NOW + timedelta(seconds=6)) is Reason.STALE
    assert reason(GOOD, policy=policy, now=NOW - timedelta(seconds=1)) is Reason.CREATED_IN_FUTURE


def test_policy_for_another_route() -> None:
    """Other components can be required, so that a route without tokens can be protected too; its body always is."""
    policy = Policy(required=("@method", "@path", "x-a"))
    request = Request("POST", URL, (("X-A", "1"),), b"{}")
    good = sign(request, KEY, created=NOW, components=("@path", "x-a", "@method", "content-digest"))
    assert check(good, policy=policy).key_id == "key-1"
    for components, expected in (
        (("@path", "@method", "content-digest"), Reason.COMPONENT_NOT_COVERED),
        (("@path", "x-a", "@method"), Reason.BODY_NOT_COVERED),
    ):
        assert reason(sign(request, KEY, created=NOW, components=components), policy=policy) is expected


def test_policy_with_a_tag() -> None:
    """Only a signature made for this application counts."""
    policy = Policy(tag="pay")
    assert check(sign(get(), KEY, created=NOW, tag="pay"), policy=policy).tag == "pay"
    for tag in (None, "Pay", ""):
        assert reason(sign(get(), KEY, created=NOW, tag=tag), policy=policy) is Reason.TAG_MISMATCH


def test_policy_with_a_nonce() -> None:
    """A nonce has to be there, and not empty."""
    policy = Policy(nonce_required=True)
    assert check(sign(get(), KEY, created=NOW, nonce="n"), policy=policy).nonce == "n"
    for nonce in (None, ""):
        assert reason(sign(get(), KEY, created=NOW, nonce=nonce), policy=policy) is Reason.NONCE_MISSING


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
def test_policies_that_mean_nothing(arguments: dict[str, Any]) -> None:
    """A policy that could not mean anything cannot be made."""
    with pytest.raises(InvalidValue) as caught:
        Policy(**arguments)
    assert caught.value.details == {"member": next(iter(arguments))}


def test_policy_of_open_payments() -> None:
    """Contract section 5 by default; and what a caller gave can change without changing the policy."""
    policy = Policy()
    assert (policy.required, policy.max_age_s) == (("@method", "@target-uri", "authorization"), 300)
    assert (policy.clock_skew_s, policy.nonce_required, policy.tag, policy.shapes) == (60, False, None, frozenset())
    shapes = [Shape.PHP_SDK]
    policy = Policy(shapes=shapes)
    shapes.append(Shape.RUST_SDK)
    assert policy.shapes == {Shape.PHP_SDK}
    assert hash(policy) == hash(Policy(shapes=[Shape.PHP_SDK]))
    with pytest.raises(TypeError):
        Policy(("@method",))  # type: ignore[call-arg] # each is named, so that no number stands for another


@pytest.mark.parametrize(
    ("request_", "details"),
    [
        (forge(get(), lines()[1:]), {"component": "@method"}),
        (forge(post(), lines()), {"component": "content-digest"}),
        (get_with(f';keyid="key-1";created={NOW_S - 301}'), {"age_s": 301}),
        (get_with(f';keyid="key-1";created={NOW_S + 61}'), {"age_s": -61}),
        (put(signed_get(), "Signature-Input", "sig1=("), {"field": "Signature-Input", "position": 6}),
        (put(signed_get(), "Signature", "sig1=:A:"), {"field": "Signature", "position": 7}),
    ],
    ids=["component", "body", "stale", "ahead", "input", "signature"],
)
def test_refusals_say_where(request_: Request, details: dict[str, object]) -> None:
    """What to change, for who reads it with a program."""
    with pytest.raises(SignatureRefused) as caught:
        check(request_)
    assert caught.value.details == details


def test_a_digest_of_nothing() -> None:
    """A digest on a request without body is fine when it is right, covered or not."""
    assert check(covering(headers=[("Content-Digest", content_digest(b""))])).key_id == "key-1"
    field = ("Content-Digest", content_digest(b""))
    assert check(covering(('"content-digest"', field[1]), headers=[field])).key_id == "key-1"


def test_a_body_of_one_octet_is_a_body() -> None:
    """It has to be covered as any other."""
    assert reason(forge(post(body=b"1"), [('"@method"', "POST"), *lines()[1:]])) is Reason.BODY_NOT_COVERED


@pytest.mark.parametrize("around", [("", ""), (" ", ""), ("", " "), ("\t", ""), ("", "\t"), (" \t", "\t ")])
def test_blanks_around_a_content_length(around: tuple[str, str]) -> None:
    """RFC 9110 §5.5: they are no part of the value."""
    request = digested()
    value = f"{around[0]}{len(request.body)}{around[1]}"
    signed = sign(put(request, "Content-Length", value), KEY, created=NOW)
    assert "content-length" in {component.name for component in check(signed).components}


def test_content_length_that_is_not_covered_is_not_looked_at() -> None:
    """It proves nothing and is the server's to judge."""
    assert check(post_covering(put(digested(), "Content-Length", "5"), "content-digest")).key_id == "key-1"
