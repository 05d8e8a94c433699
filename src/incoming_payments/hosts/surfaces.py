"""What answers at which path: Open Payments everywhere, but for the one path where peers send ILP packets."""

from collections.abc import Callable
from datetime import datetime

from attrs import evolve, frozen

from incoming_payments.api import Request, Response, check_head, handle, internal_error
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.effects import Flow
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp_http import PacketPolicy, handle_packet_of
from incoming_payments.limits import BODY_BYTES_MAX, ILP_PREPARE_BYTES_MAX

Clock = Callable[[], datetime]


@frozen
class Surface:
    """One way of answering: how, with what when that has failed, and how large a body may be.

    `begin` looks at a request without its body, and raises `HttpRefused` when none can make it good. What it returns
    takes the body, and a clock, and answers.
    """

    begin: Callable[[Request], Callable[[bytes, Clock], Flow[Response]]]
    failed: Callable[[], Response]
    body_bytes_max: int


class Surfaces:
    """The service's own surface, which is `payments`, and, with `packets`, that for its peers.

    `methods` is the port that hands out the addresses. Raises `InvalidValue` when `packets` could not read them.
    """

    def __init__(self, policy: ServicePolicy, packets: PacketPolicy | None, methods: object) -> None:

        def begin_payments(head: Request) -> Callable[[bytes, Clock], Flow[Response]]:
            check_head(head)
            return lambda body, clock: handle(evolve(head, body=body), policy=policy, now=clock())

        self.payments = Surface(begin_payments, internal_error, BODY_BYTES_MAX)
        self._packets: dict[str, Surface] = {}
        if packets is not None:
            _check_that_it_reads(packets.receiver.methods, methods)

            def begin_packets(head: Request) -> Callable[[bytes, Clock], Flow[Response]]:
                peer = packets.sender_of(head)
                return lambda body, clock: handle_packet_of(peer, body, policy=packets, clock=clock)

            self._packets[packets.path] = Surface(begin_packets, packets.failed, ILP_PREPARE_BYTES_MAX)

    def at(self, path: str) -> Surface:
        """What answers at the raw `path`, which is below the service."""
        return self._packets.get(path, self.payments)


def _check_that_it_reads(reader: DerivedMethods, methods: object) -> None:
    """Otherwise payments would show addresses at which every packet is refused for good."""
    if isinstance(methods, DerivedMethods) and (
        methods.prefix != reader.prefix or methods.secrets[0] not in reader.secrets
    ):
        text = "the receiver of packets has to read what ports.methods hands out: give both the same DerivedMethods"
        raise InvalidValue(text, member="packets")
