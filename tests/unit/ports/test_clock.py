"""The wall clock."""

from datetime import UTC, datetime, timedelta

from incoming_payments.ports.clock import utc_now


def test_utc_now_is_the_current_time_in_utc() -> None:
    """The time has the zone UTC, because naive times are refused elsewhere."""
    before = datetime.now(UTC)
    now = utc_now()
    assert timedelta(0) == now.utcoffset()
    assert before <= now <= datetime.now(UTC)
