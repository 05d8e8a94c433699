"""How many connections there is room for."""

import sys
from typing import Final

import pytest

from incoming_payments.hosts.room import room
from incoming_payments.limits import BACKLOG_CONNECTIONS_MAX, CONNECTIONS_MAX

MOST: Final = (CONNECTIONS_MAX, BACKLOG_CONNECTIONS_MAX)
ROOMS: Final = [(1_000_000, MOST), (2048, MOST), (1024, (512, 64)), (256, (128, 16)), (8, (4, 1)), (-1, MOST)]


@pytest.mark.parametrize(("descriptors", "expected"), ROOMS)
def test_room_for_connections(monkeypatch: pytest.MonkeyPatch, descriptors: int, expected: tuple[int, int]) -> None:
    """Connections take half of the file descriptors at most, and those on their way a quarter, four turns together."""
    resource = pytest.importorskip("resource")
    limit = resource.RLIM_INFINITY if descriptors == -1 else descriptors
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert expected == room()


def test_room_where_descriptors_are_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without such limits gets the most."""
    monkeypatch.setitem(sys.modules, "resource", None)
    assert room() == MOST
