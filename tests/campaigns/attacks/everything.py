"""All tables of attacks as one."""

from collections.abc import Iterator

from campaigns.attacks import on_the_wire, on_tokens
from campaigns.attacks.on_registered_keys import bad_keys
from campaigns.attacks.on_replays import replays
from campaigns.attacks.rows import AnyRow
from campaigns.attacks.signatures import attacks
from kits.signed_requests import SCENE


def all_rows() -> Iterator[AnyRow]:
    """Yield every attack, made for a fixed scene without a service."""
    yield from attacks(SCENE)
    yield from on_tokens.attempts(SCENE)
    yield from on_the_wire.attempts(SCENE)
    yield from replays(SCENE)
    yield from bad_keys()
