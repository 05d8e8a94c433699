"""What answers at which path: Open Payments everywhere, but for the one path where peers send ILP packets."""

from collections.abc import Callable
from datetime import datetime

from attrs import frozen

from incoming_payments.api import Request, Response, handle, internal_error
from incoming_payments.flows.effects import Flow
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.ilp_http import PacketPolicy, handle_packet
from incoming_payments.limits import BODY_BYTES_MAX, ILP_PREPARE_BYTES_MAX

Clock = Callable[[], datetime]


@frozen
class Surface:
    """One way of answering: how, with what when that has failed, and how large a body may be."""

    handle: Callable[[Request, Clock], Flow[Response]]
    failed: Callable[[], Response]
    body_bytes_max: int


class Surfaces:
    """The service's own surface, which is `payments`, and, with `packets`, that for its peers."""

    def __init__(self, policy: ServicePolicy, packets: PacketPolicy | None) -> None:
        self.payments = Surface(
            lambda request, clock: handle(request, policy=policy, now=clock()), internal_error, BODY_BYTES_MAX
        )
        self._packets: dict[str, Surface] = {}
        if packets is not None:
            self._packets[packets.path] = Surface(
                lambda request, clock: handle_packet(request, policy=packets, clock=clock),
                packets.failed,
                ILP_PREPARE_BYTES_MAX,
            )

    def at(self, path: str) -> Surface:
        """What answers at the raw `path`, which is below the service."""
        return self._packets.get(path, self.payments)
