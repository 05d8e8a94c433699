"""The two endpoints: Open Payments, and the one path to which peers send ILP packets."""

from collections.abc import Callable
from datetime import datetime

from attrs import evolve, frozen

from incoming_payments.api import Request, Response, check_head, handle, internal_error
from incoming_payments.errors import InvalidValue
from incoming_payments.flows.effects import Flow
from incoming_payments.flows.policy import COLLECTION_PATH, ServicePolicy
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp_http import PacketPolicy, handle_packet_of
from incoming_payments.limits import BODY_BYTES_MAX, ILP_PREPARE_BYTES_MAX

Clock = Callable[[], datetime]


@frozen
class Endpoint:
    """How an adapter answers the requests to one path.

    `begin` checks a request without its body, and raises `HttpRefused` when no body could make the request acceptable.
    It returns a function from the body and a clock to the flow that answers. `failed` returns the response for a
    request that failed with an unexpected exception. `body_bytes_max` is the size limit for the body.
    """

    begin: Callable[[Request], Callable[[bytes, Clock], Flow[Response]]]
    failed: Callable[[], Response]
    body_bytes_max: int


class Endpoints:
    """The endpoint for Open Payments, `payments`, and the endpoint for ILP packets if `packets` is given.

    `methods` is the port that hands out ILP addresses. Raises `InvalidValue` when `packets` cannot read them.
    """

    def __init__(self, policy: ServicePolicy, packets: PacketPolicy | None, methods: object) -> None:

        def begin_payments(head: Request) -> Callable[[bytes, Clock], Flow[Response]]:
            check_head(head)
            return lambda body, clock: handle(evolve(head, body=body), policy=policy, now=clock())

        self.payments = Endpoint(begin_payments, internal_error, BODY_BYTES_MAX)
        self._packets: dict[str, Endpoint] = {}
        self.paths = (COLLECTION_PATH, *(() if packets is None else (packets.path,)))
        if packets is not None:
            _check_receiver(packets.receiver.methods, methods)

            def begin_packets(head: Request) -> Callable[[bytes, Clock], Flow[Response]]:
                peer = packets.sender_of(head)
                return lambda body, clock: handle_packet_of(peer, body, policy=packets, clock=clock)

            self._packets[packets.path] = Endpoint(begin_packets, packets.failed, ILP_PREPARE_BYTES_MAX)

    def at(self, path: str) -> Endpoint:
        """Return the endpoint at the raw `path` below the service."""
        return self._packets.get(path, self.payments)


def _check_receiver(receiver: DerivedMethods, methods: object) -> None:
    """Raise `InvalidValue` when `receiver` cannot read new addresses: it would refuse every packet for them."""
    if isinstance(methods, DerivedMethods) and (
        methods.prefix != receiver.prefix or methods.secrets[0] not in receiver.secrets
    ):
        text = "the receiver of packets cannot read the addresses of ports.methods: give both the same DerivedMethods"
        raise InvalidValue(text, member="packets")
