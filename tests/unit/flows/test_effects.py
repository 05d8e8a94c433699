"""Tests of `flows.effects`: requests to ports, as data."""

from collections.abc import Iterator

import pytest
from attrs.exceptions import FrozenInstanceError

from incoming_payments.domain.payment import PaymentId
from incoming_payments.flows import effects
from incoming_payments.flows.effects import DrawRandomness, Effect, Flow, LoadPayment, UpdatePayment
from incoming_payments.flows.run import _ROUTES
from incoming_payments.testing import crediting


def test_yield_from_an_effect_returns_the_answer() -> None:
    """`answer = yield from effect` yields the effect once, and returns the value that the driver sends."""

    def flow() -> Flow[bytes]:
        return (yield from DrawRandomness(3))

    steps = flow()
    assert next(steps) == DrawRandomness(3)
    with pytest.raises(StopIteration) as stop:
        steps.send(b"abc")
    assert stop.value.value == b"abc"


def test_effect_is_a_value() -> None:
    """Effects with the same members are equal, and effects are frozen."""
    assert LoadPayment(PaymentId("a")) == LoadPayment(PaymentId("a"))
    assert LoadPayment(PaymentId("a")) != LoadPayment(PaymentId("b"))
    with pytest.raises(FrozenInstanceError):
        LoadPayment(PaymentId("a")).id = PaymentId("b")  # type: ignore[misc] # on purpose


def test_update_without_a_credit_id() -> None:
    """The credit id of an update is optional."""
    assert UpdatePayment(PaymentId("a"), crediting("wire-1", 1)).credit_id is None


def defined() -> Iterator[type[Effect[object]]]:
    """Yield every effect that the module defines."""
    for value in vars(effects).values():
        if isinstance(value, type) and issubclass(value, Effect) and value is not Effect:
            yield value


def test_every_effect_has_a_route() -> None:
    """The drivers have a route for each effect, and for nothing else."""
    assert set(defined()) == set(_ROUTES)
