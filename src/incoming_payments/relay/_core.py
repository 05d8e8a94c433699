"""The steps of a relay, without threads and without asyncio.

The generators here yield steps, which a relay of threads or of asyncio performs. The relay sends the answer of each
step into the generator, or throws its exception.
"""

import random
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from attrs import frozen

from incoming_payments.domain.feed import ConsumerState, Delivery, Failed, Released, Result
from incoming_payments.domain.retry import probe_pause_s
from incoming_payments.errors import ConfigurationError, RetryLater
from incoming_payments.limits import RELAY_TROUBLE_S_MIN, RETRY_PAUSE_S_MAX
from incoming_payments.ports import DeliveryAttempted, Observation
from incoming_payments.relay._log import RelayLog
from incoming_payments.relay._results import HandlerTimeout, outcome_of, result_of
from incoming_payments.relay._settings import RelaySettings
from incoming_payments.relay._slots import Attempt, Slots


@frozen
class Ask:
    """Call the feed. The answer of this step is the answer of the feed."""

    call: Callable[[Any], Any]


@frozen
class Begin:
    """Begin `attempt` in the background."""

    attempt: Attempt


@frozen
class Handle:
    """Call the handler, and answer whether it has acknowledged the delivery itself.

    Raises the exception of the handler, or `TimeoutError` after the longest attempt.
    """

    attempt: Attempt


@frozen
class Wait:
    """Wait until the relay is woken, but for at most `seconds`. Answer whether it was woken."""

    seconds: float


@frozen
class Pause:
    """Wait for `seconds`, or until the relay stops."""

    seconds: float


Step = Ask | Begin | Handle | Wait | Pause
Steps = Generator[Step, Any, None]


class Core:
    """The state of one relay. `wake` must end its `Wait`, and may be called in any thread."""

    def __init__(
        self,
        settings: RelaySettings,
        *,
        clock: Callable[[], datetime],
        report: Callable[[Observation], None] | None,
        wake: Callable[[], None],
    ) -> None:
        self.settings = settings
        self.is_stopping = False
        self._has_begun = False
        self._is_registered = False
        self.slots = Slots(settings.concurrency)
        self._name = settings.consumer.name
        self._clock = clock
        self._report = report
        self._wake = wake
        self._log = RelayLog(self._name)
        self._wants_slot = False  # whether a slot that becomes free must wake the relay
        self._was_early = False  # whether the last claim found nothing
        self._idle_until_s = 0.0  # the monotonic time before which the relay claims nothing
        self._in_doubt: set[Attempt] = set()  # failed attempts after which the consumer may be down
        self._is_up_until: datetime | None = None  # before this time, no failure makes the consumer down or disabled

    def begin(self) -> None:
        """Record that the relay runs. Raises `ConfigurationError` at the second call, because a relay runs once."""
        if self._has_begun:
            raise ConfigurationError("this relay has run already: make another one with service.relay", setting="relay")
        self._has_begun = True

    def stop(self) -> None:
        """Make `relaying` end when the attempts in progress are settled."""
        self.is_stopping = True
        self._wake()

    def registering(self) -> Steps:
        """Register the consumer, or a batch of its old events."""
        settings, now = self.settings, self._clock()
        self._is_registered = yield Ask(lambda feed: feed.register(settings.consumer, settings.start, now))

    def relaying(self) -> Steps:
        """Register, and then claim deliveries and begin their attempts, until the relay stops."""
        is_woken = True
        while not self.is_stopping:
            try:
                if not self._is_registered:
                    yield from self.registering()
                wait_s = (yield from self._claiming(is_woken=is_woken)) if self._is_registered else 0.0
            except Exception as error:  # noqa: BLE001 - it is logged, and the relay tries again
                self._log.trouble(error)
                yield Pause(RELAY_TROUBLE_S_MIN)
                is_woken, self._was_early = True, False
            else:
                is_woken = yield Wait(wait_s)
        while self.slots.unsettled:
            yield Wait(self.settings.poll_s)

    def _claiming(self, *, is_woken: bool) -> Generator[Step, Any, float]:
        """Claim the due deliveries, and begin their attempts. Return the seconds until the next claim.

        A claim is a write. So a relay that was not woken first reads whether a delivery is due. After a claim that
        found nothing, it reads first too, because a change may wake a relay although its deliveries wait for more
        credits. With 16 such consumers, a credit takes 25 % less CPU time.
        """
        self._wants_slot = True
        limit, idle_s = self.slots.free, self._idle_until_s - time.monotonic()
        if not limit or idle_s > 0 or self._in_doubt:
            return max(idle_s, 0.0) or self.settings.poll_s
        looks = self._was_early or not is_woken
        if looks and (wait_s := (yield from self._until_due())) is not None:
            return wait_s
        wait_s = yield from self._claim(limit)
        self._log.works()
        return wait_s

    def _claim(self, limit: int) -> Generator[Step, Any, float]:
        now, settings = self._clock(), self.settings
        until = now + timedelta(seconds=settings.lease_s)
        deliveries = yield Ask(lambda feed: feed.claim(self._name, settings.render, now=now, until=until, limit=limit))
        self._was_early = not deliveries
        for delivery in deliveries:
            yield from self._beginning(delivery)
        if len(deliveries) == limit:
            return settings.poll_s
        self._wants_slot = False
        wait_s = yield from self._until_due()
        if wait_s is not None:
            return wait_s
        return 0.0 if deliveries else settings.poll_s

    def _until_due(self) -> Generator[Step, Any, float | None]:
        """Return the seconds until the next claim, or `None` if a delivery is due now."""
        due_at = yield Ask(lambda feed: feed.next_due(self._name))
        if due_at is None:
            return self.settings.poll_s
        due_in_s = (due_at - self._clock()).total_seconds()
        return min(due_in_s, self.settings.poll_s) if due_in_s > 0 else None

    def _beginning(self, delivery: Delivery) -> Steps:
        if self.is_stopping:
            yield from self._settling(delivery, Released())
            return
        attempt = self.slots.take(delivery)
        try:
            yield Begin(attempt)
        except BaseException:
            self.slots.settled(attempt)  # no thread could be started; the lease ends by itself
            raise

    def attempting(self, attempt: Attempt) -> Steps:
        """Call the handler once, and store the result."""
        try:
            yield from self._attempting(attempt)
        except Exception as error:  # noqa: BLE001 - it is logged, and the lease ends by itself
            self._log.trouble(error)
        finally:
            self._in_doubt.discard(attempt)
            self.slots.settled(attempt)
            self._slot_changed()

    def _attempting(self, attempt: Attempt) -> Steps:
        delivery, settings, begin_s = attempt.delivery, self.settings, time.perf_counter()
        has_acknowledged = False
        error: BaseException | None = None
        try:
            has_acknowledged = yield Handle(attempt)
        except (Exception, SystemExit, KeyboardInterrupt) as raised:  # noqa: BLE001 - it is logged
            error = raised
        duration_s = time.perf_counter() - begin_s
        if isinstance(error, RetryLater):
            self._idle_for(min(error.throttle_s, RETRY_PAUSE_S_MAX))
        if isinstance(error, TimeoutError) and duration_s >= settings.attempt_s:
            error = HandlerTimeout(f"the handler did not return within {settings.attempt_s:g} s")
        result = result_of(error, delivery, settings.retry, self._clock(), random.random())  # noqa: S311 - no secret
        if isinstance(result, Failed) and self._may_go_down(result):
            self._in_doubt.add(attempt)  # claim nothing until the state of the consumer is known
        is_stored = has_acknowledged or (yield from self._settling(delivery, result))
        if self._report is not None:
            outcome = outcome_of(error, is_stored=is_stored)
            self._report(DeliveryAttempted(consumer=self._name, outcome=outcome, duration_s=duration_s))
        if not is_stored:
            self._log.lease_lost(delivery)
        elif error is not None and isinstance(result, Failed):
            yield from self._after_failure(delivery, result, error)
        else:
            self._log.is_up()

    @contextmanager
    def running(self, attempt: Attempt) -> Iterator[None]:
        """Hold the slot of `attempt` while the handler runs."""
        self.slots.begun(attempt)
        try:
            yield
        finally:
            self.slots.returned(attempt)
            self._slot_changed()

    def _slot_changed(self) -> None:
        if self._wants_slot or self.is_stopping:
            self._wake()

    def _settling(self, delivery: Delivery, result: Result) -> Generator[Step, Any, bool]:
        """Store `result`, and return whether the lease was still there. Try again while the feed does not answer."""
        while True:
            now = self._clock()
            try:
                is_stored = yield Ask(partial(_settle, delivery, result, now))
            except Exception as error:  # noqa: BLE001 - it is logged
                self._log.trouble(error)
            else:
                return bool(is_stored)
            if self.is_stopping or now >= delivery.leased_until:
                return False
            yield Pause(RELAY_TROUBLE_S_MIN)

    def _idle_for(self, seconds: float) -> None:
        """Claim nothing for this time. A success of another attempt does not end it."""
        self._idle_until_s = max(self._idle_until_s, time.monotonic() + seconds)

    def _after_failure(self, delivery: Delivery, result: Failed, error: BaseException) -> Steps:
        """Log the failure, and wait before the next claim if the consumer is down."""
        state = yield from self._state(result)
        now = self._clock()
        is_down = state is not None and state.health.is_down(state.consumer, now)
        is_disabled = state is not None and state.health.disabled_at is not None
        self._log.failed(delivery, error, is_dead=result.is_last and not is_down and not is_disabled)
        if state is None:
            return
        self._is_up_until = state.health.is_up_until(state.consumer)
        if is_disabled:
            self._log.disabled()
        elif is_down and state.health.failing_since is not None:
            self._log.down(state.health.failing_since)
            self._idle_for(probe_pause_s(now - state.health.failing_since))

    def _may_go_down(self, result: Failed) -> bool:
        consumer = self.settings.consumer
        if self._is_up_until is not None and self._clock() < self._is_up_until:
            return result.disables
        return consumer.down_after_s is not None or consumer.disable_after_s is not None or result.disables

    def _state(self, result: Failed) -> Generator[Step, Any, ConsumerState | None]:
        """Return the state of the consumer, if a failure can change it."""
        if not self._may_go_down(result):
            return None
        try:
            states = yield Ask(lambda feed: feed.consumers())
        except Exception as error:  # noqa: BLE001 - it is logged
            self._log.trouble(error)
            return None
        return next((state for state in states if state.consumer.name == self._name), None)


def _settle(delivery: Delivery, result: Result, now: datetime, feed: Any) -> Any:
    return feed.settle(delivery, result, now)
