"""The world of the exploration: processes that run the real flows over one store, one effect at a time.

A `State` is the rows of the store, the place of each process in its flow, the answers that the clients have, and the
time. A generator cannot be copied. So the place of a process is the list of the answers that its flow has got, and the
world starts the flow again with these answers. `World.follow` returns the state after one choice:

    1+pay   process 1 receives the request `pay`
    1       the next effect of process 1 happens, and its flow gets the answer
    1b      process 1 dies before that effect
    1a      process 1 dies after that effect, so its answer is lost
    1f      the store fails, and the effect does not happen
    1u      the effect happens, but the process gets an error, as after a lost connection
    1n      the host refuses its approval
    t       time advances to the next moment

The world performs `DrawRandomness` without a choice, because this effect touches nothing that processes share.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from attrs import define, evolve, field, frozen

from campaigns.explore.requests import Answer, Handle, Request, Setup, StoreCall
from incoming_payments.domain.feed import Delivered, Delivery, FeedEvent
from incoming_payments.errors import IncomingPaymentsError, PolicyRefused, StoreUnavailable
from incoming_payments.flows.machinery.effects import (
    DrawRandomness,
    Effect,
    Flow,
    InsertPayment,
    RequestApproval,
    UpdatePayment,
)
from incoming_payments.flows.machinery.feed_effects import ClaimDeliveries, SettleDelivery
from incoming_payments.flows.machinery.ports import Ports
from incoming_payments.flows.machinery.run import run
from incoming_payments.ports.approval import Approval, ProposedCredit
from incoming_payments.testing.simulation.fixtures import METHODS

Rows = Mapping[Any, Any]
_WRITES: Final = (InsertPayment, UpdatePayment, ClaimDeliveries, SettleDelivery, StoreCall)
_OUTSIDE: Final = (Handle, RequestApproval)  # effects that do not use the store, so the store cannot fail
_LATER: Final = timedelta(hours=1)  # when every lease has ended, but no idempotency key
_LEASES: Final = 16  # more than the number of leases in one call


class Broken(Exception):
    """A promise is broken. The text says which one."""


def _error_key(error: Exception | None) -> object:
    return None if error is None else (type(error), str(error))


@frozen
class Answered:
    """The answer to an effect, or its error, and the time at which the flow got it."""

    now: datetime
    value: Any = None
    error: Exception | None = field(default=None, eq=_error_key)


@frozen
class Place:
    """The place of a flow: the request and its attempt, the time of its arrival, and the answers to its effects."""

    request: int
    attempt: int
    began: datetime
    log: tuple[Answered, ...] = ()


@frozen
class Call:
    """A request in a process. Only `run` stands at its next effect, so `run` cannot go on in more than one state."""

    place: Place
    run: "_Run" = field(eq=False, repr=False)


@frozen
class State:
    """One state of the world. `sent` and `answers` are by request. `crashes` and `failures` may still happen."""

    rows: Rows = field(repr=False)
    calls: tuple[Call | None, ...]
    sent: tuple[int, ...]
    answers: tuple[tuple[Answer, ...], ...]
    crashes: int
    failures: int
    moment: int = 0
    handled: frozenset[tuple[FeedEvent, ...]] = frozenset()  # the events of each delivery that the consumer handled
    settled: tuple[str, ...] = ()  # the ids of the deliveries that the store took as delivered
    rulings: frozenset[tuple[str, bool]] = frozenset()  # the credit ids that the host approved or refused


@define
class _Clock:
    now: datetime

    def __call__(self) -> datetime:
        return self.now


@define
class _Run:
    """A flow at its next effect, or at its end with a `result`."""

    flow: Flow[Any]
    clock: _Clock
    randomness: Callable[[int], bytes]
    effect: Effect[Any] | None = None
    result: Any = None

    def proceed(self, answered: Answered | None) -> None:
        """Give the flow its next answer, and run it to the next effect that other processes may notice."""
        error = None
        if answered is not None:
            self.clock.now, error = answered.now, answered.error
        value = None if answered is None else answered.value
        try:
            effect = self.flow.send(value) if error is None else self.flow.throw(error.with_traceback(None))
            while isinstance(effect, DrawRandomness):
                effect = self.flow.send(self.randomness(effect.count))
            self.effect = effect
        except StopIteration as stop:
            self.effect, self.result = None, stop.value
        except IncomingPaymentsError as raised:
            self.effect, self.result = None, raised.with_traceback(None)


class _NoApproval:
    """The approval port of a host. The world answers in its place, so that each answer is a choice."""

    def approve_payment(self, _: object) -> Approval:
        raise NotImplementedError

    approve_credit = approve_payment


class _Wallets:
    def __init__(self, setup: Setup) -> None:
        self.find = lambda url: setup.wallet if url == setup.wallet.url else None


class World:
    """The processes, requests and store of one `Setup`."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.store = setup.subject.store()
        self.ports = Ports(
            store=self.store,
            feed=self.store.feed,
            methods=METHODS,
            wallet_addresses=_Wallets(setup),
            approval=_NoApproval() if setup.has_approval else None,
        )
        self.moments = (*setup.moments, setup.moments[-1] + _LATER)
        self.names = {request.name: index for index, request in enumerate(setup.requests)}
        self.is_symmetric = len(set(setup.offsets)) == 1

    # --- states and choices ---

    def initial(self) -> State:
        """Return the state before the first choice."""
        self.store._rows.clear()
        self.setup.prepare(self.store)
        requests = len(self.setup.requests)
        return State(
            rows=dict(self.store._rows),
            calls=(None,) * len(self.setup.offsets),
            sent=(0,) * requests,
            answers=((),) * requests,
            crashes=self.setup.crashes,
            failures=self.setup.failures,
        )

    def choices(self, state: State) -> list[str]:
        """Return everything that may happen next. The list is empty at the end."""
        found = []
        idle = [index for index, call in enumerate(state.calls) if call is None]
        for process in idle[:1] if self.is_symmetric else idle:
            found += [
                f"{process + 1}+{request.name}" for request in self.setup.requests if self._is_sent(state, request)
            ]
        for process, call in enumerate(state.calls):
            if call is not None:
                found += [f"{process + 1}{suffix}" for suffix in self._outcomes(state, call.run.effect)]
        if state.moment + 1 < len(self.setup.moments) and (found or any(state.calls)):
            found.append("t")
        return found

    def _is_sent(self, state: State, request: Request) -> bool:
        """Return whether the client of `request` may send it now."""
        index = self.names[request.name]
        if state.sent[index] >= request.attempts:
            return False
        if request.is_duplicated:
            return True
        in_flight = any(call is not None and call.place.request == index for call in state.calls)
        return not in_flight and not any(answer.is_final for answer in state.answers[index])

    def _outcomes(self, state: State, effect: Effect[Any] | None) -> list[str]:
        suffixes = _answers_of_host(state, effect) if isinstance(effect, RequestApproval) else [""]
        if state.crashes:
            suffixes += ["b", "a"] if isinstance(effect, (*_WRITES, Handle)) else ["b"]
        if state.failures and not isinstance(effect, _OUTSIDE):
            suffixes += ["f", "u"] if isinstance(effect, _WRITES) else ["f"]
        return suffixes

    def follow(self, state: State, choice: str) -> State:
        """Return the state after `choice`."""
        if choice == "t":
            return evolve(state, moment=state.moment + 1)
        process = int(choice[0]) - 1
        if choice[1:2] == "+":
            return self._begin(state, process, self.names[choice[2:]])
        return self._happen(state, process, choice[1:])

    def now(self, state: State, process: int) -> datetime:
        """Return the time by the clock of `process`."""
        return self.moments[state.moment] + self.setup.offsets[process]

    def effect_of(self, state: State, process: int) -> Effect[Any] | None:
        """Return the next effect of `process`."""
        call = state.calls[process]
        return None if call is None else call.run.effect

    # --- one choice ---

    def _begin(self, state: State, process: int, index: int) -> State:
        sent = _replaced(state.sent, index, state.sent[index] + 1)
        place = Place(index, sent[index], self.now(state, process))
        return self._proceeded(evolve(state, sent=sent), process, place)

    def _happen(self, state: State, process: int, outcome: str) -> State:
        """Let the next effect of `process` happen in the way that `outcome` names."""
        call = state.calls[process]
        assert call is not None
        if outcome in {"b", "a"}:
            state = evolve(state, crashes=state.crashes - 1)
        if outcome in {"f", "u"}:
            state = evolve(state, failures=state.failures - 1)
        now = self.now(state, process)
        answered = Answered(now, error=StoreUnavailable("the store failed"))
        if outcome not in {"b", "f"}:
            state, happened = self._perform(state, process, call, refuses=outcome == "n")
            answered = answered if outcome == "u" else happened
        if outcome in {"b", "a"}:
            return evolve(state, calls=_replaced(state.calls, process, None))
        return self._proceeded(state, process, evolve(call.place, log=(*call.place.log, answered)))

    def _perform(self, state: State, process: int, call: Call, *, refuses: bool) -> tuple[State, Answered]:
        effect, now = call.run.effect, self.now(state, process)
        call.run.clock.now = now
        if isinstance(effect, Handle):
            return evolve(state, handled=state.handled | {effect.delivery.events}), Answered(now)
        if isinstance(effect, RequestApproval):
            state = evolve(state, rulings=state.rulings | {(_credit_id(effect), not refuses)})
            error = PolicyRefused("the host refuses") if refuses else None
            return state, Answered(now, Approval.APPROVED, error)
        self._restore(state.rows, call.place)
        try:
            value = effect.call(self.store) if isinstance(effect, StoreCall) else run(_only(effect), self.ports)
        except IncomingPaymentsError as error:
            return self._stored(state), Answered(now, error=error.with_traceback(None))
        if isinstance(effect, SettleDelivery) and value and isinstance(effect.result, Delivered):
            id = f"{effect.delivery.payment_id}_{effect.delivery.first_version}"
            state = evolve(state, settled=tuple(sorted((*state.settled, id))))
        value = tuple(value) if isinstance(value, list) else value
        return self._stored(state), Answered(now, value)

    def _stored(self, state: State) -> State:
        """Return `state` with the rows of the store. Rows that have not changed stay the same object."""
        rows = self.store._rows
        return state if rows == state.rows else evolve(state, rows=dict(rows))

    def _restore(self, rows: Rows, place: Place) -> None:
        """Give the store these `rows`. Leases get a name that depends only on the call that claims them."""
        self.store._rows.clear()
        self.store._rows.update(rows)
        self.store.feed._leases = itertools.count((place.request * _LEASES + place.attempt) * _LEASES + 1)

    def _proceeded(self, state: State, process: int, place: Place) -> State:
        """Return the state after the flow at `place` has run to its next effect or to its end."""
        run_ = self._run(place)
        if run_.effect is not None:
            return evolve(state, calls=_replaced(state.calls, process, Call(place, run_)))
        index = place.request
        answer = self.setup.requests[index].read(self.setup, run_.result)
        answers = _replaced(state.answers, index, tuple(sorted({*state.answers[index], answer})))
        return evolve(state, calls=_replaced(state.calls, process, None), answers=answers)

    def _run(self, place: Place) -> _Run:
        """Start the flow again, and give it the answers that it has got."""
        request = self.setup.requests[place.request]
        clock = _Clock(place.began)
        drawn = itertools.count()

        def randomness(count: int) -> bytes:
            return hashlib.sha256(f"{request.name} {place.attempt} {next(drawn)}".encode()).digest()[:count]

        steps = iter(self.setup.subject.around(request.start(self.setup, clock)))
        run_ = _Run(steps, clock, randomness)
        run_.proceed(None)
        for answered in place.log:
            run_.proceed(answered)
        return run_

    # --- the end ---

    def finish(self, state: State) -> list[State]:
        """Return the states after the end, in order.

        When all leases have ended, every client repeats its request without faults, until it has an answer.
        """
        states = [evolve(state, moment=len(self.setup.moments))]
        for index, request in enumerate(self.setup.requests):
            for _ in range(request.repeats_at_end):
                if any(answer.is_final for answer in states[-1].answers[index]):
                    break
                states.append(self._begin(states[-1], 0, index))
                while states[-1].calls[0] is not None:
                    outcome = self._outcomes(states[-1], self.effect_of(states[-1], 0))[0]  # the first is no fault
                    states.append(self._happen(states[-1], 0, outcome))
        return states

    def held(self, state: State) -> list[Delivery]:
        """Return the deliveries under a live lease that processes hold."""
        now = self.moments[state.moment]
        held = []
        for call in filter(None, state.calls):
            claimed = [each for answered in call.place.log for each in _deliveries(answered.value)]
            settled = sum(isinstance(answered.value, bool) for answered in call.place.log)
            held += [delivery for delivery in claimed[settled:] if delivery.leased_until > now]
        return held


def _answers_of_host(state: State, effect: RequestApproval) -> list[str]:
    """Return the outcomes of a request for approval. The host gives each copy of a packet the same answer."""
    id = _credit_id(effect)
    return [suffix for suffix, approves in (("", True), ("n", False)) if (id, not approves) not in state.rulings]


def _credit_id(effect: RequestApproval) -> str:
    assert isinstance(effect.proposal, ProposedCredit)
    return effect.proposal.credit_id


def _deliveries(value: object) -> list[Delivery]:
    """Return the deliveries in the answer to an effect."""
    if isinstance(value, Delivery):
        return [value]
    return [found for each in value for found in _deliveries(each)] if isinstance(value, tuple) else []


def _replaced(values: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _only(effect: Effect[Any] | None) -> Flow[Any]:
    """Return a flow of one effect, so that the library's own driver performs it."""
    assert effect is not None
    return (yield effect)
