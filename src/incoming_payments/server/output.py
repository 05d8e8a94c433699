"""The output and the log of `serve`.

If a line cannot be written, for example because the disk is full, the service drops the line and continues.
"""

import atexit
import json
import logging
import os
import re
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Literal, TextIO, get_args

from incoming_payments.server.log_filter import LineLimitFilter

LogFormat = Literal["text", "json"]
LOG_FORMATS: Final[tuple[str, ...]] = get_args(LogFormat)
_PASSWORD: Final = re.compile(r"(?i)(postgres[^\s:]*:/{1,2}[^\s/:@]*:)\S*(?=@)|(\bpassword=)\S+")


def say(text: str, stream: TextIO) -> None:
    """Write lines to standard output or standard error, and ignore a failure."""
    with suppress(OSError):
        print(text, file=stream, flush=True)


def without_password(text: str) -> str:
    """Return `text`, in which the passwords of connection strings of PostgreSQL are hidden.

    Messages quote arguments, and a user may pass a connection string where a path belongs. A path then has one slash in
    place of two.
    """
    return _PASSWORD.sub(r"\1\2…", text)


def log_to_stderr(form: LogFormat) -> None:
    """Write the log of this process and of its workers to standard error, in the form `form`."""
    handler = _Handler()
    handler.addFilter(LineLimitFilter())
    text = "%(asctime)s %(levelname)s %(name)s %(event)s: %(message)s"
    lines = logging.Formatter(text, defaults={"event": "-"})  # log lines of uvicorn have no event
    handler.setFormatter(_JsonFormatter() if form == "json" else lines)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    atexit.register(_discard_unwritten)


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of `logging`
        """Drop a line that could not be written, without a traceback, which could not be written either."""
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object on one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "process": record.process,
            "logger": record.name,
            "event": getattr(record, "event", None),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _discard_unwritten() -> None:
    """Discard output that was not written.

    Python would otherwise try again to write the output at exit, and end with status 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:  # a stream is `None` if it was closed when the process started
                stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
