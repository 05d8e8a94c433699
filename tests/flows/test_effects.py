"""`flows.effects`: questions as data."""

from collections.abc import Iterator

import pytest
from attrs.exceptions import FrozenInstanceError

from incoming_payments.domain.payment import PaymentId
from incoming_payments.flows import effects
from incoming_payments.flows.effects import DrawRandomness, Effect, Flow, LoadPayment, UpdatePayment
from incoming_payments.flows.run import _ROUTES
from incoming_payments.testing import crediting


def test_an_effect_is_yielded_and_its_answer_comes_back() -> None:
    """`answer = yield from effect` asks the one question, and gets what the driver sends."""

    def flow() -> Flow[bytes]:
        return (yield from DrawRandomness(3))

    steps = flow()
    assert next(steps) == DrawRandomness(3)
    with pytest.raises(StopIteration) as stop:
        steps.send(b"abc")
    assert stop.value.value == b"abc"


def test_an_effect_is_a_value() -> None:
    """Effects compare by what they ask, so that a flow can be stepped by hand; and they cannot be changed."""
    assert LoadPayment(PaymentId("a")) == LoadPayment(PaymentId("a"))
    assert LoadPayment(PaymentId("a")) != LoadPayment(PaymentId("b"))
    with pytest.raises(FrozenInstanceError):
        LoadPayment(PaymentId("a")).id = PaymentId("b")  # type: ignore[misc] # on purpose


def test_an_update_needs_no_credit_id() -> None:
    """Only a credit looks for an earlier one."""
    assert UpdatePayment(PaymentId("a"), crediting("wire-1", 1)).credit_id is None


def defined() -> Iterator[type[Effect[object]]]:
    """Every effect that the module defines."""
    for value in vars(effects).values():
        if isinstance(value, type) and issubclass(value, Effect) and value is not Effect:
            yield value


def test_every_effect_has_a_port() -> None:
    """The drivers know where to take each question, and know no others."""
    assert set(defined()) == set(_ROUTES)
