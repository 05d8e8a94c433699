"""What uvicorn leaves unbounded: how many connections are open, how long each may dawdle, how far it may run ahead, in
how small pieces it may send, and how much of it is worked on before others have their turn.

And what it leaves open: a connection on which nobody knows where a request ended, or whose request was answered before
it ended.

Needs uvicorn and h11, and is imported by `serve` alone.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from incoming_payments.limits import (
    BACKLOG_CONNECTIONS_MAX,
    BODY_PIECES_MAX,
    CONNECTIONS_MAX,
    DROPPED_BYTES_MAX,
    HEAD_BYTES_MAX,
    HEAD_LINES_MAX,
    READ_BYTES_MAX,
    REQUEST_S_MAX,
)

_LENGTHS: Final = {b"content-length", b"transfer-encoding"}
_CLOSE: Final = (b"connection", b"close")


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


class _Http(h11.Connection):
    """HTTP/1.1 as h11 has it, with so many lines and pieces; an answer before the end of its request is the last."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEAD_BYTES_MAX)
        self._pieces = 0

    @property
    def has_more(self) -> bool:
        """Whether the client may be sending what nobody reads any more, were the connection to end now."""
        return self.their_state in {h11.SEND_BODY, h11.ERROR} or bool(self.trailing_data[0])

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """What has arrived next. Raises `RemoteProtocolError` when it is not HTTP, or has too many lines or pieces."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._pieces = 0
        elif isinstance(event, h11.Data):
            self._pieces += 1
            if self._pieces > BODY_PIECES_MAX:
                raise h11.RemoteProtocolError("the body is in too many pieces", error_status_hint=413)
        elif event is h11.NEED_DATA and self.trailing_data[0].count(b"\n") > HEAD_LINES_MAX:
            # What waits for its end, and has lines, is a head or the fields behind a body.
            raise h11.RemoteProtocolError("there are too many lines", error_status_hint=431)
        return event

    def send(self, event: h11.Event) -> bytes | None:  # type: ignore[override]  # h11 has an overload for each event
        """The bytes of `event`. RFC 9112 §9.6: who is answered before the end of a request is told to end here."""
        if isinstance(event, h11.Response) and self.their_state is h11.SEND_BODY and _CLOSE not in event.headers:
            headers = [*event.headers, _CLOSE]
            event = h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
        return super().send(event)


class _Lingering:
    """A transport that is closed in stages while the client may be sending. RFC 9112 §9.6.

    What comes in after a socket was closed resets the connection, and a reset can take the last answer away from a
    client that has not read it yet. So our half is closed first, and the rest when the client has closed its own.
    """

    def __init__(self, transport: asyncio.Transport, has_more: Callable[[], bool]) -> None:
        self._transport = transport
        self._has_more = has_more
        self._is_half_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether nothing is read any more."""
        return self._is_half_closed or self._transport.is_closing()

    def close(self) -> None:
        """Close our half, or both if the client sends nothing; so does a second call."""
        if self.is_closing() or not self._has_more():
            self._transport.close()
        else:
            self._is_half_closed = True
            try:
                self._transport.write_eof()
            except OSError:  # the client has reset the connection
                self._transport.abort()
            else:
                self._transport.resume_reading()

    def close_at_once(self) -> None:
        """Close both halves, once the client has what was written."""
        self._transport.close()


class BoundedProtocol(H11Protocol, asyncio.BufferedProtocol):
    """HTTP/1.1 for clients that nobody vouches for: a connection that breaks a bound is cut, without an answer.

    Whenever it is the client's turn, to send the rest of a request or to take an answer, it has `request_s_max`
    seconds; they are counted anew after each answer, and do not run while the application works.

    It is a buffered protocol because such a one says how much is read at once. All of that is worked on in one go,
    while others wait; and it is what is held of requests that are sent ahead.
    """

    connections_max: ClassVar[int] = CONNECTIONS_MAX
    request_s_max: ClassVar[float] = REQUEST_S_MAX
    _deadline: asyncio.TimerHandle | None = None
    _is_idle: bool = False  # after an answer, before the first byte of another request
    _dropped: int = 0  # bytes that came after the last answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to count, unless there are too many connections already."""
        self.conn: _Http = _Http()
        self._arrived = bytearray(READ_BYTES_MAX)
        self._lingering = _Lingering(transport, lambda: self.conn.has_more)
        super().connection_made(cast("asyncio.Transport", self._lingering))
        # asyncio does so only for sockets that were made with a protocol number, which those of a listener that was
        # made with socket.create_server are not. Without it each answer, which is written in two, takes 40 ms more.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.connections) > self.connections_max:
            transport.abort()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """There is nothing to wait for any more."""
        super().connection_lost(exc)
        self._stop()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's; uvicorn's own never keeps it
        """The client sends nothing more. It may wait for its answer: then the connection stays until it has that."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        return True

    def shutdown(self) -> None:
        """Stop: whoever has not sent all of a request is not waited for, who waits for an answer is."""
        if self.cycle is None or self.cycle.response_complete:
            self._lingering.close_at_once()
        else:
            self.cycle.keep_alive = False

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - asyncio's word
        """Where to the next bytes go."""
        return self._arrived

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        self.data_received(bytes(memoryview(self._arrived)[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Take in more of a request, or of one behind it: then nothing more is read before the answer."""
        if self.transport.is_closing():
            self._drop(data)
            return
        if self._is_idle:  # its time begins with its first byte
            self._is_idle = False
            self._stop()
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """Begin to answer what has arrived. RFC 9112 §6.1: no request follows one that tells its length in two ways.

        A proxy may have gone by the other length: what is left would be another client's request, or be taken for one,
        and from then on each would get the answer to somebody else's.
        """
        super().handle_events()
        if self.cycle is not None and {name for name, _ in self.cycle.scope["headers"]} >= _LENGTHS:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        """Say that this is not HTTP, unless an answer is under way: then it ends there."""
        if self.cycle is not None and not self.cycle.response_complete:
            # To the application the client is gone: it may not answer a second time.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

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

    def _should_upgrade(self) -> bool:
        """RFC 9110 §7.8: a server may pass over what it does not speak. uvicorn would log two lines each time."""
        return False

    def _drop(self, data: bytes) -> None:
        self._dropped += len(data)
        if self._dropped > DROPPED_BYTES_MAX:
            self.transport.abort()

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
