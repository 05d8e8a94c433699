"""The fake clock moves when it is told to."""

from datetime import timedelta

from incoming_payments.testing import NOW, FakeClock


def test_a_clock_stands_still_until_it_is_advanced() -> None:
    """Forwards and backwards, to the microsecond."""
    clock = FakeClock()
    assert clock() == clock() == NOW
    clock.advance(0.000001)
    assert clock() == NOW + timedelta(microseconds=1)
    clock.advance(-1)
    assert clock() == NOW - timedelta(seconds=1) + timedelta(microseconds=1)
