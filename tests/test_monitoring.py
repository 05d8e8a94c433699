"""The alerts, the dashboard and the incident steps: they load, and name only what a running service has."""

import ast
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families
from promql_parser import AggregateExpr, Expr, MatchOp, VectorSelector, parse, walk

from incoming_payments import errors
from incoming_payments.ilp.packet import ErrorCode
from incoming_payments.observers.log import LogEvent
from incoming_payments.server import command
from incoming_payments.testing.sender import Payee, over_http, pay
from kits.processes import ROOT, Bank, free_port, unsigned

RULES: Final = ROOT / "docs" / "prometheus-rules.yml"
DASHBOARD: Final = ROOT / "docs" / "grafana-dashboard.json"
UNIT_TESTS: Final = ROOT / "tests" / "prometheus-rules.test.yml"

# The series and the labels of Prometheus itself, which it adds to those of the service.
OF_PROMETHEUS: Final = {"up": set[str](), "ALERTS": {"alertname", "alertstate", "severity"}}
ADDED: Final = {"job", "instance"}
# The labels whose values come from sets of codes. A test cannot cause each of them.
CODES: Final = {"error_type", "outcome"}

WEBHOOK: Final = """
[[webhooks]]
name = "shop"
url = "http://127.0.0.1:{port}/"
secret_files = ["webhook-secret.txt"]
allow_private = true
"""


def page(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / "docs" / name).read_text("utf-8")


def rules() -> list[dict[str, Any]]:
    """Return the alerts of the rule file."""
    [group] = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    alerts: list[dict[str, Any]] = group["rules"]
    return alerts


def panels() -> list[dict[str, Any]]:
    """Return the panels of the dashboard that show data."""
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


class Expression(NamedTuple):
    """An expression of PromQL, with the name of its alert or panel."""

    owner: str
    text: str


def expressions() -> Iterator[Expression]:
    """Yield each expression of the alerts and of the dashboard, with values for the variables of Grafana."""
    for rule in rules():
        yield Expression(rule["alert"], rule["expr"])
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m").replace("$job", "incoming-payments")
            yield Expression(panel["title"], text)


EXPRESSIONS: Final = list(expressions())


# --- the exported metrics ---


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, set[str]]]:
    """Return the series of a service that has taken requests, packets and events: each with its labels and values."""
    bank, port = Bank.init(tmp_path_factory.mktemp("monitoring")), free_port()
    secret = bank.folder / "webhook-secret.txt"
    secret.write_text("whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0\n", "utf-8")
    secret.chmod(0o600)
    bank.edit(f"\nport = {bank.port}\n", f"\nport = {bank.port}\nmetrics_port = {port}\n")
    with bank.configuration.open("a", encoding="utf-8") as file:
        file.write(WEBHOOK.format(port=free_port()))
    with bank.serving():
        created = bank.client.create().json()
        assert bank.client.get(created["id"]).status_code == 200
        token = (bank.folder / "peer-token.txt").read_text("utf-8").strip()
        assert pay(over_http(f"{bank.base_url}/ilp", token), Payee.of(created), 5).delivered == 5
        deadline = time.monotonic() + 30
        while "delivery_duration_seconds_count" not in (text := scraped(port)):
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
    return series(text)


def scraped(port: int) -> str:
    """Return the metrics of the service."""
    return unsigned("GET", f"http://127.0.0.1:{port}/metrics").text


def series(text: str) -> dict[str, dict[str, set[str]]]:
    """Return the series in the text format of Prometheus: each with its labels and their values."""
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def metrics() -> list[str]:
    """Return the documented metrics."""
    return re.findall(r"^\| `[\w.]+`(?: \(s\))? \| `(\w+)` \|", page("observability.md"), re.MULTILINE)


def test_service_exports_every_metric(exported: Mapping[str, Mapping[str, set[str]]]) -> None:
    """The scraped service has recorded a value of each documented metric."""
    assert [name for name in metrics() if not {name, f"{name}_count"} & set(exported)] == []


# --- the expressions ---


def parts_of(text: str) -> list[Expr]:
    """Return all parts of an expression."""
    found: list[Expr] = []
    walk(parse(text), found.append)
    return found


@pytest.mark.parametrize(
    "expression", EXPRESSIONS, ids=[f"{number}-{row.owner}" for number, row in enumerate(EXPRESSIONS)]
)
def test_expression_names_what_the_service_exports(
    expression: Expression, exported: Mapping[str, Mapping[str, set[str]]]
) -> None:
    """Each metric, each label and each value of a label exists."""
    grouped, known = set[str](), set[str]()
    for part in parts_of(expression.text):
        if isinstance(part, AggregateExpr) and part.modifier:
            grouped.update(part.modifier.labels)
        if isinstance(part, VectorSelector):
            name = part.name or ""
            assert name in exported or name in OF_PROMETHEUS
            added = {label: set[str]() for label in OF_PROMETHEUS.get(name, set()) | ADDED}
            labels = {**added, **exported.get(name, {})}
            known.update(labels)
            for matcher in part.matchers.matchers:
                assert matcher.name in labels
                if matcher.name not in ADDED and matcher.value:
                    assert has_match(matcher.op, matcher.name, matcher.value, labels[matcher.name])
    assert grouped <= known


def has_match(op: MatchOp, label: str, value: str, seen: set[str]) -> bool:
    """Return whether a series can have a value that the matcher names."""
    possible = seen | (codes() if label in CODES else set())
    pattern = value if op in (MatchOp.Re, MatchOp.NotRe) else re.escape(value)
    # the service has seen no 401 and no error
    possible |= {"401"} if label == "http_response_status_code" else set()
    return any(re.fullmatch(pattern, known) for known in possible)


def codes() -> set[str]:
    """Return the codes of failures, and the outcomes of packets and deliveries."""
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and hasattr(cls, "code")]
    return {*(cls.code for cls in classes), *ErrorCode, "credited", "delivered", "fulfilled", "internal_error"}


def test_wrong_names_are_found() -> None:
    """The check of the values refuses values that no series has."""
    assert has_match(MatchOp.Equal, "outcome", "T00", set())
    assert has_match(MatchOp.Re, "error_type", "store_.+", set())
    assert not has_match(MatchOp.Equal, "outcome", "fulfiled", set())
    assert not has_match(MatchOp.Re, "http_route", "/incoming-payment", {"/incoming-payments"})


# --- the rules ---


def test_every_alert_says_why_and_what_to_do() -> None:
    """Each alert has a severity, a summary, the reason for its threshold, and steps that exist."""
    text = page("incidents.md")
    headings = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}
    for rule in rules():
        assert rule["labels"].keys() == {"severity"}, rule["alert"]
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"].keys() == {"summary", "why", "steps"}, rule["alert"]
        assert rule["annotations"]["steps"] in headings, rule["alert"]
        assert f"`{rule['alert']}`" in text


def test_every_alert_has_a_test() -> None:
    """The tests of the rules expect each alert at least once."""
    tested = set(re.findall(r'alertname="(\w+)"', UNIT_TESTS.read_text("utf-8")))
    assert {rule["alert"] for rule in rules()} == tested


def promtool(*arguments: str) -> str:
    """Run promtool, which has to succeed, and return its output."""
    if (path := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed; Debian has it in the package prometheus")
    run = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, cwd=UNIT_TESTS.parent)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_prometheus_accepts_the_rules() -> None:
    """promtool loads the rule file."""
    assert f"SUCCESS: {len(rules())} rules found" in promtool("check", "rules", str(RULES))


def test_alerts_fire_when_they_should() -> None:
    """promtool replays series, and exactly the expected alerts fire."""
    assert "SUCCESS" in promtool("test", "rules", UNIT_TESTS.name)


# --- the pages for operators ---


@cache
def messages() -> list[re.Pattern[str]]:
    """Return a pattern for each message in the source, with a group for each of its values."""
    texts = set[str]()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.add("".join(str(part.value) if isinstance(part, ast.Constant) else "%s" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
    long = [text for text in texts if len(re.sub(r"%[sd]", "", text)) >= 16]
    return [re.compile(re.sub(r"%[sd]", "(.*)", re.escape(text)), re.DOTALL) for text in long]


def is_message(text: str) -> bool:
    """Return whether `text` is a message of the source. A long value in it must be a message too."""
    matches = [found for pattern in messages() if (found := pattern.fullmatch(text))]
    return any(all(len(value) < 30 or is_message(value) for value in found.groups()) for found in matches)


def test_log_lines_of_the_incident_steps_exist() -> None:
    """Each line of the log that the page shows is a message of the source, and has an event that exists."""
    blocks = re.findall(r"^ *```text\n(.+?)^ *```$", page("incidents.md"), re.MULTILINE | re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    shown = [line for line in lines if not line.startswith("payment ")]  # a difference, which the audit puts together
    assert len(shown) > 10
    for line in shown:
        event, found, text = line.partition(": incoming payments: ")
        assert not found or event in list(LogEvent), line
        assert is_message(text if found else re.sub(r"^[\w.\[\]]+: … ", "", line)), line  # without a setting and a file
    assert not is_message(shown[0].replace("stopped", "ended"))


@pytest.mark.parametrize("name", ["checklist.md", "incidents.md"])
def test_pages_name_existing_alerts_events_and_commands(name: str) -> None:
    """Each alert, each metric, each event of the log and each command on the page exists."""
    text = page(name)
    assert set(re.findall(r"`(IncomingPayments[A-Z]\w+)`", text)) <= {rule["alert"] for rule in rules()}
    assert set(re.findall(r"`(incoming_payments_\w+?)(?:_count)?`", text)) <= set(metrics())
    events = " ".join(re.findall(r"events? ((?:`\w+`(?:, | or | and )?)+)", text))
    assert set(re.findall(r"`(\w+)`", events)) <= {event.value for event in LogEvent}
    existing = re.findall(r"(?m)^    ([a-z-]+)", command.parser().format_help())
    assert set(re.findall(r"(?m)(?:^ *|`)incoming-payments ([a-z][a-z-]+)", text)) <= set(existing)


# --- the dashboard ---


def test_grafana_knows_every_member_of_the_dashboard() -> None:
    """Grafana's own types read the dashboard, and write every member of it again."""
    register_default_plugins()
    given = json.loads(DASHBOARD.read_text("utf-8"))
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    assert lost(given, written) == []
    assert (given["uid"], given["schemaVersion"], given["title"]) == ("incoming-payments", 39, "Incoming payments")


def lost(given: Any, written: Any, path: str = "") -> list[str]:
    """Return the places of `given` that `written` lacks, or has with another value."""
    if isinstance(given, dict):
        pairs = [(f"{path}.{name}", value, (written or {}).get(name)) for name, value in given.items()]
    elif isinstance(given, list):
        pairs = [(f"{path}[{number}]", *pair) for number, pair in enumerate(zip(given, written or given, strict=True))]
    else:
        return [] if given == written else [path]
    return [place for name, value, again in pairs for place in lost(value, again, name)]


def test_every_panel_has_a_place_and_a_data_source() -> None:
    """No two panels share an id or a place. Each panel queries the data source that the user chooses."""
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    every = dashboard["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    places: set[tuple[int, int]] = set()
    for panel in every:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places, panel["title"]
        assert max(x for x, _ in cells) < 24
        places |= cells
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "job"}
    for panel in panels():
        assert panel["datasource"] == source
        assert [target["datasource"] for target in panel["targets"]] == [source] * len(panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
