"""Parse `Signature-Input` and `Signature`: what is accepted, and one row for each rule that refuses."""

import base64
from datetime import UTC, datetime

import pytest
from http_sf import Token

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import Component, SignatureInput, parse_signature, parse_signature_input, parse_string
from incoming_payments.httpsig.base import Coverage
from incoming_payments.httpsig.fields import POSIX_TIME_MAX, parse_dictionary
from incoming_payments.limits import (
    COMPONENTS_MAX,
    HEADER_BYTES_MAX,
    KEY_ID_CHARS_MAX,
    NONCE_CHARS_MAX,
    SF_CHARS_MAX,
    SF_MEMBERS_MAX,
    SF_PARAMETERS_MAX,
    SF_PARTS_MAX,
    SF_STRING_BYTES_MAX,
)
from kits.characters import LETTERS, TCHAR, accepted_characters


def many(count: int, shape: str) -> str:
    """Repeat `shape` for each number below `count`, with the number in place of #."""
    return "".join(shape.replace("#", str(number)) for number in range(count))


def test_signature_input() -> None:
    """The parser reads everything that RFC 9421 §2.3 defines, and keeps the order of components and parameters."""
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


def test_signature_input_has_the_parameters_sent() -> None:
    """The parameters of RFC 9421 §2.3 have properties, `parameters` keeps their order, and an absent one is None."""
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
    """RFC 9421 §2.5: the signer signs the strict serialisation, even if the field is written differently."""
    assert parse_signature_input([sent])["a"].signature_params == signed


def test_several_lines_are_one_dictionary() -> None:
    """RFC 9651 §4.2: several lines are joined, and a field without lines is an empty dictionary."""
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
        f'a=();x="{"y" * (SF_CHARS_MAX - 9)}"',
        f'a=();x="{" " * (SF_PARTS_MAX - 2)}"',
    ],
)
def test_field_at_a_limit_is_accepted(value: str) -> None:
    """A field that just reaches a limit is accepted."""
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
        ('sig1=("@method" "@target-uri"', "position 29"),  # what the fast path accepts, without the end
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
        (f'a=();x="{"y" * (SF_CHARS_MAX - 8)}"', str(SF_CHARS_MAX)),
        (f'a=();x="{"y" * HEADER_BYTES_MAX}"', str(HEADER_BYTES_MAX)),
        *[(f'a=();x="{part * SF_PARTS_MAX}"', str(SF_PARTS_MAX)) for part in (" ", ",", ";", "\\\\", "%")],
        ("a=()" + "\t" * SF_PARTS_MAX + ",b=()", str(SF_PARTS_MAX)),
    ],
)
def test_signature_input_is_refused(value: str, says: str) -> None:
    """A malformed `Signature-Input` is refused, and the message names the fault. One row for each rule."""
    with pytest.raises(MalformedField) as caught:
        parse_signature_input([value])
    assert says in caught.value.description
    assert caught.value.details["field"] == "Signature-Input"


SIXTY_FOUR = base64.b64encode(bytes(range(190, 254))).decode()


@pytest.mark.parametrize(
    ("value", "position"),
    [
        ("undefined", None),
        (f"sig1={SIXTY_FOUR}", 91),  # as the PHP SDK sends it: no colons
        (SIXTY_FOUR, 2),  # as the Rust SDK sends it: no label
        ("sig1", None),
        ("sig1=1", None),
        ('sig1="AQID"', None),
        ("sig1=(:AQID:)", None),
        ("sig1=:AQID:;x", None),  # a parameter, which is not signed
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
        # the second byte sequence is not canonical
        ("a=:AQID:, b=:AR==:", 13),
    ],
)
def test_signature_is_refused(value: str, position: int | None) -> None:
    """A signature must be a byte sequence in canonical base64, and the refusal does not repeat the signature."""
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
def test_colons_outside_byte_sequences(value: str) -> None:
    """Text between colons in a string, a display string or a token is not checked as base64."""
    assert list(parse_dictionary([value], "X")) == ["a"]


def test_field_that_is_not_ascii_is_refused() -> None:
    """RFC 9651 §4.2: a field must be ASCII, and the refusal has the position of the first other character."""
    with pytest.raises(MalformedField) as caught:
        parse_dictionary(['a="é"'], "X")
    assert caught.value.details == {"field": "X", "position": 3}


def test_colon_in_a_token() -> None:
    """RFC 9651 §3.3.4: a colon in a token does not begin a byte sequence, after any character of the token."""
    assert accepted_characters(lambda c: parse_dictionary([f"a={c}:AR:"], "X"), MalformedField) == {*LETTERS, "*"}
    assert accepted_characters(lambda c: parse_dictionary([f"a=t{c}:AR:"], "X"), MalformedField) == {*TCHAR, *":/"}


def test_byte_sequence_between_strings_is_checked() -> None:
    """A byte sequence after a string is checked as base64."""
    with pytest.raises(MalformedField, match="canonical"):
        parse_dictionary(['a="x";b=:AR==:;c="y"'], "X")


def test_latest_time_is_the_last_datetime() -> None:
    """`POSIX_TIME_MAX` is the last second that `datetime` can represent."""
    assert datetime.fromtimestamp(POSIX_TIME_MAX, UTC) == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


# --- an item that is a string -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('"a"', "a"),
        ('  "a b";x=1;y ', "a b"),
        ('""', ""),
        ('"\\\\\\""', '\\"'),
        ('"a, b"', "a, b"),
        ('"a"' + ";" + "b" * (SF_STRING_BYTES_MAX - 4), "a"),
    ],
)
def test_string_is_read(line: str, text: str) -> None:
    """Parameters carry no meaning, and escaped characters are one character (RFC 9651 §4.2.5)."""
    assert parse_string([line], "X") == text


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["a"],
        ["1"],
        ['"a'],
        ['"a"x'],
        [""],
        ['"ü"'],
        ['"a"', '"a"'],
        ['"a', 'b"'],
        ["?1"],
        ['"a"' + ";" + "b" * (SF_STRING_BYTES_MAX - 3)],
    ],
)
def test_other_items_are_refused(lines: list[str]) -> None:
    """The message names the field, and does not repeat its value."""
    with pytest.raises(MalformedField) as caught:
        parse_string(lines, "X-A")
    expected = (
        f"send X-A once, as one string in double quotes, in at most {SF_STRING_BYTES_MAX} bytes (RFC 9651 §3.3.3)"
    )
    assert caught.value.description == expected
    assert caught.value.details == {"field": "X-A"}
