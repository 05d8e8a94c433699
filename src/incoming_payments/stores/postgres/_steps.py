"""The operations of the store as data: statements, batches of statements, and generators that yield them.

An operation is a function that returns a generator. The generator yields batches of queries, gets their results, and
returns an `Ending`: the last queries of the transaction, which travel together with COMMIT. It never waits, and knows
no connection, so `_drivers` runs the same operations for threads and for asyncio. A driver may run an operation again,
so an operation changes nothing outside the database before its `Ending` gives the answer.

Every statement that the store can send is a constant of a module, made by `statement`, so `STATEMENTS` lists them all.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from attrs import field, frozen

from incoming_payments.errors import IncomingPaymentsError
from incoming_payments.stores._rows import Row

T = TypeVar("T")


@frozen(eq=False)
class Statement:
    """An SQL statement with the parameters `$1`, `$2` and so on.

    `name` is the name under which PostgreSQL keeps the prepared statement. The name depends on the text alone: a pooler
    that confuses the statements of two programs cannot run the wrong one.
    """

    text: bytes
    name: bytes = field(init=False)

    @name.default
    def _digest(self) -> bytes:
        return b"incoming_payments_" + hashlib.sha256(self.text).hexdigest()[:16].encode()


STATEMENTS: Final[list[Statement]] = []


def statement(text: str) -> Statement:
    """Return a statement, and add it to `STATEMENTS`. Each `%s` in `text` is a parameter.

    Call this only at the top of a module.
    """
    first, *others = text.split("%s")
    numbered = first + "".join(f"${number}{part}" for number, part in enumerate(others, start=1))
    STATEMENTS.append(Statement(numbered.encode()))
    return STATEMENTS[-1]


class Query(NamedTuple):
    """A statement with the values of its parameters."""

    statement: Statement
    values: Sequence[object] = ()


def array(values: Iterable[object]) -> str:
    """Return the text of an array that has the texts of `values`, and NULL for `None`.

    psycopg can make this text from a list, but then this step costs a tenth of the processor time of an update.
    """
    return "{" + ",".join("NULL" if value is None else _quoted(str(value)) for value in values) + "}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Result(NamedTuple):
    """The rows that a query returned, the number of rows that it returned or changed, and its status."""

    rows: list[Row]
    changed: int
    status: str


@frozen
class Ending(Generic[T]):
    """The last queries of a transaction, and the function that returns the answer from their results.

    `writes` is true if the transaction changes data. If the connection breaks during COMMIT, a transaction that writes
    must not be repeated, because its outcome is unknown. `refusals` maps the name of a constraint to the error to
    raise when a row violates that constraint.
    """

    queries: Sequence[Query]
    answer: Callable[[list[Result]], T]
    writes: bool
    refusals: Mapping[str, IncomingPaymentsError] = {}


Steps = Generator[Sequence[Query], list[Result], Ending[T]]
Operation = Callable[[], Steps[T]]


def at_once(ending: Ending[T]) -> Steps[T]:
    """Return the steps of an operation that has only an `ending`."""
    yield from ()
    return ending


def advance(steps: Steps[T], results: list[Result] | None = None) -> Sequence[Query] | Ending[T]:
    """Return what `steps` yields or returns after `results`, which are `None` at first. Raises its exceptions."""
    try:
        return next(steps) if results is None else steps.send(results)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return] # a generator of `Steps` returns an `Ending`
