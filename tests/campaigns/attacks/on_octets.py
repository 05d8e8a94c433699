"""Attacks on the octets of the signature, and on the bytes that are signed. RFC 9421 §3.2 and §7.3.1."""

import hashlib
from collections.abc import Callable
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from campaigns.attacks.rows import NOT_A_TOKEN, Family
from incoming_payments.httpsig import Algorithm, Code, RequestMessage
from incoming_payments.httpsig.ed25519 import ORDER
from kits.signed_requests import Scene, field, put


def tampering(at: Scene) -> Family:
    """A good request, changed after signing."""
    good, invalid = at.signed_get(), Code.SIGNATURE_INVALID
    value = field(good, "signature-input")
    method, target = '"@method"', '"@target-uri"'
    kid, created = f';keyid="{at.kid}"', f";created={at.now_s}"

    def with_input(text: str) -> RequestMessage:
        assert text != value
        return put(good, "Signature-Input", text)

    return {
        "a parameter changed": [
            ("created", with_input(value.replace(created, f";created={at.now_s + 1}")), invalid),
            ("their order", with_input(value.replace(kid + created, created + kid)), invalid),
        ],
        "a parameter added": [
            ("expires", with_input(f"{value};expires={at.now_s + 99}"), invalid),
            ("a nonce", with_input(f'{value};nonce="n"'), invalid),
            ("the right alg", with_input(f'{value};alg="ed25519"'), invalid),
            ("a tag", with_input(f'{value};tag="t"'), invalid),
            ("an unknown one", with_input(f"{value};x"), invalid),
        ],
        "a parameter removed": [
            ("expires", put(at.signed_get(expires=at.now_s + 99), "Signature-Input", value), invalid),
            ("the nonce", put(at.signed_get(nonce="n"), "Signature-Input", value), invalid),
            ("the tag", put(at.signed_get(tag="t"), "Signature-Input", value), invalid),
        ],
        "components changed": [
            ("in another order", with_input(value.replace(f"{method} {target}", f"{target} {method}")), invalid),
            ("one more", with_input(value.replace(")", ' "@path")')), invalid),
            ("one less", put(at.get_covering(('"@scheme"', "https")), "Signature-Input", value), invalid),
        ],
        "another token under the same signature": [
            ("another of this client's", put(good, "Authorization", f"GNAP {at.tokens[1]}"), invalid),
            ("its scheme in another case", put(good, "Authorization", f"gnap {at.tokens[0]}"), invalid),
            ("two spaces before it", put(good, "Authorization", f"GNAP  {at.tokens[0]}"), invalid),
            ("cut short", put(good, "Authorization", at.authorization[:-1]), invalid, NOT_A_TOKEN),
        ],
        "the signature of another request": [
            ("another GET", put(good, "Signature", field(at.meant_for(f"{at.url}/2"), "signature")), invalid),
            ("another second", put(good, "Signature", field(at.get_with(at.params(late_s=1)), "signature")), invalid),
            ("a POST", put(good, "Signature", field(at.signed_post(), "signature")), invalid),
            ("of another body", put(at.signed_post(b"{}"), "Signature", field(at.signed_post(), "signature")), invalid),
        ],
    }  # fmt: skip


def bases(at: Scene) -> Family:
    """Signatures over other bytes than the signature base."""
    invalid, sign = Code.SIGNATURE_INVALID, at.key.sign
    method, target, token = at.lines()

    def over(change: Callable[[bytes], bytes]) -> RequestMessage:
        return at.get_by(lambda base: sign(change(base)))

    return {
        "a signature base in another form": [
            ("lines that end with CR LF", over(lambda base: base.replace(b"\n", b"\r\n")), invalid),
            ("a newline at its end", over(lambda base: base + b"\n"), invalid),
            ("a NUL at its end", over(lambda base: base + b"\0"), invalid),
            ("without its last line", over(lambda base: base.rpartition(b'"@signature-params"')[0]), invalid),
            ("its last line first", over(lambda base: b"\n".join(reversed(base.split(b"\n")))), invalid),
            ("without the quotes round the names", over(lambda base: base.replace(b'"', b"")), invalid),
            ("without the space after the colon", over(lambda base: base.replace(b": ", b":")), invalid),
            ("in UTF-16", over(lambda base: base.decode().encode("utf-16")), invalid),
            ("in the form of the draft", over(lambda base: base.replace(b'"@method"', b"(request-target)")), invalid),
            ("a newline in a value", at.forge(at.get(), [method, target, (token[0], f"{token[1]}\n")]), invalid),
        ],
        "parameters not in the strict form, RFC 9651 §4.1": [
            ("zeros before a number", at.get_with(f';keyid="{at.kid}";created=0{at.now_s}'), invalid),
            ("a boolean written as ?1", at.get_with(at.params(";x=?1")), invalid),
            ("a space before a parameter", at.get_with(f'; keyid="{at.kid}";created={at.now_s}'), invalid),
            ("a decimal with zeros behind it", at.get_with(at.params(";x=1.00")), invalid),
        ],
        "bytes that are not a signature base": [
            ("nothing", over(lambda _: b""), invalid),
            ("its digest", over(lambda base: hashlib.sha512(base).digest()), invalid),
            ("its digest in digits", over(lambda base: hashlib.sha256(base).hexdigest().encode()), invalid),
            ("the token", over(lambda _: token[1].encode()), invalid),
            ("the target", over(lambda _: at.url.encode()), invalid),
            ("a JWS signing input", over(lambda base: b"eyJhbGciOiJFZERTQSJ9." + base.hex().encode()), invalid),
        ],
    }  # fmt: skip


def ed25519_octets(at: Scene) -> Family:
    """The octets of an Ed25519 signature, RFC 8032 §5.1.7."""
    invalid = Code.SIGNATURE_INVALID
    identity = (1).to_bytes(32, "little")

    def made(change: Callable[[bytes, int], bytes]) -> RequestMessage:
        """Return a GET with a changed signature. `change` gets R and S."""

        def by(base: bytes) -> bytes:
            signature = at.key.sign(base)
            return change(signature[:32], int.from_bytes(signature[32:], "little"))

        return at.get_by(by)

    def s(number: int) -> bytes:
        return number.to_bytes(32, "little")

    return {
        "a signature of another length": [
            ("empty", made(lambda _r, _s: b""), invalid),
            ("one octet", made(lambda r, _s: r[:1]), invalid),
            ("cut short", made(lambda r, n: r + s(n)[:-1]), invalid),
            ("only its first half", made(lambda r, _s: r), invalid),
            ("an octet more", made(lambda r, n: r + s(n) + b"\0"), invalid),
            ("the base after it", at.get_by(lambda base: at.key.sign(base) + base), invalid),
        ],
        "a constant signature": [
            ("zeros", made(lambda _r, _s: bytes(64)), invalid),
            ("ones", made(lambda _r, _s: b"\xff" * 64), invalid),
            ("the identity, and zero", made(lambda _r, _s: identity + bytes(32)), invalid),
            ("the public key, and zero", at.get_by(lambda _: at.key.sign(b"")[:32] + bytes(32)), invalid),
        ],
        "a second form of a good signature": [
            ("S + L", made(lambda r, n: r + s(n + ORDER)), invalid),
            ("S + 2 L", made(lambda r, n: r + s(n + 2 * ORDER)), invalid),
            ("L - S", made(lambda r, n: r + s(ORDER - n)), invalid),
            ("the highest bit of S", made(lambda r, n: r + s(n | 1 << 255)), invalid),
            ("the sign of R", made(lambda r, n: r[:-1] + bytes([r[-1] ^ 128]) + s(n)), invalid),
        ],
        "a good signature, damaged": [
            ("a bit of R", made(lambda r, n: bytes([r[0] ^ 1]) + r[1:] + s(n)), invalid),
            ("a bit of S", made(lambda r, n: r + s(n ^ 1)), invalid),
            ("S is zero", made(lambda r, _s: r + bytes(32)), invalid),
            ("R is of small order", made(lambda _r, n: bytes(32) + s(n)), invalid),
            ("its halves exchanged", made(lambda r, n: s(n) + r), invalid),
            ("in the other byte order", made(lambda r, n: r + s(n)[::-1]), invalid),
        ],
    }  # fmt: skip


P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def ecdsa_octets(at: Scene) -> Family:
    """The octets of an ECDSA signature, RFC 9421 §3.3.4."""
    at, invalid = at.by(Algorithm.ES256), Code.SIGNATURE_INVALID

    def made(change: Callable[[int, int], bytes]) -> RequestMessage:
        """Return a GET with a changed signature. `change` gets r and s."""

        def by(base: bytes) -> bytes:
            signature = at.key.sign(base)
            return change(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))

        return at.get_by(by)

    def raw(*numbers: int) -> bytes:
        return b"".join(number.to_bytes(32) for number in numbers)

    def with_sha384(base: bytes) -> bytes:
        r, s = decode_dss_signature(at.key._key.sign(base, ec.ECDSA(hashes.SHA384())))
        return raw(r, s)

    return {
        "ECDSA: numbers out of range": [
            ("both are zero, which Java accepted for any message", made(lambda _r, _s: raw(0, 0)), invalid),
            ("r is zero", made(lambda _r, s: raw(0, s)), invalid),
            ("s is zero", made(lambda r, _s: raw(r, 0)), invalid),
            ("both are the order", made(lambda _r, _s: raw(P256_ORDER, P256_ORDER)), invalid),
            ("both are ones", made(lambda _r, _s: b"\xff" * 64), invalid),
            ("r is the order, s one", made(lambda _r, _s: raw(P256_ORDER, 1)), invalid),
        ],
        "ECDSA: another form": [
            ("DER", made(encode_dss_signature), invalid),
            ("an octet of zero before each", made(lambda r, s: b"\0" + raw(r) + b"\0" + raw(s)), invalid),
            ("empty", made(lambda _r, _s: b""), invalid),
            ("r alone", made(lambda r, _s: raw(r)), invalid),
            ("exchanged", made(lambda r, s: raw(s, r)), invalid),
            ("in the other byte order", made(lambda r, s: raw(r)[::-1] + raw(s)[::-1]), invalid),
        ],
        "ECDSA: another hash or curve": [
            ("P-384, with its alg", at.get_by(at.by(Algorithm.ES384).key.sign, ';alg="ecdsa-p384-sha384"'),
             Code.ALGORITHM_MISMATCH),
            ("SHA-384", at.get_by(with_sha384), invalid),
            ("P-384", at.get_by(at.by(Algorithm.ES384).key.sign), invalid),
        ],
    }  # fmt: skip


def rsa_octets(at: Scene) -> Family:
    """The octets of an RSA signature, RFC 9421 §3.3.1."""
    at, invalid = at.by(Algorithm.PS512), Code.SIGNATURE_INVALID
    key = at.key._key
    modulus = key.public_key().public_numbers().n
    sha512 = hashes.SHA512()

    def number(value: int) -> RequestMessage:
        return at.get_by(lambda _: value.to_bytes(256))

    def padded(pad: padding.AsymmetricPadding, hash_: hashes.HashAlgorithm = sha512) -> RequestMessage:
        def by(base: bytes) -> bytes:
            signature: bytes = key.sign(base, pad, hash_)
            return signature

        return at.get_by(by)

    return {
        "RSA: another padding": [
            ("PKCS #1 v1.5, with its alg", at.get_by(at.key.sign, ';alg="rsa-v1_5-sha256"'),
             Code.ALGORITHM_MISMATCH),
            ("PKCS #1 v1.5", padded(padding.PKCS1v15()), invalid),
            ("no salt", padded(padding.PSS(padding.MGF1(sha512), 0)), invalid),
            ("a shorter salt", padded(padding.PSS(padding.MGF1(sha512), 20)), invalid),
            ("a mask by another hash", padded(padding.PSS(padding.MGF1(hashes.SHA1()), 64)), invalid),  # noqa: S303
            ("another hash", padded(padding.PSS(padding.MGF1(hashes.SHA256()), 32), hashes.SHA256()), invalid),
        ],
        "RSA: a number that is its own signature": [
            ("zero", number(0), invalid),
            ("one", number(1), invalid),
            ("the modulus less one", number(modulus - 1), invalid),
            ("the modulus", number(modulus), invalid),
        ],
        "RSA: another length": [
            ("empty", at.get_by(lambda _: b""), invalid),
            ("a zero before it", at.get_by(lambda base: b"\0" + at.key.sign(base)), invalid),
            ("cut short", at.get_by(lambda base: at.key.sign(base)[:-1]), invalid),
            ("that of another kind of key", at.get_by(lambda base: at.key.sign(base)[:64]), invalid),
        ],
    }  # fmt: skip
