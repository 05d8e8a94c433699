"""The wall clock."""

from datetime import UTC, datetime, timedelta

from incoming_payments.hosts.clock import utc_now


def test_utc_now_is_a_moment_in_utc() -> None:
    """With its zone, which is UTC: naive times would be refused further in. It stands between two readings."""
    before = datetime.now(UTC)
    now = utc_now()
    assert timedelta(0) == now.utcoffset()
    assert before <= now <= datetime.now(UTC)
