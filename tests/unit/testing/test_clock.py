"""The fake clock changes only when the test advances it."""

from datetime import timedelta

from incoming_payments.testing import NOW, FakeClock


def test_the_clock_stands_still_until_it_is_advanced() -> None:
    """It can be advanced and set back by a microsecond."""
    clock = FakeClock()
    assert clock() == clock() == NOW
    clock.advance(0.000001)
    assert clock() == NOW + timedelta(microseconds=1)
    clock.advance(-1)
    assert clock() == NOW - timedelta(seconds=1) + timedelta(microseconds=1)
