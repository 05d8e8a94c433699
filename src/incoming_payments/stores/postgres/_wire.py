"""Send statements to PostgreSQL and receive their results, in libpq's pipeline mode.

`Wire.exchange` sends any number of statements as one message, and waits for all of their results. It is a generator for
`Connection.wait` of psycopg, so the same code serves threads and asyncio. The cursors of psycopg can do the same, but
an update then takes more than twice the processor time.

Parameters and results are text, and the server decides the type of each parameter.
"""

import time
from collections.abc import Generator, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from psycopg.adapt import PyFormat, Transformer
from psycopg.generators import send
from psycopg.pq import ConnStatus, ExecStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from incoming_payments.limits import STORE_ANSWER_S_MAX
from incoming_payments.stores.postgres._session import Conversions
from incoming_payments.stores.postgres._steps import Query, Result, Statement

T = TypeVar("T")
Waits = Generator[Wait, Ready | int, T]
AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_TEXT: Final = PyFormat.TEXT
_prepared: WeakKeyDictionary[AnyConnection, set[Statement]] = WeakKeyDictionary()


class Overdue(psycopg.OperationalError):
    """The server has not answered in time, for example because COMMIT waits for a standby that is absent.

    The connection still waits for the answer: cancel the statement, and close the connection.
    """


class Wire:
    """One connection in pipeline mode. Call `close` at the end.

    If `prepares` is true, the server parses each statement only once for each connection.
    """

    def __init__(self, connection: AnyConnection, *, prepares: bool) -> None:
        self._pgconn = connection.pgconn
        self._pgconn.enter_pipeline_mode()
        self._transformer = Transformer(Conversions(connection))
        self._prepares = prepares
        self._prepared = _prepared.setdefault(connection, set())
        self._is_clean = True  # no result is on its way
        self._is_overdue = False

    def exchange(self, queries: Sequence[Query]) -> Waits[list[Result]]:
        """Send `queries`, and return their results.

        Raises the `psycopg.Error` of the first query that fails. The server then skips the queries behind it.
        """
        pgconn = self._pgconn
        self._is_clean = False
        parsed: list[Statement | None] = []  # what each result is about: a statement that is parsed, or a query
        for query in queries:
            self._send(query, parsed)
        pgconn.pipeline_sync()
        deadline_s = time.monotonic() + STORE_ANSWER_S_MAX
        yield from send(pgconn)
        results = yield from self._receive(deadline_s)
        self._is_clean = True
        answers: list[Result] = []
        for statement, result in zip(parsed, results, strict=True):
            if result.status == ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
            if statement is None:
                answers.append(self._read(result))
            else:
                self._prepared.add(statement)
        return answers

    def _send(self, query: Query, parsed: list[Statement | None]) -> None:
        values = self._transformer.dump_sequence(query.values, [_TEXT] * len(query.values))
        if not self._prepares:
            self._pgconn.send_query_params(query.statement.text, values)
        else:
            if query.statement not in self._prepared and query.statement not in parsed:
                self._pgconn.send_prepare(query.statement.name, query.statement.text)
                parsed.append(query.statement)
            self._pgconn.send_query_prepared(query.statement.name, values)
        parsed.append(None)

    def _receive(self, deadline_s: float) -> Waits[list[PGresult]]:
        """Return the results up to the end of the message. Raises `Overdue` after `deadline_s`."""
        pgconn, results = self._pgconn, list[PGresult]()
        while True:
            while pgconn.is_busy():
                if (yield Wait.R):
                    pgconn.consume_input()
                elif time.monotonic() > deadline_s:  # psycopg continues the generator every 0.1 s
                    self._is_overdue = True
                    raise Overdue(f"no answer for {STORE_ANSWER_S_MAX:g} s")
            result = pgconn.get_result()
            if result is None:  # the results of one query end
                if pgconn.status == ConnStatus.BAD:
                    raise psycopg.OperationalError("the connection was lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return results
            else:
                results.append(result)

    def _read(self, result: PGresult) -> Result:
        self._transformer.set_pgresult(result)
        rows = self._transformer.load_rows(0, result.ntuples, tuple)
        return Result(rows, result.command_tuples or 0, (result.command_status or b"").decode())

    def close(self) -> None:
        """End the pipeline mode, unless an answer is overdue. Close the connection if its state is unknown."""
        if self._is_clean:
            self._pgconn.exit_pipeline_mode()
        elif not self._is_overdue:
            self._pgconn.finish()
