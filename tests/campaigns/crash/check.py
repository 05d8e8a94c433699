"""Are the books of the clients and the database file of one mind? Read with plain `sqlite3`, and nothing of ours.

python tests/crash/check.py DATABASE BOOK...
"""

import base64
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from attrs import asdict, field, frozen

from campaigns.crash.books import AGAIN, CALL, CREATE, PACKET, UNHEARD, Asked, notes_in

Row = Mapping[str, Any]
Violation = tuple[str, str]  # which promise is broken, and by what

_TABLES: Final = ("SELECT * FROM payments", "SELECT * FROM credits", "SELECT * FROM events ORDER BY version")
_DONE: Final = frozenset({"fulfilled", "booked"})


@frozen
class Figures:
    """How much there was to be checked."""

    packets: int  # different ones
    fulfilled: int
    repeated: int  # times that a packet was sent again, since no answer came or a temporary one
    fulfilled_late: int  # packets that were fulfilled only when they were sent again
    calls: int  # of `receive`, by core banking
    booked: int
    creates: int  # that were answered
    payments: int  # in the file
    completed: int
    credits: int


@frozen
class Report:
    """What came out."""

    figures: Figures
    violations: Sequence[Violation]

    @property
    def kinds(self) -> set[str]:
        """Which promises are broken."""
        return {kind for kind, _ in self.violations}


@frozen
class Told:
    """All that the clients have written down."""

    asked: Mapping[str, Asked]
    answers: Mapping[str, Sequence[str]]  # in order
    created: Sequence[str]  # payments that were answered to a create request
    money: Mapping[str, Mapping[str, Asked]]  # the packets and calls, by payment and credit id


@frozen
class Payment:
    """What the file says of one payment."""

    row: Row
    credits: Mapping[str, Row]
    events: Sequence[Row]
    told: Told = field(repr=False)

    @property
    def limit(self) -> int | None:
        """The `incomingAmount`."""
        return None if self.row["incoming_amount"] is None else int(self.row["incoming_amount"])

    @property
    def total(self) -> int:
        """The sum of the credits."""
        return sum(int(credit["amount"]) for credit in self.credits.values())


def check(database: Path, books: Iterable[Path], *, settled: bool = True) -> Report:
    """Compare. With `settled` every request has to have its final answer; without, the clients are still at it."""
    told = read_books(books)
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        sound = [row[0] for row in connection.execute("PRAGMA integrity_check")]
        payments, credits, events = (connection.execute(query).fetchall() for query in _TABLES)
    credits_of, events_of = defaultdict[str, dict[str, Row]](dict), defaultdict[str, list[Row]](list)
    for credit in credits:
        credits_of[credit["payment_id"]][credit["credit_id"]] = credit
    for event in events:
        events_of[event["payment_id"]].append(event)
    found = {
        row["id"]: Payment(row, credits_of.pop(row["id"], {}), events_of.pop(row["id"], []), told) for row in payments
    }
    violations: list[Violation] = [("the file is sound", line) for line in sound if line != "ok"]
    violations += [("no credit without its payment", id) for id in {*credits_of, *events_of}]
    violations += _about_answers(told, found)
    if settled:
        violations += [("every request is settled", key) for key in told.asked if not _finally(told, key)]
    for payment in found.values():
        for rule in RULES:
            violations += rule(payment)
    return Report(_figures(told, found), violations)


def read_books(paths: Iterable[Path]) -> Told:
    """What all books say together."""
    asked: dict[str, Asked] = {}
    answers = defaultdict[str, list[str]](list)
    created: list[str] = []
    for path in paths:
        for note in notes_in(path):
            if isinstance(note, Asked):
                asked[note.key] = note
                continue
            answers[note.key].append(note.said)
            if note.said == "created":
                created.append(note.details["payment"])
    money = defaultdict[str, dict[str, Asked]](dict)
    for one in asked.values():
        if one.kind in {PACKET, CALL}:
            money[one.payment][credit_id_of(one)] = one
    return Told(asked, answers, created, money)


def credit_id_of(asked: Asked) -> str:
    """Under which id the money that is asked to be taken has to be in the file."""
    if asked.kind == CALL:
        return asked.key
    return f"stream:{asked.sequence:016x}:{base64.b64encode(bytes.fromhex(asked.key)).decode()}"


def _finally(told: Told, key: str) -> str | None:
    """The answer that is final; `None` without."""
    return next((said for said in reversed(told.answers.get(key, ())) if said not in AGAIN), None)


def _about_answers(told: Told, payments: Mapping[str, Payment]) -> Iterator[Violation]:
    """What was answered is so."""
    for id in told.created:
        if id not in payments:
            yield "a payment that was answered is there", id
    attempts = sum(
        1 + told.answers.get(key, []).count(UNHEARD) for key, one in told.asked.items() if one.kind == CREATE
    )
    if len(payments) > attempts:
        yield "no payment that nobody asked for", f"{len(payments)} payments, {attempts} attempts"
    for id, asked in ((id, asked) for one in told.money.values() for id, asked in one.items()):
        said = _finally(told, asked.key)
        credited = asked.payment in payments and id in payments[asked.payment].credits
        if said in _DONE and not credited:
            yield "what was fulfilled is credited", f"{asked.key} of {asked.payment}"
        if said is not None and said not in _DONE and credited:
            yield "what was refused is not credited", f"{asked.key} of {asked.payment}: {said}"
        if set(told.answers.get(asked.key, ())) - AGAIN - {said}:
            yield "an answer stays the same", f"{asked.key}: {told.answers[asked.key]}"


# --- the rules about each payment --------------------------------------------------------------------


def each_credit_was_asked_for(payment: Payment) -> Iterator[Violation]:
    """No credit is there without its packet or call, nor with another amount."""
    wanted = payment.told.money.get(payment.row["id"], {})
    for id, credit in payment.credits.items():
        if id not in wanted:
            yield "no credit without its packet", f"{id} of {payment.row['id']}"
        elif wanted[id].amount != int(credit["amount"]):
            yield "a credit is for what was sent", f"{id}: {credit['amount']} for {wanted[id].amount}"


def the_total_is_the_sum(payment: Payment) -> Iterator[Violation]:
    """`receivedAmount` equals the sum of credits; also after each of them, in the order of the events."""
    if int(payment.row["received_amount"]) != payment.total:
        yield "the total is the sum of the credits", f"{payment.row['id']}: {payment.row['received_amount']}"
    total = 0
    for event in payment.events:
        credit = payment.credits.get(event["credit_id"]) if event["kind"] == "credited" else None
        total += int(credit["amount"]) if credit else 0
        if int(event["received_amount"]) != total or (credit and int(credit["received_amount"]) != total):
            yield "each event tells the total", f"{payment.row['id']}: event {event['version']}, not {total}"


def the_events_are_whole(payment: Payment) -> Iterator[Violation]:
    """One for the creation, one for each credit, one for completion: numbered without gaps."""
    versions = [event["version"] for event in payment.events]
    if versions != list(range(1, payment.row["version"] + 1)):
        yield "events have no gaps", f"{payment.row['id']}: {versions}, version {payment.row['version']}"
    kinds = [event["kind"] for event in payment.events]
    if kinds[:1] != ["created"] or kinds.count("created") > 1:
        yield "one event for the creation", f"{payment.row['id']}: {kinds}"
    told = Counter(event["credit_id"] for event in payment.events if event["kind"] == "credited")
    if told != Counter(payment.credits.keys()):
        yield "one event for each credit", f"{payment.row['id']}: {set(told) ^ set(payment.credits)}"


def completion_is_in_time(payment: Payment) -> Iterator[Violation]:
    """Completed exactly when full: one event, the last one, and one credit that says so."""
    full = payment.limit is not None and payment.total >= payment.limit
    completed = [event["version"] for event in payment.events if event["kind"] == "completed"]
    completing = [credit for credit in payment.credits.values() if credit["completes"]]
    if (completed or completing) and not full:
        yield "not completed early", f"{payment.row['id']}: {payment.total} of {payment.limit}"
    if full and not (completed and completing):
        yield "completed when full", f"{payment.row['id']}: {payment.total} of {payment.limit}"
    if len(completed) > 1 or len(completing) > 1:
        yield "completed once", f"{payment.row['id']}: events {completed}"
    if completed and completed[-1] != payment.events[-1]["version"]:
        yield "nothing after completion", f"{payment.row['id']}: event {completed[-1]}"


def no_more_than_is_taken(payment: Payment) -> Iterator[Violation]:
    """A packet may pass `incomingAmount` by the larger of a unit and 1 %; nothing is taken by a full payment."""
    if payment.limit is None:
        return
    for id, credit in payment.credits.items():
        total = int(credit["received_amount"])
        if id.startswith("stream:") and total > payment.limit + max(1, payment.limit // 100):
            yield "no packet brings too much", f"{id} of {payment.row['id']}: {total} of {payment.limit}"
        if total - int(credit["amount"]) >= payment.limit:
            yield "nothing after completion", f"{id} of {payment.row['id']}"


def nothing_after_expiry(payment: Payment) -> Iterator[Violation]:
    """An expired payment takes nothing."""
    for id, credit in payment.credits.items():
        if payment.row["expires_at"] is not None and credit["at"] > payment.row["expires_at"]:
            yield "nothing after expiry", f"{id} of {payment.row['id']}"


RULES: Final = (
    each_credit_was_asked_for,
    the_total_is_the_sum,
    the_events_are_whole,
    completion_is_in_time,
    no_more_than_is_taken,
    nothing_after_expiry,
)


def _figures(told: Told, payments: Mapping[str, Payment]) -> Figures:
    packets = [asked for asked in told.asked.values() if asked.kind == PACKET]
    calls = [asked for asked in told.asked.values() if asked.kind == CALL]
    fulfilled = [told.answers[asked.key] for asked in packets if _finally(told, asked.key) == "fulfilled"]
    return Figures(
        packets=len(packets),
        fulfilled=len(fulfilled),
        repeated=sum(said in AGAIN for asked in packets for said in told.answers.get(asked.key, ())),
        fulfilled_late=sum(said[0] in AGAIN for said in fulfilled),
        calls=len(calls),
        booked=sum(_finally(told, asked.key) == "booked" for asked in calls),
        creates=len(told.created),
        payments=len(payments),
        completed=sum(any(event["kind"] == "completed" for event in one.events) for one in payments.values()),
        credits=sum(len(payment.credits) for payment in payments.values()),
    )


def main(database: str, *books: str) -> int:
    """Check and print."""
    report = check(Path(database), map(Path, books))
    sys.stdout.write(f"{asdict(report.figures)}\n")
    sys.stdout.writelines(f"broken: {kind}: {what}\n" for kind, what in report.violations)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
