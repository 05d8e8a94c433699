"""Observing flows: what is reported, and that the flow gets the same answers and errors as without an observer."""

import itertools
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
from incoming_payments.flows.machinery.effects import Effect, Flow, IntrospectToken, LoadPayment, UpdatePayment
from incoming_payments.flows.machinery.observed import EffectReporter
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, TokenQuery
from incoming_payments.ports import CreditDecided, Observation, TokenIntrospected
from kits.lifecycle_kit import a_payment
from kits.service_kit import NOBODYS_ID, finish

ID = PaymentId(NOBODYS_ID)
INTROSPECT = IntrospectToken(TokenQuery(AccessToken("TOKEN"), "read"))
ACTIVE = AccessTokenInfo("https://shop.example", {"kid": "key-1"}, [AccessRight(["read"])])
CREDIT: UpdatePayment[Any] = UpdatePayment(ID, lambda *_: None, CreditId("wire-1"))  # type: ignore[arg-type]
UPDATE: UpdatePayment[Any] = UpdatePayment(ID, lambda *_: None)  # type: ignore[arg-type]


def a_reporter(found: list[Observation]) -> EffectReporter:
    """Return a reporter to `found`, with a clock that is a second later at each call."""
    clock = itertools.count(10)
    return EffectReporter(found.append, lambda: float(next(clock)))


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
def test_answers_are_reported(effect: Effect[Any], answer: object, expected: list[Observation]) -> None:
    """An introspection and a credit are reported with their seconds. Other effects are not."""
    found: list[Observation] = []
    flow = a_reporter(found).watched(iter(effect))
    assert next(flow) == effect
    assert finish(flow, answer) is answer
    assert found == expected


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
def test_errors_are_reported(effect: Effect[Any], error: Exception, code: str | None) -> None:
    """The outcome is the code of the error, and the flow gets the error itself."""
    found: list[Observation] = []
    flow = a_reporter(found).watched(iter(effect))
    next(flow)
    with pytest.raises(type(error)) as caught:
        flow.throw(error)
    assert caught.value is error
    assert [one.outcome for one in found] == ([] if code is None else [code])


def test_flow_that_ends_early_is_closed_and_not_reported() -> None:
    """A request that is cancelled has no outcome, and the flow ends with it."""
    found: list[Observation] = []
    notes: list[str] = []

    def closing() -> Flow[None]:
        try:
            yield from INTROSPECT
        finally:
            notes.append("closed")

    flow = a_reporter(found).watched(closing())
    next(flow)
    flow.close()
    assert (found, notes) == ([], ["closed"])
