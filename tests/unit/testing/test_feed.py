"""The contract suite of feeds passes on the feeds of this library, and detects feeds that break a promise."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from incoming_payments.domain.feed import Consumer, Start
from incoming_payments.ports import PaymentStore
from incoming_payments.stores.memory import MemoryStore
from incoming_payments.stores.sqlite import AsyncSqliteStore, SqliteStore
from incoming_payments.testing import NOW, SyncView
from incoming_payments.testing._feed_hooks import LEDGER
from incoming_payments.testing.feed import FeedContract
from kits import broken_feeds as broken


class TestMemoryFeed(FeedContract):
    """The feed in memory."""

    memory_only = True

    def make_store(self, directory: Path) -> PaymentStore:  # noqa: ARG002 - a hook
        """Return a new store."""
        return MemoryStore()


class TestSqliteFeed(FeedContract):
    """The feed in a SQLite file."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a store on a new file."""
        return SqliteStore(directory / "payments.db")

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - a hook
        """Return another store on the file."""
        return SqliteStore(directory / "payments.db")


class TestAsyncSqliteFeed(FeedContract):
    """The feed of an async store, whose callers are concurrent tasks of one event loop."""

    def make_store(self, directory: Path) -> PaymentStore:
        """Return a view of a store on a new file."""

        async def open_store() -> AsyncSqliteStore:
            return AsyncSqliteStore(directory / "payments.db")

        return SyncView(open_store, AsyncSqliteStore.close)

    def open_again(self, store: PaymentStore, directory: Path) -> PaymentStore:  # noqa: ARG002 - a hook
        """Return a view of another store on the file."""
        return self.make_store(directory)


FAILED: Final = (AssertionError, pytest.fail.Exception)
KINDS: Final[dict[str, Any]] = {"kinds": ["created", "completed"], "expected": ["1", "4"]}
CREATED: Final[dict[str, Any]] = {"kinds": ["created"], "expected": ["1"]}
BEGINNING: Final[dict[str, Any]] = {"start": Start.BEGINNING}
CAUGHT_BY: Final[list[tuple[type[Any], Callable[..., None], dict[str, Any]]]] = [
    (broken.AcknowledgesAtClaim, FeedContract.test_a_lease_that_ends_is_claimed_again, {}),
    (broken.GivesTwoLeases, FeedContract.test_a_lease_that_ends_is_claimed_again, {}),
    (broken.GivesTwoLeases, FeedContract.test_concurrent_claims_share_the_deliveries, {}),
    (broken.ClaimsWithoutTheLock, FeedContract.test_concurrent_claims_share_the_deliveries, {}),
    (broken.LetsOldHoldersSettle, FeedContract.test_a_lease_that_ends_is_claimed_again, {}),
    (broken.NeverEndsLeases, FeedContract.test_a_lease_that_ends_is_claimed_again, {}),
    (broken.CountsReleases, FeedContract.test_a_released_delivery_is_due_at_once, {}),
    (broken.ForgetsErrors, FeedContract.test_a_delivery_keeps_its_last_error, {}),
    (broken.LosesRetries, FeedContract.test_a_failed_attempt_is_repeated_at_its_time, {}),
    (broken.NeverWakes, FeedContract.test_a_change_wakes_the_watchers, {}),
    (broken.WakesForChangesOnly, FeedContract.test_a_result_and_an_operator_wake_the_watchers, {}),
    (broken.WakesTheFirst, FeedContract.test_a_change_wakes_the_watchers, {}),
    (broken.WakesFormerWatchers, FeedContract.test_a_change_wakes_the_watchers, {}),
    (broken.HidesLaterEvents, FeedContract.test_excluded_kinds_are_passed_over, KINDS),
    (
        broken.HidesLaterEvents,
        FeedContract.test_an_event_behind_excluded_events_arrives_while_the_stream_is_open,
        {},
    ),
    (broken.SendsExcludedEvents, FeedContract.test_excluded_kinds_are_passed_over, KINDS),
    (broken.IgnoresWalletAddresses, FeedContract.test_only_the_wallet_addresses_of_the_filter_arrive, {}),
    (broken.StopsAtExcludedStreams, FeedContract.test_a_narrower_filter_drops_what_waits, {}),
    (broken.GrowsRanges, FeedContract.test_a_range_never_changes, {}),
    (broken.RendersAgain, FeedContract.test_a_range_never_changes, {}),
    (broken.LosesEventsOfOpenStreams, FeedContract.test_a_range_never_changes, {}),
    (broken.OpensStreamsTwice, FeedContract.test_events_arrive_in_order_with_all_that_a_reader_needs, {}),
    (broken.JoinsNothing, FeedContract.test_credits_are_joined, {}),
    (broken.LeasesBeforeItRenders, FeedContract.test_a_renderer_that_raises_changes_nothing, {}),
    (broken.BlocksBehindRenderers, FeedContract.test_a_renderer_that_raises_holds_back_one_stream, {}),
    (broken.BlocksBehindDeadLetters, FeedContract.test_a_dead_letter_releases_the_later_events, {}),
    (broken.MovesStreamsBack, FeedContract.test_a_dead_letter_releases_the_later_events, {}),
    (broken.RedeliversEverything, FeedContract.test_only_a_dead_letter_can_be_sent_again, {}),
    (broken.ListsDeadLettersLastFirst, FeedContract.test_dead_letters_are_listed_page_by_page, {}),
    (broken.ForgetsDeadLetters, FeedContract.test_acknowledged_deliveries_are_forgotten, {}),
    (broken.LeavesDeliveries, FeedContract.test_a_removed_consumer_begins_anew, {}),
    (
        broken.MissesChangesDuringRegistration,
        FeedContract.test_no_change_during_a_registration_is_missed,
        BEGINNING,
    ),
    (broken.RegistersAnew, FeedContract.test_a_registered_consumer_keeps_its_place, {}),
    (broken.KeepsOldSettings, FeedContract.test_a_registered_consumer_keeps_its_place, {}),
    (broken.RefusesNoConsumer, FeedContract.test_the_number_of_consumers_is_bounded, {}),
    (broken.StopsWhileDisabled, FeedContract.test_a_disabled_consumer_loses_nothing, {}),
    (broken.CountsAttemptsWhileDown, FeedContract.test_a_consumer_that_is_down_gets_one_delivery_at_a_time, {}),
    (broken.ForgetsHealth, FeedContract.test_a_failure_can_disable_the_consumer, {}),
    (broken.SkipsLeases, FeedContract.test_skipping_drops_what_waits, {}),
    (broken.IgnoresTheDelay, FeedContract.test_credits_wait_for_others, {}),
    (broken.WaitsForAllStreams, FeedContract.test_streams_do_not_wait_for_each_other, {}),
    (broken.IgnoresTheLimit, FeedContract.test_claim_respects_its_limit, {}),
    (broken.LosesClaimsOfDeadProcesses, FeedContract.test_a_crash_between_claim_and_result_loses_nothing, {}),
    (broken.LeasesInTheProcess, FeedContract.test_processes_share_the_consumers, {}),
    (broken.CachesConsumers, FeedContract.test_processes_share_the_consumers, {}),
]


@pytest.mark.parametrize(("feed", "test", "values"), CAUGHT_BY)
def test_a_broken_feed_is_detected(
    feed: type[Any], test: Callable[..., None], values: dict[str, Any], tmp_path: Path
) -> None:
    """The test of the broken promise fails."""
    contract = broken.BrokenContract()
    contract.feed_class = feed
    with pytest.raises((*FAILED, ValueError, LookupError)):
        run_test(contract, test, values, tmp_path)


@pytest.mark.parametrize("values", [KINDS, CREATED])
@pytest.mark.parametrize("test", [FeedContract.test_excluded_kinds_are_passed_over])
def test_the_feed_that_is_broken_passes(test: Callable[..., None], values: dict[str, Any], tmp_path: Path) -> None:
    """The tests run as they do under pytest."""
    run_test(broken.BrokenContract(), test, values, tmp_path)


def run_test(contract: FeedContract, test: Callable[..., None], values: dict[str, Any], directory: Path) -> None:
    """Run one test of the suite, with the fixtures that it takes."""
    needed = inspect.signature(test).parameters
    store = contract.make_store(directory)
    known: dict[str, Any] = {"self": contract, "store": store, "tmp_path": directory, **values}
    if "feed" in needed:
        known["feed"] = contract.feed_of(store)
        known["feed"].register(Consumer(name=LEDGER), Start.NOW, NOW)
    if "other" in needed:
        known["other"] = contract.open_again(store, directory)
    try:
        test(**{name: known[name] for name in needed})
    finally:
        for name in {"store", "other"} & set(known):
            contract.close_store(known[name])
