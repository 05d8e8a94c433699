"""The path below the service, from the path that a server reports."""

import pytest

from incoming_payments.hosts.paths import Mount, below, encoded, origin_form
from incoming_payments.service import IncomingPayments
from kits.packet_kit import a_policy
from kits.service_kit import Service


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/incoming-payments", "/incoming-payments"),
        ("/incoming-payments?a=b?c", "/incoming-payments"),
        ("http://bank.example/op/x?y", "/op/x"),
        ("http://bank.example", "/"),
        ("http://[", "/"),
        ("*", "/"),
        ("", "/"),
    ],
)
def test_origin_form(target: str, path: str) -> None:
    """Origin form and absolute form yield the raw path; any other form yields the root, which is 404."""
    assert origin_form(target) == path


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("/incoming-payments/a-b_c.d~e", "/incoming-payments/a-b_c.d~e"),
        ("/a b/ü", "/a%20b/%C3%BC"),
        (b"/\xff", "/%FF"),
        ("/50%", "/50%25"),
    ],
)
def test_encoded(path: str | bytes, written: str) -> None:
    """Characters that RFC 3986 allows in a path stay; all others are percent-encoded."""
    assert encoded(path) == written


@pytest.mark.parametrize(
    ("path", "mount", "rest"),
    [
        ("/op/incoming-payments", "/op", "/incoming-payments"),
        ("/op/incoming-payments", "/op/", "/incoming-payments"),
        ("/incoming-payments", "", "/incoming-payments"),
        ("/incoming-payments", "/", "/incoming-payments"),
        ("/incoming-payments", "/op", "/incoming-payments"),
        ("/opera/incoming-payments", "/op", "era/incoming-payments"),
    ],
)
def test_below(path: str, mount: str, rest: str) -> None:
    """The mount is removed. The rest of a longer segment has no slash in front, and is 404."""
    assert below(path, mount) == rest


def test_mount_of_a_service() -> None:
    """The mount is the path of the base URL by default, and the endpoints are those of the service."""
    service = Service()
    plain = IncomingPayments(policy=service.policy, ports=service.ports)
    packets = IncomingPayments(policy=service.policy, ports=service.ports, packets=a_policy(path="/peers/ilp"))
    assert (Mount(plain, IncomingPayments, None).path, Mount(plain, IncomingPayments, "/pay/").path) == ("/op", "/pay")
    assert Mount(plain, IncomingPayments, "").endpoints == ("/incoming-payments",)
    assert Mount(packets, IncomingPayments, "").endpoints == ("/incoming-payments", "/peers/ilp")
