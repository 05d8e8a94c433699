"""Attacks on the access token (RFC 9635 §7.2 and §11), by its owner, and by JSON that two parsers read differently."""

from collections.abc import Callable, Iterator
from typing import Final

from attrs import evolve

from campaigns.attacks.rows import Answer, Attempt, title
from incoming_payments.httpsig import PrivateKey, RequestMessage, sign
from incoming_payments.limits import BODY_BYTES_MAX, HEADER_BYTES_MAX, JSON_DEPTH_MAX, TOKEN_CHARS_MAX
from kits.signed_requests import Scene, put

# Tokens that the service knows in addition to those of the `Scene`.
EXPIRED: Final = "EXPIRED-TOKEN"  # of the client
READ_ONLY: Final = "READ-ONLY-TOKEN"  # of the client
CREATE_ONLY: Final = "CREATE-ONLY-TOKEN"  # of the client
STRANGERS: Final = "STRANGERS-TOKEN"  # of another client, with the key `other` of the `Scene`

Family = dict[str, list[tuple[str, RequestMessage, Answer]]]

MISSING: Final = (401, "token_missing")
INVALID: Final = (401, "invalid_token")


def tokens(at: Scene) -> Family:
    """The access token, RFC 9635 §7.2."""
    good, bare = at.signed_get(), put(at.get(), "Authorization")
    signed_bare = sign(bare, at.key, created=at.now)
    thief = at.other

    def with_authorization(*authorizations: str) -> RequestMessage:
        """Return a GET that is signed for exactly these fields."""
        request = put(at.get(), "Authorization", *authorizations)
        return at.forge(request, at.lines(authorization=", ".join(value.strip() for value in authorizations)))

    def under(token: str, key: PrivateKey = at.key) -> RequestMessage:
        return sign(put(at.get(), "Authorization", f"GNAP {token}"), key, created=at.now)

    return {
        "no token": [
            ("a good signature without one", signed_bare, MISSING),
            ("in the query", sign(evolve(bare, target_uri=f"{at.url}?access_token={at.tokens[0]}"), at.key,
             created=at.now), MISSING),
            ("in a cookie", put(signed_bare, "Cookie", f"token={at.tokens[0]}"), MISSING),
            ("in Proxy-Authorization", put(signed_bare, "Proxy-Authorization", at.authorization), MISSING),
            ("in X-Authorization", put(signed_bare, "X-Authorization", at.authorization), MISSING),
            ("in X-Forwarded-User", put(signed_bare, "X-Forwarded-User", "a-client"), MISSING),
        ],
        "a key-bound token as another kind, RFC 9635 §11": [
            ("Bearer", with_authorization(f"Bearer {at.tokens[0]}"), INVALID),
            ("Bearer, unsigned", put(at.get(), "Authorization", f"Bearer {at.tokens[0]}"), INVALID),
            ("DPoP", with_authorization(f"DPoP {at.tokens[0]}"), INVALID),
            ("Basic", with_authorization("Basic YTpi"), INVALID),
            ("Signature, in the form of the draft", with_authorization(f'Signature keyId="{at.kid}"'), INVALID),
        ],
        "text that is not a token": [
            ("none", with_authorization("GNAP"), INVALID),
            ("an empty one", with_authorization(""), INVALID),
            ("undefined", with_authorization("undefined"), INVALID),
            ("in quotes", with_authorization(f'GNAP "{at.tokens[0]}"'), INVALID),
            ("with a name", with_authorization(f"GNAP token={at.tokens[0]}"), INVALID),
            ("with a comma", with_authorization(f"{at.authorization},x"), INVALID),
            ("two in one", with_authorization(f"{at.authorization} {at.tokens[1]}"), INVALID),
            ("not ASCII", put(good, "Authorization", f"{at.authorization}\xe9"), INVALID),
            ("a tab for the space", put(good, "Authorization", f"GNAP\t{at.tokens[0]}"), INVALID),
            ("a NUL", put(good, "Authorization", f"{at.authorization}\0"), (400, None)),
            ("too long a one", with_authorization(f"GNAP {'a' * (TOKEN_CHARS_MAX + 1)}"), INVALID),
            ("longer than a field may be", with_authorization(f"GNAP {'a' * HEADER_BYTES_MAX}"),
             (431, "headers_too_large")),
        ],
        "a token twice": [
            ("an empty one besides", with_authorization(at.authorization, ""), INVALID),
            ("both good", with_authorization(at.authorization, at.authorization), INVALID),
            ("the good one first", with_authorization(at.authorization, "GNAP x"), INVALID),
            ("the good one last", with_authorization("GNAP x", at.authorization), INVALID),
        ],
        "a token that was never issued": [
            ("signed well, by a known key", under("UNKNOWN"), INVALID),
            ("signed by the attacker's own key", under("UNKNOWN", at.other), INVALID),
            ("not signed", put(at.get(), "Authorization", "GNAP UNKNOWN"), INVALID),
            ("the beginning of one", under(at.tokens[0][:-1]), INVALID),
            ("more after one", under(f"{at.tokens[0]}="), INVALID),
            ("one in another case", under(at.tokens[0].swapcase()), INVALID),
            ("a digest of one", under("n4bQgYhMfWWaL-qgxVrQFaO_TxsrC4Is0V1sFbDwCgg"), INVALID),
        ],
        "a bad signature under a bad token": [
            ("an unknown keyid", at.forge(put(at.get(), "Authorization", "GNAP UNKNOWN"), at.lines(
             authorization="GNAP UNKNOWN"), f';keyid="https://evil.example/";created={at.now_s}'), INVALID),
            ("a signature that cannot be parsed", put(under("UNKNOWN"), "Signature-Input", "undefined"), INVALID),
            ("a stale one, under a token that has ended", at.forge(put(at.get(), "Authorization", f"GNAP {EXPIRED}"),
             at.lines(authorization=f"GNAP {EXPIRED}"), at.params(late_s=-999)), (401, "token_expired")),
        ],
        "an expired token": [
            ("signed well", under(EXPIRED), (401, "token_expired")),
            ("not signed", put(at.get(), "Authorization", f"GNAP {EXPIRED}"), (401, "token_expired")),
        ],
        "a stolen token": [
            ("not signed", at.get(), (401, "signature_missing")),
            ("signed by the thief", at.forge(at.get(), at.lines(), f';keyid="{thief.kid}";created={at.now_s}',
             by=thief.sign), (401, "key_unknown")),
            ("signed by the thief, in the victim's name", at.get_by(thief.sign), (401, "signature_invalid")),
            ("with a request of another client", put(at.signed_get(), "Authorization", f"GNAP {STRANGERS}"),
             (401, "key_unknown")),
            ("to delete with a right to create", put(evolve(good, method="DELETE"), "Authorization", at.authorization),
             (405, "method_not_allowed")),
        ],
        "the key of one client for the token of another": [
            ("our key, their token", under(STRANGERS), (401, "key_unknown")),
            ("their key, our token", under(at.tokens[0], at.other), (401, "key_unknown")),
            ("both keys, each for half", sign(under(STRANGERS), at.key, created=at.now, label="sig2"),
             (401, "key_unknown")),
        ],
    }  # fmt: skip


def rights(at: Scene) -> Family:
    """Rights that a token lacks."""

    def create(token: str, body: bytes | None = None) -> RequestMessage:
        return sign(put(at.post(body=body), "Authorization", f"GNAP {token}"), at.key, created=at.now)

    of_payment = at.url.rpartition("/")[2]

    def by_url(url: str) -> RequestMessage:
        return sign(at.get(url=url), at.key, created=at.now)

    def read(token: str, key: PrivateKey = at.key) -> RequestMessage:
        return sign(put(at.get(), "Authorization", f"GNAP {token}"), key, created=at.now)

    return {
        "a right that the token lacks": [
            ("to create", create(READ_ONLY), (401, "insufficient_rights")),
            ("to read", read(CREATE_ONLY), (401, "insufficient_rights")),
        ],
        "a payment by another spelling of its id": [
            ("in upper case", by_url(at.url.replace(of_payment, of_payment.upper())), (404, "payment_not_found")),
            ("without hyphens", by_url(at.url.replace(of_payment, of_payment.replace("-", ""))),
             (404, "payment_not_found")),
            ("in braces", by_url(at.url.replace(of_payment, f"{{{of_payment}}}")), (404, "payment_not_found")),
            ("as a URN", by_url(at.url.replace(of_payment, f"urn:uuid:{of_payment}")), (404, "payment_not_found")),
            ("percent-encoded", by_url(at.url.replace("-", "%2D").replace("%2D", "-", 1)), (404, "payment_not_found")),
            ("a slash behind it", by_url(f"{at.url}/"), (404, "not_found")),
            ("a pattern", by_url(at.url.replace(of_payment, "%25")), (404, "payment_not_found")),
            ("SQL", by_url(at.url.replace(of_payment, "'%20OR%20'1'='1")), (404, "payment_not_found")),
        ],
        "another client's payment or wallet address": [
            ("payment", read(STRANGERS, at.other), (403, "forbidden")),
            ("wallet address", create(at.tokens[0], at.body.replace(b"alice", b"bob")), (403, "forbidden")),
        ],
        "a wallet address that is nearly the client's own": [
            (name, create(at.tokens[0], at.body.replace(b"https://", before).replace(b"/alice", after)), answer)
            for name, before, after, answer in (
                ("userinfo", b"https://me@", b"/alice", (400, "invalid_body")),
                ("a fragment", b"https://", b"/alice#x", (400, "invalid_body")),
                ("a dot segment", b"https://", b"/bob/../alice", (400, "invalid_body")),
                ("an encoded dot segment", b"https://", b"/bob/%2e%2e/alice", (400, "invalid_body")),
                ("another port", b"https://", b":8443/alice", (403, "forbidden")),
                ("another scheme", b"http://", b"/alice", (403, "forbidden")),
                ("a path in another case", b"https://", b"/Alice", (403, "forbidden")),
                ("a script", b"javascript://", b"/alice", (400, "invalid_body")),
                ("a NUL", b"https://", b"/alice\\u0000", (400, "invalid_body")),
            )
        ],
    }  # fmt: skip


def json_bodies(at: Scene) -> Family:
    """Signed JSON that two parsers read differently, or cannot store."""
    refused = (400, "invalid_body")

    def member(text: bytes) -> RequestMessage:
        """Return a signed POST whose body has one more member, or several."""
        return at.signed_post(at.body[:-1] + b", " + text + b"}")

    def body(octets: bytes) -> RequestMessage:
        return at.signed_post(octets)

    return {
        "JSON: a member twice": [
            ("equal", member(at.body[1:-1]), refused),
            ("another", member(b'"walletAddress": "https://evil.example/"'), refused),
            ("its name escaped", member(b'"wallet\\u0041ddress": "https://evil.example/"'), refused),
            ("within metadata", member(b'"metadata": {"a": 1, "a": 2}'), refused),
        ],
        "JSON: members that change behaviour elsewhere": [
            ("__proto__", member(b'"__proto__": {"completed": true}'), refused),
            ("a member that the service sets", member(b'"completed": true'), refused),
            ("an amount received", member(b'"receivedAmount": {"value": "1", "assetCode": "USD", "assetScale": 2}'),
             refused),
            ("null", member(b'"incomingAmount": null'), refused),
        ],
        "JSON: invalid numbers": [
            ("NaN", member(b'"metadata": {"a": NaN}'), refused),
            ("Infinity", member(b'"metadata": {"a": -Infinity}'), refused),
            ("too large for a double", member(b'"metadata": {"a": 1e400}'), refused),
            ("of thousands of digits", member(b'"metadata": {"a": ' + b"9" * 5000 + b"}"), refused),
            ("a leading zero", member(b'"metadata": {"a": 01}'), refused),
        ],
        "JSON: text that cannot be stored": [
            ("a lone surrogate", member(b'"metadata": {"a": "\\ud800"}'), refused),
            ("a NUL", member(b'"metadata": {"a": "\\u0000"}'), refused),
            ("an unescaped newline", member(b'"metadata": {"a": "\n"}'), refused),
            ("bytes that are not UTF-8", member(b'"metadata": {"a": "\xff"}'), refused),
            ("a surrogate as UTF-8", member(b'"metadata": {"a": "\xed\xa0\x80"}'), refused),
        ],
        "JSON: another encoding": [
            ("a byte order mark", body(b"\xef\xbb\xbf" + at.body), refused),
            ("UTF-16", body(at.body.decode().encode("utf-16")), refused),
            ("UTF-32", body(at.body.decode().encode("utf-32")), refused),
        ],
        "JSON: more than one value": [
            ("two objects", body(at.body + at.body), refused),
            ("a comment", body(at.body + b"//"), refused),
            ("a NUL at its end", body(at.body + b"\0"), refused),
        ],
        "JSON: above a limit": [
            ("deep", member(b'"metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000), refused),
            ("a level too deep", member(b'"metadata": {"a": ' + b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX + b"}"),
             refused),
            ("a byte too long", body(at.body + b" " * (BODY_BYTES_MAX + 1 - len(at.body))), (413, "body_too_large")),
        ],
        "another kind of body": [
            ("text, by its type", at.post_covering(put(at.digested(), "Content-Type", "text/plain"), "content-digest",
             "content-type"), (415, "unsupported_media_type")),
            ("a form, by its type", at.post_covering(put(at.digested(), "Content-Type",
             "application/x-www-form-urlencoded"), "content-digest"), (415, "unsupported_media_type")),
            ("compressed, RFC 9530 §6", at.post_covering(at.digested(("Content-Encoding", "gzip")), "content-digest"),
             (415, "unsupported_encoding")),
            ("nothing", sign(at.post(body=b""), at.key, created=at.now), refused),
        ],
    }  # fmt: skip


FAMILIES: Final[tuple[Callable[[Scene], Family], ...]] = (tokens, rights, json_bodies)


def attempts(at: Scene) -> Iterator[Attempt]:
    """Every attack on or with a token, made for `at`."""
    for family in FAMILIES:
        for kind, rows in family(at).items():
            for name, request, answer in rows:
                yield Attempt(title(family), kind, name, request, (answer,))
