"""What uvicorn leaves unbounded: how many connections are open, how long each may dawdle, how far it may run ahead.

And what it leaves open: a connection on which nobody knows where a request ended.

Needs uvicorn, and is imported by `serve` alone.
"""

import asyncio
from typing import ClassVar, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from incoming_payments.limits import BACKLOG_CONNECTIONS_MAX, CONNECTIONS_MAX, PIPELINED_BYTES_MAX, REQUEST_S_MAX

_LENGTHS: Final = {b"content-length", b"transfer-encoding"}


def room() -> tuple[int, int]:
    """How many connections may be open, and how many more may wait, with the file descriptors of this process.

    Half of the descriptors are for connections. As many as wait may be accepted in one turn of the event loop, and
    those that are too many are closed three turns later: a quarter is for them. The last quarter is for the store.
    """
    try:
        import resource
    except ImportError:  # Windows: no such limit
        return CONNECTIONS_MAX, BACKLOG_CONNECTIONS_MAX
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX, BACKLOG_CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, descriptors // 2), min(BACKLOG_CONNECTIONS_MAX, max(1, descriptors // 16))


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 for clients that nobody vouches for: a connection that breaks a bound is cut, without an answer.

    Whenever it is the client's turn, to send the rest of a request or to take an answer, it has `request_s_max`
    seconds; they are counted anew after each answer, and do not run while the application works.
    """

    connections_max: ClassVar[int] = CONNECTIONS_MAX
    request_s_max: ClassVar[float] = REQUEST_S_MAX
    pipelined_bytes_max: ClassVar[int] = PIPELINED_BYTES_MAX
    _deadline: asyncio.TimerHandle | None = None
    _is_idle: bool = False  # after an answer, before the first byte of another request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to count, unless there are too many connections already."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nothing to wait for any more."""
        super().connection_lost(exc)
        self._stop()

    def data_received(self, data: bytes) -> None:
        """Take in more of a request, or of those behind it: the latter up to a bound."""
        if self._is_idle:  # its time begins with its first byte
            self._is_idle = False
            self._stop()
        super().data_received(data)
        # uvicorn reads on after every answer: requests that come faster than answers would pile up without end.
        if not self.transport.is_closing() and len(self.conn.trailing_data[0]) > self.pipelined_bytes_max:
            self.transport.abort()
        self._watch()

    def handle_events(self) -> None:
        """Begin to answer what has arrived. RFC 9112 §6.1: no request follows one that tells its length in two ways.

        A proxy may have gone by the other length: what is left would be another client's request, or be taken for one,
        and from then on each would get the answer to somebody else's.
        """
        super().handle_events()
        if self.cycle is not None and {name for name, _ in self.cycle.scope["headers"]} >= _LENGTHS:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """Wait for the next request, which has all of its time."""
        super().on_response_complete()
        self._is_idle = True
        self._stop()
        self._watch()

    def pause_writing(self) -> None:
        """The client does not take its answers, so that the application waits for it."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """The client has taken enough for the application to go on."""
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        if not self._is_clients_turn():
            self._stop()
        elif self._deadline is None:
            # Not close(), which waits until the client has taken what was written.
            self._deadline = self.loop.call_later(self.request_s_max, self.transport.abort)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _is_clients_turn(self) -> bool:
        cycle = self.cycle
        if cycle is None or self.transport.is_closing() or self.flow.write_paused:
            return True
        return cycle.response_complete or cycle.more_body


def bounded(connections: int) -> type[BoundedProtocol]:
    """The protocol for a server that may have so many connections open at once."""

    class Bounded(BoundedProtocol):
        connections_max = connections

    return Bounded
