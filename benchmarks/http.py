"""Measure signed creates, signed gets and public gets over HTTP, with tokens introspected over HTTP for each request.

The benchmark keeps 1, 16 and 64 connections busy. Requests in flight at the same time have different tokens, which the
service introspects for each request, or caches. The service runs as `serve` does, with one worker process for each
processor, and also with one worker. The authorization server is another process. The same run measures uvicorn alone
and, with Node.js and npm, a minimal service in Node. That service has one process, because it keeps payments in memory.
Requests are signed before the clock starts, but client and authorization server share the processors with the service.

The payments are in a SQLite file, or in a PostgreSQL server that the benchmark starts, with real syncs. With
PostgreSQL, the benchmark also measures ILP packets over HTTP, from a Prepare to a durable Fulfill, and compares all
figures with those of a Rafiki backend on PostgreSQL, which were measured once on a similar machine.

    nox -s bench -- http [--database postgres] [--json] [--requests N] [--workers N]
"""  # noqa: A005 - the name that users look for

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...  # a type checker takes this file for the standard `http`


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # libraries import the standard `http`, which has the name of this file
    from _http import main

    main()
else:  # a library imports the standard `http` in another benchmark
    folder = sys.path.pop(0)
    del sys.modules[__name__]
    importlib.import_module(__name__)
    sys.path.insert(0, folder)
