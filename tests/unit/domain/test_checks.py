"""`domain.checks`: the checks that several values share."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from attrs import field, frozen

from incoming_payments.domain.checks import check_time, instance, integer
from incoming_payments.errors import InvalidValue


@frozen
class Checked:
    """A value with a checked integer, an integer with another name in messages, and a checked type."""

    count: int = field(default=1, validator=integer(1, 9))
    scale: int = field(default=0, validator=integer(name="assetScale"))
    text: str = field(default="", validator=instance(str))


@pytest.mark.parametrize("offset", [UTC, timezone(timedelta(0), "GMT")])
def test_time_in_utc_is_returned(offset: timezone) -> None:
    """Each time zone without an offset is UTC."""
    time = datetime(2026, 1, 1, tzinfo=offset)
    assert check_time(time) is time


AN_HOUR_EAST = timezone(timedelta(hours=1))


@pytest.mark.parametrize(
    "time",
    [
        None,
        "2026-01-01",
        datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        datetime(2026, 1, 1, tzinfo=AN_HOUR_EAST),
    ],
)
def test_time_that_is_not_utc_is_refused(time: datetime) -> None:
    """Times without an offset or with another offset are refused, like values of other types."""
    with pytest.raises(InvalidValue) as caught:
        check_time(time)
    assert str(caught.value) == "a time must be a datetime in UTC, such as datetime.now(UTC)"
    assert caught.value.details == {"member": "now"}


@pytest.mark.parametrize("count", [1, 9])
def test_integer_within_the_bounds_is_accepted(count: int) -> None:
    """Both bounds are valid."""
    assert Checked(count).count == count


@pytest.mark.parametrize(
    ("members", "member", "message"),
    [
        ({"count": 0}, "count", "count must be an integer from 1 to 9"),
        ({"count": 10}, "count", "count must be an integer from 1 to 9"),
        ({"count": True}, "count", "count must be an integer from 1 to 9"),
        ({"count": 2.0}, "count", "count must be an integer from 1 to 9"),
        ({"scale": -1}, "assetScale", "assetScale must be an integer from 0 to 18446744073709551615"),
        ({"text": b""}, "text", "text must be of type str, not bytes"),
    ],
)
def test_invalid_member_is_refused(members: dict[str, object], member: str, message: str) -> None:
    """The error names the member, and says which values are valid."""
    with pytest.raises(InvalidValue) as caught:
        Checked(**members)  # type: ignore[arg-type] # on purpose
    assert str(caught.value) == message
    assert caught.value.details == {"member": member}
