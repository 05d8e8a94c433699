"""The functions that a process calls after each of its changes that makes a stream of the feed due."""

import contextlib
from collections.abc import Callable


class Watchers:
    """The functions to call. Thread-safe."""

    def __init__(self) -> None:
        self._wakes: dict[object, Callable[[], None]] = {}

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Add `wake`, and return a function that removes it."""
        token = object()
        self._wakes[token] = wake

        def end() -> None:
            self._wakes.pop(token, None)

        return end

    def wake(self) -> None:
        """Call all functions."""
        for wake in list(self._wakes.values()):
            with contextlib.suppress(Exception):  # such as that of a closed event loop
                wake()
