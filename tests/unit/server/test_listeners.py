"""The sockets of `serve`: one for each process, and the errors when there can be none."""

import errno
import socket
import sys
from typing import Any

import pytest

from incoming_payments.errors import ConfigurationError
from incoming_payments.server.listeners import open_listeners
from kits.processes import free_port


def test_response_does_not_wait_for_an_acknowledgement() -> None:
    """Accepted connections have TCP_NODELAY, because head and body of a response are written separately."""
    with open_listeners("127.0.0.1", 0) as ((listener,),), socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shares connections between sockets")
def test_each_process_gets_connections() -> None:
    """The system gives each socket a part of the connections, and a closed one leaves the port free."""
    port = free_port()
    with open_listeners("127.0.0.1", port, 2) as listeners:
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(40)]
        for (listener,) in listeners:
            listener.settimeout(5)
            listener.accept()[0].close()  # a socket gets none of 40 connections in one of 5 * 10 ** 11 runs
        for client in clients:
            client.close()
    socket.create_server(("127.0.0.1", port)).close()


def test_systems_that_share_no_connections_use_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """There, all processes accept from the same socket."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with open_listeners("127.0.0.1", 0, 3) as listeners:
        assert [own is listeners[0] for own in listeners] == [True] * 3


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("other", [1, 2])
def test_port_in_use_is_refused(count: int, other: int) -> None:
    """A service refuses a port on which another service listens, also when either has several sockets."""
    port = free_port()
    refusal = pytest.raises(ConfigurationError, match=f"listen.port: cannot listen on 127.0.0.1 port {port}: Address")
    with open_listeners("127.0.0.1", port, other), refusal, open_listeners("127.0.0.1", port, count):
        pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", f"{'a' * 64}.example"])
def test_unusable_host_is_refused(host: str) -> None:
    """The error for a host name that is invalid, or does not resolve, contains the name."""
    with pytest.raises(ConfigurationError, match=f"listen.host: cannot listen on {host} port 9002: ") as refused:
        open_listeners(host, 9002).__enter__()
    assert refused.value.details == {"setting": "listen.host"}
    assert refused.value.description.endswith("; give an address of this machine, such as 127.0.0.1")


def test_port_that_needs_privileges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the setting of the port, and the ports that need no privileges."""

    def refuse(*_: object, **__: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(ConfigurationError) as refused:
        open_listeners("127.0.0.1", 80).__enter__()
    how = "give a port above 1023, because lower ports need privileges"
    says = f"listen.port: cannot listen on 127.0.0.1 port 80: Permission denied; {how}"
    assert (refused.value.description, refused.value.details) == (says, {"setting": "listen.port"})


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_serve_on_ipv6() -> None:
    """A host with colons is an IPv6 address."""
    try:
        with open_listeners("::1", free_port()) as ((listener,),):
            assert listener.family == socket.AF_INET6
    except ConfigurationError as refused:
        pytest.skip(f"this machine has no IPv6: {refused.description}")
