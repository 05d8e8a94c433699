"""The nonce contract detects ports that break a promise."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing.nonces import NonceContract


class EvictsKeys(MemoryNonces):
    """Forgets the key that ends first when the port is full."""

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Evict a key, as a cache would, and then use `key`."""
        if len(self._used) >= self._capacity:
            self._remove_ended(self._by_end[0][0].replace(year=9999))
            self._removed_until = None
        return super().use(key, until, now)


class AcceptsAllKeys(MemoryNonces):
    """Reports each key as new."""

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Return true."""
        super().use(key, until, now)
        return True


class KeepsAllKeys(MemoryNonces):
    """Never forgets a key."""

    def _remove_ended(self, now: datetime) -> None:
        pass


class ForgetsTheTime(MemoryNonces):
    """Removes keys, and does not remember until when."""

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """Forget the time, and then use `key`."""
        self._removed_until = None
        return super().use(key, until, now)


@pytest.mark.parametrize(
    ("nonces", "test"),
    [
        (ForgetsTheTime, NonceContract.test_a_forgotten_key_is_refused_to_a_delayed_request),
        (EvictsKeys, NonceContract.test_a_full_port_refuses_new_keys_and_forgets_none),
        (AcceptsAllKeys, NonceContract.test_a_key_is_accepted_once),
        (AcceptsAllKeys, NonceContract.test_a_key_that_has_ended_is_refused),
        (AcceptsAllKeys, NonceContract.test_concurrent_uses_of_a_key_are_accepted_once),
        (KeepsAllKeys, NonceContract.test_a_key_is_accepted_again_after_its_end),
    ],
)
def test_a_broken_port_is_detected(nonces: type[MemoryNonces], test: Callable[[NonceContract, Any], None]) -> None:
    """The test of the broken promise fails."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(NonceContract(), nonces(NonceContract.capacity))


@pytest.mark.parametrize(
    "test",
    [
        NonceContract.test_a_key_is_accepted_once_by_all_processes,
        NonceContract.test_concurrent_uses_in_two_processes_are_accepted_once,
    ],
)
def test_a_record_for_each_process_is_detected(test: Callable[[NonceContract, Any, Any], None]) -> None:
    """Two ports that do not share their record accept one key twice."""
    with pytest.raises(AssertionError):
        test(NonceContract(), MemoryNonces(), MemoryNonces())


def test_hooks_must_be_overridden(tmp_path: Path) -> None:
    """The message names the method, and the setting for a port of one process."""
    with pytest.raises(NotImplementedError, match=r"open_again is missing: override open_again .* memory_only = True"):
        NonceContract().open_again(MemoryNonces(), tmp_path)
    with pytest.raises(NotImplementedError, match="make_nonces is missing: override make_nonces"):
        NonceContract().make_nonces(tmp_path)
