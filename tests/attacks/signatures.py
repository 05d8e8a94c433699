"""Every attack on a signature, with the code that it must be refused with."""

from collections.abc import Callable, Iterator
from typing import Final

from attacks.on_bodies import bodies
from attacks.on_coverage import coverage, times
from attacks.on_fields import input_syntax, labels, presence, signature_syntax
from attacks.on_keys import algorithms, keys
from attacks.on_octets import bases, ecdsa_octets, ed25519_octets, rsa_octets, tampering
from attacks.on_values import components, targets, values
from attacks.rows import Attack, Family, title
from incoming_payments.httpsig import Algorithm
from signed_requests import Scene

FAMILIES: Final[tuple[Callable[[Scene], Family], ...]] = (
    presence, input_syntax, signature_syntax, labels, keys, algorithms, coverage, times, components, values, targets,
    bodies, tampering, bases, ed25519_octets, ecdsa_octets, rsa_octets,
)  # fmt: skip
_OF_OTHER_CLIENTS: Final = {ecdsa_octets: Algorithm.ES256, rsa_octets: Algorithm.PS512}


def attacks(at: Scene) -> Iterator[Attack]:
    """Every attack on a signature, made for `at`."""
    for family in FAMILIES:
        key = at.by(_OF_OTHER_CLIENTS[family]).key if family in _OF_OTHER_CLIENTS else at.key
        for kind, rows in family(at).items():
            for name, request, code, *over_http in rows:
                yield Attack(title(family), kind, name, request, code, key, *over_http)
