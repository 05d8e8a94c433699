"""Write and verify `Content-Digest`."""

import hashlib
from base64 import b64encode

import pytest

from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import Code, content_digest, verify_digest

BODY = b'{"hello": "world"}'
# RFC 9530 Appendix D, for the same body
SHA_256 = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
SHA_512 = "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"
WRONG_256 = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"
SHORT_256 = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBA==:"


def test_content_digest() -> None:
    """`content_digest` gives the examples of RFC 9530, and uses sha-512 by default."""
    assert content_digest(BODY, "sha-256") == SHA_256
    assert content_digest(BODY) == SHA_512


def test_deprecated_algorithm_is_refused() -> None:
    """`content_digest` refuses md5, which RFC 9530 §5 deprecates."""
    with pytest.raises(InvalidValue, match="sha-512 or sha-256, not 'md5'") as caught:
        content_digest(BODY, "md5")  # type: ignore[arg-type]  # wrong on purpose
    assert caught.value.details == {"member": "algorithm"}


@pytest.mark.parametrize(
    "values",
    [
        [SHA_256],
        [SHA_512],
        [f"{SHA_256}, {SHA_512}"],
        [SHA_256, SHA_512],
        [f"md5=:AQ==:, {SHA_256}"],
        [f"unixsum=30637, {SHA_512}, md5"],
    ],
)
def test_matching_digest_is_accepted(values: list[str]) -> None:
    """One supported digest that matches is enough. Digests by other algorithms beside it are ignored."""
    verify_digest(values, BODY)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Code.DIGEST_MISSING),
        (["sha-256"], Code.DIGEST_MALFORMED),
        (["sha-256=X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE="], Code.DIGEST_MALFORMED),
        (["sha-256=1"], Code.DIGEST_MALFORMED),
        (["sha-256=()"], Code.DIGEST_MALFORMED),
        ([SHA_256, SHA_256], Code.DIGEST_MALFORMED),
        ([SHORT_256], Code.DIGEST_MALFORMED),
        ([SHA_512.replace("sha-512", "sha-256")], Code.DIGEST_MALFORMED),
        ([SHA_256.replace("PE=", "PF=")], Code.DIGEST_MALFORMED),
        ([SHA_256.replace("PE=", "PE")], Code.DIGEST_MALFORMED),
        ([""], Code.DIGEST_UNSUPPORTED),
        ([f"md5=:{b64encode(hashlib.md5(BODY, usedforsecurity=False).digest()).decode()}:"], Code.DIGEST_UNSUPPORTED),
        ([SHA_256.replace("sha-256", "id-sha-256")], Code.DIGEST_UNSUPPORTED),
        ([WRONG_256], Code.DIGEST_MISMATCH),
        ([f"{SHA_512}, {WRONG_256}"], Code.DIGEST_MISMATCH),
        ([f"{WRONG_256}, {SHA_512}"], Code.DIGEST_MISMATCH),
    ],
)
def test_digest_is_refused(values: list[str], expected: Code) -> None:
    """A wrong digest is refused with its code. The rows are in the order of precedence."""
    with pytest.raises(SignatureRefused) as caught:
        verify_digest(values, BODY)
    assert caught.value.code is expected


@pytest.mark.parametrize(
    ("values", "details"),
    [
        ([SHORT_256], {"algorithm": "sha-256"}),
        ([f"{SHA_256}, {SHORT_256.replace('sha-256', 'sha-512')}"], {"algorithm": "sha-512"}),
        ([WRONG_256], {"algorithm": "sha-256"}),
        ([SHA_256, SHA_256], {"field": "Content-Digest"}),
        (["sha-256=:AQ"], {"field": "Content-Digest", "position": 11}),
    ],
)
def test_refusal_names_the_position(values: list[str], details: dict[str, object]) -> None:
    """The details of a refusal name the digest at fault, or the position at which the field cannot be parsed."""
    with pytest.raises(SignatureRefused) as caught:
        verify_digest(values, BODY)
    assert caught.value.details == details
