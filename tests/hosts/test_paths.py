"""From the path that a server tells to the path below the service."""

import pytest

from incoming_payments.hosts.paths import below, encoded, origin_form


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
    """Origin form and absolute form come down to the raw path; anything else to the root, where nothing is."""
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
    """What RFC 3986 lets stand in a path stays, everything else is percent-encoded."""
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
    """The mount goes when it is there; what is left of another path starts with no slash, so that nothing is there."""
    assert below(path, mount) == rest
