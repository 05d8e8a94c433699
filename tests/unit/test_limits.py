"""Tests of `limits`: the values of spec section 8, the reasons, and the relations between limits."""

import re
from pathlib import Path

import pytest

from incoming_payments import limits

SOURCE = Path(limits.__file__)


def all_limits() -> dict[str, float]:
    """Return every limit by name."""
    return {name: value for name, value in vars(limits).items() if name.isupper() and not name.startswith("_")}


def test_spec_8_asset_scale() -> None:
    """`assetScale` is an integer of at most 255."""
    assert limits.ASSET_SCALE_MAX == 255


def test_spec_8_value() -> None:
    """`value` is an unsigned 64-bit integer as a string."""
    assert limits.UINT64_MAX == 18446744073709551615
    assert limits.UINT64_DIGITS_MAX == 20


def test_spec_8_ilp_address() -> None:
    """`ilpAddress` has at most 1023 characters."""
    assert limits.ILP_ADDRESS_CHARS_MAX == 1023


def test_every_limit_is_positive_and_has_a_reason() -> None:
    """Each limit ends with `_MAX` or `_MIN`, is greater than zero, and has its reason beside it."""
    written = dict(re.findall(r"^([A-Z0-9_]+): Final = [^#\n]+(#.*)?$", SOURCE.read_text(), re.MULTILINE))
    assert set(written) == set(all_limits())
    for name, value in all_limits().items():
        assert name.endswith(("_MAX", "_MIN")), name
        assert value > 0, name
    without_reason = {"ILP_ADDRESS_CHARS_MAX", "KEY_ID_CHARS_MAX", "NONCE_CHARS_MAX", "JWK_CHARS_MAX"}
    assert {name for name, reason in written.items() if not reason} <= without_reason


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("METADATA_BYTES_MAX: Final = 65537", "65537 must not be more than 65536: metadata is part of the body"),
        ("JSON_BRACKETS_MAX: Final = 8191", "8192 must not be more than 8191: metadata may consist of brackets"),
        ("METADATA_DEPTH_MAX: Final = 33", "33 must not be more than 32: metadata is part of the body"),
        ("HEADER_BYTES_MAX: Final = 65537", "65537 must not be more than 65536: one field is part of all fields"),
        ("TOKEN_CHARS_MAX: Final = 16385", "16385 must not be more than 16384: a header field holds the token"),
        ("PAGE_PAYMENTS_MAX: Final = 101", "101 must not be more than 100: the default page must be a valid page"),
        ("SIGNATURES_MAX: Final = 33", "33 must not be more than 32: each signature is a member"),
        ("EXPLAIN_VALUE_CHARS_MAX: Final = 8193", "8193 must not be more than 8192: a diagnosis holds the value"),
        ("CLOCK_SKEW_S_MAX: Final = 301", "301 must not be more than 300: the age limit must allow for the skew"),
        (
            "IDEMPOTENCY_KEY_S_MAX: Final = 366 * 24 * 3600 + 1",
            "31622401 must not be more than 31622400: the default time must be a valid setting",
        ),
        (
            "SIGNATURE_AGE_SETTING_S_MAX: Final = 299",
            "300 must not be more than 299: the default age must be a valid setting",
        ),
        (
            "CLOCK_SKEW_SETTING_S_MAX: Final = 59",
            "60 must not be more than 59: the default skew must be a valid setting",
        ),
        ("RSA_BITS_MIN: Final = 8193", "8193 must not be more than 8192: some RSA keys must be valid"),
        (
            "SWEEP_PAYMENTS_MAX: Final = 1000",
            "1001 must not be more than 1000: a sweep finds payments in one effect and needs one for each",
        ),
        (
            "QUOTA_UNPAID_MAX: Final = 901",
            "1001 must not be more than 1000: a create may load each unpaid payment",
        ),
        (
            "APPROVAL_S_MAX: Final = 31.0",
            "31.0 must not be more than 30.0: the default bound must be a valid setting",
        ),
        (
            "COMMAND_BODY_BYTES_MAX: Final = 16777217",
            "16777217 must not be more than 16777216: a body in a command is a signed body",
        ),
        ("LOOK_UPS_OF_DOMAIN_MAX: Final = 65", "65 must not be more than 64: one domain must not take all look-ups"),
        ("FETCHES_OF_DOMAIN_MAX: Final = 65", "65 must not be more than 64: one domain must not take all fetches"),
        ("CLIENT_CONNECTIONS_MAX: Final = 127", "128 must not be more than 127: each fetch has a connection"),
        (
            "INTROSPECTION_CACHED_BYTES_MAX: Final = 65537",
            "65537 must not be more than 65536: the largest cached answer must be a valid answer",
        ),
        (
            "INTROSPECTION_S_MAX: Final = 31.0",
            "31.0 must not be more than 30.0: the default time must be a valid setting",
        ),
        (
            "BREAKER_OPEN_S_MIN: Final = 9.0",
            "9.0 must not be more than 8.0: the first pause must not be longer than the longest",
        ),
        ("BODY_START_S_MAX: Final = 11", "11 must not be more than 10: the first bytes are part of the body"),
        (
            "BODY_S_MAX: Final = 11",
            "16.0 must not be more than 15: a request in flight must end before the server stops",
        ),
        ("WORKER_SILENT_S_MAX: Final = 4", "5.0 must not be more than 4: a worker that waits for a lock is not hung"),
        (
            "HEADER_SECTION_BYTES_MAX: Final = 69631",
            "69632 must not be more than 69631: a valid header section must be able to arrive",
        ),
        ("STORE_BATCH_MAX: Final = 10001", "10001 must not be more than 10000: the queue holds the batch"),
        (
            "STORE_LOG_KEPT_BYTES_MAX: Final = 33554433",
            "33554433 must not be more than 33554432: SQLite must not keep a log that is too long",
        ),
        ("UINT64_DIGITS_MAX: Final = 19", "20 must not be more than 19: the largest amount needs that many digits"),
        (
            "ILP_PREPARE_BYTES_MAX: Final = 33789",
            "33790 must not be more than 33789: a Prepare holds data and an address",
        ),
        (
            "STREAMS_ANSWERED_MAX: Final = 257",
            "257 must not be more than 256: a reply is a packet with one frame per stream",
        ),
        (
            "SENDER_BACKOFF_S_MAX: Final = 31.0",
            "31.0 must not be more than 30.0: the sender must retry before it gives up",
        ),
    ],
)
def test_contradicting_limits_fail_at_import(setting: str, message: str) -> None:
    """Each relation between two limits is checked at import, and the message has its reason."""
    name = setting.partition(":")[0]
    source, count = re.subn(rf"^{name}: Final = [^#\n]+", setting + "  ", SOURCE.read_text(), flags=re.MULTILINE)
    assert count == 1
    # With the name of the file, so that coverage counts the line that raises.
    with pytest.raises(RuntimeError) as caught:
        exec(compile(source, str(SOURCE), "exec"), {"__name__": "limits_edited"})  # noqa: S102 - the source is ours
    assert str(caught.value) == f"limits.py: {message}"


def test_every_relation_is_tested() -> None:
    """The table of `test_contradicting_limits_fail_at_import` is complete."""
    relations = re.findall(r'^    \(.+, "(.+)"\),$', SOURCE.read_text(), re.MULTILINE)
    tested = test_contradicting_limits_fail_at_import.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert [why for _, message in tested for why in [message.partition(": ")[2]]] == relations
