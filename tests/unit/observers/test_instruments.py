"""The labels of the metrics, which are the same for both adapters."""

from typing import get_args

import pytest

from incoming_payments.observers.instruments import DURATION_BUCKETS, DURATIONS, HTTP_LABELS, degraded, labels
from incoming_payments.ports import Observation, RequestAnswered, StoreBatch, TokenIntrospected


def a_request(status: int, outcome: str, route: str = "/incoming-payments") -> RequestAnswered:
    """Return an answered request."""
    return RequestAnswered(method="POST", route=route, status=status, outcome=outcome, duration_s=0.5)


def test_every_kind_has_a_histogram() -> None:
    """No observation is left out, and the bounds of the buckets rise."""
    assert set(DURATIONS) == set(get_args(Observation))
    assert sorted(DURATION_BUCKETS) == list(DURATION_BUCKETS)


@pytest.mark.parametrize(
    ("observation", "expected"),
    [
        (a_request(201, "ok"), ("POST", "/incoming-payments", 201, None)),
        (a_request(401, "token_expired"), ("POST", "/incoming-payments", 401, None)),
        (a_request(404, "not_found", ""), ("POST", None, 404, None)),
        (a_request(503, "store_unavailable"), ("POST", "/incoming-payments", 503, "store_unavailable")),
        (a_request(500, "internal_error"), ("POST", "/incoming-payments", 500, "internal_error")),
    ],
)
def test_labels_of_http_follow_the_convention(observation: Observation, expected: tuple[object, ...]) -> None:
    """Only an error of the server has `error.type`, and only a known path has `http.route`."""
    found = labels(observation)
    assert tuple(found.get(label) for label in HTTP_LABELS) == expected
    assert None not in found.values()


def test_other_kinds_have_their_outcome() -> None:
    """One label is enough for these observations."""
    assert labels(StoreBatch(size=2, outcome="committed", duration_s=0.5)) == {"outcome": "committed"}


@pytest.mark.parametrize(
    ("outcome", "expected"), [("active", False), ("inactive", False), ("authorization_server_unavailable", True)]
)
def test_introspections_show_an_outage(outcome: str, expected: bool) -> None:
    """Other observations do not say whether the authorization server answers."""
    assert degraded(TokenIntrospected(outcome=outcome, duration_s=0.5)) is expected
    assert degraded(a_request(503, outcome)) is None
