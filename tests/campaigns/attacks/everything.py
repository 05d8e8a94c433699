"""All tables of attacks as one, for whoever counts them."""

from collections.abc import Iterator

from campaigns.attacks import on_the_wire, on_tokens
from campaigns.attacks.on_registered_keys import bad_keys
from campaigns.attacks.on_replays import replays
from campaigns.attacks.rows import AnyRow
from campaigns.attacks.signatures import attacks
from kits.signed_requests import SCENE


def all_rows() -> Iterator[AnyRow]:
    """Every attack, made for a service that there is not."""
    yield from attacks(SCENE)
    yield from on_tokens.attempts(SCENE)
    yield from on_the_wire.attempts(SCENE)
    yield from replays(SCENE)
    yield from bad_keys()
