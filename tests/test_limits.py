"""`limits`: every bound is there with its contract value, and they fit one another. Contract section 8."""

import re
from pathlib import Path

import pytest

from incoming_payments import limits

SOURCE = Path(limits.__file__)


def bounds() -> dict[str, float]:
    """Every bound, by name."""
    return {name: value for name, value in vars(limits).items() if name.isupper() and not name.startswith("_")}


def test_contract_8_asset_scale() -> None:
    """`assetScale`: integer, maximum 255."""
    assert limits.ASSET_SCALE_MAX == 255


def test_contract_8_value() -> None:
    """`value`: unsigned 64-bit integer as a string."""
    assert limits.UINT64_MAX == 18446744073709551615
    assert limits.UINT64_DIGITS_MAX == 20


def test_contract_8_ilp_address() -> None:
    """`ilpAddress`: maximum 1023 characters."""
    assert limits.ILP_ADDRESS_CHARS_MAX == 1023


def test_every_bound_is_a_positive_number_with_its_reason() -> None:
    """Each bound says which end it is, is greater than zero, and has its reason beside it."""
    written = dict(re.findall(r"^([A-Z0-9_]+): Final = [^#\n]+(#.*)?$", SOURCE.read_text(), re.MULTILINE))
    assert set(written) == set(bounds())
    for name, value in bounds().items():
        assert name.endswith(("_MAX", "_MIN")), name
        assert value > 0, name
    digits_and_address = {"ILP_ADDRESS_CHARS_MAX", "KEY_ID_CHARS_MAX", "NONCE_CHARS_MAX", "JWK_CHARS_MAX"}
    assert {name for name, reason in written.items() if not reason} <= digits_and_address


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("METADATA_BYTES_MAX: Final = 65537", "65537 is more than 65536, but metadata has to fit its body"),
        ("METADATA_DEPTH_MAX: Final = 33", "33 is more than 32, but metadata has to fit its body"),
        ("HEADER_BYTES_MAX: Final = 65537", "65537 is more than 65536, but one field has to fit all fields"),
        ("TOKEN_CHARS_MAX: Final = 16385", "16385 is more than 16384, but a token has to fit its header"),
        ("SIGNATURES_MAX: Final = 33", "33 is more than 32, but candidates are members"),
        ("EXPLAIN_VALUE_CHARS_MAX: Final = 8193", "8193 is more than 8192, but a value has to fit its report"),
        ("CLOCK_SKEW_S_MAX: Final = 301", "301 is more than 300, but a window smaller than the skew accepts nothing"),
        ("SIGNATURE_AGE_SETTING_S_MAX: Final = 299", "300 is more than 299, but the default age has to be allowed"),
        ("CLOCK_SKEW_SETTING_S_MAX: Final = 59", "60 is more than 59, but the default skew has to be allowed"),
        ("RSA_BITS_MIN: Final = 8193", "8193 is more than 8192, but some RSA key has to be acceptable"),
        (
            "SWEEP_PAYMENTS_MAX: Final = 1000",
            "1001 is more than 1000, but a full sweep has to end: one effect finds, one more a payment",
        ),
        (
            "COMMAND_BODY_BYTES_MAX: Final = 16777217",
            "16777217 is more than 16777216, but a body in a command was read",
        ),
        ("BODY_S_MAX: Final = 11", "16.0 is more than 15, but a request in flight has to end before the server stops"),
        ("STORE_BATCH_MAX: Final = 10001", "10001 is more than 10000, but a batch comes out of the queue"),
        (
            "STORE_LOG_KEPT_BYTES_MAX: Final = 33554433",
            "33554433 is more than 33554432, but a log that is kept must not be too long",
        ),
        ("UINT64_DIGITS_MAX: Final = 19", "20 is more than 19, but the largest amount has to be writable"),
        ("ILP_PREPARE_BYTES_MAX: Final = 33789", "33790 is more than 33789, but a Prepare holds data and an address"),
        ("STREAMS_ANSWERED_MAX: Final = 257", "257 is more than 256, but a reply is a packet as well"),
        (
            "SENDER_BACKOFF_S_MAX: Final = 31.0",
            "31.0 is more than 30.0, but a packet has to be sent again before the sender gives up",
        ),
    ],
)
def test_limits_that_contradict_each_other_stop_the_import(setting: str, message: str) -> None:
    """Each relation between two limits is checked on import, and the message says why it has to hold."""
    name = setting.partition(":")[0]
    source, count = re.subn(rf"^{name}: Final = [^#\n]+", setting + "  ", SOURCE.read_text(), flags=re.MULTILINE)
    assert count == 1
    # The file's own name, so that coverage counts the refusal.
    with pytest.raises(RuntimeError) as caught:
        exec(compile(source, str(SOURCE), "exec"), {"__name__": "limits_edited"})  # noqa: S102 - our own source
    assert str(caught.value) == f"limits.py: {message}"


def test_every_relation_has_its_test() -> None:
    """The table above is complete."""
    relations = re.findall(r'^    \(.+, "(.+)"\),$', SOURCE.read_text(), re.MULTILINE)
    tested = test_limits_that_contradict_each_other_stop_the_import.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert [why for _, message in tested for why in [message.partition(", but ")[2]]] == relations
