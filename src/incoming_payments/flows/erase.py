"""Erase the metadata of old payments, in batches."""

from datetime import datetime, timedelta

from incoming_payments.errors import InvalidValue
from incoming_payments.flows.machinery.effects import EraseEnded, Flow, flow
from incoming_payments.limits import KEPT_S_MAX


@flow
def erase_old_metadata(now: datetime, *, kept_s: int) -> Flow[bool]:
    """Erase the metadata of a batch of the payments that ended more than `kept_s` seconds before `now`.

    Return whether no such metadata is left. Raises `InvalidValue` unless `kept_s` is an integer from 0 to
    `limits.KEPT_S_MAX`.
    """
    if type(kept_s) is not int or not 0 <= kept_s <= KEPT_S_MAX:
        raise InvalidValue(f"kept_s must be an integer from 0 to {KEPT_S_MAX}", member="kept_s")
    return (yield from EraseEnded(now - timedelta(seconds=kept_s)))
