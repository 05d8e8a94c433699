"""The processor time of hostile inputs, in a short form of the campaign. It compares times of one thread in one run."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import pytest

from campaigns.cost.bodies import BODIES_MAX, COST_MAX, CREATE, harmless, refused_create
from campaigns.cost.campaign import costs_of, head_costs, hostile_bodies, pieces_of
from campaigns.cost.measure import GROWTH_MAX, Reader, processor_s, repeated, untraced, worst_growth
from campaigns.cost.readers import COVERED, CREATED, READERS, URL, fetched_documents, signed, text, verified
from incoming_payments.errors import MalformedJson
from incoming_payments.httpsig import RequestMessage, content_digest
from incoming_payments.limits import (
    HEADER_BYTES_MAX,
    METADATA_BYTES_DEFAULT,
    QUERY_PARAMETERS_MAX,
    SF_CHARS_MAX,
    SF_PARTS_MAX,
    SF_STRICT_CHARS_MAX,
    SIGNATURES_MAX,
)
from incoming_payments.wire import read_create_request


def test_body_of_a_stranger_costs_little() -> None:
    """No body of the limit's size costs more than six times a harmless one of that size."""
    cost, body = costs_of(refused_create, hostile_bodies(seed=1, count=20), repeats=2)[0]
    assert cost <= COST_MAX, body[:100]


def test_largest_body_of_a_client_costs_little_more_than_the_largest_metadata() -> None:
    """A client with a token can send many short values. Most of them do not fit into metadata, and are not read."""
    ends = CREATE, b"0]}}"
    valid, largest = (
        max(processor_s(read_body, [repeated(ends, piece, size, fewer) for fewer in range(3)]) for piece in PIECES)
        for size in (len(CREATE) + METADATA_BYTES_DEFAULT, BODIES_MAX)
    )
    assert largest <= 3 * valid


PIECES: Final = (b"1,", b"0.1,", b"1e9,", b"2e-310,", b'"",', b'{"":1},', b'"\\u0041",', b"null,")


def read_body(body: bytes) -> None:
    """Read a create request, which may be refused."""
    with suppress(MalformedJson), untraced():
        read_create_request(body)


def test_header_field_of_a_stranger_costs_little() -> None:
    """No long header field costs more than six times a harmless body of about that size."""
    cost, *field = head_costs(repeats=3)[0]
    assert cost <= COST_MAX, field


def check_growth(reader: Reader) -> None:
    """Check that the time of `reader` grows no faster than its input."""
    worst = worst_growth(reader, pieces_of(reader, seed=1, count=0), repeats=2)
    assert worst.factor <= GROWTH_MAX, worst


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_time_is_linear(reader: Reader) -> None:
    """A reader of outside input takes time linear in its size, whatever piece the input repeats."""
    check_growth(reader)


@pytest.fixture(scope="module")
def fetched() -> Iterator[list[Reader]]:
    """Serve documents."""
    with fetched_documents() as readers:
        yield readers


@pytest.mark.parametrize("number", [0, 1], ids=["key set", "wallet address document"])
def test_time_for_a_document_is_linear(fetched: list[Reader], number: int) -> None:
    """A client chooses the server of its key set, so that document is hostile input too."""
    check_growth(fetched[number])


@pytest.mark.parametrize("number", [0, 1], ids=["key set", "wallet address document"])
@pytest.mark.parametrize("piece", [b"[],", b'{"":0},', b"[" * 29 + b"]" * 29 + b","])
def test_document_costs_little(fetched: list[Reader], number: int, piece: bytes) -> None:
    """A document costs at most twice as much as one with a long string. The fetch itself is half of the cost."""
    read, size = fetched[number].read, fetched[number].bytes_max
    harmless, hostile = (
        processor_s(read, [repeated(frame, text, size, fewer) for fewer in range(5)])
        for frame, text in (((b'{"a":"', b'"}'), b"a"), ((b'{"a":[', b"0]}"), piece))
    )
    assert hostile <= 2 * harmless


STRICT: Final = ("cache-control", "priority", "surrogate-control")
FORMS: Final = (";sf", ';key="a"', ';key="a";sf'), (';sf;key="a"',)  # of each field, by signature


def in_strict_form(forms: Sequence[Sequence[str]], value: bytes) -> RequestMessage:
    """Return a request with long structured fields, which invalid signatures cover in these `forms`."""
    covered = [" ".join(f'"{name}"{form}' for name in STRICT for form in one) for one in forms]
    inputs = [f's{n}=({COVERED} {names}){text(CREATED)};keyid="k"' for n, names in enumerate(covered)]
    signatures = [f"s{n}=:AA==:" for n in range(len(forms))]
    fields = ("Signature-Input", ", ".join(inputs)), ("Signature", ", ".join(signatures))
    return signed(*fields, *((name, text(value)) for name in STRICT))


def test_strict_form_of_long_fields_costs_little() -> None:
    """Fields that are covered in their strict form cost at most six times the same fields as they are."""
    values = [repeated((b'a=%"', b'"'), b"a", HEADER_BYTES_MAX, fewer) for fewer in range(5)]
    plain, strict = (
        processor_s(partial(verified, partial(in_strict_form, forms), False), values) for forms in ([("",)], FORMS)
    )
    assert strict <= COST_MAX * plain


def test_query_parameter_costs_little() -> None:
    """A covered query parameter costs at most six times the whole query, however many parameters the query has."""
    queries = [f"{URL}?{'a&' * count}" for count in range(2000, 2005)]
    plain, member = (
        processor_s(partial(verified, partial(with_component, component), False), [each.encode() for each in queries])
        for component in ('"@query"', '"@query-param";name="b"')
    )
    assert member <= COST_MAX * plain


def with_component(component: str, uri: bytes) -> RequestMessage:
    """Return a request for `uri`, of which an invalid signature covers `component`."""
    given = f'sig1=({COVERED} {component}){text(CREATED)};keyid="k"'
    return signed(("Signature-Input", given), ("Signature", "sig1=:AA==:"), uri=text(uri))


def with_signatures(count: int, value: bytes) -> RequestMessage:
    """Return a request with `count` invalid signatures, each of which covers a structured field in three forms."""
    field = '"cache-control"'
    covered = f'({COVERED} {field};sf {field};key="a" {field};key="a";sf){text(CREATED)};keyid="k"'
    inputs = ", ".join(f"s{n}={covered}" for n in range(count))
    signatures = ", ".join(f"s{n}=:AA==:" for n in range(count))
    return signed(("Signature-Input", inputs), ("Signature", signatures), ("Cache-Control", text(value)))


def test_more_signatures_cost_little_more() -> None:
    """A client cannot multiply the cost of a structured field. No quota counts a request with a wrong signature."""
    values = [repeated((b"a=(", b"0)"), b"1.5 ", 4 * (SF_PARTS_MAX - 1), fewer) for fewer in range(5)]
    one, all_of_them = (
        processor_s(partial(verified, partial(with_signatures, count), False), values) for count in (1, SIGNATURES_MAX)
    )
    assert all_of_them <= 2 * one


def padded(start: str, size: int, end: str, fewer: int) -> str:
    """Return a field of at most `size` characters, or four for each of `fewer` less."""
    return start + "AAAA" * ((size - len(start) - len(end)) // 4 - fewer) + end


def at_the_limits(fewer: bytes) -> RequestMessage:
    """Return a request with invalid signatures, and with a query and structured fields as long as they may be."""
    field, encoded = '"cache-control"', "%C3%A9"
    covered = f'{COVERED} "content-digest" "@query-param";name="b" {field};sf {field};key="a" {field};key="a";sf'
    inputs = ", ".join(f's{n}=({covered}){text(CREATED)};keyid="k"' for n in range(SIGNATURES_MAX))
    signatures = ", ".join(f"s{n}=:{'A' * 86}==:" for n in range(SIGNATURES_MAX))
    return signed(
        ("Signature-Input", padded(f'{inputs}, f=();x="', SF_CHARS_MAX, '"', len(fewer))),
        ("Signature", padded(f"{signatures}, f=:", SF_CHARS_MAX, ":", len(fewer))),
        ("Content-Digest", padded(f"{content_digest(b'')}, a=:", SF_CHARS_MAX, ":", len(fewer))),
        ("Cache-Control", padded('a="', SF_STRICT_CHARS_MAX, '"', len(fewer))),
        uri=f"{URL}?b={encoded}" + f"&{encoded}={encoded * 3}" * (QUERY_PARAMETERS_MAX - 1),
    )


def test_all_limits_together_cost_little() -> None:
    """A request that reaches each limit costs at most six times a harmless body. No quota counts it."""
    hostile = partial(verified, at_the_limits, False)
    with untraced():
        costs = [
            processor_s(hostile, [b" " * fewer for fewer in range(10)]) / processor_s(refused_create, [harmless()] * 10)
            for _ in range(3)
        ]
    assert min(costs) <= COST_MAX
