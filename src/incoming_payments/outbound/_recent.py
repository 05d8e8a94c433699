"""The memory of a process about tokens: recent introspection answers, and the tokens that were active lately."""

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

from incoming_payments.domain.payment import ClientId

T = TypeVar("T")


class Recent(Generic[T]):
    """A cache of the `size` newest entries. Threads may share a cache."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._entries: dict[Hashable, T] = {}  # the most recent entry is last

    def get(self, key: Hashable) -> T | None:
        """Return the entry of `key`, or `None`."""
        return self._entries.get(key)

    def put(self, key: Hashable, entry: T) -> None:
        """Store the entry as the newest one. A full cache drops the oldest entry."""
        with self._lock:
            self._entries.pop(key, None)
            self._entries[key] = entry
            if len(self._entries) > self._size:
                del self._entries[next(iter(self._entries))]


class ActiveTokens:
    """The digests of the tokens that were active at their last introspection. Threads may share an object.

    The object holds at most `size` tokens. When it is full, it first forgets tokens of clients that have more than
    `of_client`, so that a client with many tokens displaces only its own.
    """

    def __init__(self, size: int, of_client: int) -> None:
        self._size = size
        self._of_client = of_client
        self._lock = threading.Lock()
        self._owners: dict[bytes, ClientId] = {}
        # For each client, its digests. The most recent client and its most recent digest are last.
        self._clients: dict[ClientId, dict[bytes, None]] = {}
        self._large: dict[ClientId, None] = {}  # the clients that have more than `of_client`

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._owners

    def add(self, digest: bytes, client: ClientId) -> None:
        """Note that the token was active. A full object forgets the oldest token of a client."""
        with self._lock:
            self._remove(digest)
            own = self._clients.pop(client, {})
            own[digest] = None
            self._clients[client], self._owners[digest] = own, client
            if len(own) > self._of_client:
                self._large[client] = None
            if len(self._owners) > self._size:
                crowded = next(iter(self._large or self._clients))  # without a large one, the least recent client
                self._remove(next(iter(self._clients[crowded])))

    def remove(self, digest: bytes) -> None:
        """Note that the token is not active."""
        with self._lock:
            self._remove(digest)

    def _remove(self, digest: bytes) -> None:
        client = self._owners.pop(digest, None)
        if client is not None:
            own = self._clients[client]
            del own[digest]
            if len(own) <= self._of_client:
                self._large.pop(client, None)
            if not own:
                del self._clients[client]
