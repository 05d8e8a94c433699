"""`domain.urls`: the canonical spelling of URLs, and URLs in header fields."""

import pytest

from incoming_payments.domain.urls import canonical_url, has_plain_path, header_safe_url
from incoming_payments.errors import InvalidValue

NO_URL = "url must be an absolute http or https URL, in ASCII, of at most 2048 characters"
UNREADABLE = "url must have a valid host and port, such as bank.example or bank.example:8443"
USER = "url must not contain a user name or password"
FRAGMENT = "url must not contain a fragment or a backslash"
POINTER = "url is a payment pointer: write a URL, with https:// in place of $"
DOTS = "url must not contain dot segments"
UNSAFE = "url must be an absolute http or https URL without quotes, commas or semicolons"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("https://bank.example/alice", "https://bank.example/alice"),
        ("http://bank.example/alice", "http://bank.example/alice"),
        ("HTTPS://bank.example/alice", "https://bank.example/alice"),
        ("https://Bank.EXAMPLE/alice", "https://bank.example/alice"),
        ("https://bank.example/Alice", "https://bank.example/Alice"),
        ("https://bank.example:443/alice", "https://bank.example/alice"),
        ("https://bank.example:0443/alice", "https://bank.example/alice"),
        ("https://bank.example:/alice", "https://bank.example/alice"),
        ("http://bank.example:80/alice", "http://bank.example/alice"),
        ("http://bank.example:443/alice", "http://bank.example:443/alice"),
        ("https://bank.example:8443/alice", "https://bank.example:8443/alice"),
        ("https://bank.example:08443/alice", "https://bank.example:8443/alice"),
        ("https://bank.example:9000/alice", "https://bank.example:9000/alice"),
        ("https://my-bank_1~a.example/alice", "https://my-bank_1~a.example/alice"),
        ("https://bank.example/!'()*~", "https://bank.example/!'()*~"),
        ("https://bank.example/alice/", "https://bank.example/alice"),
        ("https://bank.example/alice//", "https://bank.example/alice"),
        ("https://bank.example/", "https://bank.example"),
        ("https://bank.example", "https://bank.example"),
        ("https://bank.example/a?b=C/", "https://bank.example/a?b=C/"),
        ("https://bank.example/a/?b", "https://bank.example/a?b"),
        ("https://bank.example/a?", "https://bank.example/a"),
        ("https://bank.example//a", "https://bank.example//a"),
        ("https://bank.example/a%2Fb", "https://bank.example/a%2Fb"),
        ("https://bank.example/a..b/.c", "https://bank.example/a..b/.c"),
        ("https://[::1]/alice", "https://[::1]/alice"),
        ("https://[::FFFF]:443/alice", "https://[::ffff]/alice"),
        ("https://[::1]:8443/alice", "https://[::1]:8443/alice"),
        ("https://[::1]:/alice", "https://[::1]/alice"),
        ("https://[2001:db8:90:a:f:A:F::]/alice", "https://[2001:db8:90:a:f:a:f::]/alice"),
        ("https://[::ffff:192.0.2.1]/alice", "https://[::ffff:192.0.2.1]/alice"),
        ("https://127.0.0.1:3000", "https://127.0.0.1:3000"),
        ("https://a.example/" + "x" * 2030, "https://a.example/" + "x" * 2030),
    ],
)
def test_url_gets_its_canonical_spelling(text: str, canonical: str) -> None:
    """Different spellings of one URL get the same canonical spelling, which is stable."""
    assert canonical_url(text, member="url") == canonical
    assert canonical_url(canonical, member="url") == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(None, NO_URL, id="not a string"),
        pytest.param(b"https://bank.example", NO_URL, id="bytes"),
        pytest.param(["https://bank.example"], NO_URL, id="not hashable"),
        pytest.param("", NO_URL, id="empty"),
        pytest.param("bank.example/alice", NO_URL, id="relative"),
        pytest.param("//bank.example/alice", NO_URL, id="no scheme"),
        pytest.param("ftp://bank.example", NO_URL, id="scheme"),
        pytest.param("$bank.example/alice", POINTER, id="payment pointer"),
        pytest.param("https:/bank.example", NO_URL, id="one slash"),
        pytest.param("https://", NO_URL, id="nothing after the scheme"),
        pytest.param("https://bank.example/a b", NO_URL, id="space"),
        pytest.param("https://bank.example/a\n", NO_URL, id="newline"),
        pytest.param("https://bank.example/a\tb", NO_URL, id="tab"),
        pytest.param("https://b\u00e4nk.example", NO_URL, id="not ASCII"),
        pytest.param("https://bank.example/ali\u212ae", NO_URL, id="Kelvin sign, which lower-cases to k"),
        pytest.param("https://a.example/" + "x" * 2031, NO_URL, id="too long"),
        pytest.param("https://bank.example:65536", UNREADABLE, id="port too large"),
        pytest.param("https://bank.example:" + "9" * 2000, UNREADABLE, id="port of many digits"),
        pytest.param("https://bank.example:x", UNREADABLE, id="port is not a number"),
        pytest.param("https://bank.example:+443", UNREADABLE, id="port with sign"),
        pytest.param("https://bank.example:80:443", UNREADABLE, id="two ports"),
        pytest.param("https://[::1", UNREADABLE, id="only an opening bracket"),
        pytest.param("https://::1]", UNREADABLE, id="only a closing bracket"),
        pytest.param("https://[bank.example]", UNREADABLE, id="name in brackets"),
        pytest.param("https://[]", UNREADABLE, id="nothing in brackets"),
        pytest.param("https://[::1%25eth0]", UNREADABLE, id="zone in brackets"),
        pytest.param("https://user:word@bank.example", USER, id="user and password"),
        pytest.param("https://@bank.example", USER, id="empty user"),
        pytest.param("https://bank.example\\@evil.example", USER, id="user before fragment or backslash"),
        pytest.param("https://bank.example/#top", FRAGMENT, id="fragment"),
        pytest.param("https://bank.example#@evil.example", FRAGMENT, id="fragment that looks like a user"),
        pytest.param("https://bank.example/#", FRAGMENT, id="empty fragment"),
        pytest.param("https://bank.example\\evil", FRAGMENT, id="backslash"),
        pytest.param("https:///alice", UNREADABLE, id="no host"),
        pytest.param("https://:443/alice", UNREADABLE, id="port without host"),
        pytest.param("https://bank%2eexample", UNREADABLE, id="percent in host"),
        pytest.param("https://bank,evil.example", UNREADABLE, id="comma in host"),
        pytest.param("https://[::1]evil", UNREADABLE, id="text after brackets"),
        pytest.param("https://[::1]evil:80/alice", UNREADABLE, id="text between brackets and port"),
        pytest.param("https://[::1]]:80/alice", UNREADABLE, id="second bracket"),
        pytest.param("https://x[::1]:80/alice", UNREADABLE, id="text before brackets"),
        pytest.param("https://bank.example/.", DOTS, id="dot"),
        pytest.param("https://bank.example/a/../b", DOTS, id="dot dot"),
        pytest.param("https://bank.example/a/%2e%2E/b", DOTS, id="percent-encoded"),
        pytest.param("https://bank.example/a/.%2e", DOTS, id="half percent-encoded"),
    ],
)
def test_invalid_url_is_refused(text: object, message: str) -> None:
    """The reasons for a refusal are checked in this order, and the error names the member."""
    with pytest.raises(InvalidValue) as caught:
        canonical_url(text, member="url")
    assert str(caught.value) == message
    assert caught.value.details == {"member": "url"}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/alice",
        "/a.b/..c/...",
        "/.well-known/pay",
        "/caf%c3%a9",
        "/a;b=c",
        "/a?b=%2f..%5C/../x",
        "/%3f",
        "/%20..",
    ],
)
def test_plain_path(path: str) -> None:
    """Dots within a segment, other encoded characters, and a query do no harm."""
    assert has_plain_path(f"https://bank.example{path}")


@pytest.mark.parametrize(
    "path",
    [
        "/..%2finternal", "/a/..%2F..%2Fb", "/a%2fb", "/a%5cb", "/..%5C..", "/..", "/../a", "/.", "/a/./b", "/a/..",
        "/%2e%2e/a", "/%2E%2e", "/.%2E/", "/%2e./a", "/a/%2e", "/..;/a", "/.%2e;x=y/a", "/.;", "/..%252f", "/%252E",
        "/a%25", "/../a?b=c", "/..?b",
    ],
)  # fmt: skip
def test_path_that_servers_read_in_several_ways(path: str) -> None:
    """An encoded separator, also encoded twice, and dot segments, also with parameters, can lead out of a folder."""
    assert not has_plain_path(f"https://bank.example{path}")


@pytest.mark.parametrize(
    "url",
    [
        "https://auth.bank.example",
        "http://Auth.example:80/op/?a=b",
        "https://auth.example/X",
        "https://[::1]/'()",
        "https://a.example/" + "x" * 2030,
    ],
)
def test_url_in_a_header_stays_the_same(url: str) -> None:
    """A URL that is safe in a header field is returned without a change."""
    assert header_safe_url(url, member="url") == url


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(None, id="not a string"),
        pytest.param("auth.bank.example", id="relative"),
        pytest.param("https://auth\u00e4.example", id="not ASCII"),
        pytest.param("https://auth.example/a b", id="space"),
        pytest.param("https://auth.example/\r\nSet-Cookie:x", id="newline"),
        pytest.param("https://a.example/" + "x" * 2031, id="too long"),
        *(pytest.param(f"https://auth.example/{char}", id=char) for char in '<>"\\,;'),
    ],
)
def test_unsafe_url_in_a_header_is_refused(url: object) -> None:
    """Characters that end a parameter or a field are refused, and the error names the member."""
    with pytest.raises(InvalidValue) as caught:
        header_safe_url(url, member="url")
    assert str(caught.value) == UNSAFE
    assert caught.value.details == {"member": "url"}
