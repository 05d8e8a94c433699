"""Attacks by the syntax of Signature-Input and Signature, which are parsed before anything is verified. RFC 9421 §4."""

import itertools

from attrs import evolve

from campaigns.attacks.rows import FIELD_TOO_LARGE, HEADERS_WITHOUT_END, NEWLINE, NO_CONTROLS, NO_SUCH_NAME, Family
from incoming_payments.httpsig import Code, RequestMessage, content_digest
from incoming_payments.limits import (
    COMPONENTS_MAX,
    HEADER_BYTES_MAX,
    KEY_ID_CHARS_MAX,
    NONCE_CHARS_MAX,
    SF_MEMBERS_MAX,
    SF_PARAMETERS_MAX,
    SIGNATURES_MAX,
)
from kits.signed_requests import Scene, both, field, put, replace


def presence(at: Scene) -> Family:
    """Missing signatures."""
    get, good = at.get(), at.signed_get()
    missing, malformed = Code.SIGNATURE_MISSING, Code.SIGNATURE_INPUT_MALFORMED
    cavage = (
        f'keyId="{at.kid}",algorithm="hs2019",headers="(request-target)",signature="{field(good, "signature")[6:-1]}"'
    )
    return {
        "no signature": [
            ("neither field", get, missing),
            ("Signature-Input is missing", put(good, "Signature-Input"), missing),
            ("Signature is missing", put(good, "Signature"), missing),
            ("both are empty", put(put(good, "Signature", ""), "Signature-Input", ""), missing),
            ("both are white space", put(put(good, "Signature", "  "), "Signature-Input", "  "), missing),
        ],
        "the word 'undefined' as a value, as some clients send in a retry": [
            ("for both", put(put(get, "Signature", "undefined"), "Signature-Input", "undefined"), malformed),
            ("for Signature-Input", put(good, "Signature-Input", "undefined"), malformed),
            ("for Signature", put(good, "Signature", "undefined"), Code.SIGNATURE_MALFORMED),
            ("null for Signature", put(good, "Signature", "null"), Code.SIGNATURE_MALFORMED),
        ],
        "another proof of the key, RFC 9635 §7.3": [
            ("a detached JWS", at.get(("Detached-JWS", "eyJhbGciOiJFZERTQSJ9..c2ln")), missing),
            ("a client certificate that a proxy should have set", at.get(("Client-Cert", ":MIIB:")), missing),
            ("DPoP", at.get(("DPoP", "eyJ0eXAiOiJkcG9wK2p3dCJ9.e30.c2ln")), missing),
            ("the draft before RFC 9421", at.get(("Signature", cavage)), missing),
            ("the draft before RFC 9421, with an input", put(good, "Signature", cavage), Code.SIGNATURE_MALFORMED),
        ],
        "field names that some software confuses": [
            ("an underscore", put(put(good, "Signature"), "Signature_Input", field(good, "signature-input")), missing),
            ("X- before it", put(put(good, "Signature"), "X-Signature", field(good, "signature")), missing),
            ("@method as a field", at.forge(at.get(("@method", "GET")), at.lines()[1:]), Code.COMPONENT_NOT_COVERED,
             NO_SUCH_NAME),
            ("@method as a field with another value", evolve(at.get_covering(headers=[("@method", "GET")]),
             method="HEAD"), Code.SIGNATURE_INVALID, NO_SUCH_NAME),
        ],
    }  # fmt: skip


def input_syntax(at: Scene) -> Family:
    """The content of Signature-Input."""
    good = at.signed_get()
    value = field(good, "signature-input")
    malformed = Code.SIGNATURE_INPUT_MALFORMED

    def with_input(*lines: str) -> RequestMessage:
        return put(good, "Signature-Input", *lines)

    def with_type(parameter: str) -> RequestMessage:
        return at.get_with(f';keyid="{at.kid}";{parameter}')

    return {
        "a malformed list of components": [
            ("names without quotes", with_input(value.replace('"@method"', "@method")), malformed),
            ("a name as a token", with_input(value.replace('"@method"', "method")), malformed),
            ("a name as a byte sequence", with_input(value.replace('"@method"', ":AAAA:")), malformed),
            ("a name as a display string", with_input(value.replace('"@method"', '%"%40method"')), malformed),
            ("a list in the list", with_input(value.replace('"@method"', '("@method")')), malformed),
            ("commas between the names", with_input(value.replace('" "', '", "')), malformed),
            ("no label", with_input(value[5:]), malformed),
            ("a string", with_input(f"sig1={at.params()}"), malformed),
            ("a label alone", with_input("sig1"), malformed),
            ("not closed", with_input(value.replace(")", "")), malformed),
            ("more after it", with_input(f"{value} x"), malformed),
            ("its parameters in another line", with_input(value.partition(";")[0], at.params()), malformed),
        ],
        "a label repeated": [
            ("in one line", with_input(f"{value}, {value}"), malformed),
            ("in another line", with_input(value, value), malformed),
            ("with less in the second", with_input(value, f'sig1=("@method"){at.params()}'), malformed),
        ],
        "a parameter repeated": [
            ("created", at.get_with(at.params(f";created={at.now_s}")), malformed),
            ("keyid, the second of another client", at.get_with(at.params(';keyid="key-2"')), malformed),
            ("of a component", at.get_covering(('"x-a";bs;bs', ":MQ==:"), headers=[("X-A", "1")]), malformed),
        ],
        "a time of another type": [
            ("created is a string", with_type(f'created="{at.now_s}"'), malformed),
            ("created is a decimal", with_type(f"created={at.now_s}.0"), malformed),
            ("created is a date", with_type(f"created=@{at.now_s}"), malformed),
            ("created is a boolean", with_type("created"), malformed),
            ("created is a token", with_type("created=now"), malformed),
            ("created has an exponent", with_type("created=1e9"), malformed),
            ("created is negative", with_type("created=-1"), malformed),
            ("expires is a string", with_type(f'created={at.now_s};expires="{at.now_s + 9}"'), malformed),
            ("expires is a decimal", with_type(f"created={at.now_s};expires={at.now_s + 9}.5"), malformed),
        ],
        "a time outside the calendar": [
            ("created", with_type("created=999999999999999"), malformed),
            ("expires", with_type(f"created={at.now_s};expires=999999999999999"), malformed),
            ("created in milliseconds", with_type(f"created={at.now_s}000"), malformed),
            ("more digits than an integer has", with_type(f"created={'9' * 16}"), malformed),
        ],
        "a text of another type": [
            ("keyid is a token", at.get_with(f";keyid=key-1;created={at.now_s}"), malformed),
            ("keyid is a byte sequence", at.get_with(f";keyid=:a2V5LTE=:;created={at.now_s}"), malformed),
            ("keyid is an integer", at.get_with(f";keyid=1;created={at.now_s}"), malformed),
            ("keyid has a needless escape", at.get_with(f';keyid="\\{at.kid}";created={at.now_s}'), malformed),
            ("keyid is a boolean", at.get_with(f";keyid;created={at.now_s}"), malformed),
            ("alg is a token", at.get_with(at.params(";alg=ed25519")), malformed),
            ("nonce is an integer", at.get_with(at.params(";nonce=1")), malformed),
            ("tag is a token", at.get_with(at.params(";tag=pay")), malformed),
        ],
        "control characters in Signature-Input": [
            ("a newline", with_input(value + "\n"), malformed, NEWLINE),
            ("a NUL", with_input(value + "\0"), malformed, NO_CONTROLS),
            ("a newline in keyid", at.get_with(f';keyid="{at.kid}\n";created={at.now_s}'), malformed, NEWLINE),
            ("a tab between names", with_input(value.replace('" "', '"\t"')), malformed),
            ("a letter that is not ASCII", with_input(value.replace(at.kid, at.kid + "\xe9")), malformed),
        ],
        "Signature-Input above a limit": [
            ("thousands of labels", with_input(", ".join(f"a{n}=()" for n in range(1500))), malformed),
            ("one label too many", with_input(", ".join(f"a{n}=()" for n in range(SF_MEMBERS_MAX + 1))), malformed),
            ("a megabyte", with_input(value + ";x" * 500_000), malformed, HEADERS_WITHOUT_END),
            ("more than one field may hold", with_input(value + ";x" * (HEADER_BYTES_MAX // 2)), malformed,
             FIELD_TOO_LARGE),
            ("in many lines together", with_input(*(f"a{n}=()" + ";x" * 5000 for n in range(4))), malformed),
            ("more parts than one field may have", with_input(", ".join(f"a{n}=({'x ' * 9}x)" for n in range(20))),
             malformed),
            ("one component too many", at.get_covering(*((f'"x-{n}"', "") for n in range(COMPONENTS_MAX))), malformed),
            ("one parameter too many", at.get_with(at.params("".join(f";p{n}" for n in range(SF_PARAMETERS_MAX)))),
             malformed),
            ("one parameter of a component too many", at.get_covering(
             ('"x-a"' + "".join(f";p{n}" for n in range(SF_PARAMETERS_MAX + 1)), "1")), malformed),
            ("deep parentheses", with_input("sig1=" + "(" * 8000), malformed),
            ("a string that never ends", with_input('sig1=("' + '\\"' * 8000), malformed),
            ("a long keyid", at.get_with(f';created={at.now_s};keyid="{"k" * (KEY_ID_CHARS_MAX + 1)}"'), malformed),
            ("a long nonce", at.get_with(at.params(f';nonce="{"n" * (NONCE_CHARS_MAX + 1)}"')), malformed),
        ],
    }  # fmt: skip


def signature_syntax(at: Scene) -> Family:
    """The content of Signature."""
    good = at.signed_get()
    value = field(good, "signature")
    base64 = value[6:-1]
    malformed = Code.SIGNATURE_MALFORMED

    def with_signature(*lines: str) -> RequestMessage:
        return put(good, "Signature", *lines)

    return {
        "a signature that is not a byte sequence": [
            ("no colons, as PHP sends it", with_signature(value.replace(":", "")), malformed),
            ("no label, as Rust sends it", with_signature(base64), malformed),
            ("a string", with_signature(value.replace(":", '"')), malformed),
            ("in a list", with_signature(f"sig1=({value[5:]})"), malformed),
            ("an integer", with_signature("sig1=1"), malformed),
            ("a label alone, which is true", with_signature("sig1"), malformed),
            ("hexadecimal digits", with_signature(f"sig1={'ab' * 64}"), malformed),
            ("with a parameter", with_signature(f"{value};keyid=x"), malformed),
            ("with more after it", with_signature(f"{value}A"), malformed),
            ("in two lines", with_signature(value[:20], value[20:]), malformed),
        ],
        "base64 in another spelling": [
            ("base64url", _in_base64url(at), malformed),
            ("no padding", with_signature(value.replace("==:", ":")), malformed),
            ("half of the padding", with_signature(value.replace("==:", "=:")), malformed),
            ("too much padding", with_signature(value.replace("==:", "===:")), malformed),
            ("bits past the end", with_signature(f"{value[:-4]}{chr(ord(value[-4]) + 1)}==:"), malformed),
            ("a space in it", with_signature(f"{value[:20]} {value[20:]}"), malformed),
            ("padding in the middle", with_signature(f"sig1=:{base64}{base64}:"), malformed),
            ("percent-encoded", with_signature(value.replace("==", "%3D%3D")), malformed),
        ],
        "a signature's label repeated": [
            ("in one line", with_signature(f"{value}, {value}"), malformed),
            ("in another line", with_signature(value, value), malformed),
            ("a wrong one first", with_signature("sig1=:AAAA:", value), malformed),
        ],
        "control characters in Signature": [
            ("a newline", with_signature(f"{value[:20]}\n{value[20:]}"), malformed, NEWLINE),
            ("a NUL", with_signature(value + "\0"), malformed, NO_CONTROLS),
            ("a letter that is not ASCII", with_signature(value + "\xe9"), malformed),
        ],
        "Signature above a limit": [
            ("thousands of labels", with_signature(", ".join(f"a{n}=::" for n in range(1500))), malformed),
            ("megabytes of base64", with_signature(f"sig1=:{'A' * 2_000_000}:"), malformed, HEADERS_WITHOUT_END),
            ("more than one field may hold", with_signature(f"sig1=:{'A' * HEADER_BYTES_MAX}:"), malformed,
             FIELD_TOO_LARGE),
        ],
    }  # fmt: skip


def _in_base64url(at: Scene) -> RequestMessage:
    # Most signatures contain + or /. Try requests until one does.
    for number in itertools.count():
        request = at.signed_get(tag=f"{number}")
        value = field(request, "signature")
        if (other := value.replace("+", "-").replace("/", "_")) != value:
            return put(request, "Signature", other)
    raise AssertionError


def labels(at: Scene) -> Family:
    """Labels, RFC 9421 §7.2.5, and several signatures, §7.2.6."""
    good = at.signed_get()
    signature, input_ = field(good, "signature"), field(good, "signature-input")
    strange = at.forge(at.get(), at.lines(), f';keyid="{at.other.kid}";created={at.now_s}', by=at.other.sign, label="b")
    wrong = at.forge(at.get(), at.lines(), by=at.other.sign)
    partial = at.forge(at.get(), at.lines()[:1], label="a")
    swapped = both(
        at.forge(at.get(), at.lines(), label="a"), at.forge(at.get(), at.lines(), at.params(";x"), label="b")
    )
    crowd = at.get()
    for number in range(SIGNATURES_MAX + 1):
        crowd = both(at.forge(at.get(), at.lines(), by=at.other.sign, label=f"s{number}"), crowd)
    return {
        "labels that do not match": [
            ("in upper case", put(good, "Signature", signature.replace("sig1", "Sig1")), Code.SIGNATURE_MALFORMED),
            ("another in each field", replace(good, "Signature", "sig1", "sig2"), Code.LABELS_DIFFER),
            ("one without a signature", put(good, "Signature-Input", f"{input_}, sig2=()"), Code.LABELS_DIFFER),
            ("one without an input", put(good, "Signature", f"{signature}, sig2=::"), Code.LABELS_DIFFER),
            ("Signature is empty", put(good, "Signature", ""), Code.LABELS_DIFFER),
        ],
        "signatures under each other's labels": [
            ("two", put(swapped, "Signature", *_exchanged(swapped)), Code.SIGNATURE_INVALID),
        ],
        "two signatures that are sufficient only together": [
            ("a stranger's and an incomplete one", both(strange, partial), Code.COMPONENT_NOT_COVERED),
            ("each covers a half", both(partial, at.forge(at.get(), at.lines()[1:], label="b")),
             Code.COMPONENT_NOT_COVERED),
            ("the body by one, the rest by the other", both(
             at.forge(at.digested(), [('"content-digest"', content_digest(at.body))], label="a"),
             at.post_covering(at.digested())), Code.BODY_NOT_COVERED),
            ("a stale one and a stranger's", both(at.get_with(at.params(late_s=-999)), strange), Code.STALE),
            ("a wrong one and a stranger's", both(wrong, strange), Code.SIGNATURE_INVALID),
        ],
        "many wrong signatures": [
            ("more than the verifier checks", crowd, Code.TOO_MANY_SIGNATURES),
            ("as many as the verifier checks", put(put(crowd, "Signature", *crowd.values("signature")[1:]),
             "Signature-Input", *crowd.values("signature-input")[1:]), Code.SIGNATURE_INVALID),
        ],
    }  # fmt: skip


def _exchanged(request: RequestMessage) -> list[str]:
    """Return two `Signature` lines, each with the label of the other."""
    (first, one), (second, other) = (line.split("=", 1) for line in request.values("signature"))
    return [f"{first}={other}", f"{second}={one}"]
