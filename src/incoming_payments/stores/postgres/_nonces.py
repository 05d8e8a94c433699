"""The nonces.

The number of nonces, and the latest `until` of the removed ones, are spread over the rows of `nonce_counts`. A call
changes one of these rows, chosen at random, so calls rarely wait for each other. A call does not see the nonces of
other calls in flight, so the number of nonces can exceed the capacity by the number of these calls.

The transaction is READ COMMITTED under every setting: a call that waited for the removal of its key must see the
`swept_until` that was written with the removal.
"""

import random
from datetime import datetime
from typing import Final

from incoming_payments.limits import NONCES_SWEPT_MAX
from incoming_payments.stores._rows import micros, time_of
from incoming_payments.stores.guard import check_nonce_capacity, check_nonce_time
from incoming_payments.stores.postgres._steps import Ending, Operation, Query, Steps, statement

_SLOTS: Final = 32  # the rows of `nonce_counts`
_NEVER: Final = -(2**63)  # `swept_until` before the first removal

_REMOVE_ENDED: Final = statement("DELETE FROM incoming_payments.nonces WHERE key = %s AND until < %s RETURNING until")
_SWEEP: Final = statement(
    "DELETE FROM incoming_payments.nonces WHERE key IN (SELECT key FROM incoming_payments.nonces WHERE until < %s "
    "ORDER BY until LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING until"
)
_INSERT: Final = statement("INSERT INTO incoming_payments.nonces (key, until) VALUES (%s, %s) ON CONFLICT DO NOTHING")
_COUNT: Final = statement("SELECT sum(held), max(swept_until) FROM incoming_payments.nonce_counts")
_ADD: Final = statement(
    "UPDATE incoming_payments.nonce_counts SET held = held + %s, swept_until = greatest(swept_until, %s) "
    "WHERE slot = %s"
)


def use_nonce(key: str, until: datetime, now: datetime, capacity: int) -> Operation[bool]:
    """Write the key, and return whether it is used for the first time.

    Raises `ClockBehind`, and `StoreUnavailable` when the table is full.
    """
    return lambda: _use(bytes.fromhex(key), until, now, capacity)


def _use(key: bytes, until: datetime, now: datetime, capacity: int) -> Steps[bool]:
    end, at = micros(until), micros(now)
    if end < at:
        return Ending([], lambda _: False, writes=False)
    removed, swept, inserted, counts = yield [
        Query(_REMOVE_ENDED, (key, at)),
        Query(_SWEEP, (at, NONCES_SWEPT_MAX)),
        Query(_INSERT, (key, end)),
        Query(_COUNT),
    ]
    ended = [until for (until,) in removed.rows + swept.rows]
    if inserted.changed:
        held, swept_until = counts.rows[0]
        swept_until = max(swept_until, *ended, _NEVER)
        # An earlier call with a later `now` may have removed this key.
        check_nonce_time(until, None if swept_until == _NEVER else time_of(swept_until), now)
        check_nonce_capacity(int(held) - len(ended), capacity)
    if not inserted.changed and not ended:
        return Ending([], lambda _: False, writes=False)
    change = Query(_ADD, (inserted.changed - len(ended), max(ended, default=_NEVER), random.randrange(_SLOTS)))  # noqa: S311
    return Ending([change], lambda _: bool(inserted.changed), writes=True)
