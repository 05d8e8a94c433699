"""Properties of the edges: what `sign` takes for a URL, the signature can be made over."""

from contextlib import suppress

import hypothesis.strategies as st
from hypothesis import example, given, settings

from incoming_payments.errors import InvalidValue
from incoming_payments.httpsig import RequestMessage
from incoming_payments.server.dev.curl import check_url

HOSTS = st.sampled_from(["bank.example", "127.0.0.1", "[::1]", "a_b", "1.2", "[0::1]", "u@a"]) | st.text("ab0.:-[]@%")
PORTS = st.sampled_from(["", "", ":8080", ":80", ":443"]) | st.integers(-1, 70_000).map(":{}".format)
VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)
PATHS = st.text(VISIBLE).map("/{}".format) | st.text("/.%2eE?#[{&é ")
URLS = st.builds("{}://{}{}{}".format, st.sampled_from(["http", "https", "HTTP"]), HOSTS, PORTS, PATHS)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(URLS)
@example("https://a/\udcff")
@example("")
def test_a_url_that_is_taken_is_a_target_uri(url: str) -> None:
    """Any text is taken or refused with `InvalidValue`; what is taken is a target URI, and its authority as written."""
    with suppress(InvalidValue):
        check_url(url)
        target = RequestMessage("GET", url, ()).target
        assert url.startswith(f"{target.scheme}://{target.authority}/")
