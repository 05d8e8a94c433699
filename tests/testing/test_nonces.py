"""The nonce contract catches implementations that break it."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from incoming_payments.stores.memory import MemoryNonces
from incoming_payments.testing.nonces import NonceContract


class Evicting(MemoryNonces):
    """Forgets the key that ends first when there is no room."""

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """As a cache would."""
        if len(self._used) >= self._capacity:
            self._forget(self._by_end[0][0].replace(year=9999))
        return super().use(key, until, now)


class Blind(MemoryNonces):
    """Remembers nothing."""

    def use(self, key: str, until: datetime, now: datetime) -> bool:
        """As if there were no nonces."""
        super().use(key, until, now)
        return True


class Hoarding(MemoryNonces):
    """Never forgets."""

    def _forget(self, now: datetime) -> None:
        pass


@pytest.mark.parametrize(
    ("nonces", "test"),
    [
        (Evicting, NonceContract.test_full_means_refusing_and_never_forgetting),
        (Blind, NonceContract.test_a_key_is_used_once),
        (Blind, NonceContract.test_what_has_ended_already_is_not_new),
        (Blind, NonceContract.test_of_many_at_once_one_is_first),
        (Hoarding, NonceContract.test_a_key_is_free_again_after_its_time),
    ],
)
def test_an_example_catches_broken_nonces(
    nonces: type[MemoryNonces], test: Callable[[NonceContract, Any], None]
) -> None:
    """Each of these breaks one promise."""
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(NonceContract(), nonces(NonceContract.room))


def test_make_nonces_has_to_be_overridden(tmp_path: Path) -> None:
    """The message says so."""
    with pytest.raises(NotImplementedError, match="make_nonces"):
        NonceContract().make_nonces(tmp_path)
