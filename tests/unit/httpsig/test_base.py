"""The signature base: one row for each rule of RFC 9421 §2."""

import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from http_sf import Token

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import Code, Component, RequestMessage, ResponseMessage, signature_base
from incoming_payments.httpsig import base as module
from incoming_payments.httpsig.base import Parameters, serialise_parameters
from incoming_payments.limits import COMPONENTS_MAX, HEADER_BYTES_MAX, SF_PARTS_MAX, SF_STRICT_CHARS_MAX
from kits.characters import DIGITS, HIGH, LOWER, PRINTABLE, TCHAR, UPPER, accepted_characters

HEADERS = (
    ("Host", "www.example.com"),
    ("X-OWS-Header", "  Leading and trailing whitespace. \t"),
    ("X-Obs-Fold-Header", "Obsolete\r\n    line folding."),
    ("Cache-Control", "max-age=60"),
    ("Cache-Control", "   must-revalidate"),
    ("Surrogate-Control", "  a=1,    b=2;x=1;y=2,   c=(a   b   c), d"),
    ("X-Empty-Header", ""),
    ("X-Tab", "a\tb"),
    ("Example-Header", "value, with, lots"),
    ("Example-Header", "of, commas"),
    ("Latin-1", "caf\xe9"),
    ("Accept", "text/html;q=1.0,   */*"),
    ("Age", " 007"),
    ("Keep-Alive", ""),
)
REQUEST = RequestMessage(
    "POST", "https://www.Example.com:443/path?param=value&foo=bar&baz=bat%2Dman&twice=1&twice=2", HEADERS
)
BARE = RequestMessage("OPTIONS", "http://www.example.com:8080", ())


SHOWN = {*LOWER, *UPPER, *DIGITS, *"-_"}


def line(message: RequestMessage | ResponseMessage, name: str, *parameters: tuple[str, object]) -> str:
    """Return the value of one component in the signature base."""
    component = Component(name, parameters)  # type: ignore[arg-type]  # some rows have a wrong type on purpose
    base = signature_base(message, [component], ()).decode()
    start = f"{component.identifier}: "
    assert base.startswith(start)
    return base[len(start) : base.index("\n")]


@pytest.mark.parametrize(
    ("request_", "name", "expected"),
    [
        (REQUEST, "@method", "POST"),
        (REQUEST, "@target-uri", REQUEST.target_uri),
        (REQUEST, "@authority", "www.example.com"),
        (BARE, "@authority", "www.example.com:8080"),
        (REQUEST, "@scheme", "https"),
        (BARE, "@scheme", "http"),
        (REQUEST, "@request-target", "/path?param=value&foo=bar&baz=bat%2Dman&twice=1&twice=2"),
        (BARE, "@request-target", "/"),
        (REQUEST, "@path", "/path"),
        (BARE, "@path", "/"),
        (REQUEST, "@query", "?param=value&foo=bar&baz=bat%2Dman&twice=1&twice=2"),
        (BARE, "@query", "?"),
        (REQUEST, "x-ows-header", "Leading and trailing whitespace."),
        (REQUEST, "x-obs-fold-header", "Obsolete line folding."),
        (REQUEST, "cache-control", "max-age=60, must-revalidate"),
        (REQUEST, "surrogate-control", "a=1,    b=2;x=1;y=2,   c=(a   b   c), d"),
        (REQUEST, "x-empty-header", ""),
        (REQUEST, "x-tab", "a\tb"),
    ],
)
def test_component_without_parameters(request_: RequestMessage, name: str, expected: str) -> None:
    """A component has the value that RFC 9421 §2.1 and §2.2 define; most rows are examples of the RFC."""
    assert line(request_, name) == expected


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        ("@query-param", [("name", "baz")], "bat-man"),
        ("@query-param", [("name", "foo")], "bar"),
        ("surrogate-control", [("sf", True)], "a=1, b=2;x=1;y=2, c=(a b c), d"),
        ("accept", [("sf", True)], "text/html;q=1.0, */*"),
        ("age", [("sf", True)], "7"),
        ("keep-alive", [("sf", True)], ""),
        ("surrogate-control", [("key", "a")], "1"),
        ("surrogate-control", [("key", "b")], "2;x=1;y=2"),
        ("surrogate-control", [("key", "c")], "(a b c)"),
        ("surrogate-control", [("key", "d")], "?1"),
        ("surrogate-control", [("sf", True), ("key", "d")], "?1"),
        ("example-header", [("bs", True)], ":dmFsdWUsIHdpdGgsIGxvdHM=:, :b2YsIGNvbW1hcw==:"),
        ("latin-1", [("bs", True)], ":Y2Fm6Q==:"),
        ("x-obs-fold-header", [("bs", True)], ":T2Jzb2xldGUgbGluZSBmb2xkaW5nLg==:"),
    ],
)
def test_component_with_parameters(name: str, parameters: list[tuple[str, object]], expected: str) -> None:
    """A component has the value that RFC 9421 §2.1.1 to §2.1.3 and §2.2.8 define; most rows are examples of the RFC."""
    assert line(REQUEST, name, *parameters) == expected


def of(value: str, *more: str) -> RequestMessage:
    """Return a request with the field X, one line for each value."""
    return RequestMessage("GET", "https://ase.example/", tuple(("X", line) for line in (value, *more)))


def test_accepted_characters() -> None:
    """Names, methods and values accept exactly the character sets of the RFCs."""
    assert accepted_characters(lambda c: Component(c).is_field, MalformedField) == set(TCHAR) - set(UPPER)
    assert accepted_characters(
        lambda c: line(RequestMessage(c, "https://ase.example/", ()), "@method"), MalformedField
    ) == set(TCHAR)
    assert accepted_characters(lambda c: serialise_parameters(((c, 1),)), MalformedField) == {*LOWER, "*"}
    rest = {*LOWER, *DIGITS, *"_-.*"}
    assert accepted_characters(lambda c: serialise_parameters(((f"a{c}", 1),)), MalformedField) == rest
    assert accepted_characters(lambda c: serialise_parameters((("a", c),)), MalformedField) == set(PRINTABLE)
    assert accepted_characters(lambda c: line(of(f"a{c}b"), "x"), MalformedField) == {*PRINTABLE, "\t"}
    assert accepted_characters(lambda c: line(of(f"a{c}b", "c"), "x"), MalformedField) == {*PRINTABLE, "\t"}
    assert accepted_characters(lambda c: line(of(f"a{c}b"), "x", ("bs", True)), MalformedField) == {
        *PRINTABLE,
        *HIGH,
        "\t",
    }


@pytest.mark.parametrize("name", ["authorization", "content-length", "content-type", "date", "host"])
def test_repeated_singleton_field_is_refused(name: str) -> None:
    """RFC 9110 §5.3: these fields are not lists. If one occurs twice, even with one value, it is refused."""
    for value in ("a", "a\tb"):
        assert line(RequestMessage("GET", "https://ase.example/", ((name, value),)), name) == value
    with pytest.raises(MalformedField) as caught:
        line(RequestMessage("GET", "https://ase.example/", ((name, "a"), (name, "a"))), name)
    assert (caught.value.code, caught.value.details) == (Code.FIELD_REPEATED, {"component": name})


@pytest.mark.parametrize("name", sorted(module.REQUEST_COMPONENTS))
def test_field_cannot_replace_a_derived_component(name: str) -> None:
    """A header field that has the name of a derived component does not change its value."""
    headers = ((name, "forged"), (f'"{name}"', "forged"))
    bare, forged = (RequestMessage("GET", "https://ase.example/", lines) for lines in ((), headers))
    assert line(forged, name) == line(bare, name)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("accept-signature", "dictionary"),
        ("client-cert", "item"),
        ("client-cert-chain", "list"),
        ("content-digest", "dictionary"),
        ("deprecation", "item"),
        ("repr-digest", "dictionary"),
        ("signature", "dictionary"),
        ("signature-input", "dictionary"),
        ("want-content-digest", "dictionary"),
        ("want-repr-digest", "dictionary"),
        ("priority", "dictionary"),
    ],
)
def test_structured_field_has_its_type(name: str, kind: str) -> None:
    """The structured fields of RFCs 9421, 9440, 9530 and 9745 are known, and those of the retrofit draft (last row)."""
    text = {"dictionary": "a=1,  b=2", "item": "1.50", "list": "1,  2"}[kind]
    written = {"dictionary": "a=1, b=2", "item": "1.5", "list": "1, 2"}[kind]
    request = RequestMessage("GET", "https://ase.example/", ((name, text),))
    assert line(request, name, ("sf", True)) == written
    with pytest.raises(MalformedField):
        line(RequestMessage("GET", "https://ase.example/", ((name, "a="),)), name, ("sf", True))


BAD = RequestMessage(
    "GE T",
    "https://user@www.example.com/",
    (
        ("X-Newline", 'a\n"@method": POST'),
        ("X-Return", "a\rb"),
        ("X-Not-Folded", 'a\r\n"@method": POST'),
        ("X-Nul", "a\0b"),
        ("X-Delete", "a\x7fb"),
        ("X-Latin-1", "caf\xe9"),
        ("X-Unicode", "\u20ac"),
        ("X-Surrogate", "\ud800"),
        ("X-Long", "a" * (HEADER_BYTES_MAX + 1)),
        ("Priority", "u=1, u=2"),
        ("Content-Digest", "sha-256=:A"),
        ("Te", "a"),
    ),
)
NOT_UTF_8 = RequestMessage("GET", "https://www.example.com/?a=%ff", ())


@pytest.mark.parametrize(
    ("request_", "name", "parameters", "expected"),
    [
        # names
        (REQUEST, "X-Tab", [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "", [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "a b", [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, 'x"\n', [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@METHOD", [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@unknown", [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@status", [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@signature-params", [], Code.COMPONENT_UNSUPPORTED),
        # parameters
        (REQUEST, "x-tab", [("req", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@method", [("req", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("tr", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("unknown", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("tr", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("sf", True), ("unknown", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("key", "a"), ("tr", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("bs", False)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("bs", 1)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("sf", "true")], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("bs", True), ("sf", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("bs", True), ("key", "a")], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("key", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("key", Token("a"))], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("sf", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("key", "a")], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("key", "a")], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@method", [("bs", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@path", [("name", "a")], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@query-param", [], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@query-param", [("name", True)], Code.COMPONENT_UNSUPPORTED),
        (REQUEST, "@query-param", [("name", "foo"), ("sf", True)], Code.COMPONENT_UNSUPPORTED),
        # absent
        (REQUEST, "x-absent", [], Code.COMPONENT_ABSENT),
        (REQUEST, "x-absent", [("bs", True)], Code.COMPONENT_ABSENT),
        (REQUEST, "priority", [("sf", True)], Code.COMPONENT_ABSENT),
        (REQUEST, "surrogate-control", [("key", "z")], Code.COMPONENT_ABSENT),
        (REQUEST, "@query-param", [("name", "absent")], Code.COMPONENT_ABSENT),
        # values
        (REQUEST, "@query-param", [("name", "twice")], Code.COMPONENT_VALUE),
        (NOT_UTF_8, "@query-param", [("name", "a")], Code.COMPONENT_VALUE),
        (BAD, "@method", [], Code.COMPONENT_VALUE),
        (RequestMessage("", BARE.target_uri, ()), "@method", [], Code.COMPONENT_VALUE),
        (BAD, "@target-uri", [], Code.COMPONENT_VALUE),
        (BAD, "@authority", [], Code.COMPONENT_VALUE),
        (BAD, "x-newline", [], Code.COMPONENT_VALUE),
        (BAD, "x-not-folded", [], Code.COMPONENT_VALUE),
        (BAD, "x-not-folded", [("bs", True)], Code.COMPONENT_VALUE),
        (BAD, "x-newline", [("bs", True)], Code.COMPONENT_VALUE),
        (BAD, "x-return", [], Code.COMPONENT_VALUE),
        (BAD, "x-nul", [], Code.COMPONENT_VALUE),
        (BAD, "x-delete", [], Code.COMPONENT_VALUE),
        (BAD, "x-delete", [("bs", True)], Code.COMPONENT_VALUE),
        (BAD, "x-latin-1", [], Code.COMPONENT_VALUE),
        (BAD, "x-unicode", [("bs", True)], Code.COMPONENT_VALUE),
        (BAD, "x-surrogate", [], Code.COMPONENT_VALUE),
        (BAD, "x-long", [], Code.COMPONENT_VALUE),
        (BAD, "priority", [("sf", True)], Code.COMPONENT_VALUE),
        (BAD, "content-digest", [("sf", True)], Code.COMPONENT_VALUE),
    ],
)
def test_component_is_refused(
    request_: RequestMessage, name: str, parameters: list[tuple[str, object]], expected: Code
) -> None:
    """A component that is unknown, absent or ambiguous is refused with its code. No parameter is ignored."""
    with pytest.raises(MalformedField) as caught:
        line(request_, name, *parameters)
    assert caught.value.code is expected
    assert_describes(caught.value, name)


def assert_describes(refused: MalformedField, name: str) -> None:
    """Check that a description is a sentence about the component, with its RFC in upper case."""
    named = rf"({re.escape(name)}|a covered component|the (query of the )?target URI)"
    verb = "(is|has|does|must|names|occurs|exceeds|repeats|cannot)"
    assert re.match(rf"{named} {verb} [a-z;]", refused.description), refused.description
    assert "rfc" not in refused.description


def test_repeated_component_is_refused() -> None:
    """RFC 9421 §2: a component may occur once. The order of its parameters does not make it another component."""
    one = Component("surrogate-control", (("sf", True), ("key", "a")))
    same = Component("surrogate-control", (("key", "a"), ("sf", True)))
    another = Component("surrogate-control", (("key", "b"),))
    plain = Component("surrogate-control")
    assert signature_base(REQUEST, [one, another, plain], ()).count(b"\n") == 3
    for pair in ([plain, plain], [one, one], [one, same]):
        with pytest.raises(MalformedField) as caught:
            signature_base(REQUEST, pair, ())
        assert caught.value.code is Code.COMPONENT_REPEATED


def test_number_of_components_is_limited() -> None:
    """A signature over more than `COMPONENTS_MAX` components is refused, which bounds the work for one signature."""
    headers = tuple((f"x-{number}", "") for number in range(COMPONENTS_MAX + 1))
    request = RequestMessage("GET", "https://a.example/", headers)
    components = [Component(name) for name, _ in headers]
    assert signature_base(request, components[:-1], ()).count(b"\n") == COMPONENTS_MAX
    with pytest.raises(MalformedField) as caught:
        signature_base(request, components, ())
    assert caught.value.code is Code.COMPONENT_UNSUPPORTED


def test_components_of_a_response() -> None:
    """RFC 9421 §2.2.9 and §2.4: a response has a status, fields and, with `;req`, the components of its request."""
    response = ResponseMessage(200, (("Age", "1"),), request=REQUEST)
    assert line(response, "@status") == "200"
    assert line(response, "age") == "1"
    assert line(response, "@method", ("req", True)) == "POST"
    assert line(response, "@query-param", ("name", "foo"), ("req", True)) == "bar"
    assert line(response, "surrogate-control", ("req", True), ("key", "a")) == "1"


@pytest.mark.parametrize(
    ("response", "name", "parameters"),
    [
        (ResponseMessage(200, ()), "@method", []),
        (ResponseMessage(200, ()), "@status", [("sf", True)]),
        (ResponseMessage(200, ()), "@method", [("req", True)]),
        (ResponseMessage(200, (), request=REQUEST), "@method", [("req", False)]),
        (ResponseMessage(200, (), request=REQUEST), "@status", [("req", True)]),
    ],
)
def test_component_of_a_response_is_refused(
    response: ResponseMessage, name: str, parameters: list[tuple[str, object]]
) -> None:
    """A response has no method, a request has no status, and `;req` needs a request."""
    with pytest.raises(MalformedField) as caught:
        line(response, name, *parameters)
    assert caught.value.code is Code.COMPONENT_UNSUPPORTED
    assert_describes(caught.value, name)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *((f"A{character}", character in SHOWN) for character in PRINTABLE),
        ("@a", True),
        ("@", False),
        ("A" * 64, True),
        ("A" * 65, False),
    ],
)
def test_refusal_shows_only_short_plain_names(name: str, shown: bool) -> None:
    """A refusal shows at most 64 letters, digits, hyphens and underscores, so a log or page cannot misread the name."""
    with pytest.raises(MalformedField) as caught:
        line(REQUEST, name)
    assert caught.value.description.startswith(f"{name} is " if shown else "a covered component ")
    assert caught.value.details["component"] == (name if shown else "a covered component")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ((), ""),
        ((("keyid", 'a"b\\c'),), ';keyid="a\\"b\\\\c"'),
        ((("a", Token("t")), ("b", b"\1"), ("c", Decimal("1.50")), ("d", False)), ";a=t;b=:AQ==:;c=1.5;d=?0"),
        ((("d", datetime(1970, 1, 1, 0, 0, 9, tzinfo=UTC)), ("e", True), ("f", -5)), ";d=@9;e;f=-5"),
    ],
)
def test_parameters_in_the_strict_form(parameters: Parameters, expected: str) -> None:
    """Parameters of every type are written as in RFC 9651 §4.1.1.2, in the order given."""
    assert serialise_parameters(parameters) == expected


@pytest.mark.parametrize("parameter", [("Key", 1), ("", 1), ("a", "\n"), ("a", 10**15), ("a", None), ("a", "é")])
def test_parameter_that_cannot_be_written_is_refused(parameter: tuple[str, object]) -> None:
    """A parameter that a structured field cannot hold is refused."""
    with pytest.raises(MalformedField, match=r"^(the name of )?a parameter .*\(RFC 9651 "):
        serialise_parameters((parameter,))  # type: ignore[arg-type]  # one row has None on purpose


def test_parts_parsed_for_sf_and_key_are_limited() -> None:
    """All fields of a message that are parsed for `;sf` and `;key` share one limit, because parsing is slow."""
    half = "a, " * (SF_PARTS_MAX // 4) + "a"
    request = RequestMessage("GET", "https://ase.example/", (("Accept", half), ("Priority", "u=1"), ("TE", half)))
    covered = [Component(name, (("sf", True),)) for name in ("accept", "priority")]
    assert signature_base(request, covered, ())
    with pytest.raises(MalformedField) as caught:
        signature_base(request, [*covered, Component("te", (("sf", True),))], ())
    assert caught.value.code is Code.COMPONENT_VALUE


@pytest.mark.parametrize(("parts", "accepted"), [(SF_PARTS_MAX, True), (SF_PARTS_MAX + 1, False)])
def test_limit_of_parts_parsed_is_exact(parts: int, accepted: bool) -> None:
    """A field of `SF_PARTS_MAX` parts is parsed for `;sf`; one more part is refused."""
    value = f"a=({' '.join('b' * parts)})"
    request = RequestMessage("GET", "https://ase.example/", (("Priority", value),))
    if accepted:
        assert line(request, "priority", ("sf", True)) == value
    else:
        with pytest.raises(MalformedField) as caught:
            line(request, "priority", ("sf", True))
        assert caught.value.code is Code.COMPONENT_VALUE


@pytest.mark.parametrize("more", [0, 1])
def test_limit_of_characters_for_sf_and_key_is_exact(more: int) -> None:
    """All fields of a message with `;sf` and `;key` share one limit, because writing them in strict form is slow."""
    priority, expected = f"a={'b' * (SF_STRICT_CHARS_MAX - 5 + more)}", 'priority";sf'
    request = RequestMessage("GET", "https://ase.example/", (("Accept", "a/b"), ("Priority", priority)))
    covered = [Component("accept", (("sf", True),)), Component("priority", (("sf", True),))]
    if not more:
        assert expected in signature_base(request, covered, ()).decode()
    else:
        with pytest.raises(MalformedField, match=str(SF_STRICT_CHARS_MAX)) as caught:
            signature_base(request, covered, ())
        assert caught.value.code is Code.COMPONENT_VALUE


@pytest.mark.parametrize("lines", [("a" * HEADER_BYTES_MAX,), ("a" * (HEADER_BYTES_MAX - 1), "b")])
@pytest.mark.parametrize("parameters", [(), (("bs", True),)])
def test_limit_of_bytes_signed_is_exact(lines: tuple[str, ...], parameters: Parameters) -> None:
    """The lines of a field may have `HEADER_BYTES_MAX` bytes together; one more byte is refused."""
    assert line(of(*lines), "x", *parameters)
    with pytest.raises(MalformedField) as caught:
        line(of(*lines[:-1], lines[-1] + "c"), "x", *parameters)
    assert caught.value.code is Code.COMPONENT_VALUE


@pytest.mark.parametrize("parameters", [(), (("bs", True),)])
@pytest.mark.parametrize("lines", [("a", "\0"), ("\0", "a"), ("\u20ac", "a")])
def test_one_bad_line_is_refused(lines: tuple[str, ...], parameters: Parameters) -> None:
    """A field is refused if any of its lines has a character that cannot be signed."""
    with pytest.raises(MalformedField) as caught:
        line(of(*lines), "x", *parameters)
    assert caught.value.code is Code.COMPONENT_VALUE


def test_values_of_one_field_are_not_confused() -> None:
    """One field covered with different parameters has a different value on each line of the base."""
    request = RequestMessage("GET", "https://ase.example/", (("Priority", "u=1,  i"),))
    parameters: list[Parameters] = [(("sf", True),), (("bs", True),), (("key", "u"),), (("key", "i"),)]
    covered = [Component("priority", parameter) for parameter in parameters]
    values = [row.partition(b": ")[2] for row in signature_base(request, covered, ()).splitlines()[:4]]
    assert values == [b"u=1, i", b":dT0xLCAgaQ==:", b"1", b"?1"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a \t\r\n  b", "a b"), ("a\r\n b\r\n\tc ", "a b c"), (" \r\n a", "a"), ("a \r\n ", "a")],
)
def test_folded_line_is_unfolded(value: str, expected: str) -> None:
    """RFC 9421 §2.1: obsolete line folding and the white space around it become one space."""
    request = RequestMessage("GET", "https://ase.example/", (("X", value),))
    assert signature_base(request, [Component("x")], ()).splitlines()[0].decode() == f'"x": {expected}'
