"""Observing flows: what is reported, and that the flow gets the same answers and errors as without an observer."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.domain.transitions import State
from incoming_payments.errors import (
    ApprovalRequired,
    AuthorizationServerUnavailable,
    PaymentCompleted,
    PaymentNotFound,
    TokenRefused,
)
from incoming_payments.flows.effects import Effect, IntrospectToken, LoadPayment, UpdatePayment
from incoming_payments.flows.observed import EffectReporter
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, TokenQuery
from incoming_payments.ports import CreditDecided, Observation, TokenIntrospected
from kits.lifecycle_kit import a_payment
from kits.service_kit import NOBODYS_ID

ID = PaymentId(NOBODYS_ID)
INTROSPECT = IntrospectToken(TokenQuery(AccessToken("TOKEN"), "read"))
ACTIVE = AccessTokenInfo("https://shop.example", {"kid": "key-1"}, [AccessRight(["read"])])
CREDIT: UpdatePayment[Any] = UpdatePayment(ID, lambda *_: None, CreditId("wire-1"))  # type: ignore[arg-type]
UPDATE: UpdatePayment[Any] = UpdatePayment(ID, lambda *_: None)  # type: ignore[arg-type]


Perform = Callable[[Effect[Any]], Any]
Drive = Callable[[EffectReporter, Perform, Effect[Any]], Any]


def drive(reporter: EffectReporter, perform: Perform, effect: Effect[Any]) -> Any:
    """Perform `effect` as the sync driver does."""
    return reporter.perform(perform, effect)


def drive_async(reporter: EffectReporter, perform: Perform, effect: Effect[Any]) -> Any:
    """Perform `effect` as the async driver does."""

    async def performing(effect: Effect[Any]) -> Any:
        await asyncio.sleep(0)
        return perform(effect)

    return asyncio.run(reporter.perform_async(performing, effect))


drivers = pytest.mark.parametrize("drive", [drive, drive_async])


def a_reporter(found: list[Observation]) -> EffectReporter:
    """Return a reporter to `found`, with a clock that is a second later at each call."""
    clock = itertools.count(10)
    return EffectReporter(found.append, lambda: float(next(clock)))


@drivers
@pytest.mark.parametrize(
    ("effect", "answer", "expected"),
    [
        (INTROSPECT, ACTIVE, [TokenIntrospected(outcome="active", duration_s=1.0)]),
        (INTROSPECT, None, [TokenIntrospected(outcome="inactive", duration_s=1.0)]),
        (CREDIT, object(), [CreditDecided(outcome="credited", duration_s=1.0)]),
        (CREDIT, None, [CreditDecided(outcome="credited", duration_s=1.0)]),
        (UPDATE, object(), []),
        (LoadPayment(ID), a_payment(State.PENDING), []),
    ],
)
def test_answers_are_reported(drive: Drive, effect: Effect[Any], answer: object, expected: list[Observation]) -> None:
    """An introspection and a credit are reported with their seconds. Other effects are not."""
    found: list[Observation] = []
    performed: list[Effect[Any]] = []

    def perform(effect: Effect[Any]) -> object:
        performed.append(effect)
        return answer

    assert drive(a_reporter(found), perform, effect) is answer
    assert (performed, found) == ([effect], expected)


@drivers
@pytest.mark.parametrize(
    ("effect", "error", "code"),
    [
        (INTROSPECT, AuthorizationServerUnavailable("down"), "authorization_server_unavailable"),
        (INTROSPECT, ConnectionResetError(), "authorization_server_unavailable"),
        (INTROSPECT, TimeoutError(), "authorization_server_unavailable"),
        (INTROSPECT, TokenRefused("key_unusable", "no key"), "key_unusable"),
        (INTROSPECT, RuntimeError("a bug"), "internal_error"),
        (CREDIT, PaymentCompleted("closed"), "payment_completed"),
        (CREDIT, ApprovalRequired("ask first", a_payment(State.PENDING)), None),
        (LoadPayment(ID), PaymentNotFound("none"), None),
    ],
)
def test_errors_are_reported(drive: Drive, effect: Effect[Any], error: Exception, code: str | None) -> None:
    """The outcome is the code of the error, and the flow gets the error itself."""
    found: list[Observation] = []

    def perform(_: Effect[Any]) -> object:
        raise error

    with pytest.raises(type(error)) as caught:
        drive(a_reporter(found), perform, effect)
    assert caught.value is error
    assert [one.outcome for one in found] == ([] if code is None else [code])


def test_cancelled_operation_is_not_reported() -> None:
    """A request that is cancelled has no outcome."""
    found: list[Observation] = []

    async def scenario() -> None:
        task = asyncio.ensure_future(a_reporter(found).perform_async(lambda _: asyncio.sleep(10), INTROSPECT))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert found == []
