"""Content-Digest: made and checked."""

import hashlib
from base64 import b64encode

import pytest

from incoming_payments.errors import InvalidValue, SignatureRefused
from incoming_payments.httpsig import Reason, content_digest, verify_digest

BODY = b'{"hello": "world"}'
# RFC 9530 Appendix D, for the same body
SHA_256 = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
SHA_512 = "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"
WRONG_256 = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:"
SHORT_256 = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBA==:"


def test_made() -> None:
    """The RFC's own examples; sha-512 when nothing else is asked for."""
    assert content_digest(BODY, "sha-256") == SHA_256
    assert content_digest(BODY) == SHA_512


def test_not_made() -> None:
    """No digest is made with an algorithm that proves nothing."""
    with pytest.raises(InvalidValue, match="sha-512") as caught:
        content_digest(BODY, "md5")  # type: ignore[arg-type]  # what nobody should ask for
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
def test_good(values: list[str]) -> None:
    """One known digest is enough, all known ones have to match, and unknown ones are passed over beside a known one."""
    verify_digest(values, BODY)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], Reason.DIGEST_MISSING),
        (["sha-256"], Reason.DIGEST_MALFORMED),
        (["sha-256=X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE="], Reason.DIGEST_MALFORMED),
        (["sha-256=1"], Reason.DIGEST_MALFORMED),
        (["sha-256=()"], Reason.DIGEST_MALFORMED),
        ([SHA_256, SHA_256], Reason.DIGEST_MALFORMED),
        ([SHORT_256], Reason.DIGEST_MALFORMED),
        ([SHA_512.replace("sha-512", "sha-256")], Reason.DIGEST_MALFORMED),
        ([SHA_256.replace("PE=", "PF=")], Reason.DIGEST_MALFORMED),
        ([SHA_256.replace("PE=", "PE")], Reason.DIGEST_MALFORMED),
        ([""], Reason.DIGEST_UNSUPPORTED),
        ([f"md5=:{b64encode(hashlib.md5(BODY, usedforsecurity=False).digest()).decode()}:"], Reason.DIGEST_UNSUPPORTED),
        ([SHA_256.replace("sha-256", "id-sha-256")], Reason.DIGEST_UNSUPPORTED),
        ([WRONG_256], Reason.DIGEST_MISMATCH),
        ([f"{SHA_512}, {WRONG_256}"], Reason.DIGEST_MISMATCH),
        ([f"{WRONG_256}, {SHA_512}"], Reason.DIGEST_MISMATCH),
    ],
)
def test_refused(values: list[str], expected: Reason) -> None:
    """One row a rule, by precedence."""
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
def test_refusals_say_where(values: list[str], details: dict[str, object]) -> None:
    """Which of the digests is at fault, or where the field ends to be one."""
    with pytest.raises(SignatureRefused) as caught:
        verify_digest(values, BODY)
    assert caught.value.details == details
