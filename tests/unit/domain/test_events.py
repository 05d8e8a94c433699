"""`domain.events`: the events of a payment."""

from typing import Any

import pytest

from incoming_payments.domain.events import Event, EventKind
from incoming_payments.domain.payment import CreditId
from incoming_payments.errors import InvalidValue
from incoming_payments.testing import NOW, a_creation
from kits.frozen_values import assert_frozen


def test_event_kinds_have_stable_names() -> None:
    """Hosts store and send the names of the kinds, so the names never change."""
    assert [kind.value for kind in EventKind] == ["created", "credited", "completed", "expired"]
    assert f"{EventKind.CREDITED}" == "credited"


def test_credit_id_and_peer_are_optional() -> None:
    """An event has no credit id and no peer unless they are given."""
    payment = a_creation().answer
    created = Event(payment.id, 1, EventKind.CREATED, NOW, payment.received)
    credited = Event(payment.id, 2, EventKind.CREDITED, NOW, payment.received, CreditId("wire-1"))
    packet = Event(payment.id, 3, EventKind.CREDITED, NOW, payment.received, CreditId("stream:1"), "g.bank.connector")
    assert (created.credit_id, created.peer) == (None, None)
    assert (credited.credit_id, credited.peer) == ("wire-1", None)
    assert (packet.credit_id, packet.peer) == ("stream:1", "g.bank.connector")


@pytest.mark.parametrize(
    ("members", "member", "message"),
    [
        ({"version": 0}, "version", "version must be an integer from 1"),
        ({"version": True}, "version", "version must be an integer from 1"),
        ({"kind": "bogus"}, "kind", "kind must be one of created, credited, completed, expired"),
        ({"at": None}, "now", "a time must be a datetime in UTC"),
        ({"peer": ""}, "peer", "peer must be an ILP address"),
        ({"peer": "connector"}, "peer", "peer must be an ILP address"),
        ({"peer": b"g.bank"}, "peer", "peer must be an ILP address"),
    ],
    ids=str,
)
def test_invalid_event_is_refused(members: dict[str, Any], member: str, message: str) -> None:
    """An invalid version, kind, time or peer is refused, and the error names the member."""
    payment = a_creation().answer
    given: dict[str, Any] = {"payment_id": payment.id, "version": 1, "kind": "created", "at": NOW}
    with pytest.raises(InvalidValue) as caught:
        Event(**{**given, "received": payment.received, **members})
    assert str(caught.value).startswith(message)
    assert caught.value.details == {"member": member}


def test_events_are_frozen() -> None:
    """Events never change."""
    assert_frozen(*a_creation().events)
