"""Attacks in raw bytes, which a parsed request cannot express. RFC 9112 §11, RFC 9421 §7.5."""

import re
from collections.abc import Callable, Iterator
from typing import Final

from campaigns.attacks.rows import Answer, Attempt, title
from incoming_payments.limits import (
    BODY_BYTES_MAX,
    BODY_PARTS_MAX,
    FIELDS_READ_MAX,
    HEADER_BYTES_MAX,
    HEADERS_BYTES_MAX,
    HEADERS_MAX,
    TARGET_CHARS_MAX,
)
from kits.raw_http import as_bytes, origin_of
from kits.signed_requests import Scene

Family = dict[str, list[tuple[str, bytes, *tuple[Answer, ...]]]]  # with an answer for each request in the bytes

AMBIGUOUS: Final = (400, "invalid_http")
TOO_MUCH: Final = (431, "headers_too_large")
UNSIGNED: Final = (401, "signature_missing")
MISMATCH: Final = (401, "digest_mismatch")
INVALID: Final = (401, "signature_invalid")


def _get(at: Scene) -> bytes:
    return as_bytes(at.signed_get(), origin_of(at.url))


def _unsigned(at: Scene) -> bytes:
    return as_bytes(at.get(), origin_of(at.url))


def _post(at: Scene) -> bytes:
    """Return a good POST without a signed length."""
    return as_bytes(at.post_covering(at.digested(), "content-digest"), origin_of(at.url))


def _without(data: bytes, name: str) -> bytes:
    """Return `data` without the field `name`."""
    return re.sub(rb"(?im)^" + name.encode() + rb":.*\r\n", b"", data, count=1)


def _field(data: bytes, name: str) -> bytes:
    """Return the line of the field `name` in `data`."""
    found = re.search(rb"(?im)^" + name.encode() + rb":.*\r\n", data)
    assert found is not None
    return found[0]


def _kept(data: bytes) -> bytes:
    """Return `data` without the field that closes the connection."""
    return _without(data, "Connection")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def framing(at: Scene) -> Family:
    """The framing of a body, RFC 9112 §6 and §11.2."""
    post, unsigned, body = _post(at), _unsigned(at), at.body
    with_length = as_bytes(at.signed_post(), origin_of(at.url)).removesuffix(b"\r\n" + body)
    head = post.removesuffix(b"\r\n" + body)
    unframed = _without(head, "Content-Length")
    in_http_1_0 = _kept(unframed).replace(b"HTTP/1.1", b"HTTP/1.0") + b"Connection: keep-alive\r\n"
    end = b"0\r\n\r\n"

    def coded(coding: str, data: bytes, before: bytes = unframed) -> bytes:
        """Return the POST with a transfer coding instead of a length."""
        return before + f"Transfer-Encoding: {coding}\r\n\r\n".encode() + data

    def chunked(data: bytes, *, trailers: bytes = b"", before: bytes = unframed) -> bytes:
        return coded("chunked", _chunk(data) + b"0\r\n" + trailers + b"\r\n", before)

    def moved(*names: str) -> bytes:
        """Return the POST with these fields after its body."""
        before, trailers = unframed, b""
        for name in names:
            trailers += _field(before, name)
            before = _without(before, name)
        return chunked(body, trailers=trailers, before=before)

    return {
        "a request hidden in the body of another": [
            ("a length that ends before it", _kept(unframed) + b"Content-Length: 2\r\n\r\n{}" + unsigned, MISMATCH,
             UNSIGNED),
            ("a length that ends behind it", unframed + b"Content-Length: %d\r\n\r\n%s" % (len(unsigned), unsigned),
             MISMATCH),
        ],
        "a body in chunks that was signed with a length": [
            ("no length", chunked(body, before=_without(with_length, "Content-Length")), (401, "component_absent")),
        ],
        "a body changed in its chunks": [
            ("more", chunked(body + b" "), MISMATCH),
            ("less", chunked(body[:-1]), MISMATCH),
            ("none", coded("chunked", end), MISMATCH),
            ("in an extension of a chunk", coded("chunked", b"2;x=y\r\n{}\r\n" + end), MISMATCH),
        ],
        "a transfer coding that is read differently": [
            ("compressed and chunked", coded("gzip, chunked", _chunk(body) + end), AMBIGUOUS),
            ("two lines", coded("chunked", _chunk(body) + end, unframed + b"Transfer-Encoding: identity\r\n"),
             AMBIGUOUS),
            ("in HTTP/1.0, and another request behind it", coded("chunked", end + unsigned, in_http_1_0), MISMATCH),
        ],
        "fields behind the body, RFC 9530 §6": [
            ("the signature", moved("Signature-Input", "Signature"), UNSIGNED),
            ("the token", moved("Authorization"), (401, "token_missing")),
            ("the digest", moved("Content-Digest"), (401, "component_absent")),
        ],
    }  # fmt: skip


def lines(at: Scene) -> Family:
    """The lines of a request, RFC 9112 §2.2, §3 and §5."""
    get = _get(at)
    _, _, fields = get.partition(b"\r\n")
    path = at.url.removeprefix(origin_of(at.url)).encode()
    evil = f"http://evil.example{path.decode()}"
    meant_for_evil = as_bytes(at.meant_for(evil), origin_of(at.url)).partition(b"\r\n")[2]

    def start(line: bytes) -> bytes:
        return line + b"\r\n" + fields

    return {
        "the target in another form": [
            ("absolute, of another host, and signed for it", b"GET %s HTTP/1.1\r\n%s" % (evil.encode(), meant_for_evil),
             INVALID),
            ("an asterisk", start(b"OPTIONS * HTTP/1.1"), (404, "not_found")),
            ("two slashes before it", start(b"GET /" + path + b" HTTP/1.1"), (404, "not_found")),
            ("an encoded NUL behind it", start(b"GET " + path + b"%00 HTTP/1.1"), (404, "payment_not_found")),
            ("an encoded slash", start(b"GET /" + path[1:].replace(b"/", b"%2F") + b" HTTP/1.1"), (404, "not_found")),
            ("a parameter of the path", start(b"GET " + path + b";x HTTP/1.1"), (404, "payment_not_found")),
        ],
        "a method that might need no signature": [
            ("TRACE, which would echo the token", start(b"TRACE " + path + b" HTTP/1.1"), (405, "method_not_allowed")),
            ("OPTIONS", start(b"OPTIONS " + path + b" HTTP/1.1"), (405, "method_not_allowed")),
            ("PUT", start(b"PUT " + path + b" HTTP/1.1"), (405, "method_not_allowed")),
            ("PATCH", start(b"PATCH " + path + b" HTTP/1.1"), (405, "method_not_allowed")),
        ],
        "white space that some parsers skip": [
            ("two spaces in the request line, which change nothing", start(b"GET  " + path + b"  HTTP/1.1"),
             (200, None)),
        ],
        "no Host": [
            ("in HTTP/1.0", _without(_unsigned(at), "Host").replace(b"HTTP/1.1", b"HTTP/1.0"), UNSIGNED),
        ],
    }  # fmt: skip


def connections(at: Scene) -> Family:
    """Several requests on one connection."""
    get, unsigned = _get(at), _unsigned(at)
    unsigned_post = as_bytes(at.post(), origin_of(at.url))

    def upgraded(protocol: str, *fields: str) -> bytes:
        lines = [f"Connection: Upgrade, close\r\nUpgrade: {protocol}", *fields, ""]
        return _without(unsigned, "Connection").removesuffix(b"\r\n") + "\r\n".join(lines).encode() + b"\r\n"

    return {
        "an unsigned request behind a signed one": [
            ("a GET", _kept(get) + unsigned, (200, None), UNSIGNED),
            ("a POST", _kept(get) + unsigned_post, (200, None), UNSIGNED),
            ("a HEAD, with the same signature", _kept(get) + get.replace(b"GET", b"HEAD", 1), (200, None), (401, None)),
        ],
        "an unsigned upgrade to another protocol": [
            ("HTTP/2", upgraded("h2c", "HTTP2-Settings: AAMAAABk"), UNSIGNED),
            ("WebSocket", upgraded("websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA"), UNSIGNED),
        ],
        "an unsigned request with Expect": [
            ("100-continue", unsigned_post.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"), UNSIGNED),
        ],
    }  # fmt: skip


def sizes(at: Scene) -> Family:
    """Sizes above the limits."""
    base_url = origin_of(at.url)
    head = _without(_post(at), "Content-Length").removesuffix(b"\r\n" + at.body)
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    too_large, too_long = (413, "body_too_large"), (414, "target_too_long")
    piece = HEADER_BYTES_MAX - 100

    def padded(*sizes: int) -> bytes:
        return as_bytes(at.get(*((f"X-{number}", "a" * size) for number, size in enumerate(sizes))), base_url)

    return {
        "too many fields": [
            ("one too many", padded(*[0] * HEADERS_MAX), (431, "headers_too_large")),
            ("far too many", padded(*[0] * FIELDS_READ_MAX), (400, None)),
            ("one too large", padded(HEADER_BYTES_MAX), (431, "headers_too_large")),
            ("too large together", padded(*[piece] * (HEADERS_BYTES_MAX // piece), 500), TOO_MUCH),
            ("far too large", padded(2 * HEADERS_BYTES_MAX), TOO_MUCH),
        ],
        "too long a target": [
            ("by one", as_bytes(at.get(url=f"{at.url}?{'a' * TARGET_CHARS_MAX}"), base_url), too_long),
            ("by far", as_bytes(at.get(url=f"{at.url}?{'a' * 8 * TARGET_CHARS_MAX}"), base_url), too_long),
        ],
        "too large a body": [
            ("by one", as_bytes(at.post(body=b" " * (BODY_BYTES_MAX + 1)), base_url), too_large),
            ("in chunks", chunked + _chunk(b" " * 8192) * 9, too_large),
            ("in small chunks", chunked + _chunk(b" " * 16) * (BODY_BYTES_MAX // 16 + 1), too_large),
            ("in too many chunks", chunked + _chunk(b" ") * (BODY_PARTS_MAX + 1), (400, None)),
        ],
    }  # fmt: skip


FAMILIES: Final[tuple[Callable[[Scene], Family], ...]] = (framing, lines, connections, sizes)


def attempts(at: Scene) -> Iterator[Attempt]:
    """Yield every attack in raw bytes, made for `at`."""
    for family in FAMILIES:
        for kind, rows in family(at).items():
            for name, data, *answers in rows:
                yield Attempt(title(family), kind, name, data, tuple(answers))
