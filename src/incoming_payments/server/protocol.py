"""The HTTP protocol of `serve`: that of uvicorn on httptools, with limits. This module needs the extra `serve`."""

import logging

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from incoming_payments.limits import (
    BODY_PARTS_MAX,
    FIELDS_READ_MAX,
    HEADER_SECTION_BYTES_MAX,
    HEADERS_MAX,
    PIPELINED_REQUESTS_MAX,
)
from incoming_payments.observers.log import LogEvent, log_event

logger = logging.getLogger(__name__)


# uvicorn's h11 protocol takes some 100 us more for each packet, which costs a quarter of the packets per second
# (nox -s bench -- packets).
class Protocol(HttpToolsProtocol):
    """Limit the data that the application does not see, and close connections that cannot carry another request."""

    # The number of bytes since the last end of a header section or of a part of a body. They are header fields, trailer
    # fields or chunk extensions. uvicorn keeps fields in memory without a limit.
    _unfinished_bytes = 0
    _fields = 0  # header and trailer fields of the current request
    _body_parts = 0  # calls of `on_body` for the current request

    def data_received(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > HEADER_SECTION_BYTES_MAX:
            text = "a connection was closed, because its request headers were incomplete after %d bytes"
            log_event(logger, logging.WARNING, LogEvent.HEADERS_WITHOUT_END, text, HEADER_SECTION_BYTES_MAX)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unfinished_bytes = self._fields = self._body_parts = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > FIELDS_READ_MAX:
            raise ValueError("too many fields")  # uvicorn answers 400 and closes the connection
        if len(self.headers) <= HEADERS_MAX:  # one field above the limit is enough for a refusal
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._unfinished_bytes = 0
        # `AsgiApplication` closes the connection after `Upgrade` or an unusual `Transfer-Encoding`, but does not see
        # these fields behind too many other fields. CONNECT also counts as an upgrade.
        self.cycle.keep_alive &= len(self.headers) <= HEADERS_MAX and not self.parser.should_upgrade()
        # RFC 9110 §6.5.1: a trailer field is not a header field, but uvicorn 0.54 adds it to this list.
        self.headers = []
        if len(self.pipeline) > PIPELINED_REQUESTS_MAX:
            self.pipeline.clear()  # the data that is being parsed may contain more requests
            if not self.transport.is_closing():
                text = "a connection was closed, because more than %d of its requests waited for the first response"
                log_event(logger, logging.WARNING, LogEvent.PIPELINE_TOO_LONG, text, PIPELINED_REQUESTS_MAX)
                self.transport.abort()  # `close` would wait for the client to read the responses

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._unfinished_bytes = 0
        self._body_parts += 1
        if self._body_parts > BODY_PARTS_MAX:
            raise ValueError("too many parts")  # likewise
