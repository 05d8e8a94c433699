"""Signature-Input and Signature: what is read, and one row a rule for what is refused."""

import base64
from datetime import UTC, datetime

import pytest
from http_sf import Token

from characters import LETTERS, TCHAR, taken
from frozen_values import assert_frozen
from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import Component, SignatureInput, parse_signature, parse_signature_input
from incoming_payments.httpsig.base import Coverage
from incoming_payments.httpsig.fields import POSIX_TIME_MAX, parse_dictionary
from incoming_payments.limits import (
    COMPONENTS_MAX,
    HEADER_BYTES_MAX,
    KEY_ID_CHARS_MAX,
    NONCE_CHARS_MAX,
    SF_MEMBERS_MAX,
    SF_PARAMETERS_MAX,
)


def many(count: int, shape: str) -> str:
    """`shape` with each number below `count` in place of its #."""
    return "".join(shape.replace("#", str(number)) for number in range(count))


def test_signature_input() -> None:
    """Everything that RFC 9421 §2.3 defines is read, and the order of components and parameters is kept."""
    value = (
        'sig1=("@query-param";name="a" "b" "c";key="d";sf);tag="t";x=tok;created=5;alg="ed25519"'
        ';expires=9;keyid="k\\"";nonce="n", *2.-_=()'
    )
    assert parse_signature_input([value]) == {
        "sig1": SignatureInput(
            "sig1",
            Coverage(
                (
                    Component("@query-param", (("name", "a"),)),
                    Component("b"),
                    Component("c", (("key", "d"), ("sf", True))),
                )
            ),
            {
                "tag": "t",
                "x": Token("tok"),
                "created": 5,
                "alg": "ed25519",
                "expires": 9,
                "keyid": 'k"',
                "nonce": "n",
            },
            value[5:].removesuffix(", *2.-_=()"),
        ),
        "*2.-_": SignatureInput("*2.-_", Coverage(()), {}, "()"),
    }


def test_a_signature_input_says_what_was_sent() -> None:
    """The parameters of RFC 9421 §2.3 by name, all of them in order, and none where none was sent."""
    given = parse_signature_input(['a=("b";sf);x;tag="t";alg="z";nonce="n";keyid="k";expires=9;created=5'])["a"]
    assert (given.created, given.expires, given.key_id) == (5, 9, "k")
    assert (given.alg, given.nonce, given.tag) == ("z", "n", "t")
    assert [name for name, _ in given.parameters] == ["x", "tag", "alg", "nonce", "keyid", "expires", "created"]
    assert type(given.parameters) is tuple
    assert given.components == (Component("b", (("sf", True),)),)
    nothing = parse_signature_input(["a=()"])["a"]
    assert {nothing.created, nothing.expires, nothing.key_id, nothing.alg, nothing.nonce, nothing.tag} == {None}


@pytest.mark.parametrize(
    ("sent", "signed"),
    [
        ('a=( "b"   "c" );  x;y=?1; z=01', '("b" "c");x;y;z=1'),
        ('a=("b";sf=?1);d=1.50', '("b";sf);d=1.5'),
        ("a=();k=:AQ==:", "();k=:AQ==:"),
        ('a=("b");created=1', '("b");created=1'),
    ],
)
def test_signature_params_are_in_the_strict_form(sent: str, signed: str) -> None:
    """RFC 9421 §2.5: what is signed is the serialisation of what was read, however it was written."""
    assert parse_signature_input([sent])["a"].signature_params == signed


def test_values_do_not_change() -> None:
    """What was read is what is verified."""
    assert_frozen(parse_signature_input(["a=()"])["a"])


def test_lines_are_one_list() -> None:
    """RFC 9651 §4.2: several lines are joined, and no lines are an empty dictionary."""
    assert list(parse_signature_input(["b=()", "a=();x=1"])) == ["b", "a"]
    assert parse_signature(["b=:AQ==:", "a=::"]) == {"b": b"\1", "a": b""}
    assert list(parse_signature_input(['a=("x");created=1', 'b=("y")'])) == ["a", "b"]
    assert parse_signature(["a=:AQ==:", "b=:Ag==:"]) == {"a": b"\1", "b": b"\2"}
    assert [parse_signature_input([]), parse_signature([]), parse_signature([""])] == [{}, {}, {}]


@pytest.mark.parametrize(
    "value",
    [
        "a=(" + many(COMPONENTS_MAX, ' "#"') + ")",
        'a=("b"' + many(SF_PARAMETERS_MAX, ";p#") + ")",
        "a=()" + many(SF_PARAMETERS_MAX, ";p#"),
        "z" + many(SF_MEMBERS_MAX - 1, "=(), a#") + "=()",
        f"a=();created={POSIX_TIME_MAX};expires=0",
        f'a=();keyid="{"k" * KEY_ID_CHARS_MAX}";nonce="{"n" * NONCE_CHARS_MAX}"',
        f'a=();x="{"y" * (HEADER_BYTES_MAX - 9)}"',
    ],
)
def test_up_to_the_limits(value: str) -> None:
    """What is just within each limit is read."""
    assert parse_signature_input([value])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        # not a dictionary of inner lists
        ("undefined", "in parentheses"),
        ("sig1=1", "in parentheses"),
        ('sig1="@method"', "in parentheses"),
        ("sig1=?1", "in parentheses"),
        ("sig1=:AQID:", "in parentheses"),
        ("sig1", "in parentheses"),
        ("sig1=(", "position 6"),
        ('sig1=("@method" "@target-uri"', "position 29"),  # as the direct path has it, but for the end
        ("sig1=(@method @target-uri)", "position"),
        ('sig1=("a""b")', "position"),
        ('sig1=("a", "b")', "position"),
        ('sig1=("a);created=1', "position"),
        ('sig1=("a"', "position 9"),
        ('sig1=("a" "b"', "position 13"),
        ('Sig1=("a")', "position 0"),
        ('sig1=("a"),', "position"),
        ('sig1=("a") sig2=()', "position"),
        ('sig1=("a")x;created=1', "position"),
        ('sig1=("a")\n', "position"),
        ('sig1=("a");x="\0"', "position"),
        ('sig1=("é")', "ASCII"),
        ("\ud800", "ASCII"),
        # component names
        ("sig1=(a)", "in double quotes"),
        ("sig1=(1)", "in double quotes"),
        ("sig1=(:AQ==:)", "in double quotes"),
        ("sig1=(?1)", "in double quotes"),
        # twice
        ("sig1=(), sig1=()", "once"),
        ("sig1=();created=1;created=2", "once"),
        ('sig1=("a";sf;sf)', "once"),
        ('sig1=();keyid="a";keyid="a"', "once"),
        # types
        ('sig1=();created="1"', "created"),
        ("sig1=();created=1.0", "created"),
        ("sig1=();created=@1", "created"),
        ("sig1=();created", "created"),
        ("sig1=();created=?0", "created"),
        ("sig1=();created=-1", "created"),
        (f"sig1=();created={POSIX_TIME_MAX + 1}", "created"),
        ("sig1=();created=1e3", "position"),
        ("sig1=();created=1000000000000000", "position"),
        ("sig1=();expires=1.5", "expires"),
        ("sig1=();keyid=a", "keyid"),
        ("sig1=();keyid", "keyid"),
        ("sig1=();keyid=1", "keyid"),
        ("sig1=();nonce=:AQ==:", "nonce"),
        ("sig1=();alg=ed25519", "alg"),
        ('sig1=();tag=%"t"', "tag"),
        # limits
        (f'sig1=();keyid="{"k" * (KEY_ID_CHARS_MAX + 1)}"', str(KEY_ID_CHARS_MAX)),
        (f'sig1=();nonce="{"n" * (NONCE_CHARS_MAX + 1)}"', str(NONCE_CHARS_MAX)),
        ("sig1=(" + many(COMPONENTS_MAX + 1, ' "#"') + ")", str(COMPONENTS_MAX)),
        ("sig1=()" + many(SF_PARAMETERS_MAX + 1, ";p#"), str(SF_PARAMETERS_MAX)),
        ('sig1=("a"' + many(SF_PARAMETERS_MAX + 1, ";p#") + ")", str(SF_PARAMETERS_MAX)),
        ("z" + many(SF_MEMBERS_MAX, "=(), a#") + "=()", str(SF_MEMBERS_MAX)),
        (f'a=();x="{"y" * (HEADER_BYTES_MAX - 8)}"', str(HEADER_BYTES_MAX)),
    ],
)
def test_signature_input_refused(value: str, says: str) -> None:
    """One row a rule, and each says what it is about."""
    with pytest.raises(MalformedField) as caught:
        parse_signature_input([value])
    assert says in caught.value.description
    assert caught.value.details["field"] == "Signature-Input"


SIXTY_FOUR = base64.b64encode(bytes(range(190, 254))).decode()


@pytest.mark.parametrize(
    ("value", "position"),
    [
        ("undefined", None),
        (f"sig1={SIXTY_FOUR}", 91),  # the PHP SDK's: no colons
        (SIXTY_FOUR, 2),  # the Rust SDK's: no label
        ("sig1", None),
        ("sig1=1", None),
        ('sig1="AQID"', None),
        ("sig1=(:AQID:)", None),
        ("sig1=:AQID:;x", None),  # a parameter nobody signed
        ("sig1=:AQID:, sig1=:AQID:", None),
        ("sig1=:AQID", 10),
        # base64: url-safe, unpadded, overpadded, set bits after the last byte, spaces
        ("sig1=:-_8=:", 6),
        ("sig1=:AQ:", 6),
        ("sig1=:AQI:", 6),
        ("sig1=:AQ=:", 6),
        ("sig1=:AQ===:", 10),
        ("sig1=:AQID=:", 6),
        ("sig1=:=AQI:", 6),
        ("sig1=:AR==:", 6),
        ("sig1=:AQJ=:", 6),
        ("sig1=:AQ ID:", 8),
        ("sig1=:A:", 7),
        (f"sig1=:{SIXTY_FOUR.replace('/', '_')}:", 6 + SIXTY_FOUR.index("/")),
        # it is the right one that is not canonical
        ("a=:AQID:, b=:AR==:", 13),
    ],
)
def test_signature_refused(value: str, position: int | None) -> None:
    """A signature is a byte sequence in the one canonical form, and the refusal never repeats it."""
    with pytest.raises(MalformedField) as caught:
        parse_signature([value])
    assert caught.value.details.get("position") == position
    assert caught.value.details["field"] == "Signature"
    assert SIXTY_FOUR[:8] not in caught.value.description + repr(caught.value.details)


@pytest.mark.parametrize(
    "value",
    [
        'a=":AR==:"',
        'a=%":AR==:\\"',
        'a="\\":AR==:"',
        'a="";b=":AR==:"',
        'a="\\":AR==:\\""',
        "a=::;b=:AQ==:",
        "a=tok:AR:tok",
        'a=1;b=":";c=:AQ==:;d=*:AR:',
    ],
)
def test_colons_that_are_no_byte_sequence(value: str) -> None:
    """Only byte sequences are base64: not what looks like one within a string, a display string or a token."""
    assert list(parse_dictionary([value], "X")) == ["a"]


def test_where_it_is_not_ascii() -> None:
    """RFC 9651 §4.2: it cannot be, and the refusal says where."""
    with pytest.raises(MalformedField) as caught:
        parse_dictionary(['a="é"'], "X")
    assert caught.value.details == {"field": "X", "position": 3}


def test_each_character_of_a_token() -> None:
    """RFC 9651 §3.3.4: within a token a colon begins nothing, whatever stands before it."""
    assert taken(lambda c: parse_dictionary([f"a={c}:AR:"], "X"), MalformedField) == {*LETTERS, "*"}
    assert taken(lambda c: parse_dictionary([f"a=t{c}:AR:"], "X"), MalformedField) == {*TCHAR, *":/"}


def test_a_byte_sequence_between_strings_is_one() -> None:
    """A string ends where it ends, and hides nothing."""
    with pytest.raises(MalformedField, match="canonical"):
        parse_dictionary(['a="x";b=:AR==:;c="y"'], "X")


def test_times_end_with_the_calendar() -> None:
    """No later second has a `datetime`."""
    assert datetime.fromtimestamp(POSIX_TIME_MAX, UTC) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_base64_within_parameters_is_canonical_too() -> None:
    """A byte sequence in a parameter has one form as well."""
    with pytest.raises(MalformedField, match="canonical"):
        parse_dictionary(["a=1;b=:AR==:"], "X")
