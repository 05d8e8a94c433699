"""Time that is given and lifted, on a loop whose clock is put forward."""

import asyncio

from connection_kit import play, put_forward
from incoming_payments.hosts.deadline import Deadline


def passed_at(*steps: tuple[str, float]) -> list[float]:
    """The seconds, of all that were let go by, at which it was found that the time was over."""
    found: list[float] = []
    gone = 0.0

    async def story() -> None:
        nonlocal gone
        deadline = Deadline(asyncio.get_running_loop(), lambda: found.append(gone))
        for step, seconds in steps:
            if step == "wait":
                gone += seconds
                await put_forward(seconds)
            elif step == "set":
                deadline.set(seconds)
                assert deadline.is_set
            elif step == "lift":
                deadline.lift()
                assert not deadline.is_set
            else:
                deadline.drop()

    play(story)
    return found


def test_time_that_is_over() -> None:
    """It is told once."""
    assert passed_at(("set", 100), ("wait", 90), ("wait", 20), ("wait", 500)) == [110]


def test_time_that_was_lifted() -> None:
    """Nothing is told, and it can be given anew."""
    assert passed_at(("set", 100), ("lift", 0), ("wait", 200)) == []
    assert passed_at(("set", 100), ("lift", 0), ("wait", 200), ("set", 100), ("wait", 110)) == [310]


def test_more_time() -> None:
    """The last that was given counts, also where it is looked at before that is over."""
    assert passed_at(("set", 100), ("wait", 50), ("set", 100), ("wait", 60), ("wait", 50)) == [160]


def test_less_time() -> None:
    """It is over sooner."""
    assert passed_at(("set", 500), ("set", 100), ("wait", 110), ("wait", 500)) == [110]


def test_time_that_nobody_looks_at() -> None:
    """It is never over, until more is given."""
    assert passed_at(("drop", 0), ("set", 100), ("drop", 0), ("wait", 200)) == []
    assert passed_at(("set", 100), ("drop", 0), ("set", 300), ("wait", 200), ("wait", 110)) == [310]
