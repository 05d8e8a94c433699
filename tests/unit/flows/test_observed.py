"""Observing flows: what is reported, and that the flow runs as without an observer."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from incoming_payments.domain.payment import CreditId, PaymentId
from incoming_payments.domain.transitions import State
from incoming_payments.errors import AuthorizationServerUnavailable, PaymentCompleted, PaymentNotFound, TokenRefused
from incoming_payments.flows.effects import Effect, Flow, IntrospectToken, LoadPayment, UpdatePayment
from incoming_payments.flows.observed import observed
from incoming_payments.gnap import AccessRight, AccessToken, AccessTokenInfo, TokenQuery
from incoming_payments.ports import CreditDecided, Observation, TokenIntrospected
from kits.lifecycle_kit import a_payment
from kits.service_kit import NOBODYS_ID

ID = PaymentId(NOBODYS_ID)
INTROSPECT = IntrospectToken(TokenQuery(AccessToken("TOKEN"), "read"))
ACTIVE = AccessTokenInfo("https://shop.example", {"kid": "key-1"}, [AccessRight(["read"])])
CREDIT: UpdatePayment[Any] = UpdatePayment(ID, lambda *_: None, CreditId("wire-1"))  # type: ignore[arg-type]
UPDATE: UpdatePayment[Any] = UpdatePayment(ID, lambda *_: None)  # type: ignore[arg-type]


def asking(effect: Effect[Any]) -> Flow[Any]:
    """Return a flow that yields `effect`, and returns its answer or its error."""
    try:
        answer = yield from effect
    except Exception as error:  # noqa: BLE001 - the answer of this flow
        return error
    return answer


def observe(effect: Effect[Any], step: Callable[[Flow[Any]], object]) -> tuple[object, list[Observation]]:
    """Answer the only effect of a flow by `step`. Return the flow's answer, and what was reported."""
    found: list[Observation] = []
    clock = itertools.count(10)
    flow = observed(asking(effect), found.append, lambda: float(next(clock)))
    assert next(flow) is effect
    with pytest.raises(StopIteration) as stop:
        step(flow)
    return stop.value.value, found


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
    assert observe(effect, lambda flow: flow.send(answer)) == (answer, expected)


@pytest.mark.parametrize(
    ("effect", "error", "code"),
    [
        (INTROSPECT, AuthorizationServerUnavailable("down"), "authorization_server_unavailable"),
        (INTROSPECT, ConnectionResetError(), "authorization_server_unavailable"),
        (INTROSPECT, TimeoutError(), "authorization_server_unavailable"),
        (INTROSPECT, TokenRefused("key_unusable", "no key"), "key_unusable"),
        (INTROSPECT, RuntimeError("a bug"), "internal_error"),
        (CREDIT, PaymentCompleted("closed"), "payment_completed"),
        (LoadPayment(ID), PaymentNotFound("none"), None),
    ],
)
def test_errors_are_reported(effect: Effect[Any], error: Exception, code: str | None) -> None:
    """The outcome is the code of the error, and the flow gets the error itself."""
    answer, found = observe(effect, lambda flow: flow.throw(error))
    assert answer is error
    assert [one.outcome for one in found] == ([] if code is None else [code])


def test_closing_closes_the_flow() -> None:
    """A flow that is cancelled is closed, and reports nothing."""
    found: list[Observation] = []
    inner = asking(INTROSPECT)
    flow = observed(inner, found.append, lambda: 0.0)
    next(flow)
    flow.close()
    assert list(inner) == []
    assert found == []
