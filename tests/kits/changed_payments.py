"""Payments that differ from a given one in some members."""

from typing import Any

from attrs import evolve, fields

from incoming_payments.domain.payment import IncomingPayment, Terms


def changed(payment: IncomingPayment, **members: Any) -> IncomingPayment:
    """Return `payment` with `members` instead of its own members, in its terms or its progress."""
    names = {attribute.name for attribute in fields(Terms)}
    terms = {name: value for name, value in members.items() if name in names}
    progress = {name: value for name, value in members.items() if name not in names}
    return IncomingPayment(evolve(payment.terms, **terms), evolve(payment.progress, **progress))
