"""Compare the records of all clients with the database, by plain SQL and no code of the library."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
from attrs import frozen
from psycopg.rows import dict_row

from campaigns.postgres.records import Call, calls_of
from incoming_payments.audit import audit
from kits.linearizability import Operation, Undecided
from kits.payment_model import COMPLETED, Credit, Get, Packet, View, find_payment_violation

Row = Mapping[str, Any]
Span = tuple[float, float]  # two times of the clock of the records
Violation = tuple[str, str]  # the broken promise, and the detail

_PAYMENTS: Final = """
    SELECT id::text, version, received_amount::text, incoming_amount::text, closed_at IS NOT NULL AS is_closed
    FROM incoming_payments.payments
"""
_CREDITS: Final = """
    SELECT payment_id::text, credit_id, amount::text, received_amount::text FROM incoming_payments.credits
"""
_EVENTS: Final = """
    SELECT payment_id::text, version, kind, received_amount::text, credit_id FROM incoming_payments.events
    ORDER BY payment_id, version
"""
_KEYS: Final = "SELECT key, payment_id::text FROM incoming_payments.idempotency_keys"


@frozen
class Report:
    """The result of a check."""

    keys: int
    calls: int
    credits_acknowledged: int  # by calls and packets
    packets_fulfilled: int
    unknown_outcomes: int  # calls that were refused as unavailable, or cut off by the end of their process
    longest_history: int
    reads_ahead: int  # payments of which a client read a credit that the standby did not have, and that was lost
    violations: Sequence[Violation]

    @property
    def kinds(self) -> set[str]:
        """Return the names of the broken promises."""
        return {kind for kind, _ in self.violations}


@frozen
class Payment:
    """A payment in the database."""

    row: Row
    credits: Mapping[str, Row]
    events: Sequence[Row]

    @property
    def view(self) -> View:
        """Return what a client would see."""
        total, limit = int(self.row["received_amount"]), self.row["incoming_amount"]
        return View(total, self.row["is_closed"] or (limit is not None and total >= int(limit)))


@frozen
class Database:
    """The tables."""

    payments: Mapping[str, Payment]
    keys: Mapping[str, str]


def read_database(conninfo: str) -> Database:
    """Read the tables in one snapshot."""
    with psycopg.connect(conninfo, row_factory=dict_row) as connection:
        connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        payments, credits, events, keys = (
            connection.execute(query).fetchall() for query in (_PAYMENTS, _CREDITS, _EVENTS, _KEYS)
        )
    credits_of, events_of = defaultdict[str, dict[str, Row]](dict), defaultdict[str, list[Row]](list)
    for credit in credits:
        credits_of[credit["payment_id"]][credit["credit_id"]] = credit
    for event in events:
        events_of[event["payment_id"]].append(event)
    found = {row["id"]: Payment(row, credits_of[row["id"]], events_of[row["id"]]) for row in payments}
    return Database(found, {row["key"]: row["payment_id"] for row in keys})


def check(conninfo: str, folder: Path, interrupted: Sequence[Span] = ()) -> Report:
    """Compare the records in `folder` with the database. All clients must have ended in good order.

    In the spans `interrupted`, PostgreSQL was told not to wait for the standby. It then shows a credit to readers that
    it has not acknowledged, and a promotion of the standby loses this credit. So a history may be linearizable without
    the reads in these spans only.
    """
    calls, database = calls_of(folder), read_database(conninfo)
    calls_by_key = defaultdict[str, list[Call]](list)
    for call in calls:
        calls_by_key[call.key].append(call)
    violations, reads_ahead = list(_orphans(calls_by_key, database)), 0
    for key, about in calls_by_key.items():
        payment = database.payments.get(database.keys.get(key, ""))
        if payment is None:
            violations += [("a created payment is stored", key)] if any(call.is_settled for call in about) else []
            continue
        violations += _check_tables(key, payment)
        violations += _check_books(key, payment, about)
        if found := _check_history(key, payment, about):
            if _check_history(key, payment, [call for call in about if not _is_read_in(interrupted, call)]):
                violations.append(found)
            else:
                reads_ahead += 1
    acknowledged = {call.action for call in calls if isinstance(call.action, Credit) and isinstance(call.outcome, int)}
    return Report(
        keys=len(calls_by_key),
        calls=len(calls),
        credits_acknowledged=len(acknowledged),
        packets_fulfilled=sum(isinstance(action, Packet) for action in acknowledged),
        unknown_outcomes=sum(not call.is_settled for call in calls),
        longest_history=max(map(len, calls_by_key.values()), default=0),
        reads_ahead=reads_ahead,
        violations=violations,
    )


def audited(url: str) -> Sequence[Violation]:
    """Return the differences that the audit finds."""
    return [("the books pass the audit", str(difference)) for difference in audit(url).differences]


def _orphans(calls: Mapping[str, Sequence[Call]], database: Database) -> Iterator[Violation]:
    """Yield the payments that no key names, and the keys that no client has sent."""
    for id in sorted(set(database.payments) - set(database.keys.values())):
        yield "a key has one payment", f"payment {id} has no key"
    for key in sorted(set(database.keys) - set(calls)):
        yield "nothing is invented", f"no client sent the key {key}"


def _check_tables(key: str, payment: Payment) -> Iterator[Violation]:
    """Yield where the total, the credits and the events of a payment differ."""
    total = sum(int(credit["amount"]) for credit in payment.credits.values())
    if total != int(payment.row["received_amount"]):
        yield "the total is the sum of the credits", f"{key}: {payment.row['received_amount']}, and {total}"
    if [event["version"] for event in payment.events] != list(range(1, payment.row["version"] + 1)):
        yield "each version has one event", f"{key}: version {payment.row['version']}, {len(payment.events)} events"
    credited = [(event["credit_id"], event["received_amount"]) for event in payment.events if event["credit_id"]]
    stored = {(id, credit["received_amount"]) for id, credit in payment.credits.items()}
    if set(credited) != stored or len(credited) != len(stored):
        yield "each credit has one event", f"{key}: {sorted(set(credited) ^ stored)}"


def _check_books(key: str, payment: Payment, calls: Iterable[Call]) -> Iterator[Violation]:
    """Yield where the clients' books differ from the stored credits."""
    outcomes = defaultdict[Credit, set[Any]](set)
    for call in calls:
        if isinstance(call.action, Credit):
            outcomes[call.action] |= {call.outcome} if call.is_settled else set()
    for action, found in outcomes.items():
        stored = payment.credits.get(action.id)
        facts = f"{key}: {action}, answers {sorted(map(str, found))}, stored {stored}"
        if not found:
            yield "every credit is settled", facts
        elif stored is None:
            if found != {COMPLETED}:
                yield "no acknowledged credit is lost", facts
        elif int(stored["amount"]) != action.amount or not _are_totals(action, found, int(stored["received_amount"])):
            yield "a credit has one outcome", facts
    for id in sorted(set(payment.credits) - {action.id for action in outcomes}):
        yield "nothing is invented", f"{key}: no client sent the credit {id}"


def _are_totals(action: Credit, found: set[Any], total: int) -> bool:
    """Return whether the answers fit the `total` just after the credit. The repetition of a packet gets a later one."""
    if isinstance(action, Packet):
        return all(isinstance(answer, int) and answer >= total for answer in found)
    return found == {total}


def _check_history(key: str, payment: Payment, calls: Sequence[Call]) -> Violation | None:
    """Return a violation if no order of the calls explains all answers and the end."""
    end = max((call.returned or call.invoked) for call in calls) + 1
    last = Operation("database", Get(payment.row["id"]), end, end, payment.view)
    try:
        violation = find_payment_violation([*(call.operation for call in calls), last])
    except Undecided as error:
        return "the history could be checked", f"{key}: {error}"
    return None if violation is None else ("the history is linearizable", f"{key}: {violation}")


def _is_read_in(spans: Sequence[Span], call: Call) -> bool:
    return isinstance(call.action, Get) and any(begin <= call.invoked <= end for begin, end in spans)
