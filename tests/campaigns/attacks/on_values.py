"""Attacks on the signature base by components and their values. RFC 9421 §2.5, §7.4 and §7.5."""

from attrs import evolve

from campaigns.attacks.rows import (
    NEWLINE,
    NO_CONTROLS,
    NO_FRAGMENT,
    NO_SUCH_LENGTH,
    NO_SUCH_LINE,
    NO_SUCH_METHOD,
    NO_SUCH_PATH,
    NO_SUCH_TYPE,
    NO_TOKEN,
    NOT_A_TOKEN,
    OUR_OWN_TARGET,
    SAME_TARGET,
    Family,
    OverHttp,
)
from incoming_payments.httpsig import Code, RequestMessage
from incoming_payments.limits import SF_PARTS_MAX
from kits.signed_requests import Scene, put


def components(at: Scene) -> Family:
    """Names and parameters of components."""
    unsupported, absent = Code.COMPONENT_UNSUPPORTED, Code.COMPONENT_ABSENT
    method = at.lines()[0]
    one = [("X-A", "1")]

    def parameter(identifier: str, value: str = "1", name: str = "X-A", field_value: str = "1") -> RequestMessage:
        return at.get_covering((identifier, value), headers=[(name, field_value)])

    def query_parameter(query: str, line: tuple[str, str]) -> RequestMessage:
        return at.get_covering(line, url=f"{at.url}?{query}")

    return {
        "an unknown component": [
            ("in upper case", at.get_covering(('"X-A"', "1"), headers=one), unsupported),
            ("an unknown derived component", at.get_covering(('"@unknown"', "")), unsupported),
            ("a name from HTTP/2", at.get_covering(('":authority"', "ase.example")), unsupported),
            ("an empty one", at.get_covering(('""', "")), unsupported),
            ("with a space", at.get_covering(('"x-a "', "1"), headers=one), unsupported),
            ("with a colon and a value", at.get_covering(('"x-a: 1"', "1"), headers=one), unsupported),
        ],
        "a component that does not belong to a request": [
            ("the status, of responses", at.get_covering(('"@status"', "200")), unsupported),
            ("the signature parameters", at.get_covering(('"@signature-params"', "")), unsupported),
            ("of the request of a request", at.get_covering(('"@path";req', "/")), unsupported),
        ],
        "a parameter that cannot be applied": [
            ("an unknown one", parameter('"x-a";x'), unsupported),
            (";tr, of trailers", parameter('"x-a";tr'), unsupported),
            (";req, of responses", parameter('"x-a";req'), unsupported),
            (";sf of an unstructured field", parameter('"x-a";sf'), unsupported),
            (";key of an unstructured field", parameter('"x-a";key="a"', "1", "X-A", "a=1"), unsupported),
            (";key of a list", parameter('"accept";key="a"', "1", "Accept", "*/*"), unsupported),
            (";name of a field", parameter('"x-a";name="a"'), unsupported),
            (";name that is not a string", query_parameter("a=1", ('"@query-param";name=a', "1")), unsupported),
            (";name that is missing", query_parameter("a=1", ('"@query-param"', "1")), unsupported),
            (";bs of a derived component", at.get_covering(('"@path";bs', ":Lw==:")), unsupported),
        ],
        "a parameter with an impossible value": [
            (";bs is false", parameter('"x-a";bs=?0'), unsupported),
            (";sf is one", parameter('"priority";sf=1', "u=1", "Priority", "u=1"), unsupported),
            (";key is true", parameter('"priority";key', "1", "Priority", "u=1"), unsupported),
        ],
        "parameters that contradict each other": [
            (";bs with ;sf", parameter('"te";bs;sf', "1", "Te", "a"), unsupported),
            (";bs with ;key", parameter('"priority";bs;key="u"', "1", "Priority", "u=1"), unsupported),
        ],
        "a component twice": [
            ("derived", at.get_covering(method), Code.COMPONENT_REPEATED),
            ("a field", at.get_covering(('"x-a"', "1"), ('"x-a"', "1"), headers=one), Code.COMPONENT_REPEATED),
            ("a field, with another value", at.get_covering(('"x-a"', "1"), ('"x-a"', "2"),
             headers=[*one, ("X-A", "2")]), Code.COMPONENT_REPEATED),
            ("with its parameters exchanged", at.get_covering(('"priority";sf;key="u"', "1"), ('"priority";key="u";sf',
             "1"), headers=[("Priority", "u=1")]), Code.COMPONENT_REPEATED),
        ],
        "an absent field that is signed": [
            ("as empty", at.get_covering(('"x-a"', "")), absent),
            ("as undefined", at.get_covering(('"x-a"', "undefined")), absent),
            ("as null", at.get_covering(('"x-a"', "null")), absent),
            ("another signature, which was removed", at.get_covering(('"signature";key="sig2"', ":AAAA:"),
             headers=[("Signature", "sig0=::"), ("Signature-Input", "sig0=()")]), absent),
        ],
        "a covered field removed": [
            ("the token", put(at.signed_get(), "Authorization"), absent, NO_TOKEN),
            ("the digest", put(at.signed_post(), "Content-Digest"), absent),
            ("the type", put(at.signed_post(), "Content-Type"), absent, NO_SUCH_TYPE),
        ],
        "an absent member": [
            ("of a query", at.get_covering(('"@query-param";name="a"', "")), absent),
            ("of a dictionary", parameter('"priority";key="i"', "?0", "Priority", "u=1"), absent),
        ],
    }  # fmt: skip


def values(at: Scene) -> Family:
    """Values that two parsers read differently, RFC 9421 §7.5."""
    value, repeated, invalid = Code.COMPONENT_VALUE, Code.FIELD_REPEATED, Code.SIGNATURE_INVALID
    good = at.signed_get()
    digest = ("content-digest",)

    def fields(line: tuple[str, str], *values: str, name: str = "X-A") -> RequestMessage:
        return at.get_covering(line, headers=[(name, each) for each in values])

    def query(query: str, line: tuple[str, str]) -> RequestMessage:
        return at.get_covering(line, url=f"{at.url}?{query}")

    return {
        "a line of the signature base inside a value": [
            ("after a newline", fields(('"x-a"', '1\n"x-b": 2'), '1\n"x-b": 2'), value, NEWLINE),
            ("after a carriage return", fields(('"x-a"', '1\r"x-b": 2'), '1\r"x-b": 2'), value, NO_CONTROLS),
            ("in the method", evolve(good, method='GET\n"x": y'), value, NO_SUCH_LINE),
            ("in the target", evolve(good, target_uri=f'{at.url}\n"x":'), value, NO_SUCH_LINE),
        ],
        "control characters in a value": [
            ("a NUL", fields(('"x-a"', "1\0"), "1\0"), value, NO_CONTROLS),
            ("a vertical tab", fields(('"x-a"', "1\x0b2"), "1\x0b2"), value, NO_CONTROLS),
            ("with ;bs", fields(('"x-a";bs', ":MQAy:"), "1\x002"), value, NO_CONTROLS),
            ("a delete character", fields(('"x-a"', "1\x7f2"), "1\x7f2"), value, NO_CONTROLS),
        ],
        "letters that are not ASCII": [
            ("latin-1", fields(('"x-a"', "\xe9"), "\xe9"), value),
            ("UTF-8", fields(('"x-a"', "\xc3\xa9"), "\xc3\xa9"), value),
        ],
        "an invalid method": [
            ("an empty one", evolve(good, method=""), value, NO_SUCH_LINE),
            ("with a space", evolve(good, method="GET GET"), value, NO_SUCH_LINE),
        ],
        "a dictionary that is ambiguous": [
            ("a key twice", fields(('"priority";key="u"', "2"), "u=1, u=2", name="Priority"), value),
            ("a key twice in two lines", fields(('"priority";key="u"', "2"), "u=1", "u=2", name="Priority"), value),
            ("not a dictionary", fields(('"priority";sf', "u=1"), "u=(", name="Priority"), value),
            ("too long to be parsed", fields(('"priority";sf', "u=1"), f"u=({'1 ' * SF_PARTS_MAX})",
             name="Priority"), value),
        ],
        "a query that is ambiguous, RFC 9421 §7.5.8": [
            ("a parameter twice", query("a=1&a=2", ('"@query-param";name="a"', "1")), value),
            ("a parameter twice, once encoded", query("a=1&%61=2", ('"@query-param";name="a"', "1")), value),
            ("bytes that are not UTF-8", query("a=%FF", ('"@query-param";name="a"', "%EF%BF%BD")), value),
        ],
        "a repeated field that is not a list, RFC 9421 §7.5.6": [
            ("the token", at.forge(at.get(("Authorization", "GNAP other")), at.lines(
             authorization=f"{at.authorization}, GNAP other")), repeated, NOT_A_TOKEN),
            ("Content-Type", at.post_covering(at.digested(("Content-Type", "text/plain")), *digest, "content-type"),
             repeated, NO_SUCH_TYPE),
            ("Content-Length", at.post_covering(at.digested(("Content-Length", "5")), *digest, "content-length"),
             repeated, NO_SUCH_LENGTH),
            ("Content-Length, equal", at.post_covering(at.digested(("Content-Length", str(len(at.body)))), *digest,
             "content-length"), repeated, NO_SUCH_LENGTH),
            ("Date", fields(('"date"', "a, b"), "a", "b", name="Date"), repeated),
        ],
        "repeated lines, signed in another form, RFC 9421 §7.5.7": [
            ("the first alone", fields(('"x-a"', "1"), "1", "2"), invalid),
            ("the last alone", fields(('"x-a"', "2"), "1", "2"), invalid),
            ("joined without a space", fields(('"x-a"', "1,2"), "1", "2"), invalid),
            ("joined by a newline", fields(('"x-a"', "1\n2"), "1", "2"), invalid),
            ("the other way round", fields(('"x-a"', "1, 2"), "2", "1"), invalid),
            ("one line signed, two sent, with ;bs", fields(('"x-a";bs', ":MSwgMg==:"), "1", "2"), invalid),
            ("two lines signed, one sent, with ;bs", fields(('"x-a";bs', ":MQ==:, :Mg==:"), "1, 2"), invalid),
        ],
        "a value in another form": [
            ("the white space around it", fields(('"x-a"', " 1 "), " 1 "), invalid),
            ("its letters in another case", fields(('"x-a"', "a"), "A"), invalid),
            ("in the strict form, without ;sf", fields(('"priority"', "u=1, i"), "u=1,i", name="Priority"), invalid),
            ("an empty one for a present one", fields(('"x-a"', ""), "1"), invalid),
        ],
    }  # fmt: skip


def targets(at: Scene) -> Family:
    """The target of the request, RFC 9421 §7.4.2 and §7.5.5."""
    good, value, invalid = at.signed_get(), Code.COMPONENT_VALUE, Code.SIGNATURE_INVALID
    scheme, _, host, path = at.url.split("/", 3)
    origin = f"{scheme}//{host}"
    evil = f"https://evil.example/{path}"
    meant_for = at.meant_for

    def sent_to(target_uri: str) -> RequestMessage:
        return evolve(good, target_uri=target_uri)

    def with_field(name: str, text: str, url: str) -> RequestMessage:
        return at.forge(at.get((name, text)), at.lines(url))

    return {
        "signed for another target": [
            ("another host, as after a redirection", meant_for(evil), invalid),
            ("another path", meant_for(f"{at.url}/1"), invalid),
            ("the path above", meant_for(at.url.rpartition("/")[0]), invalid),
            ("a query", meant_for(f"{at.url}?x=1"), invalid),
            ("http instead of https", meant_for(at.url.replace("https", "http", 1)), invalid),
            ("the path alone", meant_for(f"/{path}"), invalid),
        ],
        "signed for another spelling of the target": [
            ("the default port", meant_for(f"{origin}:443/{path}"), invalid),
            ("a dot segment", meant_for(f"{origin}/x/../{path}"), invalid),
            ("a percent-encoded letter", meant_for(at.url.replace("/i", "/%69", 1)), invalid),
            ("the host in upper case", meant_for(f"{origin.upper().replace('HTTPS', 'https')}/{path}"), invalid),
            ("the path in upper case", meant_for(f"{origin}/{path.upper()}"), invalid),
            ("a slash at the end", meant_for(f"{at.url}/"), invalid),
            ("two slashes", meant_for(f"{origin}//{path}"), invalid),
            ("a dot after the host", meant_for(f"{origin}./{path}"), invalid),
            ("an empty query", meant_for(f"{at.url}?"), invalid),
            ("a fragment", meant_for(f"{at.url}#x"), invalid),
            ("userinfo", meant_for(at.url.replace("//", "//me@")), invalid),
        ],
        "sent to another target than the signed one": [
            ("a fragment", sent_to(f"{at.url}#x"), value, NO_FRAGMENT),
            ("a newline", sent_to(f"{at.url}\n"), value, NO_SUCH_LINE),
            ("a space", sent_to(f"{at.url} "), value, SAME_TARGET),
            ("another path", sent_to(f"{at.url}/1"), invalid, NO_SUCH_PATH),
            ("a query added", sent_to(f"{at.url}?x=1"), invalid),
            ("a dot segment", sent_to(at.url.replace("/incoming", "/x/../incoming")), invalid, NO_SUCH_PATH),
            ("a percent-encoded letter", sent_to(at.url.replace("/i", "/%69", 1)), invalid, NO_SUCH_PATH),
            ("two slashes", sent_to(f"{origin}//{path}"), invalid, NO_SUCH_PATH),
        ],
        "sent to another host": [
            ("userinfo", at.forge(at.get(url=at.url.replace("//", "//me@")), at.lines(at.url.replace("//", "//me@"))),
             value, OUR_OWN_TARGET),
            ("a host with a space", at.forge(at.get(url=f"https://a b/{path}"), at.lines(f"https://a b/{path}")), value,
             NO_SUCH_LINE),
        ],
        "another target in a field that proxies set": [
            ("Host", with_field("Host", "evil.example", evil), invalid),
            ("X-Forwarded-Host", with_field("X-Forwarded-Host", "evil.example", evil), invalid),
            ("X-Forwarded-Proto", with_field("X-Forwarded-Proto", "http", at.url.replace("https", "http", 1)), invalid),
            ("X-Forwarded-Prefix", with_field("X-Forwarded-Prefix", "/op", f"{origin}/op/{path}"), invalid),
            ("Forwarded", with_field("Forwarded", "host=evil.example;proto=https", evil), invalid),
            ("X-Original-URL", with_field("X-Original-URL", f"/{path}/1", f"{at.url}/1"), invalid),
            ("X-Rewrite-URL", with_field("X-Rewrite-URL", f"/{path}/1", f"{at.url}/1"), invalid),
        ],
        "another method than signed": [
            ("HEAD", evolve(good, method="HEAD"), invalid, OverHttp(401, None, "the answer to HEAD has no body")),
            ("DELETE", evolve(good, method="DELETE"), invalid, NO_SUCH_METHOD),
            ("in lower case", evolve(good, method="get"), invalid, NO_SUCH_LINE),
            ("signed in lower case", at.forge(at.get(), [('"@method"', "get"), *at.lines()[1:]]), invalid),
            ("a field overrides it", at.forge(at.get(("X-HTTP-Method-Override", "DELETE")), [('"@method"', "DELETE"),
             *at.lines()[1:]]), invalid),
        ],
    }  # fmt: skip
