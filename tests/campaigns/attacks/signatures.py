"""All attacks on signatures, each with the code of its refusal."""

from collections.abc import Callable, Iterator
from typing import Final

from campaigns.attacks.on_bodies import bodies
from campaigns.attacks.on_coverage import coverage, times
from campaigns.attacks.on_fields import input_syntax, labels, presence, signature_syntax
from campaigns.attacks.on_keys import algorithms, keys
from campaigns.attacks.on_octets import bases, ecdsa_octets, ed25519_octets, rsa_octets, tampering
from campaigns.attacks.on_values import components, targets, values
from campaigns.attacks.rows import Attack, Family, title
from incoming_payments.httpsig import Algorithm
from kits.signed_requests import Scene

FAMILIES: Final[tuple[Callable[[Scene], Family], ...]] = (
    presence, input_syntax, signature_syntax, labels, keys, algorithms, coverage, times, components, values, targets,
    bodies, tampering, bases, ed25519_octets, ecdsa_octets, rsa_octets,
)  # fmt: skip
_OF_OTHER_CLIENTS: Final = {ecdsa_octets: Algorithm.ES256, rsa_octets: Algorithm.PS512}


def attacks(at: Scene) -> Iterator[Attack]:
    """Yield every attack on a signature, made for `at`."""
    for family in FAMILIES:
        key = at.by(_OF_OTHER_CLIENTS[family]).key if family in _OF_OTHER_CLIENTS else at.key
        for kind, rows in family(at).items():
            for name, request, code, *over_http in rows:
                yield Attack(title(family), kind, name, request, code, key, *over_http)
