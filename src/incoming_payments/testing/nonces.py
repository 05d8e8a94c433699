"""What a `Nonces` port promises, as a test suite that others run against their own. It needs pytest.

```python
from incoming_payments.testing.nonces import NonceContract

class TestMyNonces(NonceContract):
    def make_nonces(self, directory):
        return MyNonces(directory / "nonces", capacity=self.room)
```
"""

# ruff: noqa: S101 - a test suite asserts
import random
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

try:
    import pytest
except ImportError as error:
    raise ImportError("the nonce contract suite needs pytest: pip install pytest") from error

from incoming_payments.errors import StoreUnavailable
from incoming_payments.ports import Nonces
from incoming_payments.testing.steps import together
from incoming_payments.testing.values import NOW

KEYS = [f"{number:064x}" for number in range(12)]


class NonceContract:
    """What every `Nonces` port promises: subclass it as `StoreContract`, and override `make_nonces`."""

    threads = 8  # how many callers at once
    room = 4  # how many keys the port under test holds

    def make_nonces(self, directory: Path) -> Nonces:
        """A port that remembers nothing yet, with room for `room` keys. `directory` is its own, and empty."""
        raise NotImplementedError("override make_nonces(directory) to give the port under test")

    def close_nonces(self, nonces: Nonces) -> None:
        """End a port that `make_nonces` gave: calls its `close`, if it has one."""
        close = getattr(nonces, "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def nonces(self, tmp_path: Path) -> Iterator[Nonces]:
        """A port for one test."""
        nonces = self.make_nonces(tmp_path)
        yield nonces
        self.close_nonces(nonces)

    def test_a_key_is_used_once(self, nonces: Nonces) -> None:
        """Up to the moment `until` itself, and a later `until` makes no difference; other keys are their own."""
        until = NOW + timedelta(seconds=300)

        assert nonces.use(KEYS[0], until, NOW)
        for now in (NOW, until):
            assert not nonces.use(KEYS[0], until + timedelta(seconds=9), now)
        assert nonces.use(KEYS[1], until, NOW)

    def test_a_key_is_free_again_after_its_time(self, nonces: Nonces) -> None:
        """And used from then on."""
        until = NOW + timedelta(seconds=300)
        later = until + timedelta(microseconds=1)
        nonces.use(KEYS[0], until, NOW)

        answers = [nonces.use(KEYS[0], later + timedelta(seconds=300), later) for _ in range(2)]

        assert answers == [True, False]

    def test_what_was_forgotten_is_not_new_to_who_comes_late(self, nonces: Nonces) -> None:
        """A request that was kept waiting brings a `now` at which its key was not yet forgotten by a later one."""
        until = NOW + timedelta(seconds=10)
        assert nonces.use(KEYS[0], until, NOW)
        later = NOW + timedelta(seconds=20)
        assert nonces.use(KEYS[1], later + timedelta(seconds=300), later)

        assert not nonces.use(KEYS[0], until, NOW + timedelta(seconds=5))
        assert not nonces.use(KEYS[2], until, NOW + timedelta(seconds=5))
        assert nonces.use(KEYS[2], until + timedelta(microseconds=1), NOW + timedelta(seconds=5))

    def test_what_has_ended_already_is_not_new(self, nonces: Nonces) -> None:
        """Nothing would remember it."""
        assert not nonces.use(KEYS[0], NOW - timedelta(microseconds=1), NOW)

    def test_full_means_refusing_and_never_forgetting(self, nonces: Nonces) -> None:
        """While there is no room another key is refused, for now, and every used one stays used."""
        until = NOW + timedelta(seconds=300)
        for key in KEYS[: self.room]:
            assert nonces.use(key, until, NOW)

        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                nonces.use(KEYS[-1], until, until)

        assert [False] * self.room == [nonces.use(key, until, until) for key in KEYS[: self.room]]

    def test_room_comes_back_as_keys_end(self, nonces: Nonces) -> None:
        """The one that has ended makes room for one, and the others stay used, whatever order they came in."""
        ends = [NOW + timedelta(seconds=seconds) for seconds in (40, 10, 30, 20)]
        for key, until in zip(KEYS, ends, strict=False):
            nonces.use(key, until, NOW)
        now = NOW + timedelta(seconds=11)

        assert nonces.use(KEYS[5], now + timedelta(seconds=300), now)
        with pytest.raises(StoreUnavailable):
            nonces.use(KEYS[6], now + timedelta(seconds=300), now)
        assert [nonces.use(KEYS[place], now, now) for place in (0, 2, 3, 5)] == [False] * 4

    def test_room_never_runs_out_over_time(self, nonces: Nonces) -> None:
        """A full house of ended keys is full of room."""
        for turn in range(3):
            now = NOW + timedelta(seconds=turn * 10)
            for key in KEYS[turn * self.room :][: self.room]:
                assert nonces.use(key, now + timedelta(seconds=9), now)

    def test_of_many_at_once_one_is_first(self, nonces: Nonces) -> None:
        """Each of the keys has exactly one caller who is told that it is new."""
        until = NOW + timedelta(seconds=300)

        def caller(seed: int) -> list[str]:
            order = KEYS[: self.room]
            random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
            return [key for key in order if nonces.use(key, until, NOW)]

        answers = together([partial(caller, seed) for seed in range(self.threads)])

        assert KEYS[: self.room] == sorted(key for won in answers for key in won)
