"""The signature base: one row a rule of RFC 9421 §2."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import http_sf
import pytest
from http_sf import Token

from characters import DIGITS, HIGH, LOWER, PRINTABLE, TCHAR, UPPER, taken
from frozen_values import assert_frozen
from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import Component, Reason, Request, Response, signature_base
from incoming_payments.httpsig import base as module
from incoming_payments.httpsig.base import BaseBuilder, Coverage, Parameters, serialise_parameters
from incoming_payments.limits import COMPONENTS_MAX, HEADER_BYTES_MAX, SF_FIELDS_BYTES_MAX

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
REQUEST = Request("POST", "https://www.Example.com:443/path?param=value&foo=bar&baz=bat%2Dman&twice=1&twice=2", HEADERS)
BARE = Request("OPTIONS", "http://www.example.com:8080", ())


SHOWN = {*LOWER, *UPPER, *DIGITS, *"-_"}


def line(message: Request | Response, name: str, *parameters: tuple[str, object]) -> str:
    """The value that the base has for one component."""
    component = Component(name, parameters)  # type: ignore[arg-type]  # some of these are what nobody should send
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
def test_components_of_a_request(request_: Request, name: str, expected: str) -> None:
    """RFC 9421 §2.1 and §2.2, with the RFC's own examples where it has some."""
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
def test_components_with_parameters(name: str, parameters: list[tuple[str, object]], expected: str) -> None:
    """RFC 9421 §2.1.1 to §2.1.3 and §2.2.8, with the RFC's own examples where it has some."""
    assert line(REQUEST, name, *parameters) == expected


def of(value: str, *more: str) -> Request:
    """A request with the field X."""
    return Request("GET", "https://ase.example/", tuple(("X", line) for line in (value, *more)))


def test_each_character() -> None:
    """Of names, methods and values: the RFCs' own sets, and nothing beside them."""
    assert taken(lambda c: Component(c).is_field, MalformedField) == set(TCHAR) - set(UPPER)
    assert taken(lambda c: line(Request(c, "https://ase.example/", ()), "@method"), MalformedField) == set(TCHAR)
    assert taken(lambda c: serialise_parameters(((c, 1),)), MalformedField) == {*LOWER, "*"}
    rest = {*LOWER, *DIGITS, *"_-.*"}
    assert taken(lambda c: serialise_parameters(((f"a{c}", 1),)), MalformedField) == rest
    assert taken(lambda c: serialise_parameters((("a", c),)), MalformedField) == set(PRINTABLE)
    assert taken(lambda c: line(of(f"a{c}b"), "x"), MalformedField) == {*PRINTABLE, "\t"}
    assert taken(lambda c: line(of(f"a{c}b", "c"), "x"), MalformedField) == {*PRINTABLE, "\t"}
    assert taken(lambda c: line(of(f"a{c}b"), "x", ("bs", True)), MalformedField) == {*PRINTABLE, *HIGH, "\t"}


@pytest.mark.parametrize("character", PRINTABLE)
def test_each_character_of_a_string_is_written_as_http_sf_writes_it(character: str) -> None:
    """A backslash and a quote with a backslash before them, all others as they are."""
    assert serialise_parameters((("a", character),)) == f";a={http_sf.ser(character)}"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "PROPFIND", "x-pay"])
def test_methods(method: str) -> None:
    """Any token is one, as it is; nothing is put into upper case, and none is not one."""
    assert line(Request(method, "https://ase.example/", ()), "@method") == method
    for other in ("", f"{method} ", f" {method}", f"{method}\n"):
        with pytest.raises(MalformedField) as caught:
            line(Request(other, "https://ase.example/", ()), "@method")
        assert (caught.value.code, caught.value.details) == (Reason.COMPONENT_VALUE, {"component": "@method"})


@pytest.mark.parametrize("name", ["authorization", "content-length", "content-type", "date", "host"])
def test_fields_that_are_no_lists(name: str) -> None:
    """RFC 9110 §5.3: when one occurs twice, though it says the same, two readers may act on different ones."""
    for value in ("a", "a\tb"):
        assert line(Request("GET", "https://ase.example/", ((name, value),)), name) == value
    with pytest.raises(MalformedField) as caught:
        line(Request("GET", "https://ase.example/", ((name, "a"), (name, "a"))), name)
    assert (caught.value.code, caught.value.details) == (Reason.FIELD_REPEATED, {"component": name})


def test_values_do_not_change() -> None:
    """What is covered is not changed after it was looked at, nor what is known of it."""
    coverage = Coverage((Component("@method"), Component("date"), Component("te", (("sf", True),))))
    assert_frozen(Component("a"), coverage)
    assert frozenset({"@method", "date"}) == coverage.plain
    assert frozenset({"@method", "date", "te"}) == coverage.names
    assert type(coverage.lines) is tuple


def test_derived_components() -> None:
    """Those of RFC 9421 §2.2 that a request has without parameters."""
    names = {"@method", "@target-uri", "@authority", "@scheme", "@request-target", "@path", "@query"}
    assert frozenset(names) == module.REQUEST_COMPONENTS


@pytest.mark.parametrize("name", sorted(module.REQUEST_COMPONENTS))
def test_no_field_stands_in_for_a_derived_component(name: str) -> None:
    """Whatever a server lets through as the name of a field."""
    headers = ((name, "forged"), (f'"{name}"', "forged"))
    bare, forged = (Request("GET", "https://ase.example/", lines) for lines in ((), headers))
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
def test_structured_fields(name: str, kind: str) -> None:
    """Those of RFCs 9421, 9440, 9530 and 9745, and, as the last row shows, those of the retrofit draft."""
    text = {"dictionary": "a=1,  b=2", "item": "1.50", "list": "1,  2"}[kind]
    written = {"dictionary": "a=1, b=2", "item": "1.5", "list": "1, 2"}[kind]
    request = Request("GET", "https://ase.example/", ((name, text),))
    assert line(request, name, ("sf", True)) == written
    with pytest.raises(MalformedField):
        line(Request("GET", "https://ase.example/", ((name, "a="),)), name, ("sf", True))
    assert module._FIELD_TYPES[name] == kind


BAD = Request(
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
NOT_UTF_8 = Request("GET", "https://www.example.com/?a=%ff", ())


@pytest.mark.parametrize(
    ("request_", "name", "parameters", "expected"),
    [
        # names
        (REQUEST, "X-Tab", [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "", [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "a b", [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, 'x"\n', [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@METHOD", [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@unknown", [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@status", [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@signature-params", [], Reason.COMPONENT_UNSUPPORTED),
        # parameters
        (REQUEST, "x-tab", [("req", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@method", [("req", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("tr", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("unknown", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("tr", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("sf", True), ("unknown", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("key", "a"), ("tr", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("bs", False)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("bs", 1)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("sf", "true")], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("bs", True), ("sf", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("bs", True), ("key", "a")], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("key", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "surrogate-control", [("key", Token("a"))], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("sf", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "x-tab", [("key", "a")], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "accept", [("key", "a")], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@method", [("bs", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@path", [("name", "a")], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@query-param", [], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@query-param", [("name", True)], Reason.COMPONENT_UNSUPPORTED),
        (REQUEST, "@query-param", [("name", "foo"), ("sf", True)], Reason.COMPONENT_UNSUPPORTED),
        # absent
        (REQUEST, "x-absent", [], Reason.COMPONENT_ABSENT),
        (REQUEST, "x-absent", [("bs", True)], Reason.COMPONENT_ABSENT),
        (REQUEST, "priority", [("sf", True)], Reason.COMPONENT_ABSENT),
        (REQUEST, "surrogate-control", [("key", "z")], Reason.COMPONENT_ABSENT),
        (REQUEST, "@query-param", [("name", "absent")], Reason.COMPONENT_ABSENT),
        # values
        (REQUEST, "@query-param", [("name", "twice")], Reason.COMPONENT_VALUE),
        (NOT_UTF_8, "@query-param", [("name", "a")], Reason.COMPONENT_VALUE),
        (BAD, "@method", [], Reason.COMPONENT_VALUE),
        (BAD, "@target-uri", [], Reason.COMPONENT_VALUE),
        (BAD, "@authority", [], Reason.COMPONENT_VALUE),
        (BAD, "x-newline", [], Reason.COMPONENT_VALUE),
        (BAD, "x-not-folded", [], Reason.COMPONENT_VALUE),
        (BAD, "x-not-folded", [("bs", True)], Reason.COMPONENT_VALUE),
        (BAD, "x-newline", [("bs", True)], Reason.COMPONENT_VALUE),
        (BAD, "x-return", [], Reason.COMPONENT_VALUE),
        (BAD, "x-nul", [], Reason.COMPONENT_VALUE),
        (BAD, "x-delete", [], Reason.COMPONENT_VALUE),
        (BAD, "x-delete", [("bs", True)], Reason.COMPONENT_VALUE),
        (BAD, "x-latin-1", [], Reason.COMPONENT_VALUE),
        (BAD, "x-unicode", [("bs", True)], Reason.COMPONENT_VALUE),
        (BAD, "x-surrogate", [], Reason.COMPONENT_VALUE),
        (BAD, "x-long", [], Reason.COMPONENT_VALUE),
        (BAD, "priority", [("sf", True)], Reason.COMPONENT_VALUE),
        (BAD, "content-digest", [("sf", True)], Reason.COMPONENT_VALUE),
    ],
)
def test_refused(request_: Request, name: str, parameters: list[tuple[str, object]], expected: Reason) -> None:
    """What cannot be signed over without doubt is refused with its reason, and nothing of it is ignored."""
    with pytest.raises(MalformedField) as caught:
        line(request_, name, *parameters)
    assert caught.value.code is expected


def test_each_component_once() -> None:
    """RFC 9421 §2: a component goes once, and the order of its parameters does not make another one of it."""
    one = Component("surrogate-control", (("sf", True), ("key", "a")))
    same = Component("surrogate-control", (("key", "a"), ("sf", True)))
    another = Component("surrogate-control", (("key", "b"),))
    plain = Component("surrogate-control")
    assert signature_base(REQUEST, [one, another, plain], ()).count(b"\n") == 3
    for pair in ([plain, plain], [one, one], [one, same]):
        with pytest.raises(MalformedField) as caught:
            signature_base(REQUEST, pair, ())
        assert caught.value.code is Reason.COMPONENT_REPEATED


def test_not_more_components_than_the_limit() -> None:
    """The work for one signature is bounded."""
    headers = tuple((f"x-{number}", "") for number in range(COMPONENTS_MAX + 1))
    request = Request("GET", "https://a.example/", headers)
    components = [Component(name) for name, _ in headers]
    assert signature_base(request, components[:-1], ()).count(b"\n") == COMPONENTS_MAX
    with pytest.raises(MalformedField) as caught:
        signature_base(request, components, ())
    assert caught.value.code is Reason.COMPONENT_UNSUPPORTED


def test_a_field_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many components name its members, a field is read once: the cost of a header is that of its bytes."""
    parse = Mock(wraps=http_sf.parse)
    monkeypatch.setattr(http_sf, "parse", parse)
    request = Request("GET", "https://a.example/", (("Priority", ", ".join(f"k{n}" for n in range(COMPONENTS_MAX))),))
    components = [Component("priority", (("key", f"k{number}"),)) for number in range(COMPONENTS_MAX)]
    assert signature_base(request, components, ()).count(b": ?1\n") == COMPONENTS_MAX
    assert parse.call_count == 1


def test_a_response() -> None:
    """RFC 9421 §2.2.9 and §2.4: a status, fields, and with `;req` what the request said."""
    response = Response(200, (("Age", "1"),), request=REQUEST)
    assert line(response, "@status") == "200"
    assert line(response, "age") == "1"
    assert line(response, "@method", ("req", True)) == "POST"
    assert line(response, "@query-param", ("name", "foo"), ("req", True)) == "bar"
    assert line(response, "surrogate-control", ("req", True), ("key", "a")) == "1"


@pytest.mark.parametrize(
    ("response", "name", "parameters"),
    [
        (Response(200, ()), "@method", []),
        (Response(200, ()), "@status", [("sf", True)]),
        (Response(200, ()), "@method", [("req", True)]),
        (Response(200, (), request=REQUEST), "@method", [("req", False)]),
        (Response(200, (), request=REQUEST), "@status", [("req", True)]),
    ],
)
def test_refused_of_a_response(response: Response, name: str, parameters: list[tuple[str, object]]) -> None:
    """A response has no method, a request no status, and `;req` needs a request."""
    with pytest.raises(MalformedField) as caught:
        line(response, name, *parameters)
    assert caught.value.code is Reason.COMPONENT_UNSUPPORTED


def test_refusals_do_not_repeat_what_came_from_outside() -> None:
    """A component name is shown when it could be one, and never when it is something else in its place."""
    with pytest.raises(MalformedField, match=r"^x-absent is covered but not there$"):
        line(REQUEST, "x-absent")
    with pytest.raises(MalformedField, match=r"^a covered component is not a field name"):
        line(REQUEST, "<script>")


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
def test_a_name_is_shown_when_it_could_be_one(name: str, shown: bool) -> None:
    """Letters, digits, hyphens and underscores, bounded: nothing that means anything in a log or a page."""
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
    """RFC 9651 §4.1.1.2, in the order given, for every type there is."""
    assert serialise_parameters(parameters) == expected


@pytest.mark.parametrize("parameter", [("Key", 1), ("", 1), ("a", "\n"), ("a", 10**15), ("a", None), ("a", "é")])
def test_parameters_without_a_form(parameter: tuple[str, object]) -> None:
    """What a structured field cannot hold is refused when it is to be written."""
    with pytest.raises(MalformedField):
        serialise_parameters((parameter,))  # type: ignore[arg-type]  # None is what nobody should give


def test_only_so_much_is_parsed_for_sf_and_key() -> None:
    """Parsing costs more than anything else here, so all such fields of a message share one bound."""
    half = "a, " * (SF_FIELDS_BYTES_MAX // 6) + "a"
    request = Request("GET", "https://ase.example/", (("Accept", half), ("Priority", "u=1"), ("TE", half)))
    covered = [Component(name, (("sf", True),)) for name in ("accept", "priority")]
    assert signature_base(request, covered, ())
    with pytest.raises(MalformedField) as caught:
        signature_base(request, [*covered, Component("te", (("sf", True),))], ())
    assert caught.value.code is Reason.COMPONENT_VALUE


@pytest.mark.parametrize(("chars", "taken"), [(SF_FIELDS_BYTES_MAX, True), (SF_FIELDS_BYTES_MAX + 1, False)])
def test_the_edge_of_what_is_parsed(chars: int, taken: bool) -> None:
    """As much as the limit says, to the byte."""
    request = Request("GET", "https://ase.example/", (("Priority", "a" * chars),))
    if taken:
        assert line(request, "priority", ("sf", True)) == "a" * chars
    else:
        with pytest.raises(MalformedField) as caught:
            line(request, "priority", ("sf", True))
        assert caught.value.code is Reason.COMPONENT_VALUE


@pytest.mark.parametrize("lines", [("a" * HEADER_BYTES_MAX,), ("a" * (HEADER_BYTES_MAX - 1), "b")])
@pytest.mark.parametrize("parameters", [(), (("bs", True),)])
def test_the_edge_of_what_is_signed(lines: tuple[str, ...], parameters: Parameters) -> None:
    """A field's lines together are as long as the limit says, to the byte."""
    assert line(of(*lines), "x", *parameters)
    with pytest.raises(MalformedField) as caught:
        line(of(*lines[:-1], lines[-1] + "c"), "x", *parameters)
    assert caught.value.code is Reason.COMPONENT_VALUE


@pytest.mark.parametrize("parameters", [(), (("bs", True),)])
@pytest.mark.parametrize("lines", [("a", "\0"), ("\0", "a"), ("\u20ac", "a")])
def test_one_bad_line_is_enough(lines: tuple[str, ...], parameters: Parameters) -> None:
    """Each line of a field has to be one that can be signed over."""
    with pytest.raises(MalformedField) as caught:
        line(of(*lines), "x", *parameters)
    assert caught.value.code is Reason.COMPONENT_VALUE


def test_each_parameter_has_a_value_of_its_own() -> None:
    """What is remembered of one is not taken for another, of the same field in the same base."""
    request = Request("GET", "https://ase.example/", (("Priority", "u=1,  i"),))
    parameters: list[Parameters] = [(("sf", True),), (("bs", True),), (("key", "u"),), (("key", "i"),)]
    covered = [Component("priority", parameter) for parameter in parameters]
    values = [row.partition(b": ")[2] for row in signature_base(request, covered, ()).splitlines()[:4]]
    assert values == [b"u=1, i", b":dT0xLCAgaQ==:", b"1", b"?1"]


def test_true_is_not_one() -> None:
    """`;sf` is remembered, and `;sf=1` refused all the same, though Python says that they are equal."""
    request = Request("GET", "https://ase.example/", (("Priority", "u=1"),))
    builder = BaseBuilder(request)
    assert builder.build(Coverage((Component("priority", (("sf", True),)),)), "")
    with pytest.raises(MalformedField) as caught:
        builder.build(Coverage((Component("priority", (("sf", 1),)),)), "")
    assert caught.value.code is Reason.COMPONENT_UNSUPPORTED


def test_a_builder_reads_a_component_with_parameters_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many signatures of one message cover it: serialising it costs more than all else here."""
    serialised: list[object] = []

    def ser(structure: Any, *, ser: Any = http_sf.ser) -> str:
        if not isinstance(structure, str):  # the name of a component
            serialised.append(structure)
        return str(ser(structure))

    monkeypatch.setattr(http_sf, "ser", ser)
    builder = BaseBuilder(Request("GET", "https://ase.example/", (("Priority", "u=1,  i"),)))
    priority = Component("priority", (("sf", True),))
    bases = [builder.build(Coverage(covered), "()") for covered in [(priority,), (Component("@method"), priority)]]
    assert bases == [b'"priority";sf: u=1, i\n"@signature-params": ()', b'"@method": GET\n' + bases[0]]
    assert len(serialised) == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a \t\r\n  b", "a b"), ("a\r\n b\r\n\tc ", "a b c"), (" \r\n a", "a"), ("a \r\n ", "a")],
)
def test_folded_lines(value: str, expected: str) -> None:
    """RFC 9421 §2.1: obsolete folding is one space, and the blanks around it go."""
    request = Request("GET", "https://ase.example/", (("X", value),))
    assert signature_base(request, [Component("x")], ()).splitlines()[0].decode() == f'"x": {expected}'
