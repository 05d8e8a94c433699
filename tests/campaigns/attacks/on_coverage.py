"""Attacks by uncovered components and by the time of the signature. RFC 9421 §7.2."""

from attrs import evolve

from campaigns.attacks.rows import NO_BODY_HERE, Family
from incoming_payments.httpsig import Code, RequestMessage, content_digest
from kits.signed_requests import Scene


def coverage(at: Scene) -> Family:
    """Uncovered components."""
    get = at.get()
    method, target, token = at.lines()
    missing = Code.COMPONENT_NOT_COVERED
    host, _, rest = at.url.partition("://")[2].partition("/")
    path = f"/{rest}"

    def covers(*lines: tuple[str, str]) -> RequestMessage:
        return at.forge(get, lines)

    def covers_digest(identifier: str, value: str, *headers: tuple[str, str]) -> RequestMessage:
        return at.post_covering(at.digested(*headers), lines=[(identifier, value)])

    return {
        "nothing is covered": [("an empty list", covers(), missing)],
        "one component is left out": [
            ("the method", covers(target, token), missing),
            ("the target", covers(method, token), missing),
            ("the token", covers(method, target), missing),
        ],
        "only a part of the target": [
            ("the path", covers(method, ('"@path"', path), token), missing),
            ("the request target", covers(method, ('"@request-target"', path), token), missing),
            ("the host", covers(method, ('"@authority"', host), token), missing),
            ("all its parts", covers(method, ('"@scheme"', "https"), ('"@authority"', host),
             ('"@path"', path), ('"@query"', "?"), token), missing),
        ],
        "a required component with a parameter": [
            ("the token with ;bs", covers(method, target, ('"authorization";bs', ":R05BUCB0b2tlbg==:")), missing),
            ("the token with ;key", covers(method, target, ('"authorization";key="a"', "x")), missing),
            ("the token with ;sf", covers(method, target, ('"authorization";sf', at.authorization)), missing),
            ("the token with ;req", covers(method, target, ('"authorization";req', at.authorization)), missing),
            ("the token with ;tr", covers(method, target, ('"authorization";tr', at.authorization)), missing),
            ("the token with an unknown parameter", covers(method, target, ('"authorization";x', at.authorization)),
             missing),
            ("the method with ;req", covers(('"@method";req', "GET"), target, token), missing),
            ("the target with ;name", covers(method, ('"@target-uri";name="a"', at.url), token), missing),
        ],
        "a required component in another spelling": [
            ("a field in upper case", covers(method, target, ('"Authorization"', at.authorization)), missing),
            ("a derived component in upper case", covers(('"@Method"', "GET"), target, token), missing),
            ("a space after it", covers(method, target, ('"authorization "', at.authorization)), missing),
            ("a colon after it", covers(method, target, ('"authorization:"', at.authorization)), missing),
            ("without its @", covers(('"method"', "GET"), target, token), missing),
            ("in the form of HTTP/2", covers(('":method"', "GET"), target, token), missing),
            ("in the form of the draft", covers(('"(request-target)"', f"get {path}"), token), missing),
        ],
        "the body is not covered": [
            ("there is no digest", at.post_covering(at.post()), Code.BODY_NOT_COVERED),
            ("its digest is not covered", at.post_covering(at.digested()), Code.BODY_NOT_COVERED),
            ("a body added to a GET", evolve(at.signed_get(), body=b"{}"), Code.BODY_NOT_COVERED, NO_BODY_HERE),
            ("only its length and type are", at.post_covering(at.digested(), "content-length", "content-type"),
             Code.BODY_NOT_COVERED),
        ],
        "the digest is covered in another form": [
            ("by one of its keys", covers_digest('"content-digest";key="sha-512"', content_digest(at.body)[8:]),
             Code.BODY_NOT_COVERED),
            ("with ;sf", covers_digest('"content-digest";sf', content_digest(at.body)), Code.BODY_NOT_COVERED),
            ("in a trailer", covers_digest('"content-digest";tr', content_digest(at.body)), Code.BODY_NOT_COVERED),
            ("in upper case", covers_digest('"Content-Digest"', content_digest(at.body)), Code.BODY_NOT_COVERED),
        ],
        "another digest is covered": [
            ("Repr-Digest", covers_digest('"repr-digest"', content_digest(at.body), ("Repr-Digest",
             content_digest(at.body))), Code.BODY_NOT_COVERED),
            ("Digest, obsolete", covers_digest('"digest"', "SHA-256=AAAA", ("Digest", "SHA-256=AAAA")),
             Code.BODY_NOT_COVERED),
            ("Content-MD5, obsolete", covers_digest('"content-md5"', "AAAA", ("Content-MD5", "AAAA")),
             Code.BODY_NOT_COVERED),
        ],
    }  # fmt: skip


def times(at: Scene) -> Family:
    """The time of the signature."""

    def created(late_s: int, more: str = "") -> RequestMessage:
        return at.get_with(at.params(more, late_s=late_s))

    return {
        "no usable creation time": [
            ("created is missing", at.get_with(f';keyid="{at.kid}"'), Code.CREATED_MISSING),
            ("created is missing, and expires is not", at.get_with(f';keyid="{at.kid}";expires={at.now_s + 9}'),
             Code.CREATED_MISSING),
            ("Date instead", at.forge(at.get(("Date", "Tue, 01 Jan 2030 12:00:00 GMT")), [*at.lines(),
             ('"date"', "Tue, 01 Jan 2030 12:00:00 GMT")], f';keyid="{at.kid}"'), Code.CREATED_MISSING),
        ],
        "signed in the future": [
            ("by a day", created(86_400), Code.CREATED_IN_FUTURE),
            ("by a century", created(3_155_760_000), Code.CREATED_IN_FUTURE),
        ],
        "signed long ago": [
            ("a year ago", created(-31_536_000), Code.STALE),
            ("a second too long ago", created(-301), Code.STALE),
            ("in 1970", at.get_with(f';keyid="{at.kid}";created=0'), Code.STALE),
            ("a day ago, with an expiry next year", created(-86_400, f";expires={at.now_s + 31_536_000}"), Code.STALE),
        ],
        "an expiry before the creation": [
            ("by a second", created(0, f";expires={at.now_s - 1}"), Code.EXPIRES_BEFORE_CREATED),
            ("at the same second", created(0, f";expires={at.now_s}"), Code.EXPIRES_BEFORE_CREATED),
            ("in 1970", created(0, ";expires=0"), Code.EXPIRES_BEFORE_CREATED),
        ],
        "an expired signature": [("by a second", created(-60, f";expires={at.now_s - 1}"), Code.EXPIRED)],
    }  # fmt: skip
