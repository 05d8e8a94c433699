"""The endpoint of each path, and its response after a failure."""

from typing import Any, Final

import pytest

from incoming_payments.api import Request, http_refusal
from incoming_payments.errors import ConfigurationError, HttpRefused
from incoming_payments.flows.policy import ServicePolicy
from incoming_payments.ilp import DerivedMethods
from incoming_payments.ilp.packet import Reject
from incoming_payments.ilp.receive import Receiver
from incoming_payments.ilp_http import PacketPolicy
from incoming_payments.limits import BODY_BYTES_MAX, ILP_PREPARE_BYTES_MAX
from incoming_payments.ports import Ports
from incoming_payments.service import IncomingPayments
from incoming_payments.testing.replies import decode_reply
from kits.service_kit import AUTH_SERVER, BASE_URL, refusal
from kits.stream_kit import METHODS, SECRET

POLICY: Final = ServicePolicy(base_url=BASE_URL, auth_server=AUTH_SERVER)
PACKETS: Final = PacketPolicy(receiver=Receiver(METHODS), peers=[], path="/packets")


@pytest.mark.parametrize(
    ("packets", "path", "expected"),
    [
        (PACKETS, "/packets", (405, "method_not_allowed", ILP_PREPARE_BYTES_MAX)),
        (PACKETS, "/packets/", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/Packets", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/%70ackets", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/ilp", (404, "not_found", BODY_BYTES_MAX)),
        (PACKETS, "/incoming-payments/1", (404, "payment_not_found", BODY_BYTES_MAX)),
        (None, "/packets", (404, "not_found", BODY_BYTES_MAX)),
    ],
)
def test_exactly_one_path_is_for_packets(
    packets: PacketPolicy | None, path: str, expected: tuple[int, str, int]
) -> None:
    """With `packets`, exactly one path accepts packets. All other paths belong to Open Payments."""
    service = IncomingPayments(policy=POLICY, ports=Ports(methods=METHODS), packets=packets)
    endpoint = service.endpoint(path)
    try:
        answer = service.run(endpoint.begin(Request("GET", path))(b""))
    except HttpRefused as error:
        answer = http_refusal(error)
    assert (*refusal(answer), endpoint.body_bytes_max) == expected


def test_response_after_a_failure() -> None:
    """A client gets 500 `internal_error`. A peer gets a Reject with T00, and no 5xx."""
    service = IncomingPayments(policy=POLICY, ports=Ports(methods=METHODS), packets=PACKETS)
    assert refusal(service.endpoint("/incoming-payments").failed()) == (500, "internal_error")
    failed = service.endpoint("/packets").failed()
    assert failed.status == 200
    assert decode_reply(failed.body) == Reject("T00", METHODS.prefix, "try again later")


@pytest.mark.parametrize(
    ("methods", "fits"),
    [
        (METHODS, True),
        (DerivedMethods("test.bank", [SECRET]), True),
        (None, True),
        (object(), True),  # the host's own port is not checked
        (DerivedMethods("test.other", [SECRET]), False),
        (DerivedMethods("test.bank", [bytes(32), SECRET]), False),
        (DerivedMethods("test.bank", [SECRET, bytes(32)]), True),
    ],
)
def test_receiver_must_read_the_addresses_of_new_payments(methods: Any, fits: bool) -> None:
    """A receiver that cannot read the addresses of new payments is refused at once."""
    ports = Ports(methods=methods)
    if fits:
        service = IncomingPayments(policy=POLICY, ports=ports, packets=PACKETS)
        assert service.endpoint("/packets").body_bytes_max == ILP_PREPARE_BYTES_MAX
        return
    with pytest.raises(ConfigurationError, match=r"cannot read the addresses of ports\.methods"):
        IncomingPayments(policy=POLICY, ports=ports, packets=PACKETS)
