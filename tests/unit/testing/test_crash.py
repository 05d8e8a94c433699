"""The crash kit passes stores that keep their promises, and catches stores that lose or double credits in a crash."""

import re
from pathlib import Path

import pytest

from incoming_payments.testing.crash import CrashFailed, check_crashes


@pytest.mark.parametrize(
    "factory", ["incoming_payments.stores.sqlite:SqliteStore", "kits.store_factories:open_async_sqlite"]
)
def test_our_stores_survive_crashes(factory: str, tmp_path: Path) -> None:
    """Each acknowledged credit is in the file, and the kit has killed a worker at each moment and in each round."""
    report = check_crashes(factory, str(tmp_path / "payments.db"), moments=4, rounds=2)

    assert report.killed >= 4
    assert report.acknowledged >= report.killed


def test_the_reference_store_survives_crashes(tmp_path: Path) -> None:
    """The broken stores differ from it in their fault alone."""
    report = check_crashes("kits.reference_store:ReferenceStore", str(tmp_path / "payments.db"), seed=7)

    assert report.seed == 7
    assert report.killed >= 8


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("LocksTheProcess", "the store answered credit|adds|no client sent"),
        ("CachesPaymentsInTheProcess", "the payment has version 1, and its events have the versions"),
        ("CommitsEventsLater", "the payment has version 4, and its events have the versions"),
        ("CommitsCreditsFirst", "is stored with the total .*, and its event has None"),
        ("AnswersEarly", "and its event has None"),
        ("AnswersSlightlyEarly", "and its event has None"),
        ("CreditsTwice", "and its repeat with"),
    ],
)
def test_a_broken_store_is_caught(name: str, fault: str, tmp_path: Path) -> None:
    """The message says what is wrong, and names the seed."""
    with pytest.raises(CrashFailed) as caught:
        check_crashes(f"kits.broken_sqlite:{name}", str(tmp_path / "payments.db"))

    print(caught.value)
    assert re.search(fault, str(caught.value))
    assert re.search(r"\(seed=\d+\)$", str(caught.value))
