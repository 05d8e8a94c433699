"""Properties of the edges: what `sign` takes for a URL, the signature can be made over."""

from contextlib import suppress

import hypothesis.strategies as st
from hypothesis import example, given, settings

from incoming_payments.errors import InvalidValue
from incoming_payments.hosts.curl import check_url
from incoming_payments.httpsig import Request

URLS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https", "HTTP", "ftp", ""]),
    st.text("abcX019.:-_[]@%/", max_size=12),
    st.text(st.characters(max_codepoint=0x17F), max_size=12) | st.text("/.%2eE?#[{&", max_size=12),
)


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(URLS | st.text())
@example("https://a/\udcff")
def test_a_url_that_is_taken_is_a_target_uri(url: str) -> None:
    """Any text is taken or refused with `InvalidValue`; what is taken is a target URI, and its authority as written."""
    with suppress(InvalidValue):
        check_url(url)
        target = Request("GET", url, ()).target
        assert url.startswith(f"{target.scheme}://{target.authority}/")
