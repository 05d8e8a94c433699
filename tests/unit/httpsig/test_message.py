"""Messages, and the parts of a target URI from which components are derived."""

import string
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from incoming_payments.errors import MalformedField
from incoming_payments.httpsig import Code, RequestMessage, ResponseMessage
from incoming_payments.httpsig.message import Target
from incoming_payments.limits import QUERY_PARAMETERS_MAX
from kits.characters import DIGITS, LETTERS, PRINTABLE, accepted_characters

UNRESERVED: Final = LETTERS + DIGITS + "-._~"
VISIBLE: Final = PRINTABLE.strip(" ")


def test_values_by_lower_case_name() -> None:
    """A field is found by its lower-case name, with its lines in the order received. An absent field has no lines."""
    headers = (("X-A", "1"), ("x-b", "2"), ("x-a", "3"))
    for message in (RequestMessage("GET", "https://a.example/", headers), ResponseMessage(200, headers)):
        assert message.values("x-a") == ("1", "3")
        assert message.values("x-c") == ()


def test_fields_come_from_the_headers_only() -> None:
    """A caller cannot pass `fields`, and messages with the same headers are equal."""
    headers = (("X-A", "1"),)
    assert len({RequestMessage("GET", "https://a.example/", headers) for _ in range(2)}) == 1
    assert len({ResponseMessage(200, headers) for _ in range(2)}) == 1
    makers: list[Callable[..., object]] = [
        partial(RequestMessage, "GET", "https://a.example/"),
        partial(ResponseMessage, 200),
    ]
    for make in makers:
        with pytest.raises(TypeError):
            make(headers, fields={"x-a": ("2",)})


def test_repr_does_not_show_secrets() -> None:
    """The `repr` of a message shows neither the token in a header field nor the body."""
    headers = (("Authorization", "GNAP secret"),)
    shown = repr(RequestMessage("GET", "https://a.example/", headers, b"secret")) + repr(
        ResponseMessage(200, headers, b"secret")
    )
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://a.example/p?q=1", ("https", "a.example", "/p", "?q=1")),
        ("https://a.example", ("https", "a.example", "/", None)),
        ("https://a.example?", ("https", "a.example", "/", "?")),
        ("HTTPS://A.Example:443/P%2f../x", ("https", "a.example", "/P%2f../x", None)),
        ("https://a.example:/", ("https", "a.example", "/", None)),
        ("http://a.example:80/", ("http", "a.example", "/", None)),
        ("http://a.example:443/", ("http", "a.example:443", "/", None)),
        ("https://a.example:0443/", ("https", "a.example", "/", None)),  # RFC 3986 §3.2.3: the same by its value
        ("https://a.example:08443/", ("https", "a.example:08443", "/", None)),
        ("http://[2001:DB8::1]:8080/", ("http", "[2001:db8::1]:8080", "/", None)),
        ("https://a.example/p?a?b/c", ("https", "a.example", "/p", "?a?b/c")),
    ],
)
def test_parts_of_a_target(uri: str, expected: tuple[str, str, str, str | None]) -> None:
    """Scheme and host are in lower case, a default port is left out, path and query are unchanged: §2.2.3 to §2.2.7."""
    assert RequestMessage("GET", uri, ()).target == Target(uri, *expected)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "/incoming-payments",
        "ftp://a.example/",
        "https:///p",
        "https://:443/",
        "https://user@a.example/",
        "https://user:pw@a.example/",
        "https://a.example/#fragment",
        "https://a.example/?q#fragment",
        "https://a.example/a b",
        "https://a.example/a\nb",
        "https://a.example/\n",
        "https://a.example/é",
        "https://é.example/",
        "https://a.example:port/",
        "https://a.example\\b/",
        "https://[::1/",
        "https://[]/",
        "https://a.example/\x7f",
    ],
)
def test_malformed_target_is_refused(uri: str) -> None:
    """A target must be an absolute http or https URI in visible ASCII, without userinfo or fragment."""
    with pytest.raises(MalformedField) as caught:
        _ = RequestMessage("GET", uri, ()).target
    assert caught.value.code is Code.COMPONENT_VALUE


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param("https://a", "b", UNRESERVED + "!$&'()*+,;=%" + "/?", id="host"),
        pytest.param("https://[a", "]", string.hexdigits + ":.", id="IPv6 address"),
        pytest.param("https://a:1", "2", DIGITS + "/?", id="port"),
        pytest.param("https://a:", "/", DIGITS + "/?", id="port, alone"),
        pytest.param("https://a", "", UNRESERVED + "!$&'()*+,;=%" + ":/?", id="end of the host"),
        pytest.param("https://a/", "", VISIBLE.replace("#", ""), id="path"),
        pytest.param("https://a?", "", VISIBLE.replace("#", ""), id="query"),
    ],
)
def test_characters_of_a_target(before: str, after: str, expected: str) -> None:
    """A host has the characters of RFC 3986. A path and a query accept all visible ASCII but #."""
    assert accepted_characters(
        lambda c: RequestMessage("GET", f"{before}{c}{after}", ()).target, MalformedField
    ) == set(expected)


def test_characters_of_a_query_have_one_spelling() -> None:
    """Each character is encoded exactly as in application/x-www-form-urlencoded of the URL standard."""
    plain = LETTERS + DIGITS + "*-._"
    for octet in range(128):
        request = RequestMessage("GET", f"https://a.example/?a=%{octet:02x}", ())
        spelling = chr(octet) if chr(octet) in plain else f"%{octet:02X}"
        assert request.query_parameters == {"a": [spelling]}
    text = "".join(map(chr, range(128, 256)))
    encoded = "".join(f"%{octet:02X}" for octet in text.encode())
    assert RequestMessage("GET", f"https://a.example/?a={encoded.lower()}", ()).query_parameters == {"a": [encoded]}


def test_query_parameters_have_one_spelling() -> None:
    """RFC 9421 §2.2.8: a query is decoded as a form and encoded again, with %20 for a space."""
    query = "?var=this%20is%20a%20big%0Amultiline%20value&bar=with+plus+whitespace&fa%C3%A7ade%22%3A%20=something"
    assert RequestMessage("GET", f"https://a.example/parameters{query}", ()).query_parameters == {
        "var": ["this%20is%20a%20big%0Amultiline%20value"],
        "bar": ["with%20plus%20whitespace"],
        "fa%C3%A7ade%22%3A%20": ["something"],
    }
    assert RequestMessage("GET", "https://a.example/?a=1&&a=%7e~&b&=c&d=e=f", ()).query_parameters == {
        "a": ["1", "%7E%7E"],
        "b": [""],
        "": ["c"],
        "d": ["e%3Df"],
    }
    assert RequestMessage("GET", "https://a.example/", ()).query_parameters == {}


def test_limit_of_query_parameters_is_exact() -> None:
    """A query of `QUERY_PARAMETERS_MAX` parameters is read; one more parameter is refused."""
    query = "&".join(f"a{number}" for number in range(QUERY_PARAMETERS_MAX))
    assert len(RequestMessage("GET", f"https://a.example/?{query}", ()).query_parameters) == QUERY_PARAMETERS_MAX
    with pytest.raises(MalformedField, match=str(QUERY_PARAMETERS_MAX)) as caught:
        _ = RequestMessage("GET", f"https://a.example/?{query}&b", ()).query_parameters
    assert caught.value.code is Code.COMPONENT_VALUE
