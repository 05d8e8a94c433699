"""Clear the state of clients in the child process of a fork.

A fork copies the connections of the parent, but not its threads. If two processes used one connection, each could get
answers for the other. The child would also wait for ever for a lock, a look-up or a request of a thread that exists
only in the parent.
"""

import os
import weakref
from typing import Any, Final, Protocol


class Client(Protocol):
    """A client of another system."""

    def begin(self) -> None:
        """Drop all connections, caches, locks and work in progress."""


_clients: Final["weakref.WeakSet[Client]"] = weakref.WeakSet()
# The state of the parent's clients. The child neither closes nor frees this state. Closing a client could wait for a
# lock, or disturb the event loop of the parent.
_of_parent: Final[list[dict[str, Any]]] = []


def begin(client: Client) -> None:
    """Call `client.begin`, now and in each child process."""
    client.begin()
    _clients.add(client)


def _after_fork_in_child() -> None:
    for client in list(_clients):
        _of_parent.append(vars(client).copy())
        client.begin()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows does not fork
    os.register_at_fork(after_in_child=_after_fork_in_child)
