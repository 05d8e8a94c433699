"""Generate parts of the docs from the code that they describe. Run this program with `nox -s docs`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

import ast
import itertools
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from attrs import evolve

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))  # `attacks` is a package of the tests
sys.path.append(str(Path(__file__).resolve().parent))  # for the modules beside this one

import compatibility
import openapi
from reference.parts import REFERENCE

from campaigns.attacks.everything import all_rows
from campaigns.attacks.rows import Answer, AnyRow, Attack
from campaigns.evidence import page as evidence
from campaigns.evidence.promises import PROMISES
from incoming_payments import errors
from incoming_payments.domain.transitions import ANY, TABLE, UNCHANGED, Move, Refuse, Row, always
from incoming_payments.httpsig import Evidence, Policy, PrivateKey, RequestMessage, sign, verify
from incoming_payments.httpsig.explain import HYPOTHESES, explain
from incoming_payments.ilp import receive
from incoming_payments.observers import instruments
from incoming_payments.observers.log import LogEvent
from incoming_payments.server.config.setting import REQUIRED, Setting, TableOf, toml
from incoming_payments.server.config.tables import TABLES

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent


def _states(row: Row[Any, Any, Any]) -> str:
    """Return the states of `row` for a table cell."""
    return "any" if row.states == ANY else ", ".join(row.states) or "(none)"


def _label(row: Row[Any, Any, Any]) -> str:
    """Return the condition of `row` in words: the first line of its docstring without "Return whether"."""
    if row.condition is always:
        return "always"
    first = (row.condition.__doc__ or "").partition("\n")[0]
    return first.removeprefix("Return whether ").removesuffix(".")


def state_diagram() -> str:
    """Return the changes of the state, each with its triggers, as a Mermaid state diagram."""
    triggers: dict[tuple[str, str], list[str]] = {}
    for row in TABLE:
        if isinstance(row.outcome, Move) and row.outcome is not UNCHANGED:
            for state in row.states or ("[*]",):
                triggers.setdefault((f"{state}", f"{row.outcome.next}"), []).append(row.trigger)
    edges = [f"    {state} --> {after}: {', '.join(names)}" for (state, after), names in triggers.items()]
    return "\n".join(["```mermaid", "stateDiagram-v2", "    direction LR", *edges, "```"])


def transition_table() -> str:
    """Return the transition table."""
    lines = ["| trigger | state | condition | outcome | events |", "|---|---|---|---|---|"]
    for row in TABLE:
        events = ""
        if isinstance(row.outcome, Refuse):
            outcome = f"refused: `{row.outcome.error.code}`"
        elif row.outcome is UNCHANGED:
            outcome = "unchanged"
        else:
            outcome, events = f"{row.outcome.next}", ", ".join(row.outcome.events)
        lines.append(f"| {row.trigger} | {_states(row)} | {_label(row)} | {outcome} | {events} |")
    return "\n".join(lines)


def packet_table() -> str:
    """Return the ILP error that answers each refusal by the payment or the store."""
    lines = ["| refused with | error | message |", "|---|---|---|"]
    lines += [f"| `{cls.code}` | {code} | {message} |" for cls, (code, message) in receive.REFUSALS.items()]
    return "\n".join(lines)


def _shown(answer: Answer) -> str:
    """Return the status and the code of `answer`, as far as it has them."""
    status, code = answer
    return f"{status or 'no answer'} `{code}`" if code else f"{status or 'no answer'}"


def _refusals(rows: Iterable[AnyRow]) -> str:
    """Return the answers to `rows`, most frequent first; answers that HTTP gives instead of the verifier are last."""
    counted: Counter[tuple[bool, str]] = Counter()
    for row in rows:
        early = isinstance(row, Attack) and row.over_http is not None
        counted.update({(early, _shown(answer)) for answer in row.answers})
    return ", ".join(text for (_, text), _ in sorted(counted.items(), key=lambda item: (item[0][0], -item[1])))


def attack_table() -> str:
    """Return the classes of attacks, with the number of attacks in each class and the answers to them."""
    rows = list(all_rows())
    kinds = {(row.family, row.kind) for row in rows}
    lines = [f"{len(rows)} attacks of {len(kinds)} classes."]
    for family, of_family in itertools.groupby(rows, lambda row: row.family):
        lines += ["", f"**{family}**", "", "| class | attacks | answered with |", "|---|---|---|"]
        for kind, of_kind in itertools.groupby(of_family, lambda row: row.kind):
            tried = list(of_kind)
            lines.append(f"| {kind} | {len(tried)} | {_refusals(tried)} |")
    return "\n".join(lines)


def early_answers() -> str:
    """Return the answers that HTTP or a rule of the service gives before the verifier sees the request."""
    early = Counter(row.over_http for row in all_rows() if isinstance(row, Attack) and row.over_http is not None)
    lines = ["| answer | attacks | why |", "|---|---|---|"]
    for over_http, number in sorted(early.items(), key=lambda item: (item[0].status or 0, item[0].why)):
        lines.append(f"| {_shown((over_http.status, over_http.code))} | {number} | {over_http.why} |")
    return "\n".join(lines)


def report() -> str:
    """Return the log entry for a create request that was signed for http and arrived at a service on https."""
    key, now = PrivateKey.generate_ed25519("client-key-1"), datetime(2030, 1, 1, tzinfo=UTC)
    body = b'{"walletAddress":"https://bank.example/alice"}'
    headers = (
        ("Authorization", "GNAP OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1LT0"),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
    )
    sent = sign(RequestMessage("POST", "http://bank.example/op/incoming-payments", headers, body), key, created=now)
    received = evolve(sent, target_uri=sent.target_uri.replace("http:", "https:"))
    evidence = Evidence(received, {key.kid: key.public_key()}, Policy(), now + timedelta(seconds=2))
    try:
        verify(evidence.request, evidence.keys, policy=evidence.policy, now=evidence.now)
    except errors.SignatureRefused as refusal:
        return f"```text\n{explain(refusal, evidence)}\n```"
    raise AssertionError("the request was not refused")


def hypothesis_table() -> str:
    """Return the mistakes that the diagnosis looks for, in its order."""
    lines = ["| name | what the report says |", "|---|---|"]
    for row in HYPOTHESES:
        words = row.words.format(said="...").replace("|", "\\|")
        lines.append(f"| `{row.name}` | {words} |")
    return "\n".join(lines)


def nginx_configuration() -> str:
    """Return the configuration of nginx, which the tests run."""
    return f"```nginx\n{(ROOT / 'docs' / 'nginx.conf').read_text('utf-8')}```"


def systemd_unit() -> str:
    """Return the unit of systemd, which the tests run."""
    return f"```ini\n{(ROOT / 'docs' / 'incoming-payments.service').read_text('utf-8')}```"


def postgres_update() -> str:
    """Return the method `update` of the example of a store on PostgreSQL."""
    source = (ROOT / "examples" / "postgres_store.py").read_text("utf-8")
    [method] = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "update"
    ]
    lines = source.splitlines()[method.lineno - 1 : method.end_lineno]
    return f"```py\n{textwrap.dedent(chr(10).join(lines))}\n```"


def evidence_tables() -> str:
    """Return the results of the commands that check the promises. `nox -s evidence` has stored them."""
    return evidence.tables(PROMISES, evidence.load(evidence.FILE))


_NAME = re.compile(r"\[+\w+\]+")  # the name of a table, such as [log]
TYPES = {str: "string", int: "integer", bool: "boolean", list: "array", datetime: "date-time"}


def settings_tables() -> str:
    """Return all settings of `serve`: a section for each table of the configuration."""
    return "\n\n".join(_settings_of(table) for table in TABLES)


def _settings_of(table: TableOf) -> str:
    """Return the section of `table`."""
    title = f"`{table.header}`" if table.header else "At the top of the file"
    words = [_NAME.sub(r"`\g<0>`", table.meaning), f"How many: {table.least}." if table.least else ""]
    words += ["SIGHUP applies a change."] if table.reloads else []
    lines = ["| setting | type | meaning | when left out |", "|---|---|---|---|"]
    for setting in table.settings:
        meaning = setting.meaning + (f"; {setting.values}" if setting.values else "")
        lines.append(f"| `{setting.name}` | {TYPES[setting.type]} | {meaning} | {_otherwise(setting)} |")
    text = " ".join(word for word in words if word)
    return "\n\n".join(part for part in (f"### {title}", text, "\n".join(lines)) if part)


def _otherwise(setting: Setting) -> str:
    """Return what is true when `setting` is left out."""
    if setting.default is REQUIRED:
        return "error"
    return setting.otherwise or f"`{toml(setting.default)}`"


def event_table() -> str:
    """Return the events of the log."""
    lines = ["| event | meaning |", "|---|---|", *(f"| `{event}` | {event.meaning} |" for event in LogEvent)]
    return "\n".join(lines)


def metric_table() -> str:
    """Return the metrics of the observers."""
    lines = ["| OpenTelemetry | Prometheus | labels | meaning |", "|---|---|---|---|"]
    for kind, (name, text) in instruments.DURATIONS.items():
        shown = ", ".join(f"`{label}`" for label in instruments.LABELS[kind])
        lines.append(f"| `{name}` (s) | `{name.replace('.', '_')}_seconds` | {shown} | {text} |")
    for name, text in (instruments.BATCH_SIZE, instruments.DEGRADED):
        lines.append(f"| `{name}` | `{name.replace('.', '_')}` | | {text} |")
    return "\n".join(lines)


def alert_table() -> str:
    """Return the alerts of Prometheus, with the reason for each threshold."""
    [group] = yaml.safe_load((DOCS / "prometheus-rules.yml").read_text("utf-8"))["groups"]
    lines = ["| alert | severity | why this threshold |", "|---|---|---|"]
    for rule in group["rules"]:
        told = rule["annotations"]
        lines.append(
            f"| [`{rule['alert']}`](incidents.md#{told['steps']}) | {rule['labels']['severity']} | {told['why']} |"
        )
    return "\n".join(lines)


def security_policy() -> str:
    """Return `SECURITY.md` without its heading, with links from the folder of the docs."""
    return (ROOT / "SECURITY.md").read_text("utf-8").partition("\n\n")[2].replace("](docs/", "](").rstrip()


PARTS = {
    **REFERENCE,
    "state diagram": state_diagram,
    "transitions": transition_table,
    "packet refusals": packet_table,
    "attacks": attack_table,
    "early answers": early_answers,
    "report": report,
    "hypotheses": hypothesis_table,
    "settings": settings_tables,
    "log events": event_table,
    "metrics": metric_table,
    "alerts": alert_table,
    "security policy": security_policy,
    "nginx": nginx_configuration,
    "systemd": systemd_unit,
    "postgres update": postgres_update,
    "clients": compatibility.clients_table,
    "refusals by default": compatibility.refusals_by_default,
    "difficulties": compatibility.difficulties,
    "client sources": compatibility.sources,
    "evidence": evidence_tables,
}


def regenerate(text: str) -> str:
    """Return `text` with its generated parts up to date."""
    for name, make in PARTS.items():
        start, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->"
        before, found, rest = text.partition(start)
        if found:
            after = rest.partition(end)[2]
            text = f"{before}{start}{make()}\n{end}{after}"
    return text


def main() -> int:
    """Rewrite every page, and the OpenAPI document, if it is out of date."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        if (made := regenerate(text)) != text:
            page.write_text(made, "utf-8")
            print(f"wrote {page.name}")
    if openapi.FILE.read_text("utf-8") != openapi.text():
        openapi.FILE.write_text(openapi.text(), "utf-8")
        print(f"wrote {openapi.FILE.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
