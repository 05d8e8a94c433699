"""The reasons: stable codes."""

from incoming_payments.httpsig import Reason


def test_codes_are_unique_and_speak_for_themselves() -> None:
    """Each reason has a code of its own, in lower case words, that a client can match on."""
    codes = [reason.value for reason in Reason.__members__.values()]
    assert len(set(codes)) == len(codes)
    assert [code for code in codes if not code.replace("_", "").islower()] == []


def test_a_code_is_a_string() -> None:
    """A reason compares equal to its code, so that it can go into a JSON body as it is."""
    assert isinstance(Reason.STALE, str)
    assert f"{Reason.STALE}" == Reason.STALE.value == "signature_stale"
