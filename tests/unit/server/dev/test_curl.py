"""Requests as `curl` commands: a real curl in a real shell sends exactly the request."""

from collections.abc import Iterator
from typing import Final

import pytest

from incoming_payments.errors import InvalidValue
from incoming_payments.httpsig import RequestMessage
from incoming_payments.limits import COMMAND_BODY_BYTES_MAX
from incoming_payments.server.dev.curl import check_url, curl_command
from kits.shell import Recorder, needs_curl, recording, sh

VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F)))


@pytest.fixture(scope="module")
def server() -> Iterator[Recorder]:
    """Run a server that records its requests."""
    with recording() as recorder:
        yield recorder


def sent(server: Recorder, request: RequestMessage, **options: str) -> RequestMessage:
    """Return the request that arrives when a shell runs the command."""
    done = sh(curl_command(request, **options))
    assert (done.returncode, done.stderr) == (0, b"")
    return server.taken()


# --- URLs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080/incoming-payments",
        "https://bank.example/",
        "https://bank.example/op/a?x=1&y=%2F",
        "https://bank.example:8443/a//b",
        "https://bank_1.xn--bcher-kva.example:80/",
        "http://[::1]:65535/",
        "http://[2001:db8::1]/",
        "https://1.bank.example1/",
        "https://bank.example/a/../b/%2e%2E/{1,2}[a-b]/\"<>\\^`|'$!&",
        "https://bank.example/a?b?",
    ],
)
def test_unchanged_url_is_accepted(url: str) -> None:
    """A URL that curl sends unchanged is accepted with any path."""
    check_url(url)


WRONG_AUTHORITY: Final = (
    "has a host or port that curl cannot read, or would change: write host and port in their usual form"
)
WRONG_AUTHORITIES: Final = [
    "", ":1", "bank.example:", "bank.example:0", "bank.example:080", "bank.example:65536", "bank.example.", "a:1:2",
    "bank..example", "b%61nk.example", "bank.example\\a", "bank!.example", "127.1", "127.0.0.01", "0x7f.1",
    "2130706433", "127.0.0.256", "[::01]", "[0:0::1]", "[::1", "::1", "[1.2.3.4]", "[]",
]  # fmt: skip
WRONG_URLS: Final = [
    ("127.0.0.1:8080/a", "does not begin with http:// or https://: add the scheme"),
    ("/incoming-payments", "does not begin with http:// or https://: add the scheme"),
    ("ftp://bank.example/a", "does not begin with http:// or https://: add the scheme"),
    ("", "does not begin with http:// or https://: add the scheme"),
    ("http:/bank.example/", "does not begin with http:// or https://: add the scheme"),
    ("https://bank.example/a b", "contains characters other than visible ASCII: percent-encode them"),
    ("https://bank.example/a\n", "contains characters other than visible ASCII: percent-encode them"),
    ("https://bank.example/a\nb", "contains characters other than visible ASCII: percent-encode them"),
    ("https://bücher.example/", "contains characters other than visible ASCII: percent-encode them"),
    ("https://bank.example/a#b", "has a fragment, which is never sent: leave out # and the text after it"),
    ("https://bank.example#", "has a fragment, which is never sent: leave out # and the text after it"),
    (
        "https://u:p@bank.example/",
        "has a user name or password, which cannot be part of a target URI: leave out the text before @",
    ),
    (
        "https://u@bank.example",
        "has a user name or password, which cannot be part of a target URI: leave out the text before @",
    ),
    ("HTTPS://bank.example/", "has a scheme or host in upper case: write them in lower case"),
    ("https://Bank.example/", "has a scheme or host in upper case: write them in lower case"),
    ("https://bank.example", "has no path: put a slash after the host"),
    ("https://bank.example?a", "has no path: put a slash after the host"),
    ("https://bank.example?a/b", "has no path: put a slash after the host"),
    ("http://bank.example:80/", "names the default port: leave out the port"),
    ("https://[::1]:443/", "names the default port: leave out the port"),
    ("https://bank.example/a?", "ends in an empty query: leave out the question mark"),
    *((f"https://{authority}/", WRONG_AUTHORITY) for authority in WRONG_AUTHORITIES),
]


@pytest.mark.parametrize(("url", "why"), WRONG_URLS)
def test_url_that_would_change_is_refused(url: str, why: str) -> None:
    """A URL that curl or the service would change is refused, and the error says what to change."""
    with pytest.raises(InvalidValue) as refused:
        check_url(url)
    assert (f"the URL {why}", {"member": "url"}) == (refused.value.description, refused.value.details)


@needs_curl
@pytest.mark.parametrize(
    "suffix",
    [
        "/",
        f"/{VISIBLE.replace('?', '').replace('#', '')}",
        f"/a?{VISIBLE.replace('#', '')}",
        "/a/../b",
        "/a/%2e%2E/b%2f%2F",
        "/..",
        "/a/.?b",
        "//a//b",
        "/a?b=/../c",
        "/{a,b}",
        "/[1-2]?[::]",
        "/$HOME`id`\"'!!",
    ],
)
def test_url_arrives_unchanged(server: Recorder, suffix: str) -> None:
    """Path and query arrive as written: no dot segment is resolved, and nothing is expanded."""
    url = f"{server.base_url}{suffix}"
    check_url(url)
    assert url == sent(server, RequestMessage("GET", url, ())).target_uri


# --- methods, fields and bodies --------------------------------------------------------------------


@needs_curl
def test_fields_arrive_unchanged(server: Recorder) -> None:
    """Fields arrive in order and with their bytes, also empty and repeated fields, and none arrives twice."""
    headers = (
        ("X-Quoted", 'it\'s "$HOME" `id` \\ !! %s'),
        ("X-Empty", ""),
        ("X-Twice", "1"),
        ("x-twice", "2"),
        ("X-Bytes", "é€".encode().decode("latin-1")),
        ("User-Agent", "me"),
        ("Content-Type", "text/plain"),
        ("Content-Length", "1"),
    )
    got = sent(server, RequestMessage("POST", f"{server.base_url}/", headers, b"b"))
    names = {name.lower() for name, _ in headers}
    assert sorted(headers) == sorted(field for field in got.headers if field[0].lower() in names)
    assert got.values("x-twice") == ("1", "2")


BODIES: Final = [
    b"{}",
    b"@/etc/hostname",
    b"@-",
    b"-X",
    b'{"a": "it\'s"}',
    b"'''",
    b"$HOME ${HOME} $(id) `id` !! !$ \\ \\n %s %% ~ * ? # ; & | < >",
    b'{\n  "a": 1\n}\n',
    b"\n",
    b"\r\n",
    b"a\tb",
    '{"a": "Grüße € \U0001f600"}'.encode(),
    "a\u202eb\u00a0\x1b[31m".encode(),
    b"\xff\xfe",
    b"a\0b",
    b"\0",
    bytes(range(256)),
    b"-\0\x379\x009",
    b"'" * COMMAND_BODY_BYTES_MAX,
    b"\0" * COMMAND_BODY_BYTES_MAX,
]


@needs_curl
@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:20]))
def test_body_arrives_unchanged(server: Recorder, body: bytes) -> None:
    """Any bytes arrive unchanged: quotes, newlines, shell expansions, binary data, and text like an option."""
    assert body == sent(server, RequestMessage("POST", f"{server.base_url}/", (), body)).body


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:20]))
def test_command_can_be_pasted(body: bytes) -> None:
    """For any body, the command has only printable characters and newlines."""
    command = curl_command(RequestMessage("POST", "https://bank.example/", (), body))
    assert {character for character in command if not character.isprintable()} <= {"\n"}


def test_body_that_is_too_large_for_a_command_is_refused() -> None:
    """A body that makes an argument too long for the system is refused, unless it is in a file."""
    request = RequestMessage("POST", "https://bank.example/", (), b"a" * (COMMAND_BODY_BYTES_MAX + 1))
    with pytest.raises(InvalidValue, match=f"more than {COMMAND_BODY_BYTES_MAX} bytes .*: put it in a file"):
        curl_command(request)
    assert curl_command(request, body_file="f").endswith(" \\\n  --data-binary @f")
