"""Compare the records of the clients with the database, by plain `sqlite3` and no code of the library.

python -m campaigns.crash.check DATABASE RECORD...        with PYTHONPATH=tests
"""

import base64
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from attrs import asdict, evolve, field, frozen

from campaigns.crash.records import (
    CALL,
    COMPLETE,
    CREATE,
    LIST,
    NO_ANSWER,
    ORDER,
    PACKET,
    RETRIED,
    UNKNOWN,
    SentRequest,
    entries_in,
)

Row = Mapping[str, Any]
Violation = tuple[str, str]  # the broken promise, and the detail

_TABLES: Final = (
    "SELECT * FROM payments LEFT JOIN metadata ON number = metadata_number",
    "SELECT * FROM credits",
    "SELECT * FROM events ORDER BY version",
)
_DONE: Final = frozenset({"fulfilled", "credited"})


@frozen
class Figures:
    """How much there was to check."""

    packets: int  # each counted once, however often it was sent
    fulfilled: int
    repeated: int  # times that a packet had no answer or a temporary one, and was sent again
    fulfilled_late: int  # packets that were not fulfilled at the first attempt
    calls: int  # of `receive`, by core banking
    calls_credited: int
    creates: int  # with an answer
    orders_repeated: int  # times that a create with an idempotency key had no answer, and was sent again
    payments: int  # in the file
    completed: int
    closed: int  # of them by their client, before they were full
    credits: int


@frozen
class Report:
    """The result of a check."""

    figures: Figures
    violations: Sequence[Violation]

    @property
    def kinds(self) -> set[str]:
        """Return the names of the broken promises."""
        return {kind for kind, _ in self.violations}


@frozen
class Records:
    """The records of all clients together."""

    requests: Mapping[str, SentRequest]
    answers: Mapping[str, Sequence[str]]  # in order
    created: Sequence[str]  # the payments in the answers to create requests
    money: Mapping[str, Mapping[str, SentRequest]]  # the packets and calls, by payment and credit id
    closing: frozenset[str]  # the payments with a complete request
    wrong_lists: Sequence[str]


@frozen
class Payment:
    """One payment in the database."""

    row: Row
    credits: Mapping[str, Row]
    events: Sequence[Row]
    records: Records = field(repr=False)

    @property
    def limit(self) -> int | None:
        """Return the value of `incomingAmount`."""
        return None if self.row["incoming_amount"] is None else int(self.row["incoming_amount"])

    @property
    def total(self) -> int:
        """Return the sum of the credits."""
        return sum(int(credit["amount"]) for credit in self.credits.values())


Tables = tuple[Sequence[Row], Sequence[Row], Sequence[Row]]  # payments, credits, and events in order


def check(database: Path, paths: Iterable[Path], *, settled: bool = True) -> Report:
    """Compare the records with a SQLite file.

    With `settled`, every request must have its final answer. Without it, the clients may still be running.
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        sound = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        payments, credits, events = (connection.execute(query).fetchall() for query in _TABLES)
    report = check_tables((payments, credits, events), paths, settled=settled)
    return evolve(
        report, violations=[*(("the file is sound", line) for line in sound if line != "ok"), *report.violations]
    )


def check_tables(tables: Tables, paths: Iterable[Path], *, settled: bool = True) -> Report:
    """Compare the records with the tables of any database."""
    records = read_records(paths)
    payments, credits, events = tables
    credits_of, events_of = defaultdict[str, dict[str, Row]](dict), defaultdict[str, list[Row]](list)
    for credit in credits:
        credits_of[credit["payment_id"]][credit["credit_id"]] = credit
    for event in events:
        events_of[event["payment_id"]].append(event)
    found = {
        row["id"]: Payment(row, credits_of.pop(row["id"], {}), events_of.pop(row["id"], []), records)
        for row in payments
    }
    violations: list[Violation] = [("no credit without its payment", id) for id in {*credits_of, *events_of}]
    violations += _check_answers(records, found)
    violations += _check_closing(records, found)
    if settled:
        violations += [("every request is settled", key) for key in records.requests if not _final_answer(records, key)]
    for payment in found.values():
        for rule in RULES:
            violations += rule(payment)
    return Report(_figures(records, found), violations)


def read_records(paths: Iterable[Path]) -> Records:
    """Read the records of all clients."""
    requests: dict[str, SentRequest] = {}
    answers = defaultdict[str, list[str]](list)
    created: list[str] = []
    wrong_lists: list[str] = []
    for path in paths:
        for entry in entries_in(path):
            if isinstance(entry, SentRequest):
                requests[entry.key] = entry
                continue
            if entry.key == LIST:
                wrong_lists.append(str(entry.details))
                continue
            answers[entry.key].append(entry.answer)
            if entry.answer == "created":
                created.append(entry.details["payment"])
    money = defaultdict[str, dict[str, SentRequest]](dict)
    for one in requests.values():
        if one.kind in {PACKET, CALL}:
            money[one.payment][credit_id_of(one)] = one
    closing = frozenset(one.payment for one in requests.values() if one.kind == COMPLETE)
    return Records(requests, answers, created, money, closing, wrong_lists)


def credit_id_of(request: SentRequest) -> str:
    """Return the credit id that the money of `request` must have in the database."""
    if request.kind == CALL:
        return request.key
    return f"stream:{request.sequence:016x}:{base64.b64encode(bytes.fromhex(request.key)).decode()}"


def _final_answer(records: Records, key: str) -> str | None:
    """Return the final answer, or None if there is none."""
    return next((answer for answer in reversed(records.answers.get(key, ())) if answer not in RETRIED), None)


def _check_answers(records: Records, payments: Mapping[str, Payment]) -> Iterator[Violation]:
    """Compare the answers with the database."""
    for id in records.created:
        if id not in payments:
            yield "an answered payment exists", id
    yield from (("a list has every payment in order", detail) for detail in records.wrong_lists)
    orders = Counter(payment.row["text"] for payment in payments.values() if payment.row["text"] is not None)
    yield from (("an order has one payment", f"{order}: {count}") for order, count in orders.items() if count > 1)
    attempts = sum(
        1 + (sum(answer in UNKNOWN for answer in records.answers.get(key, ())) if one.kind == CREATE else 0)
        for key, one in records.requests.items()
        if one.kind in {CREATE, ORDER}
    )
    if len(payments) > attempts:
        yield "no payment without its request", f"{len(payments)} payments, {attempts} attempts"
    for id, request in ((id, request) for one in records.money.values() for id, request in one.items()):
        answer = _final_answer(records, request.key)
        credited = request.payment in payments and id in payments[request.payment].credits
        if answer in _DONE and not credited:
            yield "fulfilled money is credited", f"{request.key} of {request.payment}"
        if answer is not None and answer not in _DONE and credited:
            yield "refused money is not credited", f"{request.key} of {request.payment}: {answer}"
        if set(records.answers.get(request.key, ())) - RETRIED - {answer}:
            yield "an answer stays the same", f"{request.key}: {records.answers[request.key]}"


def _check_closing(records: Records, payments: Mapping[str, Payment]) -> Iterator[Violation]:
    """Compare the answers to complete requests with the database."""
    for request in (one for one in records.requests.values() if one.kind == COMPLETE):
        payment, answer = payments.get(request.payment), _final_answer(records, request.key)
        closed = payment is not None and any(event["kind"] == "completed" for event in payment.events)
        if answer == "completed" and not closed:
            yield "a completed payment stays completed", request.payment
        if answer == "payment_expired" and closed:
            yield "an expired payment is not completed", request.payment


# --- the rules about each payment --------------------------------------------------------------------


def each_credit_has_its_request(payment: Payment) -> Iterator[Violation]:
    """Each credit has its packet or call, and the amount of that."""
    wanted = payment.records.money.get(payment.row["id"], {})
    for id, credit in payment.credits.items():
        if id not in wanted:
            yield "no credit without its packet", f"{id} of {payment.row['id']}"
        elif wanted[id].amount != int(credit["amount"]):
            yield "a credit has the amount that was sent", f"{id}: {credit['amount']} for {wanted[id].amount}"


def the_total_is_the_sum(payment: Payment) -> Iterator[Violation]:
    """`receivedAmount` is the sum of the credits, also after each credit in the order of the events."""
    if int(payment.row["received_amount"]) != payment.total:
        yield "the total is the sum of the credits", f"{payment.row['id']}: {payment.row['received_amount']}"
    total = 0
    for event in payment.events:
        credit = payment.credits.get(event["credit_id"]) if event["kind"] == "credited" else None
        total += int(credit["amount"]) if credit else 0
        if int(event["received_amount"]) != total or (credit and int(credit["received_amount"]) != total):
            yield "each event has the total", f"{payment.row['id']}: event {event['version']}, not {total}"


def the_events_are_complete(payment: Payment) -> Iterator[Violation]:
    """There is one event for the creation, for each credit and for completion, numbered without gaps."""
    versions = [event["version"] for event in payment.events]
    if versions != list(range(1, payment.row["version"] + 1)):
        yield "events have no gaps", f"{payment.row['id']}: {versions}, version {payment.row['version']}"
    kinds = [event["kind"] for event in payment.events]
    if kinds[:1] != ["created"] or kinds.count("created") > 1:
        yield "one event for the creation", f"{payment.row['id']}: {kinds}"
    credited = Counter(event["credit_id"] for event in payment.events if event["kind"] == "credited")
    if credited != Counter(payment.credits.keys()):
        yield "one event for each credit", f"{payment.row['id']}: {set(credited) ^ set(payment.credits)}"


def a_payment_completes_when_full(payment: Payment) -> Iterator[Violation]:
    """A payment completes once, as its last event: when one credit fills it, or when its client completes it."""
    full = payment.limit is not None and payment.total >= payment.limit
    completed = [event["version"] for event in payment.events if event["kind"] == "completed"]
    completing = [credit for credit in payment.credits.values() if credit["completes"]]
    closed = payment.row["closed_at"] is not None
    if closed and payment.row["id"] not in payment.records.closing:
        yield "not completed without a request", payment.row["id"]
    if (completed and not (full or closed)) or (completing and not full):
        yield "not completed early", f"{payment.row['id']}: {payment.total} of {payment.limit}"
    if full and not (completed and completing):
        yield "completed when full", f"{payment.row['id']}: {payment.total} of {payment.limit}"
    if len(completed) > 1 or len(completing) > 1:
        yield "completed once", f"{payment.row['id']}: events {completed}"
    if completed and completed[-1] != payment.events[-1]["version"]:
        yield "nothing after completion", f"{payment.row['id']}: event {completed[-1]}"


def no_packet_exceeds_the_tolerance(payment: Payment) -> Iterator[Violation]:
    """A packet may pass `incomingAmount` by the larger of one unit and 1 %. A full payment accepts nothing."""
    if payment.limit is None:
        return
    for id, credit in payment.credits.items():
        total = int(credit["received_amount"])
        if id.startswith("stream:") and total > payment.limit + max(1, payment.limit // 100):
            yield "no packet exceeds the tolerance", f"{id} of {payment.row['id']}: {total} of {payment.limit}"
        if total - int(credit["amount"]) >= payment.limit:
            yield "nothing after completion", f"{id} of {payment.row['id']}"


def nothing_after_expiry(payment: Payment) -> Iterator[Violation]:
    """An expired payment accepts nothing."""
    for id, credit in payment.credits.items():
        if payment.row["expires_at"] is not None and credit["at"] > payment.row["expires_at"]:
            yield "nothing after expiry", f"{id} of {payment.row['id']}"


RULES: Final = (
    each_credit_has_its_request,
    the_total_is_the_sum,
    the_events_are_complete,
    a_payment_completes_when_full,
    no_packet_exceeds_the_tolerance,
    nothing_after_expiry,
)


def _figures(records: Records, payments: Mapping[str, Payment]) -> Figures:
    packets = [request for request in records.requests.values() if request.kind == PACKET]
    calls = [request for request in records.requests.values() if request.kind == CALL]
    fulfilled = [
        records.answers[request.key] for request in packets if _final_answer(records, request.key) == "fulfilled"
    ]
    return Figures(
        packets=len(packets),
        fulfilled=len(fulfilled),
        repeated=sum(answer in RETRIED for request in packets for answer in records.answers.get(request.key, ())),
        fulfilled_late=sum(answer[0] in RETRIED for answer in fulfilled),
        calls=len(calls),
        calls_credited=sum(_final_answer(records, request.key) == "credited" for request in calls),
        creates=len(records.created),
        orders_repeated=sum(
            records.answers.get(key, []).count(NO_ANSWER) for key, one in records.requests.items() if one.kind == ORDER
        ),
        payments=len(payments),
        completed=sum(any(event["kind"] == "completed" for event in one.events) for one in payments.values()),
        closed=sum(one.row["closed_at"] is not None for one in payments.values()),
        credits=sum(len(payment.credits) for payment in payments.values()),
    )


def main(database: str, *records: str) -> int:
    """Check, and print the report."""
    report = check(Path(database), map(Path, records))
    sys.stdout.write(f"{asdict(report.figures)}\n")
    sys.stdout.writelines(f"broken: {kind}: {detail}\n" for kind, detail in report.violations)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
