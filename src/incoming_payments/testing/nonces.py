"""The guarantees of a `Nonces` port, as a test suite for your own port. The suite needs pytest.

```python
from incoming_payments.testing.nonces import NonceContract

class TestMyNonces(NonceContract):
    def make_nonces(self, directory):
        return MyNonces(directory / "nonces", capacity=self.capacity)

    def open_again(self, nonces, directory):  # open the record as another process would
        return MyNonces(directory / "nonces", capacity=self.capacity)
```

For a port that serves only one process, set `memory_only = True`, and do not override `open_again`.
"""

# ruff: noqa: S101 - a test suite asserts
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

try:
    import pytest
except ImportError as error:
    raise ImportError("the nonce contract suite needs pytest: run pip install 'incoming-payments[testing]'") from error

from incoming_payments.errors import ClockBehind, StoreUnavailable
from incoming_payments.ports import Nonces
from incoming_payments.testing.steps import together
from incoming_payments.testing.values import NOW

KEYS = [f"{number:064x}" for number in range(12)]


class NonceContract:
    """Subclass this class in a test module with a name that pytest collects, and override `make_nonces`."""

    memory_only = False  # whether the port serves only one process
    threads = 8  # the number of concurrent callers
    capacity = 4  # the number of keys that the port can hold at the same time

    def make_nonces(self, directory: Path) -> Nonces:
        """Return an empty port that can hold `capacity` keys. `directory` is empty, and no other port uses it."""
        raise NotImplementedError(
            "make_nonces is missing: override make_nonces in your test class, and return the port to test"
        )

    def open_again(self, nonces: Nonces, directory: Path) -> Nonces:
        """Return a new port on the record of `nonces`, like a port that another process opens.

        `nonces` is the result of `make_nonces(directory)`. The new port must share no lock or cache with `nonces`.
        """
        raise NotImplementedError(
            "open_again is missing: override open_again in your test class, and open the record of `nonces` "
            "again, as another process would. If the port serves only one process, set memory_only = True"
        )

    def close_nonces(self, nonces: Nonces) -> None:
        """Close a port that `make_nonces` or `open_again` returned.

        By default, call the `close` method of the port, if it has one.
        """
        close = getattr(nonces, "close", None)
        if close is not None:
            close()

    @pytest.fixture
    def nonces(self, tmp_path: Path) -> Iterator[Nonces]:
        """Yield a port for one test."""
        nonces = self.make_nonces(tmp_path)
        yield nonces
        self.close_nonces(nonces)

    @pytest.fixture
    def other(self, nonces: Nonces, tmp_path: Path) -> Iterator[Nonces]:
        """Yield a second port on the record of `nonces`. Skip the test when the port is `memory_only`."""
        if self.memory_only:
            pytest.skip("memory_only: this port serves one process, and no other process can open its record")
        other = self.open_again(nonces, tmp_path)
        yield other
        self.close_nonces(other)

    def test_a_key_is_accepted_once(self, nonces: Nonces) -> None:
        """A used key is refused until its `until` has passed, even with a later `until`. Other keys are accepted."""
        until = NOW + timedelta(seconds=300)

        assert nonces.use(KEYS[0], until, NOW)
        for now in (NOW, until):
            assert not nonces.use(KEYS[0], until + timedelta(seconds=9), now)
        assert nonces.use(KEYS[1], until, NOW)

    def test_a_key_is_accepted_again_after_its_end(self, nonces: Nonces) -> None:
        """After `until`, the port accepts the first use of the key again, and refuses the second use."""
        until = NOW + timedelta(seconds=300)
        later = until + timedelta(microseconds=1)
        nonces.use(KEYS[0], until, NOW)

        answers = [nonces.use(KEYS[0], later + timedelta(seconds=300), later) for _ in range(2)]

        assert answers == [True, False]

    def test_a_forgotten_key_is_refused_to_a_delayed_request(self, nonces: Nonces) -> None:
        """The port cannot distinguish a removed key from a new key, so it raises `ClockBehind`."""
        until = NOW + timedelta(seconds=10)
        assert nonces.use(KEYS[0], until, NOW)
        later = NOW + timedelta(seconds=20)
        assert nonces.use(KEYS[1], later + timedelta(seconds=300), later)

        for key in (KEYS[0], KEYS[2]):
            with pytest.raises(ClockBehind):
                nonces.use(key, until, NOW + timedelta(seconds=5))
        assert nonces.use(KEYS[2], until + timedelta(microseconds=1), NOW + timedelta(seconds=5))

    def test_a_key_that_has_ended_is_refused(self, nonces: Nonces) -> None:
        """If `until` is before `now`, the port would not keep the key, so it refuses the key."""
        assert not nonces.use(KEYS[0], NOW - timedelta(microseconds=1), NOW)

    def test_a_full_port_refuses_new_keys_and_forgets_none(self, nonces: Nonces) -> None:
        """A new key raises `StoreUnavailable`, and the used keys stay used."""
        until = NOW + timedelta(seconds=300)
        for key in KEYS[: self.capacity]:
            assert nonces.use(key, until, NOW)

        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                nonces.use(KEYS[-1], until, until)

        assert [False] * self.capacity == [nonces.use(key, until, until) for key in KEYS[: self.capacity]]

    def test_a_key_that_ends_frees_its_place(self, nonces: Nonces) -> None:
        """A new key replaces the expired key. The other keys stay used, whatever the order of their use."""
        ends = [NOW + timedelta(seconds=seconds) for seconds in (40, 10, 30, 20)]
        for key, until in zip(KEYS, ends, strict=False):
            nonces.use(key, until, NOW)
        now = NOW + timedelta(seconds=11)

        assert nonces.use(KEYS[5], now + timedelta(seconds=300), now)
        with pytest.raises(StoreUnavailable):
            nonces.use(KEYS[6], now + timedelta(seconds=300), now)
        assert [nonces.use(KEYS[place], now, now) for place in (0, 2, 3, 5)] == [False] * 4

    def test_a_port_full_of_ended_keys_accepts_new_keys(self, nonces: Nonces) -> None:
        """Expired keys take no capacity."""
        for turn in range(3):
            now = NOW + timedelta(seconds=turn * 10)
            for key in KEYS[turn * self.capacity :][: self.capacity]:
                assert nonces.use(key, now + timedelta(seconds=9), now)

    def test_concurrent_uses_of_a_key_are_accepted_once(self, nonces: Nonces) -> None:
        """For each key, exactly one caller gets `True`."""
        self._use_at_once([nonces] * self.threads)

    # --- several processes ---

    def test_a_key_is_accepted_once_by_all_processes(self, nonces: Nonces, other: Nonces) -> None:
        """If two processes use the same key, the second use is refused, even if the key has expired before."""
        until = NOW + timedelta(seconds=10)
        later = until + timedelta(seconds=10)

        assert nonces.use(KEYS[0], until, NOW)
        assert not other.use(KEYS[0], until, until)
        assert other.use(KEYS[1], later, later)
        assert not nonces.use(KEYS[1], later, later)
        with pytest.raises(ClockBehind):
            nonces.use(KEYS[0], until, NOW)

    def test_concurrent_uses_in_two_processes_are_accepted_once(self, nonces: Nonces, other: Nonces) -> None:
        """For each key, exactly one caller gets `True`, no matter which port a caller uses."""
        self._use_at_once([nonces, other] * (self.threads // 2))

    def _use_at_once(self, ports: Sequence[Nonces]) -> None:
        until = NOW + timedelta(seconds=300)

        def caller(port: Nonces, seed: int) -> list[str]:
            order = KEYS[: self.capacity]
            random.Random(seed).shuffle(order)  # noqa: S311 - an order, not a secret
            return [key for key in order if port.use(key, until, NOW)]

        answers = together([partial(caller, port, seed) for seed, port in enumerate(ports)])

        assert KEYS[: self.capacity] == sorted(key for accepted in answers for key in accepted)
